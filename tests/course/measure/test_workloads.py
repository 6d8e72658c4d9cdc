"""The workloads are what their titles say, and the same for everyone."""

from course.measure.cli import WorkloadName
from course.measure.workloads import BY_NAME, PROMPT_LENGTHS, make_workloads


def test_workloads_are_as_their_titles_say() -> None:
    one, eight, mixed, shared, *others = workloads = make_workloads(vocab_size=49152)
    prompts = [each for each in others if each.name not in BY_NAME]
    assert [workload.name for workload in workloads] == list(WorkloadName)
    assert [len(prompt) for prompt in one.prompts] == [128]
    assert one.output_lens == [64]
    assert [len(prompt) for prompt in eight.prompts] == [128] * 8
    assert len({tuple(prompt) for prompt in eight.prompts}) == 8, "equal in shape, or a prefix cache would help"
    assert len(mixed.prompts) == len(mixed.output_lens) == 32
    assert all(20 <= len(prompt) <= 300 for prompt in mixed.prompts)
    assert all(8 <= length <= 96 for length in mixed.output_lens)
    assert {tuple(prompt[:512]) for prompt in shared.prompts} == {tuple(shared.prompts[0][:512])}
    assert len({tuple(prompt) for prompt in shared.prompts}) == 32
    assert shared.output_lens == [32] * 32
    assert [len(workload.prompts[0]) for workload in prompts] == list(PROMPT_LENGTHS)
    assert all(workload.output_lens == [1] for workload in prompts)


def test_those_for_gpus_are_as_large_as_their_names_say() -> None:
    named = {each.name: each for each in make_workloads(vocab_size=49152) if each.name in BY_NAME}
    assert tuple(named) == BY_NAME
    for name, workload in named.items():
        kind, size = name.split("_")
        assert int(size) == (len(workload.prompts) if kind == "batch" else len(workload.prompts[0]))
