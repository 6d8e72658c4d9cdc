import sys; sys.path.insert(0,'.')
import fit2, numpy as np, json, random, time
rows=fit2.load(); fit2.declare(rows); t=json.load(open('fit2.json'))
A=fit2.build(t,rows); p=fit2.play(A)*1e3
from course.simulator.accuracy.play import forecast
random.seed(int(sys.argv[1])); pick=random.sample(range(len(rows)),int(sys.argv[2]))
e=[]
for j in pick:
    x=rows[j]; c0=time.process_time(); f=forecast(x['plan']); dt=time.process_time()-c0
    r=(f.tpot_s*1e3/p[j,1]-1)*100; r2=(f.ttft_s*1e3/p[j,0]-1)*100; e.append((r,r2,dt))
    if abs(r)>4: print('%.1f %.1f %.2fs'%(r,r2,dt),x['eg'],x['p'],x['mod'],x['plan'].layout,x['isl'],x['osl'],'c',x['plan'].concurrency,'cpp',round(p[j,1],2),'py',round(f.tpot_s*1e3,2),'meas',round(x['tpot'],2), 'ttft cpp/py/meas',round(p[j,0]),round(f.ttft_s*1e3),round(x['ttft']),'chunks',x['plan'].chunks,x['plan'].separates)
e=np.array(e); print('tpot diff median',np.median(e[:,0]),'mean abs',np.mean(abs(e[:,0])),'ttft',np.median(e[:,1]),np.mean(abs(e[:,1])),'cpu',e[:,2].mean(),e[:,2].max())
