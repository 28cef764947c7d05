"""The tactic record: the choices of a builder, layer by layer, and their replayability.

One format for every back end: ``backend/onnxrt`` and ``backend/trt`` write it and replay it. Polygraphy's replay files
are read as records too.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias

from trtops import errors
from trtops.record import JSONValue, Record
from trtops.spec import Environment

Column: TypeAlias = tuple[Literal["layer", "setting"], str]
"""A layer, or a setting of the whole engine, by its name."""

_MAX_LABEL = 3  # settings in a name

Mechanism = Literal["onnxruntime", "algorithm_selector", "editable_timing_cache", "inspector"]


@dataclass(frozen=True, kw_only=True)
class TensorFormat(Record):
    """Memory layout of one tensor of a layer; the element type as the back end spells it.

    Strides are empty if not reported. ``vectorized_dim`` is split into vectors of ``components_per_element``.
    """

    dtype: str
    strides: tuple[int, ...] = ()
    vectorized_dim: int | None = None
    components_per_element: int | None = None


@dataclass(frozen=True, kw_only=True)
class TacticOption(Record):
    """A tactic available to a layer, with its formats."""

    tactic: str  # spelled so that equal tactics have equal texts in every build
    op: str = ""  # the layer's type
    implementation: int | None = None  # TensorRT's implementation number, where there is one
    tactic_id: int | None = None  # TensorRT's tactic number (may be negative, 64 bit), where there is one
    inputs: tuple[TensorFormat, ...] = ()  # formats of the inputs
    outputs: tuple[TensorFormat, ...] = ()  # formats of the outputs

    @property
    def kernel(self) -> str:
        """The kernel's name, without the number that may follow it: ``name #0x12ab``."""
        return self.tactic.rpartition(" #")[0] or self.tactic


@dataclass(frozen=True, kw_only=True)
class TacticChoice(TacticOption):
    """The tactic of one layer."""

    layer: str  # the layer's name; for ONNX Runtime the name of its first output tensor, since fused nodes lose theirs
    replayable: bool = True  # whether the back end can be made to choose the same again
    key: str | None = None  # the timing cache's key for it, where the mechanism is ``editable_timing_cache``

    @property
    def identity(self) -> tuple[JSONValue, ...]:
        """What choices of one layer must have in common to be the same; formats are in the tactic's text."""
        return (self.layer, self.tactic, self.implementation, self.tactic_id)

    @property
    def option(self) -> TacticOption:
        """The tactic without its layer."""
        return TacticOption(**{option.name: getattr(self, option.name) for option in fields(TacticOption)})


@dataclass(frozen=True, kw_only=True)
class TacticRecord(Record):
    """All choices of one build."""

    mechanism: Mechanism  # how the choices were read, and so how they can be replayed
    backend_version: str
    device_sha256: str  # kind of device it chose for (:attr:`trtops.spec.Environment.device_sha256`)
    settings: tuple[tuple[str, str], ...] = ()  # choices for the whole engine, as ``(name, value)`` sorted by name
    choices: tuple[TacticChoice, ...] = ()  # one entry per layer, in the engine's order

    def is_of(self, environment: Environment) -> bool:
        """Whether the record is of this release, on this kind of device."""
        platform = (environment.backend_version, environment.device_sha256)
        return (self.backend_version, self.device_sha256) == platform

    def require_of(self, environment: Environment) -> None:
        """Raise TacticMismatchError if the record is of another release or kind of device."""
        if not self.is_of(environment):
            raise errors.TacticMismatchError(
                f"The tactic record is of {environment.backend} {self.backend_version} on a device "
                f"{self.device_sha256[:8]}; this is {environment.backend_version} on {environment.device_sha256[:8]} "
                f"({environment.device}), where kernels differ. Record tactics here, or set carry_over."
            )

    @property
    def by_layer(self) -> dict[str, TacticChoice]:
        """The choices by their layers; of several layers with one name, the last."""
        return {choice.layer: choice for choice in self.choices}

    @property
    def coverage(self) -> float:
        """Layers with a replayable choice, as a fraction of all layers; 1.0 for an engine without layers."""
        return sum(choice.replayable for choice in self.choices) / len(self.choices) if self.choices else 1.0

    @property
    def label(self) -> str:
        """What tells a build from others, for its name: a few settings, ``-`` for off, or a digest of all choices."""
        signs = {"on": "+", "off": "-"}  # first, since tables cut names
        settings = [
            f"{signs[value]}{name}" if value in signs else f"{name}={value}"
            for name, value in self.settings
            if not name.startswith("entry ")
        ]
        return ", ".join(settings) if 0 < len(settings) <= _MAX_LABEL else f"tactics {self.digest[:8]}"

    def differing_layers(self, other: "TacticRecord") -> tuple[str, ...]:
        """Names of layers with different choices, or in one record only; in this record's order."""
        mine, theirs = self.by_layer, other.by_layer
        names = dict.fromkeys([*mine, *theirs])
        return tuple(n for n in names if n not in mine or n not in theirs or mine[n].identity != theirs[n].identity)

    def deciding(self) -> JSONValue:
        """The choices and settings; not how they were read."""
        return [[list(pair) for pair in sorted(self.settings)], [list(choice.identity) for choice in self.choices]]


