"""Inspect: what is in a file or a run. Each answer is a record for programs and text for people."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from trtops import errors
from trtops.record import JSONValue, Record, to_jsonable

if TYPE_CHECKING:
    import onnx

    from trtops.tracking.base import Tracker

Show: TypeAlias = Literal["layers", "attrs", "weights"]

ENGINE_SUFFIXES = (".engine", ".plan", ".trt")
"""Endings of files that hold TensorRT engines."""


@dataclass(frozen=True)
class Inspection:
    """What was found.

    Attributes:
        kind: What was looked at: ``onnx``, ``network``, ``engine``, ``ort``, ``data``, ``tactics``, ``calibration``, ``run``
            or ``sparsity``.
    """

    kind: str
    _describe: Callable[[], Record | JSONValue] = field(repr=False)
    _text: Callable[[], str] = field(repr=False)

    def text(self) -> str:
        """What was found, for people."""
        return self._text()

    def to_json(self) -> JSONValue:
        """What was found, as JSON values."""
        return to_jsonable(self._describe())


def inspect_model(
    model: str | Path | onnx.ModelProto,
    *,
    show: Collection[Show] = (),
    display_as: Literal["trt"] | None = None,
    infer_shapes: bool = False,
    ignore_external_data: bool = True,
) -> Inspection:
    """Look into an ONNX model, a TensorRT network made of one, a TensorRT engine, or an engine of ONNX Runtime.

    Args:
        model: An ONNX file, a model in memory, an ``.engine`` or ``.plan``, an ``.ort`` file, or a ``.py`` script with a
            function ``load_network`` that makes a TensorRT network.
        show: What to tell beside inputs and outputs; for ``weights`` of an ONNX model, their values are read.
        display_as: ``"trt"`` parses an ONNX model into a TensorRT network and shows that.
        infer_shapes: Whether to fill in shapes that an ONNX model does not declare.
        ignore_external_data: Whether to leave weights outside the file alone; they are read if ``show`` has ``weights``.

    Raises:
        ModelError: If it is no model.
        EngineLoadError: If an engine does not load here.
        BackendUnavailableError: If TensorRT is needed and not installed.
    """
    if isinstance(model, (str, Path)):
        path = Path(model)
        if path.suffix in ENGINE_SUFFIXES:
            return _engine(path, show)
        if path.suffix == ".ort":
            return _ort(path, show)
        if path.suffix == ".py":
            return _network_of_script(path, show)
        if display_as == "trt":
            return _network(path, show)
        proto = _read(path, ignore_external_data and "weights" not in show)
    else:
        proto = model
    return _onnx(proto, show, infer_shapes)


def _read(path: Path, ignore_external_data: bool) -> onnx.ModelProto:
    if ignore_external_data:
        from trtops.backend.onnx.bare import read_bare

        return read_bare(path).model
    from trtops.backend.onnx.loader import onnx_from_path

    return onnx_from_path(path)


def _onnx(proto: onnx.ModelProto, show: Collection[Show], infer_shapes: bool) -> Inspection:
    from trtops.backend.onnx import summary

    return Inspection(
        "onnx",
        lambda: summary.describe(proto, infer_shapes=infer_shapes),
        lambda: summary.summary(proto, show, infer_shapes=infer_shapes),
    )


def _network(path: Path, show: Collection[Show]) -> Inspection:
    from trtops.backend.trt import NetworkFromOnnxPath, describe_network

    parts = NetworkFromOnnxPath(str(path))()
    described = describe_network(parts[1])
    return Inspection("network", lambda: described, lambda: described.text(tuple(show)))


def _network_of_script(path: Path, show: Collection[Show]) -> Inspection:
    from trtops.backend.common import invoke_from_script
    from trtops.backend.trt import describe_network

    made: Any = invoke_from_script(str(path), "load_network")
    described = describe_network(made[1] if isinstance(made, tuple) else made)
    return Inspection("network", lambda: described, lambda: described.text(tuple(show)))


def _engine(path: Path, show: Collection[Show]) -> Inspection:
    from trtops.backend.trt import EngineFromPath, describe_engine

    described = describe_engine(EngineFromPath(str(path))())
    return Inspection("engine", lambda: described, lambda: described.text(tuple(show)))


def _ort(path: Path, show: Collection[Show]) -> Inspection:
    """An engine of ONNX Runtime: loaded by it first, since the reader trusts its bytes."""
    import dataclasses

    from trtops.backend.onnxrt.loader import SessionFromOnnx
    from trtops.backend.onnxrt.plan import read_plan
    from trtops.backend.onnxrt.runner import OnnxrtRunner

    with OnnxrtRunner(SessionFromOnnx(str(path)), "inspected") as runner:
        inputs, outputs = runner.get_input_metadata(), runner.get_output_metadata()
    nodes = [dataclasses.asdict(node) for node in read_plan(path.read_bytes()).nodes]
    record: dict[str, JSONValue] = {
        "inputs": [str(spec) for spec in inputs.values()],
        "outputs": [str(spec) for spec in outputs.values()],
        "nodes": [{key: _plain(value) for key, value in node.items()} for node in nodes],
    }

    def text() -> str:
        head = ["==== ONNX Runtime Engine ====", f"Inputs: {inputs}", f"Outputs: {outputs}", f"{len(nodes)} nodes"]
        return "\n".join([*head, *(_node_line(node) for node in nodes if show)])

    return Inspection("ort", lambda: record, text)


def _plain(value: object) -> JSONValue:
    try:
        return to_jsonable(value)
    except TypeError:
        return str(value)


def _node_line(node: Mapping[str, Any]) -> str:
    inputs, outputs = (", ".join(map(str, node.get(key, ()))) for key in ("inputs", "outputs"))
    return f"  {node.get('op', node.get('op_type', '?'))} {node.get('name', '')!r}: {inputs} -> {outputs}"


@dataclass(frozen=True, kw_only=True)
class ArraySummary(Record):
    """One array of saved inputs or outputs.

    Attributes:
        where: The runner, and the iteration.
        name: The tensor.
        dtype: Its element type.
        shape: Its shape.
        mean: Mean of its finite elements, and so on; None for text and for arrays without finite elements.
        std: Standard deviation.
        median: Median.
        magnitude: Mean of the absolute values.
        percentiles: 90th, 95th and 99th percentile.
        minimum: Smallest.
        minimum_at: Where the first such element is.
        maximum: Largest.
        maximum_at: Where the first such element is.
        nan: NaNs.
        inf: Infinities.
    """

    where: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    mean: float | None = None
    std: float | None = None
    median: float | None = None
    magnitude: float | None = None
    percentiles: tuple[float, ...] = ()
    minimum: float | None = None
    minimum_at: tuple[int, ...] = ()
    maximum: float | None = None
    maximum_at: tuple[int, ...] = ()
    nan: int = 0
    inf: int = 0


def inspect_data(
    path: str | Path,
    *,
    show_values: bool = False,
    histogram: bool = False,
    all_iterations: bool = False,
    items: int = 3,
) -> Inspection:
    """Look into saved inputs or outputs.

    Args:
        path: A ``.json`` file of either tool, an ``.npz`` or an ``.npy``.
        show_values: Whether to print values.
        histogram: Whether to print how values are spread.
        all_iterations: Whether to show every iteration, or the first.
        items: How many values to print at the ends of each axis.

    Raises:
        FormatError: If it cannot be read, or holds no arrays.
        ConfigError: If there is no such file.
    """
    arrays = list(_arrays(Path(path), all_iterations))
    summaries = [summarize(where, name, array) for where, name, array in arrays]

    def text() -> str:
        lines: list[str] = []
        before = None
        for (where, name, array), described in zip(arrays, summaries):
            if where != before:
                lines.append(f"---- {where} ----")
                before = where
            lines += _array_lines(name, array, described, show_values, histogram, items)
        return "\n".join(lines)

    return Inspection("data", lambda: [to_jsonable(summary) for summary in summaries], text)


def _arrays(path: Path, all_iterations: bool) -> Iterable[tuple[str, str, Any]]:
    import zipfile

    import numpy as np

    if not path.exists():
        raise errors.ConfigError(f"{str(path)!r} does not exist; expected saved inputs or outputs.")
    if path.suffix == ".npy" or path.suffix == ".npz":
        try:
            loaded = np.load(path, allow_pickle=False)
            held = {path.stem: loaded} if isinstance(loaded, np.ndarray) else {n: loaded[n] for n in loaded.files}
        except (ValueError, OSError, EOFError, zipfile.BadZipFile) as exc:
            raise errors.FormatError(f"{path} cannot be read: {exc}.") from None
        for name, array in held.items():
            yield path.name, name, array
        return
    from trtops.comparator.results import RunResults
    from trtops.json import load_json

    loaded = load_json(str(path))
    runs: Sequence[tuple[str, Sequence[Mapping[str, Any]]]]
    if isinstance(loaded, RunResults):
        runs = list(loaded.items())
    elif isinstance(loaded, Mapping):
        runs = [("inputs", [loaded])]
    elif isinstance(loaded, list) and all(isinstance(feed, Mapping) for feed in loaded):
        runs = [("inputs", loaded)]
    else:
        raise errors.FormatError(f"{path} holds a {type(loaded).__name__}; expected saved inputs or outputs.")
    for runner, iterations in runs:
        for number, iteration in enumerate(iterations if all_iterations else iterations[:1]):
            for name, array in iteration.items():
                yield f"{runner}, iteration {number} of {len(iterations)}", name, np.asarray(array)


def summarize(where: str, name: str, array: Any) -> ArraySummary:
    """Statistics of an array.

    Args:
        where: Where it comes from, for people.
        name: The tensor.
        array: The array, of any dtype, in host memory; text has no statistics.
    """
    import numpy as np

    array = np.asarray(array)
    if array.dtype.kind not in "fiub" and "float" not in array.dtype.name:
        return ArraySummary(where=where, name=name, dtype=str(array.dtype), shape=array.shape)
    numbers = array.astype(np.float64, copy=False)
    return ArraySummary(
        where=where,
        name=name,
        dtype=str(array.dtype),
        shape=array.shape,
        nan=int(np.isnan(numbers).sum()),
        inf=int(np.isinf(numbers).sum()),
        **_statistics(numbers),
    )


def _statistics(numbers: Any) -> dict[str, Any]:
    """Statistics of the finite elements, by the names of :class:`ArraySummary`."""
    import numpy as np

    places = np.flatnonzero(np.isfinite(numbers))
    if not places.size:
        return {}
    finite = numbers.reshape(-1)[places]
    least, most = finite.argmin(), finite.argmax()
    median, *percentiles = map(float, np.percentile(finite, (50, 90, 95, 99)))
    return {
        "mean": float(finite.mean()),
        "std": float(finite.std()),
        "median": median,
        "magnitude": float(np.abs(finite).mean()),
        "percentiles": tuple(percentiles),
        "minimum": float(finite[least]),
        "minimum_at": tuple(map(int, np.unravel_index(places[least], numbers.shape))),
        "maximum": float(finite[most]),
        "maximum_at": tuple(map(int, np.unravel_index(places[most], numbers.shape))),
    }


def _array_lines(
    name: str, array: Any, described: ArraySummary, show_values: bool, histogram: bool, items: int
) -> list[str]:
    import numpy as np

    lines = [f"    {name} [dtype={described.dtype}, shape={described.shape}]"]
    if described.mean is not None:
        levels = ", ".join(f"p{level}={value:.5g}" for level, value in zip((90, 95, 99), described.percentiles))
        lines += [
            f"        mean={described.mean:.5g}, std={described.std:.5g}, median={described.median:.5g}, "
            f"min={described.minimum:.5g} at {described.minimum_at}, max={described.maximum:.5g} at {described.maximum_at}",
            f"        magnitude={described.magnitude:.5g}, {levels}, NaN={described.nan}, inf={described.inf}",
        ]
    if histogram and described.mean is not None:
        numbers = np.asarray(array, np.float64)
        counts, edges = np.histogram(numbers[np.isfinite(numbers)], bins=10)
        most = max(int(counts.max()), 1)
        for count, low, high in zip(counts, edges, edges[1:]):
            lines.append(f"        ({low:<9.3g}, {high:<9.3g}) | {count:>9} | {'#' * round(40 * count / most)}")
    if show_values:
        text = np.array2string(np.asarray(array), threshold=items * 10, edgeitems=items)
        lines += [f"        {line}" for line in text.splitlines()]
    return lines


def inspect_tactics(path: str | Path) -> Inspection:
    """Look into a tactic record of either tool.

    Raises:
        ConfigError: If there is no such file.
        FormatError: If it is no tactic record.
    """
    from trtops.ops.tables import table
    from trtops.tactics.replays import read_record

    record = read_record(path)

    def text() -> str:
        head = f"{len(record.choices)} layers, {record.coverage:.0%} replayable, by {record.mechanism} {record.backend_version}"
        settings = [f"    {name} = {value}" for name, value in record.settings]
        rows = (
            (choice.layer, choice.op, choice.tactic, "" if choice.replayable else "no") for choice in record.choices
        )
        return "\n".join([head, *settings, "", table(("layer", "op", "tactic", "replayable"), rows)])

    return Inspection("tactics", lambda: record, text)


def inspect_calibration(source: str, *, tracker: Tracker | None = None) -> Inspection:
    """Look into a calibration cache: a file of either format, or ``run:<id>``.

    Raises:
        ConfigError: If there is no such file.
        FormatError: If it is no calibration cache.
        TrackingError: If the run is not there, or holds none.
    """
    from trtops.ops.tables import table
    from trtops.tracking.calibrations import load_cache

    cache = load_cache(source, tracker)

    def text() -> str:
        head = f"{len(cache)} tensors by {cache.algorithm}, from {cache.samples} samples"
        if not cache.complete:
            head += " (not complete: the data ended with an error)"
        rows = (
            (
                entry.name,
                f"{entry.amax:.6g}",
                f"{entry.scale:.6g}",
                "-" if entry.low is None or entry.high is None else f"{entry.low:.5g} to {entry.high:.5g}",
                "-" if entry.clipped is None else f"{entry.clipped:.3%}",
            )
            for entry in cache.ranges
        )
        lines = [head, "", table(("tensor", "amax", "scale", "seen", "clipped"), rows)]
        if cache.excluded:
            lines += ["", f"Without a range, since NaN or infinity occurred: {', '.join(cache.excluded)}"]
        return "\n".join(lines)

    return Inspection("calibration", lambda: cache, text)


def inspect_sparsity(model: str | Path | onnx.ModelProto) -> Inspection:
    """Which weights of an ONNX model sparse kernels could use, and which are 2:4 sparse already.

    Raises:
        ModelError: If it is no model.
    """
    from trtops.backend.onnx.loader import onnx_from_path
    from trtops.backend.onnx.sparsity import check_sparsity
    from trtops.ops.tables import table

    found = check_sparsity(onnx_from_path(model) if isinstance(model, (str, Path)) else model)

    def text() -> str:
        sparse = sum(weight.sparse for weight in found)
        rows = ((w.name, str(w.shape), str(w.axis), "yes" if w.sparse else "no", f"{w.zeros:.1%}") for w in found)
        head = f"{sparse} of {len(found)} weights that could be are 2:4 sparse."
        return "\n".join([head, "", table(("weight", "shape", "axis", "2:4", "zeros"), rows)])

    return Inspection("sparsity", lambda: [to_jsonable(weight) for weight in found], text)


def inspect_run(run_id: str, tracker: Tracker) -> Inspection:
    """What the memory holds of a run: its tags, params and numbers, and what it left.

    Args:
        run_id: The run's id or what it begins with, with or without ``run:`` before it.
        tracker: The memory.

    Raises:
        RunNotFoundError: If there is none with this id.
    """
    run_id = tracker.whole_id(run_id)
    info = tracker.info(run_id)
    files: list[tuple[str, int, str]] = []
    whole = True
    try:
        stored = tracker.load(run_id)
        files = [(entry.path, entry.size, entry.sha256) for entry in stored.manifest.artifacts]
    except errors.IncompleteRunError:
        whole = False
    record: dict[str, JSONValue] = {
        "id": info.id,
        "experiment": info.experiment,
        "name": info.name,
        "status": info.status,
        "verdict": info.verdict,
        "whole": whole,
        "url": info.url,
        "tags": dict(info.tags),
        "params": dict(info.params),
        "metrics": {"/".join(name): value for name, value in info.metrics.items()},
        "artifacts": [{"path": path, "bytes": size, "sha256": digest} for path, size, digest in files],
    }

    def text() -> str:
        from trtops.ops.tables import size as for_people

        lines = [f"{info.name} in {info.experiment}: {info.status}{f', {info.verdict}' if info.verdict else ''}"]
        lines += [f"Run {info.id}", *([info.url] if info.url else [])]
        if not whole:
            lines.append("The run is not whole: it has no manifest, or a file does not match it.")
        for title, values in (("Params", info.params), ("Metrics", record["metrics"]), ("Tags", info.tags)):
            assert isinstance(values, Mapping)
            lines += ["", f"---- {title} ----", *(f"    {key} = {value}" for key, value in sorted(values.items()))]
        lines += ["", "---- Artifacts ----", *(f"    {path} ({for_people(count)})" for path, count, _ in files)]
        return "\n".join(lines)

    return Inspection("run", lambda: record, text)
