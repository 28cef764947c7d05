"""Questions about the model and its data, before anything is built."""

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import onnx

from trtops import errors
from trtops.backend.onnx import walk
from trtops.backend.onnx.edit import set_outputs
from trtops.backend.onnx.model import Model
from trtops.backend.onnx.submodel import Cutter
from trtops.backend.onnx.walk import constant_tensors, label, node_name
from trtops.backend.onnxrt.runner import reference_outputs
from trtops.calibration.data import data_source
from trtops.comparator.report import compare_outputs
from trtops.comparator.results import RunResults
from trtops.next_step import NextStep
from trtops.ops.evaluation.data import naming_assumed
from trtops.ops.evaluation.export_check import ExportedModel
from trtops.ops.evaluation.undefined import NanRows, random_nodes
from trtops.ops.model.lint import lint
from trtops.ops.search.accuracy import AccuracyConfig, accuracy, reference
from trtops.ops.triaging.result import Step
from trtops.ops.triaging.subject import Subject, first_lines
from trtops.spec import BuildConfig
from trtops.tables import counted

Outputs: TypeAlias = Sequence[Mapping[str, Any]]

_FAILING_NODE = re.compile(r"running \S+ node\. Name:'([^']*)'")  # in errors of ONNX Runtime


def ask_export(subject: Subject) -> Step:
    """Whether the ONNX model repeats the PyTorch module that it was exported from."""
    assert isinstance(subject.model, ExportedModel)
    check = subject.model.check
    if check.verdict == "good":
        return Step("yes", (f"{check.sentence()}.",))
    places = tuple(loss.place for loss in check.losses if loss.place)
    return Step("no", first_lines(check.reasons), kind="export", places=places, remedy=check.remedy)


def ask_data(subject: Subject) -> Step:
    """Whether the inputs are finite, or the model replaces their NaN itself."""
    opened = subject.data.feeds(subject.config.build.profiles)
    # A model that does not run at all is for the next question.
    with contextlib.suppress(errors.BackendError), naming_assumed(subject.model, opened):
        if opened.assumed:
            reference_outputs(subject.model.proto(), subject.feeds[:1])
    warning = "; they are random: faults that show on real data only are not found" if opened.random else ""
    source = f"Inputs come from {opened.source}, {counted(len(subject.feeds), 'feed')}{warning}."
    nan = NanRows.of(subject.model, subject.feeds)
    name = nan.name
    for feed in subject.feeds:
        for input_name, array in feed.items():
            if not name and array.dtype.kind == "f" and np.isinf(array).any():
                name = input_name
    if not name:
        return Step("usable", (source,))
    evidence = source, f"The {nan.reason}." if nan else f"Input {name!r} has infinity."
    return Step("not usable", evidence, kind="data", places=(name,), remedy=f"clean the data of input {name!r}")


def ask_structure(subject: Subject) -> Step:
    """Whether the file is a valid model, node by node."""
    if subject.engine is not None:
        return Step("sound", (f"Run `{subject.engine.run_id}` ran the whole model on this data.",))
    report = lint(str(subject.path), feed=subject.feeds[0])
    wrong = [entry for entry in report.entries if entry.level != "warning"]
    counts = f"{len(report.passing)} nodes pass, {len(report.failing)} fail, {len(report.unchecked)} were not checked."
    evidence = counts, *first_lines(entry.message for entry in (wrong or report.entries))
    if not wrong:
        return Step("sound", evidence)
    nodes = tuple(chain.from_iterable(entry.nodes for entry in wrong))
    command = NextStep("check lint", {"model": subject.path})
    return Step("broken", evidence, kind="invalid model", places=nodes, command=command)


def ask_shapes(subject: Subject) -> Step:
    """Whether the model itself runs on the data, and at the ends of each optimization profile."""
    profiles = subject.config.build.profiles
    try:
        count = len(subject.outputs)
    except errors.TrtopsError as exc:
        places = *_FAILING_NODE.findall(str(exc))[:1], *(shape.name for profile in profiles for shape in profile.shapes)
        remedy = "correct what fixes the shape, or narrow the profile: the model does not run at its ends"
        return Step("one fails", first_lines([str(exc)]), kind="shape", places=places, remedy=remedy)
    shapes = (
        f"at {3 * len(profiles)} ends of profiles" if profiles else "which has the only shapes: there are no profiles"
    )
    return Step("all run" if profiles else "no profiles", (f"The model runs on {counted(count, 'feed')}, {shapes}.",))


def ask_repeats(subject: Subject) -> Step:
    """Whether the model itself, not optimized, gives the same outputs with any random numbers, and no NaN."""
    undefined = subject.right_model(BuildConfig()).undefined(subject.config.check.tolerances)
    if undefined.random:
        nodes = tuple(node_name(node) for node in random_nodes(subject.model.structure()))
        remedy = "export the model without its random nodes, or compare under tolerances that allow for them"
        return Step("no", first_lines(undefined.reasons), kind="not repeatable", places=nodes, remedy=remedy)
    arrays = [np.asarray(array) for outputs in subject.outputs for array in outputs.values()]
    if not any(array.dtype.kind == "f" and np.isnan(array).any() for array in arrays):
        return Step("yes", ("Without optimizations, the model gives equal outputs each time, without NaN.",))
    config = AccuracyConfig(data=data_source(subject.feeds))
    comparison = accuracy(str(subject.path), reference, config, **subject.below())
    places: tuple[str, ...] = ()
    if comparison.reference_nan is not None:
        places = comparison.tensor(comparison.reference_nan).node, comparison.reference_nan
    return Step("NaN", comparison.because, kind="nan", places=places, remedy="guard it against its inputs")


