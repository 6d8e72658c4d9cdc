#include <cmath>
#include <cstdint>
#include <queue>
#include <vector>
#include <algorithm>
enum {TOKEN,LOGIT,HALF,WEIGHTS,IDLE,SERIAL,PAIR,PPAIR,CTX,RED,L1,B1,L2,B2,XS,XROW,GAPS,PREFILL,HOST,PHOST,STEP,REQ,SKIP,E,K,M,EROW,RANKS,SEENREQ,CAP,IDXA,IDXS,WINTOK,RTT,NKK};
struct Row { double c, waves, isl, osl, lo, slots, budget, kv, mixed, first_share, hit, pre_s, pre_rate, transfer, chunks, looks, olo, ohi, k[NKK]; };
struct Out { double ttft, tpot, thr, steps; };
static uint64_t s; static inline double rnd(){ s^=s<<13; s^=s>>7; s^=s<<17; return (s>>11)*(1.0/9007199254740992.0);}
static inline double largest(double mean,double drawn,double most,double E_,double M_){ static double zc[129]; static bool init=false; if(!init){init=true; for(int m=2;m<=128;m++){ double p=(m-0.375)/(m+0.25); /* inverse normal */ double t=std::sqrt(-2*std::log(1-p)); zc[m]=t-((0.010328*t+0.802853)*t+2.515517)/(((0.001308*t+0.189269)*t+1.432788)*t+1);} }
  double dev=std::sqrt(mean*std::max(E_-drawn,0.0)/std::max(E_-1,1.0)); return std::min(mean+zc[(int)std::min(M_,128.0)]*dev,most); }
