"""The model under triage, and the questions about it and its data, before anything is built."""

import contextlib
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
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
from trtops.comparator.results import IterationResult, RunResults
from trtops.next_step import NextStep
from trtops.ops.engines.convert import read_cache_file
from trtops.ops.evaluation.data import naming_assumed
from trtops.ops.evaluation.limits import tolerances_for
from trtops.ops.evaluation.right_model import RightModel
from trtops.ops.evaluation.undefined import NanRows
from trtops.ops.model.lint import lint
from trtops.ops.search.accuracy import AccuracyConfig, accuracy, reference
from trtops.ops.triaging.result import Answer, TriageConfig
from trtops.spec import BuildConfig
from trtops.system.processes import temporary_prefix
from trtops.tables import counted
from trtops.tracking.base import Tracker

_FAILING_NODE = re.compile(r"running \S+ node\. Name:'([^']*)'")  # in errors of ONNX Runtime
_TO_THE_BIT = Tolerances(atol=0.0, rtol=0.0, nans_equal=True, infinities_equal=True)


@dataclass(frozen=True)
class Subject:
    """A model under triage, the answers so far by question, and a folder for the smallest failing case."""

    path: Path
    config: TriageConfig
    tracker: Tracker
    experiment: str
    tags: Mapping[str, str]
    answers: dict[str, str] = field(default_factory=dict)
    files: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix=temporary_prefix("triage"))))

    def below(self, parent: str) -> dict[str, Any]:
        """Options of an op for a run below another."""
        return {"tracker": self.tracker, "experiment": self.experiment, "tags": self.tags, "parent": parent}

    @cached_property
    def model(self) -> Model:
        """The model."""
        return Model.load(self.path)

    @cached_property
    def feeds(self) -> list[dict[str, Any]]:
        """Its inputs."""
        opened = self.config.check.open_for(self.model, profiles=self.config.build.profiles)
        return [{name: np.asarray(array) for name, array in feed.items()} for feed in opened]

    @cached_property
    def outputs(self) -> list[dict[str, Any]]:
        """The outputs of the model itself for each feed, in its own precision and not optimized."""
        return [dict(outputs) for outputs in reference_outputs(self.model.proto(), self.feeds)]

    @cached_property
    def tolerances(self) -> Tolerances:
        """The fixed tolerances of the precision, as limits for parts of the model."""
        return tolerances_for(self.config.build.precision, self.config.check.tolerances, self.model)

    def right_model(self, build: BuildConfig, calibration: bytes | None = None) -> RightModel:
        """The model on its inputs, and the effect of rounding as in a build."""
        golden = RunResults([("golden", [IterationResult(dict(outputs)) for outputs in self.outputs])])
        return RightModel(model=self.model, build=build, feeds=self.feeds, golden=golden, calibration=calibration)

    @cached_property
    def calibration(self) -> bytes | None:
        """The calibration cache for the builder."""
        return read_cache_file(self.config.calibration_cache, "calibration_cache")


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
    evidence = [
        f"{len(report.passing)} nodes pass, {len(report.failing)} fail, {len(report.unchecked)} were not checked."
    ]
    evidence += first_lines([entry.message for entry in (wrong or report.entries)])
    if wrong:
        nodes = tuple(chain.from_iterable(entry.nodes for entry in wrong))
        remedy = f"see `{NextStep('check lint', {'model': subject.path})}`"
        return Answer("broken", tuple(evidence), kind="invalid model", places=nodes, remedy=remedy)
    return Answer("sound", tuple(evidence))


