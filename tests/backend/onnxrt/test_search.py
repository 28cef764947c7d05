"""The builder's search: its candidates, its time budget, successive halving, random choices, and the deny-list."""

import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests import models
from tests.backend.onnxrt.test_tactics import MODELS
from trtops import BuildConfig, errors
from trtops.backend.base import Caches
from trtops.backend.onnx.model import Model
from trtops.backend.onnxrt.builder import OnnxRuntimeBackend
from trtops.backend.onnxrt.log import SessionLog
from trtops.backend.onnxrt.measure import Budget, Lane, successive_halving
from trtops.backend.onnxrt.optimize import Optimizer
from trtops.backend.onnxrt.search import random_candidates
from trtops.backend.onnxrt.tactics import TACTICS, Candidate
from trtops.spec import OnnxRuntimeOptions
from trtops.tactics.denied import DeniedTactic, DenyList
from trtops.tactics.record import TacticRecord

BACKEND = OnnxRuntimeBackend()
FAST = "com.microsoft.FastGelu@CPUExecutionProvider"


def config(**options: Any) -> BuildConfig:
    given = {"allow_approximation": True, "timing_iterations": 1, "intra_op_threads": 1} | options
    return BuildConfig(options=OnnxRuntimeOptions(**given))


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
def test_halving_keeps_the_faster_half(order: tuple[int, ...]) -> None:
    runners = {seconds: FakeRunner(float(seconds)) for seconds in order}
    lanes = [Lane(Candidate((str(seconds),)), runner) for seconds, runner in runners.items()]  # type: ignore[arg-type]

    timings = successive_halving(lanes, {}, 8, Budget())

    assert {seconds: runner.runs for seconds, runner in sorted(runners.items())} == (
        {1: 8, 2: 8, 3: 4, 4: 4, 5: 2, 6: 2, 7: 2, 8: 2}
    )
    assert all(timings[lane.candidate].median_seconds == float(lane.candidate.toggled[0]) for lane in lanes)


def test_halving_ends_with_the_budget() -> None:
    runner, budget = FakeRunner(1.0), Budget(given=0.0)
    budget.begin(1.0, 1.0)

    successive_halving([Lane(Candidate(), runner)], {}, 8, budget)  # type: ignore[arg-type]

    assert runner.runs == 1


@pytest.mark.parametrize(("start", "seconds"), [(0.01, 2.0), (1.0, 5.0), (3.0, 10.0)])
def test_budget_follows_the_models_speed(start: float, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.chain([100.0, 101.0, 102.0, 104.0], itertools.repeat(200.0))
    monkeypatch.setattr("trtops.backend.onnxrt.measure.time.perf_counter", lambda: next(clock))
    budget = Budget()
    budget.begin(start, 0.2)

    assert budget.left == pytest.approx(seconds - 1.0)
    if seconds < 10:
        return
    assert budget.allows(Candidate(), waiting=1)
    assert not budget.allows(Candidate(), waiting=1) and budget.skipped == ["default"]


@pytest.mark.parametrize("name", MODELS)
def test_log_of_default_finds_effective_tactics(name: str) -> None:
    with Optimizer(MODELS[name](), OnnxRuntimeOptions(intra_op_threads=1), SessionLog()) as optimizer:
        usual = optimizer(Candidate()).graph.signature
        changing = {t for t in TACTICS if optimizer(Candidate.toggling([t.name])).graph.signature != usual}
        found = {t for t in TACTICS if optimizer.may_change(t)}

    assert changing <= found
    assert len(found) <= len(changing) + 1  # NCHWc kernels fuse activations themselves


def test_without_time_default_is_built_again_from_cache(model: Model) -> None:
    short = BACKEND.build(model, config(timing_seconds=0.0))
    again = BACKEND.build(model, config(), caches=Caches(timing=short.timing_cache))
    whole = BACKEND.build(model, config(timing_seconds=60.0), caches=Caches(timing=short.timing_cache))

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
    builds = [BACKEND.build(model, config(tactic_seed=seed)) for seed in (3, 3, 4, 5, 6, 7)]

    assert builds[0].tactics == builds[1].tactics
    assert len({build.tactics.digest for build in builds}) > 1
    assert all(build.timing_cache_use.misses == 0 for build in builds)
    assert builds[0].spec.digest == builds[1].spec.digest != builds[2].spec.digest


@pytest.fixture(scope="module")
def fast(model: Model) -> TacticRecord:
    """The record of a build with the approximation."""
    record = BACKEND.build(model, config(tactics=("GeluApproximation",), tactic_seed=0)).tactics
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

    free = [BACKEND.build(model, config(tactic_seed=seed)) for seed in seeds]
    kept = [BACKEND.build(model, config(tactic_seed=seed), caches=denied) for seed in seeds]
    by_time = BACKEND.build(model, config(), caches=denied)

    assert any(choice.tactic == FAST for build in free for choice in build.tactics.choices)
    assert not any(choice.tactic == FAST for build in [*kept, by_time] for choice in build.tactics.choices)
    changed = [after for before, after in zip(free, kept) if before.tactics != after.tactics]
    assert changed and all("run1" in build.log and "taking the next" in build.log for build in changed)
    assert by_time.spec.denied_sha256 and by_time.spec.digest != BACKEND.build(model, config()).spec.digest


def test_denied_replay_or_unavoidable_tactic_is_refused(model: Model, fast: TacticRecord) -> None:
    everywhere = deny(fast, next(choice.tactic for choice in fast.choices if choice.op == "Softmax"))

    with pytest.raises(errors.TacticMismatchError, match=r"e4.*run1"):
        BACKEND.build(model, config(), caches=Caches(replay=fast, denied=deny(fast)))
    with pytest.raises(errors.EngineBuildError, match="deny-list"):
        BACKEND.build(model, config(), caches=Caches(denied=everywhere))


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
