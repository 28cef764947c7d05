"""Recorded builds and replays on TensorRT with algorithm selectors (8.6), by the builder's log.

How long each takes is printed; the ratio is a goal of ``bench_trt replay``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from tests import models
from trtops.backend.base import NO_CACHES, Build, Caches
from trtops.backend.onnx.model import Model
from trtops.backend.trt import TensorRTBackend, library
from trtops.spec import BuildConfig, TensorRTOptions
from trtops.tactics.denied import DeniedTactic, DenyList

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

FP16 = BuildConfig(precision="fp16", options=TensorRTOptions())
REPEATED = "the replay was repeated without its timing cache"


@dataclass
class Timed:
    """Builds, with how many tactics TensorRT timed in each."""

    seconds: dict[str, float] = field(default_factory=dict)
    timings: dict[str, int] = field(default_factory=dict)

    def build(self, name: str, model: Model, config: BuildConfig = FP16, caches: Caches = NO_CACHES) -> Build:
        with library.collect_log(verbose=True) as log:
            made = TensorRTBackend().build(model, config, caches=caches)
        self.timings[name] = sum("Time: " in message for _, message in log.lines)
        self.seconds[name] = round(made.seconds, 3)
        return made


@pytest.fixture
def timed(request: pytest.FixtureRequest) -> Iterator[Timed]:
    found = Timed()
    yield found
    print(request.node.name, "seconds:", found.seconds, "tactics timed:", found.timings)


@pytest.fixture(scope="module")
def model() -> Model:
    case = models.three_convolutions(4, 32, 28, 0.06, "replayed")
    return Model.from_proto(case.proto, case.name)


def choices_of(build: Build) -> list[tuple[str, str]]:
    return [(choice.layer, choice.tactic) for choice in build.tactics.choices if choice.replayable]


def test_trial_times_a_fifth_of_the_build(model: Model, timed: Timed) -> None:
    recorded = timed.build("build", model)
    trial = Caches.replaying(recorded.tactics, recorded.timing_cache)

    first = timed.build("replay", model, caches=trial)
    again = timed.build("replay again", model, caches=trial)
    bare = timed.build("replay without a timing cache", model, caches=replace(trial, timing=None))

    assert len(choices_of(recorded)) >= 3
    for made in (first, again, bare):
        assert choices_of(made) == choices_of(recorded)
        assert REPEATED not in made.log and made.timing_cache is None
    assert timed.timings["replay"] * 5 <= timed.timings["build"]
    assert timed.timings["replay without a timing cache"] > timed.timings["replay"]  # nothing but a cache saves it


def test_recorded_build_has_a_whole_timing_cache(model: Model, timed: Timed) -> None:
    recorded = timed.build("build", model)
    unwatched = replace(FP16, options=replace(FP16.options, record_tactics=False))

    by_cache = timed.build("by its timing cache", model, unwatched, Caches(timing=recorded.timing_cache))
    recorded_again = timed.build("recorded by its timing cache", model, FP16, Caches(timing=recorded.timing_cache))

    assert by_cache.timing_cache_use.misses == recorded_again.timing_cache_use.misses == 0
    assert by_cache.layers == recorded.layers
    assert choices_of(recorded_again) == choices_of(recorded)


def test_seed_takes_precedence_over_timing_cache(model: Model, timed: Timed) -> None:
    recorded = timed.build("build", model)
    drawn = replace(FP16, options=replace(FP16.options, tactic_seed=5))

    made = timed.build("drawn", model, drawn, Caches(timing=recorded.timing_cache))

    assert "the timing cache was not used: of a layer in it TensorRT offers" in made.log
    assert timed.timings["drawn"] * 2 > timed.timings["build"]
    replayed = timed.build("drawn, replayed", model, FP16, Caches.replaying(made.tactics, made.timing_cache))
    assert choices_of(replayed) == choices_of(made)


def test_deny_list_takes_precedence_over_timing_cache(model: Model, timed: Timed) -> None:
    record = timed.build("build", model)
    denied_choice = next(choice for choice in record.tactics.choices if choice.replayable and "conv1" in choice.layer)
    entry = DeniedTactic(
        backend_version=record.tactics.backend_version,
        device_sha256=record.tactics.device_sha256,
        choices=(denied_choice,),
    )
    caches = Caches(timing=record.timing_cache, denied=DenyList(entries=(entry,)))

    made = timed.build("denied", model, FP16, caches)

    assert dict(choices_of(made))[denied_choice.layer] != denied_choice.tactic
    assert "tactics are on the deny-list" in made.log
