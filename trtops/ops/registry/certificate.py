"""Certificates: write the engine of a run with signed facts into a folder, and verify such a folder."""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trtops import errors
from trtops.backend.base import Build, Engine, Feed
from trtops.backend.engines import engine_backend
from trtops.backend.onnx.model import Model
from trtops.comparator.arrays import as_arrays
from trtops.comparator.report import Tolerances
from trtops.comparator.results import RunResults
from trtops.metadata import TensorSpec, is_dynamic
from trtops.ops.arguments import checked_arguments
from trtops.ops.evaluation.check import Evaluation
from trtops.ops.evaluation.data import golden_outputs, scripts_of
from trtops.ops.registry.promote import check_of
from trtops.ops.result import OpResult, run_step, tracker_or_default
from trtops.serving import certificate
from trtops.spec import BuildSpec, Environment, OptimizationProfile
from trtops.system import signing
from trtops.system.allowed import ask_for
from trtops.tables import size
from trtops.tracking import builds
from trtops.tracking.base import StoredRun, Tracker, Verdict, run_id_of
from trtops.tracking.schema import Artifact, Tag

_SUFFIXES = {"onnxruntime": ".ort", "tensorrt": ".plan"}
_LARGEST = 64 << 20  # bytes of stored inputs and outputs
_FIELDS = {
    "model": {"name", "sha256"},
    "engine": {"file", "sha256", "bytes"},
    "environment": {"backend", "backend_version", "device"},
    "verdict": {"verdict", "evidence"},
}


@dataclass(frozen=True, kw_only=True)
class CertificateResult(OpResult):
    """A certified engine, or why a folder does not hold one."""

    title: str = "certificate"
    folder: str
    verdict: Verdict = "good"
    reasons: tuple[str, ...] = ()
    key: str = ""  # id of the key that signed it
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def because(self) -> tuple[str, ...]:
        """The reasons, and the certified verdict unless it is good."""
        certified = self.facts["verdict"]["verdict"] if self.facts else "good"
        refusal = () if certified == "good" else (f"the engine's verdict is {certified}, so the loader refuses it",)
        return (*self.reasons, *refusal)

    @property
    def figures(self) -> str:
        """What is certified."""
        if not self.facts:
            return ""
        engine, stack = self.facts["engine"], self.facts["environment"]
        return (
            f"{engine['file']} ({size(engine['bytes'])}) of {self.facts['model']['name']}, for {stack['backend']} "
            f"{stack['backend_version']} on {stack['device']}, signed by {self.key[:12]}"
        )

    def body(self) -> Iterable[str]:
        """What is certified, and what its verdict rests on."""
        yield self.figures
        if self.facts:
            yield from ("", f"Verdict: {self.facts['verdict']['verdict']}. {self.facts['verdict']['evidence']}")


@checked_arguments
def write_certificate(
    run: str,
    folder: str | Path,
    *,
    tracker: Tracker | None = None,
    model: str | Path | None = None,
    days: float | None = None,
    allow_unproven: bool = False,
    allow_scripts: bool = False,
) -> CertificateResult:
    """Write the engine of a good run into a new folder, with signed facts (:mod:`trtops.serving.certificate`).

    The engine runs once more on the first feed of its evaluation, which is stored with the golden outputs.

    Args:
        run: The run of a build, an evaluation of an engine built elsewhere, or a promotion.
        folder: A new folder.
        tracker: The tracking store.
        model: The ONNX file (default: the one that the run kept, or that it was built from).
        days: How long the certificate is valid; None for ever.
        allow_unproven: Certify an engine whose data cannot support a verdict; the facts say so.
        allow_scripts: Run a data script that the run names.

    Raises ConfigError if the run is not good, or ``TRTOPS_SIGNING_KEY`` names no key; EngineLoadError if the engine is
    of another release or device than here.
    """
    signing.private_key()
    if days is not None and not days > 0:
        raise errors.ConfigError(f"days is {days}; expected more than 0.")
    tracker = tracker_or_default(tracker)
    stored = tracker.load(run_id_of(run, tracker))
    accepted = ("good", "unproven") if allow_unproven else ("good",)
    if stored.info.verdict not in accepted:
        raise errors.ConfigError(
            f"Run {stored.info.id} has the verdict {stored.info.verdict!r}; only good engines are certified"
            f"{' (with --allow-unproven, this one as well)' if stored.info.verdict == 'unproven' else ''}."
        )
    build = builds.load_build(stored.holder)
    loaded = Model.load(builds.find_model(tracker, stored.info, model))
    if loaded.info.sha256 != build.spec.model_sha256:
        raise errors.ConfigError(f"{loaded.path} is not the model of run {stored.info.id}; its content differs.")
    check = check_of(tracker, stored.info)
    ask_for(stored.info.id, scripts_of(check.data), (), allowed=allow_scripts)
    feed = next(iter(check.open_for(loaded, profiles=build.spec.config.profiles)))
    golden = golden_outputs(loaded, [feed], None) if check.golden is None else RunResults.load(check.golden)
    with engine_backend(build.engine.backend).runner(build.engine) as runner:
        outputs = run_step("run", lambda: as_arrays({n: np.array(a) for n, a in runner.infer(feed).items()}))
    made = time.time()
    times = {"made": made, "expires": None if days is None else made + 86400 * days}
    facts, arrays = _facts(stored, build, loaded, feed, as_arrays(golden[0][1][0]), outputs)
    certificate.write_folder(Path(folder), {**facts, **times}, build.engine.plan, arrays)
    return CertificateResult(folder=str(folder), key=signing.own_key_id(), facts={**facts, **times})


