"""Check the integrity of a run: every fact that is stored in several places must be the same everywhere.

A fact is a group of claims: values with their sources. A group with two different values is a contradiction. Unreadable
files are contradictions as well.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trtops import errors
from trtops.backend.onnx.model import Model
from trtops.calibration.cache import read_cache
from trtops.ops.auditing.result import Claim, Contradiction
from trtops.ops.evaluation.check import Evaluation, error_metrics
from trtops.ops.gate.result import GateResult, gate_metrics
from trtops.record import sha256, sha256_file
from trtops.spec import BuildSpec, Environment, Layer
from trtops.tactics.denied import DenyList
from trtops.tactics.record import TacticRecord
from trtops.tactics.table import CampaignTable, Choice
from trtops.tracking import builds, campaigns, schema
from trtops.tracking.base import MetricName, RegisteredVersion, RunInfo, StoredRun, Tracker
from trtops.tracking.materials import Materials, read_materials
from trtops.tracking.signatures import check_signature
from trtops.verdict import VERDICTS

BUILDS = ("build", "iteration", "promote", "gate")
"""Kinds of runs that hold an engine; a gate only does if it built its candidate."""

_NONE = "nothing"
_LATENCIES = ("p50_ms", "p99_ms", "mean_ms", "device_p50_ms")


class Facts:
    """Claims, grouped by fact."""

    def __init__(self) -> None:
        """Start without claims."""
        self._claims: dict[str, list[Claim]] = {}
        self.found: list[Contradiction] = []

    def add(self, what: str, place: str, value: object) -> None:
        """Add the value of a source; None is ignored."""
        if value is not None:
            self._claims.setdefault(what, []).append(Claim(place=place, value=str(value)))

    def wrong(self, what: str, why: str) -> None:
        """Add a problem that needs no second source."""
        self.found.append(Contradiction(what=what, why=why))

    def contradictions(self) -> tuple[Contradiction, ...]:
        """Groups with differing values, and problems."""
        differing = (
            Contradiction(what=what, claims=tuple(dict.fromkeys(claims)))
            for what, claims in self._claims.items()
            if len({claim.value for claim in claims}) > 1
        )
        return (*self.found, *differing)


@dataclass
class SharedReads:
    """Data that several runs of an audit need, read once.

    Attributes:
        tracker: The tracking store.
        keys: Public keys, one of which must have signed each build.
    """

    tracker: Tracker
    keys: tuple[str, ...] = ()
    _tables: dict[str, tuple[CampaignTable | None, dict[str, int]]] = field(default_factory=dict)
    _models: dict[tuple[str, ...], str] = field(default_factory=dict)

    @functools.cached_property
    def accepted(self) -> dict[str, list[tuple[str, RegisteredVersion]]]:
        """Aliases and versions of the registry, by run."""
        found: dict[str, list[tuple[str, RegisteredVersion]]] = {}
        for alias, version in self.tracker.accepted():
            found.setdefault(version.run_id, []).append((alias, version))
        return found

    def table(self, campaign: str) -> tuple[CampaignTable | None, dict[str, int]]:
        """The table of a finished campaign and its rows by run; None if it has no readable table."""
        if campaign not in self._tables:
            table = None
            try:
                info = self.tracker.info(campaign)
                if info.kind == "debug_build" and info.status == "finished":
                    data = self.tracker.peek(campaign, schema.Artifact.CAMPAIGN_TABLE)
                    table = None if data is None else CampaignTable.from_bytes(data)
            except (errors.TrackingError, errors.FormatError):
                table = None
            rows = {} if table is None else {name: row for row, name in enumerate(table.names)}
            self._tables[campaign] = (table, rows)
        return self._tables[campaign]

    def model_digest(self, run: StoredRun) -> str | None:
        """The content digest of the model that a run logged; None if it logged none.

        Raises:
            ModelError: If the file is not a model.
        """
        entries = [e for e in run.manifest.artifacts if e.path.startswith(schema.Artifact.MODEL)]
        key = tuple(entry.sha256 for entry in entries)
        if key and key not in self._models:
            files = [run.local_path(entry.path) for entry in entries]
            # One of several files is the model, the others are its external data.
            model = next((file for file in files if file.suffix == ".onnx"), files[0])
            self._models[key] = Model.load(model).info.sha256
        return self._models.get(key)


def check_integrity(run: StoredRun, shared: SharedReads) -> tuple[int, str, tuple[Contradiction, ...]]:
    """Compare everything that a run states in several places.

    Returns:
        The number of files that match, the key that signed the run (or an empty text), and the contradictions.

    Raises:
        TrackingUnavailableError: If the store becomes unavailable.
    """
    facts = Facts()
    files = _check_files(run, facts)
    signature = check_signature(run, shared.keys, facts.wrong)
    for check in (_check_build, _check_accuracy, _check_gate, _check_campaign, _check_parent, _check_registry):
        try:
            check(run, shared, facts)
        except errors.IncompleteRunError as exc:
            if not facts.found:  # otherwise the file is already reported
                facts.wrong(f"run {run.info.id}", str(exc))
        except (errors.FormatError, errors.ModelError, errors.RunNotFoundError, errors.StoreError) as exc:
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
    tags = run.info.tags
    manifest = run.manifest.original()
    facts.add(schema.Artifact.MANIFEST, f"tag {schema.Tag.MANIFEST_SHA256}", tags.get(schema.Tag.MANIFEST_SHA256))
    facts.add(schema.Artifact.MANIFEST, "the file", sha256(manifest.to_json().encode("utf-8")))
    if (text := tags.get(schema.Tag.DIGESTS)) is not None:
        digests: Any = {}
        try:
            digests = json.loads(text)
        except ValueError as exc:
            facts.wrong(schema.Tag.DIGESTS, f"it is not JSON ({exc})")
        digests = digests if isinstance(digests, dict) else {}
        entries = {entry.path: entry.sha256 for entry in manifest.artifacts}
        for path in sorted({*digests, *entries}):
            facts.add(path, f"tag {schema.Tag.DIGESTS}", digests.get(path, _NONE))
            facts.add(path, schema.Artifact.MANIFEST, entries.get(path, _NONE))
    return files


def _check_build(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare spec, environment, model, engine, tactics and materials of a build with tags, params and metrics."""
    if run.info.kind not in BUILDS or schema.Artifact.SPEC not in run.manifest:
        return
    spec = BuildSpec.from_json(run.read_bytes(schema.Artifact.SPEC))
    environment = Environment.from_json(run.read_bytes(schema.Artifact.ENVIRONMENT))
    tags, files = run.info.tags, (schema.Artifact.SPEC, schema.Artifact.ENVIRONMENT)
    facts.add("spec", f"tag {schema.Tag.SPEC_SHA256}", tags.get(schema.Tag.SPEC_SHA256))
    facts.add("spec", files[0], spec.digest)
    facts.add("model", f"tag {schema.Tag.MODEL_SHA256}", tags.get(schema.Tag.MODEL_SHA256))
    facts.add("model", files[0], spec.model_sha256)
    facts.add("model", "the content of the model file", shared.model_digest(run))
    facts.add("build key", f"tag {schema.Tag.BUILD_KEY}", tags.get(schema.Tag.BUILD_KEY))
    facts.add("build key", " and ".join(files), builds.build_key(spec, environment))
    expected = builds.environment_tags(environment)
    for tag in builds.ENVIRONMENT_TAGS:
        facts.add(f"environment ({tag})", f"tag {tag}", tags.get(tag, _NONE))
        facts.add(f"environment ({tag})", files[1], expected.get(tag, _NONE))
    params = schema.flat_params(spec.config) | builds.environment_params(environment)
    for name, value in params.items():
        facts.add(f"param {name}", "the store's params", run.info.params.get(name, _NONE))
        facts.add(f"param {name}", files[1] if name.startswith("env.") else files[0], value)
    if (holder_id := tags.get(schema.Tag.REUSED_FROM)) is not None:
        holder = shared.tracker.load(holder_id)
        path = builds.engine_path(holder)
        digest = next(entry.sha256 for entry in holder.manifest.original().artifacts if entry.path == path)
        facts.add("engine", f"tag {schema.Tag.ENGINE_SHA256}", tags.get(schema.Tag.ENGINE_SHA256, _NONE))
        facts.add("engine", f"manifest of run {holder.info.id}", digest)
        for tag in (schema.Tag.MODEL_SHA256, schema.Tag.SPEC_SHA256, schema.Tag.BUILD_KEY):
            facts.add(tag, "tag of this run", tags.get(tag))
            facts.add(tag, f"tag of run {holder.info.id}, whose engine it reused", holder.info.tags.get(tag))
        return
    _check_engine(run, facts)
    _check_tactics(run, environment, facts)
    _check_materials(run, spec, environment, facts)


