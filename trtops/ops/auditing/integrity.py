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
from typing import Any

from trtops import errors
from trtops.backend.onnx.model import Model
from trtops.calibration.cache import read_cache
from trtops.ops.auditing.result import Claim, Contradiction
from trtops.ops.evaluation.check import Evaluation, error_metrics
from trtops.ops.gate.result import GateResult
from trtops.record import sha256, sha256_file
from trtops.spec import BuildSpec, Environment, Layer
from trtops.tactics.denied import DenyList
from trtops.tactics.record import TacticRecord
from trtops.tactics.table import CampaignTable
from trtops.tracking import builds, campaigns, schema
from trtops.tracking.base import MetricName, RegisteredVersion, RunInfo, StoredRun, Tracker
from trtops.tracking.materials import read_materials
from trtops.tracking.schema import Artifact, Metric, Tag
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

    def add(self, what: str, values: Mapping[str, object]) -> None:
        """Add the values of a fact, by source; None is ignored."""
        claims = [Claim(place=place, value=str(value)) for place, value in values.items() if value is not None]
        self._claims.setdefault(what, []).extend(claims)

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


def _tag(info: RunInfo, name: str, missing: str | None = None) -> dict[str, str | None]:
    return {f"tag {name}": info.tags.get(name, missing)}


def _metric(info: RunInfo, name: MetricName) -> dict[str, float | None]:
    return {f"metric {'/'.join(name)}": info.metrics.get(name)}


@dataclass
class SharedReads:
    """Data that several runs of an audit need, read once. Each build must be signed with one of the public keys."""

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
                    data = self.tracker.peek(campaign, Artifact.CAMPAIGN_TABLE)
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
        entries = [e for e in run.manifest.artifacts if e.path.startswith(Artifact.MODEL)]
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
    manifest = run.manifest.original()
    found = sha256(manifest.to_json().encode("utf-8"))
    facts.add(Artifact.MANIFEST, {**_tag(run.info, Tag.MANIFEST_SHA256), "the file": found})
    if (text := run.info.tags.get(Tag.DIGESTS)) is not None:
        digests: Any = {}
        try:
            digests = json.loads(text)
        except ValueError as exc:
            facts.wrong(Tag.DIGESTS, f"it is not JSON ({exc})")
        digests = digests if isinstance(digests, dict) else {}
        entries = {entry.path: entry.sha256 for entry in manifest.artifacts}
        for path in sorted({*digests, *entries}):
            tagged, stored = digests.get(path, _NONE), entries.get(path, _NONE)
            facts.add(path, {f"tag {Tag.DIGESTS}": tagged, Artifact.MANIFEST: stored})
    return files


