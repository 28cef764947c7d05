"""A good and a bad build, and builds that mix the two by replay: each layer and setting as in one or in the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from trtops import errors
from trtops.ops.campaign.config import with_varied
from trtops.ops.campaign.iteration import Order
from trtops.record import Record
from trtops.spec import BuildConfig, BuildSpec
from trtops.tactics.denied import DeniedTactic
from trtops.tactics.record import TacticChoice, TacticRecord
from trtops.tactics.several import Bools
from trtops.tactics.table import CampaignTable
from trtops.tracking import schema
from trtops.tracking.base import StoredRun
from trtops.tracking.campaigns import load_record

Key: TypeAlias = "tuple[str, str, str]"
"""Kind, name and bad choice of a unit: what it is, whatever good builds have in its place."""


@dataclass(frozen=True, kw_only=True)
class Unit(Record):
    """A layer or a setting in which two builds differ, and that can be taken from either.

    Attributes:
        kind: Which of the two it is.
        name: Its name.
        good: What the good build has, in words.
        bad: What the bad build has.
    """

    kind: Literal["layer", "setting"]
    name: str
    good: str
    bad: str

    @property
    def choice(self) -> Key:
        """What it is, whatever the good build has in its place."""
        return self.kind, self.name, self.bad

    def describe(self) -> str:
        """The unit with what the bad build has."""
        return f"{self.name}={self.bad}" if self.kind == "setting" else f"{self.name}: {self.bad}"

    def taken_by(self, table: CampaignTable) -> Bools:
        """Which builds of a table have what the bad build has, of shape ``(builds,)``."""
        return self._has(table, self.bad)

    def kept_by(self, table: CampaignTable) -> Bools:
        """Which builds have what the good build has, of shape ``(builds,)``."""
        return self._has(table, self.good)

    def _has(self, table: CampaignTable, choice: str) -> Bools:
        nowhere: Bools = np.zeros(len(table), np.bool_)
        if self.kind == "setting":
            if self.name not in table.settings or choice not in table.values:
                return nowhere
            same: Bools = table.setting_codes[:, table.settings.index(self.name)] == table.values.index(choice)
            return same
        if self.name not in table.layers:
            return nowhere
        chosen = table.codes[:, table.layers.index(self.name)]
        has: Bools = np.isin(chosen, [code for code, known in enumerate(table.choices) if known.tactic == choice])
        return has


@dataclass(frozen=True)
class Outcome:
    """What a mixture really got.

    Attributes:
        taken: The units that it has from the bad build, of shape ``(units,)``; None if a unit got something else
            altogether, or the build failed.
        strayed: Units that did not get what was wanted.
        also_changed: Other layers that are neither as in the good build nor as in the bad one, and, where layers do
            not follow from settings, layers of neither.
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
        units: In what they differ, as far as it can be chosen.
        consequences: Layers in which they differ and that cannot be chosen: those that no replay can set, and those of one
            build only. What they got follows from the units.

    Raises:
        ConfigError: If a run holds no tactics.
    """

    def __init__(self, good: StoredRun, bad: StoredRun) -> None:
        self.good, self.bad = good, bad
        self._good, self._bad = _tactics_of(good), _tactics_of(bad)
        settings = _settings_of(self._good), _settings_of(self._bad)
        differing = [name for name in settings[0] if settings[0][name] != settings[1].get(name, settings[0][name])]
        self._settings = tuple(differing)
        mine, theirs = ({c.layer: c for c in record.choices} for record in (self._good, self._bad))
        layers = self._good.differing_layers(self._bad)
        # ONNX Runtime can be told settings alone; its layers follow from them.
        chosen = self._good.mechanism != "onnxruntime"
        self._layers = tuple(
            n for n in layers if chosen and n in mine and n in theirs and _are_replayable(mine[n], theirs[n])
        )
        self.consequences = tuple(name for name in layers if name not in self._layers)
        self.units = (
            *(Unit(kind="layer", name=n, good=mine[n].tactic, bad=theirs[n].tactic) for n in self._layers),
            *(Unit(kind="setting", name=n, good=settings[0][n], bad=settings[1][n]) for n in self._settings),
        )

    def order(self, taken: Bools) -> Order:
        """The build that has these units from the bad build and all else from the good one.

        Args:
            taken: Of shape ``(units,)``.
        """
        names = [[u.name for u, t in zip(self.units, taken) if t and u.kind == kind] for kind in ("layer", "setting")]
        layers, settings = (frozenset(of) for of in names)
        theirs = {choice.layer: choice for choice in self._bad.choices}
        values = _settings_of(self._bad)
        wanted = replace(
            self._good,
            choices=tuple(theirs[c.layer] if c.layer in layers else c for c in self._good.choices),
            settings=tuple((n, values[n] if n in settings else v) for n, v in self._good.settings),
        )
        return replay_order(wanted, self.good)

    def outcome(self, wanted: Bools, got: TacticRecord | None) -> Outcome:
        """What a build got that was to have some units.

        Args:
            wanted: What was asked for, of shape ``(units,)``.
            got: The build's tactics; None if it failed.
        """
        if got is None:
            return Outcome(None, tuple(unit.name for unit in self.units))
        now, before, other = (_choices_by_name(record) for record in (got, self._good, self._bad))
        taken, strayed = np.zeros(len(self.units), np.bool_), []
        whole = True
        for place, unit in enumerate(self.units):
            key = (unit.kind, unit.name)
            taken[place] = now.get(key) == other.get(key)
            whole = whole and (bool(taken[place]) or now.get(key) == before.get(key))
            if taken[place] != wanted[place]:
                strayed.append(unit.name)
        # Copies between formats and the like come and go with their neighbours' choices, and nobody chooses them.
        unchosen = {c.layer for record in (got, self._good, self._bad) for c in record.choices if not c.replayable}
        known = {unit.name for unit in self.units} | set(self.consequences) | unchosen
        also = [
            name
            for kind, name in dict.fromkeys([*before, *now])
            if kind == "layer" and name not in known and now.get((kind, name)) != before.get((kind, name))
        ]
        if self._good.mechanism == "onnxruntime":
            also = []  # settings decide the layers, and all settings were compared
        return Outcome(taken if whole else None, tuple(strayed), tuple(also))

    def denied(self, units: Iterable[Unit], evidence: str) -> DeniedTactic:
        """What later builds must not choose: what the bad build has in these units.

        Args:
            units: Convicted together.
            evidence: Id of the run that convicted them.
        """
        names = {(unit.kind, unit.name) for unit in units}
        return DeniedTactic(
            backend_version=self._bad.backend_version,
            device_sha256=self._bad.device_sha256,
            choices=tuple(choice for choice in self._bad.choices if ("layer", choice.layer) in names),
            settings=tuple(pair for pair in self._bad.settings if ("setting", pair[0]) in names),
            evidence=evidence,
        )


def replay_order(wanted: TacticRecord, start: StoredRun) -> Order:
    """The build that makes the choices of a record, with the config of a run.

    Args:
        wanted: What to choose; settings that the campaign varied, and the builder does not choose, go into the config.
        start: The run whose config it is made with. Its tactics are no longer drawn by lot.
    """
    made = TacticRecord.from_json(start.read_bytes(schema.Artifact.TACTICS))
    own = _settings_of(made)
    varied = tuple(pair for pair in wanted.settings if pair[0] not in own)
    replay = replace(
        wanted,
        settings=tuple(pair for pair in wanted.settings if pair[0] in own),
        choices=() if wanted.mechanism == "onnxruntime" else wanted.choices,
    )
    config: BuildConfig = BuildSpec.from_json(start.read_bytes(schema.Artifact.SPEC)).config
    config = replace(config, options=replace(config.options, tactic_seed=None))
    # Its timing cache holds what the run chose. A selector is offered nothing else of it: other choices have to be timed anew.
    fits = wanted.mechanism != "algorithm_selector" or not wanted.differing_layers(made)
    replayed = start.info.id if fits else ""
    return Order(build=with_varied(config, varied), replay=replay, replayed_run=replayed, varied=varied)


def _tactics_of(run: StoredRun) -> TacticRecord:
    record = load_record(run)
    if record is None:
        raise errors.ConfigError(
            f"Run {run.info.id} holds no tactics: its build failed, or was made without recording them. Name one that does."
        )
    return record


def _settings_of(record: TacticRecord) -> dict[str, str]:
    return dict(record.settings)


def _are_replayable(*choices: TacticChoice) -> bool:
    return all(choice.replayable for choice in choices)


def _choices_by_name(record: TacticRecord) -> dict[tuple[str, str], Sequence[object]]:
    """What layers and settings got, comparable between builds."""
    layers: Iterable[tuple[tuple[str, str], Sequence[object]]] = (
        (("layer", c.layer), (c.tactic, c.implementation, c.tactic_id)) for c in record.choices
    )
    return dict(layers) | {("setting", name): (value,) for name, value in record.settings}
