import sys,time,ctypes,hashlib,math,dataclasses,json,pickle
sys.path.insert(0,'.')
import numpy as np
from pathlib import Path
from collections import defaultdict
from scipy.optimize import least_squares
from course.simulator.accuracy.points import read_points, Refusal
from course.simulator.accuracy import play as PL
from course.simulator.accuracy.play import plan_of
from course.simulator.cost.roofline import StepTimeModel, Constants, StepWork
from course.simulator.cost.hardware import find_hardware
from course.simulator.deployment import Deployment
lib=ctypes.CDLL('sim2.so')
KN='TOKEN LOGIT HALF WEIGHTS IDLE SERIAL PAIR PPAIR CTX RED L1 B1 L2 B2 XS XROW GAPS PREFILL HOST PHOST STEP REQ SKIP E K M EROW RANKS SEENREQ CAP IDXA IDXS WINTOK RTT'.split()
K={n:i for i,n in enumerate(KN)}; NK=len(KN); NF=18
def play(A,seed=1):
    A=np.ascontiguousarray(A); out=np.zeros((len(A),4)); lib.play(A.ctypes.data_as(ctypes.c_void_p),out.ctypes.data_as(ctypes.c_void_p),len(A),ctypes.c_uint64(seed)); return out[:,:2]
def engine_of(b,v):
    if b=='vllm':
        if v=='' : return 'vllm-0.11'
        if v.startswith(('0.11','0.12')): return 'vllm-0.12'
        if v.startswith(('0.15','0.16','0.17')): return 'vllm-0.15'
        return 'vllm-0.19'
    if b=='trtllm':
        if v=='1.0.0rc3': return 'trtllm-1.0'
        if v.startswith('1.3'): return 'trtllm-1.3'
        if v.startswith(('0.','1.1.0-dev')): return 'dynamo-trtllm'
        return 'trtllm-1.1'
    if v.startswith('0.5.1') and not v.startswith('0.5.10'): return 'sglang-0.5.1'
    if v.startswith('0.5.5'): return 'sglang-0.5.5'
    if v.startswith('0.5.6'): return 'sglang-0.5.6'
    if v.startswith('0.5.8'): return 'sglang-0.5.8'
    if v=='' : return 'sglang-0.5.4'
    return 'sglang-0.5.9' if v=='0.5.9' else 'sglang-0.5.10'
def load():
    plans={}
    for p in read_points(Path('../shared/data/silicon_measured.csv')):
        try: pl=plan_of(p)
        except Refusal: continue
        e=engine_of(p.backend,p.version)
        if p.backend=='trtllm' and p.is_disaggregated: e='dynamo-trtllm'
        plans.setdefault((pl,e),[]).append(p)
    rows=[]
    for (pl,e),ps in plans.items():
        p=ps[0]; card=pl.profile.split('@')[-1]; hw=find_hardware(card)
        try: x=dict(plan=pl,e=e,card=card,eg=f'{e}_{card}',hw=hw,n=len(ps),ttft=float(np.exp(np.mean([np.log(q.ttft_s) for q in ps])))*1e3,tpot=float(np.exp(np.mean([np.log(q.tpot_s) for q in ps])))*1e3,version=p.version,measured=p.measured,prec=p.precision_name,mode='disagg' if p.is_disaggregated else 'agg',gen='b' if card in('b200','b300','gb200','gb300') else 'h',g={'gen':'b' if card in('b200','b300','gb200','gb300') else 'h'},mod=pl.shape,name=p.name)
        except Exception as err: print(err); continue
        x['one']=p.backend=='sglang' and not p.is_inferencex and all(v&(v-1)==0 for v in (p.isl,p.osl)); x['looks']=1 if p.backend!='sglang' or not p.is_inferencex or p.is_disaggregated or card not in('b200','b300','gb200','gb300') else (10 if (p.concurrency or 0)<16 else 30)
        x['hit']=1. if e=='vllm-0.12' and x['mode']=='agg' and pl.isl%1000==0 and pl.weights=='fp8' else 0.
        lay=pl.layout
        if lay.prefill is None:
            open_=math.ceil(pl.concurrency/lay.ranks); machine=lay.server; own,on=open_,pl.concurrency; c=open_
        else:
            busy=min(pl.concurrency,lay.ranks); c=max(1,round(pl.concurrency/busy)); machine=lay.server; own,on=c,pl.concurrency/lay.servers
        try:
            d=PL._deployment(dataclasses.replace(pl,separates=False),machine,own,on); x['kv']=d.num_kv_blocks*d.block_size
            x['d']=d
            if lay.prefill is not None:
                x['dp_']=PL._deployment(pl,lay.prefill,256,pl.concurrency/lay.prefill_servers)
                x['rate']=lay.prefill_servers*lay.prefill.dp/ max(1,min(pl.concurrency,lay.ranks)) 
        except Exception as err:
            print('skip',type(err).__name__,err,pl.shape,card); continue
        x['c']=c; x['kind']='moe' if d.model.num_experts else 'dense'; x['tp']=lay.server.gpus; x['isl'],x['osl']=pl.isl,pl.osl; x['p']={'bfloat16':'f16','fp8':'f8','fp4':'f4'}[pl.weights]
        rows.append(x)
    return rows