def ask_golden(subject: Subject) -> Step:
    """Whether the model itself agrees with the golden outputs."""
    config, twin = subject.config, None
    golden: Outputs
    if config.golden_model is not None:
        twin = Model.load(config.golden_model).proto()
        golden = reference_outputs(twin, subject.feeds)
    elif config.check.golden is not None:
        golden = list(RunResults.load(config.check.golden)[0][1])
    else:
        return Step("none given", ("Without golden outputs and golden model, the model is taken to be right.",))
    exact = subject.right_model(BuildConfig()).tolerances(None)
    names = [name for name in golden[0] if name in subject.outputs[0]]
    report = compare_outputs(_only(names, subject.outputs), _only(names, golden), exact)
    if report:
        return Step("agrees", ("In FP32, without optimizations, the model agrees with the golden outputs.",))
    wrong = f"In FP32, without optimizations, the model is wrong: {first_lines(report.reasons)[0]}"
    # Names are all that two exports of a model have in common. Saved outputs may have tensors inside the model too.
    proto = subject.model.proto()
    makers = walk.makers(proto.graph.node)
    golden_names = golden[0].keys() if twin is None else walk.makers(twin.graph.node).keys()
    cutter = Cutter(proto)
    in_order = chain.from_iterable(map(cutter.visible, cutter.order))
    names = [name for name in in_order if name in golden_names]
    actual = _values(proto, names, subject.feeds)
    expected = _only(names, golden) if twin is None else _values(twin, names, subject.feeds)
    limits = replace(exact, nans_equal=True, infinities_equal=True, per_output={})
    bad = {output.name for output in compare_outputs(actual, expected, limits).bad}
    name = next((name for name in names if name in bad), None)
    if name is None:
        return Step("differs", (wrong,), kind="model", remedy="export the model again")
    places = node_name(makers[name]), name
    first = f"The first of {len(names)} tensors that differs is {name!r}, made by {label(makers[name])}."
    # A branch that nothing passes has the same value everywhere.
    if _is_constant(actual, name) and not _is_constant(expected, name):
        first += " It has one value for all inputs; the golden one does not."
        fault = Step("differs", kind="dead branch", remedy="find out why nothing gets through there")
    elif twin is None:
        fault = Step("differs", kind="model", remedy=f"see what feeds {places[0]!r}")
    else:
        fault = _difference_of_nodes(proto, twin, makers[name], name)
    return replace(fault, evidence=(wrong, first, *fault.evidence), places=(*fault.places, *places))


def _difference_of_nodes(proto: onnx.ModelProto, twin: onnx.ModelProto, node: onnx.NodeProto, tensor: str) -> Step:
    """Compare a node with the producer of the tensor of the same name in the golden model."""
    makers, twin_makers = walk.makers(proto.graph.node), walk.makers(twin.graph.node)
    other = twin_makers[tensor]
    weights, golden_weights = constant_tensors(proto.graph), constant_tensors(twin.graph)
    for name, golden_name in zip(node.input, other.input):
        if name not in weights or golden_name not in golden_weights:
            continue
        constant, golden_constant = map(onnx.numpy_helper.to_array, (weights[name], golden_weights[golden_name]))
        if constant.dtype != golden_constant.dtype or constant.tobytes() != golden_constant.tobytes():
            sentence = f"Its constant {name!r} differs from the golden model's {golden_name!r}."
            remedy = f"replace {name!r} by the golden model's {golden_name!r}"
            return Step("differs", (sentence,), kind="wrong constant", places=(name,), remedy=remedy)
    # Nodes of the golden model just above, whose results this model does not have.
    lost = [twin_makers[name] for name in other.input if name in twin_makers and name not in makers]
    if other.op_type != node.op_type:
        lost.insert(0, other)
    if not lost:
        sentence = f"The golden model has {label(other)} there, with other inputs or attributes."
        return Step("differs", (sentence,), kind="model", remedy="export the model again")
    labels = ", ".join(map(label, lost))
    sentence = f"The golden model has {labels} there; this one does not."
    places = tuple(map(node_name, lost))
    return Step("differs", (sentence,), kind="lost node", places=places, remedy=f"put {labels} back")


def _is_constant(outputs: Outputs, name: str) -> bool:
    values = np.concatenate([np.ravel(iteration[name]) for iteration in outputs])
    return bool(values.size > 1 and (values == values[0]).all())


def _values(proto: onnx.ModelProto, names: list[str], feeds: list[dict[str, Any]]) -> Outputs:
    """Values of some tensors of a model for each feed."""
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    set_outputs(changed, names)
    return reference_outputs(changed, feeds)


def _only(names: Sequence[str], outputs: Outputs) -> Outputs:
    return [{name: iteration[name] for name in names} for iteration in outputs]
