"""Mixtures of a good and a bad build by replay: each layer and setting as in one or in the other."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from trtops import errors
from trtops.backend.onnxrt.tactics import Candidate
from trtops.ops.campaign.bisect_result import Unit
from trtops.ops.campaign.config import TacticRequest
from trtops.spec import BuildConfig, BuildSpec
from trtops.tactics.model import Bools
from trtops.tactics.record import Column, TacticRecord
from trtops.tracking import schema
from trtops.tracking.base import StoredRun
from trtops.tracking.campaigns import load_record


@dataclass(frozen=True)
class MixtureOutcome:
    """The actual choices of a mixture, compared with the request."""

    # Units as in the bad build, of shape ``(units,)``; None if one is as in neither of the two, or nothing was built.
    taken: Bools | None
    strayed: tuple[str, ...] = ()  # units that are not as requested
    # Other layers that are not as in the good build, and follow from no unit.
    also_changed: tuple[str, ...] = ()
    followed: tuple[bool, ...] = ()  # whether each of the consequences is as in the bad build


class Mixture:
    """A good and a bad build of one campaign; ConfigError if a run holds no tactics.

    They differ in ``units``, which can be taken from either, and in layers that follow from the units, the
    ``consequences``: those that no replay can set, and those of one build only.
    """

    def __init__(self, good: StoredRun, bad: StoredRun) -> None:
        self.good, self.bad = good, bad
        records = _load_tactics(good), _load_tactics(bad)
        self._settings = tuple(dict(records[0].settings) | dict(records[1].settings))
        self.good_tactics, self.bad_tactics = map(self._completed, records)
        self.is_by_settings = self.good_tactics.mechanism == "onnxruntime"
        good_choices, bad_choices = self.good_tactics.by_layer, self.bad_tactics.by_layer
        units, consequences = [], []
        for name in self.good_tactics.differing_layers(self.bad_tactics):
            mine, theirs = good_choices.get(name), bad_choices.get(name)
            # ONNX Runtime replays settings only; its layers follow from them.
            if mine and theirs and mine.replayable and theirs.replayable and not self.is_by_settings:
                units.append(Unit(kind="layer", name=name, good=mine.tactic, bad=theirs.tactic))
            else:
                consequences.append(name)
        bad_settings = dict(self.bad_tactics.settings)
        for name, value in self.good_tactics.settings:
            if value != bad_settings.get(name, value):
                units.append(Unit(kind="setting", name=name, good=value, bad=bad_settings[name]))
        self.units, self.consequences = tuple(units), tuple(consequences)

    def _completed(self, record: TacticRecord) -> TacticRecord:
        """The record with the defaults of settings present only in the other build."""
        if record.mechanism != "onnxruntime":
            return record
        return replace(record, settings=Candidate.from_settings(record.settings).settings(self._settings))

    def request(self, taken: Bools, *, start: Literal["good", "bad"] = "good") -> TacticRequest:
        """The build with these units, of shape ``(units,)``, of the bad build, and the others of the good one.

        Everything that is no unit is as in the build to ``start`` from, whose config and timing cache are used as well.
        """
        run, start_record, other = self.good, self.good_tactics, self.bad_tactics
        if start == "bad":
            run, start_record, other = self.bad, self.bad_tactics, self.good_tactics
        changed = set()
        for unit, is_taken in zip(self.units, taken):
            if is_taken == (start == "good"):
                changed.add(unit.column)
        theirs, values = other.by_layer, dict(other.settings)
        mixed_record = replace(
            start_record,
            choices=tuple(theirs[c.layer] if ("layer", c.layer) in changed else c for c in start_record.choices),
            settings=tuple((n, values[n] if ("setting", n) in changed else v) for n, v in start_record.settings),
        )
        config: BuildConfig = BuildSpec.from_json(run.read_bytes(schema.Artifact.SPEC)).config
        config = replace(config, options=replace(config.options, tactic_seed=None))
        # A timing cache holds only the choices of its own build. An editable one takes others too. With a selector,
        # other choices must be timed again, without the cache.
        fits = mixed_record.mechanism != "algorithm_selector" or not mixed_record.differing_layers(start_record)
        replay = replace(mixed_record, choices=()) if self.is_by_settings else mixed_record
        return TacticRequest(build=config, replay=replay, replayed_run=run.info.id if fits else "")

    def outcome(self, requested: Bools, got: TacticRecord | None) -> MixtureOutcome:
        """Compare a build with the request."""
        if got is None:
            return MixtureOutcome(None, tuple(unit.name for unit in self.units))
        built, good, bad = map(_choices_of, (self._completed(got), self.good_tactics, self.bad_tactics))
        taken, strayed, has_third_choice = np.zeros(len(self.units), np.bool_), [], False
        for position, unit in enumerate(self.units):
            choice = built.get(unit.column)
            taken[position] = choice == bad.get(unit.column)
            has_third_choice |= choice not in (good.get(unit.column), bad.get(unit.column))
            if taken[position] != requested[position]:
                strayed.append(unit.name)
        bad_units = None if has_third_choice else taken
        followed = tuple(built.get(("layer", name)) == bad.get(("layer", name)) for name in self.consequences)
        if self.is_by_settings:  # settings decide the layers, and all settings were compared
            return MixtureOutcome(bad_units, tuple(strayed), followed=followed)
        # Layers that cannot be replayed are free to change: copies between formats and the like come and go with their
        # neighbours' choices.
        free = {unit.name for unit in self.units} | set(self.consequences)
        for choice in (*got.choices, *self.good_tactics.choices, *self.bad_tactics.choices):
            if not choice.replayable:
                free.add(choice.layer)
        also_changed = []
        for kind, name in dict.fromkeys([*good, *built]):
            if kind == "layer" and name not in free and built.get((kind, name)) != good.get((kind, name)):
                also_changed.append(name)
        return MixtureOutcome(bad_units, tuple(strayed), tuple(also_changed), followed)


def _load_tactics(run: StoredRun) -> TacticRecord:
    record = load_record(run)
    if record is None:
        raise errors.ConfigError(
            f"Run {run.info.id} holds no tactics: its build failed, or did not record them. Name another one."
        )
    return record


def _choices_of(record: TacticRecord) -> dict[Column, object]:
    """The choices of layers and settings, comparable between builds."""
    layer_choices: dict[Column, object] = {("layer", choice.layer): choice.identity for choice in record.choices}
    return layer_choices | {("setting", name): value for name, value in record.settings}