PARS=[]
names=[];init=[];lo=[];hi=[];sig=[]
def par(n,v,a,b,s): names.append(n);init.append(v);lo.append(a);hi.append(b);sig.append(s)
def declare(rows):
    global init,lo,hi,x0,sig
    for g in 'hb': par(f'half_{g}',60,1,600,.7); par(f'kv_{g}',.75,.3,1.05,.2)
    par('serial',.3,.01,1,.7); par('link',.3,.03,1,.7)
    for eg in sorted({x['eg'] for x in rows}):
        mine=[x for x in rows if x['eg']==eg]
        for p in sorted({x['p'] for x in mine}):
            dense_=any(x['kind']=='dense' for x in mine); moe_=any(x['kind']=='moe' for x in mine)
            par(f'mfu_{p}_{eg}',.6,.1,1.0,.35 if dense_ else .12)
            if moe_: par(f'xmfu_{p}_{eg}',.4,.05,1.0,.4)
            par(f'bw_{p}_{eg}',.75,.3,1.0,.2 if dense_ else .1); 
            if any(x['kind']=='moe' for x in mine): par(f'xbw_{p}_{eg}',.6,.1,1.0,.3)
        par(f'att_{eg}',.4,.05,1.,.5); par(f'layer_{eg}',9,.5,60,.5); par(f'wait_{eg}',6,.3,60,.6); par(f'step_{eg}',800,20,12000,.8); par(f'req_{eg}',10,.3,150,.8)
        par(f'pre_{eg}',1500,50,30000,1.); par(f'rtt_{eg}',20,1,900,1.)
        if any(x['kind']=='moe' for x in mine): par(f'xlayer_{eg}',12,.5,100,.5)
        if any(x['d'].model.latent_size or x['d'].model.fixed_bytes for x in mine): par(f'latent_{eg}',15,.5,120,.5)
        if any(x['plan'].layout.server.dp>1 for x in mine): par(f'exch_{eg}',20,1,300,.7)
    init=np.array(init);lo=np.log(lo);hi=np.log(hi);x0=np.log(init);sig=np.array(sig)
def constants(t,x):
    eg,p,g=x['eg'],x['p'],x['gen']
    return dict(mfu=t[f'mfu_{p}_{eg}'],expert_mfu=t.get(f'xmfu_{p}_{eg}'),half_tokens=t[f'half_{g}'],bandwidth=t[f'bw_{p}_{eg}'],expert_bandwidth=t.get(f'xbw_{p}_{eg}'),serial=t['serial'],kv_bandwidth=t[f'kv_{g}'],attention_mfu=t[f'att_{eg}'],wait_s=t[f'wait_{eg}']*1e-6,link=t['link'],link_latency_s=1.2e-5,layer_s=t[f'layer_{eg}']*1e-6,expert_layer_s=t.get(f'xlayer_{eg}',0)*1e-6,latent_layer_s=t.get(f'latent_{eg}',0)*1e-6,exchange_s=t.get(f'exch_{eg}',0)*1e-6,prefill_s=t[f'pre_{eg}']*1e-6,step_s=t[f'step_{eg}']*1e-6,request_s=t[f'req_{eg}']*1e-6)
class C: pass
BASE=Constants()
def const(d):
    c=C(); c.__dict__.update(BASE.model_dump()); c.__dict__.update(d); return c
