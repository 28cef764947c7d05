"""Questions about the data and the model, before anything is built."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

from trtops import errors
from trtops.backend.onnx import walk
from trtops.backend.onnx.constants import constant_tensors
from trtops.backend.onnx.model import Model
from trtops.backend.onnx.submodel import Cutter
from trtops.backend.onnx.walk import node_name
from trtops.backend.onnxrt.reference import reference_outputs
from trtops.comparator.report import Tolerances, compare_outputs
from trtops.ops.model.lint import lint
from trtops.ops.search.accuracy import AccuracyConfig, accuracy
from trtops.ops.search.accuracy_sides import reference
from trtops.ops.triaging.answer import Answer
from trtops.ops.triaging.subject import Subject, with_outputs

_FAILING_NODE = re.compile(r"running (\S+) node\. Name:'([^']*)'")


_WATCHED = 64
"""Tensors of a model that are held in memory at a time, to see which change."""


def ask_data(subject: Subject, parent: str) -> Answer:
    """Whether the inputs can say anything: finite, and not all the same."""
    evidence = [f"Inputs come from {subject.source}; {len(subject.feeds)} feeds."]
    if subject.config.check.data is None:
        evidence.append("They are random: what is wrong on real data only does not show.")
    for name in subject.feeds[0]:
        arrays = [np.asarray(feed[name]) for feed in subject.feeds]
        if arrays[0].dtype.kind not in "fiub":
            continue
        if any(array.dtype.kind == "f" and not np.isfinite(array).all() for array in arrays):
            why = f"Input {name!r} has NaN or infinity."
            return Answer(
                "not usable", (*evidence, why), kind="data", places=(name,), remedy=f"clean the data of input {name!r}"
            )
        flat = np.concatenate([np.ravel(array) for array in arrays])
        if flat.dtype.kind == "f" and flat.size > 1 and float(np.ptp(flat)) == 0:
            evidence.append(f"Input {name!r} is {flat[0]:g} everywhere.")
    return Answer("usable", tuple(evidence), ruled_out=("inputs with NaN or infinity",))


def ask_structure(subject: Subject, parent: str) -> Answer:
    """Whether the file is a model, node by node."""
    found = lint(str(subject.path), feed=subject.feeds[0])
    wrong = [entry for entry in found.entries if entry.level != "warning"]
    evidence = [f"{len(found.passing)} nodes pass, {len(found.failing)} fail, {len(found.unchecked)} were not checked."]
    evidence += [" ".join(entry.message.split())[:300] for entry in (wrong or found.entries)[:3]]
    if wrong:
        nodes = tuple(name for entry in wrong for name in entry.nodes)
        remedy = f"see `trtops check lint {subject.path.name}`"
        return Answer("broken", tuple(evidence), kind="invalid model", places=nodes, remedy=remedy)
    return Answer("sound", tuple(evidence), ruled_out=("a damaged or inconsistent file",))


def ask_shapes(subject: Subject, parent: str) -> Answer:
    """Whether the model itself runs at the ends of each optimization profile."""
    edges = list(subject.at_profile_edges())
    for where, shapes in edges:
        feed = dict(subject.feeds[0])
        feed |= {name: np.resize(feed[name], shape) for name, shape in shapes.items() if name in feed}
        try:
            reference_outputs(subject.model.proto(), [feed])
        except errors.TrtopsError as exc:
            shown = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            failing = _FAILING_NODE.search(str(exc))
            places = (*((failing[2],) if failing else ()), *shapes)
            evidence = (f"At {where} ({shown}) the model itself fails: {' '.join(str(exc).split())[:400]}",)
            remedy = f"mend what fixes the shape, or narrow the profile: the model does not run at {shown}"
            return Answer("one fails", evidence, kind="shape", places=places, remedy=remedy)
    if not edges:
        return Answer("no profiles", ("There is no optimization profile: the shapes are those of the data.",))
    return Answer(
        "all run", (f"The model runs at {len(edges)} ends of profiles.",), ruled_out=("shapes that it cannot take",)
    )


def ask_repeats(subject: Subject, parent: str) -> Answer:
    """Whether the model itself, not optimized, gives the same twice in one session, and no NaN."""
    count = len(subject.feeds)
    twice = reference_outputs(subject.model.proto(), [*subject.feeds, *subject.feeds])
    exactly = Tolerances(atol=0.0, rtol=0.0, nans_equal=True, infinities_equal=True)
    report = compare_outputs(twice[count:], twice[:count], exactly)
    nans = [name for outputs in twice for name, array in outputs.items() if _has_nan(array)]
    if nans:
        return _nan_of_model(subject, parent, nans[0])
    if report:
        same = "Run twice without optimizations, the model gives the same outputs to the bit, and no NaN."
        return Answer("yes", (same,), ruled_out=("random nodes", "NaN of the model itself"))
    evidence = [f"Run twice on the same data, it differs: {'; '.join(report.reasons)[:300]}"]
    first = _first_that_changes(subject, exactly)
    places: tuple[str, ...] = ()
    if first is not None:
        node = walk.makers(subject.model.structure().graph.node)[first]
        places = (node_name(node), first)
        evidence.append(f"The first tensor that changes is {first!r}, made by {node.op_type} {node_name(node)!r}.")
    remedy = "give random nodes a seed, or take them out; else compare under tolerances that allow for it"
    return Answer("no", tuple(evidence), kind="not repeatable", places=places, remedy=remedy)


def _nan_of_model(subject: Subject, parent: str, output: str) -> Answer:
    found = accuracy(
        str(subject.path), reference, AccuracyConfig(), feeds=subject.feeds, tracker=subject.tracker,
        experiment=subject.experiment, tags=subject.tags, parent=parent,
    )  # fmt: skip
    if found.reference_nan is None:
        return Answer("NaN", (f"The model itself gives NaN in {output!r}.",), kind="nan", places=(output,))
    place = found.tensor(found.reference_nan)
    evidence = (
        f"The model itself gives NaN in {output!r}, first in {place.name!r}, made by {place.op} {place.node!r}.",
    )
    remedy = f"guard {place.op} {place.node!r} against what it is fed with"
    return Answer("NaN", evidence, kind="nan", places=(place.node, place.name), remedy=remedy)


def _first_that_changes(subject: Subject, exactly: Tolerances) -> str | None:
    """The first tensor, in order of execution, that differs between two runs in one session; some tensors are watched at a time."""
    proto, count = subject.model.proto(), len(subject.feeds)
    cutter = Cutter(proto)
    names = [name for index in cutter.order for name in cutter.visible(index)]
    for start in range(0, len(names), _WATCHED):
        watched = names[start : start + _WATCHED]
        twice = reference_outputs(with_outputs(proto, watched), [*subject.feeds, *subject.feeds])
        report = compare_outputs(twice[count:], twice[:count], exactly)
        bad = {output.name for output in report.outputs if output.verdict == "bad"}
        first = next((name for name in watched if name in bad), None)
        if first is not None:
            return first
    return None


def _has_nan(array: Any) -> bool:
    array = np.asarray(array)
    return array.dtype.kind == "f" and bool(np.isnan(array).any())


def ask_golden(subject: Subject, parent: str) -> Answer:
    """Whether the model itself agrees with what it is to be held against."""
    golden = subject.golden
    if golden is None:
        return Answer(
            "none given", ("The model itself is held for right: there are no golden outputs, and no golden model.",)
        )
    names = [name for name in golden[0] if name in subject.outputs[0]]
    report = compare_outputs(
        [{n: o[n] for n in names} for o in subject.outputs], [{n: g[n] for n in names} for g in golden], subject.exact
    )
    if report:
        evidence = ("In FP32, without optimizations, the model agrees with what it is held against.",)
        return Answer("agrees", evidence, ruled_out=("a fault of the model itself",))
    return _fault_of_model(subject, golden, report.reasons)


def _fault_of_model(subject: Subject, golden: Sequence[Mapping[str, Any]], reasons: Sequence[str]) -> Answer:
    """The first tensor that differs from a golden one of its name, and what about its node does."""
    mine = subject.model.proto()
    cutter = Cutter(mine)
    twin = None if subject.config.golden_model is None else Model.load(subject.config.golden_model).proto()
    visible = [name for index in cutter.order for name in cutter.visible(index)]
    there = {name for node in twin.graph.node for name in node.output} if twin is not None else set(golden[0])
    common = [name for name in visible if name in there]
    actual = reference_outputs(with_outputs(mine, common), subject.feeds)
    expected = golden if twin is None else reference_outputs(with_outputs(twin, common), subject.feeds)
    report = compare_outputs(
        [{n: o[n] for n in common} for o in actual],
        [{n: o[n] for n in common} for o in expected],
        replace(subject.exact, nans_equal=True, infinities_equal=True, per_output={}),
    )
    bad = {output.name for output in report.outputs if output.verdict == "bad"}
    first = next((name for name in common if name in bad), None)
    evidence = [f"In FP32, without optimizations, the model is wrong: {'; '.join(reasons)[:300]}"]
    if first is None:
        return Answer("differs", tuple(evidence), kind="model", remedy="export the model again")
    node = walk.makers(mine.graph.node)[first]
    evidence.append(
        f"The first of {len(common)} tensors that differs is {first!r}, made by {node.op_type} {node_name(node)!r}."
    )
    if _is_constant([o[first] for o in actual]) and not _is_constant([o[first] for o in expected]):
        evidence.append("It has one value whatever the inputs are; the golden one has not.")
        return Answer(
            "differs",
            tuple(evidence),
            kind="dead branch",
            places=(node_name(node), first),
            remedy="see why nothing gets through there",
        )
    if twin is None:
        return Answer(
            "differs",
            tuple(evidence),
            kind="model",
            places=(node_name(node), first),
            remedy=f"see what feeds {node_name(node)!r}",
        )
    return _difference_of_nodes(mine, twin, node, first, evidence)


def _is_constant(arrays: Sequence[Any]) -> bool:
    flat = np.concatenate([np.ravel(np.asarray(array)) for array in arrays])
    return flat.dtype.kind in "fiub" and flat.size > 1 and bool((flat == flat[0]).all())


def _difference_of_nodes(
    mine: onnx.ModelProto, twin: onnx.ModelProto, node: onnx.NodeProto, tensor: str, evidence: list[str]
) -> Answer:
    """What makes a node give something else than the one that makes the tensor of that name in the golden model."""
    other = walk.makers(twin.graph.node)[tensor]
    weights, others = _constants(mine), _constants(twin)
    for name, golden_name in zip(node.input, other.input):
        if name in weights and golden_name in others and not _are_equal(weights[name], others[golden_name]):
            said = f"Its constant {name!r} is not that of the golden model: {_shown(weights[name])} for {_shown(others[golden_name])}."
            remedy = f"put the golden model's {golden_name!r} in place of {name!r}"
            return Answer(
                "differs",
                (*evidence, said),
                kind="wrong constant",
                places=(name, node_name(node), tensor),
                remedy=remedy,
            )
    lost = _lost_nodes(mine, twin, node, other)
    if lost:
        named = ", ".join(f"{each.op_type} {node_name(each)!r}" for each in lost)
        said = f"The golden model has {named} there, and this one has not."
        places = (*(node_name(each) for each in lost), node_name(node), tensor)
        return Answer("differs", (*evidence, said), kind="lost node", places=places, remedy=f"put {named} back")
    said = f"The golden model has {other.op_type} {node_name(other)!r} there, with other inputs or attributes."
    return Answer(
        "differs", (*evidence, said), kind="model", places=(node_name(node), tensor), remedy="export the model again"
    )


def _lost_nodes(
    mine: onnx.ModelProto, twin: onnx.ModelProto, node: onnx.NodeProto, other: onnx.NodeProto
) -> list[onnx.NodeProto]:
    """Nodes of the golden model just above a node, whose results this model does not have."""
    made = {name for each in mine.graph.node for name in each.output}
    makers = walk.makers(twin.graph.node)
    found = [makers[name] for name in other.input if name in makers and name not in made]
    return [other, *found] if other.op_type != node.op_type else found


def _constants(model: onnx.ModelProto) -> dict[str, Any]:
    return {name: onnx.numpy_helper.to_array(tensor) for name, tensor in constant_tensors(model.graph).items()}


def _are_equal(one: Any, two: Any) -> bool:
    return (
        one.shape == two.shape
        and one.dtype == two.dtype
        and bool(np.array_equal(one, two, equal_nan=one.dtype.kind == "f"))
    )


def _shown(array: Any) -> str:
    flat = np.ravel(array)
    return f"{flat[0]}" if flat.size == 1 else f"{array.dtype}{list(array.shape)} from {_least(flat)} to {_most(flat)}"


def _least(flat: Any) -> str:
    return f"{np.nanmin(flat):.4g}" if flat.size and flat.dtype.kind in "fiu" else "-"


def _most(flat: Any) -> str:
    return f"{np.nanmax(flat):.4g}" if flat.size and flat.dtype.kind in "fiu" else "-"


def first_lines(texts: Sequence[str], count: int = 3) -> Iterator[str]:
    """The first of many reasons, each in one line."""
    yield from (" ".join(text.split())[:300] for text in texts[:count])
