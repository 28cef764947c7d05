"""Records TensorRT's tactics and replays them, on releases with algorithm selectors.

Files have Polygraphy's format; :func:`to_record` and :func:`from_record` convert to trtops' own record, which also has
the layers whose tactics cannot be replayed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, ClassVar

from trtops import errors
from trtops.backend.trt import library
from trtops.backend.trt.lines import Feature
from trtops.json import Decoder, Encoder, add_json_methods
from trtops.spec import Layer
from trtops.tactics.denied import DenyList
from trtops.tactics.record import TacticChoice, TacticRecord, TensorFormat


# Files hold names, since TensorRT's enums cannot be made without TensorRT; scripts compare with ``trt.float32``.
class TypeName(str):
    """The name of a TensorRT data type, ``DataType.FLOAT``; also equal to the type itself."""

    @property
    def name(self) -> str:
        """The member's name, as of the type itself."""
        return self.removeprefix("DataType.")

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other if isinstance(other, str) else str(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


@dataclass(frozen=True)
class TensorInfo:
    """Memory layout of one tensor for a tactic."""

    dtype: str  # TensorRT's data type, spelled ``DataType.FLOAT`` (:class:`TypeName`)
    strides: tuple[int, ...]  # strides in elements
    vectorized_dim: int | None = None  # the dimension that is split into vectors, or -1 or None
    components_per_element: int | None = None  # length of those vectors

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", TypeName(self.dtype))
        object.__setattr__(self, "strides", tuple(self.strides))

    @classmethod
    def from_trt(cls, io_info: Any) -> TensorInfo:
        """From a ``trt.IAlgorithmIOInfo``."""
        library.line().require(Feature.ALGORITHM_SELECTOR)
        return cls(
            str(io_info.dtype), tuple(io_info.strides), int(io_info.vectorized_dim), int(io_info.components_per_element)
        )

    def __repr__(self) -> str:
        return f"TensorInfo({self.dtype}, {self.strides}, {self.vectorized_dim}, {self.components_per_element})"


@dataclass(frozen=True)
class Algorithm:
    """One tactic: a kernel and the formats of its inputs and outputs."""

    implementation: int  # TensorRT's number of the implementation
    tactic: int  # TensorRT's number of the tactic in it; 64 bits, may be negative
    inputs: tuple[TensorInfo, ...]  # formats of the inputs
    outputs: tuple[TensorInfo, ...]  # formats of the outputs

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", tuple(self.inputs))
        object.__setattr__(self, "outputs", tuple(self.outputs))

    @classmethod
    def from_trt(cls, context: Any, algorithm: Any) -> Algorithm:
        """From a ``trt.IAlgorithm`` and its ``trt.IAlgorithmContext``."""
        library.line().require(Feature.ALGORITHM_SELECTOR)
        infos = [
            TensorInfo.from_trt(algorithm.get_algorithm_io_info(index))
            for index in range(context.num_inputs + context.num_outputs)
        ]
        variant = algorithm.algorithm_variant
        return cls(
            int(variant.implementation),
            int(variant.tactic),
            tuple(infos[: context.num_inputs]),
            tuple(infos[context.num_inputs :]),
        )

    def __str__(self) -> str:
        numbers = f"(Implementation: {self.implementation}, Tactic: {self.tactic})"
        return f"{numbers} | Inputs: {self.inputs} | Outputs: {self.outputs}"


@add_json_methods("tactic replay")
class TacticReplayData(dict[str, Algorithm]):
    """Algorithms by layer name, in the builder's order; its file has Polygraphy's format."""

    to_json: Callable[[TacticReplayData], str]
    from_json: ClassVar[Callable[[str], TacticReplayData]]
    save: Callable[..., None]
    load: ClassVar[Callable[[Any], TacticReplayData]]

    def add(self, name: str, algorithm: Algorithm) -> TacticReplayData:
        """Set a layer's algorithm and return the data itself."""
        self[name] = algorithm
        return self

    def __str__(self) -> str:
        return "\n".join(f"Layer: {name}\n    Algorithm: {algorithm}" for name, algorithm in self.items())


Encoder.register(TensorInfo)(lambda info: {**vars(info), "dtype": str(info.dtype)})


@Decoder.register(TensorInfo)
def _decode_info(content: dict[str, Any]) -> TensorInfo:
    return TensorInfo(
        str(content["dtype"]),
        tuple(map(int, content["strides"])),
        content.get("vectorized_dim"),
        content.get("components_per_element"),
    )


Encoder.register(Algorithm)(lambda algorithm: dict(vars(algorithm)))


@Decoder.register(Algorithm)
def _decode_algorithm(content: dict[str, Any]) -> Algorithm:
    for info in (*content["inputs"], *content["outputs"]):
        if not isinstance(info, TensorInfo):
            raise TypeError(f"{info!r:.80} is not a TensorInfo")
    return Algorithm(int(content["implementation"]), int(content["tactic"]), content["inputs"], content["outputs"])


Encoder.register(TacticReplayData)(lambda replay: {"replay": dict(replay)})


@Decoder.register(TacticReplayData)
def _decode_replay(content: dict[str, Any]) -> TacticReplayData:
    for name, algorithm in content["replay"].items():
        if not isinstance(algorithm, Algorithm):
            raise TypeError(f"{name!r:.80} has no Algorithm")
    return TacticReplayData(content["replay"])


@dataclass
class Restriction:
    """Algorithms hidden from TensorRT by a :class:`TacticRecorder`."""

    # Why a layer must not get an algorithm, by both.
    denied: Mapping[tuple[str, Algorithm], str] = field(default_factory=dict)
    seed: int | None = None  # offer a random half of a layer's algorithms; None offers all
    notes: list[str] = field(default_factory=list)  # a sentence per restricted layer; filled during the build
    left_out: list[str] = field(default_factory=list)  # why algorithms that TensorRT offered were hidden

    def __call__(self, layer: str, offered: list[Algorithm]) -> list[int]:
        """Positions of the algorithms allowed for a layer; all of them if all are denied."""
        allowed = [i for i, algorithm in enumerate(offered) if (layer, algorithm) not in self.denied]
        if not allowed:
            self.notes.append(f"{layer}: all {len(offered)} tactics are on the deny-list, so one of them was used")
            allowed = list(range(len(offered)))
        elif len(allowed) < len(offered):
            self.notes.append(f"{layer}: {len(offered) - len(allowed)} of {len(offered)} tactics are on the deny-list")
            for algorithm in offered:
                if (reason := self.denied.get((layer, algorithm))) is not None:
                    self.left_out.append(reason)
        if self.seed is None:
            return allowed
        # The layer's name is in the seed, so the offer does not depend on the order of layers.
        draw = random.Random(f"{self.seed} {layer} {len(offered)}")
        return sorted(draw.sample(allowed, (len(allowed) + 1) // 2))


def restriction_for(denied: DenyList, seed: int | None) -> Restriction:
    """The restriction for a seed and a deny-list with entries of this device and release."""
    reasons: dict[tuple[str, Algorithm], str] = {}
    for entry in denied.entries:
        for choice in entry.choices:
            if (algorithm := _algorithm_of(choice)) is not None:
                reasons[choice.layer, algorithm] = entry.reason(f"{choice.tactic} of {choice.layer}")
    return Restriction(reasons, seed)


def preferring(record: TacticRecord, restriction: Restriction) -> Callable[[str, list[Algorithm]], list[int]]:
    """Offer a record's algorithm for each layer if allowed, and a restriction's algorithms for the others."""
    recorded = from_record(record)

    def restrict(layer: str, offered: list[Algorithm]) -> list[int]:
        allowed = restriction(layer, offered)
        return [i for i in allowed if offered[i] == recorded.get(layer)] or allowed

    return restrict


def TacticRecorder(
    record: str | os.PathLike[str] | IO[Any] | TacticReplayData,
    restriction: Callable[[str, list[Algorithm]], list[int]] | None = None,
) -> Any:
    """Create an algorithm selector to record TensorRT's tactics in a file or a :class:`TacticReplayData`.

    ``restriction`` returns the positions of the algorithms that a layer may get, such as a :class:`Restriction`.

    Raises UnsupportedFeatureError if this release has no algorithm selectors.
    """
    library.line().require(Feature.ALGORITHM_SELECTOR)
    base: Any = library.load().IAlgorithmSelector
    path = None if isinstance(record, TacticReplayData) else record
    data = record if isinstance(record, TacticReplayData) else TacticReplayData()

    class Recorder(base):  # type: ignore[misc]
        """Called from C++."""

        def __init__(self) -> None:
            base.__init__(self)
            self.data = data

        def select_algorithms(self, context: Any, choices: list[Any]) -> list[int]:
            if restriction is None:
                return list(range(len(choices)))
            return restriction(context.name, [Algorithm.from_trt(context, choice) for choice in choices])

        def report_algorithms(self, contexts: list[Any], choices: list[Any]) -> None:
            for context, choice in zip(contexts, choices):
                data.add(context.name, Algorithm.from_trt(context, choice))
            # The last call of a build: TensorRT reports all layers at once.
            if path is not None:
                data.save(path)

    return Recorder()


def TacticReplayer(replay: str | os.PathLike[str] | IO[Any] | TacticReplayData) -> Any:
    """Create an algorithm selector to make TensorRT choose recorded tactics.

    TensorRT chooses freely for layers that are not in the replay, and for the reformat layers that it inserts. Layers
    where the replay could not be followed are in the selector's ``mismatches``; :func:`check_followed` raises them.

    Raises UnsupportedFeatureError if this release has no algorithm selectors; FormatError if the file is not a replay.
    """
    library.line().require(Feature.ALGORITHM_SELECTOR)
    base: Any = library.load().IAlgorithmSelector
    data = replay if isinstance(replay, TacticReplayData) else TacticReplayData.load(replay)

    class Replayer(base):  # type: ignore[misc]
        """Called from C++."""

        def __init__(self) -> None:
            base.__init__(self)
            self.data = data
            self.chosen = TacticReplayData()
            self.mismatches: dict[str, str] = {}

        def select_algorithms(self, context: Any, choices: list[Any]) -> list[int]:
            # TensorRT does not call this for the layers "Reformatting CopyNode" that it inserts.
            recorded = data.get(context.name)
            if recorded is None:
                return list(range(len(choices)))
            offered = [Algorithm.from_trt(context, choice) for choice in choices]
            if recorded in offered:
                return [offered.index(recorded)]
            # An exception cannot pass C++, so the mismatch is stored and the build continues.
            self.mismatches[context.name] = f"not among the {len(offered)} tactics that TensorRT offers"
            return list(range(len(choices)))

        def report_algorithms(self, contexts: list[Any], choices: list[Any]) -> None:
            for context, choice in zip(contexts, choices):
                chosen = Algorithm.from_trt(context, choice)
                self.chosen.add(context.name, chosen)
                recorded = data.get(context.name)
                if recorded is not None and recorded != chosen:
                    self.mismatches.setdefault(context.name, f"TensorRT chose {chosen} instead of {recorded}")

    return Replayer()


def check_followed(selector: Any) -> None:
    """Raise TacticMismatchError if a :func:`TacticReplayer` was not followed in a build; other selectors pass."""
    mismatches = getattr(selector, "mismatches", None)
    if mismatches is None:
        return
    # A failed build reports no choices at all, so missing layers mean nothing then.
    gone = {name: "no such layer in this build" for name in selector.data if name not in selector.chosen}
    mismatched = {**mismatches, **gone} if selector.chosen else mismatches
    if mismatched:
        raise_mismatch(mismatched, len(selector.data))


def raise_mismatch(reasons: Mapping[str, str], count: int) -> None:
    """Raise :class:`~trtops.errors.TacticMismatchError` for layers with reasons, of ``count`` replayed layers."""
    shown = "".join(f"\n  {name}: {reason}" for name, reason in list(reasons.items())[:20])
    raise errors.TacticMismatchError(
        f"The replay was not followed in {len(reasons)} of {count} layers. Model, build config, device and release "
        f"must be those of the recorded build.{shown}{'' if len(reasons) <= 20 else chr(10) + '  ...'}",
        layers=tuple(reasons),
    )


def _formats_text(algorithm: Algorithm) -> str:
    def side(infos: tuple[TensorInfo, ...]) -> str:
        texts = []
        for i in infos:
            vector = f"/{i.components_per_element}@{i.vectorized_dim}" if (i.components_per_element or 1) > 1 else ""
            texts.append(f"{i.dtype.removeprefix('DataType.')}:{'x'.join(map(str, i.strides))}{vector}")
        return ", ".join(texts)

    return f"{side(algorithm.inputs)} -> {side(algorithm.outputs)}"


def to_record(
    replay: TacticReplayData, *, backend_version: str, device_sha256: str, layers: tuple[Layer, ...] = ()
) -> TacticRecord:
    """The record of a replay; layers chosen without the selector are in it as not replayable."""
    ops = {engine_layer.name: engine_layer.op for engine_layer in layers}
    choices = [
        TacticChoice(
            layer=name,
            op=ops.get(name, ""),
            tactic=f"{chosen.implementation:#x}:{chosen.tactic:#x} {_formats_text(chosen)}",
            implementation=chosen.implementation,
            tactic_id=chosen.tactic,
            inputs=_to_formats(chosen.inputs),
            outputs=_to_formats(chosen.outputs),
        )
        for name, chosen in replay.items()
    ]
    rest = (layer for layer in layers if layer.name not in replay)
    return TacticRecord(
        mechanism="algorithm_selector",
        backend_version=backend_version,
        device_sha256=device_sha256,
        choices=(*choices, *map(unreplayable, rest)),
    )


def unreplayable(layer: Layer) -> TacticChoice:
    """A layer's tactic from the inspector; it cannot be replayed."""
    return TacticChoice(layer=layer.name, op=layer.op, tactic=layer.tactic, replayable=False)


def from_record(record: TacticRecord) -> TacticReplayData:
    """The replay inside a record made by algorithm selectors; FormatError if it was made in another way."""
    if record.mechanism != "algorithm_selector":
        raise errors.FormatError(f"A record made by {record.mechanism!r} cannot be replayed by an algorithm selector.")
    replay = TacticReplayData()
    for choice in record.choices:
        if choice.replayable and (algorithm := _algorithm_of(choice)) is not None:
            replay[choice.layer] = algorithm
    return replay


def _algorithm_of(choice: TacticChoice) -> Algorithm | None:
    if choice.implementation is None or choice.tactic_id is None:
        return None
    inputs, outputs = (
        tuple(TensorInfo(f.dtype, f.strides, f.vectorized_dim, f.components_per_element) for f in side)
        for side in (choice.inputs, choice.outputs)
    )
    return Algorithm(choice.implementation, choice.tactic_id, inputs, outputs)


def _to_formats(infos: tuple[TensorInfo, ...]) -> tuple[TensorFormat, ...]:
    return tuple(TensorFormat(**{**vars(info), "dtype": str(info.dtype)}) for info in infos)
