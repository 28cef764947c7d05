"""The first stage of a PyTorch model's verdict: whether the exported ONNX model repeats the module."""

from __future__ import annotations

import ast
import contextlib
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from trtops import errors
from trtops.backend.onnx import walk
from trtops.backend.onnx.edit import set_outputs
from trtops.backend.onnx.model import Model
from trtops.backend.onnxrt.runner import reference_outputs, reference_runner
from trtops.comparator.report import ComparisonReport, Tolerances, compare_outputs, iterations_of
from trtops.comparator.results import IterationResult, RunResults
from trtops.metadata import TensorSpec, is_dynamic
from trtops.ops.evaluation.data import DataConfig
from trtops.ops.evaluation.right_model import RightModel
from trtops.record import Record
from trtops.spec import BuildConfig
from trtops.tables import counted
from trtops.verdict import Verdict

if TYPE_CHECKING:
    import onnx

    from trtops.backend.runner import Feed
    from trtops.backend.torch.export import Export

LossKind: TypeAlias = Literal["values", "constant", "training", "input", "state"]
REMEDIES: Mapping[LossKind, str] = {
    "values": "report the module that differs to the makers of the exporter, or write it in other operators",
    "constant": "compute with tensors what depends on the size (torch.cond, torch.arange), or build for one size",
    # Advice for the user: the method of a module that leaves training mode.
    "training": "call eval() before torch.export.export, and pass training=self.training to dropout",
    "input": "give the export every input under the name of its parameter",
    "state": "make the state an input and an output of forward",
}
Arrays: TypeAlias = "dict[str, np.ndarray[Any, Any]]"

_LARGEST_INPUT = 1 << 24  # of an input at another size
_MAX_BOUNDS = 4
_SHOWS = 1e-3  # relative error of a tensor inside the module that counts as different


@dataclass(frozen=True, kw_only=True)
class Loss(Record):
    """Something of the module that its export does not have."""

    kind: LossKind
    text: str  # a sentence without its full stop
    place: str = ""  # an input, an axis, a module's path, or a line of its source


