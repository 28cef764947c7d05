"""The builder's search: its candidates, its time budget, successive halving, random choices, and the deny-list."""

import itertools
import math
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests import models
from tests.backend.onnxrt.test_tactics import MODELS
from trtops import BuildConfig, errors
from trtops.backend.base import BuildRequest, Caches
from trtops.backend.onnx.model import Model
from trtops.backend.onnxrt import search
from trtops.backend.onnxrt.builder import OnnxRuntimeBackend
from trtops.backend.onnxrt.log import SessionLog
from trtops.backend.onnxrt.measure import Budget, Lane, Measurement, successive_halving
from trtops.backend.onnxrt.optimize import Optimizer
from trtops.backend.onnxrt.search import random_candidates
from trtops.backend.onnxrt.tactics import TACTICS, Candidate
from trtops.backend.onnxrt.timing_cache import Timing
from trtops.spec import OnnxRuntimeOptions
from trtops.tactics.denied import DeniedTactic, DenyList
from trtops.tactics.record import TacticRecord

BACKEND = OnnxRuntimeBackend()
FAST = "com.microsoft.FastGelu@CPUExecutionProvider"


def config(**options: Any) -> BuildConfig:
    all_options = {"allow_approximation": True, "timing_iterations": 1, "intra_op_threads": 1} | options
    return BuildConfig(options=OnnxRuntimeOptions(**all_options))


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.from_proto(models.transformer().proto)


