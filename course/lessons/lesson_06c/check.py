"""The check of lesson 06c. Keys come from the models' shapes."""

from course.grading import Checks, Criterion, Question, choice, near
from course.lessons.lesson_06c.run import DTYPE, HYBRID, MODELS, Snapshots, all_full, kept

CONTEXT, INTERVAL = 32_000, 512
CUT = ("cut the state back", "compute from the last snapshot", "compute everything")


def checks() -> Checks:
    """Questions about states, and caches of them.

    q1: how many times less Qwen3.5 397B keeps of 32,000 tokens than if all its layers were full.
    q2: kB that a cached token takes with a snapshot every 512 tokens.
    q3: a prompt shares 700 tokens with a cached one, snapshots every 512: what has to be done?
    """
    model = MODELS[HYBRID]

    def q1(answer: object) -> tuple[Criterion, ...]:
        full = kept(all_full(model), CONTEXT)
        slips = {model.layers / model.growing_layers: "that's without the states, which don't grow but aren't nothing"}
        return (near(answer, full / kept(model, CONTEXT), "times as much", slips),)

    def q2(answer: object) -> tuple[Criterion, ...]:
        cache = Snapshots(model, INTERVAL)
        grows = model.kv_bytes_per_token(DTYPE) / 1e3
        slips = {
            grows: "that's keys and values alone; add a snapshot, shared by the tokens before it",
            cache.state_bytes_per_token / 1e3: "that's the snapshot's part alone; add keys and values",
        }
        return (near(answer, cache.bytes_per_token / 1e3, "kB per cached token", slips),)

    def q3(answer: object) -> tuple[Criterion, ...]:
        told = {
            CUT[0]: "a state is a running sum over all tokens, and you can't take the last ones out of it again",
            CUT[1]: "the engine reuses 512 tokens and computes 188 again",
            CUT[2]: "there's a snapshot at 512 tokens, and the prompts share more than that",
        }
        return choice(answer, CUT[1], told)

    questions = {
        "q1": Question(
            "Qwen3.5 397B, 32,000 tokens: how many times as much would it keep with full attention in all layers?",
            "times",
        ),
        "q2": Question("The same model, a snapshot every 512 tokens: what does a cached token take?", "kB"),
        "q3": Question(
            "A prompt shares 700 tokens with a cached one, with snapshots every 512. What does the engine do?",
            options=CUT,
        ),
    }
    return Checks({"q1": q1, "q2": q2, "q3": q3}, questions)
