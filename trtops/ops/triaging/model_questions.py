"""Questions about the model and its data, before anything is built."""

import contextlib
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from trtops import errors
from trtops.backend.onnx.walk import node_name
from trtops.backend.onnxrt.runner import reference_outputs
from trtops.backend.torch.export import export_of
from trtops.calibration.data import data_source
from trtops.comparator.report import compare_outputs
from trtops.comparator.results import RunResults
from trtops.next_step import NextStep
from trtops.ops.evaluation.data import naming_assumed
from trtops.ops.evaluation.export_check import LossKind, check_export
from trtops.ops.evaluation.undefined import NanRows, random_nodes
from trtops.ops.model.lint import lint
from trtops.ops.search.accuracy import AccuracyConfig, accuracy, reference
from trtops.ops.triaging.result import Step
from trtops.ops.triaging.subject import Subject, first_lines
from trtops.spec import BuildConfig
from trtops.tables import counted

_REMEDIES: Mapping[LossKind, str] = {
    "values": "report the module that differs to the makers of the exporter, or write it in other operators",
    "constant": "compute with tensors what depends on the size (torch.cond, torch.arange), or build for one size",
    # Advice for the user: the method of a module that leaves training mode.
    "training": "call eval() before torch.export.export, and pass training=self.training to dropout",
    "input": "give the export every input under the name of its parameter",
    "state": "make the state an input and an output of forward",
}
_FAILING_NODE = re.compile(r"running \S+ node\. Name:'([^']*)'")  # in errors of ONNX Runtime


def ask_export(subject: Subject) -> Step:
    """Whether the ONNX model repeats the PyTorch module that it was exported from."""
    export = export_of(subject.path)
    assert export is not None
    check = check_export(export, subject.model, subject.feeds)
    if check.verdict == "good":
        return Step("yes", (f"{check.sentence()}.",))
    places = tuple(loss.place for loss in check.losses if loss.place)
    remedy = _REMEDIES[check.losses[0].kind if check.losses else "values"]
    return Step("no", first_lines(check.reasons), kind="export", places=places, remedy=remedy)


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
    path = subject.config.check.golden
    if path is None:
        return Step("none given", ("Without golden outputs, the model is taken to be right.",))
    golden = RunResults.load(path)[0][1]
    exact = subject.right_model(BuildConfig()).tolerances(None)
    names = [name for name in golden[0] if name in subject.outputs[0]]
    report = compare_outputs(_only(names, subject.outputs), _only(names, golden), exact)
    if report:
        return Step("agrees", ("In FP32, without optimizations, the model agrees with the golden outputs.",))
    evidence = f"In FP32, without optimizations, the model is wrong: {first_lines(report.reasons)[0]}"
    places = tuple(output.name for output in report.bad)
    return Step("differs", (evidence,), kind="model", places=places, remedy="export the model again")


def _only(names: Sequence[str], outputs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{name: iteration[name] for name in names} for iteration in outputs]