def _check_engine(run: StoredRun, facts: Facts) -> None:
    original = run.manifest.original()
    engine = next((entry for entry in original.artifacts if entry.path.startswith(f"{builds.ENGINE_STEM}.")), None)
    if engine is None:
        # A gate also refuses candidates that cannot be built.
        if run.info.verdict == "good" or (run.info.verdict == "bad" and run.info.kind != "gate"):
            facts.wrong("engine", f"the run is {run.info.verdict} and holds no engine")
        return
    tags = run.info.tags
    facts.add("engine", f"tag {schema.Tag.ENGINE_SHA256}", tags.get(schema.Tag.ENGINE_SHA256, _NONE))
    facts.add("engine", schema.Artifact.MANIFEST, engine.sha256)
    facts.add("size of the engine", "metric build/engine_bytes", run.info.metrics.get(schema.Metric.ENGINE_BYTES))
    facts.add("size of the engine", schema.Artifact.MANIFEST, float(engine.size))
    if engine.path in run.manifest:
        with contextlib.suppress(errors.IncompleteRunError):  # already reported
            facts.add("engine", engine.path, sha256_file(run.local_path(engine.path)))


def _check_tactics(run: StoredRun, environment: Environment, facts: Facts) -> None:
    """Compare the tactic record with layers, environment and metrics."""
    if schema.Artifact.TACTICS not in run.manifest:
        return
    record = TacticRecord.from_json(run.read_bytes(schema.Artifact.TACTICS))
    layers = [Layer.from_dict(each) for each in json.loads(run.read_bytes(schema.Artifact.LAYERS))]
    places = (schema.Artifact.TACTICS, schema.Artifact.LAYERS, schema.Artifact.ENVIRONMENT)
    facts.add("release that chose the tactics", places[0], record.backend_version)
    facts.add("release that chose the tactics", places[2], environment.backend_version)
    facts.add("device that the tactics are for", places[0], record.device_sha256)
    facts.add("device that the tactics are for", places[2], environment.device_sha256)
    metrics = run.info.metrics
    _claim_numbers("share of layers with a replayable tactic", metrics, schema.Metric.TACTICS_COVERAGE, facts)
    facts.add("share of layers with a replayable tactic", places[0], float(record.coverage))
    _claim_numbers("number of layers", metrics, schema.Metric.ENGINE_LAYERS, facts)
    facts.add("number of layers", places[1], float(len(layers)))
    if record.mechanism == "onnxruntime":  # its layers and choices have the same names
        chosen = {choice.layer: choice.tactic for choice in record.choices}
        for layer in layers:
            if layer.tactic:
                facts.add(f"tactic of {layer.name}", places[0], chosen.get(layer.name, _NONE))
                facts.add(f"tactic of {layer.name}", places[1], layer.tactic)