def ask_shapes(subject: Subject, parent: str) -> Answer:
    """Whether the model itself runs at the ends of each optimization profile."""
    count = 0
    for number, profile in enumerate(subject.config.build.profiles):
        for which in ("min", "opt", "max"):
            shapes = {shape_range.name: getattr(shape_range, which) for shape_range in profile.shapes}
            feed = dict(subject.feeds[0])
            # Values repeat, since only the shapes matter.
            feed |= {name: np.resize(feed[name], shape) for name, shape in shapes.items() if name in feed}
            count += 1
            try:
                reference_outputs(subject.model.proto(), [feed])
            except errors.TrtopsError as exc:
                shown = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
                reason = next(first_lines([str(exc)]))
                sentence = f"In profile {number}, {which} ({shown}), the model itself fails: {reason}"
                places = (*_FAILING_NODE.findall(str(exc))[:1], *shapes)
                remedy = f"correct what fixes the shape, or narrow the profile: the model does not run at {shown}"
                return Answer("one fails", (sentence,), kind="shape", places=places, remedy=remedy)
    if not count:
        return Answer("no profiles", ("There is no optimization profile: the shapes are those of the data.",))
    return Answer("all run", (f"The model runs at {count} ends of profiles.",))


def ask_repeats(subject: Subject, parent: str) -> Answer:
    """Whether the model itself, not optimized, gives the same outputs twice in one session, without NaN."""
    # In one session: nodes with a seed repeat from session to session, and still differ from call to call.
    count, proto = len(subject.feeds), subject.model.proto()
    twice = reference_outputs(proto, [*subject.feeds, *subject.feeds])
    for name in twice[0]:
        if any(np.asarray(outputs[name]).dtype.kind == "f" and np.isnan(outputs[name]).any() for outputs in twice):
            config = AccuracyConfig()
            comparison = accuracy(str(subject.path), reference, config, feeds=subject.feeds, **subject.below(parent))
            sentence = f"The model itself gives NaN in {name!r}"
            if comparison.reference_nan is None:
                return Answer("NaN", (f"{sentence}.",), kind="nan", places=(name,))
            first_nan = comparison.tensor(comparison.reference_nan)
            sentence += f", first in {first_nan.name!r}, made by {first_nan.op} {first_nan.node!r}."
            remedy = f"guard {first_nan.op} {first_nan.node!r} against its inputs"
            return Answer("NaN", (sentence,), kind="nan", places=(first_nan.node, first_nan.name), remedy=remedy)
    report = compare_outputs(twice[count:], twice[:count], _TO_THE_BIT)
    if report:
        same = "Run twice without optimizations, the model gives outputs that are equal to the bit, without NaN."
        return Answer("yes", (same,))
    evidence: tuple[str, ...] = (f"Two runs on the same data differ: {'; '.join(report.reasons)[:300]}",)
    places: tuple[str, ...] = ()
    cutter = Cutter(proto)
    names = list(chain.from_iterable(map(cutter.visible, cutter.order)))
    values = _values(proto, names, [*subject.feeds, *subject.feeds])
    first = _first_bad(names, values[count:], values[:count], _TO_THE_BIT)
    if first is not None:
        node = walk.makers(proto.graph.node)[first]
        places = (node_name(node), first)
        evidence += (f"The first tensor that changes is {first!r}, made by {_named(node)}.",)
    remedy = "export the model without its random nodes, or compare under tolerances that allow for them"
    return Answer("no", evidence, kind="not repeatable", places=places, remedy=remedy)


