"""Integrity: whatever a run tells in more than one place, held against the other places.

Every fact is a group of claims: a value and where it is told. A group with two different values is a contradiction, and
names both. What cannot be read is one too.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
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
"""Kinds of runs that hold an engine; of the gate those that built their candidate themselves."""

_GONE = "nothing"


class Facts:
    """Claims by what they are about."""

    def __init__(self) -> None:
        """Begin with none."""
        self._claims: dict[str, list[Claim]] = {}
        self.found: list[Contradiction] = []

    def add(self, what: str, place: str, value: object) -> None:
        """Note what a place says; None says nothing."""
        if value is not None:
            self._claims.setdefault(what, []).append(Claim(place=place, value=str(value)))

    def wrong(self, what: str, why: str) -> None:
        """Note what needs no second place to be wrong."""
        self.found.append(Contradiction(what=what, why=why))

    def contradictions(self) -> tuple[Contradiction, ...]:
        """Groups whose values differ, and what is wrong by itself."""
        differing = (
            Contradiction(what=what, claims=tuple(dict.fromkeys(claims)))
            for what, claims in self._claims.items()
            if len({claim.value for claim in claims}) > 1
        )
        return (*self.found, *differing)


@dataclass
class Shelf:
    """What runs of one audit have in common, read once.

    Attributes:
        tracker: The memory.
        keys: Public keys that builds must be signed with.
    """

    tracker: Tracker
    keys: tuple[str, ...] = ()
    _tables: dict[str, tuple[CampaignTable | None, dict[str, int]]] = field(default_factory=dict)
    _models: dict[tuple[str, ...], str] = field(default_factory=dict)

    @functools.cached_property
    def accepted(self) -> dict[str, list[tuple[str, RegisteredVersion]]]:
        """Aliases and versions of the registry, by their runs."""
        found: dict[str, list[tuple[str, RegisteredVersion]]] = {}
        for alias, version in self.tracker.accepted():
            found.setdefault(version.run_id, []).append((alias, version))
        return found

    def table(self, campaign: str) -> tuple[CampaignTable | None, dict[str, int]]:
        """A finished campaign's table and its rows by run; None if it has none that can be read."""
        if campaign not in self._tables:
            self._tables[campaign] = self._read_table(campaign)
        return self._tables[campaign]

    def _read_table(self, campaign: str) -> tuple[CampaignTable | None, dict[str, int]]:
        try:
            info = self.tracker.info(campaign)
            if info.kind != "debug_build" or info.status != "finished":
                return None, {}
            data = self.tracker.peek(campaign, schema.Artifact.CAMPAIGN_TABLE)
            table = None if data is None else CampaignTable.from_bytes(data)
        except (errors.TrackingError, errors.FormatError):
            return None, {}
        return table, {} if table is None else {name: row for row, name in enumerate(table.names)}

    def model_digest(self, run: StoredRun) -> str | None:
        """The digest of the model that a run kept, by content; None if it kept none.

        Raises:
            ModelError: If what it kept is no model.
        """
        entries = [e for e in run.manifest.artifacts if e.path.startswith(schema.Artifact.MODEL)]
        key = tuple(entry.sha256 for entry in entries)
        if key and key not in self._models:
            files = [run.local_path(entry.path) for entry in entries]
            # Of several files one is the model and names the others.
            model = next((file for file in files if file.suffix == ".onnx"), files[0])
            self._models[key] = Model.load(model).info.sha256
        return self._models.get(key)


def check_integrity(run: StoredRun, shelf: Shelf) -> tuple[int, str, tuple[Contradiction, ...]]:
    """Hold everything that a run tells against itself.

    Returns:
        How many files were read, the key that signed the run (or an empty text), and what does not agree.

    Raises:
        TrackingUnavailableError: If the store goes away.
    """
    facts = Facts()
    files = _check_files(run, facts)
    signature = check_signature(run, shelf.keys, facts.wrong)
    for check in (_check_build, _check_accuracy, _check_gate, _check_campaign, _check_parent, _check_registry):
        try:
            check(run, shelf, facts)
        except errors.IncompleteRunError as exc:
            if not facts.found:  # else the file is named already
                facts.wrong(f"run {run.info.id}", str(exc))
        except (errors.FormatError, errors.ModelError, errors.RunNotFoundError, errors.StoreError) as exc:
            facts.wrong(f"run {run.info.id}", f"{type(exc).__name__}: {exc}")
    return files, signature, facts.contradictions()


