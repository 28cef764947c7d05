"""What runs state about the evaluation of an engine: its data, its golden outputs, its numbers and its verdict."""

import contextlib
from dataclasses import replace

from trtops import errors
from trtops.backend.onnx.model import Model
from trtops.ops.evaluation.check import CheckConfig, Evaluation, evaluation_metrics
from trtops.ops.facts import Facts, SharedReads, model_path
from trtops.record import canonical_json, sha256_file
from trtops.spec import BuildConfig
from trtops.tracking.base import StoredRun
from trtops.tracking.builds import Materials, read_materials
from trtops.tracking.schema import Artifact, Tag


def audit_facts(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare metrics with the logged comparison, and the verdict with its numbers."""
    path = Artifact.ACCURACY
    evaluation = Evaluation.from_json(run.read_bytes(path))
    families, expected = ["error", "latency", "accuracy", "loss", "self_check", "power"], evaluation_metrics(evaluation)
    if run.info.kind == "gate":  # its result has the latency, measured in turn with the accepted engine
        families.remove("latency")
        expected = {name: value for name, value in expected.items() if name[0] != "latency"}
    facts.metrics(expected, path, families)
    outputs = {output.name for output in evaluation.report.outputs}
    if (model := shared.model(run)) is not None:
        model_outputs = {tensor.name for tensor in model.outputs}
        if not model_outputs <= outputs:
            facts.add("outputs", {path: sorted(outputs), "the model": sorted(model_outputs)})
    # The verdict of a gate depends on more than this, and so does that of a refused promotion.
    refused = run.info.kind == "promote" and run.info.verdict != "good"
    if run.info.kind in ("build", "evaluate", "iteration", "promote") and not refused:
        facts.tag("verdict", Tag.VERDICT, path, evaluation.verdict)
        with contextlib.suppress(errors.ComparisonError):  # a tolerance that needs the arrays
            derived = evaluation.report.evaluate(evaluation.report.tolerances)
            facts.add("verdict", {f"the numbers in {path}": replace(evaluation, report=derived).verdict})


def data_facts(run: StoredRun, build: BuildConfig, shared: SharedReads, facts: Facts) -> Materials:
    """Compare check data and golden outputs with their digests in the materials, and return the materials."""
    path = Artifact.MATERIALS
    materials = (read_materials(run.read_bytes(path)) if path in run.manifest else None) or Materials(check={})
    listed = {entry.path for entry in run.manifest.artifacts if entry.path.startswith(Artifact.MATERIALS_FOLDER)}
    for unlisted_path in sorted(listed - {material.path for material in materials.inputs}):
        facts.wrong(unlisted_path, f"{path} does not list it")
    for material in materials.inputs:
        fact = f"{material.name} given"
        if material.name == "golden":
            facts.add(fact, {path: material.sha256, material.path: sha256_file(run.local_path(material.path))})
        elif material.name == "data" and material.path and shared.model(run) is not None:
            check = CheckConfig.from_dict(materials.check)
            data_digest = _data_digest(run, material.path, check, build, shared)
            facts.add(fact, {path: material.sha256, material.path: data_digest})
    return materials


def _data_digest(run: StoredRun, path: str, check: CheckConfig, build: BuildConfig, shared: SharedReads) -> str:
    """The digest of logged check data, with its copies in the shapes of profiles."""
    file = run.local_path(path)

    def read() -> str:
        logged_check = replace(check, data=str(file))
        return logged_check.open_for(Model.load(model_path(run)), profiles=build.profiles).digest()

    return shared.once(("data", sha256_file(file), canonical_json(check), canonical_json(build)), read)
