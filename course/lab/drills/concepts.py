"""The words that answers use, sorted into concepts. One place for synonyms; rules speak of concepts only.

Each concept is a few regular expressions over lower-case text. Where two concepts overlap in a text, the one that
stands earlier in HIDES keeps the words: `int8 KV` is a smaller cache, not quantized weights.
"""

import re

PHASES = {
    "queue": r"queu\w+|queues?|wait(?:s|ed|ing)?(?: time)?|backlog\w*|phase 1|stand(?:s|ing)? in line",
    "prefill": r"(?<!chunked )(?<!chunked-)prefill\w*|(?:prompt|input) processing|phase 2|"
    r"(?:read|process|comput)\w* (?:the |a |each |every |long |"
    r"whole |its |their )*(?:prompts?|inputs?|contexts?)",
    "first_token": r"phase 3|(?<!to )(?<!to-)first[- ]token(?! latency)|sampling",
    "decode": r"(?<!speculative )decod\w+|phase 4|(?:token |text )?generation|generating|"
    r"generat\w+ (?:tokens?|the answer|text)|"
    r"writ\w+ (?:the |an? |its |their )*(?:answers?|tokens?|texts?)",
    "stream": r"stream\w*|detok\w*|sse|phase 5|on the wire|last byte",
}
METRICS = {
    "ttft": r"ttft\w*|time[- ]to[- ](?:the )?first[- ]token|first[- ]token latency",
    "itl": r"itl\w*|inter[- ]?token\w*(?: latency| delay)?|tpot|time per (?:output )?token|between tokens|"
    r"(?:per|each)[- ]token (?:latency|time)|token gaps?|gaps? between",
    "e2e": r"e2e|end[- ]to[- ]end|total (?:time|latency|wait|response)|whole (?:request|answer|response)|"
    r"(?:users?|user is|people) waits?(?:ing)?|full (?:answer|response)",
    "percentile": r"p\d\d(?:\.\d)?|percentiles?|tails?|median|distributions?|histograms?|spread|buckets?",
    "gpu_util": r"(?:gpu )?utili[sz]ation|gpu[- ]util\w*|nvidia-smi",
    "goodput": r"goodput|within (?:the )?slos?|meets? (?:the |every |its )*slos?",
}
CAUSES = {
    "bandwidth": r"(?:memory[- ])?bandwidth\w*|memory[- ](?:bound|limited|wall)|reads? (?:all |the |every |"
    r"each )*weights?|"
    r"weights? (?:is|are|get|be)? ?(?:re-?)?read|weight (?:reads?|bytes|traffic)|hbm reads?|reading (?:all |the "
    r")*weights?|"
    r"bytes (?:over|per|/)|reread\w*",
    "compute": r"compute[- ]?(?:bound|limited)?|[tp]?flops?(?:/s)?|arithmetic[- ]?(?:bound)?|multipl\w+|mfu|tera\w+|"
    r"\w?flop/s",
    "kv": r"kv|kv[- ]?cache\w*|key[- ]value|keys and values|kv pool|block pool",
    "memory": r"hbm|gpu memory|memory|room|fits?|vram|cache (?:is |was |got )?too small|(?:larger|bigger) caches?",
    "preemption": r"pre-?empt\w*|recomput\w*|thrash\w*",
    "launch": r"kernel launch\w*|launch[- ]bound|cuda graphs?|host overhead|launch overhead",
    "capacity": r"capacity|saturat\w*|overload\w*|over[- ]capacity|headroom|knee|can(?:not|'t| not) (?:keep up|serve|"
    r"sustain)|"
    r"throughput|keeps? up|one (?:replica|server)|under-?provision\w*|max(?:imum)? (?:qps|rate)|steady state|stable",
    "load": r"load|qps|rps|arrival\w*|arrive\w*|requests? (?:per|a|each) second|req/s|traffic|offered|requests/s|rate",
    "little": r"little'?s(?: law)?|in flight|in-flight|concurren\w+|at once|outstanding|simultaneous\w*",
    "straggler": r"straggl\w*|head[- ]of[- ]line|hol|stall\w*|behind (?:it|them|others?|a|one|the|long)|"
    r"block(?:s|ed|ing)? "
    r"(?:the |every|all |other|short|chat)\w*|everybody|interfer\w*|steps? (?:grow|last|get long|become long|"
    r"lengthen|take)\w*|"
    r"freez\w*|neighbou?rs?|shar(?:e|es|ed|ing) (?:the |a |its |their )?steps?|same steps?|hold\w* up",
    "mha": r"mha|multi[- ]head|no gqa|without gqa|lacks gqa|full attention heads|40 (?:kv )?heads",
    "prompt_length": r"(?:prompt|input|context)[- ](?:lengths?|tokens?|sizes?|distribution)|lengths? "
    r"(?:distribution|of (?:the )?"
    r"(?:prompts?|inputs?|contexts?))|long(?:er)? (?:prompts?|contexts?|inputs?|documents?)|prompts? (?:grew|"
    r"grow|got|became|are|is|tripled|of|have)|"
    r"length mix|prompts?|contexts?|tokens in",
    "output_length": r"(?:output|answer|response|completion)[- ](?:lengths?|tokens?|limits?|distribution)|"
    r"lengths? of (?:the )?(?:answers?|outputs?)|(?:long|short)(?:er)? (?:answers?|outputs?|completions?)|"
    r"max_tokens|tokens out|outputs?",
    "shared_prefix": r"shared? (?:\w+ )?prefix\w*|system prompts?|common prefix|shared (?:text|part|context)|"
    r"prefix(?:es)?|share "
    r"of the prompt|template",
    "acceptance": r"accept\w*|α|alpha",
    "hit_rate": r"hit[- ]?(?:rate|ratio)s?|cache[- ](?:hits?|miss\w*)|hits?|miss(?:es)?",
    "first_line": r"time ?stamp\w*|date|session id|request id|uuid|user ?names?|user id|nonce|first (?:line|"
    r"token|block|"
    r"difference|byte)s?|"
    r"(?:prompts?|prefix|template) (?:\w+ )?changed|changed (?:the )?(?:prompt|prefix|template)|"
    r"exact (?:match\w*|prefix\w*)|hash\w*|diff(?:er(?:s|ed|ence|ences)?)?\b|byte[- ]for[- ]byte",
    "eviction": r"evict\w*|lru|working set|pushed out|falls? out|thrown out",
    "turns": r"turns?|multi-?turn|conversation|history|session|agents?|steps of the agent|tool calls?",
    "client": r"client\w*|browser|user side|at the (?:edge|user)|far end|wireshark|curl|tcpdump|packet\w*",
    "server_side": r"server[- ]?sides?|server|engine|inside the (?:engine|server)|behind the proxy",
    "proxy": r"prox(?:y|ies)|buffer\w*|nginx|coalesc\w*|flush\w*|gateways?|cdn|load balancer|middlebox\w*|nagle|http/2|"
    r"gzip|compression",
    "network": r"network\w*|rtt|round trips?|distance|tls|connections?|keep-?alive|region\w*",
    "coordinated": r"coordinated omission|closed[- ]loop|open[- ]loop|constant rate|poisson|fixed (?:number "
    r"of )?(?:clients|"
    r"users|connections)|"
    r"as fast as|wait(?:s|ed)? for (?:the |each |its |an )*(?:previous |last )?(?:answers?|responses?|repl(?:y|"
    r"ies))|self-throttl\w*",
    "warm": r"warm\w*|cold[- ]?(?:start|cache)\w*|start(?:s|ing)? up|spin(?:s|ning)? up|boot\w*|load(?:s|ing)? (?:the "
    r")?weights|minutes to",
    "tokenize": r"token(?:is|iz)\w+|chat template|token ids?",
    "quadratic": r"quadratic\w*|n²|n\^2|o\(n2\)|o\(n\^2\)|o\(n²\)|squares?|squared",
    "attention": r"attention|quadratic\w*|n²|n\^2|o\(n2\)|o\(n\^2\)|o\(n²\)",
    "retrieval": r"retriev\w*|rag|rerank\w*|documents?|passages?|embedding\w*|vector",
    "utilised": r"idle|busy|hours? (?:used|of use)|duty|night|around the clock|24/7|break[- ]?even|amorti[sz]\w*|pays? "
    r"(?:off|back)|depreciat\w*|payback",
}
TECHNIQUES = {
    "kv_quant": r"(?:int8|fp8|8[- ]bit|quanti[sz]ed)[- ]kv(?:[- ]cache)?|kv(?:[- ]cache)?[- ](?:quanti[sz]\w+|int8|fp8|"
    r"compression|in 8 bits)|"
    r"quanti[sz]\w+ (?:of )?(?:the )?kv(?:[- ]cache)?|kv(?: cache)? (?:in|to|at|as) (?:int8|fp8|8[- ]bits?)",
    "quantization": r"quanti[sz]\w*|int8|int4|fp8|4[- ]bit|8[- ]bit|awq|gptq|(?:lower|reduced|mixed)[- "
    r"]precision|fewer bits",
    "speculation": r"speculat\w*|draft\w*|medusa|eagle|n-?grams?|lookahead decoding|proposers?",
    "prefix_cache": r"prefix[- ]?cach\w*|prompt[- ]?cach\w*|cached (?:prefix\w*|prompts?|tokens)|kv[- "
    r"](?:cache )?re-?use|cache "
    r"(?:the )?(?:shared |"
    r"system |common )*(?:prefix\w*|prompts?)|re-?us\w+ (?:the )?(?:kv|prefix\w*|cache)|radix\w*|\bapc\b|cache[- "
    r"]aware",
    "chunking": r"chunk\w*|token budget|max_num_batched_tokens|piecewise|slic\w+ (?:the |long )*prompts?|"
    r"split\w* (?:the |"
    r"long )*prompts?",
    "admission": r"admission\w*|shed\w*|reject\w*|429s?|503s?|back-?pressure|rate[- ]limit\w*|bounded "
    r"queues?|bound the queue|"
    r"cap the queue|"
    r"queue (?:limit|bound|cap)\w*|turn(?:s|ed|ing)? (?:\w+ )?away|retry-after|deadlines?|refus\w+ (?:some|"
    r"requests?|the|excess|clients?|with)|refusals?|refused",
    "replicas": r"(?:more |extra |another |add(?:ing)? |\d+ |two |three |four )?(?:replicas?)|(?:more|extra|additional|"
    r"another|add(?:ing)?|buy(?:ing)?) "
    r"(?:\w+ )?(?:gpus?|hardware|servers?|nodes?|machines?|capacity)|scal\w+ (?:out|up|horizontally)|fleet",
    "autoscaling": r"auto-?scal\w*",
    "seats": r"max[-_ ]?num[-_ ]?seqs|max[-_ ]?batch(?:[-_ ]size)?|batch[- ](?:sizes?|cap|limits?)|"
    r"seats?|slots?|smaller "
    r"batch\w*|larger batch\w*|"
    r"concurrency (?:limit|cap)",
    "batching": r"continuous batching|batch\w*|occupancy",
    "smaller_model": r"small(?:er)? models?|distil\w*|cascad\w*|cheaper models?|(?:8|7)b(?: model)?s?|route "
    r"(?:the )?(?:easy|"
    r"simple)\w*|fallback models?",
    "fallback": r"fall(?:s|ing)? ?back\w*|degrad\w+|brown-?out|graceful\w*",
    "lanes": r"lanes?|priorit\w*|(?:separate|own|dedicated|different|another|second) (?:\w+ )?(?:pools?|"
    r"fleets?|queues?|"
    r"replicas?|clusters?|gpus?|class\w*|"
    r"servers?|tier)|isolat\w*|disaggregat\w*|low[- ]priority|yield\w*|night|off-?peak|pause\w*",
    "gqa": r"gqa|mqa|grouped[- ]query|multi[- ]query|mla|latent attention",
    "prompt_limit": r"(?:prompt|input|context)[- ](?:limits?|budgets?|caps?|compression|pruning)|truncat\w*|"
    r"trim\w*|(?:compress|"
    r"shorten|prun|cut)\w* (?:the )?"
    r"(?:prompts?|contexts?|history)|fewer (?:chunks|documents|passages|tokens)|shorter (?:prompts?|contexts?)|"
    r"summari[sz]\w* (?:the |old |earlier )*"
    r"(?:history|turns?|context|conversation)|rerank\w*|top[- ]k|compact\w*|cap (?:the )?(?:prompts?|inputs?|"
    r"contexts?)",
    "output_limit": r"(?:output|answer|max_tokens)[- ](?:limits?|caps?|budgets?)|cap (?:the )?(?:outputs?|"
    r"answers?)|shorter "
    r"(?:answers?|outputs?)|stop sequences?",
    "routing": r"rout(?:er|ers|ing|es?|ed)|affinity|sticky|consistent hash\w*|load[- ]balanc\w*|least[- "
    r"](?:outstanding|"
    r"loaded)|pin(?:ned|ning)?",
    "unbuffer": r"flush\w*|(?:switch|turn)\w* (?:off )?(?:the )?(?:proxy )?buffering(?: off)?|no buffering|"
    r"disabl\w+ (?:\w+ "
    r")?(?:buffering|compression)|"
    r"proxy_buffering|x-accel-buffering|tcp_nodelay|unbuffered",
    "stable_first": r"(?:stable|static|fixed|constant|unchanging) (?:\w+ )?(?:first|text|part|prefix)|(?:move|"
    r"put|push)\w* "
    r"(?:\w+ ){0,4}(?:to the end|"
    r"last|behind|after|below|out)|reorder\w*|append\w*|to the end|at the end",
    "tp": r"tensor[- ]parallel\w*|\btp ?=? ?\d?\b|nvlink|shard\w*|more gpus per",
    "flash": r"flash-?attention|fused attention|\bfa[23]\b",
    "offload": r"offload\w*|swap\w*|host memory|cpu memory|\bssd\b|tiered",
    "window": r"sliding[- ]window|window(?:ed)? attention",
    "hbm_buy": r"more hbm|h200s?|b200s?|(?:larger|bigger|newer|more) (?:memory|gpus?)|more memory",
    "spot": r"spot|preemptible|reserved|commit\w*|on[- ]demand",
    "gate": r"gat(?:e|es|ed|ing)|switch\w* (?:it |speculation |drafts? )*off|turn\w* (?:it |speculation |drafts? )*off|"
    r"disabl\w*|above a batch",
}
OPERATIONS = {
    "spike": r"spik\w*|bursts?|bursty|surge\w*|tenfold|peaks|peak (?:hours?|load|traffic|times?)|"
    r"(?:daily|evening|traffic|at|the|a) peak(?! (?:flop|tflop|pflop|compute|arithmetic|bandwidth|rate|of))",
    "steady": r"steady[- ]?(?:state|load|traffic|hours?|demand)|steady or|or steady|(?:load|traffic|demand) is steady|"
    r"baseline|average (?:load|day)|day[- ]to[- ]day|normal (?:load|day|traffic)|"
    r"permanent\w*|every day",
    "cost": r"costs?|dollars?|\$|price\w*|pay\w*|budget|gpu[- ]hours?|money|"
    r"(?<!to )free(?! (?:the|a|an|up|kv|memory|blocks?|room|seats?|slots?|space|hbm))|cheap\w*|"
    r"expensive|spend\w*|bills?|"
    r"afford\w*|save[sd]?",
    "rollback": r"roll\w*[- ]?back|revert\w*|canar\w*|(?:feature )?flags?|kill switch|gradual\w*|shadow\w*|"
    r"a/b|(?:one|1|5|"
    r"10)(?: ?%| percent) of (?:the )?"
    r"(?:traffic|requests)|one replica first|on one replica|undo|step by step|stages?",
    "monitor": r"alert\w*|monitor\w*|dashboards?|slos?|watch\w*|panels?|pagers?|page[sd]? (?:me|us|some\w+)|"
    r"track\w*|guard ?rail\w*",
    "quality": r"quality|evals?|evaluat\w*|accuracy|golden|regress\w*|benchmark\w*",
    "measure": r"measur\w*|profil\w*|histograms?|traces?|tracing|metrics?|stamps?|log(?:s|ged|ging)?|test(?:s|ed|ing)?",
}
MOVES = {
    "because": r"because|since|so\b|therefore|hence|thus|mean(?:s|ing)|impl\w+|due to|caused? (?:by)?|"
    r"causes|which is why|"
    r"explain\w*|comes? from|"
    r"that is|leads? to|results? in|→|->|=>|as (?:the|it|they|each|every|a)\b|=|≈|for (?:each|every)|owing|"
    r"makes?|forces?|leaves?|needs?|"
    r"is why|per (?:step|token|request)|with (?:no|only)|for every|at (?:most|least)|against|more than|exceed\w*|"
    r"equals?|points? (?:to|at)|tells?|says?|shows?",
    "effect": r"cut\w*|lower\w*|reduc\w*|halv\w*|doubl\w*|rais\w*|increas\w*|improv\w*|drop\w*|shrink\w*|grow\w*|grew|"
    r"fall\w*|fell|sav\w*|help\w*|"
    r"speed\w*|frees?|bring\w*|remov\w*|prevent\w*|bound(?:s|ed)?|limits?|keep\w*|fix\w*|gain\w*|worth|take[sn]? "
    r"(?:\w+ )?off|target\w*|expect\w*|"
    r"buy\w*|move[sd]?|shorten\w*|stop\w*|protect\w*|give\w*|restor\w*|trad\w+|from .{1,20} to|by (?:about )?\d",
    "order": r"first(?:ly)?|second(?:ly)?|third(?:ly)?|then|next|finally|last(?:ly)?|before|after(?:wards)?|only then|"
    r"one\b|two\b|rank\w*|later|"
    r"begin|start with|deferr?\w*|until",
    "depend": r"if\b|once|unless|until|depend\w*|otherwise|still|only (?:when|after|then|while|where)|when (?:that|it)|"
    r"after that|in case|whether|provided",
    "split": r"separat\w*|tell\w* (?:\w+ )?apart|distinguish\w*|decompos\w*|split\w*|break\w* (?:it "
    r")?down|apart|rul\w+ "
    r"out|apportion|divid\w*|versus|vs\.?|"
    r"not (?:one|a single) number|two numbers|by (?:phase|cause|bucket)|each phase|per[- ]phase|which (?:phase|of)",
    "trouble": r"bottleneck\w*|dominan\w*|dominat\w*|problems?|culprits?|causes?|starv\w*|pressure|"
    r"primar\w*|main\w*|real "
    r"story|-bound|bound\b|largest|biggest|"
    r"most of|share|issue|at fault|to blame|root|limit\w*|slow|high|elevated|reason|diagnos\w*|late|long\b|"
    r"suffer\w*|wrong",
    "decides": r"if\b|would (?:change|move|tell|mean|decide|make|flip|show)|changes?|decid\w+|separat\w*|"
    r"tells?|rul\w+ out|"
    r"collaps\w*|distinguish\w*|"
    r"depend\w*|whether|otherwise|flip\w*|settles?|then\b|means?|points? to",
    "secondary": r"second(?:ary|ly)?|also|besides|in addition|as well|on top|behind (?:it|that)|next "
    r"problem|compound\w*|"
    r"too\b|another|side|underneath|separately|the other",
    "impossible": r"impossible|cannot|can ?not|can't|do(?:es)? not (?:fit|add up|hold|exist|work)|don't "
    r"(?:fit|add up)|doesn't "
    r"(?:fit|add up)|no (?:single |one )?"
    r"(?:server|replica|machine|p99|steady|room|way)|not (?:one|a|from one|steady|enough|possible|fit)|over "
    r"(?:its |the )?capacity|more than|"
    r"must be|contradict\w*|inconsistent|at least|exceed\w*|beyond|wrong with|short burst|a fleet|several|never|"
    r"only if|above|too (?:many|much|little|few)|over the",
}
CONCEPTS: dict[str, str] = {**PHASES, **METRICS, **CAUSES, **TECHNIQUES, **OPERATIONS, **MOVES}
TOPICS = tuple({**PHASES, **METRICS, **CAUSES, **TECHNIQUES, **OPERATIONS})
"""What an answer can be about; the rest is how it argues."""

