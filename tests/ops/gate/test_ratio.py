"""When ratios of latencies and shares of builds are decided: rarely wrongly, whatever the noise, within the budget."""

import functools
import itertools
import math
from collections import Counter

import numpy as np
import pytest
from scipy import special

from tests.gates import Machine, SimulatedEngine
from tests.long_runs import amount
from trtops import errors
from trtops.backend.ratio import MIN_STARTS, RatioEstimate, StartNoise, decide_ratio, estimate, starts_needed
from trtops.ops.gate import engine_process
from trtops.ops.gate.engine_process import Rounds, measure_rounds
from trtops.ops.gate.findings import latency_finding
from trtops.ops.gate.policy import LatencyLimit
from trtops.ops.gate.tolerance import BuildShare, ShareDecision, decide_share, shown_share
from trtops.system.counters import count_instructions

BOTH = ("wall", "cpu-time")
NOISE = {
    "quiet": {},
    "loaded": {"load": 0.5},
    "drift": {"load": 0.1, "drift": 0.5},
    "bursts": {"load": 0.2, "bursts": 0.2},
}


@pytest.fixture
def measured(monkeypatch):
    """Call ``measure_rounds`` on two simulated engines, in simulated time."""

    def measure(
        machine: Machine, ratio=1.0, waiting=0.0, limit=1.05, deciding=BOTH, minutes=4.4, late=4.0, **engine
    ) -> Rounds:
        monkeypatch.setattr(engine_process, "time", machine)
        accepted = SimulatedEngine(machine, **engine)
        engine_options = {**engine, "seconds": ratio * engine.get("seconds", 2e-4)}
        candidate = SimulatedEngine(machine, waiting=waiting, **engine_options)
        until = machine.now + 60 * minutes
        rounds = measure_rounds(candidate, accepted, LatencyLimit(ratio=limit), deciding=deciding, until=until)
        assert machine.now < until + late  # one round
        return rounds

    return measure


def decided(rounds: Rounds, limit: float = 1.05) -> RatioEstimate:
    return decide_ratio(rounds.starts, limit, 0.99, last=rounds.ended)


def session(rng: np.random.Generator, ratio: float, noise: float, engines: int = 20) -> list[tuple[str, int]]:
    """Decisions and numbers of starts of one engine after the other, where each one's noise is known to the next."""
    done, decisions = [], []
    for _ in range(engines):
        values = np.log(ratio) + noise * rng.normal(size=12)
        for count in range(1, 13):
            starts = tuple((float(value),) for value in values[:count])
            outcome = estimate(starts, 1.2, 0.99, last=count == 12, start_noise=StartNoise.pooled(done))
            if outcome.decision != "open":
                break
        done.append(starts)
        decisions.append((outcome.decision, count))
    return decisions


def test_known_noise_halves_the_starts() -> None:
    rng, sessions = np.random.default_rng(0), amount(10, in_every_run=4)
    same = [session_decision for _ in range(sessions) for session_decision in session(rng, 1.0, 0.03)]
    at_the_limit = [decision for _ in range(sessions) for decision, _ in session(rng, 1.2, 0.03)]

    assert np.mean([count for _, count in same[2:]]) < 2.5 < MIN_STARTS
    assert {decision for decision, _ in same} == {"below"}
    assert at_the_limit.count("open") >= 0.95 * len(at_the_limit)
    assert StartNoise.pooled([((0.0,),) * 2] * 5) is None  # too few starts


def test_larger_noise_than_known_decides_nothing() -> None:
    pooled_noise = StartNoise(variance=1e-4, freedom=12)

    assert estimate(((0.0,), (0.01,)), 1.2, 0.99, start_noise=pooled_noise).decision == "below"
    assert estimate(((-0.15,), (0.15,)), 1.2, 0.99, start_noise=pooled_noise).decision == "open"


def test_all_looks_spend_the_error_once() -> None:
    values = np.random.default_rng(0).normal(size=200)
    spent = 0.0
    for count in range(MIN_STARTS, len(values) + 1):
        outcome = estimate([(value,) for value in values[:count]], 1.05, 0.99, last=count == len(values))
        cut = count // 8
        half = math.log(outcome.high / outcome.low) / 2
        spent += special.stdtr(
            count - 2 * cut - 1, -half / outcome.noise * (1 - 2 * cut / count) * math.sqrt(count)
        )  # of a decision on the wrong side
    assert 0.0098 < spent <= 0.01 + 1e-9


