"""Tactics on the deny-list, and random tactics, with ONNX Runtime's builder."""

from __future__ import annotations

import dataclasses

import pytest

from tests import models
from trtops import errors
from trtops.backend.base import Caches
from trtops.backend.onnx.model import Model
from trtops.backend.onnxrt.builder import OnnxRuntimeBackend
from trtops.backend.onnxrt.search import random_candidates
from trtops.spec import CAMPAIGN_SEEDS, BuildConfig, OnnxRuntimeOptions
from trtops.tactics.denied import DeniedTactic, DenyList
from trtops.tactics.record import TacticRecord

BACKEND = OnnxRuntimeBackend()
FAST = "com.microsoft.FastGelu@CPUExecutionProvider"


def config(**options: object) -> BuildConfig:
    given = {"allow_approximation": True, "timing_iterations": 1, "intra_op_threads": 1} | options
    return BuildConfig(options=OnnxRuntimeOptions(**given))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.from_proto(models.transformer().proto)


@pytest.fixture(scope="module")
def fast(model: Model) -> TacticRecord:
    """The record of a build with the approximation."""
    only = OnnxRuntimeOptions(tactics=("GeluApproximation",), allow_approximation=True, tactic_seed=0)
    seeds = (dataclasses.replace(only, tactic_seed=seed) for seed in range(20))
    builds = (BACKEND.build(model, BuildConfig(options=options)).tactics for options in seeds)
    return next(record for record in builds if ("GeluApproximation", "on") in record.settings)


def deny(record: TacticRecord, tactic: str = FAST) -> DenyList:
    choices = tuple(choice for choice in record.choices if choice.tactic == tactic)
    entry = DeniedTactic(
        backend_version=record.backend_version, device_sha256=record.device_sha256, choices=choices, evidence="run1"
    )
    return DenyList(entries=(entry,))


def test_a_lot_is_drawn_again_by_the_same_seed_and_shows_every_combination() -> None:
    drawn = [next(random_candidates(("GeluFusionL2", "BiasGeluFusion"), seed)) for seed in range(40)]

    assert drawn == [next(random_candidates(("GeluFusionL2", "BiasGeluFusion"), seed)) for seed in range(40)]
    assert {c.toggled for c in drawn} == {
        (),
        ("GeluFusionL2",),
        ("BiasGeluFusion",),
        ("GeluFusionL2", "BiasGeluFusion"),
    }


def test_seeds_in_a_row_show_every_combination_before_one_comes_again() -> None:
    drawn = [
        next(random_candidates(("GeluFusionL2", "BiasGeluFusion", "MatMulAddFusion"), seed)) for seed in range(-8, 16)
    ]

    assert [len(set(drawn[first : first + 8])) for first in (0, 8, 16)] == [8, 8, 8]
    assert drawn[:8] != drawn[8:16] != drawn[16:]


def test_a_campaign_begins_with_the_approximations_and_without_them() -> None:
    names = ("GeluFusionL2", "BiasGeluFusion", "GeluApproximation")

    for campaign in range(3):
        drawn = [next(random_candidates(names, campaign * CAMPAIGN_SEEDS + number)) for number in range(8)]
        assert [c.id for c in drawn[:2]] == ["+GeluApproximation", "default"]
        assert len(set(drawn)) == 8


def test_a_build_with_random_tactics_times_nothing_and_repeats(model: Model) -> None:
    builds = [BACKEND.build(model, config(tactic_seed=seed)) for seed in (3, 3, 4, 5, 6, 7)]

    assert builds[0].tactics == builds[1].tactics
    assert len({build.tactics.digest for build in builds}) > 1
    assert all(build.timing_cache_use.misses == 0 for build in builds)
    assert builds[0].spec.digest == builds[1].spec.digest != builds[2].spec.digest


def test_a_denied_tactic_is_not_chosen_and_the_log_says_so(model: Model, fast: TacticRecord) -> None:
    denied = Caches(denied=deny(fast))
    seeds = range(12)

    free = [BACKEND.build(model, config(tactic_seed=seed)) for seed in seeds]
    kept = [BACKEND.build(model, config(tactic_seed=seed), caches=denied) for seed in seeds]
    by_time = BACKEND.build(model, config(), caches=denied)

    assert any(choice.tactic == FAST for build in free for choice in build.tactics.choices)
    assert not any(choice.tactic == FAST for build in [*kept, by_time] for choice in build.tactics.choices)
    changed = [after for before, after in zip(free, kept) if before.tactics != after.tactics]
    assert changed and all("which run run1 convicted; taking the next" in build.log for build in changed)
    assert by_time.spec.denied_sha256 and by_time.spec.digest != BACKEND.build(model, config()).spec.digest


def test_what_was_convicted_elsewhere_does_not_count(model: Model, fast: TacticRecord) -> None:
    elsewhere = deny(dataclasses.replace(fast, device_sha256="0" * 64))
    plain = BACKEND.build(model, config(tactic_seed=1))

    build = BACKEND.build(model, config(tactic_seed=1), caches=Caches(denied=elsewhere))

    assert build.tactics == plain.tactics and build.spec == plain.spec


def test_a_replay_of_a_denied_tactic_is_refused(model: Model, fast: TacticRecord) -> None:
    with pytest.raises(errors.TacticMismatchError, match=r"e4.*run1 convicted"):
        BACKEND.build(model, config(), caches=Caches(replay=fast, denied=deny(fast)))


def test_a_model_that_cannot_be_built_otherwise_is_not_built(model: Model, fast: TacticRecord) -> None:
    everywhere = deny(fast, next(choice.tactic for choice in fast.choices if choice.op == "Softmax"))

    with pytest.raises(errors.EngineBuildError, match="deny-list"):
        BACKEND.build(model, config(), caches=Caches(denied=everywhere))


def test_settings_that_show_in_no_layer_are_denied_together(model: Model, fast: TacticRecord) -> None:
    entry = dataclasses.replace(
        deny(fast).entries[0], choices=(), settings=(("BiasGeluFusion", "off"), ("GeluApproximation", "on"))
    )
    denied = Caches(denied=DenyList(entries=(entry,)))

    settings = [dict(BACKEND.build(model, config(tactic_seed=s), caches=denied).tactics.settings) for s in range(12)]

    assert not any(s["BiasGeluFusion"] == "off" and s["GeluApproximation"] == "on" for s in settings)
    assert any(s["GeluApproximation"] == "on" for s in settings) and any(s["BiasGeluFusion"] == "off" for s in settings)
