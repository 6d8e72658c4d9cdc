"""`minillm simulate`: kinds of traffic, traces, fleets, limits and plans."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from simulator.test_cli import call
from typer.testing import CliRunner

from course.simulator.capacity.plan import simulate_plan
from course.simulator.capacity.search import NOT_TRIED_OUT
from course.simulator.cluster.fleet import ClusterConfig, simulate
from course.simulator.cost.hardware import find_hardware
from course.simulator.cost.roofline import StepWork
from course.simulator.deployment import Deployment
from course.simulator.errors import WorkloadError
from course.simulator.options import FleetOptions, Router
from course.simulator.report import simulate_workload
from course.simulator.workload.arrivals import Poisson
from course.simulator.workload.kinds import Independent
from course.simulator.workload.lengths import Fixed
from course.simulator.workload.requests import make_workload
from minillm import cli

SMALL = ("--model", "qwen3-1.7b", "--hardware", "l4", "--kv-blocks", 3000)
QUICK = ("simulate", "--qps", 4, "--num-requests", 20, *SMALL)
PLAN = ("simulate", "--plan", "--qps", 30, "--num-requests", 40, "--prompt-tokens", 3000, "--output-tokens", 5, *SMALL)


@pytest.fixture(autouse=True)
def _short_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan's two runs whose every step is kept: tests/course/simulator/capacity holds what is read off them."""
    monkeypatch.setattr("course.simulator.capacity.worksheet.RECORDED_REQUESTS", 60)


