"""What an interviewer asks after reading an answer: it depends on what was written."""

from course.lab.drills.drill import DrawnDrill, FollowUp
from course.lab.drills.patterns import find
from course.lab.drills.reading import Reading

MOST = 4
GENERAL = (
    FollowUp(
        "quantization", "Which phase does quantization move here, and what quality floor would make you take it back?"
    ),
    FollowUp("replicas", "What would those replicas cost, and which setting would you exhaust first?"),
    FollowUp("replicas", "Why not just add GPUs?", missing=True),
    FollowUp(
        "decode|itl + trouble", "If decoding is slow, what does one step wait for: weights, KV, or somebody's prompt?"
    ),
    FollowUp("prefill + trouble", "How would you tell prefill from queue wait, with one panel?"),
    FollowUp("speculation", "At which batch does speculation stop paying, and how does the server notice?"),
    FollowUp("prefix_cache", "What breaks the prefix, and which number would show it within a minute?"),
    FollowUp("chunking", "A smaller chunk: who gains, and who pays?"),
    FollowUp("admission", "Whom do you turn away, and what do they see?"),
    FollowUp("question", "Which single number would change your mind?", missing=True),
    FollowUp("derived", "Do the sum out loud: what do the prompt's numbers give?", missing=True),
    FollowUp("rollback", "Your change made it worse. How do you know, and how fast are you back?", missing=True),
)


def follow_ups(drill: DrawnDrill, reading: Reading) -> tuple[str, ...]:
    """The drill's own first, then general ones; at most MOST."""
    asked = [
        each.asks for each in (*drill.rubric.follow_ups, *GENERAL) if bool(find(each.rule, reading)) != each.missing
    ]
    return tuple(dict.fromkeys(asked))[:MOST]
