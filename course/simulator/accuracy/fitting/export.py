"""fit3.json -> engines.json"""
import json,sys
sys.path.insert(0,'.'); 
from fit2 import load, declare
t=json.load(open('fit3.json')); rows=load()
DT={'f16':'bfloat16','f8':'fp8','f4':'fp4'}
def r(v): return float('%.3g'%v)
eng={}
for eg in sorted({x['eg'] for x in rows}):
    mine=[x for x in rows if x['eg']==eg]; e,card=mine[0]['e'],mine[0]['card']; g=mine[0]['gen']
    c=dict(half_tokens=r(t[f'half_{g}']),kv_bandwidth=r(t[f'kv_{g}']),attention_mfu=r(t[f'att_{eg}']),wait_s=r(t[f'wait_{eg}']*1e-6),layer_s=r(t[f'layer_{eg}']*1e-6),prefill_s=r(t[f'pre_{eg}']*1e-6),step_s=r(t[f'step_{eg}']*1e-6),request_s=r(t[f'req_{eg}']*1e-6))
    for k,n in (('xlayer','expert_layer_s'),('latent','latent_layer_s'),('exch','exchange_s')):
        if f'{k}_{eg}' in t: c[n]=r(t[f'{k}_{eg}']*1e-6)
    by={}
    for p in sorted({x['p'] for x in mine}):
        by[DT[p]]={n:r(t[f'{k}_{p}_{eg}']) for k,n in (('mfu','mfu'),('bw','bandwidth'),('xmfu','expert_mfu'),('xbw','expert_bandwidth')) if f'{k}_{p}_{eg}' in t}
    eng.setdefault(e,{})[card]=dict(constants=c,by_weights=by,client_s=r(t[f'rtt_{eg}']*1e-3),points=sum(x['n'] for x in mine))
out={"source":"fitted to public measurements of serving points that AIConfigurator collected (github.com/ai-dynamo/aiconfigurator, Apache-2.0), most of them InferenceX's (github.com/SemiAnalysisAI/InferenceX)","shared":{"serial":r(t['serial']),"link":r(t['link']),"link_latency_s":1.2e-5},"engines":eng}
def dump(o,ind=0):
    return json.dumps(o,indent=1)
json.dump(out,open('course/simulator/cost/engines.json','w'),indent=1); print(len(eng))