def _check_files(run: StoredRun, facts: Facts) -> int:
    """Every file against the manifest, and the manifest against what tags tell of it; returns how many matched."""
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
        told = _json_object(text, schema.Tag.DIGESTS, facts)
        entries = {entry.path: entry.sha256 for entry in manifest.artifacts}
        for path in sorted({*told, *entries}):
            facts.add(path, f"tag {schema.Tag.DIGESTS}", told.get(path, _GONE))
            facts.add(path, schema.Artifact.MANIFEST, entries.get(path, _GONE))
    return files


def _json_object(text: str, what: str, facts: Facts) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as exc:
        facts.wrong(what, f"it is not JSON ({exc})")
        return {}
    return found if isinstance(found, dict) else {}


def _check_build(run: StoredRun, shelf: Shelf, facts: Facts) -> None:
    if run.info.kind not in BUILDS or schema.Artifact.SPEC not in run.manifest:
        return
    spec = BuildSpec.from_json(run.read_bytes(schema.Artifact.SPEC))
    environment = Environment.from_json(run.read_bytes(schema.Artifact.ENVIRONMENT))
    _check_spec(run.info, spec, environment, facts)
    facts.add("model", "the model file's content", shelf.model_digest(run))
    if schema.Tag.REUSED_FROM in run.info.tags:
        _check_holder(run, shelf, facts)
        return
    _check_engine(run, facts)
    _check_tactics(run, environment, facts)
    _check_materials(run, spec, environment, facts)


def _check_spec(info: RunInfo, spec: BuildSpec, environment: Environment, facts: Facts) -> None:
    """The spec and the environment against tags and params."""
    tags, files = info.tags, (schema.Artifact.SPEC, schema.Artifact.ENVIRONMENT)
    facts.add("spec", f"tag {schema.Tag.SPEC_SHA256}", tags.get(schema.Tag.SPEC_SHA256))
    facts.add("spec", files[0], spec.digest)
    facts.add("model", f"tag {schema.Tag.MODEL_SHA256}", tags.get(schema.Tag.MODEL_SHA256))
    facts.add("model", files[0], spec.model_sha256)
    facts.add("build key", f"tag {schema.Tag.BUILD_KEY}", tags.get(schema.Tag.BUILD_KEY))
    facts.add("build key", " and ".join(files), builds.build_key(spec, environment))
    told = builds.environment_tags(environment)
    for tag in builds.ENVIRONMENT_TAGS:
        facts.add(f"environment ({tag})", f"tag {tag}", tags.get(tag, _GONE))
        facts.add(f"environment ({tag})", files[1], told.get(tag, _GONE))
    params = schema.flat_params(spec.config) | builds.environment_params(environment)
    for name, value in params.items():
        facts.add(f"param {name}", "the store's params", info.params.get(name, _GONE))
        facts.add(f"param {name}", files[1] if name.startswith("env.") else files[0], value)


def _check_holder(run: StoredRun, shelf: Shelf, facts: Facts) -> None:
    """A run that reused an engine against the run that holds it."""
    holder = shelf.tracker.load(run.info.tags[schema.Tag.REUSED_FROM])
    _claim_engine(run.info.tags, f"tag {schema.Tag.ENGINE_SHA256}", facts)
    path = builds.engine_path(holder)
    facts.add("engine", f"manifest of run {holder.info.id}", _entry_sha256(holder, path))
    for tag in (schema.Tag.MODEL_SHA256, schema.Tag.SPEC_SHA256, schema.Tag.BUILD_KEY):
        facts.add(tag, "tag of this run", run.info.tags.get(tag))
        facts.add(tag, f"tag of run {holder.info.id}, whose engine it reused", holder.info.tags.get(tag))


def _claim_engine(tags: Mapping[str, str], place: str, facts: Facts) -> None:
    facts.add("engine", place, tags.get(schema.Tag.ENGINE_SHA256, _GONE))


def _entry_sha256(run: StoredRun, path: str) -> str:
    return next(entry.sha256 for entry in run.manifest.original().artifacts if entry.path == path)