PATTERNS: dict[str, re.Pattern[str]] = {
    name: re.compile(
        rf"(?<![\w])(?:{words})(?![\w])" if name != "because" else rf"(?:(?<!\w)(?:{words})(?!\w)|→|->|=>|=|≈)"
    )
    for name, words in CONCEPTS.items()
}

HIDES = {
    "kv_quant": ("quantization",),
    "unbuffer": ("proxy",),
    "chunking": ("split",),
    "prompt_limit": ("prompt_length",),
}
"""A mention of the first is not a mention of the others."""

VERBS = re.compile(
    r"\b(?:is|are|was|were|be|been|has|have|had|do|does|did|can|could|will|would|should|must|may|might|cannot|"
    r"i'd|i'll|we'd|it's|that's|"
    r"want|ask|need|take|takes|mean|means|make|makes|say|says|show|shows|tell|tells|add|adds|cut|cuts|lower|"
    r"lowers|raise|raises|put|move|"
    r"grow|grows|grew|wait|waits|read|reads|run|runs|keep|keeps|hold|holds|give|gives|help|helps|fix|fixes|cost|"
    r"costs|save|saves|use|uses|"
    r"serve|serves|measure|begin|start|stop|go|goes|come|comes|get|gets|change|changes|drop|drops|shrink|shrinks|"
    r"double|doubles|halve|halves|"
    r"point|points|depend|depends|explain|explains|fit|fits|leave|leaves|let|lets|share|shares|bring|brings|turn|"
    r"roll|switch|limit|limits|"
    r"cap|size|split|route|buy|pay|pays|find|look|check|try|allow|allows|send|sends|prefer|expect|suspect|target|"
    r"targets|would|don't|won't|"
    r"isn't|aren't|doesn't|can't|fall|falls|rise|rises|arrive|arrives|need|needs|exceed|exceeds|implies|becomes|"
    r"becomes|rank|ranks|stays?|"
    r"reduces?|increases?|improves?|removes?|prevents?|compare|plot|watch|quantize|deploy|enable|disable|set|"
    r"tune|batch|chunk|cache|write|writes|"
    r"spends?|hides?|decides?|beats?|buys|frees?|wins?|loses?|moves|compares|gates?|tracks?|accepts?|dominates?|"
    r"remains?|lasts|fills|evicts|slows|delays|(?:blocks|stalls)(?= (?:every|all|the|other|short|chat)))\b"
)
