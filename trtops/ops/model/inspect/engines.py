"""Two engines side by side: layers aligned by their ONNX nodes, and what was put between them, where they differ most first."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trtops import errors
from trtops.backend import trt
from trtops.backend.trt.describe.alignment import Alignment, EngineLayers, Inserted, LayerSide, Row, align, nodes_of
from trtops.backend.trt.describe.inspector import EngineDescription, LayerDescription, TensorDescription, parse_layers
from trtops.metadata import TensorMetadata
from trtops.ops.evaluation.feeds import DataConfig
from trtops.ops.model.inspect.models import ENGINE_SUFFIXES
from trtops.ops.result import OpResult, finish_with, op_run
from trtops.record import Record
from trtops.spec import Layer
from trtops.tables import size
from trtops.tracking import builds
from trtops.tracking.base import Tracker, Verdict

_SHOWN = 20
_NODES_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class InspectEnginesConfig(Record):
    """Which two engines, and what else is known of them.

    Attributes:
        a: The first engine: an ``.engine`` or ``.plan``, the engine inspector's JSON (of TensorRT, of trtexec's
            ``--exportLayerInfo``, or of ``trtops inspect model --json``), or the id of a run that holds a build.
        b: The second one, likewise.
        times_a: Times of the first engine's layers: what trtexec's ``--exportProfile`` wrote, or a JSON object of milliseconds
            by layer name.
        times_b: Those of the second one, likewise.
        profile: Time the layers here, which takes a GPU; of engines, and of runs that hold one.
        data: What they are timed with.
        shown: How many boundaries and rows a page has at most.
    """

    a: str
    b: str
    times_a: str | None = None
    times_b: str | None = None
    profile: bool = False
    data: DataConfig = field(default_factory=DataConfig)
    shown: int = _SHOWN


@dataclass(frozen=True, kw_only=True)
class EngineSummary(Record):
    """One engine in numbers.

    Attributes:
        source: Where it comes from, as it was given.
        layers: Its layers.
        inserted: Those of them that carry no ONNX node.
        ms: Time of all its layers, in milliseconds; None where it was not profiled.
        inserted_ms: Time of those that carry no node; None likewise.
        precisions: Layers by what they compute in, most first.
        aligned: The share of its layers, by time where it was profiled, that have a counterpart in the other engine.
        device_memory_bytes: Device memory of one execution context; None if that is not known.
        weights_bytes: Bytes of the weights that its layers list; None likewise.
    """

    source: str
    layers: int
    inserted: int
    ms: float | None
    inserted_ms: float | None
    precisions: tuple[tuple[str, int], ...]
    aligned: float
    device_memory_bytes: int | None = None
    weights_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class InspectEnginesResult(OpResult):
    """Two engines side by side.

    Attributes:
        a: The first one in numbers.
        b: The second one.
        alignment: Their layers and boundaries.
        shown: How many of either the page has at most.
    """

    title: str = "engines"
    a: EngineSummary
    b: EngineSummary
    alignment: Alignment
    shown: int = _SHOWN

    @property
    def verdict(self) -> Verdict:
        """Always ``good``: engines are compared, not evaluated."""
        return "good"

    @property
    def headline(self) -> str:
        """What the second engine takes more or less, or how many rows differ."""
        if self.a.ms and self.b.ms:
            return f"{self.b.ms:.3f} ms for {self.a.ms:.3f} ms, {self.b.inserted} layers inserted for {self.a.inserted}"
        different = sum(_differ(row) for row in self.alignment.rows)
        return f"{different} of {len(self.alignment.rows)} rows of layers differ"

    def body(self) -> Iterable[str]:
        """Both engines in numbers, boundaries, rows, and what has no counterpart."""
        yield from self._numbers()
        yield from self._boundaries()
        yield from self._rows()
        for name, missing in (("first", "b"), ("second", "a")):
            lonely = [row for row in self.alignment.rows if not getattr(row, missing).layers]
            if lonely:
                names = ", ".join(f"`{_nodes_text(row.nodes)}`" for row in lonely[: self.shown])
                yield from ("", f"Only in the {name} engine: {names}{_more(len(lonely), self.shown)}.")

    def _numbers(self) -> Iterable[str]:
        yield "| | first | second |"
        yield "|---|---|---|"
        yield f"| engine | `{self.a.source}` | `{self.b.source}` |"
        for name, of in _NUMBERS:
            yield f"| {name} | {of(self.a)} | {of(self.b)} |"

    def _boundaries(self) -> Iterable[str]:
        found = self.alignment.boundaries
        yield from ("", "## Boundaries, where the engines differ most first", "")
        if not found:
            yield "Neither engine has a layer that carries no ONNX node."
            return
        yield "| between | first | ms | second | ms |"
        yield "|---|---|---|---|---|"
        for each in found[: self.shown]:
            between = f"{_nodes_text(each.before) or 'input'} → {_nodes_text(each.after) or 'output'}"
            yield f"| `{between}` | {_inserted_text(each.a)} | {_ms(each.a.ms)} | {_inserted_text(each.b)} | {_ms(each.b.ms)} |"
        if len(found) > self.shown:
            yield from ("", f"And {len(found) - self.shown} more.")

    def _rows(self) -> Iterable[str]:
        found = [row for row in self.alignment.rows if row.aligned and (_differ(row) or row.change_ms is not None)]
        yield from ("", "## Layers", "")
        if not found:
            yield "All layers that both have got the same kernels, precisions and formats."
            return
        yield "| ONNX nodes | layers | precision | kernel | reads | writes | ms | change |"
        yield "|---|---|---|---|---|---|---|---|"
        for row in found[: self.shown]:
            change = "-" if row.change_ms is None else f"{row.change_ms:+.4f}"
            cells = (f"`{_nodes_text(row.nodes)}`", *(_both(row, say) for say in _CELLS), change)
            yield f"| {' | '.join(cells)} |"
        if len(found) > self.shown:
            yield from ("", f"And {len(found) - self.shown} more.")


def _nodes_text(nodes: tuple[str, ...]) -> str:
    shown = " + ".join(nodes[:_NODES_SHOWN]).replace("|", "\\|")
    return shown + (f" + {len(nodes) - _NODES_SHOWN} more" if len(nodes) > _NODES_SHOWN else "")


def _more(count: int, shown: int) -> str:
    return f" and {count - shown} more" if count > shown else ""


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _bytes_text(value: int | None) -> str:
    return "-" if value is None else size(value)


_NUMBERS: tuple[tuple[str, Any], ...] = (
    ("layers", lambda s: str(s.layers)),
    ("layers that carry no ONNX node", lambda s: str(s.inserted)),
    ("computing in", lambda s: ", ".join(f"{count} {name or '?'}" for name, count in s.precisions)),
    ("time of all layers, ms", lambda s: _ms(s.ms)),
    ("time of those without a node, ms", lambda s: _ms(s.inserted_ms)),
    ("with a counterpart", lambda s: f"{s.aligned:.1%} of the {'time' if s.ms is not None else 'layers'}"),
    ("device memory", lambda s: _bytes_text(s.device_memory_bytes)),
    ("weights", lambda s: _bytes_text(s.weights_bytes)),
)


def _inserted_text(found: Inserted) -> str:
    if not found.layers:
        return "-"
    said = "; ".join(dict.fromkeys(found.conversions)) or ", ".join(found.layers[:_NODES_SHOWN])
    return f"{len(found.layers)}: {said}" + (f" ({size(found.bytes)})" if found.bytes else "")


def _both(row: Row, say: Callable[[LayerSide], str]) -> str:
    """What both engines say of a row, once where they say the same."""
    one, other = say(row.a) or "-", say(row.b) or "-"
    return (one if one == other else f"{one} → {other}").replace("|", "\\|")


def _layer_count(side: LayerSide) -> str:
    return str(len(side.layers))


def _precisions(side: LayerSide) -> str:
    return ", ".join(side.precisions)


def _kernel(side: LayerSide) -> str:
    shown = [f"`{tactic}`" for tactic in side.tactics[:1]]
    return " ".join(shown) + (f" and {len(side.tactics) - 1} more" if len(side.tactics) > 1 else "")


_CELLS: tuple[Callable[[LayerSide], str], ...] = (
    _layer_count,
    _precisions,
    _kernel,
    lambda side: side.reads,
    lambda side: side.writes,
    lambda side: _ms(side.ms),
)


def _differ(row: Row) -> bool:
    def told(side: LayerSide) -> tuple[object, ...]:
        return (side.ops, side.tactics, side.precisions, side.reads, side.writes)

    return not row.aligned or told(row.a) != told(row.b)


@dataclass(frozen=True)
class _Side:
    """One engine as it was read."""

    source: str
    layers: EngineLayers
    device_memory_bytes: int | None = None
    weights_bytes: int | None = None


def inspect_engines(
    config: InspectEnginesConfig,
    *,
    tracker: Tracker | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
) -> InspectEnginesResult:
    """Put two engines side by side.

    Args:
        config: Which.
        tracker: The memory, for engines of runs, and to remember the result.
        experiment: Experiment to log to; None keeps nothing.
        tags: Further tags of the run.

    Raises:
        ConfigError: If one of them is neither a file nor a run.
        FormatError: If a file is no inspector's JSON.
        EngineLoadError: If an engine does not load here.
        BackendUnavailableError: If TensorRT is needed and not installed.
    """
    name = f"engines {Path(config.a).name} and {Path(config.b).name}"
    kept = None if experiment is None else tracker
    with op_run(kept, experiment or "", name, kind="engine_diff", tags=tags) as run:
        sides = (
            _read_side(config.a, config.times_a, config, tracker),
            _read_side(config.b, config.times_b, config, tracker),
        )
        aligned = align(sides[0].layers, sides[1].layers)
        a, b = (_summary(side, aligned.share(which)) for side, which in zip(sides, "ab"))
        result = InspectEnginesResult(title=name, a=a, b=b, alignment=aligned, shown=config.shown)
        finish_with(run, result, kept, evaluated=False)
        return result.kept_in(run, experiment or "")


def _read_side(source: str, times: str | None, config: InspectEnginesConfig, tracker: Tracker | None) -> _Side:
    """An engine from wherever it is, with the times of its layers."""
    path = Path(source)
    if path.suffix in ENGINE_SUFFIXES:
        side = _of_engine(source, trt.EngineFromPath(str(path))(), config)
    elif path.suffix == ".json" or path.is_file():
        side = _of_json(source)
    elif tracker is None:
        raise errors.ConfigError(
            f"{source!r} is no engine and no JSON file of the engine inspector, and no store was given to look for such a run in."
        )
    else:
        side = _of_run(source, config, tracker)
    return side if times is None else replace(side, layers=replace(side.layers, times=read_layer_times(times)))


def _of_engine(source: str, engine: Any, config: InspectEnginesConfig) -> _Side:
    described = trt.describe_engine(engine)
    times: Mapping[str, float] = {}
    if config.profile:
        feeds = config.data.open(TensorMetadata.of(described.inputs))
        times = trt.layer_times(engine, next(iter(feeds)))
    return _Side(source, EngineLayers(described.layers, times), described.device_memory_bytes, described.weights_bytes)


def _of_json(source: str) -> _Side:
    """What an inspector's JSON tells, or what :func:`inspect_model` wrote of an engine."""
    try:
        text = Path(source).read_bytes().decode("utf-8", "replace")
    except OSError as exc:
        raise errors.ConfigError(
            f"{source} cannot be read: {exc.strerror}. Expected the engine inspector's JSON."
        ) from exc
    layers = parse_layers(text)
    if layers:
        return _Side(source, EngineLayers(layers))
    try:
        described = EngineDescription.from_json(text)
    except errors.TrtopsError:
        raise errors.FormatError(
            f"{source} lists no layers; expected the engine inspector's JSON, as trtexec's --exportLayerInfo writes it."
        ) from None
    return _Side(source, EngineLayers(described.layers), described.device_memory_bytes, described.weights_bytes)