def _check_engine(run: StoredRun, facts: Facts) -> None:
    original = run.manifest.original()
    engine = next((entry for entry in original.artifacts if entry.path.startswith(f"{builds.ENGINE_STEM}.")), None)
    if engine is None:
        # The gate refuses a candidate that cannot be built.
        if run.info.verdict == "good" or (run.info.verdict == "bad" and run.info.kind != "gate"):
            facts.wrong("engine", f"the run is {run.info.verdict} and holds no engine")
        return
    _claim_engine(run.info.tags, f"tag {schema.Tag.ENGINE_SHA256}", facts)
    facts.add("engine", schema.Artifact.MANIFEST, engine.sha256)
    facts.add("size of the engine", "metric build/engine_bytes", run.info.metrics.get(schema.Metric.ENGINE_BYTES))
    facts.add("size of the engine", schema.Artifact.MANIFEST, float(engine.size))
    if engine.path in run.manifest:
        try:
            facts.add("engine", engine.path, sha256_file(run.local_path(engine.path)))
        except errors.IncompleteRunError:
            return  # named already


def _check_tactics(run: StoredRun, environment: Environment, facts: Facts) -> None:
    """The tactic record against the layers, the environment and the numbers in the store."""
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
    if record.mechanism == "onnxruntime":  # where layers and choices are named alike
        chosen = {choice.layer: choice.tactic for choice in record.choices}
        for layer in layers:
            if layer.tactic:
                facts.add(f"tactic of {layer.name}", places[0], chosen.get(layer.name, _GONE))
                facts.add(f"tactic of {layer.name}", places[1], layer.tactic)


def _claim_numbers(
    what: str, metrics: Mapping[schema.MetricName, float], name: schema.MetricName, facts: Facts
) -> None:
    facts.add(what, f"metric {'/'.join(name)}", metrics.get(name))


def _check_materials(run: StoredRun, spec: BuildSpec, environment: Environment, facts: Facts) -> None:
    """What the build was given against its spec."""
    path = schema.Artifact.MATERIALS
    materials = read_materials(run.read_bytes(path)) if path in run.manifest else None
    told = {
        "timing_cache": spec.timing_cache_sha256,
        "replay": spec.replay_sha256,
        "denied": spec.denied_sha256,
    }
    for name, digest in told.items():
        material = materials.of(name) if materials else None
        if material is not None and material.path:
            facts.add(f"{name} given", schema.Artifact.SPEC, digest or _GONE)
            facts.add(f"{name} given", material.path, _content_digest(run, name, material.path, environment))
    if spec.config.precision == "int8" and schema.Artifact.CALIBRATION_CACHE in run.manifest:
        _check_calibration(run, spec, materials, facts)


def _content_digest(run: StoredRun, name: str, path: str, environment: Environment) -> str | None:
    data = run.read_bytes(path)
    readers: dict[str, Callable[[bytes], str]] = {
        "timing_cache": sha256,
        "replay": lambda text: TacticRecord.from_json(text).digest,
        "denied": lambda text: DenyList.from_json(text).here(environment).digest,
    }
    return readers[name](data)


def _check_calibration(run: StoredRun, spec: BuildSpec, materials: Materials | None, facts: Facts) -> None:
    """The calibration cache: the one given, or one made from the data that the spec names."""
    path = schema.Artifact.CALIBRATION_CACHE
    data = run.read_bytes(path)
    if (given := materials.of("calibration_cache") if materials else None) is not None:
        facts.add("calibration cache given", schema.Artifact.SPEC, spec.calibration_sha256 or _GONE)
        facts.add("calibration cache given", path, sha256(data))
        facts.add("calibration cache given", schema.Artifact.MATERIALS, given.sha256)
        return
    try:
        cache = read_cache(data)
    except errors.TrtopsError as exc:
        facts.wrong(path, f"it cannot be read: {exc}")
        return
    if sha256(data) != spec.calibration_sha256 and cache.data_sha256 is not None:
        facts.add("calibration data", schema.Artifact.SPEC, spec.calibration_sha256 or _GONE)
        facts.add("calibration data", path, cache.data_sha256)
    if cache.model_sha256 is not None:
        facts.add("model", path, cache.model_sha256)


def _is_of_one_output(name: MetricName) -> bool:
    """Whether a metric was taken from a comparison's output: what is over all of them follows from these."""
    return name[0] == schema.Metric.ERROR and len(name) == 3


