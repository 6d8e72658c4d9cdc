"""All that can be asked, in every incident, and the minutes that each answer takes to get."""

from course.lab.incidents import questions_clients as clients
from course.lab.incidents import questions_server as server
from course.lab.incidents.evidence import Evidence, Question, Scene

QUESTIONS = (
    Question("ttft_itl", "TTFT and ITL, apart", 1, clients.ttft_and_itl),
    Question("phases", "Where do requests spend their time, by phase?", 2, server.phases),
    Question("arrivals", "Arrivals and answers per second", 1, clients.arrivals),
    Question("attempts", "Unique requests, attempts, and how they end", 2, clients.attempts),
    Question("concurrency", "Offered and achieved load, requests open at once", 2, clients.concurrency),
    Question("client_server", "Clients' stamps beside the server's", 3, clients.client_and_server),
    Question("queue_over_time", "The queue over time", 1, server.queue_over_time),
    Question("ingress", "From sent to accepted, and on to an engine", 3, server.ingress),
    Question("batch", "Batch occupancy over time, and seats", 1, server.batch),
    Question("kv_use", "KV use over time", 1, server.kv_use),
    Question("preemptions", "Preemptions, tokens computed again", 2, server.preemptions),
    Question("prompt_lengths", "Prompt lengths, now and last week", 2, clients.prompt_lengths),
    Question("output_lengths", "Answer lengths, now and last week", 2, clients.output_lengths),
    Question("per_bucket", "Latencies by prompt length", 2, clients.per_bucket),
    Question("hit_rate", "Prefix cache hit rate", 1, server.hit_rate),
    Question("shared_prefix", "What do the raw prompts share, and where?", 4, server.shared_prefix),
    Question("working_set", "What there is to cache, and room for it", 3, server.working_set),
    Question("acceptance", "Speculation: acceptance by place", 2, server.acceptance),
    Question("step_times", "Step time against tokens in the step", 3, server.step_times),
    Question("decode_steps", "Step time against batch size, decoding", 3, server.decode_steps),
    Question("chunks", "Prompt tokens per step, and what prompts cost", 3, server.chunks),
    Question("collectives", "Time in all-reduce, time waiting for the host", 4, server.collectives),
    Question("per_replica", "Replica by replica", 2, server.per_replica),
    Question("replica_age", "TTFT by age of the replica", 3, server.replica_age),
    Question("regions", "TTFT by region", 2, clients.regions),
    Question("late_work", "Work for clients who had left", 3, clients.late_work),
    Question("gpu", "GPU utilisation", 1, server.gpu),
    Question("changes", "What was changed lately?", 2, clients.changes),
    Question("config", "The configuration, as deployed", 1, clients.configuration),
)
BY_ID = {question.id: question for question in QUESTIONS}


def find_out(question: Question, scene: Scene) -> Evidence:
    """The answer to a question."""
    finding = question.look(scene)
    return Evidence(question.id, question.text, finding.text, finding.data, finding.panel)