@pytest.mark.parametrize("noise", NOISE)
def test_no_candidate_is_decided_wrongly(noise, measured) -> None:
    """Candidates from 3 % slower, with a limit in the middle, and unchanged ones; open only in large noise."""
    undecided = 0
    seeds, cases = range(amount(5, in_every_run=3)), ((1.0, 1.015), (1.0, 1.05), (1.03, 1.015), (1.08, 1.05))
    for seed, (ratio, limit) in itertools.product(seeds, cases):
        rounds = measured(Machine(seed, **NOISE[noise]), ratio, limit=limit)
        outcome = decided(rounds, limit)
        if outcome.decision == "open":
            undecided += 1
            assert outcome.noise > 0.02 and rounds.ended
        else:
            assert outcome.decision == ("above" if ratio > limit else "below"), (seed, ratio, limit, outcome)
    assert undecided <= (4 if noise == "loaded" else 0)


def test_clear_differences_need_few_starts(measured) -> None:
    for ratio in (0.9, 1.0, 1.2):
        rounds = measured(Machine(3), ratio)
        assert len(rounds.starts["wall"]) <= 5 and rounds.seconds < 15
    # Latency alone, where a third of the inferences is interrupted.
    assert decided(measured(Machine(3, load=0.3), 1.2, deciding=("wall",))).rounds < 40


def test_hopeless_noise_ends_undecided_and_says_why(measured) -> None:
    rounds = measured(Machine(1, load=0.9), apart=0.3)

    finding = latency_finding(rounds, LatencyLimit())

    assert rounds.ended and decided(rounds).decision == "open" and 200 < rounds.seconds < 268
    assert finding.outcome == "open" and "a change of 5.0% needs about" in finding.text and "minutes)" in finding.text
    assert "raise --minutes, pin cores, use --clock instructions" in finding.text and "this ratio" not in finding.text
    short = measured(Machine(1), minutes=0.01)
    assert short.ended and latency_finding(short, LatencyLimit()).outcome == "open"


def test_killed_process_ends_with_the_rounds_before_it(measured, monkeypatch) -> None:
    reopen, machine, calls = SimulatedEngine.reopen, Machine(1), itertools.count()

    def killed(engine: SimulatedEngine) -> None:
        if next(calls) >= 8:  # two engines, opened once and three times more
            machine.now += 1000
            raise errors.WorkerError("killed", timed_out=True)
        reopen(engine)

    monkeypatch.setattr(SimulatedEngine, "reopen", killed)
    rounds = measured(machine, late=2000.0)
    assert rounds.ended and len(rounds.starts["wall"]) == 3


def test_slow_engines_are_measured_within_the_budget(measured) -> None:
    outcome = decided(measured(Machine(5, load=0.3), 1.2, seconds=1.0))
    assert outcome.decision == "above" and outcome.rounds < 40


def test_cpu_time_decides_where_latency_is_open(measured) -> None:
    interrupted = measured(Machine(2, load=0.98), seconds=5e-3)
    assert decided(interrupted).metric == "cpu-time" and decided(interrupted).decision == "below"
    slower = measured(Machine(2, load=0.98), 1.15, seconds=5e-3)
    assert decided(slower).metric == "cpu-time" and decided(slower).decision == "above"
    # An engine that waits takes as much CPU time, and is refused for its latency.
    waiting = decided(measured(Machine(2), waiting=2e-5))
    assert (waiting.metric, waiting.decision) == ("wall", "above")
    exact, noisy = ((0.0, 0.001), (0.001, -0.001)) * 3, ((-0.5, -0.5), (0.5, 0.5)) * 3
    slower = tuple(tuple(value + 0.3 for value in start) for start in noisy)
    for wall, expected in ((noisy, "below"), (slower, "open")):
        assert decide_ratio({"wall": wall, "cpu-time": exact}, 1.05, 0.99).decision == expected


def test_clock_with_long_steps_is_not_used(measured, monkeypatch) -> None:
    visit = SimulatedEngine.visit
    monkeypatch.setattr(SimulatedEngine, "visit", lambda *args: [visit(*args)[0], [0.0]])
    assert set(measured(Machine(1)).starts) == {"wall"}