class FakeRunner:
    """Reports a fixed time for every inference, independent of the clock."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.runs = 0

    def infer(self, feed: Any) -> dict[str, Any]:
        self.runs += 1
        return {}

    def last_inference_time(self) -> float:
        return self.seconds


@pytest.mark.parametrize("order", [(1, 2, 3, 4, 5, 6, 7, 8), (8, 7, 6, 5, 4, 3, 2, 1), (4, 8, 2, 6, 1, 5, 3, 7)])
def test_halving_keeps_the_first_and_the_faster_half(order: tuple[int, ...]) -> None:
    runners = {seconds: FakeRunner(float(seconds)) for seconds in (9, *order)}
    lanes = [Lane(Candidate((str(seconds),)), runner, seconds=1.0) for seconds, runner in runners.items()]  # type: ignore[arg-type]

    timings = successive_halving(lanes, {}, 8, Budget())

    assert {seconds: runner.runs for seconds, runner in sorted(runners.items())} == (
        {1: 16, 2: 12, 3: 8, 4: 8, 5: 4, 6: 4, 7: 4, 8: 4, 9: 16}
    )
    for lane in lanes:
        seconds, timing = float(lane.candidate.toggled[0]), timings[lane.candidate]
        assert timing.median_seconds == seconds
        ratio = () if seconds == 9 else pytest.approx((math.log(seconds / 9),) * (lane.runner.runs // 2))
        assert timing.log_ratios == ratio


def test_drift_does_not_favour_a_lane() -> None:
    class Slowing(FakeRunner):
        """Each inference, of any lane, takes 10 % longer than the one before."""

        def last_inference_time(self) -> float:
            clock[0] *= 1.1
            return clock[0]

    clock = [1.0]
    lanes = [Lane(Candidate((name,)), Slowing(0.0), seconds=1.0) for name in "abc"]  # type: ignore[arg-type]

    timings = successive_halving(lanes, {}, 2, Budget())

    for timing in timings.values():
        assert timing.log_ratios == pytest.approx((0.0,) * len(timing.log_ratios), abs=1e-12)


@pytest.mark.parametrize("load", [0.0, 0.4, 0.8])
def test_noise_of_a_loaded_machine_chooses_nothing(load: float) -> None:
    """Of equal candidates hardly one is chosen; on a quiet machine, one that saves a tenth is always chosen."""

    class Noisy(FakeRunner):
        """Inferences scatter by 2 %, and other work slows down a part of them, by up to ten times."""

        def last_inference_time(self) -> float:
            slowed = 1 + 9 * random.random() if random.random() < load else 1.0
            return self.seconds * float(random.lognormal(0, 0.02)) * slowed

    def chosen(*speeds: float) -> list[int]:
        lanes = [Lane(Candidate((str(n),)), Noisy(s), seconds=s) for n, s in enumerate((1e-3, *speeds))]  # type: ignore[arg-type]
        timings = [*successive_halving(lanes, {}, 8, Budget()).values()][1:]
        confidence = 1 - 0.01 / len(timings)
        return [n for n, t in enumerate(timings) if search._ratio([t], [1e-3], confidence).decision == "below"]

    random = np.random.default_rng(1)

    assert sum(map(bool, (chosen(1e-3, 1e-3, 1e-3) for _ in range(100)))) <= 1
    if not load:
        assert [chosen(1e-3, 0.9e-3) for _ in range(20)] == [[1]] * 20


def test_short_inferences_are_repeated_and_disturbed_ones_dropped() -> None:
    seconds = itertools.cycle([1e-4, 1e-4, 5e-3])
    runner = FakeRunner(0.0)
    runner.last_inference_time = lambda: next(seconds)  # type: ignore[method-assign]
    lane = Lane(Candidate(), runner, seconds=1e-4)  # type: ignore[arg-type]

    lane.visit({})

    assert runner.runs == 40 and lane.samples == [pytest.approx(1e-4)]


def test_halving_ends_with_the_budget() -> None:
    runners, budget = [FakeRunner(1.0), FakeRunner(2.0)], Budget(requested_seconds=0.0)
    budget.begin(1.0, 1.0)
    lanes = [Lane(Candidate((str(i),)), runner, seconds=1.0) for i, runner in enumerate(runners)]  # type: ignore[arg-type]

    timings = successive_halving(lanes, {}, 8, budget)

    assert [runner.runs for runner in runners] == [2, 2]  # one round
    assert timings[lanes[1].candidate].log_ratios == pytest.approx((math.log(2),))


@pytest.mark.parametrize(
    ("start", "inference", "seconds"), [(0.01, 0.02, 2.0), (1.0, 0.2, 5.0), (0.1, 0.3, 4.9), (3.0, 0.2, 10.0)]
)
def test_budget_follows_the_models_speed(
    start: float, inference: float, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.chain([100.0, 101.0, 102.0, 104.0], itertools.repeat(200.0))
    monkeypatch.setattr("trtops.backend.onnxrt.measure.time.perf_counter", lambda: next(clock))
    budget = Budget()
    budget.begin(start, inference)

    assert budget.left == pytest.approx(seconds - 1.0)
    if seconds < 10:
        return
    assert budget.allows(Candidate(), waiting=0)
    assert not budget.allows(Candidate(), waiting=0) and budget.skipped == ["default"]


GELU = Candidate.toggling(["GeluApproximation"])


@pytest.mark.parametrize(
    ("ratios", "chosen", "message"),
    [
        # 20 % less beyond the noise, and within it; 2 % less without any noise; too few rounds; more
        (
            [0.80, 0.79, 0.81, 0.80, 0.78, 0.80, 0.82, 0.80],
            "on",
            "takes 0.80 times the time of the defaults (2 ms), 0.7",
        ),
        (
            [0.80, 1.30, 0.40, 1.10, 0.60, 1.25, 0.50, 0.90],
            "off",
            "None of 1 other settings is faster than the defaults",
        ),
        ([0.98] * 8, "off", "by more than the noise and 3%"),
        ([0.80, 0.80, 0.80], "off", "None of 1 other settings"),
        ([1.90] * 8, "off", "None of 1 other settings"),
    ],
)
def test_default_is_kept_unless_another_is_faster_beyond_noise(
    model: Model, ratios: list[float], chosen: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured_ratios(monkeypatch, {GELU: ratios})

    build = BACKEND.build(BuildRequest(model, config(tactics=("GeluApproximation",))))

    assert dict(build.tactics.settings) == {"GeluApproximation": chosen}
    assert message in build.tuning and not build.denied


def measured_ratios(monkeypatch: pytest.MonkeyPatch, ratios: dict[Candidate, list[float]]) -> None:
    """Let candidates have these ratios to the defaults' time, which is 2 ms."""

    def seconds(self: Measurement, candidates: list[Candidate], feed: Any) -> dict[Candidate, Timing]:
        logs = {c: tuple(map(math.log, ratios.get(c, ()))) for c in candidates}
        return {
            c: Timing(median_seconds=2e-3, cost_seconds=0.1, log_ratios=candidate_ratios)
            for c, candidate_ratios in logs.items()
        }

    monkeypatch.setattr(Measurement, "seconds", seconds)


