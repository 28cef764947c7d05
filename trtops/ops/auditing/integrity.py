"""Check the integrity of a run: every fact that is stored in several places must be the same everywhere.

A fact has claims: values with their sources. Two different values are a contradiction, and so is an unreadable file.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from trtops import errors
from trtops.backend.onnx.model import Model
from trtops.ops.auditing.result import Claim, Contradiction
from trtops.ops.evaluation.check import Evaluation, evaluation_metrics
from trtops.ops.gate.result import GateResult
from trtops.record import sha256, sha256_file
from trtops.spec import BuildSpec, Environment, Layer
from trtops.tactics.denied import DenyList
from trtops.tactics.record import TacticRecord
from trtops.tactics.table import CampaignTable
from trtops.tracking import builds, campaigns, schema
from trtops.tracking.base import MetricName, RegisteredVersion, RunInfo, StoredRun, Tracker
from trtops.tracking.builds import Materials, read_materials
from trtops.tracking.schema import Artifact, Metric, Tag
from trtops.tracking.signatures import check_signature
from trtops.verdict import PASSED, VERDICTS

BUILDS = ("build", "iteration", "promote", "gate")
"""Kinds of runs that hold an engine; a gate only does if it built its candidate."""

_NONE = "nothing"


class Facts:
    """Claims about a run, grouped by fact."""

    def __init__(self, info: RunInfo) -> None:
        """Start without claims."""
        self._info = info
        self._claims: dict[str, list[Claim]] = {}
        self.problems: list[Contradiction] = []

    def add(self, what: str, values: Mapping[str, object]) -> None:
        """Add the values of a fact, by source; None is ignored."""
        claims = [Claim(place=place, value=str(value)) for place, value in values.items() if value is not None]
        self._claims.setdefault(what, []).extend(claims)

    def tag(self, what: str, tag: str, place: str, value: object, missing: str | None = None) -> None:
        """Add a tag of the run, or a value for a missing one, and the same fact in another place."""
        self.add(what, {f"tag {tag}": self._info.tags.get(tag, missing), place: value})

    def metric(self, what: str, name: MetricName, place: str, value: float) -> None:
        """Add a metric of the run, and the same fact in another place."""
        self.add(what, {f"metric {'/'.join(name)}": self._info.metrics.get(name), place: float(value)})

    def metrics(self, expected: Mapping[MetricName, float], place: str, further: Callable[[MetricName], bool]) -> None:
        """Compare metrics that follow from a file, and look for further ones that do not."""
        stored, expected = self._info.metrics, {schema.fitting(name): value for name, value in expected.items()}
        for name in sorted({*expected, *filter(further, stored)}):
            one, other = expected.get(name), stored.get(name)
            # A database may store fewer digits than a float has.
            if one is None or other is None or not math.isclose(one, other, rel_tol=1e-12):
                values = {"the store": _NONE if other is None else other, place: _NONE if one is None else one}
                self.add(f"metric {'/'.join(name)}", values)

    def wrong(self, what: str, why: str) -> None:
        """Add a problem that needs no second source."""
        self.problems.append(Contradiction(what=what, why=why))

    def contradictions(self) -> tuple[Contradiction, ...]:
        """Groups with differing values, and problems."""
        differing = (
            Contradiction(what=what, claims=tuple(dict.fromkeys(claims)))
            for what, claims in self._claims.items()
            if len({claim.value for claim in claims}) > 1
        )
        return (*self.problems, *differing)


@dataclass
class SharedReads:
    """Data that several runs of an audit need, read once. Each build must be signed with one of the public keys."""

    tracker: Tracker
    keys: tuple[str, ...] = ()
    _tables: dict[str, CampaignTable | None] = field(default_factory=dict)
    _models: dict[tuple[str, ...], str] = field(default_factory=dict)

    @functools.cached_property
    def accepted(self) -> list[tuple[str, RegisteredVersion]]:
        """All aliases of the registry, with their versions."""
        return list(self.tracker.accepted())

    def table(self, campaign: str) -> CampaignTable | None:
        """The table of a finished campaign; None if it has no readable table."""
        if campaign not in self._tables:
            self._tables[campaign] = None
            with contextlib.suppress(errors.TrackingError, errors.FormatError, errors.ConfigError):
                if self.tracker.info(campaign).status == "finished":
                    self._tables[campaign] = campaigns.load_table(self.tracker, campaign)
        return self._tables[campaign]

    def model_digest(self, run: StoredRun) -> str | None:
        """The content digest of a run's model; None if it logged none, InvalidModelError if it is no model."""
        entries = [e for e in run.manifest.artifacts if e.path.startswith(Artifact.MODEL)]
        # By the files' digests: many runs log the same model, and reading it takes longer than all other checks.
        key = tuple(entry.sha256 for entry in entries)
        if key and key not in self._models:
            files = [run.local_path(entry.path) for entry in entries]
            # One of several files is the model, the others are its external data.
            model = next((file for file in files if file.suffix == ".onnx"), files[0])
            self._models[key] = Model.load(model).info.sha256
        return self._models.get(key)


