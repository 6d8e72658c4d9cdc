"""A number near a known slip: the slip is named, as a sentence."""

from course.grading import near


def test_feedback_begins_as_a_sentence_does() -> None:
    graded = near(1.0, 2.0, "hit rate", {1.0: "that's the share of blocks"})
    assert graded.earned == 0 and graded.feedback == "That's the share of blocks. You said 1."
