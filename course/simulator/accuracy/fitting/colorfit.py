import numpy as np
from scipy.optimize import least_squares
def groups(names,rows):
    """colour: parameter kinds whose suffix picks disjoint rows are perturbed together"""
    egs=sorted({x['eg'] for x in rows}); mods=sorted({x['mod'] for x in rows}) if 'mod' in rows[0] else []
    gens=['h','b']; kinds={}
    for i,n in enumerate(names):
        for suf,kind in [(e,'eg') for e in egs]+[(m,'mod') for m in mods]:
            if n.endswith('_'+suf):
                kinds.setdefault((n[:-len(suf)],kind),[]).append((i,suf)); break
        else:
            if n[-2:] in('_h','_b'): kinds.setdefault((n[:-1],'gen'),[]).append((i,n[-1]))
            else: kinds.setdefault((n,'all'),[]).append((i,None))
    return kinds
def fit(names,rows,predict,meas,x0,lo,hi,sig,nfev,tw,prior=.06,verbose=2,f_scale=.15):
    ks=groups(names,rows); N=len(rows)
    key={'eg':np.array([x['eg'] for x in rows]),'mod':np.array([x.get('mod') for x in rows]),'gen':np.array([x['g']['gen'] for x in rows])}
    def f(z):
        d=np.log(predict(z,rows)/meas); return np.r_[d[:,1],np.clip(d[:,0],-1.5,1.5)*tw,(z-x0)/sig*prior]
    def jac(z):
        base=f(z); J=np.zeros((len(base),len(z))); J[2*N:,:]=np.diag(prior/sig)
        for (n,kind),members in ks.items():
            for part in ([members] if kind!='all' else [[m] for m in members]):
                h=.03; z2=z.copy()
                for i,_ in part: z2[i]+= h if z2[i]+h<hi[i] else -h
                d=f(z2)
                for i,suf in part:
                    s=np.ones(N,bool) if suf is None else key[kind]==suf
                    s2=np.r_[s,s]; J[:2*N,i][s2]=((d-base)[:2*N]/(z2[i]-z[i]))[s2]
        return J
    return least_squares(f,x0,jac=jac,bounds=(lo,hi),loss='soft_l1',f_scale=f_scale,max_nfev=nfev,verbose=verbose,x_scale=sig)
