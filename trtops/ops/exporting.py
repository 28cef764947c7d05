"""Export: write the engine of a run into a Triton model repository, with a client that repeats its verdict there."""

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trtops import errors
from trtops.comparator.tasks.outputs import load_labels
from trtops.next_step import quoted
from trtops.ops.arguments import checked_arguments
from trtops.ops.bundling.case import Case, evaluated_case
from trtops.ops.evaluation.check import CheckConfig, Evaluation
from trtops.ops.evaluation.data import scripts_of
from trtops.ops.registry import certificate
from trtops.ops.result import OpResult, tracker_or_default
from trtops.ops.stored_build import Logged, MaterialFolder, gather
from trtops.record import Config, setting
from trtops.serving import client
from trtops.serving.triton import TritonModel
from trtops.system import signing
from trtops.system.allowed import ask_for
from trtops.system.processes import temporary_prefix
from trtops.tracking import schema
from trtops.tracking.base import StoredRun, Tracker, run_id_of
from trtops.tracking.builds import read_materials
from trtops.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class ExportConfig(Config):
    """Options of an export.

    Attributes:
        triton: The folder of the Triton model repository.
        name: Name of the model in the repository (default: the run's experiment).
        max_batch: The largest batch that Triton may make, 0 for none (default: what profiles and self-check allow).
        instances: Instances of the model on each device.
        labels: File with the names of the only output's classes: a `.txt` file with one in a line, or a `.json` list.
        allow_unproven: Export an engine whose verdict is unproven.
        allow_scripts: Allow data scripts that the run names.
        materials: Folder that is searched by digest for the model, if the run did not log it.
    """

    triton: str | None = setting(None, file="writes")
    name: str | None = None
    max_batch: int | None = setting(None, least=0)
    instances: int = setting(1, least=1)
    labels: str | None = setting(None, file="reads")
    allow_unproven: bool = False
    allow_scripts: bool = False
    materials: str | None = setting(None, file="reads")


@dataclass(frozen=True, kw_only=True)
class ExportResult(OpResult):
    """The model in the repository."""

    verdict: Verdict = "good"  # always: what Triton would refuse is not written
    exported: Verdict  # the verdict of the engine
    folder: str  # of the model
    version: int
    max_batch: int
    no_batches: str = ""  # why Triton does not batch
    client: str

    @property
    def headline(self) -> str:
        """The new version, and its batches."""
        batches = f"batches of up to {self.max_batch}" if self.max_batch else "no batches"
        return f"version {self.version} in {self.folder}, {batches}"

    @property
    def because(self) -> tuple[str, ...]:
        """The engine's verdict unless it is good, and why Triton does not batch."""
        unproven = () if self.exported == "good" else (f"the engine's verdict is {self.exported}",)
        return (*unproven, *((f"Triton does not batch: {self.no_batches}",) if self.no_batches else ()))

    @property
    def figures(self) -> str:
        """How to check the server."""
        return f"start the server, then run `python {quoted(self.client)}`"

    def body(self) -> Iterable[str]:
        """The files, and how to use them."""
        yield f"`{self.folder}/{self.version}` has the engine of run `{self.run_id}`, whose verdict is {self.exported}."
        yield from (f"- {reason}." for reason in self.because)
        yield f"`python {self.client}` repeats the verdict on a running server."


@checked_arguments
def export(run: str, config: ExportConfig = ExportConfig(), *, tracker: Tracker | None = None) -> ExportResult:
    """Write the engine of a build into a Triton model repository, as the next version of a model.

    Triton batches requests only if the profiles take the batches, and the self-check showed that rows of a batch do not
    depend on each other. With a signing key, the version holds the engine's certificate as well. ConfigError if Triton
    would not load the model, or the engine is not good.

    >>> check = trtops.CheckConfig(data="feed.npz", self_check=True)
    >>> built = trtops.convert("model.onnx", trtops.ConvertConfig(check=check))
    >>> export(built.run_id, ExportConfig(triton="models", max_batch=8)).headline
    'version 1 in models/model, batches of up to 8'
    """
    if config.triton is None:
        raise errors.ConfigError("There is no folder to export to: give that of a Triton model repository (--triton).")
    tracker = tracker_or_default(tracker)
    stored = tracker.load(run_id_of(run, tracker))
    if stored.info.verdict is None or schema.Artifact.SPEC not in stored:
        raise errors.ConfigError(f"Run {stored.info.id} holds no engine; its kind is {stored.info.kind}.")
    if (materials := read_materials(stored.get(schema.Artifact.MATERIALS))) is not None:
        scripts = scripts_of(CheckConfig.from_dict(materials.check).data)
        ask_for(stored.info.id, scripts, (), allowed=config.allow_scripts)
    logged = gather(stored, tracker, MaterialFolder(config.materials))
    if not logged.build.engine.plan:
        raise errors.ConfigError(f"The engine of run {stored.info.id} is damaged or was dropped: build it again.")
    case = evaluated_case(logged, logged.model.name)
    facts = _facts(stored, logged, case)
    model = TritonModel(
        name=config.name or stored.info.experiment,
        facts=facts,
        feeds=case.feeds,
        golden=case.golden,
        max_batch=config.max_batch,
        instances=config.instances,
        labels=tuple(map(str, load_labels(config.labels))) if config.labels else (),
        allow_unproven=config.allow_unproven,
    )
    files = {facts["engine"]["file"]: logged.build.engine.plan}
    if signing.signs_here():
        with tempfile.TemporaryDirectory(prefix=temporary_prefix("export")) as scratch:
            folder = Path(scratch, "engine")
            certificate.write_certificate(
                stored.info.id,
                folder,
                tracker=tracker,
                allow_unproven=config.allow_unproven,
                allow_scripts=config.allow_scripts,
            )
            files = {path.name: path.read_bytes() for path in folder.iterdir()}
    client_files = {"client.py": Path(client.__file__).read_bytes(), **case.files()}
    version = model.write(Path(config.triton), files, client_files)
    return ExportResult(
        title=f"export {stored.info.name}",
        run_id=stored.info.id,
        url=stored.info.url,
        experiment=stored.info.experiment,
        exported=stored.info.verdict,
        folder=f"{config.triton}/{model.name}",
        version=version,
        max_batch=model.batch,
        no_batches=model.no_batches,
        client=f"{config.triton}/{model.name}/client/client.py",
    )


def _facts(stored: StoredRun, logged: Logged, case: Case) -> dict[str, Any]:
    """The facts that an export needs, as in a certificate."""
    engine, info = logged.build.engine, logged.model.info
    evaluation = Evaluation.from_json(stored.read_bytes(schema.Artifact.ACCURACY))
    feed, golden = case.feeds[0], case.golden[0]
    return {
        "engine": {"file": certificate.engine_file(engine), "backend": engine.backend, "options": engine.options},
        "environment": engine.environment.to_dict(),
        "profiles": list(map(certificate.profile_facts, logged.build.spec.config.profiles)),
        "inputs": [certificate.tensor_facts(tensor, np.asarray(feed[tensor.name])) for tensor in info.inputs],
        "outputs": [certificate.tensor_facts(tensor, np.asarray(golden[tensor.name])) for tensor in info.outputs],
        "verdict": certificate.verdict_facts(stored, evaluation),
    }