def coefs(d,c):
    m=StepTimeModel(d.model,d.profile.hardware,d.placement,c); k=np.zeros(NK); pl=d.placement; mo=d.model
    vals=dict(TOKEN=m.token_s,LOGIT=m.logit_s,HALF=c.half_tokens,WEIGHTS=m.weights_s,IDLE=m.idle_s,SERIAL=c.serial,PAIR=m.pair_s,PPAIR=m.prompt_pair_s,CTX=m.context_s,RED=(1 if m.at_once_s or m.at_once_token_s else 0),XS=m.exchange_s,XROW=m.exchange_row_s,GAPS=m.gaps_s,PREFILL=c.prefill_s,HOST=m.host_s,PHOST=c.prefill_host_s,STEP=c.step_s,REQ=c.request_s,SKIP=m.skip,RANKS=1+(pl.dp-1)*d.others_load,EROW=m.expert_row_s)
    vals.update(L1=m.at_once_s,B1=m.at_once_token_s,L2=m.hops_s,B2=m.hops_token_s)
    if m.experts is not None: vals.update(E=m.experts.num_experts,K=m.experts.experts_per_token,M=m.experts.ranks)
    kvd=pl.kv_dtype; per=mo.kv_bytes_per_token(kvd)
    vals['SEENREQ']=2*mo.fixed_bytes/per+mo._window_tokens; vals['WINTOK']=mo._window_tokens
    if mo.picked_tokens: vals.update(CAP=mo.picked_tokens,IDXA=mo.seen(1e9,0,kvd)/1e9,IDXS=mo.index_share)
    for n,v in vals.items(): k[K[n]]=v
    return k