def test_a_trace_is_played_at_its_own_moments(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    rows = [f"2023-11-16 18:17:{second:02},300,5" for second in (0, 3, 9)]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    report = call("simulate", "--trace", path, *SMALL, "--per-request", "--json")
    assert [row["queued_s"] for row in report["requests"]] == [0.0, 3.0, 9.0]
    assert report["outcomes"] == {"completed": 3}
    assert call("simulate", "--trace", path, "--num-requests", 2, *SMALL, "--json")["outcomes"] == {"completed": 2}


def test_a_mooncake_trace_shares_its_prefixes(tmp_path: Path) -> None:
    path = tmp_path / "mooncake.jsonl"
    row = {"input_length": 1024, "output_length": 4, "hash_ids": [7, 8]}
    path.write_text("".join(json.dumps({**row, "timestamp": 2000 * i}) + "\n" for i in range(3)))
    report = call("simulate", "--trace", path, *SMALL, "--json")
    assert report["prefix_hit_rate"] == pytest.approx(2 / 3, abs=0.02)
    blind = call("simulate", "--trace", path, *SMALL, "--set", "enable_prefix_caching=false", "--json")
    assert blind["prefix_hit_rate"] == 0


def test_limits_give_goodput() -> None:
    easy, hard = (call(*QUICK, "--slo-ttft", limit, "--slo-e2e", 100, "--json") for limit in (90, 1e-6))
    assert (easy["attainment"], hard["attainment"]) == (1.0, 0.0)
    assert easy["goodput_per_s"] > hard["goodput_per_s"] == 0
    assert easy["summary"] == hard["summary"]


def text(*arguments: object) -> str:
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


DRAFTS = ("method=synthetic", "acceptance_rate=0.8", "k=4", "acceptance_floor=0", "adaptive_k=false", "max_batch=99")
SPECULATIVE = tuple(part for field in DRAFTS for part in ("--speculative", field))


def test_speculation() -> None:
    plain = call(*QUICK, "--json")
    report = call(*QUICK, *SPECULATIVE, "--json")
    figures = report["speculation"]
    assert figures["emitted_per_verify"] == pytest.approx((1 - 0.8**5) / 0.2, rel=0.05)
    assert figures["acceptance_at"] == pytest.approx([0.8, 0.64, 0.512, 0.41], abs=0.05)
    assert 3.8 < figures["drafted_per_verify"] <= 4, "the last draft of an answer is shorter"
    assert figures["draft_cost"] == pytest.approx(0.1, abs=0.02)
    assert report["summary"]["tpot_s"]["p50"] < 0.6 * plain["summary"]["tpot_s"]["p50"]
    assert report["speculative"]["k"] == 4 and not {"speculation", "speculative"} & plain.keys()
    printed = text(*QUICK, *SPECULATIVE)
    assert "tokens per verification, from drafts of " in printed and "; accepted by place" in printed
    idle = text(*QUICK, "--speculative", "method=ngram", "--speculative", "min_output_tokens=999")
    assert "the gates let nothing be drafted" in idle


def test_fields_of_the_fleet() -> None:
    near = call(*QUICK, "--json")
    far = call(*QUICK, "--fleet", "network.rtt_s=0.5", "--json")
    assert far["summary"]["ttft_s"]["p50"] == pytest.approx(near["summary"]["ttft_s"]["p50"] + 0.5, abs=1e-6)
    assert FleetOptions(2, Router.random, ["router.hot_share=0.5"]).cluster(0).router.policy == "random", (
        "not forgotten"
    )
    full = call(*QUICK, "--qps", 200, "--fleet", "shedding.max_outstanding=2", "--json")
    assert full["outcomes"]["shed"] > 0
    patient = ("--fleet", "clients.timeout_s=0.3", "--fleet", "clients.max_attempts=3")
    storm = call(*QUICK, "--qps", 200, *patient, "--json")
    assert storm["outcomes"]["timeout"] > 0 and storm["attempts"] > 30


def test_latencies_count_from_when_the_client_sends() -> None:
    """One request at a time, of equal length: each is answered in the time of the first, and the rest wait outside."""
    closed = (*QUICK, "--qps", 1000, "--traffic", "fixed", "--fleet", "clients.max_in_flight=1")
    report = call(*closed, "--json", "--per-request")
    sent, due = report["summary"], report["summary_from_due"]
    assert report["latencies_from"] == "sent" and report["max_in_flight"] == 1
    assert sent["queue_s"]["p99"] == pytest.approx(0, abs=1e-3), "no request meets another at the server"
    assert sent["ttft_s"]["p99"] == pytest.approx(sent["ttft_s"]["p50"], rel=0.01)
    assert due["ttft_s"]["p99"] > 10 * sent["ttft_s"]["p99"], "but it was held back"
    last = max(report["requests"], key=lambda row: row["queued_s"])
    assert last["ttft_s"] == pytest.approx(sent["ttft_s"]["p50"], rel=0.01) and last["queued_s"] > 10 * last["ttft_s"]
    assert "ttft, e2e and queue: from when the client sends. A closed loop, at most 1 open" in text(*closed)
    assert "from when due" in text(*closed)

    opened = call(*QUICK, "--json")
    assert opened["latencies_from"] == "sent" and "summary_from_due" not in opened
    assert "from when the client sends, which is when the request is due (an open loop)" in text(*QUICK)


def test_a_plan_says_how_many_and_what_it_costs() -> None:
    report = call(*PLAN, "--slo-ttft", 1, "--slo-tpot", 0.1, "--json")
    plan = report["plan"]
    assert plan["replicas"] >= 30 / plan["knee"]
    assert plan["cost_per_hour"] == pytest.approx(0.44 * plan["replicas"])
    assert plan["limits"]["binding"] and plan["demand"] == 30
    again = call(*PLAN, "--slo-ttft", 1, "--slo-tpot", 0.1, "--json", "--price-per-hour", 10, "--headroom", 0.5)
    assert again["plan"]["knee"] == plan["knee"], "one seed, one knee"
    assert again["plan"]["replicas"] >= 2 * plan["replicas"] - 1
    assert again["plan"]["cost_per_hour"] == pytest.approx(10 * again["plan"]["replicas"])
    printed = text(*PLAN, "--slo-ttft", 1, "--slo-tpot", 0.1)
    assert f"{plan['knee']:.2f} requests/s" in printed and plan["limits"]["binding"] in printed
    assert (
        f"cost                ${plan['cost_per_hour']:,.2f} an hour" in printed and "replica  $0.44 an hour" in printed
    )
    assert f"output            ${plan['output_cost_per_million']:.4f} per million" in printed
    assert "RunPod" in report["price_source"] and again["price_source"] == "as given"


def test_a_run_says_how_many_replicas_it_has_been() -> None:
    assert text(*QUICK, "--replicas", 3).startswith("qwen3-1.7b on 3 replicas, each 1 x l4, ")
    assert text(*QUICK).startswith("qwen3-1.7b on 1 x l4, ")


def test_a_plan_for_pools_of_their_own_counts_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of 2,000 tokens are what takes time, so a second decode replica moves nothing and costs a third."""
    reports: list[dict[str, Any]] = []

    def kept(*arguments: Any, **fields: Any) -> dict[str, Any]:
        reports.append(simulate_plan(*arguments, **fields))
        return copy.deepcopy(reports[-1])

    monkeypatch.setattr("course.simulator.capacity.plan.simulate_plan", kept)
    pools = ("--fleet", "disaggregation.prefill_replicas=1", "--fleet", "disaggregation.link_bytes_per_s=1e10")
    lengths = ("--prompt-tokens", 2000, "--output-tokens", 10, "--num-requests", 20)
    asked = ("--qps", 8, "--slo-ttft", 0.6, "--slo-tpot", 0.1, *lengths, *pools)
    one, two = (call(*PLAN, *asked, "--json", "--replicas", decodes)["plan"] for decodes in (1, 2))
    assert one["in_each"] == {"prefill": 1, "main": 1} and one["knee"] == pytest.approx(two["knee"], rel=0.05)
    assert one["limits"]["binding"] == two["limits"]["binding"] == "prefill pool"
    assert one["cost_per_hour"] == pytest.approx(2 * 0.44 * one["replicas"])
    prompt_s = Deployment.of("qwen3-1.7b", "l4").step_time().price(StepWork.of_prompt(2000)).total
    assert one["knee"] * prompt_s == pytest.approx(1, abs=0.2), "one after the other; a short run forgives a little"
    # To be printed, the second one need not be searched for again.
    monkeypatch.setattr("course.simulator.capacity.plan.simulate_plan", lambda *_, **__: reports[-1])
    assert "groups of 1 for prefill and 2 for decode" in text(*PLAN, *asked, "--replicas", 2)


def test_a_search_ranks_what_keeps_the_limits() -> None:
    asked = (*PLAN, "--slo-ttft", 1, "--slo-tpot", 0.1, "--json")
    found = call(*asked, "--search", "--hardware", "l4,rtx-4090,t4")
    assert NOT_TRIED_OUT in text(*asked[:-1], "--search", "--hardware", "l4")
    costs = [plan["cost_per_hour"] for plan in found["plans"]]
    assert costs == sorted(costs) and costs[-1] <= 2 * costs[0]
    for plan in found["plans"]:
        price = find_hardware(plan["card"]).price_per_hour
        assert plan["cost_per_hour"] == pytest.approx(price * plan["tp"] * plan["replicas"])
        alone = call(*asked, "--hardware", plan["card"], "--tp", plan["tp"], "--headroom", 0)
        assert alone["plan"]["knee"] == pytest.approx(plan["knee"], rel=0.03), "to the tolerance of a knee"
    assert {"1 x t4", "8 x t4"} <= set(found["left_out"]), "no price"
    named = {f"{plan['tp']} x {plan['card']}" for plan in found["plans"]} | set(found["left_out"])
    assert len(named) == 12, "every candidate is told"


def test_a_plan_for_a_trace_has_its_lengths_and_its_rhythm(tmp_path: Path) -> None:
    """The same requests in bursts of five meet a limit at a lower rate than evenly spread ones."""
    knees = {}
    for burst in (1, 5):
        path = tmp_path / f"{burst}.csv"
        rows = [f"2023-11-16 18:17:{burst * (i // burst):02},3000,5" for i in range(40)]
        path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
        arguments = ("simulate", "--plan", "--qps", 30, "--num-requests", 40, "--slo-ttft", 1, "--trace", path, *SMALL)
        knees[burst] = call(*arguments, "--json")["plan"]["knee"]
    assert knees[5] < 0.9 * knees[1]


def test_a_window_frees_blocks() -> None:
    long = ("simulate", *SMALL, "--qps", 5, "--num-requests", 20, "--prompt-tokens", 2000, "--kv-blocks", 300)
    whole = call(*long, "--json")
    window = call(*long, "--set", "sliding_window=128", "--set", "attention_sinks=4", "--json")
    assert (window["sliding_window"], window["attention_sinks"]) == (128, 4) and "sliding_window" not in whole
    assert window["summary"]["queue_s"]["mean"] < 0.5 * whole["summary"]["queue_s"]["mean"], "more of them run at once"


def test_vllms_habits() -> None:
    fields = ("--set", "scheduler_reserve_full_isl=true", "--set", "null_block=true")
    habits = call(*QUICK, "--kv-blocks", 300, *fields, "--json")
    assert habits["kv_blocks"] == 299 and habits["scheduler_reserve_full_isl"] and habits["null_block"]
    plain = call(*QUICK, "--kv-blocks", 300, "--json")
    assert plain["kv_blocks"] == 300 and "null_block" not in plain and "scheduler_reserve_full_isl" not in plain


def test_stages_adapters_and_tiers() -> None:
    tier = '[{"name": "host", "capacity_gb": 50, "bytes_per_s": 5e10}]'
    sizes = (*QUICK, "--traffic", "sessions", "--kv-blocks", 100, "--json")
    plain = call(*sizes)
    assert not {"pp", "lora", "tier_hits"} & plain.keys()
    report = call(*sizes, "--pp", 2, "--lora", "adapters=8", "--fleet", f"tiers={tier}")
    assert (report["pp"], report["lora"], report["tp"]) == (2, {"adapters": 8, "rank": 16}, 1)
    assert report["tier_hits"]["host"] > 0 and report["prefix_hit_rate"] > plain["prefix_hit_rate"]
    assert {"pp", "lora"} <= report["beyond_fit"].keys()


def test_requests_that_cannot_be_served_are_counted_and_explained(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = [f"2023-11-16 18:00:0{second},{tokens},5" for second, tokens in enumerate((500, 99999, 500))]
    trace.write_text("\n".join(("TIMESTAMP,ContextTokens,GeneratedTokens", *rows)) + "\n")
    report = call("simulate", *SMALL, "--trace", trace, "--json")
    assert report["outcomes"] == {"completed": 2, "error": 1} and "100004 tokens" in report["first_error"]


def test_a_run_in_which_nothing_can_be_served_is_an_error() -> None:
    with pytest.raises(WorkloadError, match=r"none of these requests can be served.*100199 tokens"):
        call(*QUICK, "--prompt-tokens", 99999, "--json")


def test_conversations_that_have_only_begun_are_no_full_load() -> None:
    """A conversation's later turns come minutes after its first: a short run hasn't got busy yet, and says so."""
    sessions = ("simulate", "--qps", 2, "--traffic", "sessions", *SMALL, "--json")
    short = call(*sessions, "--num-requests", 100)["ramp"]
    assert short["offered_per_s"] < 1 and short["asked_per_s"] == 2
    assert "ramp" not in call(*sessions, "--num-requests", short["num_requests"])
    assert "ramp" not in call(*QUICK, "--json"), "requests of their own come as they're due"
    words = ("simulate", "--qps", 2, "--traffic", "sessions", *SMALL, "--num-requests", 100)
    assert f"--num-requests {short['num_requests']} gets near" in text(*words)


def test_throughput_counts_the_time_in_which_nothing_was_answered() -> None:
    """Overloaded, with clients that give up: what is answered comes early, and the rate is of the whole run."""
    overload = ("--qps", 200, "--num-requests", 400, "--fleet", "clients.timeout_s=3", "--slo-e2e", 100)
    report = call(*QUICK, *overload, "--json")
    assert report["outcomes"]["timeout"] > 100, "a test of requests that come to nothing"
    assert report["throughput"]["requests_per_s"] == pytest.approx(report["goodput_per_s"], abs=1e-5)


APART = ("--fleet", "disaggregation.prefill_replicas=1", "--fleet", "disaggregation.link_bytes_per_s=1e9")


def test_errors_say_what_to_do(run: Callable[..., tuple[int, str, str]]) -> None:
    for arguments, said in (
        (("--qps", 1, "--trace", "t.csv"), "give one of these"),
        (("--trace", "absent.csv"), "cannot read absent.csv"),
        (("--trace", "absent.log"), "ends in .csv, one of Mooncake's in .jsonl"),
        (
            ("--qps", 1, "--fleet", "clients.timeout_s=0"),
            "clients: timeout_s: Input should be greater than 0 (got 0)\n",
        ),
        (("--qps", 1, *APART, "--fleet", "disaggregation.kv_bytes_per_token=1"), "leave kv_bytes_per_token out"),
        (("--qps", 1, "--slo-ttft", 0), "--slo-ttft is a number of seconds above 0"),
        (("--qps", 1, "--target", 0.9), "go with --plan"),
        (("--qps", 1, "--fleet", "clients.timeout=3"), "no field 'timeout'"),
        (("--qps", 1, "--fleet", "replicas.x=3"), "replicas has no fields"),
        (("--qps", 1, "--fleet", "shedding"), "--fleet wants FIELD=VALUE"),
        (("--qps", 1, "--speculative", "k=3"), "method: Field required"),
        (("--qps", 1, "--speculative", "method=draft_model", "--speculative", "model=x"), "'x'"),
        (("--qps", 1, "--plan"), "--plan needs a limit"),
        (("--trace", "t.csv", "--plan", "--slo-ttft", 1), "give it --qps"),
        (("--qps", 1, "--trace", "t.csv", "--plan", "--cv", 2, "--slo-ttft", 1), "a recording says what was asked"),
        (("--qps", 1, "--set", "model=llama-3-70b"), "--set model: that has an option of its own"),
        (("--qps", 1, "--pp", 99), "lower --pp"),
        (("--qps", 1, "--lora", "rank=8"), "rank is read only with adapters"),
        (("--qps", 1, "--fleet", 'tiers=[{"name": "host"}]'), "capacity_gb: Field required"),
        (("--qps", 1, "--set", "tp=2"), "--set tp: that has an option of its own"),
        (("--qps", 1, "--set", "null_block=no"), "wants true or false"),
        (("--qps", 1, "--plan", "--replicas", 2, "--slo-ttft", 1), "no --replicas"),
        (("--requests", "log.jsonl", "--slo-ttft", 1), "a log is played to one replica"),
        (("--requests", "log.jsonl", "--num-requests", 5), "a log is played whole"),
        (("--requests", "log.jsonl", "--seed", 5), "a log is played whole"),
        (("--requests", "log.jsonl", "--router", "random"), "a log is played whole"),
    ):
        status, _, err = run("simulate", *SMALL, *arguments)
        assert status == 2 and said in err, arguments


@pytest.mark.parametrize(("blocks", "preempts"), [(3000, False), (140, True)])
def test_looking_for_no_prefixes_changes_nothing(blocks: int, preempts: bool) -> None:
    """The report skips lookups where nothing is shared; whoever is preempted would have found itself, though."""
    deployment = Deployment.of("qwen3-1.7b", "l4", num_kv_blocks=blocks)
    traffic = Independent(prompt=Fixed(tokens=300), output=Fixed(tokens=200))
    workload = make_workload(traffic, Poisson(rate=30), num_requests=30)
    config = ClusterConfig(sample_every_s=None)
    plain = simulate(workload, config, deployment.engine)
    assert bool(plain.reports[0].num_preemptions) is preempts
    report = simulate_workload(deployment, workload, config, per_request=True)
    ends = {row["request_id"]: row["e2e_s"] for row in report["requests"]}
    assert ends == {record.request_id: round(record.timeline.e2e, 9) for record in plain.request_records()}