static inline double cost(const Row&r,double T,double R,double B,double ctx,double dpairs,double ptok,double pp,double pctx,double np){
  const double*k=r.k; double rk=k[RANKS];
  // seen / scored
  double dec=B-np; double dtok=T-ptok;
  auto seen=[&](double c,double n){ double read=c; if(k[CAP]>0) read=k[IDXA]*c+(1-k[IDXA])*std::min(c,n*k[CAP]); return read+n*k[SEENREQ]; };
  auto scored=[&](double p,double q){ double x=p; if(k[CAP]>0) x=k[IDXS]*p+std::min(p,q*k[CAP]); return x+q*k[WINTOK]; };
  double dc=seen(ctx,dec), pc=np>0?seen(pctx,np):0; double dp=scored(dpairs,dtok)*rk, ppx=np>0?scored(pp,ptok)*rk:0;
  double tok=T*rk, log=R*rk;
  double prod=k[TOKEN]*tok+k[LOGIT]*log, woken=1-std::pow(k[SKIP],tok-1), rows=tok;
  if(k[M]>1){ double even=tok*k[K]/k[M]; double most=tok*std::min(k[K],std::floor(k[E]/k[M])); rows=largest(even,k[K],most,k[E],k[M]);
    double own=std::floor(k[E]/k[M]); double mean=own*(1-std::pow(1-k[K]/k[E],tok)); double ex=largest(mean,mean*k[M],own,k[E],k[M]); woken=(k[M]*ex-k[K])/std::max(k[E]-k[K],1.0); prod+=k[EROW]*(rows-even); }
  prod*=1+k[HALF]/tok; double w=k[WEIGHTS]+k[IDLE]*woken; double longer=std::max(prod,w); double lin=longer+k[SERIAL]*(prod+w-longer);
  double att=std::max(k[PAIR]*dp,k[CTX]*dc)+std::max(k[PPAIR]*ppx,k[CTX]*pc);
  double ar=k[XS]+k[XROW]*rows+(k[RED]>0?k[RED]*std::min(k[L1]+k[B1]*tok,k[L2]+k[B2]*tok):0);
  double has=np>0; double gaps=k[GAPS]+k[PREFILL]*has; double dev=lin+att+ar+gaps; double host=k[HOST]+k[PHOST]*has;
  return dev+std::max(host-dev,0.0)+k[STEP]+k[REQ]*B;
}
extern "C" double price(const Row*r,double T,double R,double B,double ctx,double dpairs,double ptok,double pp,double pctx,double np){return cost(*r,T,R,B,ctx,dpairs,ptok,pp,pctx,np);}
struct Q{double sent;int isl,osl,done;double first;int idx;};
extern "C" void play(const Row*rows,Out*outs,int n,uint64_t seed){
 for(int i=0;i<n;i++){ const Row&r=rows[i]; s=seed*7919+12345; for(int j=0;j<10;j++)rnd();
  int c=(int)r.c; int total=(int)std::llround(r.c*r.waves); int sent=0; double now=0,steps=0;
  std::vector<Q> q(total); bool dis=r.pre_s>0; double pfree=0;
  typedef std::pair<double,int> A; std::priority_queue<A,std::vector<A>,std::greater<A>> arriving;
  std::vector<int> wait; size_t head=0;
  auto make=[&](double t){Q&x=q[sent];x.sent=t;x.isl=std::max(1,(int)std::llround(r.isl*(r.lo+(1-r.lo)*rnd())));x.osl=std::max(2,(int)std::llround(r.osl*(r.olo+(r.ohi-r.olo)*rnd())));x.done=(int)(r.hit*x.isl);if(x.done>=x.isl)x.done=x.isl-1;x.idx=sent;int id=sent++;
    double at=t+r.k[RTT]/2; if(dis){ double sv=r.pre_s*x.isl/r.isl; pfree=std::max(pfree,at)+sv/r.pre_rate; double end=std::max(pfree,at+sv); x.done=x.isl-1; x.first=end; arriving.push({end+r.transfer*x.isl,id}); } else if(r.k[RTT]>0) arriving.push({at,id}); else wait.push_back(id); };
  for(int j=0;j<c&&sent<total;j++) make(0);
  typedef std::pair<long,int> P; std::priority_queue<P,std::vector<P>,std::greater<P>> ends; long clock=0; double B=0,ctx=0,resv=0; int running=0;
  std::vector<int> pre; double st[3]={0,0,0},sp[3]={0,0,0}; int nt[3]={0,0,0}; int fin=0;
  while(fin<total){
    while(!arriving.empty()&&arriving.top().first<=now){wait.push_back(arriving.top().second);arriving.pop();}
    if(B==0&&pre.empty()&&head>=wait.size()){ if(arriving.empty()) break; now=std::max(now,arriving.top().first); continue; }
    double budget=r.budget-B; double T=0,R=0,pp=0,pctx=0,np=0; std::vector<int> ready;
    auto run=[&](int id)->bool{ Q&x=q[id]; int m=(int)std::min<double>(x.isl-x.done,budget); if(m<=0) return false; pp+=(double)m*x.done+m*(m+1.0)/2; x.done+=m; pctx+=x.done; np++; budget-=m; T+=m; if(x.done==x.isl){R+=1;ready.push_back(id);} return x.done==x.isl; };
    std::vector<int> keep; for(int id:pre){ if(!run(id)) keep.push_back(id);} pre.swap(keep);
    while(head<wait.size()&&budget>0&&running<r.slots){ Q&x=q[wait[head]]; if(resv+x.isl+x.osl*0.5>r.kv&&running>0) break; if(!r.chunks&&x.isl-x.done>budget&&T>0) break; int id=wait[head++]; running++; resv+=x.isl+x.osl; if(!run(id)) pre.push_back(id);} 
    bool haspre=T>0; double Bd=0; double ptok=T;
    double Rp=R; Bd=B; T+=B; R+=B;
    double nprompt=np; if(dis){nprompt=0;}
    double dctx=ctx; 
    double t= dis? cost(r,T,R,Bd+np,dctx+pctx,dctx+pctx,0,0,0,0) : (r.mixed||!haspre||B==0) ? cost(r,T,R,Bd+np,dctx,dctx,ptok,pp,pctx,np) : cost(r,ptok,Rp,np,0,0,ptok,pp,pctx,np)+cost(r,B,B,B,dctx,dctx,0,0,0,0); now+=t; steps++;
    if(Bd>0){ clock++; ctx+=B; while(!ends.empty()&&ends.top().first<=clock){ int id=ends.top().second; ends.pop(); Q&x=q[id]; B--; ctx-=x.isl+x.osl; resv-=x.isl+x.osl; running--; fin++; double tp=(now-x.first)/(x.osl-1); double tt=x.first-x.sent+r.k[RTT]/2+(x.idx>=c?(r.looks-1)/2*tp:0); int w=x.idx<c?0:(x.idx>=total-c?2:1); nt[w]++;st[w]+=tt;sp[w]+=tp; if(sent<total) make(now+r.k[RTT]/2); } }
    for(int id:ready){ Q&x=q[id]; x.first=now; B++; ctx+=x.isl+1; ends.push({clock+x.osl-1,id}); }
  }
  double f=r.first_share, mid=1-2*f; double W=0,a=0,b=0; double wt[3]={f,mid,f}; for(int w=0;w<3;w++) if(nt[w]){W+=wt[w];a+=wt[w]*st[w]/nt[w];b+=wt[w]*sp[w]/nt[w];}
  outs[i].ttft=a/W; outs[i].tpot=b/W; outs[i].thr=total/now; outs[i].steps=steps;
 }
}