@pytest.mark.parametrize(("apart", "bursts"), [(0.003, 0.0), (0.03, 0.1)], ids=["quiet", "bursts"])
def test_error_probability_holds_over_all_looks(apart, bursts) -> None:
    """Of pairs at the limit, at most the error probability is decided on each side, with two metrics and 13 looks."""
    random, counts = np.random.default_rng(5), Counter()
    for _ in range(80):
        starts = {}
        for metric in BOTH:
            values = math.log(1.05) + random.normal(0, apart, (16, 1)) + random.normal(0, apart, (16, 6))
            values += (random.random((16, 6)) < bursts) * random.normal(0, 0.5, (16, 6))
            starts[metric] = tuple(map(tuple, values.tolist()))
        looks = ({metric: rows[:n] for metric, rows in starts.items()} for n in range(4, 17))
        decisions = (decide_ratio(look, 1.05, 0.9, last=len(look["wall"]) == 16).decision for look in looks)
        counts[next((decision for decision in decisions if decision != "open"), "open")] += 1
    assert max(counts["above"], counts["below"]) <= 0.1 * 80 * 1.6  # 0.1, and the chance of 80 pairs


def test_starts_count_and_not_their_rounds() -> None:
    rounds = (0.0, 0.002, -0.002, 0.001, -0.001, 0.0, 0.001, -0.001)
    apart = tuple(tuple(value + shift for value in rounds) for shift in (0.0, 0.03, -0.025, 0.02, -0.03))

    assert estimate((rounds,) * 5, 1.05, 0.99).decision == "below"
    assert estimate(apart, 1.05, 0.99).decision == "open"
    # A disturbed start among eight has little effect.
    assert (
        estimate(((0.4,) * 4, *((x,) * 4 for x in (0.0, 0.001, 0.002, -0.001, -0.002, 0.0, 0.001))), 1.05, 0.99).high
        < 1.02
    )


def test_four_equal_starts_decide_and_three_do_not() -> None:
    assert estimate(((0.0,) * 8,) * 4, 1.05, 0.99).decision == "below"
    assert estimate(((0.1,) * 8,) * 4, 1.05, 0.99).decision == "above"
    assert estimate(((0.3,) * 8,) * 3, 1.05, 0.99, last=True).decision == "open"
    assert starts_needed(0.09, 1.05, 0.99) > 4 * starts_needed(0.04, 1.05, 0.99) > 4


def test_instructions_are_counted_or_refused_with_the_reason() -> None:
    read = count_instructions(1, 1)  # the kernel's clock of this thread, which needs no hardware
    before = read()
    sum(range(200_000))
    assert 1e5 < read() - before < 1e11  # nanoseconds
    with pytest.raises(errors.UnsupportedFeatureError, match="perf_event_open"):
        count_instructions(99)


shown = functools.cache(shown_share)


def build_until_decided(
    random: np.random.Generator, goal: BuildShare, outside: float
) -> tuple[ShareDecision, int, float]:
    """What the gate on builds does, where a share of all builds is outside the limits."""
    outside_count = 0
    for builds in range(1, goal.builds + 1):
        outside_count += random.random() < outside
        if (decision := decide_share(goal, builds, outside_count)) != "open":
            break
    return decision, builds, shown(goal, builds, outside_count)


@pytest.mark.parametrize("builds", [20, 60, 200])
def test_wrong_decisions_on_builds_are_rare(builds) -> None:
    """Four of a hundred more than the stated five are what chance allows 200 gates."""
    random, goal = np.random.default_rng(builds), BuildShare(builds=builds, share=0.86 if builds == 20 else 0.95)

    at_the_limit = [build_until_decided(random, goal, 1 - goal.required) for _ in range(200)]
    tolerated = [build_until_decided(random, goal, goal.tolerated) for _ in range(200)]
    planted = [build_until_decided(random, goal, 0.1) for _ in range(100)]

    assert sum(decision == "accept" for decision, _, _ in at_the_limit) <= 0.09 * 200
    assert sum(low > goal.required for _, _, low in at_the_limit) <= 0.09 * 200
    assert sum(decision == "refuse" for decision, _, _ in tolerated) <= 0.09 * 200
    assert sum(decision == "refuse" for decision, _, _ in planted) >= (50 if builds == 20 else 90)
    assert build_until_decided(random, goal, 0.0)[:2] == ("accept", 20 if builds == 20 else 59)


def test_few_builds_show_less() -> None:
    assert BuildShare(builds=20).required == pytest.approx(0.861, abs=1e-3)
    assert shown(BuildShare(builds=20), 20, 0) == pytest.approx(0.861, abs=1e-3)
    assert decide_share(BuildShare(builds=20), 20, 0, 1) == "open"  # an unclear build shows nothing
    assert decide_share(BuildShare(builds=20), 2, 0, 2) == "open"
    assert decide_share(BuildShare(builds=20), 2, 2) == "refuse"
    with pytest.raises(errors.ConfigError, match="58 builds can show"):
        BuildShare(builds=58, share=0.95)
    with pytest.raises(errors.ConfigError, match="tolerated is 0"):
        BuildShare(builds=59, share=0.95, tolerated=0.2)