def _facts(
    stored: StoredRun, build: Build, model: Model, feed: Feed, golden: Mapping[str, Any], outputs: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The facts of an engine, without times, and the arrays of its fingerprint."""
    evaluation = Evaluation.from_json(stored.read_bytes(Artifact.ACCURACY))
    tolerances = evaluation.report.tolerances
    inputs = [tensor for tensor in model.info.inputs if tensor.name in feed]
    arrays, limits = dict[str, np.ndarray](), dict[str, dict[str, float]]()
    for number, tensor in enumerate(inputs):
        arrays[f"input_{number}"] = certificate.storable(np.asarray(feed[tensor.name]))
    for number, tensor in enumerate(model.info.outputs):
        array = np.asarray(golden[tensor.name])
        arrays[f"output_{number}"] = certificate.storable(array)
        atol, rtol = _element_limits(tolerances.of(tensor.name), array)
        limits[tensor.name] = certificate.fingerprint(array, np.asarray(outputs[tensor.name]), atol, rtol)
    if (total := sum(array.nbytes for array in arrays.values())) > _LARGEST:
        raise errors.ConfigError(
            f"Inputs and outputs of one feed have {size(total)}; a certificate stores at most {size(_LARGEST)}. "
            "Evaluate the engine on smaller data first."
        )
    plan = build.engine
    facts = {
        "format": certificate.FORMAT,
        "run": stored.info.id,
        "experiment": stored.info.experiment,
        "model": {"name": model.name, "sha256": build.spec.model_sha256},
        "engine": {
            "file": engine_file(plan),
            "sha256": plan.sha256,
            "bytes": len(plan.plan),
            "backend": plan.backend,
            "options": dict(plan.options),
        },
        **_build_facts(build.spec, plan.environment),
        "inputs": [tensor_facts(tensor, arrays[f"input_{number}"]) for number, tensor in enumerate(inputs)],
        "outputs": [
            tensor_facts(tensor, arrays[f"output_{number}"]) for number, tensor in enumerate(model.info.outputs)
        ],
        "verdict": verdict_facts(stored, evaluation),
        "fingerprint": limits,
    }
    return facts, arrays


def engine_file(engine: Engine) -> str:
    """The name of an engine's file."""
    return "engine.onnx" if engine.options.get("format") == "ONNX" else f"engine{_SUFFIXES[engine.backend]}"


def _build_facts(spec: BuildSpec, environment: Environment) -> dict[str, Any]:
    """The facts of how an engine was built, and where."""
    return {
        "environment": environment.to_dict(),
        "spec_sha256": None if spec.unknown else spec.digest,
        "unknown": list(spec.unknown),
        "precision": spec.config.precision,
        "profiles": list(map(profile_facts, spec.config.profiles)),
    }


def verdict_facts(stored: StoredRun, evaluation: Evaluation) -> dict[str, Any]:
    """The facts of an engine's verdict."""
    evidence, report, checked = evaluation.evidence, evaluation.report, evaluation.self_check
    margin, decisive, relations = report.margin, report.decisive, None
    if checked is not None:
        names = {outcome: list(checked.named(outcome)) for outcome in ("held", "broken", "skipped")}
        relations = {"verdict": checked.verdict, **names}
    return {
        "verdict": stored.info.verdict,
        "reasons": list(evaluation.reasons),
        "evidence": "" if evidence is None else evidence.sentence(),
        "limits": report.tolerances.to_dict(),
        "margin": None
        if margin is None or decisive is None
        else {"output": decisive.name, "metric": margin.label, "value": margin.value, "limit": margin.limit},
        "data_sha256": None if evidence is None else evidence.data_sha256,
        "self_check": relations,
    }


def _element_limits(tolerances: Tolerances, golden: np.ndarray) -> tuple[float, float]:
    """The limits of each element of an output; infinite if others limit it."""
    if tolerances.check_error_stat != "elemwise" or not np.issubdtype(golden.dtype, np.floating):
        return np.inf, np.inf
    finite = np.abs(golden[np.isfinite(golden)].astype(np.float64))
    of_scale = (tolerances.atol_of_scale or 0.0) * float(np.max(finite, initial=0.0))
    return max(tolerances.atol, of_scale), tolerances.rtol


def profile_facts(profile: OptimizationProfile) -> dict[str, Any]:
    """The facts of a profile."""
    return {shape.name: {"min": shape.min, "opt": shape.opt, "max": shape.max} for shape in profile.shapes}


def tensor_facts(tensor: TensorSpec, array: np.ndarray) -> dict[str, Any]:
    """Return the facts of an input or output, and of its array."""
    dtype = array.dtype.name if tensor.dtype is None else tensor.dtype.value
    shape = array.shape if tensor.shape is None else tensor.shape
    return {"name": tensor.name, "dtype": dtype, "shape": [-1 if is_dynamic(dim) else dim for dim in shape]}


@checked_arguments
def verify_certificate(
    folder: str | Path, keys: Sequence[str | Path], *, tracker: Tracker | None = None
) -> CertificateResult:
    """Verify a certified engine: signature, the digest of every file, expiry, and the run if there is its store.

    Nothing is loaded or run. ``keys`` are public keys as PEM files; one of them must have signed. With a
    ``tracker``, the facts are compared with the run that they name. ConfigError if a key cannot be read.

    >>> verify_certificate("resnet", keys=()).reasons
    ("'resnet' has no certificate.sig; expected a folder of `certificate write`.",)
    """
    for key in keys:
        signing.key_id(key)
    try:
        signer, facts = certificate.read_facts(Path(folder), keys)
        for section, names in _FIELDS.items():
            if not isinstance(facts.get(section), dict) or not names <= facts[section].keys():
                expected = f"{section!r} with {', '.join(sorted(names))}"
                raise errors.SignatureError(f"{str(folder)!r}: {certificate.FACTS} has no {expected}.")
        if not isinstance(facts.get("run"), str):
            raise errors.SignatureError(f"{str(folder)!r}: {certificate.FACTS} names no run.")
    except errors.SignatureError as exc:
        return CertificateResult(folder=str(folder), verdict="bad", reasons=(str(exc),))
    reasons = () if tracker is None else tuple(_contradictions(facts, tracker))
    verdict: Verdict = "bad" if reasons else "good" if facts["verdict"]["verdict"] == "good" else "unproven"
    return CertificateResult(folder=str(folder), verdict=verdict, reasons=reasons, key=signer, facts=facts)


def _contradictions(facts: Mapping[str, Any], tracker: Tracker) -> Iterable[str]:
    """Where the facts differ from the run that they name."""
    try:
        stored = tracker.load(facts["run"])
        spec = BuildSpec.from_json(stored.holder.read_bytes(Artifact.SPEC))
        environment = Environment.from_json(stored.holder.read_bytes(Artifact.ENVIRONMENT))
        evaluation = Evaluation.from_json(stored.read_bytes(Artifact.ACCURACY))
    except (errors.RunNotFoundError, errors.IncompleteRunError, errors.FormatError) as exc:
        yield f"run {facts['run']}: {exc}"
        return
    tags, build_facts = stored.info.tags, _build_facts(spec, environment)
    sections = {
        "engine": {"sha256": tags.get(Tag.ENGINE_SHA256)},
        "model": {"sha256": tags.get(Tag.MODEL_SHA256)},
        "environment": build_facts.pop("environment"),
        "verdict": verdict_facts(stored, evaluation),
        "": build_facts,
    }
    for section, recorded in json.loads(json.dumps(sections)).items():
        certified = facts[section] if section else facts
        for name, value in recorded.items():
            # Another release may write these sentences in another way.
            if name not in ("reasons", "evidence") and certified.get(name) != value:
                claims = f"the certificate has {certified.get(name)}; run {stored.info.id} has {value}"
                yield f"{section} {name}: {claims}".strip()
