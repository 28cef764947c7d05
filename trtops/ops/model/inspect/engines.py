"""Comparison of two engines: layers aligned by their ONNX nodes, and layers inserted between them."""

from __future__ import annotations

import json
from collections import Counter
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
from trtops.tables import size
from trtops.tracking import builds
from trtops.tracking.base import Tracker, Verdict

_SHOWN = 20
_NODES_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class InspectEnginesConfig(Record):
    """The two engines, and how their layers are timed.

    Attributes:
        a: The first engine: an ``.engine`` or ``.plan``, the engine inspector's JSON (of TensorRT, of trtexec's
            ``--exportLayerInfo``, or of ``trtops inspect model --json``), or the id of a run with a build.
        b: The second engine, likewise.
        times_a: Times of the first engine's layers: a file from trtexec's ``--exportProfile``, or a JSON object of
            milliseconds by layer name.
        times_b: Times of the second engine's layers, likewise.
        profile: Whether to time the layers here, which needs a GPU and engines, or runs that have them.
        data: Inputs for timing.
        shown: Maximum number of boundaries and rows on the page.
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
    """One engine in numbers; None where a number is unknown, or layers were not timed."""

    source: str
    layers: int
    inserted: int  # layers without ONNX nodes
    ms: float | None  # of all layers
    inserted_ms: float | None
    precisions: tuple[tuple[str, int], ...]  # number of layers by precision, largest first
    aligned: float  # share of layers (by time, if timed) with a counterpart in the other engine
    device_memory_bytes: int | None = None  # of one execution context
    weights_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class InspectEnginesResult(OpResult):
    """The comparison of two engines; the page has at most ``shown`` boundaries and rows."""

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
        """Both times, or the number of rows that differ."""
        if self.a.ms and self.b.ms:
            return f"{self.b.ms:.3f} ms for {self.a.ms:.3f} ms, {self.b.inserted} layers inserted for {self.a.inserted}"
        different = sum(_differ(row) for row in self.alignment.rows)
        return f"{different} of {len(self.alignment.rows)} rows of layers differ"

    def body(self) -> Iterable[str]:
        """Both engines in numbers, boundaries, rows, and rows without a counterpart."""
        yield from ("| | first | second |", "|---|---|---|", f"| engine | `{self.a.source}` | `{self.b.source}` |")
        for name, text in _NUMBERS:
            yield f"| {name} | {text(self.a)} | {text(self.b)} |"
        yield from ("", "## Boundaries, largest differences first", "")
        boundaries = self.alignment.boundaries
        if boundaries:
            yield from ("| between | first | ms | second | ms |", "|---|---|---|---|---|")
            for each in boundaries[: self.shown]:
                between = f"{_nodes_text(each.before) or 'input'} → {_nodes_text(each.after) or 'output'}"
                cells = (_inserted_text(each.a), _ms(each.a.ms), _inserted_text(each.b), _ms(each.b.ms))
                yield f"| `{between}` | {' | '.join(cells)} |"
            yield from self._more(len(boundaries))
        else:
            yield "Neither engine has a layer without ONNX nodes."
        yield from ("", "## Layers", "")
        rows = [row for row in self.alignment.rows if row.aligned and (_differ(row) or row.change_ms is not None)]
        if rows:
            yield "| ONNX nodes | layers | precision | kernel | reads | writes | ms | change |"
            yield "|---|---|---|---|---|---|---|---|"
            for row in rows[: self.shown]:
                change = "-" if row.change_ms is None else f"{row.change_ms:+.4f}"
                yield f"| `{_nodes_text(row.nodes)}` | {' | '.join([*_both(row), change])} |"
            yield from self._more(len(rows))
        else:
            yield "All layers that both engines have use the same kernels, precisions and formats."
        for name, missing in (("first", "b"), ("second", "a")):
            lonely = [row for row in self.alignment.rows if not getattr(row, missing).layers]
            if lonely:
                names = ", ".join(f"`{_nodes_text(row.nodes)}`" for row in lonely[: self.shown])
                more = f" and {len(lonely) - self.shown} more" if len(lonely) > self.shown else ""
                yield from ("", f"Only in the {name} engine: {names}{more}.")

    def _more(self, count: int) -> Iterable[str]:
        return ("", f"And {count - self.shown} more.") if count > self.shown else ()


def _nodes_text(nodes: tuple[str, ...]) -> str:
    shown = " + ".join(nodes[:_NODES_SHOWN]).replace("|", "\\|")
    return shown + (f" + {len(nodes) - _NODES_SHOWN} more" if len(nodes) > _NODES_SHOWN else "")


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _bytes(value: int | None) -> str:
    return "-" if value is None else size(value)


_NUMBERS: tuple[tuple[str, Callable[[EngineSummary], str]], ...] = (
    ("layers", lambda s: str(s.layers)),
    ("layers without ONNX nodes", lambda s: str(s.inserted)),
    ("precisions", lambda s: ", ".join(f"{count} {name or '?'}" for name, count in s.precisions)),
    ("time of all layers, ms", lambda s: _ms(s.ms)),
    ("time of layers without nodes, ms", lambda s: _ms(s.inserted_ms)),
    ("with a counterpart", lambda s: f"{s.aligned:.1%} of the {'time' if s.ms is not None else 'layers'}"),
    ("device memory", lambda s: _bytes(s.device_memory_bytes)),
    ("weights", lambda s: _bytes(s.weights_bytes)),
)


def _inserted_text(found: Inserted) -> str:
    if not found.layers:
        return "-"
    text = "; ".join(dict.fromkeys(found.conversions)) or ", ".join(found.layers[:_NODES_SHOWN])
    return f"{len(found.layers)}: {text}" + (f" ({size(found.bytes)})" if found.bytes else "")


def _both(row: Row) -> list[str]:
    """The cells of a row: the values of both engines, or one value if they are equal."""
    cells = []
    for one, other in zip(_cells(row.a), _cells(row.b)):
        one, other = one or "-", other or "-"
        cells.append((one if one == other else f"{one} → {other}").replace("|", "\\|"))
    return cells


def _cells(side: LayerSide) -> tuple[str, ...]:
    kernel = " ".join(f"`{tactic}`" for tactic in side.tactics[:1])
    if len(side.tactics) > 1:
        kernel += f" and {len(side.tactics) - 1} more"
    return (str(len(side.layers)), ", ".join(side.precisions), kernel, side.reads, side.writes, _ms(side.ms))


def _differ(row: Row) -> bool:
    a, b = ((s.ops, s.tactics, s.precisions, s.reads, s.writes) for s in (row.a, row.b))
    return not row.aligned or a != b


@dataclass(frozen=True)
class _Side:
    """One engine as it was read."""

    source: str
    layers: EngineLayers
    device_memory_bytes: int | None = None
    weights_bytes: int | None = None

    def summary(self, aligned: float) -> EngineSummary:
        layers = self.layers.layers
        inserted = [layer for layer in layers if not nodes_of(layer)]
        counts = Counter(layer.precision for layer in layers if nodes_of(layer))
        return EngineSummary(
            source=self.source,
            layers=len(layers),
            inserted=len(inserted),
            ms=self.layers.time_of(layers),
            inserted_ms=self.layers.time_of(inserted),
            precisions=tuple(counts.most_common()),
            aligned=aligned,
            device_memory_bytes=self.device_memory_bytes,
            weights_bytes=self.weights_bytes,
        )


def inspect_engines(
    config: InspectEnginesConfig,
    *,
    tracker: Tracker | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
) -> InspectEnginesResult:
    """Compare two engines, and log the result to an experiment if one is given.

    Raises:
        ConfigError: If an engine is neither a file nor a run.
        FormatError: If a file is not the engine inspector's JSON.
        EngineLoadError: If an engine cannot be loaded here.
    """
    name = f"engines {Path(config.a).name} and {Path(config.b).name}"
    kept = None if experiment is None else tracker
    with op_run(kept, experiment or "", name, kind="engine_diff", tags=tags) as run:
        sides = (
            _read_side(config.a, config.times_a, config, tracker),
            _read_side(config.b, config.times_b, config, tracker),
        )
        aligned = align(sides[0].layers, sides[1].layers)
        a, b = (side.summary(aligned.share(which)) for side, which in zip(sides, "ab"))
        result = InspectEnginesResult(title=name, a=a, b=b, alignment=aligned, shown=config.shown)
        finish_with(run, result, kept, evaluated=False)
        return result.kept_in(run, experiment or "")


def _read_side(source: str, times: str | None, config: InspectEnginesConfig, tracker: Tracker | None) -> _Side:
    """An engine from a file or run, with the times of its layers."""
    path = Path(source)
    if path.suffix in ENGINE_SUFFIXES:
        side = _from_engine(source, trt.EngineFromPath(str(path))(), config)
    elif path.suffix == ".json" or path.is_file():
        side = _from_json(source)
    elif tracker is None:
        raise errors.ConfigError(
            f"{source!r} is neither an engine nor a JSON file of the engine inspector, and there is no tracking store "
            "with such a run."
        )
    else:
        side = _from_run(source, config, tracker)
    return side if times is None else replace(side, layers=replace(side.layers, times=read_layer_times(times)))


def _from_engine(source: str, engine: Any, config: InspectEnginesConfig) -> _Side:
    described = trt.describe_engine(engine)
    times: Mapping[str, float] = {}
    if config.profile:
        feeds = config.data.open(TensorMetadata.of(described.inputs))
        times = trt.layer_times(engine, next(iter(feeds)))
    return _Side(source, EngineLayers(described.layers, times), described.device_memory_bytes, described.weights_bytes)


def _from_json(source: str) -> _Side:
    """An engine from the engine inspector's JSON, or from that of :func:`inspect_model`."""
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


def _from_run(source: str, config: InspectEnginesConfig, tracker: Tracker) -> _Side:
    """The engine of a run if it can be loaded here, otherwise the layers that its build recorded, without formats."""
    stored = builds.holder_of_engine(tracker, tracker.info(tracker.whole_id(source)))
    build = builds.load_build(stored)
    if build.engine.backend == "tensorrt" and build.engine.plan:
        try:
            return _from_engine(source, trt.engine_from_bytes(build.engine.plan), config)
        except errors.BackendError:
            if config.profile:
                raise
    layers = []
    for layer in build.layers:
        tactic, _, value = layer.tactic.partition("#")
        layers.append(
            LayerDescription(
                name=layer.name,
                op=layer.op,
                tactic=tactic.strip(),
                tactic_value=value,
                precision=layer.precision,
                inputs=tuple(TensorDescription(name=name) for name in layer.inputs),
                outputs=tuple(TensorDescription(name=name) for name in layer.outputs),
                onnx_nodes=layer.onnx_nodes,
            )
        )
    return _Side(source, EngineLayers(tuple(layers)))


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
            f"{path} has no times of layers ({exc!r}); expected a file of trtexec's --exportProfile, or milliseconds "
            "by layer name."
        ) from None