def _claim_numbers(
    what: str, metrics: Mapping[schema.MetricName, float], name: schema.MetricName, facts: Facts
) -> None:
    facts.add(what, f"metric {'/'.join(name)}", metrics.get(name))


def _check_materials(run: StoredRun, spec: BuildSpec, environment: Environment, facts: Facts) -> None:
    """Compare the inputs of the build with its spec."""
    path = schema.Artifact.MATERIALS
    materials = read_materials(run.read_bytes(path)) if path in run.manifest else None
    readers: dict[str, tuple[str | None, Callable[[bytes], str]]] = {
        "timing_cache": (spec.timing_cache_sha256, sha256),
        "replay": (spec.replay_sha256, lambda text: TacticRecord.from_json(text).digest),
        "denied": (spec.denied_sha256, lambda text: DenyList.from_json(text).here(environment).digest),
    }
    for name, (digest, read) in readers.items():
        material = materials.of(name) if materials else None
        if material is not None and material.path:
            facts.add(f"{name} given", schema.Artifact.SPEC, digest or _NONE)
            facts.add(f"{name} given", material.path, read(run.read_bytes(material.path)))
    if spec.config.precision == "int8" and schema.Artifact.CALIBRATION_CACHE in run.manifest:
        _check_calibration(run, spec, materials, facts)


def _check_calibration(run: StoredRun, spec: BuildSpec, materials: Materials | None, facts: Facts) -> None:
    """Compare the calibration cache, given or computed, with the spec."""
    path = schema.Artifact.CALIBRATION_CACHE
    data = run.read_bytes(path)
    if (given := materials.of("calibration_cache") if materials else None) is not None:
        facts.add("calibration cache given", schema.Artifact.SPEC, spec.calibration_sha256 or _NONE)
        facts.add("calibration cache given", path, sha256(data))
        facts.add("calibration cache given", schema.Artifact.MATERIALS, given.sha256)
        return
    try:
        cache = read_cache(data)
    except errors.TrtopsError as exc:
        facts.wrong(path, f"it cannot be read: {exc}")
        return
    if sha256(data) != spec.calibration_sha256 and cache.data_sha256 is not None:
        facts.add("calibration data", schema.Artifact.SPEC, spec.calibration_sha256 or _NONE)
        facts.add("calibration data", path, cache.data_sha256)
    if cache.model_sha256 is not None:
        facts.add("model", path, cache.model_sha256)


