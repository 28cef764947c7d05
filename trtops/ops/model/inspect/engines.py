"""Comparison of two engines: layers aligned by their ONNX nodes, and layers inserted between them."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from trtops import errors
from trtops.backend import trt
from trtops.backend.engines import backend_of_suffix, engine_backend
from trtops.backend.trt.describe.alignment import (
    Alignment,
    EngineLayers,
    Inserted,
    Row,
    align,
    losing_in_8_bits,
    nodes_of,
)
from trtops.backend.trt.describe.inspector import parse_layers
from trtops.metadata import TensorMetadata
from trtops.ops.arguments import checked_arguments
from trtops.ops.evaluation.data import DataConfig
from trtops.ops.result import OpResult, op_run
from trtops.record import Config, Record, setting
from trtops.tables import listed, markdown_table, size
from trtops.tracking import builds
from trtops.tracking.base import Tracker, Verdict, run_id_of

_NODES_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class InspectEnginesConfig(Config):
    """The two engines, and how their layers are timed.

    Attributes:
        a: The first engine: an ``.engine`` or ``.plan``, the engine inspector's JSON (trtexec's ``--exportLayerInfo``),
            or the id of a run with a build.
        b: The second engine, likewise.
        times_a: Times of the first engine's layers: a file from trtexec's ``--exportProfile``, or a JSON object of
            milliseconds by layer name.
        times_b: Times of the second engine's layers, likewise.
        profile: Whether to time the layers here on random data, which needs a GPU and engines, or runs that have them.
        shown: Maximum number of boundaries and rows on the page.
    """

    a: str = field(metadata={"file": "reads"})
    b: str = field(metadata={"file": "reads"})
    times_a: str | None = setting(None, file="reads")
    times_b: str | None = setting(None, file="reads")
    profile: bool = False
    shown: int = setting(20, least=1)


@dataclass(frozen=True, kw_only=True)
class EngineSummary(Record):
    """One engine in numbers; None for unknown ones, and for times of untimed layers."""

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

    is_named_by_outcome = True

    title: str = "engines"
    verdict: Verdict = "good"  # always: engines are compared, not evaluated
    a: EngineSummary
    b: EngineSummary
    alignment: Alignment
    losing: tuple[str, ...] = ()  # nodes in 8 bits in the second engine, and no faster than in the first, in more
    shown: int = 20

    @property
    def headline(self) -> str:
        """Both times, or the number of differing rows."""
        if self.a.ms and self.b.ms:
            return f"{self.b.ms:.3f} ms for {self.a.ms:.3f} ms, {self.b.inserted} layers inserted for {self.a.inserted}"
        different = sum(row.differs for row in self.alignment.rows)
        return f"{different} of {len(self.alignment.rows)} rows of layers differ"

    def body(self) -> Iterable[str]:
        """Both engines in numbers, boundaries, rows, and rows without a counterpart."""
        yield markdown_table(("", "first", "second"), zip(_NUMBERS, _numbers(self.a), _numbers(self.b)))
        if self.losing:
            yield from ("", f"8 bits do not speed up {listed(map('`{}`'.format, self.losing), self.shown)}.")
        yield from ("", "## Boundaries, largest differences first", "")
        boundaries = []
        for boundary in self.alignment.boundaries:
            between = f"`{_nodes_text(boundary.before) or 'input'} → {_nodes_text(boundary.after) or 'output'}`"
            a, b = boundary.a, boundary.b
            boundaries.append((between, _inserted_text(a), _ms(a.ms), _inserted_text(b), _ms(b.ms)))
        yield from self._table(
            ("between", "first", "ms", "second", "ms"),
            boundaries,
            "Neither engine has a layer without ONNX nodes.",
        )
        yield from ("", "## Layers", "")
        rows = []
        for row in self.alignment.rows:
            if row.aligned and (row.differs or row.change_ms is not None):
                change = "-" if row.change_ms is None else f"{row.change_ms:+.4f}"
                rows.append((f"`{_nodes_text(row.nodes)}`", *_cells(row), change))
        yield from self._table(
            ("ONNX nodes", "layers", "precision", "kernel", "reads", "writes", "ms", "change"),
            rows,
            "All layers that both engines have use the same kernels, precisions and formats.",
        )
        for name, missing in (("first", "b"), ("second", "a")):
            lonely = [row for row in self.alignment.rows if not getattr(row, missing).layers]
            if lonely:
                names = listed((f"`{_nodes_text(row.nodes)}`" for row in lonely), self.shown)
                yield from ("", f"Only in the {name} engine: {names}.")

    @property
    def needed(self) -> str:
        """The model, to build it in 8 bits without the nodes they do not speed up."""
        names = ", ".join(map(repr, self.losing))
        return f"the model, for a build with --int8 that keeps (--keep) {names}" if self.losing else ""

    def _table(self, columns: Sequence[str], rows: Sequence[Sequence[str]], empty: str) -> Iterable[str]:
        yield markdown_table(columns, rows[: self.shown]) if rows else empty
        if len(rows) > self.shown:
            yield from ("", f"And {len(rows) - self.shown} more.")


def _nodes_text(nodes: tuple[str, ...]) -> str:
    return listed(nodes, _NODES_SHOWN, " + ")


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


_NUMBERS = (
    "engine", "layers", "layers without ONNX nodes", "precisions", "time of all layers, ms",
    "time of layers without nodes, ms", "with a counterpart", "device memory", "weights",
)  # fmt: skip


def _numbers(side: EngineSummary) -> list[str]:
    share = f"{side.aligned:.1%} of the {'time' if side.ms is not None else 'layers'}"
    memory, weights = ("-" if n is None else size(n) for n in (side.device_memory_bytes, side.weights_bytes))
    return [
        f"`{side.source}`",
        str(side.layers),
        str(side.inserted),
        ", ".join(f"{count} {name or '?'}" for name, count in side.precisions),
        _ms(side.ms),
        _ms(side.inserted_ms),
        share,
        memory,
        weights,
    ]


def _inserted_text(inserted: Inserted) -> str:
    if not inserted.layers:
        return "-"
    text = "; ".join(dict.fromkeys(inserted.conversions)) or ", ".join(inserted.layers[:_NODES_SHOWN])
    return f"{len(inserted.layers)}: {text}" + (f" ({size(inserted.bytes)})" if inserted.bytes else "")


def _cells(row: Row) -> list[str]:
    """The cells of a row: the values of both engines, or one value if they are equal."""
    sides = []
    for side in (row.a, row.b):
        kernel = listed((f"`{tactic}`" for tactic in side.tactics), 1)
        sides.append((str(len(side.layers)), ", ".join(side.precisions), kernel, side.reads, side.writes, _ms(side.ms)))
    return [first or "-" if first == second else f"{first or '-'} → {second or '-'}" for first, second in zip(*sides)]


@checked_arguments
def inspect_engines(
    config: InspectEnginesConfig,
    *,
    tracker: Tracker | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
) -> InspectEnginesResult:
    """Compare two engines, and log the result to an experiment if one is given.

    ConfigError if an engine is neither a file nor a run; EngineLoadError if it cannot be loaded here.
    """
    name = f"engines {Path(config.a).name} and {Path(config.b).name}"
    logging_tracker = None if experiment is None else tracker
    with op_run(logging_tracker, experiment, name, kind="engine_diff", tags=tags) as op:
        sides = []
        for source, times in ((config.a, config.times_a), (config.b, config.times_b)):
            engine_layers, memory = _read_engine(source, config.profile, tracker)
            if times is not None:
                engine_layers = replace(engine_layers, times=read_layer_times(times))
            sides.append((engine_layers, memory))
        aligned = align(sides[0][0], sides[1][0])
        summaries = []
        for source, side, (engine_layers, memory) in zip((config.a, config.b), "ab", sides):
            inserted = [layer for layer in engine_layers.layers if not nodes_of(layer)]
            counts = Counter(layer.precision for layer in engine_layers.layers if nodes_of(layer))
            summaries.append(
                EngineSummary(
                    source=source,
                    layers=len(engine_layers.layers),
                    inserted=len(inserted),
                    ms=engine_layers.time_of(engine_layers.layers),
                    inserted_ms=engine_layers.time_of(inserted),
                    precisions=tuple(counts.most_common()),
                    aligned=aligned.share(side),
                    **memory,
                )
            )
        a, b = summaries
        losing: tuple[str, ...] = ()
        if a.ms is not None and b.ms is not None and not {"int8", "fp8"} & dict(a.precisions).keys():
            losing = losing_in_8_bits(sides[0][0], sides[1][0], _quantized(config.b, tracker, aligned))
        result = InspectEnginesResult(title=name, a=a, b=b, alignment=aligned, losing=losing, shown=config.shown)
        return op.finish(result, evaluated=False)


def _quantized(source: str, tracker: Tracker | None, aligned: Alignment) -> tuple[str, ...]:
    """The nodes quantized by a run; of another engine, those of its layers in 8 bits."""
    if tracker is not None and not Path(source).is_file():
        stored = builds.load_quantization(tracker.load(run_id_of(source, tracker)))
        if stored is not None:
            return stored.layers
    rows = (row.nodes for row in aligned.rows if {"int8", "fp8"} & set(row.b.precisions))
    return tuple(chain.from_iterable(rows))


def _read_engine(source: str, profile: bool, tracker: Tracker | None) -> tuple[EngineLayers, dict[str, int]]:
    """The layers of an engine from a file or run, and its memory if it was loaded."""
    path = Path(source)
    if backend_of_suffix(path.suffix) == "tensorrt":
        return _described(trt.EngineFromPath(str(path))(), profile)
    if path.suffix == ".json" or path.is_file():
        try:
            # With replacements: names of layers come from the model and need not be UTF-8.
            layers = parse_layers(path.read_bytes().decode("utf-8", "replace"))
        except OSError as exc:
            raise errors.ConfigError(
                f"{source} cannot be read: {exc.strerror}. Expected the engine inspector's JSON."
            ) from exc
        if not layers:
            raise errors.FormatError(
                f"{source} lists no layers; expected the engine inspector's JSON, as trtexec's --exportLayerInfo "
                "writes it."
            )
        return EngineLayers(layers), {}
    if tracker is None:
        raise errors.ConfigError(
            f"{source!r} is neither an engine nor a JSON file of the engine inspector, and there is no tracking store "
            "with such a run."
        )
    build = builds.load_build(tracker.load(run_id_of(source, tracker)))
    if build.engine.backend == "tensorrt" and build.engine.plan:
        try:
            return _described(trt.engine_from_bytes(build.engine.plan), profile)
        except errors.BackendError:
            if profile:
                raise
    # TensorRT's engine cannot be loaded here, so its layers are those that its build recorded, without formats.
    times: Mapping[str, float] = {}
    if profile and build.engine.backend == "onnxruntime":
        from trtops.backend.onnxrt.profile import layer_times

        with engine_backend("onnxruntime").runner(build.engine) as runner:
            feed = next(iter(DataConfig().open_for(None, inputs=runner.get_input_metadata(use_numpy_dtypes=False))))
        times = layer_times(build, feed)
    return EngineLayers.of(build.layers, times), {}


def _described(engine: Any, profile: bool) -> tuple[EngineLayers, dict[str, int]]:
    description = trt.describe_engine(engine)
    times: Mapping[str, float] = {}
    if profile:
        times = trt.layer_times(
            engine, next(iter(DataConfig().open_for(None, inputs=TensorMetadata.of(description.inputs))))
        )
    memory = {"device_memory_bytes": description.device_memory_bytes, "weights_bytes": description.weights_bytes}
    return EngineLayers(description.layers, times), memory


def read_layer_times(path: str | Path) -> dict[str, float]:
    """Milliseconds by layer name from a file: trtexec's ``--exportProfile``, or a JSON object of numbers."""
    try:
        # Not strict: TensorRT writes layer names with raw control characters.
        content = json.loads(Path(path).read_bytes(), strict=False)
        if isinstance(content, dict):
            return {str(name): float(ms) for name, ms in content.items()}
        # trtexec's first entry only has the number of runs.
        return {str(entry["name"]): float(entry["averageMs"]) for entry in content if "name" in entry}
    except OSError as exc:
        raise errors.ConfigError(f"{path} cannot be read: {exc.strerror}. Expected times of layers.") from exc
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise errors.FormatError(
            f"{path} has no times of layers ({exc!r}); expected a file of trtexec's --exportProfile, or milliseconds "
            "by layer name."
        ) from None