def _check_accuracy(run: StoredRun, shelf: Shelf, facts: Facts) -> None:
    """The store's numbers against the comparison that they were taken from, and the verdict against the numbers."""
    path = schema.Artifact.ACCURACY
    if run.info.kind not in (*BUILDS, "compare") or path not in run.manifest:
        return
    evaluation = Evaluation.from_json(run.read_bytes(path))
    expected = error_metrics(evaluation.report)
    expected = {name: value for name, value in expected.items() if _is_of_one_output(name)}
    stored = {name: value for name, value in run.info.metrics.items() if _is_of_one_output(name)}
    if evaluation.latency is not None:
        numbers = {(schema.Metric.LATENCY, name): getattr(evaluation.latency, name) for name in _LATENCIES}
        expected |= {name: value for name, value in numbers.items() if value is not None}
        stored |= {name: run.info.metrics[name] for name in numbers if name in run.info.metrics}
    if evaluation.accuracy is not None:
        expected[schema.Metric.ACCURACY, "top1"] = evaluation.accuracy.actual
        expected[schema.Metric.ACCURACY, "golden_top1"] = evaluation.accuracy.golden
        stored |= {name: value for name, value in run.info.metrics.items() if name[0] == schema.Metric.ACCURACY}
    _hold_numbers(stored, expected, path, facts)
    if run.info.kind in BUILDS and run.info.kind != "gate":  # whose verdict depends on more than this
        _check_verdict(run.info, evaluation, facts)


_LATENCIES = ("p50_ms", "p99_ms", "mean_ms", "device_p50_ms")