def _check_accuracy(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare metrics with the logged comparison, and the verdict with its numbers."""
    path = schema.Artifact.ACCURACY
    if run.info.kind not in (*BUILDS, "compare") or path not in run.manifest:
        return
    evaluation = Evaluation.from_json(run.read_bytes(path))

    def by_output(metrics: Mapping[MetricName, float]) -> dict[MetricName, float]:
        # Metrics over all outputs follow from these.
        return {name: value for name, value in metrics.items() if name[0] == schema.Metric.ERROR and len(name) == 3}

    expected, stored = by_output(error_metrics(evaluation.report)), by_output(run.info.metrics)
    if evaluation.latency is not None:
        numbers = {(schema.Metric.LATENCY, name): getattr(evaluation.latency, name) for name in _LATENCIES}
        expected |= {name: value for name, value in numbers.items() if value is not None}
        stored |= {name: run.info.metrics[name] for name in numbers if name in run.info.metrics}
    if evaluation.accuracy is not None:
        expected[schema.Metric.ACCURACY, "top1"] = evaluation.accuracy.actual
        expected[schema.Metric.ACCURACY, "golden_top1"] = evaluation.accuracy.golden
        stored |= {name: value for name, value in run.info.metrics.items() if name[0] == schema.Metric.ACCURACY}
    _compare_numbers(stored, expected, path, facts)
    if run.info.kind in BUILDS and run.info.kind != "gate":  # the verdict of a gate depends on more than this
        _check_verdict(run.info, evaluation, facts)


def _check_verdict(info: RunInfo, evaluation: Evaluation, facts: Facts) -> None:
    facts.add("verdict", f"tag {schema.Tag.VERDICT}", info.verdict)
    facts.add("verdict", schema.Artifact.ACCURACY, evaluation.verdict)
    try:
        derived = evaluation.report.evaluate(evaluation.report.tolerances)
    except errors.ComparisonError:
        return  # a tolerance that needs the arrays
    facts.add("verdict", f"the numbers in {schema.Artifact.ACCURACY}", replace(evaluation, report=derived).verdict)


def _check_gate(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare the decision of a gate with its findings, and metrics with its measurements."""
    path = schema.Artifact.GATE
    if run.info.kind != "gate" or path not in run.manifest:
        return
    result = GateResult.from_json(run.read_bytes(path))
    facts.add("the gate's decision", f"tag {schema.Tag.GATE}", run.info.tags.get(schema.Tag.GATE, _NONE))
    facts.add("the gate's decision", path, result.decision)
    facts.add("verdict", f"tag {schema.Tag.VERDICT}", run.info.verdict)
    facts.add("verdict", path, result.verdict)
    stored = {name: value for name, value in run.info.metrics.items() if name[0] == schema.Metric.GATE}
    _compare_numbers(stored, gate_metrics(result), path, facts)


def _compare_numbers(
    stored: Mapping[MetricName, float], expected: Mapping[MetricName, float | None], path: str, facts: Facts
) -> None:
    """Compare metrics with values that follow from a file."""
    for name in sorted({*expected, *stored}):
        one, other = expected.get(name), stored.get(name)
        if one is not None and other is not None:
            # A database may store fewer digits than a float has.
            if math.isclose(one, other, rel_tol=1e-12) or (math.isnan(one) and math.isnan(other)):
                continue
        elif one is other:
            continue
        facts.add(f"metric {'/'.join(name)}", "the store", _NONE if other is None else other)
        facts.add(f"metric {'/'.join(name)}", path, _NONE if one is None else one)


def _check_campaign(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare the metrics of a campaign, and the verdicts of its iterations, with its table."""
    if run.info.kind != "debug_build" or schema.Artifact.CAMPAIGN_TABLE not in run.manifest:
        return
    table, _ = shared.table(run.info.id)
    if table is None:
        facts.wrong(schema.Artifact.CAMPAIGN_TABLE, "it cannot be read")
        return
    for verdict, count in campaigns.counts(table).items():
        name = (schema.Metric.ITERATIONS, verdict)
        _claim_numbers(f"iterations that are {verdict}", run.info.metrics, name, facts)
        facts.add(f"iterations that are {verdict}", schema.Artifact.CAMPAIGN_TABLE, float(count))
    # A missing child may have been deleted.
    children = {i.id: i for i in shared.tracker.find(run.info.experiment, parent=run.info.id, status="finished")}
    verdicts = table.verdicts
    for row, child in enumerate(table.names):
        if child in children:
            facts.add(f"verdict of iteration {child}", schema.Artifact.CAMPAIGN_TABLE, VERDICTS[verdicts[row]])
            facts.add(f"verdict of iteration {child}", "that run's tag", children[child].verdict or _NONE)


def _check_parent(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare an iteration with its row in the table of its campaign."""
    if run.info.kind != "iteration" or run.info.parent is None:
        return
    table, rows = shared.table(run.info.parent)
    if table is None or run.info.id not in rows:
        return
    row, place = rows[run.info.id], f"{schema.Artifact.CAMPAIGN_TABLE} of run {run.info.parent}"
    record = campaigns.load_record(run)
    facts.add("verdict", place, VERDICTS[table.verdicts[row]])
    facts.add("verdict", f"tag {schema.Tag.VERDICT}", run.info.verdict)
    if record is None:
        return
    own = CampaignTable()
    own.append(run.info.id, run.info.verdict or "error", record)
    theirs, ours = _row_of(table, row), _row_of(own, 0)
    for name in sorted({*theirs, *ours}):
        facts.add(name, place, theirs.get(name, _NONE))
        facts.add(name, schema.Artifact.TACTICS, ours.get(name, _NONE))


def _row_of(table: CampaignTable, row: int) -> dict[str, str]:
    """The choices of a build, by layer and setting."""
    layers = zip(table.layers, table.codes[row])
    settings = zip(table.settings, table.setting_codes[row])
    found = {f"tactic of {name}": _choice_text(table.choices[code]) for name, code in layers if code >= 0}
    return found | {f"setting {name}": str(table.values[code]) for name, code in settings if code >= 0}


def _choice_text(choice: Choice) -> str:
    numbers = [str(n) for n in (choice.implementation, choice.tactic_id) if n is not None]
    return " ".join([choice.tactic, *numbers])


def _check_registry(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare the registered versions of a run, and their aliases, with the tags of the run."""
    for alias, version in shared.accepted.get(run.info.id, ()):
        place = f"version {version.version} of {version.name!r}"
        _check_evidence(run.info, version, shared, facts)
        for tag in (schema.Tag.MODEL_SHA256, schema.Tag.ENGINE_SHA256, *builds.ENVIRONMENT_TAGS):
            what = {schema.Tag.MODEL_SHA256: "model", schema.Tag.ENGINE_SHA256: "engine"}.get(tag, f"registry ({tag})")
            facts.add(what, place, version.tags.get(tag, _NONE))
            facts.add(what, f"tag {tag}", run.info.tags.get(tag, _NONE))
        if alias.startswith("model-"):
            model = run.info.tags.get(schema.Tag.MODEL_SHA256, "")[:12]
            device = run.info.tags.get(schema.Tag.DEVICE_SHA256, "")[:12]
            facts.add(f"alias {alias}", place, "_".join(alias.split("_")[:2]))
            facts.add(f"alias {alias}", "the run's tags", f"model-{model}_device-{device}")


def _check_evidence(info: RunInfo, version: RegisteredVersion, shared: SharedReads, facts: Facts) -> None:
    """Compare the evidence of a version with its promotion, or with the gate that accepted the engine."""
    evidence, what = version.tags.get(schema.Tag.EVIDENCE, _NONE), f"registry ({schema.Tag.EVIDENCE})"
    place = f"version {version.version} of {version.name!r}"
    if info.kind == "promote":
        facts.add(what, place, evidence)
        facts.add(what, f"tag {schema.Tag.EVIDENCE}", info.tags.get(schema.Tag.EVIDENCE, _NONE))
        return
    evaluated = info if evidence == info.id else shared.tracker.info(evidence)
    facts.add(f"{what}: the engine concerned", place, info.id)
    facts.add(
        f"{what}: the engine concerned",
        f"run {evaluated.id}",
        evaluated.tags.get(schema.Tag.EVIDENCE, evaluated.id),
    )
    facts.add(f"{what}: the gate's decision", place, "accept")
    facts.add(
        f"{what}: the gate's decision",
        f"tag {schema.Tag.GATE} of run {evaluated.id}",
        evaluated.tags.get(schema.Tag.GATE, _NONE),
    )
