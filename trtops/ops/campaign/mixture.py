"""A good and a bad build, and builds that mix the two by replay: each layer and setting as in one or in the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from trtops import errors
from trtops.ops.campaign.bisect_result import Unit
from trtops.ops.campaign.config import Order, with_varied
from trtops.spec import BuildConfig, BuildSpec
from trtops.tactics.denied import DeniedTactic
from trtops.tactics.model import Bools
from trtops.tactics.record import TacticRecord
from trtops.tracking import schema
from trtops.tracking.base import StoredRun
from trtops.tracking.campaigns import load_record


@dataclass(frozen=True)
class Outcome:
    """The choices that a mixture really made.

    Attributes:
        taken: The units that it has from the bad build, of shape ``(units,)``; None if a unit is as in neither build,
            or the build failed.
        strayed: Units that are not as requested.
        also_changed: Other layers that are as in neither build, unless layers follow from settings.
    """

    taken: Bools | None
    strayed: tuple[str, ...] = ()
    also_changed: tuple[str, ...] = ()


class Mixture:
    """Two builds of one campaign with different verdicts.

    Args:
        good: The run of the good build.
        bad: The run of the bad one.

    Attributes:
        good_tactics: The choices of the good build.
        bad_tactics: Those of the bad one.
        units: The layers and settings in which they differ, as far as these can be chosen.
        consequences: Layers in which they differ that cannot be chosen: those that no replay can set, and those of one
            build only.

    Raises:
        ConfigError: If a run holds no tactics.
    """

    def __init__(self, good: StoredRun, bad: StoredRun) -> None:
        self.good, self.bad = good, bad
        self.good_tactics, self.bad_tactics = _load_tactics(good), _load_tactics(bad)
        settings, bad_settings = dict(self.good_tactics.settings), dict(self.bad_tactics.settings)
        mine, theirs = ({c.layer: c for c in record.choices} for record in (self.good_tactics, self.bad_tactics))
        layers = self.good_tactics.differing_layers(self.bad_tactics)
        # ONNX Runtime replays settings only; its layers follow from them.
        chosen = [
            n
            for n in layers
            if self.good_tactics.mechanism != "onnxruntime"
            and n in mine
            and n in theirs
            and mine[n].replayable
            and theirs[n].replayable
        ]
        self.consequences = tuple(name for name in layers if name not in chosen)
        self.units = (
            *(Unit(kind="layer", name=n, good=mine[n].tactic, bad=theirs[n].tactic) for n in chosen),
            *(
                Unit(kind="setting", name=name, good=value, bad=bad_settings[name])
                for name, value in settings.items()
                if value != bad_settings.get(name, value)
            ),
        )

    def order(self, taken: Bools, *, start: Literal["good", "bad"] = "good") -> Order:
        """The build with these units, of shape ``(units,)``, of the bad build, and the others of the good one."""
        own, other = (self.good_tactics, self.bad_tactics) if start == "good" else (self.bad_tactics, self.good_tactics)
        changed = {(unit.kind, unit.name) for unit, t in zip(self.units, taken) if t == (start == "good")}
        theirs, values = {choice.layer: choice for choice in other.choices}, dict(other.settings)
        wanted = replace(
            own,
            choices=tuple(theirs[c.layer] if ("layer", c.layer) in changed else c for c in own.choices),
            settings=tuple((n, values[n] if ("setting", n) in changed else v) for n, v in own.settings),
        )
        return replay_order(wanted, self.good if start == "good" else self.bad)

    def outcome(self, wanted: Bools, got: TacticRecord | None) -> Outcome:
        """Compare a build with the request."""
        if got is None:
            return Outcome(None, tuple(unit.name for unit in self.units))
        now, good, bad = (_choices_by_name(record) for record in (got, self.good_tactics, self.bad_tactics))
        taken, strayed = np.zeros(len(self.units), np.bool_), []
        whole = True
        for place, unit in enumerate(self.units):
            key = (unit.kind, unit.name)
            taken[place] = now.get(key) == bad.get(key)
            whole = whole and (bool(taken[place]) or now.get(key) == good.get(key))
            if taken[place] != wanted[place]:
                strayed.append(unit.name)
        if self.good_tactics.mechanism == "onnxruntime":  # settings decide the layers, and all settings were compared
            return Outcome(taken if whole else None, tuple(strayed))
        # Copies between formats and the like come and go with their neighbours' choices.
        unchosen = {
            c.layer for record in (got, self.good_tactics, self.bad_tactics) for c in record.choices if not c.replayable
        }
        known = {unit.name for unit in self.units} | set(self.consequences) | unchosen
        also = [
            name
            for kind, name in dict.fromkeys([*good, *now])
            if kind == "layer" and name not in known and now.get((kind, name)) != good.get((kind, name))
        ]
        return Outcome(taken if whole else None, tuple(strayed), tuple(also))

    def denied(self, units: Iterable[Unit], evidence: str) -> DeniedTactic:
        """The entry of the deny-list for what the bad build has in these units."""
        names = {(unit.kind, unit.name) for unit in units}
        return DeniedTactic(
            backend_version=self.bad_tactics.backend_version,
            device_sha256=self.bad_tactics.device_sha256,
            choices=tuple(choice for choice in self.bad_tactics.choices if ("layer", choice.layer) in names),
            settings=tuple(pair for pair in self.bad_tactics.settings if ("setting", pair[0]) in names),
            evidence=evidence,
        )


def replay_order(wanted: TacticRecord, start: StoredRun) -> Order:
    """The build that makes the choices of a record, with the config of a run."""
    made = TacticRecord.from_json(start.read_bytes(schema.Artifact.TACTICS))
    own = {name for name, _ in made.settings}
    varied = tuple(pair for pair in wanted.settings if pair[0] not in own)
    replay = replace(
        wanted,
        settings=tuple(pair for pair in wanted.settings if pair[0] in own),
        choices=() if wanted.mechanism == "onnxruntime" else wanted.choices,
    )
    config: BuildConfig = BuildSpec.from_json(start.read_bytes(schema.Artifact.SPEC)).config
    config = replace(config, options=replace(config.options, tactic_seed=None))
    # The run's timing cache holds only its own choices. With a selector, other choices must be timed again without it.
    fits = wanted.mechanism != "algorithm_selector" or not wanted.differing_layers(made)
    replayed = start.info.id if fits else ""
    return Order(build=with_varied(config, varied), replay=replay, replayed_run=replayed, varied=varied)


def _load_tactics(run: StoredRun) -> TacticRecord:
    record = load_record(run)
    if record is None:
        raise errors.ConfigError(
            f"Run {run.info.id} holds no tactics: its build failed, or did not record them. Name another one."
        )
    return record


def _choices_by_name(record: TacticRecord) -> dict[tuple[str, str], Sequence[object]]:
    """The choices of layers and settings, comparable between builds."""
    layers: Iterable[tuple[tuple[str, str], Sequence[object]]] = (
        (("layer", c.layer), (c.tactic, c.implementation, c.tactic_id)) for c in record.choices
    )
    return dict(layers) | {("setting", name): (value,) for name, value in record.settings}