def carried_over(record: TacticRecord, build: TacticRecord) -> str:
    """Describe how a build on another release or device repeated a record's choices, in a line.

    Choices are compared by layer, op and kernel, since hashes and keys of TensorRT's timing cache change.
    """

    def kernels(choices: Sequence[TacticChoice]) -> dict[str, tuple[str, str]]:
        return {choice.layer: (choice.op, choice.kernel) for choice in choices if choice.replayable}

    recorded_kernels, built_kernels = kernels(record.choices), kernels(build.choices)
    changes, changed_layers = [], set()
    before, after = dict(record.settings), dict(build.settings)
    for name in {**before, **after}:
        if not name.startswith("entry ") and before.get(name) != after.get(name):
            changes.append(f"{name} ({before.get(name) or 'none'} became {after.get(name) or 'none'})")
    for name in {**recorded_kernels, **built_kernels}:
        recorded, built = recorded_kernels.get(name, ("", "")), built_kernels.get(name, ("", ""))
        if recorded != built:
            changes.append(f"{name} ({recorded[1] or 'none'} became {built[1] or 'none'})")
            changed_layers.add(name)
    carried = len(recorded_kernels.keys() - changed_layers)
    return (
        f"Of {len(recorded_kernels)} choices recorded by {record.backend_version} on {record.device_sha256[:8]}, "
        f"{carried} were carried over; changed: {', '.join(changes) or 'none'}"
    )


def read_record(path: str | Path) -> TacticRecord:
    """Read one tactic record: ours, or a replay file of Polygraphy's. FormatError if it is neither."""
    try:
        data = json.loads(Path(path).read_bytes())
    except (OSError, ValueError, RecursionError) as exc:
        raise errors.FormatError(f"{path}: not a tactic record: not JSON ({exc}).") from None
    if not isinstance(data, dict) or not {"replay", "mechanism"} & data.keys():
        raise errors.FormatError(f"{path}: not a tactic record: expected a JSON object with 'replay' or 'mechanism'.")
    try:
        if "replay" not in data:
            return TacticRecord.from_dict(data)
        choices = tuple(_replayed_choice(layer, algorithm) for layer, algorithm in data["replay"].items())
    except (errors.FormatError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise errors.FormatError(f"{path}: a damaged tactic record: {exc!r}.") from None
    return TacticRecord(mechanism="algorithm_selector", backend_version="", device_sha256="", choices=choices)


def _replayed_choice(layer: str, algorithm: Mapping[str, Any]) -> TacticChoice:
    implementation, tactic = int(algorithm["implementation"]), int(algorithm["tactic"])

    def formats(key: str) -> tuple[TensorFormat, ...]:
        return tuple(
            _tensor_format(i["dtype"], i.get("vectorized_dim"), i.get("components_per_element"), *i["strides"])
            for i in algorithm[key]
        )

    return TacticChoice(
        layer=layer,
        tactic=f"implementation {implementation}, tactic {tactic}",
        implementation=implementation,
        tactic_id=tactic,
        inputs=formats("inputs"),
        outputs=formats("outputs"),
    )


# A campaign's files repeat a few hundred formats a hundred thousand times.
@functools.lru_cache(maxsize=4096)
def _tensor_format(dtype: Any, dim: Any, components: Any, *strides: Any) -> TensorFormat:
    return TensorFormat(
        dtype=str(dtype),
        strides=tuple(map(int, strides)),
        vectorized_dim=None if dim is None else int(dim),
        components_per_element=None if components is None else int(components),
    )


def algorithm_text(choice: TacticOption) -> str:
    """A tactic as Polygraphy prints algorithms, if TensorRT has numbers for it; else in words."""
    if choice.implementation is None or choice.tactic_id is None:
        return choice.tactic
    numbers = f"(Implementation: {choice.implementation}, Tactic: {choice.tactic_id})"
    return f"{numbers} | Inputs: {_tensor_infos(choice.inputs)} | Outputs: {_tensor_infos(choice.outputs)}"


def _tensor_infos(formats: Sequence[TensorFormat]) -> str:
    texts = [f"TensorInfo({f.dtype}, {f.strides}, {f.vectorized_dim}, {f.components_per_element})" for f in formats]
    return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"
