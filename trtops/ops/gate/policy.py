"""What the gate lets pass: limits by what is measured, by output and by precision. Written by hand.

Policies are YAML::

latency: {ratio: 1.05, confidence: 0.99}
size: {ratio: 1.1}
memory: null                       # not evaluated
accuracy:
  widths: 2.5                      # against the accepted outputs, in noise widths
  widths_per_output: {boxes: 4}
  tolerances: {atol: 1.0e-4, rtol: 1.0e-4, per_output: {scores: {min_cosine: 0.999}}}
precisions:
  int8:                            # put over what stands above
    accuracy: {widths: 4, tolerances: {atol: .inf, rtol: .inf, min_cosine: 0.99}}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from trtops import errors
from trtops.comparator.report import Tolerances
from trtops.ops.engines.yaml_records import Document, read_yaml
from trtops.ops.gate.ratio import FEWEST_STARTS
from trtops.record import Record
from trtops.spec import Precision

OrTell: TypeAlias = Literal["refuse", "tell"]


def _check_bounds(record: object, **bounds: float) -> None:
    for name, least in bounds.items():
        value = getattr(record, name)
        if not value >= least:
            raise errors.ConfigError(f"{name} is {value}; expected {least:g} or more.")


@dataclass(frozen=True, kw_only=True)
class LatencyLimit(Record):
    """How much slower a candidate may be.

    Attributes:
        ratio: Largest allowed ratio of the candidate's latency to the accepted engine's.
        confidence: Probability with which an engine whose true ratio is the limit is neither accepted nor refused wrongly,
            over all looks together.
        rounds: Rounds between two looks at the numbers; each look is measured in fresh processes. Nothing is decided before the
            third.
        max_rounds: Rounds after which more measurement is asked for.
    """

    ratio: float = 1.05
    confidence: float = 0.99
    rounds: int = 6
    max_rounds: int = 96

    def __post_init__(self) -> None:
        _check_bounds(self, ratio=0.01, rounds=2, max_rounds=FEWEST_STARTS * self.rounds)
        if not 0.5 <= self.confidence < 1:
            raise errors.ConfigError(f"confidence is {self.confidence}; expected 0.5 or more, and less than 1.")


@dataclass(frozen=True, kw_only=True)
class SizeLimit(Record):
    """How much larger an engine may be; it must exceed both to be refused.

    Attributes:
        ratio: Largest allowed ratio to the accepted engine's size.
        slack_bytes: Growth that is always allowed.
    """

    ratio: float = 1.1
    slack_bytes: int = 1 << 16

    def __post_init__(self) -> None:
        _check_bounds(self, ratio=1, slack_bytes=0)


@dataclass(frozen=True, kw_only=True)
class MemoryLimit(Record):
    """How much more memory an engine may take to load and run; it must exceed both to be refused.

    Attributes:
        ratio: Largest allowed ratio to what the accepted engine takes, on the host and on the device each.
        slack_bytes: Growth that is always allowed.
    """

    ratio: float = 1.25
    slack_bytes: int = 32 << 20

    def __post_init__(self) -> None:
        _check_bounds(self, ratio=1, slack_bytes=0)


@dataclass(frozen=True, kw_only=True)
class BuildTimeLimit(Record):
    """How much longer a build may take; it must exceed both to be refused.

    Attributes:
        ratio: Largest allowed ratio to the accepted engine's build time.
        slack_seconds: Growth that is always allowed: machines are busy at times.
        builds: How often a candidate that took too long is built, the fastest of which counts.
    """

    ratio: float = 3.0
    slack_seconds: float = 10.0
    builds: int = 2

    def __post_init__(self) -> None:
        _check_bounds(self, ratio=1, slack_seconds=0, builds=1)


@dataclass(frozen=True, kw_only=True)
class AccuracyLimit(Record):
    """How exact a candidate must be. Noise widths are what :mod:`trtops.ops.gate.widths` measures.

    Attributes:
        tolerances: Of its outputs against the reference, by output and statistic; the precision's own default unless given.
        accepted: Of its outputs against those of the accepted engine, likewise; by noise widths alone unless given.
        widths: How many noise widths an output may be from the accepted one, and how many further from the reference; None
            does not evaluate by them.
        widths_per_output: The same for single outputs; None does not evaluate that output by them.
        top1_drop: How much of the accuracy on labelled data may be lost, as a fraction of all samples; None does not evaluate it.
        other_model: What to do about outputs that differ from the accepted ones where the models differ: a model that was
            trained again has other outputs.
    """

    tolerances: Tolerances | None = None
    accepted: Tolerances | None = None
    widths: float | None = 2.5
    widths_per_output: Mapping[str, float | None] = field(default_factory=dict)
    top1_drop: float | None = 0.005
    other_model: OrTell = "refuse"

    def widths_of(self, output: str) -> float | None:
        """The limit of one output; None if it is not evaluated by noise widths."""
        return self.widths_per_output.get(output, self.widths)


@dataclass(frozen=True, kw_only=True)
class LayerLimit(Record):
    """What may change inside.

    Attributes:
        precision_share: By how much the share of layers that compute in a precision may change, as a fraction of all layers
            whose precision is known.
        precision: What to do about a larger change.
        tactics: What to do about layers whose tactic changed. Builds differ in them, so they are usually told only.
    """

    precision_share: float = 0.1
    precision: OrTell = "refuse"
    tactics: OrTell = "tell"

    def __post_init__(self) -> None:
        _check_bounds(self, precision_share=0)


@dataclass(frozen=True, kw_only=True)
class Limits(Record):
    """What passes; a part that is None is measured and not evaluated.

    Attributes:
        latency: Of the median of an inference.
        size: Of the engine in bytes.
        memory: Of loading and running it.
        build_time: Of the build.
        accuracy: Of the outputs.
        layers: Of what is inside.
    """

    latency: LatencyLimit | None = field(default_factory=LatencyLimit)
    size: SizeLimit | None = field(default_factory=SizeLimit)
    memory: MemoryLimit | None = field(default_factory=MemoryLimit)
    build_time: BuildTimeLimit | None = field(default_factory=BuildTimeLimit)
    accuracy: AccuracyLimit | None = field(default_factory=AccuracyLimit)
    layers: LayerLimit | None = field(default_factory=LayerLimit)


@dataclass(frozen=True, kw_only=True)
class Policy(Record):
    """What the gate lets pass.

    Attributes:
        limits: For all precisions that have none of their own.
        precisions: Whole limits of single precisions.
        first: What becomes of a candidate that is good against the reference where nothing was accepted before.
    """

    limits: Limits = field(default_factory=Limits)
    precisions: Mapping[Precision, Limits] = field(default_factory=dict)
    first: Literal["accept", "refuse"] = "accept"

    def of(self, precision: Precision) -> Limits:
        """The limits for engines of a precision."""
        return self.precisions.get(precision, self.limits)


def policy_of(tolerances: Tolerances | None) -> Policy:
    """The usual policy, with these tolerances against the reference for all precisions."""
    return Policy(limits=Limits(accuracy=AccuracyLimit(tolerances=tolerances)))


def read_policy(path: str | Path) -> Policy:
    """Read a policy file.

    Raises:
        FormatError: With all that is wrong in it, each with its line.
    """
    document = read_yaml(path)
    data = {} if document.data is None else document.data
    if not isinstance(data, dict):
        document.complain((), "expected limits, such as `latency: {ratio: 1.05}`.")
        document.raise_problems()
    common = {key: value for key, value in data.items() if key not in ("precisions", "first")}
    limits = document.record(Limits, (), common)
    precisions = _read_precisions(document, data.get("precisions"), common if limits is not None else {})
    first = data.get("first", "accept")
    if first not in ("accept", "refuse"):
        document.complain(("first",), f"first: expected accept or refuse (found {first!r:.60})")
    document.raise_problems()
    return Policy(limits=limits or Limits(), precisions=precisions, first=first)


def _read_precisions(document: Document, found: Any, common: dict[str, Any]) -> dict[Precision, Limits]:
    """Each precision's own limits put over those of all."""
    if found is None:
        return {}
    if not isinstance(found, dict):
        document.complain(("precisions",), "precisions: expected limits by precision, such as `int8: {size: null}`.")
        return {}
    read: dict[Precision, Limits] = {}
    for name, own in found.items():
        place = ("precisions", name)
        if name not in get_args(Precision):
            document.complain(place, f"unknown precision {name!r}. {errors.near(str(name), get_args(Precision))}")
        elif not isinstance(own, dict):
            document.complain(place, f"{name}: expected limits, such as `size: null`.")
        elif (limits := document.record(Limits, place, _merged_mappings(common, own))) is not None:
            read[name] = limits
    return read


def _merged_mappings(below: Any, above: Any) -> Any:
    """A mapping over another one, part by part; anything else takes the place of what is below it."""
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    return {**below, **{key: _merged_mappings(below.get(key), value) for key, value in above.items()}}