def test_record_names_no_setting_without_effect(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without fused Gelu nodes, their approximation changes nothing."""
    names = ("MatMulScaleFusion", "GeluFusionL2", "BiasGeluFusion", "GeluApproximation")
    together = [Candidate.toggling(some) for size in (2, 3, 4) for some in itertools.combinations(names, size)]
    faster = {candidate: [0.5] * 8 for candidate in together} | {Candidate.toggling([n]): [0.8] * 8 for n in names}
    measured_ratios(monkeypatch, faster)

    settings = dict(BACKEND.build(BuildRequest(model, config(tactics=names))).tactics.settings)

    assert settings["GeluFusionL2"] == settings["MatMulScaleFusion"] == "off"
    assert settings["GeluApproximation"] == "off"


def test_denied_default_is_named_with_what_it_costs(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    measured_ratios(monkeypatch, {GELU: [1.7, 1.75, 1.72, 1.74]})
    allowed = config(tactics=("GeluApproximation",))
    usual = BACKEND.build(BuildRequest(model, allowed)).tactics
    entry = DeniedTactic(
        backend_version=usual.backend_version, device_sha256=usual.device_sha256, settings=usual.settings,
        run="ab12", evidence="proof",
    )  # fmt: skip

    build = BACKEND.build(BuildRequest(model, allowed, caches=Caches(denied=DenyList(entries=(entry,)))))

    assert dict(build.tactics.settings) == {"GeluApproximation": "on"}
    assert "1.73 times the time of the defaults (2 ms)" in build.tuning and "the defaults are denied" in build.tuning
    assert build.left_out == (
        "1 setting left out: GeluApproximation=off is denied by run ab12 (`trtops runs pardon` with this run allows it)"
    )


@pytest.mark.parametrize("name", MODELS)
def test_log_of_default_finds_effective_tactics(name: str) -> None:
    with Optimizer(MODELS[name](), OnnxRuntimeOptions(intra_op_threads=1), SessionLog()) as optimizer:
        usual = optimizer(Candidate()).graph.signature
        changing = {t for t in TACTICS if optimizer(Candidate.toggling([t.name])).graph.signature != usual}
        effective = {t for t in TACTICS if optimizer.may_change(t)}

    assert changing <= effective
    assert len(effective) <= len(changing) + 1  # NCHWc kernels fuse activations themselves


def test_without_time_default_is_built_again_from_cache(model: Model) -> None:
    short = BACKEND.build(BuildRequest(model, config(timing_seconds=0.0)))
    again = BACKEND.build(BuildRequest(model, config(), caches=Caches(timing=short.timing_cache)))
    whole = BACKEND.build(BuildRequest(model, config(timing_seconds=60.0), caches=Caches(timing=short.timing_cache)))

    assert "-GeluFusionL2" in short.skipped and "+GeluApproximation" in short.skipped
    assert {("GeluFusionL2", "on"), ("GeluApproximation", "off")} <= set(short.tactics.settings)
    assert "-GeluFusionL2 was not tried for lack of time" in short.log
    assert short.timing_cache_use.misses == 0 and not short.tuning
    assert "settings" in whole.tuning and "the defaults (" in whole.tuning
    assert again.skipped == short.skipped and again.tactics == short.tactics
    assert not whole.skipped and len(whole.tactics.settings) > 3 and whole.timing_cache_use.misses > 3


def test_consecutive_seeds_draw_every_combination() -> None:
    names = ("GeluFusionL2", "BiasGeluFusion", "MatMulAddFusion")
    drawn = [next(random_candidates(names, seed)) for seed in range(-8, 16)]

    assert drawn == [next(random_candidates(names, seed)) for seed in range(-8, 16)]
    assert [len(set(drawn[first : first + 8])) for first in (0, 8, 16)] == [8, 8, 8]
    assert drawn[:8] != drawn[8:16] != drawn[16:]
    assert (set(drawn[8].toggled), drawn[9].toggled) == (
        set(names),
        (),
    )  # so one choice that decides gives both verdicts


def test_seeded_builds_repeat_without_timing(model: Model) -> None:
    builds = [BACKEND.build(BuildRequest(model, config(tactic_seed=seed))) for seed in (3, 3, 4, 5, 6, 7)]

    assert builds[0].tactics == builds[1].tactics
    assert len({build.tactics.digest for build in builds}) > 1
    assert all(build.timing_cache_use.misses == 0 for build in builds)
    assert builds[0].spec.digest == builds[1].spec.digest != builds[2].spec.digest


@pytest.fixture(scope="module")
def fast(model: Model) -> TacticRecord:
    """The record of a build with the approximation."""
    record = BACKEND.build(BuildRequest(model, config(tactics=("GeluApproximation",), tactic_seed=0))).tactics
    assert ("GeluApproximation", "on") in record.settings
    return record


def deny(record: TacticRecord, tactic: str = FAST) -> DenyList:
    choices = tuple(choice for choice in record.choices if choice.tactic == tactic)
    entry = DeniedTactic(
        backend_version=record.backend_version, device_sha256=record.device_sha256, choices=choices, evidence="run1"
    )
    return DenyList(entries=(entry,))


def test_denied_tactic_is_never_chosen(model: Model, fast: TacticRecord) -> None:
    denied = Caches(denied=deny(fast))
    seeds = range(12)

    free = [BACKEND.build(BuildRequest(model, config(tactic_seed=seed))) for seed in seeds]
    without_fast = [BACKEND.build(BuildRequest(model, config(tactic_seed=seed), caches=denied)) for seed in seeds]
    by_time = BACKEND.build(BuildRequest(model, config(), caches=denied))

    assert any(choice.tactic == FAST for build in free for choice in build.tactics.choices)
    assert not any(choice.tactic == FAST for build in [*without_fast, by_time] for choice in build.tactics.choices)
    changed = [after for before, after in zip(free, without_fast) if before.tactics != after.tactics]
    assert changed and all("run1" in build.log and "taking the next" in build.log for build in changed)
    assert (
        by_time.spec.denied_sha256 and by_time.spec.digest != BACKEND.build(BuildRequest(model, config())).spec.digest
    )


def test_denied_replay_or_unavoidable_tactic_is_refused(model: Model, fast: TacticRecord) -> None:
    everywhere = deny(fast, next(choice.tactic for choice in fast.choices if choice.op == "Softmax"))

    with pytest.raises(errors.TacticMismatchError, match=r"e4.*run1"):
        BACKEND.build(BuildRequest(model, config(), caches=Caches(replay=fast, denied=deny(fast))))
    with pytest.raises(errors.EngineBuildError, match="deny-list"):
        BACKEND.build(BuildRequest(model, config(), caches=Caches(denied=everywhere)))


def test_each_log_collects_its_own_lines(capfd) -> None:
    logs = [SessionLog() for _ in range(4)]

    def write(log: SessionLog) -> None:
        for number in range(50):
            with log.collecting():
                os.write(2, f"[W:onnxruntime:{log.log_id}, a.cc:1 f] line {number}\n".encode())

    with ThreadPoolExecutor(len(logs)) as pool:
        list(pool.map(write, logs))

    assert all(log.text() == "".join(f"[W] line {number}\n" for number in range(50)) for log in logs)
    assert capfd.readouterr().err == ""