@dataclass(frozen=True, kw_only=True)
class ExportCheck(Record):
    """The comparison of a PyTorch module (eager, FP32, evaluation mode) with the ONNX model exported from it."""

    source: str
    report: ComparisonReport
    feeds: int  # of the data
    other_sizes: tuple[str, ...] = ()  # beyond the example's, of dynamic axes
    losses: tuple[Loss, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """``bad`` if the outputs differ, or something is lost; ``unproven`` if all of them are random."""
        if self.losses or not self.report:
            return "bad"
        return "good" if self.report.outputs else "unproven"

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is bad, one sentence each."""
        texts = [loss.text for loss in self.losses] or list(self.report.reasons)
        return tuple(f"PyTorch to ONNX: {text}" for text in texts)

    @property
    def remedy(self) -> str:
        """What to change in the module or its export."""
        return REMEDIES[self.losses[0].kind if self.losses else "values"]

    def sentence(self) -> str:
        """The numbers in a line."""
        sizes = f" and {counted(len(self.other_sizes), 'other size')}" if self.other_sizes else ""
        numbers = self.report.decided_by if self.report.outputs else "no output can be compared"
        return f"PyTorch to ONNX: {self.verdict} ({numbers}; {counted(self.feeds, 'feed')}{sizes})"


@dataclass(frozen=True, kw_only=True)
class ExportedModel(Model):
    """The ONNX model of a PyTorch model, with the comparison of both."""

    exported_from: str  # what commands name: script.py:function, or a file
    check: ExportCheck

    @property
    def source(self) -> str:
        """What commands name."""
        return self.exported_from


def check_export(export: Export, model: Model, feeds: Iterable[Feed]) -> ExportCheck:
    """Compare a module with its export on feeds, and at two sizes of dynamic axes beyond the example's.

    Raises InferenceError if the module does not run on the feeds.
    """
    data = [{**export.example.arrays, **{name: np.asarray(array) for name, array in feed.items()}} for feed in feeds]
    expected = [export.model.run(feed) for feed in data]
    losses = [*fixed_axes(export), *_ignored_inputs(export, model, data[0], expected[0])]
    losses += [*_training(export, model, data[0], expected[0]), *_state(export, data[0], expected[0])]
    others = list(_other_sizes(export, model))
    every = [*data, *(feed for feed, _ in others)]
    expected += [outputs for _, outputs in others]
    actual = _run(model, every)
    ran = [number for number, outputs in enumerate(actual) if not isinstance(outputs, str)]
    report, bad = _compare(model, every, actual, expected, ran)
    explained = any(loss.kind in ("constant", "training", "input") for loss in losses)
    failed = [number for number in range(len(every)) if number not in ran]
    for number in (failed or bad)[:1] if not explained else ():
        feed, shapes = every[number], _shapes(every[number])
        usual = all(feed[name].shape == array.shape for name, array in export.example.arrays.items())
        if failed:
            fault = f"the export does not run at {shapes}, and the module does ({actual[number]})"
            losses.append(_baked(export, fault, ""))
        elif usual or not any(map(_is_dynamic, model.info.inputs)):
            losses.append(_wrong_values(export, model, feed, expected[number], report))
        else:
            place = _first_module(export, model, feed)
            losses.append(_baked(export, f"at {shapes} the export computes what fits the example only", place))
    return ExportCheck(
        source=export.model.source,
        report=report,
        feeds=len(data),
        other_sizes=tuple(_shapes(feed) for feed, _ in others),
        losses=tuple(losses),
    )


def _run(model: Model, feeds: Sequence[Arrays]) -> list[Arrays | str]:
    """Run the exported model; an error stands for its outputs."""
    results: list[Arrays | str] = []
    names = {spec.name for spec in model.info.inputs}
    with reference_runner(model) as runner:
        for feed in feeds:
            try:
                results.append(dict(runner.infer({name: feed[name] for name in feed if name in names})))
            except errors.TrtopsError as exc:
                results.append(" ".join(str(exc).split())[:200])
    return results


def _compare(
    model: Model, feeds: Sequence[Arrays], actual: Sequence[Arrays | str], expected: Sequence[Arrays], ran: list[int]
) -> tuple[ComparisonReport, list[int]]:
    """Compare within the limits of FP32's rounding; return the report, and the numbers of the feeds that differ."""
    if not ran:
        return ComparisonReport(verdict="bad", outputs=(), tolerances=Tolerances(), iterations=0), []
    names = {spec.name for spec in model.info.inputs}
    some = [{name: feeds[number][name] for name in feeds[number] if name in names} for number in ran]
    golden = _results([actual[number] for number in ran])
    right = RightModel(model=model, build=BuildConfig(), feeds=some, golden=golden)
    undefined = right.undefined(None)
    module = _results([expected[number] for number in ran])
    ours, theirs = undefined.comparable(right.aligned(golden), right.aligned(module))
    ours, theirs = iterations_of(ours, "ONNX"), iterations_of(theirs, "PyTorch")
    report = compare_outputs(ours, theirs, right.tolerances(None))
    bad = []
    for place, number in enumerate(ran):
        if not compare_outputs([ours[place]], [theirs[place]], right.tolerances_of([place])):
            bad.append(number)
    return report, bad or ([] if report else ran[:1])


def _results(iterations: Sequence[Any]) -> RunResults:
    return RunResults([("module", [IterationResult(outputs) for outputs in iterations])])


def _differ(first: Arrays, second: Arrays) -> bool:
    return any(not np.array_equal(first[name], second[name], equal_nan=True) for name in first if name in second)


def _shapes(feed: Arrays) -> str:
    return ", ".join(f"{name} {'x'.join(map(str, array.shape)) or 'scalar'}" for name, array in feed.items())


def _is_dynamic(spec: TensorSpec) -> bool:
    return any(map(is_dynamic, spec.shape or ()))


def _other_sizes(export: Export, model: Model) -> Iterator[tuple[Arrays, Arrays]]:
    """Yield feeds near the example's sizes, at multiples, and where branches decide, with the module's outputs.

    Sizes at which the module does not run are left out.
    """
    specs = [spec for spec in model.info.inputs if spec.shape is not None]
    if not any(map(_is_dynamic, specs)):
        return
    tried = set[str]()
    kinds = [[(1, more) for more in (1, 2, 3, 4)], [(times, 0) for times in (2, 3, 4)]]
    kinds += [[(0, max(bound + more, 1))] for bound in export.bounds[:_MAX_BOUNDS] for more in (-1, 0, 1)]
    for changes in kinds:
        for times, more in changes:
            shapes: dict[str, tuple[int, ...]] = {}
            for spec in specs:
                sizes = export.example.arrays[spec.name].shape
                dims = zip(spec.shape or (), sizes)
                shapes[spec.name] = tuple(times * size + more if is_dynamic(dim) else size for dim, size in dims)
            if max(map(math.prod, shapes.values())) > _LARGEST_INPUT or str(shapes) in tried:
                continue
            tried.add(str(shapes))
            with contextlib.suppress(errors.TrtopsError):
                feed = dict(next(iter(DataConfig(input_shapes=shapes, iterations=1).open_for(model))))
                feed = {**export.example.arrays, **feed}
                yield feed, export.model.run(feed)
                break


def fixed_axes(export: Export) -> Iterator[Loss]:
    """Yield the axes that were to be dynamic, and are not."""
    numbers = [place for place in export.decisions if place.startswith("a number")]
    for name, axis, size in export.fixed:
        cause = f", by {numbers[0]}" if numbers else ""
        if export.model.program is not None:
            cause = ": the program was exported without dynamic_shapes for it"
        text = f"axis {axis} of input {name!r} is fixed to {size}, the size of the example{cause}"
        yield Loss(kind="constant", text=text, place=numbers[0] if numbers else f"{name}[{axis}]")


def _baked(export: Export, text: str, module: str) -> Loss:
    """A size, branch or number of steps of the example that became part of the export."""
    place = export.decisions[0] if export.decisions else module
    cause = f"; {place} depends on a size" if export.decisions else f"; the first difference is in {module}"
    return Loss(kind="constant", text=f"{text}{cause if place else ''}", place=place)


def _ignored_inputs(export: Export, model: Model, feed: Arrays, outputs: Arrays) -> Iterator[Loss]:
    """Yield the inputs that the module uses, and the export does not."""
    proto = model.structure()
    used = {name for node in walk.nodes(proto) for name in node.input} | walk.names_of(proto.graph.output)
    inputs = {spec.name for spec in model.info.inputs}
    for name in feed:
        if name in inputs and name in used:
            continue
        array = feed[name]
        other = ~array if array.dtype == bool else array + array.dtype.type(1)
        changes = True
        with contextlib.suppress(errors.InferenceError):  # a wrong value, which it at least looked at
            changes = _differ(outputs, export.model.run({**feed, name: other}))
        if changes:
            verb = "is not used by" if name in inputs else "is missing in"
            text = f"input {name!r} {verb} the export, and the module's outputs depend on it"
            yield Loss(kind="input", text=text, place=name)


def _training(export: Export, model: Model, feed: Arrays, outputs: Arrays) -> Iterator[Loss]:
    """Yield the parts that compute as in training."""
    from trtops.ops.evaluation.undefined import random_nodes

    places = [_origin(node) for node in random_nodes(model.structure()) if _drops(node)]
    is_random = _differ(outputs, export.model.run(feed, seed=1))
    if places and is_random:
        yield _trains(f"Dropout in training mode at {places[0]}", places[0])
    elif is_random and not random_nodes(model.structure()):
        yield _trains("the module draws random numbers that the export does not have", export.model.source)
    for place in export.model.training():
        yield _trains(
            f"training mode was left on: batch normalization at {place} uses the statistics of its batch", place
        )


def _drops(node: onnx.NodeProto) -> bool:
    origin = (entry.value for entry in node.metadata_props)
    return node.op_type.endswith("Dropout") or any("dropout" in text for text in origin)


def _trains(text: str, place: str) -> Loss:
    return Loss(kind="training", text=text, place=place)


def _state(export: Export, feed: Arrays, outputs: Arrays) -> Iterator[Loss]:
    """Yield the tensors that one call leaves for the next, without an output that has them."""
    for path, value in export.model.kept_state(feed).items():
        if not any(np.array_equal(value, array) for array in outputs.values()):
            text = f"state {path!r} is neither an input nor an output of the export, and later calls depend on it"
            yield Loss(kind="state", text=text, place=path)


def _wrong_values(export: Export, model: Model, feed: Arrays, outputs: Arrays, report: ComparisonReport) -> Loss:
    """The inputs that are exchanged, or the first part of the module that differs."""
    inputs = {spec.name for spec in model.info.inputs}
    names = [name for name in feed if name in inputs]
    for first, second in itertools.combinations(names, 2):
        if feed[first].shape == feed[second].shape and feed[first].dtype == feed[second].dtype:
            [swapped] = _run(model, [{**feed, first: feed[second], second: feed[first]}])
            if not isinstance(swapped, str) and all(
                name in swapped and np.allclose(swapped[name], array, 1e-3, 1e-4) for name, array in outputs.items()
            ):
                text = f"inputs {first!r} and {second!r} are exchanged"
                return Loss(kind="input", text=text, place=first)
    place = _first_module(export, model, feed)
    located = f"; the first difference is in {place}" if place else ""
    return Loss(kind="values", text=f"{report.decided_by}{located}", place=place)


def _first_module(export: Export, model: Model, feed: Arrays) -> str:
    """The first module inside that differs, in the order in which they end, with its class; empty if none does."""
    results = export.model.watch(feed)
    proto = model.proto()
    scopes = {name: _scopes(node) for name, node in walk.makers(proto.graph.node).items()}
    readers: dict[str, set[str]] = {}  # the scopes that read a tensor
    for node in proto.graph.node:
        for name in node.input:
            readers.setdefault(name, set()).add("\0".join(_scopes(node)))
    names = [name for name, path in scopes.items() if any(part in results for part in path)]
    if not names:
        return ""
    set_outputs(proto, names)
    inputs = {spec.name for spec in model.info.inputs}
    values = reference_outputs(proto, [{name: feed[name] for name in feed if name in inputs}])[0]
    for path, arrays in results.items():
        inside = [name for name in names if path in scopes[name]]
        ends = [name for name in inside if any(path not in scope.split("\0") for scope in readers.get(name, {""}))]
        for array in arrays:
            same = [values[name] for name in ends if values[name].shape == array.shape]
            if same and not any(_close(value, array) for value in same):
                kind = type(dict(export.model.module.named_modules()).get(path)).__name__
                return f"module {path!r}" + (f" ({kind})" if kind != "NoneType" else "") if path else "forward itself"
    return ""


def _close(value: Any, array: Any) -> bool:
    scale = float(np.max(np.abs(array), initial=0.0))
    return bool(np.allclose(value, array, _SHOWS, _SHOWS * scale, equal_nan=True))


def _scopes(node: onnx.NodeProto) -> list[str]:
    """The paths of the modules that a node was exported from, from the outermost."""
    for entry in node.metadata_props:
        if entry.key == "pkg.torch.onnx.name_scopes":
            with contextlib.suppress(ValueError, SyntaxError):
                return [str(path) for path in ast.literal_eval(entry.value)[:-1]]
    return []


def _origin(node: onnx.NodeProto) -> str:
    """The module of a node, and the line of its source."""
    path = (_scopes(node) or [""])[-1]
    trace = next((entry.value for entry in node.metadata_props if entry.key == "pkg.torch.onnx.stack_trace"), "")
    lines = re.findall(r'File "([^"]*)", line (\d+)', trace)
    line = f"{Path(lines[-1][0]).name}:{lines[-1][1]}" if lines else ""
    return " ".join(filter(None, (f"module {path!r}" if path else "", line))) or walk.label(node)