def _of_run(source: str, config: InspectEnginesConfig, tracker: Tracker) -> _Side:
    """The engine of a run where it loads here, or else the layers that its build told."""
    run_id = tracker.whole_id(source)
    stored = builds.holder_of_engine(tracker, tracker.info(run_id))
    build = builds.load_build(stored)
    if build.engine.backend == "tensorrt" and build.engine.plan:
        try:
            return _of_engine(source, trt.engine_from_bytes(build.engine.plan), config)
        except errors.BackendError:
            if config.profile:
                raise
    return _Side(source, EngineLayers(tuple(_described(layer) for layer in build.layers)))


def _described(layer: Layer) -> LayerDescription:
    """A layer as builds are remembered: without formats."""
    tactic, _, value = layer.tactic.partition("#")
    return LayerDescription(
        name=layer.name,
        op=layer.op,
        tactic=tactic.strip(),
        tactic_value=value,
        precision=layer.precision,
        inputs=tuple(TensorDescription(name=name) for name in layer.inputs),
        outputs=tuple(TensorDescription(name=name) for name in layer.outputs),
        onnx_nodes=layer.onnx_nodes,
    )


def read_layer_times(path: str | Path) -> dict[str, float]:
    """Milliseconds by layer name from a file: trtexec's ``--exportProfile``, or a JSON object of numbers.

    Raises:
        ConfigError: If it cannot be read.
        FormatError: If it is neither.
    """
    try:
        content = json.loads(Path(path).read_bytes(), strict=False)
        if isinstance(content, dict):
            return {str(name): float(ms) for name, ms in content.items()}
        timed = [entry for entry in content if "name" in entry]
        return {str(entry["name"]): float(entry["averageMs"]) for entry in timed}
    except OSError as exc:
        raise errors.ConfigError(f"{path} cannot be read: {exc.strerror}. Expected times of layers.") from exc
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise errors.FormatError(
            f"{path} holds no times of layers ({exc!r}); expected what trtexec's --exportProfile writes, or milliseconds by name."
        ) from None


def _summary(side: _Side, aligned: float) -> EngineSummary:
    layers = side.layers.layers
    inserted = [layer for layer in layers if not nodes_of(layer)]
    counts: dict[str, int] = {}
    for layer in layers:
        if nodes_of(layer):
            counts[layer.precision] = counts.get(layer.precision, 0) + 1
    return EngineSummary(
        source=side.source,
        layers=len(layers),
        inserted=len(inserted),
        ms=side.layers.time_of(layers),
        inserted_ms=side.layers.time_of(inserted),
        precisions=tuple(sorted(counts.items(), key=lambda item: -item[1])),
        aligned=aligned,
        device_memory_bytes=side.device_memory_bytes,
        weights_bytes=side.weights_bytes,
    )
