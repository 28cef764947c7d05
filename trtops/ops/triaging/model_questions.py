"""Questions about the model and its data, before anything is built."""

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, product
from typing import Any

import numpy as np
import onnx

from trtops import errors
from trtops.backend.onnx import walk
from trtops.backend.onnx.edit import set_outputs
from trtops.backend.onnx.model import Model
from trtops.backend.onnx.submodel import Cutter
from trtops.backend.onnx.walk import constant_tensors, node_name
from trtops.backend.onnxrt.runner import reference_outputs
from trtops.comparator.report import Tolerances, compare_outputs
from trtops.comparator.results import RunResults
from trtops.next_step import NextStep
from trtops.ops.evaluation.data import naming_assumed
from trtops.ops.evaluation.undefined import NanRows
from trtops.ops.model.lint import lint
from trtops.ops.triaging.result import Answer
from trtops.ops.triaging.subject import Subject, first_lines
from trtops.spec import BuildConfig
from trtops.tables import counted

_FAILING_NODE = re.compile(r"running \S+ node\. Name:'([^']*)'")  # in errors of ONNX Runtime
_TO_THE_BIT = Tolerances(atol=0.0, rtol=0.0, nans_equal=True, infinities_equal=True)


def ask_data(subject: Subject, parent: str) -> Answer:
    """Whether the inputs are finite, or the model replaces their NaN itself."""
    opened = subject.config.check.open_for(subject.model, profiles=subject.config.build.profiles)
    # A model that does not run at all is for the next question.
    with contextlib.suppress(errors.BackendError), naming_assumed(subject.model, opened):
        if opened.assumed:
            reference_outputs(subject.model.proto(), subject.feeds[:1])
    evidence = [f"Inputs come from {opened.source}; {counted(len(subject.feeds), 'feed')}."]
    if subject.config.check.data is None:
        evidence.append("They are random: faults that show on real data only are not found.")
    nan = NanRows.of(subject.model, subject.feeds)
    infinite = (
        name
        for name, array in subject.feeds[0].items()
        if array.dtype.kind == "f" and any(np.isinf(feed[name]).any() for feed in subject.feeds)
    )
    if (name := nan.name or next(infinite, "")) == "":
        return Answer("usable", tuple(evidence))
    evidence.append(f"The {nan.reason}." if nan else f"Input {name!r} has infinity.")
    remedy = f"clean the data of input {name!r}"
    return Answer("not usable", tuple(evidence), kind="data", places=(name,), remedy=remedy)


def ask_structure(subject: Subject, parent: str) -> Answer:
    """Whether the file is a valid model, node by node."""
    report = lint(str(subject.path), feed=subject.feeds[0])
    wrong = [entry for entry in report.entries if entry.level != "warning"]
    evidence = (
        f"{len(report.passing)} nodes pass, {len(report.failing)} fail, {len(report.unchecked)} were not checked.",
        *first_lines([entry.message for entry in (wrong or report.entries)]),
    )
    if not wrong:
        return Answer("sound", evidence)
    nodes = tuple(chain.from_iterable(entry.nodes for entry in wrong))
    remedy = f"see `{NextStep('check lint', {'model': subject.path})}`"
    return Answer("broken", evidence, kind="invalid model", places=nodes, remedy=remedy)


def ask_shapes(subject: Subject, parent: str) -> Answer:
    """Whether the model itself runs at the ends of each optimization profile."""
    profiles = subject.config.build.profiles
    for (number, profile), end in product(enumerate(profiles), ("min", "opt", "max")):
        shapes = {shape_range.name: getattr(shape_range, end) for shape_range in profile.shapes}
        feed = dict(subject.feeds[0])
        for name in shapes.keys() & feed.keys():
            feed[name] = np.resize(feed[name], shapes[name])  # values repeat, since only the shapes matter
        try:
            reference_outputs(subject.model.proto(), [feed])
        except errors.TrtopsError as exc:
            at = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            reason = next(first_lines([str(exc)]))
            sentence = f"In profile {number}, {end} ({at}), the model itself fails: {reason}"
            places = (*_FAILING_NODE.findall(str(exc))[:1], *shapes)
            remedy = f"correct what fixes the shape, or narrow the profile: the model does not run at {at}"
            return Answer("one fails", (sentence,), kind="shape", places=places, remedy=remedy)
    if not profiles:
        return Answer("no profiles", ("There is no optimization profile: the shapes are those of the data.",))
    return Answer("all run", (f"The model runs at {3 * len(profiles)} ends of profiles.",))