def check_integrity(run: StoredRun, shared: SharedReads) -> tuple[int, str, tuple[Contradiction, ...]]:
    """Compare everything that a run states in several places.

    Returns the number of files that match, the key that signed the run (or an empty text), and the contradictions.
    """
    facts = Facts(run.info)
    files = _check_files(run, facts)
    signature = check_signature(run, shared.keys, facts.wrong)
    for needed, kinds, check in _CHECKS:
        try:
            if run.info.kind in kinds and (not needed or needed in run):
                check(run, shared, facts)
        except errors.IncompleteRunError as exc:
            if not facts.problems:  # otherwise the file is already reported
                facts.wrong(f"run {run.info.id}", str(exc))
        except (errors.FormatError, errors.InvalidModelError, errors.RunNotFoundError, errors.StoreError) as exc:
            facts.wrong(f"run {run.info.id}", f"{type(exc).__name__}: {exc}")
    return files, signature, facts.contradictions()


def _check_files(run: StoredRun, facts: Facts) -> int:
    """Compare files with the manifest, and the manifest with tags; returns the number of files that match."""
    files = 0
    for entry in run.manifest.artifacts:
        try:
            run.local_path(entry.path)
            files += 1
        except errors.IncompleteRunError as exc:
            facts.wrong(entry.path, str(exc))
    # As it was first written: engines that were deleted later are still named in the tags.
    manifest = run.manifest.original()
    found = sha256(manifest.to_json().encode("utf-8"))
    facts.tag(Artifact.MANIFEST, Tag.MANIFEST_SHA256, "the file", found)
    if (text := run.info.tags.get(Tag.DIGESTS)) is not None:
        try:
            digests = dict(json.loads(text))
        except (ValueError, TypeError) as exc:
            facts.wrong(Tag.DIGESTS, f"it is not a JSON object ({exc})")
            return files
        entries = {entry.path: entry.sha256 for entry in manifest.artifacts}
        for path in sorted({*digests, *entries}):
            tagged, stored = digests.get(path, _NONE), entries.get(path, _NONE)
            facts.add(path, {f"tag {Tag.DIGESTS}": tagged, Artifact.MANIFEST: stored})
    return files