def build(t,rows):
    A=np.zeros((len(rows),NF+NK))
    for i,x in enumerate(rows):
        c=const(constants(t,x)); k=coefs(x['d'],c); pl=x['plan']; k[K['RTT']]=t[f"rtt_{x['eg']}"]*1e-3
        cc=x['c']; W=1 if x['one'] else min(4,max(3,200//cc)) ; lo_=.8 if pl.draws_lengths else 1.
        pre=rate=tr=0.
        if 'dp_' in x:
            k2=coefs(x['dp_'],c); n=max(1,min(pl.budget//pl.isl, 8 if x['plan'].concurrency>8 else 1)); isl=pl.isl*(.9 if lo_<1 else 1)
            row=np.zeros(NF+NK); row[NF:]=k2
            lib.price.restype=ctypes.c_double
            s=lib.price(row.ctypes.data_as(ctypes.c_void_p),*(ctypes.c_double(v) for v in (n*isl,n,n,0,0,n*isl,n*isl*isl/2,n*isl,n)))
            pre=s/n*pl.isl/isl; rate=x['rate']; tr=x['d'].model.kv_bytes_per_token(x['d'].placement.kv_dtype)/(pl.link*pl.layout.prefill.tp)
            pre=max(pre,1e-6)
        A[i,:NF]=[cc,W,pl.isl,pl.osl,lo_,max(256,cc),pl.budget,x['kv'],0 if pl.separates and not pre else 1,1/10 if pl.draws_lengths else 1/W,x['hit'],pre,rate,tr,1 if pl.chunks else 0,x['looks'],.8 if pl.draws_lengths else (1. if x['one'] else .95),1. if (pl.draws_lengths or x['one']) else 1.05]
        A[i,NF:]=k
    return A
def arr(rows): return np.array([[x['ttft'],x['tpot']] for x in rows])
def pred(z,rows): return play(build(dict(zip(names,np.exp(z))),rows))*1e3
def report(z,rows,keys,show=0):
    p=pred(z,rows); q=arr(rows); e=(p/q-1)*100; w=np.array([x['n'] for x in rows])
    def line(n,s):
        def med(v): return np.median(np.repeat(v,w[s]))
        print(f"{n:28s} n={w[s].sum():4d} TPOT med {med(e[s,1]):6.1f} MAPE {np.average(abs(e[s,1]),weights=w[s]):5.1f} w15 {np.average(abs(e[s,1])<15,weights=w[s])*100:4.0f} | TTFT med {med(e[s,0]):6.1f} MAPE {np.average(abs(e[s,0]),weights=w[s]):6.1f}")
    line('all',np.ones(len(rows),bool))
    for key in keys:
        for v in sorted({x[key] for x in rows},key=str): line(f'{key}={v}',np.array([x[key]==v for x in rows]))
    for j in np.argsort(-abs(e[:,1]))[:show]: x=rows[j]; l=x['plan'].layout; print(f"{e[j,1]:6.1f} {e[j,0]:6.1f} n{x['n']}",x['eg'],x['p'],x['mod'],l.server,l.servers,l.prefill,l.prefill_servers,x['isl'],x['osl'],'c',x['plan'].concurrency,'tpot',round(x['tpot'],2),'ttft',round(x['ttft']),x['version'],x['measured'])
    return e
def half(x): return int(hashlib.md5('|'.join([x['mod'],x['card'],x['e'],x['p'],str(x['plan'].layout),str(x['isl']),str(x['osl'])]).encode()).hexdigest(),16)%2
import colorfit
def fit(rows,nfev,tw=.12,verbose=2,start=None):
    egs=sorted({x['eg'] for x in rows}); N=len(rows); key={'eg':np.array([x['eg'] for x in rows]),'gen':np.array([x['gen'] for x in rows])}
    kinds=defaultdict(list)
    for i,n in enumerate(names):
        for e in egs:
            if n.endswith('_'+e): kinds[(n[:-len(e)-1],'eg')].append((i,e)); break
        else:
            if n[-2:] in('_h','_b'): kinds[(n[:-2],'gen')].append((i,n[-1]))
            elif n in('serial','link'): kinds[(n,'all')].append((i,None))
    meas=arr(rows); wt=np.sqrt(np.array([x['n'] for x in rows])); prior=PRIOR
    def f(z):
        d=np.log(pred(z,rows)/meas); return np.r_[d[:,1]*wt,np.clip(d[:,0],-1.5,1.5)*tw*wt,(z-x0)/sig*prior]
    def jac(z):
        base=f(z); J=np.zeros((len(base),len(z))); J[2*N:,:]=np.diag(prior/sig)
        for (n,kind),members in kinds.items():
            z2=z.copy()
            for i,_ in members: z2[i]+=.03 if z2[i]+.03<hi[i] else -.03
            d=f(z2)
            for i,suf in members:
                s=np.ones(N,bool) if suf is None else key[kind]==suf; s2=np.r_[s,s]
                J[:2*N,i][s2]=((d-base)[:2*N]/(z2[i]-z[i]))[s2]
        return J
    return least_squares(f,np.clip(x0 if start is None else start,lo+1e-6,hi-1e-6),jac=jac,bounds=(lo,hi),loss='soft_l1',f_scale=.15,max_nfev=nfev,verbose=verbose,x_scale=sig)
def pooled(z,rows):
    '''empirical Bayes: priors from the other engines and cards of the same chip generation'''
    global x0,sig
    kinds=defaultdict(list); egs=sorted({x['eg'] for x in rows}); n={e:sum(x['n'] for x in rows if x['eg']==e) for e in egs}; gen={x['eg']:x['gen'] for x in rows}
    for i,nm in enumerate(names):
        for e in egs:
            if nm.endswith('_'+e): kinds[(nm[:-len(e)-1],gen[e])].append((i,e)); break
    nx,ns=x0.copy(),sig.copy()
    for key,mem in kinds.items():
        idx=[i for i,_ in mem]; w=np.array([min(n[e],60)**.5 for _,e in mem]); m=np.average(np.r_[z[idx],x0[idx[0]]],weights=np.r_[w,3.]); sd=np.sqrt(np.average((z[idx]-m)**2,weights=w)+.15**2*.3)
        nx[idx]=m; ns[idx]=np.clip(sd,.1,sig[idx[0]])
    x0,sig=np.clip(nx,lo+1e-6,hi-1e-6),ns
def fit_twice(rows,a,b,verbose=0):
    global PRIOR
    s=fit(rows,a,verbose=verbose)
    for w in (.12,):
        pooled(s.x,rows); PRIOR=w; s=fit(rows,b,verbose=verbose,start=s.x)
    return s
PRIOR=.06
if __name__=='__main__':
    t0=time.time(); rows=load(); declare(rows); print(len(rows),sum(x['n'] for x in rows),len(names),time.time()-t0)
    cmd=sys.argv[1]; keys=('kind','mode','eg','p','mod','tp')
    if cmd=='init': t0=time.time(); report(x0,rows,keys,30); print(time.time()-t0)
    if cmd=='cv':
        a=[x for x in rows if half(x)==0];b=[x for x in rows if half(x)==1]; s=fit(a,int(sys.argv[2]),verbose=0); print('fitted half');report(s.x,a,('kind','mode'));print('other half');report(s.x,b,keys)
    if cmd=='cv2':
        a=[x for x in rows if half(x)==0];b=[x for x in rows if half(x)==1]; s=fit_twice(a,9,6); print('fitted half');report(s.x,a,('kind','mode'));print('other half');report(s.x,b,keys)
    if cmd=='all2':
        s=fit(rows,1,start=np.load('fit2.npy')[:len(x0)],verbose=0); pooled(s.x,rows); globals().update(PRIOR=.12); s=fit(rows,int(sys.argv[2]),tw=.25,start=s.x); np.save('fit3.npy',s.x); e=report(s.x,rows,keys,60); json.dump(dict(zip(names,np.exp(s.x).tolist())),open('fit3.json','w'))
    if cmd=='all':
        st=np.load('fit2.npy') if len(sys.argv)>3 else None
        s=fit(rows,int(sys.argv[2]),start=st); np.save('fit2.npy',s.x); e=report(s.x,rows,keys,60)
        json.dump(dict(zip(names,np.exp(s.x).tolist())),open('fit2.json','w'))
        for n,v in zip(names,np.exp(s.x)): print(n,'%.3g'%v,end='; ')
    print(time.time()-t0)