def ask_repeats(subject: Subject, parent: str) -> Answer:
    """Whether the model itself, not optimized, gives the same outputs twice in one session, without NaN."""
    # In one session: nodes with a seed repeat from session to session, and still differ from call to call.
    feeds, count, proto = [*subject.feeds, *subject.feeds], len(subject.feeds), subject.model.proto()
    twice = reference_outputs(proto, feeds)
    nan_output = next((name for name in twice[0] if _has_nan(twice, name)), None)
    report = compare_outputs(twice[count:], twice[:count], _TO_THE_BIT)
    if nan_output is None and report:
        same = "Run twice without optimizations, the model gives outputs that are equal to the bit, without NaN."
        return Answer("yes", (same,))
    names = _tensor_names(proto)
    values = _values(proto, names, feeds)
    if nan_output is not None:
        tensor = next((name for name in names if _has_nan(values, name)), nan_output)
        node = walk.makers(proto.graph.node)[tensor]
        sentence = f"The model itself gives NaN in {nan_output!r}, first in {tensor!r}, made by {_label(node)}."
        remedy = f"guard {_label(node)} against its inputs"
        return Answer("NaN", (sentence,), kind="nan", places=(node_name(node), tensor), remedy=remedy)
    evidence: tuple[str, ...] = (f"Two runs on the same data differ: {'; '.join(report.reasons)[:300]}",)
    places: tuple[str, ...] = ()
    changing = _first_bad(names, values[count:], values[:count], _TO_THE_BIT)
    if changing is not None:
        node = walk.makers(proto.graph.node)[changing]
        places = (node_name(node), changing)
        evidence += (f"The first tensor that changes is {changing!r}, made by {_label(node)}.",)
    remedy = "export the model without its random nodes, or compare under tolerances that allow for them"
    return Answer("no", evidence, kind="not repeatable", places=places, remedy=remedy)


def _has_nan(outputs: Sequence[Mapping[str, Any]], name: str) -> bool:
    arrays = [np.asarray(iteration[name]) for iteration in outputs]
    return any(array.dtype.kind == "f" and bool(np.isnan(array).any()) for array in arrays)


def ask_golden(subject: Subject, parent: str) -> Answer:
    """Whether the model itself agrees with the golden outputs."""
    config = subject.config
    twin = None if config.golden_model is None else Model.load(config.golden_model).proto()
    golden: Sequence[Mapping[str, Any]]
    if twin is not None:
        golden = reference_outputs(twin, subject.feeds)
    elif config.check.golden is not None:
        golden = list(RunResults.load(config.check.golden)[0][1])
    else:
        sentence = "There are no golden outputs and no golden model: the model is taken to be right."
        return Answer("none given", (sentence,))
    exact = subject.right_model(BuildConfig()).tolerances(None)
    names = [name for name in golden[0] if name in subject.outputs[0]]
    report = compare_outputs(_only(names, subject.outputs), _only(names, golden), exact)
    if report:
        return Answer("agrees", ("In FP32, without optimizations, the model agrees with the golden outputs.",))
    evidence: tuple[str, ...] = (
        f"In FP32, without optimizations, the model is wrong: {'; '.join(report.reasons)[:300]}",
    )
    # Names are all that two exports of a model have in common. Saved outputs may have tensors inside the model too.
    proto = subject.model.proto()
    golden_names = golden[0].keys() if twin is None else walk.makers(twin.graph.node).keys()
    names = [name for name in _tensor_names(proto) if name in golden_names]
    actual = _values(proto, names, subject.feeds)
    expected = _only(names, golden) if twin is None else _values(twin, names, subject.feeds)
    name = _first_bad(names, actual, expected, replace(exact, nans_equal=True, infinities_equal=True))
    if name is None:
        return Answer("differs", evidence, kind="model", remedy="export the model again")
    node = walk.makers(proto.graph.node)[name]
    evidence += (f"The first of {len(names)} tensors that differs is {name!r}, made by {_label(node)}.",)
    places = (node_name(node), name)
    # A branch that nothing passes has the same value everywhere.
    if _is_constant(actual, name) and not _is_constant(expected, name):
        evidence += ("It has one value for all inputs; the golden one does not.",)
        remedy = "find out why nothing gets through there"
        return Answer("differs", evidence, kind="dead branch", places=places, remedy=remedy)
    if twin is None:
        return Answer("differs", evidence, kind="model", places=places, remedy=f"see what feeds {places[0]!r}")
    return _difference_of_nodes(proto, twin, node, name, evidence)