def _check_build(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare spec, environment, model, engine, tactics and materials of a build with tags, params and metrics."""
    info = run.info
    if info.kind not in BUILDS or Artifact.SPEC not in run.manifest:
        return
    spec = BuildSpec.from_json(run.read_bytes(Artifact.SPEC))
    environment = Environment.from_json(run.read_bytes(Artifact.ENVIRONMENT))
    facts.add("spec", {**_tag(info, Tag.SPEC_SHA256), Artifact.SPEC: spec.digest})
    models = {Artifact.SPEC: spec.model_sha256, "the content of the model file": shared.model_digest(run)}
    facts.add("model", {**_tag(info, Tag.MODEL_SHA256), **models})
    key = builds.build_key(spec, environment)
    facts.add("build key", {**_tag(info, Tag.BUILD_KEY), f"{Artifact.SPEC} and {Artifact.ENVIRONMENT}": key})
    expected = builds.environment_tags(environment)
    for tag in builds.ENVIRONMENT_TAGS:
        values = {**_tag(info, tag, _NONE), Artifact.ENVIRONMENT: expected.get(tag, _NONE)}
        facts.add(f"environment ({tag})", values)
    for name, value in (schema.flat_params(spec.config) | builds.environment_params(environment)).items():
        source = Artifact.ENVIRONMENT if name.startswith("env.") else Artifact.SPEC
        facts.add(f"param {name}", {"the store's params": info.params.get(name, _NONE), source: value})
    if (holder_id := info.tags.get(Tag.REUSED_FROM)) is not None:
        holder = shared.tracker.load(holder_id)
        path = builds.engine_path(holder)
        digest = next(entry.sha256 for entry in holder.manifest.original().artifacts if entry.path == path)
        facts.add("engine", {**_tag(info, Tag.ENGINE_SHA256, _NONE), f"manifest of run {holder.info.id}": digest})
        for tag in (Tag.MODEL_SHA256, Tag.SPEC_SHA256, Tag.BUILD_KEY):
            place = f"tag of run {holder.info.id}, whose engine it reused"
            facts.add(tag, {"tag of this run": info.tags.get(tag), place: holder.info.tags.get(tag)})
        return
    _check_engine(run, facts)
    _check_tactics(run, environment, facts)
    _check_materials(run, spec, environment, facts)


def _check_engine(run: StoredRun, facts: Facts) -> None:
    info = run.info
    original = run.manifest.original()
    engine = next((entry for entry in original.artifacts if entry.path.startswith(f"{builds.ENGINE_STEM}.")), None)
    if engine is None:
        # A gate also refuses candidates that cannot be built.
        if info.verdict == "good" or (info.verdict == "bad" and info.kind != "gate"):
            facts.wrong("engine", f"the run is {info.verdict} and holds no engine")
        return
    facts.add("engine", {**_tag(info, Tag.ENGINE_SHA256, _NONE), Artifact.MANIFEST: engine.sha256})
    size = {**_metric(info, Metric.ENGINE_BYTES), Artifact.MANIFEST: float(engine.size)}
    facts.add("size of the engine", size)
    if engine.path in run.manifest:
        with contextlib.suppress(errors.IncompleteRunError):  # already reported
            facts.add("engine", {engine.path: sha256_file(run.local_path(engine.path))})


def _check_tactics(run: StoredRun, environment: Environment, facts: Facts) -> None:
    """Compare the tactic record with layers, environment and metrics."""
    if Artifact.TACTICS not in run.manifest:
        return
    record = TacticRecord.from_json(run.read_bytes(Artifact.TACTICS))
    layers = [Layer.from_dict(each) for each in json.loads(run.read_bytes(Artifact.LAYERS))]
    for what, name in (
        ("release that chose the tactics", "backend_version"),
        ("device of the tactics", "device_sha256"),
    ):
        facts.add(what, {Artifact.TACTICS: getattr(record, name), Artifact.ENVIRONMENT: getattr(environment, name)})
    coverage = {**_metric(run.info, Metric.TACTICS_COVERAGE), Artifact.TACTICS: float(record.coverage)}
    facts.add("share of layers with a replayable tactic", coverage)
    count = {**_metric(run.info, Metric.ENGINE_LAYERS), Artifact.LAYERS: float(len(layers))}
    facts.add("number of layers", count)
    if record.mechanism == "onnxruntime":  # its layers and choices have the same names
        chosen = {choice.layer: choice.tactic for choice in record.choices}
        for layer in layers:
            if layer.tactic:
                values = {Artifact.TACTICS: chosen.get(layer.name, _NONE), Artifact.LAYERS: layer.tactic}
                facts.add(f"tactic of {layer.name}", values)


def _check_materials(run: StoredRun, spec: BuildSpec, environment: Environment, facts: Facts) -> None:
    """Compare the inputs of the build, and its calibration cache, with its spec."""
    path = Artifact.MATERIALS
    materials = read_materials(run.read_bytes(path)) if path in run.manifest else None
    readers: dict[str, tuple[str | None, Callable[[bytes], str]]] = {
        "timing_cache": (spec.timing_cache_sha256, sha256),
        "replay": (spec.replay_sha256, lambda text: TacticRecord.from_json(text).digest),
        "denied": (spec.denied_sha256, lambda text: DenyList.from_json(text).here(environment).digest),
    }
    for name, (digest, read) in readers.items():
        material = materials.of(name) if materials else None
        if material is not None and material.path:
            values = {Artifact.SPEC: digest or _NONE, material.path: read(run.read_bytes(material.path))}
            facts.add(f"{name} given", values)
    path = Artifact.CALIBRATION_CACHE
    if spec.config.precision != "int8" or path not in run.manifest:
        return
    data = run.read_bytes(path)
    expected = spec.calibration_sha256 or _NONE
    if (given := materials.of("calibration_cache") if materials else None) is not None:
        values = {Artifact.SPEC: expected, path: sha256(data), Artifact.MATERIALS: given.sha256}
        facts.add("calibration cache given", values)
        return
    try:
        cache = read_cache(data)
    except errors.TrtopsError as exc:
        facts.wrong(path, f"it cannot be read: {exc}")
        return
    if sha256(data) != spec.calibration_sha256 and cache.data_sha256 is not None:
        facts.add("calibration data", {Artifact.SPEC: expected, path: cache.data_sha256})
    facts.add("model", {path: cache.model_sha256})


def _check_accuracy(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare metrics with the logged comparison, and the verdict with its numbers."""
    path, info = Artifact.ACCURACY, run.info
    if info.kind not in (*BUILDS, "compare") or path not in run.manifest:
        return
    evaluation = Evaluation.from_json(run.read_bytes(path))

    def by_output(metrics: Mapping[MetricName, float]) -> dict[MetricName, float]:
        # Metrics over all outputs follow from these.
        return {name: value for name, value in metrics.items() if name[0] == Metric.ERROR and len(name) == 3}

    expected, stored = by_output(error_metrics(evaluation.report)), by_output(info.metrics)
    if evaluation.latency is not None:
        numbers = {(Metric.LATENCY, name): getattr(evaluation.latency, name) for name in _LATENCIES}
        expected |= {name: value for name, value in numbers.items() if value is not None}
        stored |= {name: info.metrics[name] for name in numbers if name in info.metrics}
    if evaluation.accuracy is not None:
        expected[Metric.ACCURACY, "top1"] = evaluation.accuracy.actual
        expected[Metric.ACCURACY, "golden_top1"] = evaluation.accuracy.golden
        stored |= {name: value for name, value in info.metrics.items() if name[0] == Metric.ACCURACY}
    _compare_numbers(stored, expected, path, facts)
    if info.kind in BUILDS and info.kind != "gate":  # the verdict of a gate depends on more than this
        facts.add("verdict", {**_tag(info, Tag.VERDICT), path: evaluation.verdict})
        with contextlib.suppress(errors.ComparisonError):  # a tolerance that needs the arrays
            derived = evaluation.report.evaluate(evaluation.report.tolerances)
            facts.add("verdict", {f"the numbers in {path}": replace(evaluation, report=derived).verdict})


def _check_gate(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare the decision of a gate with its findings, and metrics with its measurements."""
    path = Artifact.GATE
    if run.info.kind != "gate" or path not in run.manifest:
        return
    result = GateResult.from_json(run.read_bytes(path))
    facts.add("the gate's decision", {**_tag(run.info, Tag.GATE, _NONE), path: result.decision})
    facts.add("verdict", {**_tag(run.info, Tag.VERDICT), path: result.verdict})
    stored = {name: value for name, value in run.info.metrics.items() if name[0] == Metric.GATE}
    _compare_numbers(stored, result.metrics(), path, facts)


def _compare_numbers(
    stored: Mapping[MetricName, float], expected: Mapping[MetricName, float | None], path: str, facts: Facts
) -> None:
    """Compare metrics with values that follow from a file."""
    for name in sorted({*expected, *stored}):
        one, other = expected.get(name), stored.get(name)
        # A database may store fewer digits than a float has.
        if one is not None and other is not None and math.isclose(one, other, rel_tol=1e-12):
            continue
        values = {"the store": _NONE if other is None else other, path: _NONE if one is None else one}
        facts.add(f"metric {'/'.join(name)}", values)


def _check_campaign(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare the metrics of a campaign, and the verdicts of its iterations, with its table."""
    place = Artifact.CAMPAIGN_TABLE
    if run.info.kind != "debug_build" or place not in run.manifest:
        return
    table, _ = shared.table(run.info.id)
    if table is None:
        facts.wrong(place, "it cannot be read")
        return
    for verdict, count in campaigns.counts(table).items():
        metric = _metric(run.info, (Metric.ITERATIONS, verdict))
        facts.add(f"iterations that are {verdict}", {**metric, place: float(count)})
    # A missing child may have been deleted.
    children = {i.id: i for i in shared.tracker.find(run.info.experiment, parent=run.info.id, status="finished")}
    for code, child in zip(table.verdicts, table.names):
        if child in children:
            values = {place: VERDICTS[code], "that run's tag": children[child].verdict or _NONE}
            facts.add(f"verdict of iteration {child}", values)


def _check_parent(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare an iteration with its row in the table of its campaign."""
    if run.info.kind != "iteration" or run.info.parent is None:
        return
    table, rows = shared.table(run.info.parent)
    if table is None or run.info.id not in rows:
        return
    row, place = rows[run.info.id], f"{Artifact.CAMPAIGN_TABLE} of run {run.info.parent}"
    facts.add("verdict", {place: VERDICTS[table.verdicts[row]], **_tag(run.info, Tag.VERDICT)})
    record = campaigns.load_record(run)
    if record is None:
        return
    own = CampaignTable()
    own.append(run.info.id, run.info.verdict or "error", record)
    theirs, ours = _row_of(table, row), _row_of(own, 0)
    for name in sorted({*theirs, *ours}):
        facts.add(name, {place: theirs.get(name, _NONE), Artifact.TACTICS: ours.get(name, _NONE)})


def _row_of(table: CampaignTable, row: int) -> dict[str, str]:
    """The choices of a build, by layer and setting."""
    found = {}
    for layer, code in zip(table.layers, table.codes[row]):
        if code >= 0:
            choice = table.choices[code]
            numbers = [str(n) for n in (choice.implementation, choice.tactic_id) if n is not None]
            found[f"tactic of {layer}"] = " ".join([choice.tactic, *numbers])
    for setting, code in zip(table.settings, table.setting_codes[row]):
        if code >= 0:
            found[f"setting {setting}"] = str(table.values[code])
    return found


def _check_registry(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare the registered versions of a run, and their aliases, with the tags of the run."""
    info = run.info
    for alias, version in shared.accepted.get(info.id, ()):
        place = f"version {version.version} of {version.name!r}"
        _check_evidence(info, version, place, shared, facts)
        for tag in (Tag.MODEL_SHA256, Tag.ENGINE_SHA256, *builds.ENVIRONMENT_TAGS):
            what = {Tag.MODEL_SHA256: "model", Tag.ENGINE_SHA256: "engine"}.get(tag, f"registry ({tag})")
            facts.add(what, {place: version.tags.get(tag, _NONE), **_tag(info, tag, _NONE)})
        if alias.startswith("model-"):
            model, device = info.tags.get(Tag.MODEL_SHA256, "")[:12], info.tags.get(Tag.DEVICE_SHA256, "")[:12]
            expected = f"model-{model}_device-{device}"
            facts.add(f"alias {alias}", {place: "_".join(alias.split("_")[:2]), "the run's tags": expected})


def _check_evidence(info: RunInfo, version: RegisteredVersion, place: str, shared: SharedReads, facts: Facts) -> None:
    """Compare the evidence of a version with its promotion, or with the gate that accepted the engine."""
    evidence, what = version.tags.get(Tag.EVIDENCE, _NONE), f"registry ({Tag.EVIDENCE})"
    if info.kind == "promote":
        facts.add(what, {place: evidence, **_tag(info, Tag.EVIDENCE, _NONE)})
        return
    gate = info if evidence == info.id else shared.tracker.info(evidence)
    concerned = gate.tags.get(Tag.EVIDENCE, gate.id)
    facts.add(f"{what}: the engine concerned", {place: info.id, f"run {gate.id}": concerned})
    decision = gate.tags.get(Tag.GATE, _NONE)
    facts.add(f"{what}: the gate's decision", {place: "accept", f"tag {Tag.GATE} of run {gate.id}": decision})