def _check_build(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare spec, environment, model and engine of a build with tags, params and metrics."""
    info = run.info
    spec = BuildSpec.from_json(run.read_bytes(Artifact.SPEC))
    environment = Environment.from_json(run.read_bytes(Artifact.ENVIRONMENT))
    facts.tag("spec", Tag.SPEC_SHA256, Artifact.SPEC, spec.digest)
    facts.tag("model", Tag.MODEL_SHA256, Artifact.SPEC, spec.model_sha256)
    facts.add("model", {"the content of the model file": shared.model_digest(run)})
    key = builds.build_key(spec, environment)
    facts.tag("build key", Tag.BUILD_KEY, f"{Artifact.SPEC} and {Artifact.ENVIRONMENT}", key)
    expected = builds.environment_tags(environment)
    for tag in builds.ENVIRONMENT_TAGS:
        facts.tag(f"environment ({tag})", tag, Artifact.ENVIRONMENT, expected.get(tag, _NONE), _NONE)
    for name, value in (schema.flat_params(spec.config) | builds.environment_params(environment)).items():
        source = Artifact.ENVIRONMENT if name.startswith("env.") else Artifact.SPEC
        facts.add(f"param {name}", {"the store's params": info.params.get(name, _NONE), source: value})
    stored = run.holder
    reused_from = None if stored is run else stored.info.id
    facts.tag("the run of the engine", Tag.REUSED_FROM, Artifact.REUSED, reused_from or _NONE, _NONE)
    # A build that reused an engine has no file of it; the earlier run has.
    if reused_from is not None:
        for tag in (Tag.MODEL_SHA256, Tag.SPEC_SHA256, Tag.BUILD_KEY):
            facts.tag(tag, tag, f"tag of run {reused_from}, whose engine it reused", stored.info.tags.get(tag))
    entries = stored.manifest.original().artifacts
    engine = next((entry for entry in entries if entry.path.startswith(f"{builds.ENGINE_STEM}.")), None)
    if engine is None:
        # A gate also refuses candidates that cannot be built, and holds no engine then.
        if info.verdict in PASSED or (info.verdict == "bad" and info.kind != "gate"):
            facts.wrong("engine", f"the run is {info.verdict} and holds no engine")
        return
    place = Artifact.MANIFEST if reused_from is None else f"manifest of run {reused_from}"
    facts.tag("engine", Tag.ENGINE_SHA256, place, engine.sha256, _NONE)
    facts.metric("size of the engine", Metric.ENGINE_BYTES, place, engine.size)
    if reused_from is None and engine.path in run.manifest:
        with contextlib.suppress(errors.IncompleteRunError):  # already reported
            facts.add("engine", {engine.path: sha256_file(run.local_path(engine.path))})
        _check_materials(run, spec, environment, facts)


def _check_tactics(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare the tactic record with layers, environment and metrics."""
    record = TacticRecord.from_json(run.read_bytes(Artifact.TACTICS))
    environment = Environment.from_json(run.read_bytes(Artifact.ENVIRONMENT))
    layers = [Layer.from_dict(each) for each in json.loads(run.read_bytes(Artifact.LAYERS))]
    for what, name in (
        ("release that chose the tactics", "backend_version"),
        ("device of the tactics", "device_sha256"),
    ):
        facts.add(what, {Artifact.TACTICS: getattr(record, name), Artifact.ENVIRONMENT: getattr(environment, name)})
    what = "share of layers with a replayable tactic"
    facts.metric(what, Metric.TACTICS_COVERAGE, Artifact.TACTICS, record.coverage)
    facts.metric("number of layers", Metric.ENGINE_LAYERS, Artifact.LAYERS, len(layers))
    if record.mechanism == "onnxruntime":  # its layers and choices have the same names
        chosen = {choice.layer: choice.tactic for choice in record.choices}
        for layer in layers:
            if layer.tactic:
                values = {Artifact.TACTICS: chosen.get(layer.name, _NONE), Artifact.LAYERS: layer.tactic}
                facts.add(f"tactic of {layer.name}", values)


def _check_materials(run: StoredRun, spec: BuildSpec, environment: Environment, facts: Facts) -> None:
    """Compare the inputs of the build with its spec."""
    path = Artifact.MATERIALS
    materials = read_materials(run.read_bytes(path)) if path in run.manifest else None
    materials = materials or Materials(check={})
    readers: dict[str, tuple[str | None, Callable[[bytes], str]]] = {
        "timing_cache": (spec.timing_cache_sha256, sha256),
        "replay": (spec.replay_sha256, lambda text: TacticRecord.from_json(text).digest),
        "denied": (spec.denied_sha256, lambda text: DenyList.from_json(text).here(environment).digest),
    }
    for name, (digest, read) in readers.items():
        material = materials.of(name)
        if material is not None and material.path:
            values = {Artifact.SPEC: digest or _NONE, material.path: read(run.read_bytes(material.path))}
            facts.add(f"{name} given", values)
    given, path = materials.of("calibration_cache"), Artifact.CALIBRATION_CACHE
    if spec.config.precision == "int8" and path in run.manifest and given is not None:
        values = {path: sha256(run.read_bytes(path)), Artifact.MATERIALS: given.sha256}
        facts.add("calibration cache given", {Artifact.SPEC: spec.calibration_sha256 or _NONE, **values})


def _check_accuracy(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare metrics with the logged comparison, and the verdict with its numbers."""
    path = Artifact.ACCURACY
    evaluation = Evaluation.from_json(run.read_bytes(path))

    def compared(name: MetricName) -> bool:
        # Metrics over all outputs follow from those of each output.
        return (name[0] == Metric.ERROR and len(name) == 3) or name[0] == Metric.ACCURACY

    expected = evaluation_metrics(evaluation).items()
    facts.metrics({n: v for n, v in expected if compared(n) or n[0] == Metric.LATENCY}, path, compared)
    if run.info.kind in BUILDS and run.info.kind != "gate":  # the verdict of a gate depends on more than this
        facts.tag("verdict", Tag.VERDICT, path, evaluation.verdict)
        with contextlib.suppress(errors.ComparisonError):  # a tolerance that needs the arrays
            derived = evaluation.report.evaluate(evaluation.report.tolerances)
            facts.add("verdict", {f"the numbers in {path}": replace(evaluation, report=derived).verdict})


def _check_gate(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare the decision of a gate with its findings, and metrics with its measurements."""
    result = GateResult.from_json(run.read_bytes(Artifact.GATE))
    facts.tag("the gate's decision", Tag.GATE, Artifact.GATE, result.decision, _NONE)
    facts.tag("verdict", Tag.VERDICT, Artifact.GATE, result.verdict)
    facts.metrics(result.metrics(), Artifact.GATE, lambda name: name[0] == Metric.GATE)


def _check_campaign(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare the metrics of a campaign, and the verdicts of its iterations, with its table."""
    place = Artifact.CAMPAIGN_TABLE
    table = CampaignTable.from_bytes(run.read_bytes(place))
    for verdict, count in campaigns.counts(table).items():
        facts.metric(f"iterations that are {verdict}", (Metric.ITERATIONS, verdict), place, count)
    # A missing child may have been deleted, which is no contradiction.
    children = {i.id: i for i in shared.tracker.find(run.info.experiment, parent=run.info.id, status="finished")}
    for code, child in zip(table.verdicts, table.names):
        if child in children:
            values = {place: VERDICTS[code], "that run's tag": children[child].verdict or _NONE}
            facts.add(f"verdict of iteration {child}", values)


def _check_parent(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare the verdict of an iteration with the table of its campaign."""
    table = None if run.info.parent is None else shared.table(run.info.parent)
    if table is not None and run.info.id in table.names:
        verdict = VERDICTS[table.verdicts[table.names.index(run.info.id)]]
        facts.tag("verdict", Tag.VERDICT, f"{Artifact.CAMPAIGN_TABLE} of run {run.info.parent}", verdict)


def _check_registry(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare the registered versions of a run, and their aliases, with the tags of the run."""
    info = run.info
    for alias, version in shared.accepted:
        if version.run_id != info.id:
            continue
        place = f"version {version.version} of {version.name!r}"
        for tag in (Tag.MODEL_SHA256, Tag.ENGINE_SHA256, *builds.ENVIRONMENT_TAGS):
            what = {Tag.MODEL_SHA256: "model", Tag.ENGINE_SHA256: "engine"}.get(tag, f"registry ({tag})")
            facts.tag(what, tag, place, version.tags.get(tag, _NONE), _NONE)
        # Aliases that users set are their own; ours name model and device, and then perhaps the precision.
        if alias.startswith("model-"):
            model, device = info.tags.get(Tag.MODEL_SHA256, "")[:12], info.tags.get(Tag.DEVICE_SHA256, "")[:12]
            expected = f"model-{model}_device-{device}"
            facts.add(f"alias {alias}", {place: "_".join(alias.split("_")[:2]), "the run's tags": expected})
        evidence, what = version.tags.get(Tag.EVIDENCE, _NONE), f"registry ({Tag.EVIDENCE})"
        if info.kind == "promote":
            facts.tag(what, Tag.EVIDENCE, place, evidence, _NONE)
            continue
        # The evidence is the gate that accepted the engine, which may have been built by another run.
        gate = info if evidence == info.id else shared.tracker.info(evidence)
        concerned = gate.tags.get(Tag.EVIDENCE, gate.id)
        facts.add(f"{what}: the engine concerned", {place: info.id, f"run {gate.id}": concerned})
        decision = gate.tags.get(Tag.GATE, _NONE)
        facts.add(f"{what}: the gate's decision", {place: "accept", f"tag {Tag.GATE} of run {gate.id}": decision})


_CHECKS: tuple[tuple[str, tuple[str, ...], Callable[[StoredRun, SharedReads, Facts], None]], ...] = (
    (Artifact.SPEC, BUILDS, _check_build),
    (Artifact.LAYERS, BUILDS, _check_tactics),
    (Artifact.ACCURACY, (*BUILDS, "compare"), _check_accuracy),
    (Artifact.GATE, ("gate",), _check_gate),
    (Artifact.CAMPAIGN_TABLE, ("debug_build",), _check_campaign),
    ("", ("iteration",), _check_parent),
    ("", schema.KINDS, _check_registry),
)
"""Every check, with the file and the kinds of runs that it needs."""
