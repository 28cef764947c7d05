"""The last question: the smallest case that still fails, and its bundle."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeAlias

from trtops import errors
from trtops.backend.engines import engine_backend
from trtops.backend.onnx.model import Model
from trtops.backend.onnxrt.reference import reference_outputs
from trtops.json import load_json
from trtops.ops.bundling.case import Case, built_case, emulated_case, failing_case
from trtops.ops.bundling.config import BundleConfig
from trtops.ops.bundling.op import write_bundle
from trtops.ops.evaluation.submodel import Check, ComparisonCheck
from trtops.ops.search.reduce import reduce
from trtops.ops.search.reduce_search import ReduceConfig
from trtops.ops.triaging.answer import Answer
from trtops.ops.triaging.of_build import fails_emulated, fails_to_build, pinned_side
from trtops.ops.triaging.subject import Subject

MINIMAL = "minimal.onnx"
BUNDLE = "bundle.zip"


Of: TypeAlias = Literal["rounded", "built", "failing"]
"""What shows the fault: rounding after each node, an engine's outputs, or that no engine is built or runs."""


def ask_minimal(subject: Subject, parent: str, of: Of) -> Answer:
    """How small the failing case gets."""
    if of == "built":
        check: Check = ComparisonCheck(
            runner=pinned_side(subject, parent), tolerances=replace(subject.tolerances, per_output={})
        )
    else:
        check = fails_emulated(subject) if of == "rounded" else fails_to_build(subject)
    output = subject.files / MINIMAL
    asked = ReduceConfig(output=str(output), max_checks=subject.config.reduce_checks)
    found = reduce(
        str(subject.path), check, asked, feeds=subject.feeds, tracker=subject.tracker, experiment=subject.experiment,
        tags=subject.tags, parent=parent,
    )  # fmt: skip
    builds = 0 if of == "rounded" else found.checks
    if not found.culprits:
        return Answer("it is not seen in parts", (found.detail,), builds=builds)
    culprit = found.culprits[0]
    evidence = (f"{len(culprit.nodes)} of {found.nodes} nodes still fail: {', '.join(culprit.labels)}.",)
    places = culprit.labels if of == "failing" else ()
    return Answer(f"{len(culprit.nodes)} nodes", evidence, places=places, model=str(output), builds=builds)


def ask_bundle(subject: Subject, parent: str, of: Of) -> Answer:
    """Whether a stranger can repeat the smallest case."""
    path = subject.files / MINIMAL
    if not path.is_file():
        return Answer("nothing to bundle", ("There is no smallest case.",))
    try:
        case = _minimal_case(subject, parent, path, of)
        environment = engine_backend(case.backend).environment()
        found = write_bundle(case, BundleConfig(output=str(subject.files / BUNDLE)), environment)
    except errors.TrtopsError as exc:
        return Answer("no", (" ".join(str(exc).split())[:500],))
    said = found.said.strip().splitlines()
    return Answer("yes", (f"{BUNDLE}, {found.size} bytes.", *(said[-1:] or ["It could not be tried here."])))


def _minimal_case(subject: Subject, parent: str, path: Path, of: Of) -> Case:
    model = Model.load(path)
    feeds = [dict(feed) for feed in load_json(str(path.with_name(f"{path.stem}_inputs.json")))]
    case = Case(
        name=f"{subject.experiment}, smallest case",
        backend="onnxruntime" if of == "rounded" else subject.config.build.backend,
        model=model.proto(),
        feeds=feeds,
        golden=[dict(outputs) for outputs in reference_outputs(model.proto(), feeds)],
        tolerances=replace(subject.tolerances, per_output={}),
        verdict="error" if of == "failing" else "bad",
        settings={},
        original=model.proto(),
    )
    if of == "rounded":
        return emulated_case(case, "bf16" if subject.config.build.precision == "bf16" else "fp16")
    if of == "failing":
        return failing_case(case, subject.config.build, subject.caches.calibration)
    side = pinned_side(subject, parent)
    return built_case(case, side.build(model.proto()), side.caches.calibration)