def _same_number(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    # A database may keep fewer digits than a float has; nobody tampers with the thirteenth.
    return one == other or (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=1e-12)


def _check_verdict(info: RunInfo, evaluation: Evaluation, facts: Facts) -> None:
    facts.add("verdict", f"tag {schema.Tag.VERDICT}", info.verdict)
    facts.add("verdict", schema.Artifact.ACCURACY, evaluation.verdict)
    try:
        derived = evaluation.report.evaluate(evaluation.report.tolerances)
    except errors.ComparisonError:
        return  # a number that only the arrays could give
    facts.add("verdict", f"the numbers in {schema.Artifact.ACCURACY}", replace(evaluation, report=derived).verdict)


def _check_gate(run: StoredRun, shelf: Shelf, facts: Facts) -> None:
    """The gate's decision against the findings that it follows from, and the store's numbers against what was measured."""
    path = schema.Artifact.GATE
    if run.info.kind != "gate" or path not in run.manifest:
        return
    result = GateResult.from_json(run.read_bytes(path))
    facts.add("the gate's decision", f"tag {schema.Tag.GATE}", run.info.tags.get(schema.Tag.GATE, _GONE))
    facts.add("the gate's decision", path, result.decision)
    facts.add("verdict", f"tag {schema.Tag.VERDICT}", run.info.verdict)
    facts.add("verdict", path, result.verdict)
    stored = {name: value for name, value in run.info.metrics.items() if name[0] == schema.Metric.GATE}
    _hold_numbers(stored, gate_metrics(result), path, facts)


def _hold_numbers(
    stored: Mapping[MetricName, float], expected: Mapping[MetricName, float | None], path: str, facts: Facts
) -> None:
    """The store's metrics against those that follow from a file."""
    for name in sorted({*expected, *stored}):
        if not _same_number(expected.get(name), stored.get(name)):
            facts.add(f"metric {'/'.join(name)}", "the store", stored.get(name, _GONE))
            facts.add(f"metric {'/'.join(name)}", path, expected.get(name, _GONE))


def _check_campaign(run: StoredRun, shelf: Shelf, facts: Facts) -> None:
    """A campaign's numbers against its table."""
    if run.info.kind != "debug_build" or schema.Artifact.CAMPAIGN_TABLE not in run.manifest:
        return
    table, _ = shelf.table(run.info.id)
    if table is None:
        facts.wrong(schema.Artifact.CAMPAIGN_TABLE, "it cannot be read")
        return
    for verdict, count in campaigns.counts(table).items():
        name = (schema.Metric.ITERATIONS, verdict)
        _claim_numbers(f"iterations that are {verdict}", run.info.metrics, name, facts)
        facts.add(f"iterations that are {verdict}", schema.Artifact.CAMPAIGN_TABLE, float(count))
    # Of a child that is not there nothing can be said: it may have been deleted.
    children = {i.id: i for i in shelf.tracker.find(run.info.experiment, parent=run.info.id, status="finished")}
    verdicts = table.verdicts
    for row, child in enumerate(table.names):
        if child in children:
            facts.add(f"verdict of iteration {child}", schema.Artifact.CAMPAIGN_TABLE, VERDICTS[verdicts[row]])
            facts.add(f"verdict of iteration {child}", "that run's tag", children[child].verdict or _GONE)


def _check_parent(run: StoredRun, shelf: Shelf, facts: Facts) -> None:
    """An iteration against its row in its campaign's table."""
    if run.info.kind != "iteration" or run.info.parent is None:
        return
    table, rows = shelf.table(run.info.parent)
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
        facts.add(name, place, theirs.get(name, _GONE))
        facts.add(name, schema.Artifact.TACTICS, ours.get(name, _GONE))


def _row_of(table: CampaignTable, row: int) -> dict[str, str]:
    """What a build chose, by layers and settings, as texts that are equal for equal choices."""
    layers = _named_values(table.layers, table.codes[row], table.choices, _choice_text)
    settings = _named_values(table.settings, table.setting_codes[row], table.values, str)
    return {f"tactic of {name}": text for name, text in layers} | {f"setting {name}": text for name, text in settings}


def _named_values(
    names: Iterable[str], codes: Iterable[int], values: tuple[Any, ...], text: Callable[[Any], str]
) -> Iterator[tuple[str, str]]:
    return ((name, text(values[code])) for name, code in zip(names, codes) if code >= 0)


def _choice_text(choice: Choice) -> str:
    numbers = [str(n) for n in (choice.implementation, choice.tactic_id) if n is not None]
    return " ".join([choice.tactic, *numbers])


def _check_registry(run: StoredRun, shelf: Shelf, facts: Facts) -> None:
    """The registry's versions of a run against the run's tags, and their aliases against what they stand for."""
    for alias, version in shelf.accepted.get(run.info.id, ()):
        place = f"version {version.version} of {version.name!r}"
        _check_evidence(run.info, version, shelf, facts)
        for tag in (schema.Tag.MODEL_SHA256, schema.Tag.ENGINE_SHA256, *builds.ENVIRONMENT_TAGS):
            what = {schema.Tag.MODEL_SHA256: "model", schema.Tag.ENGINE_SHA256: "engine"}.get(tag, f"registry ({tag})")
            facts.add(what, place, version.tags.get(tag, _GONE))
            facts.add(what, f"tag {tag}", run.info.tags.get(tag, _GONE))
        if alias.startswith("model-"):
            model = run.info.tags.get(schema.Tag.MODEL_SHA256, "")[:12]
            device = run.info.tags.get(schema.Tag.DEVICE_SHA256, "")[:12]
            facts.add(f"alias {alias}", place, "_".join(alias.split("_")[:2]))
            facts.add(f"alias {alias}", "the run's tags", f"model-{model}_device-{device}")


def _check_evidence(info: RunInfo, version: RegisteredVersion, shelf: Shelf, facts: Facts) -> None:
    """The run that a version was accepted for: what a promotion came from, or the gate's run that let the engine pass."""
    evidence, what = version.tags.get(schema.Tag.EVIDENCE, _GONE), f"registry ({schema.Tag.EVIDENCE})"
    place = f"version {version.version} of {version.name!r}"
    if info.kind == "promote":
        facts.add(what, place, evidence)
        facts.add(what, f"tag {schema.Tag.EVIDENCE}", info.tags.get(schema.Tag.EVIDENCE, _GONE))
        return
    evaluated = info if evidence == info.id else shelf.tracker.info(evidence)
    facts.add(f"{what}: the engine that it is about", place, info.id)
    facts.add(
        f"{what}: the engine that it is about",
        f"run {evaluated.id}",
        evaluated.tags.get(schema.Tag.EVIDENCE, evaluated.id),
    )
    facts.add(f"{what}: the gate's decision", place, "accept")
    facts.add(
        f"{what}: the gate's decision",
        f"tag {schema.Tag.GATE} of run {evaluated.id}",
        evaluated.tags.get(schema.Tag.GATE, _GONE),
    )