def ask_golden(subject: Subject, parent: str) -> Answer:
    """Whether the model itself agrees with the golden outputs."""
    twin = None if subject.config.golden_model is None else Model.load(subject.config.golden_model).proto()
    golden: list[Mapping[str, Any]]
    if twin is not None:
        golden = [*reference_outputs(twin, subject.feeds)]
    elif subject.config.check.golden is not None:
        golden = list(RunResults.load(subject.config.check.golden)[0][1])
    else:
        sentence = "There are no golden outputs and no golden model: the model is taken to be right."
        return Answer("none given", (sentence,))
    exact = subject.right_model(BuildConfig()).tolerances(None)
    names = [name for name in golden[0] if name in subject.outputs[0]]
    report = compare_outputs(_only(names, subject.outputs), _only(names, golden), exact)
    if report:
        return Answer("agrees", ("In FP32, without optimizations, the model agrees with the golden outputs.",))
    sentence = f"In FP32, without optimizations, the model is wrong: {'; '.join(report.reasons)[:300]}"
    # The first tensor that differs from the golden one of its name.
    mine = subject.model.proto()
    # Names are all that two exports of a model have in common.
    golden_names = set(golden[0]) if twin is None else walk.makers(twin.graph.node).keys()
    cutter = Cutter(mine)
    common = [name for name in chain.from_iterable(map(cutter.visible, cutter.order)) if name in golden_names]
    actual = _values(mine, common, subject.feeds)
    # Saved outputs may have tensors inside the model too.
    expected: Sequence[Mapping[str, Any]] = golden if twin is None else _values(twin, common, subject.feeds)
    first = _first_bad(common, actual, _only(common, expected), replace(exact, nans_equal=True, infinities_equal=True))
    if first is None:
        return Answer("differs", (sentence,), kind="model", remedy="export the model again")
    node = walk.makers(mine.graph.node)[first]
    evidence = (sentence, f"The first of {len(common)} tensors that differs is {first!r}, made by {_named(node)}.")
    places = (node_name(node), first)
    # A branch that nothing passes has the same value everywhere.
    flat, golden_flat = (np.concatenate([np.ravel(outputs[first]) for outputs in side]) for side in (actual, expected))
    if flat.size > 1 and (flat == flat[0]).all() and not (golden_flat == golden_flat[0]).all():
        constant = "It has one value for all inputs; the golden one does not."
        remedy = "find out why nothing gets through there"
        return Answer("differs", (*evidence, constant), kind="dead branch", places=places, remedy=remedy)
    if twin is None:
        return Answer("differs", evidence, kind="model", places=places, remedy=f"see what feeds {places[0]!r}")
    return _difference_of_nodes(mine, twin, node, first, evidence)


def _difference_of_nodes(
    mine: onnx.ModelProto, twin: onnx.ModelProto, node: onnx.NodeProto, tensor: str, evidence: tuple[str, ...]
) -> Answer:
    """Compare a node with the producer of the tensor of the same name in the golden model."""
    makers = walk.makers(twin.graph.node)
    other = makers[tensor]
    places: tuple[str, ...] = (node_name(node), tensor)
    weights, golden_weights = (
        {name: onnx.numpy_helper.to_array(t) for name, t in constant_tensors(m.graph).items()} for m in (mine, twin)
    )
    for name, golden_name in zip(node.input, other.input):
        constant, golden_constant = weights.get(name), golden_weights.get(golden_name)
        if (
            constant is None
            or golden_constant is None
            or (constant.dtype == golden_constant.dtype and constant.tobytes() == golden_constant.tobytes())
        ):
            continue
        sentence = f"Its constant {name!r} differs from the golden model's {golden_name!r}."
        remedy = f"replace {name!r} by the golden model's {golden_name!r}"
        return Answer("differs", (*evidence, sentence), kind="wrong constant", places=(name, *places), remedy=remedy)
    # Nodes of the golden model just above, whose results this model does not have.
    own_names = walk.makers(mine.graph.node)
    lost = [makers[name] for name in other.input if name in makers and name not in own_names]
    if other.op_type != node.op_type:
        lost.insert(0, other)
    if lost:
        named = ", ".join(map(_named, lost))
        evidence += (f"The golden model has {named} there; this one does not.",)
        places = (*map(node_name, lost), *places)
        return Answer("differs", evidence, kind="lost node", places=places, remedy=f"put {named} back")
    evidence += (f"The golden model has {_named(other)} there, with other inputs or attributes.",)
    return Answer("differs", evidence, kind="model", places=places, remedy="export the model again")


def _named(node: onnx.NodeProto) -> str:
    return f"{node.op_type} {node_name(node)!r}"


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


def first_lines(texts: Sequence[str]) -> Iterator[str]:
    """The first three texts, shortened, each in one line."""
    yield from (" ".join(text.split())[:300] for text in texts[:3])