def _is_constant(outputs: Sequence[Mapping[str, Any]], name: str) -> bool:
    values = np.concatenate([np.ravel(iteration[name]) for iteration in outputs])
    return bool(values.size > 1 and (values == values[0]).all())


def _difference_of_nodes(
    proto: onnx.ModelProto, twin: onnx.ModelProto, node: onnx.NodeProto, tensor: str, evidence: tuple[str, ...]
) -> Answer:
    """Compare a node with the producer of the tensor of the same name in the golden model."""
    makers, twin_makers = walk.makers(proto.graph.node), walk.makers(twin.graph.node)
    other = twin_makers[tensor]
    places: tuple[str, ...] = (node_name(node), tensor)
    weights, golden_weights = constant_tensors(proto.graph), constant_tensors(twin.graph)
    for name, golden_name in zip(node.input, other.input):
        if name not in weights or golden_name not in golden_weights:
            continue
        constant, golden_constant = map(onnx.numpy_helper.to_array, (weights[name], golden_weights[golden_name]))
        if constant.dtype != golden_constant.dtype or constant.tobytes() != golden_constant.tobytes():
            evidence += (f"Its constant {name!r} differs from the golden model's {golden_name!r}.",)
            remedy = f"replace {name!r} by the golden model's {golden_name!r}"
            return Answer("differs", evidence, kind="wrong constant", places=(name, *places), remedy=remedy)
    # Nodes of the golden model just above, whose results this model does not have.
    lost = [twin_makers[name] for name in other.input if name in twin_makers and name not in makers]
    if other.op_type != node.op_type:
        lost.insert(0, other)
    if lost:
        labels = ", ".join(map(_label, lost))
        evidence += (f"The golden model has {labels} there; this one does not.",)
        places = (*map(node_name, lost), *places)
        return Answer("differs", evidence, kind="lost node", places=places, remedy=f"put {labels} back")
    evidence += (f"The golden model has {_label(other)} there, with other inputs or attributes.",)
    return Answer("differs", evidence, kind="model", places=places, remedy="export the model again")


def _label(node: onnx.NodeProto) -> str:
    return f"{node.op_type} {node_name(node)!r}"


def _tensor_names(proto: onnx.ModelProto) -> list[str]:
    """The tensors of a model in order of execution."""
    cutter = Cutter(proto)
    return list(chain.from_iterable(map(cutter.visible, cutter.order)))


def _values(proto: onnx.ModelProto, names: list[str], feeds: list[dict[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Values of some tensors of a model for each feed."""
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    set_outputs(changed, names)
    return reference_outputs(changed, feeds)


def _only(names: Sequence[str], outputs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{name: iteration[name] for name in names} for iteration in outputs]


def _first_bad(
    names: Sequence[str],
    actual: Sequence[Mapping[str, Any]],
    expected: Sequence[Mapping[str, Any]],
    tolerances: Tolerances,
) -> str | None:
    """The first of some tensors outside the tolerances."""
    report = compare_outputs(actual, expected, replace(tolerances, per_output={}))
    bad = {output.name for output in report.outputs if output.verdict == "bad"}
    return next((name for name in names if name in bad), None)
