"""Check the integrity of a run: every fact stored in several places must be the same everywhere.

A fact has claims: values with their sources. Two different values are a contradiction, and so is an unreadable file.
The manifest states the run's row in the database; a report is drawn again; an engine has the layers that were logged.
"""

import contextlib
import functools
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from pathlib import Path

from trtops import errors
from trtops.backend.onnx.model import Model
from trtops.backend.onnxrt.ort_format import read_graph
from trtops.calibration.cache import CalibrationCache
from trtops.comparator.results import RunResults
from trtops.ops.auditing.log_check import LogCheck
from trtops.ops.auditing.result import Claim, Contradiction, RunAudit
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.campaign.debug_build import DebugBuildResult
from trtops.ops.evaluation.check import CheckConfig, Evaluation, evaluation_metrics
from trtops.ops.gate.result import GateResult
from trtops.record import canonical_json, digest, sha256, sha256_file, to_jsonable
from trtops.reports.document import Document
from trtops.reports.present import render_report
from trtops.spec import BuildConfig, BuildSpec, Environment, Layer, ModelInfo
from trtops.tactics.denied import DenyList
from trtops.tactics.record import TacticRecord
from trtops.tactics.table import CampaignTable
from trtops.tracking import builds, campaigns, schema
from trtops.tracking.base import MetricName, RegisteredVersion, RunInfo, StoredRun, Tracker
from trtops.tracking.builds import Materials, read_materials
from trtops.tracking.records import LISTING, Statement, is_local
from trtops.tracking.schema import Artifact, Metric, Tag
from trtops.tracking.signatures import check_signature
from trtops.verdict import PASSED, VERDICTS

BUILDS = ("build", "iteration", "promote", "gate")
"""Kinds of runs that hold an engine; a gate only does if it built its candidate."""

_NONE = "nothing"


class Facts:
    """Claims about a run, grouped by fact."""

    def __init__(self, info: RunInfo) -> None:
        self._info = info
        self._claims: dict[str, list[Claim]] = {}
        self.problems: list[Contradiction] = []
        self.unverified: list[str] = []

    def add(self, fact: str, values: Mapping[str, object]) -> None:
        """Add the values of a fact, by source; None is ignored."""
        claims = [Claim(source=source, value=str(value)) for source, value in values.items() if value is not None]
        self._claims.setdefault(fact, []).extend(claims)

    def tag(self, fact: str, tag: str, other_source: str, value: object, missing: str | None = None) -> None:
        """Add a tag of the run, or a value for a missing one, and the same fact in another place."""
        source = f"tag {tag}" if tag in self._info.tags else f"param {schema.AS_PARAM.get(tag, tag)}"
        self.add(fact, {source: self._info.fact(tag) or missing, other_source: value})

    def metric(self, fact: str, name: MetricName, other_source: str, value: float) -> None:
        """Add a metric of the run, and the same fact in another place."""
        self.add(fact, {f"metric {'/'.join(name)}": self._info.metrics.get(name), other_source: float(value)})

    def metrics(self, expected: Mapping[MetricName, float], other_source: str, further: Collection[str]) -> None:
        """Compare metrics with the values of a file, and search for metrics of these families without one."""
        stored, expected = self._info.metrics, {schema.fitting(name): value for name, value in expected.items()}
        for name in sorted({*expected, *(stored_name for stored_name in stored if stored_name[0] in further)}):
            expected_value, stored_value = expected.get(name), stored.get(name)
            if expected_value is None or stored_value is None or not _same(expected_value, stored_value):
                values = {
                    "the store": _NONE if stored_value is None else stored_value,
                    other_source: _NONE if expected_value is None else expected_value,
                }
                self.add(f"metric {'/'.join(name)}", values)

    def wrong(self, fact: str, reason: str) -> None:
        """Add a problem without a second source."""
        self.problems.append(Contradiction(subject=fact, reason=reason))

    def contradictions(self) -> tuple[Contradiction, ...]:
        """Groups with differing values, and problems."""
        differing = (
            Contradiction(subject=fact, claims=tuple(dict.fromkeys(claims)))
            for fact, claims in self._claims.items()
            if len({claim.value for claim in claims}) > 1
        )
        return (*self.problems, *differing)


def _same(first: float, second: float) -> bool:
    """True for equal numbers; a database may store fewer digits than a float has."""
    return math.isclose(first, second, rel_tol=1e-12) or (math.isnan(first) and math.isnan(second))


@dataclass
class SharedReads:
    """Data shared by several runs of an audit, read once. Each build must be signed with one of the public keys."""

    tracker: Tracker
    keys: tuple[str, ...] = ()
    _tables: dict[str, CampaignTable | None] = field(default_factory=dict)
    _models: dict[tuple[str, ...], ModelInfo] = field(default_factory=dict)
    _data: dict[str, str] = field(default_factory=dict)

    @functools.cached_property
    def log(self) -> LogCheck:
        """The log of the store."""
        return LogCheck(self.tracker)

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

    def model(self, run: StoredRun) -> ModelInfo | None:
        """A run's model; None if it logged none, InvalidModelError if it is no model."""
        # By the files' digests: many runs log the same model, and reading it takes longer than all other checks.
        key = tuple(entry.sha256 for entry in run.holder.manifest.artifacts if entry.path.startswith(Artifact.MODEL))
        if key and key not in self._models:
            self._models[key] = Model.load(model_path(run)).info
        return self._models.get(key)

    def data_digest(self, run: StoredRun, path: str, check: CheckConfig, build: BuildConfig) -> str:
        """The digest of logged check data, with its copies in the shapes of profiles."""
        key = digest([sha256_file(run.local_path(path)), check.to_dict(), build.to_dict()])
        if key not in self._data:
            logged_check = replace(check, data=str(run.local_path(path)))
            self._data[key] = logged_check.open_for(Model.load(model_path(run)), profiles=build.profiles).digest()
        return self._data[key]


def model_path(run: StoredRun) -> Path:
    """The model file logged by a run, next to its external data."""
    files = [run.local_path(path) for path in run.paths(Artifact.MODEL)]
    return next((file for file in files if file.suffix == ".onnx"), files[0])


def check_integrity(run: StoredRun, shared: SharedReads) -> RunAudit:
    """Compare the facts of a run with each other: files, tags, params, metrics, manifest and registry."""
    info, facts = run.info, Facts(run.info)
    files = _check_files(run, facts)
    signature = check_signature(run, shared.keys, facts.wrong)
    for needed, kinds, check in _CHECKS:
        try:
            if info.kind in kinds and (not needed or needed in run):
                check(run, shared, facts)
        except errors.IncompleteRunError as exc:
            if not facts.problems:  # otherwise the file is already reported
                facts.wrong(f"run {info.id}", str(exc))
        except errors.TrackingUnavailableError:
            raise
        except Exception as exc:  # a forged file may lead to any error
            facts.wrong(f"run {info.id}", f"{type(exc).__name__}: {exc}")
    logged, unverified = shared.log.check_run(run)
    return RunAudit(
        id=info.id,
        name=info.name,
        experiment=info.experiment,
        kind=info.kind or "",
        whole=files == len(run.manifest.artifacts),
        files=files,
        contradictions=(*facts.contradictions(), *logged),
        unverified=(*facts.unverified, *unverified),
        signature=signature,
    )


def _check_files(run: StoredRun, facts: Facts) -> int:
    """Compare files with the manifest, and the manifest with tags; returns the number of matching files."""
    files = 0
    for entry in run.manifest.artifacts:
        try:
            run.local_path(entry.path)
            files += 1
        except errors.IncompleteRunError as exc:
            facts.wrong(entry.path, str(exc))
    # As it was first written: engines that were deleted later are still named in the tags.
    manifest = run.manifest.original()
    manifest_sha256 = sha256(manifest.to_json().encode("utf-8"))
    facts.tag(Artifact.MANIFEST, Tag.MANIFEST_SHA256, "the file", manifest_sha256, _NONE)
    _, listed, listing = run.info.tags.get(Tag.NOTE, "").rpartition(f"{LISTING}\n")
    noted = dict(re.findall("^- `(.+)` `([0-9a-f]{16})`$", listing, re.MULTILINE)) if listed else {}
    entries = {entry.path: entry.sha256[:16] for entry in manifest.artifacts}
    for path in sorted({*noted, *entries}) if noted else ():
        facts.add(path, {f"tag {Tag.NOTE}": noted.get(path, _NONE), Artifact.MANIFEST: entries.get(path, _NONE)})
    return files


def _check_row(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare the run's row in the database with the manifest's statement of it, and files with the manifest's list."""
    info, stated, manifest_row = run.info, run.manifest.run, f"{Artifact.MANIFEST} (run)"
    details = run.details()
    listed = {Artifact.MANIFEST, Artifact.SIGNATURE, *(entry.path for entry in run.manifest.artifacts)}
    for path in sorted({*details.files} - listed):
        facts.wrong(path, f"{Artifact.MANIFEST} does not list it")
    if stated is None:
        facts.wrong(Artifact.MANIFEST, "it has no statement of the run's row in the database")
        return
    facts.add("status", {"the store": info.status, Artifact.MANIFEST: "finished"})
    facts.add("shown status", {"MLflow": details.status[0], "a finished run with its verdict": details.status[1]})
    facts.add("user", {"the store": details.user, "tag mlflow.user": info.tags.get("mlflow.user")})
    parent = stated.parent
    if parent is not None and is_local(parent):  # its parent had not been uploaded
        with contextlib.suppress(errors.RunNotFoundError):
            parent = shared.tracker.info(parent).id
    for column, stored_value, stated_value in (
        ("experiment", info.experiment, stated.experiment),
        ("name", info.name, stated.name),
        ("parent", info.parent, parent),
        ("start time", round(info.start_time, 3), stated.start_time),
        ("end time", info.end_time and round(info.end_time, 3), stated.end_time),
    ):
        facts.add(column, {"the store": stored_value or _NONE, manifest_row: stated_value or _NONE})
    # Users may add tags of their own; the parent's has been compared.
    ours = {name for name in info.tags if name.startswith("trtops.")} - {Tag.MANIFEST_SHA256}
    for name in sorted({*stated.tags, *ours} - {"mlflow.parentRunId"}):
        value = info.tags.get(name)
        stored_value = _NONE if value is None else Statement.short(value)
        facts.add(f"tag {name}", {f"tag {name}": stored_value, manifest_row: stated.tags.get(name, _NONE)})
    for name in sorted({*stated.params, *info.params}):
        value = info.params.get(name)
        stored_value = _NONE if value is None else Statement.short(value)
        facts.add(f"param {name}", {"the store's params": stored_value, manifest_row: stated.params.get(name, _NONE)})
    last = {schema.metric_name(name): values[-1] for name, values in stated.metrics.items()}
    facts.metrics(last, manifest_row, {name[0] for name in info.metrics})
    for name, values in details.history.items():
        logged = stated.metrics.get(name, ())
        # Values of an earlier process are not stated, and those of a spooled run may be missing.
        if not all(any(_same(v, t) for t in logged) for v in (values[-1:] if stated.resumed else values)):
            facts.add(f"history of metric {name}", {"the store": values, manifest_row: logged})
    if run.unlisted(Artifact.SIGNATURE) is None and stated.signed:
        facts.wrong(
            Artifact.SIGNATURE, f"the run was signed when it finished ({manifest_row}), and the signature is gone"
        )
    elif not stated.signed and info.start_time > shared.log.first_signed:
        facts.unverified.append("who made the run: it is not signed, and earlier runs of the store are")


def _check_page(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Draw the report and the description again, and compare them with the logged ones."""
    if Artifact.REPORT not in run.manifest:
        if Tag.HEADLINE in run.info.tags:  # which is set right before the report is written
            facts.wrong(Artifact.REPORT, "the run has a headline and no report")
        return
    document = Document.from_json(run.read_bytes(Artifact.REPORT_DATA))
    facts.tag("verdict", Tag.VERDICT, Artifact.REPORT_DATA, document.verdict or None)
    drawn = render_report(shared.tracker, run)
    if not drawn:
        facts.unverified.append(f"{Artifact.REPORT}: another release drew it, so it is not compared with the data")
        return
    stored = run.read_bytes(Artifact.REPORT).decode("utf-8", "replace")
    if stored not in (page for page, _ in drawn):
        lines = zip_longest(stored.split("\n"), drawn[0][0].split("\n"))
        line = next(
            number for number, (stored_line, rendered_line) in enumerate(lines, 1) if stored_line != rendered_line
        )
        facts.wrong(Artifact.REPORT, f"it is not the page that is drawn from the run's data, from line {line} on")
    if run.info.tags.get(Tag.NOTE) not in [run.manifest.original().noted(note) for _, note in drawn]:
        facts.wrong(f"tag {Tag.NOTE}", "it is not the description that is drawn from the run's data")


def _check_build(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare spec, environment, model and engine of a build with tags, params and metrics."""
    info = run.info
    spec = BuildSpec.from_json(run.read_bytes(Artifact.SPEC))
    environment = Environment.from_json(run.read_bytes(Artifact.ENVIRONMENT))
    facts.tag("spec", Tag.SPEC_SHA256, Artifact.SPEC, spec.digest, _NONE)
    facts.tag("model", Tag.MODEL_SHA256, Artifact.SPEC, spec.model_sha256)
    model = shared.model(run)
    facts.add("model", {"the content of the model file": model and model.sha256})
    key = builds.build_key(spec, environment)
    facts.tag("build key", Tag.BUILD_KEY, f"{Artifact.SPEC} and {Artifact.ENVIRONMENT}", key)
    facts.tag("back end", Tag.BACKEND, Artifact.ENVIRONMENT, environment.backend, _NONE)
    for name, value in (schema.flat_params(spec.config) | builds.environment_params(environment)).items():
        source = Artifact.ENVIRONMENT if name.startswith("env.") else Artifact.SPEC
        facts.add(f"param {name}", {"the store's params": info.params.get(name) or _NONE, source: value})
    stored = run.holder
    reused_from = None if stored is run else stored.info.id
    facts.tag("the run of the engine", Tag.REUSED_FROM, Artifact.REUSED, reused_from or _NONE, _NONE)
    # A build that reused an engine has no file of it; the earlier run has.
    if reused_from is not None:
        for tag in (Tag.MODEL_SHA256, Tag.SPEC_SHA256):
            facts.tag(tag, tag, f"run {reused_from}, whose engine it reused", stored.info.fact(tag))
        facts.add("build key", {f"tag of run {reused_from}": stored.info.tags.get(Tag.BUILD_KEY), "the spec": key})
    entries = stored.manifest.original().artifacts
    engine = next((entry for entry in entries if entry.path.startswith(f"{builds.ENGINE_STEM}.")), None)
    if engine is None:
        # A gate also refuses candidates that cannot be built, and holds no engine then.
        if info.verdict in PASSED or (info.verdict == "bad" and info.kind != "gate"):
            facts.wrong("engine", f"the run is {info.verdict} and holds no engine")
        return
    manifest_name = Artifact.MANIFEST if reused_from is None else f"manifest of run {reused_from}"
    facts.tag("engine", Tag.ENGINE_SHA256, manifest_name, engine.sha256, _NONE)
    facts.metric("size of the engine", Metric.ENGINE_BYTES, manifest_name, engine.size)
    _check_materials(run, spec, environment, shared, facts)
    if engine.path in stored.manifest:
        try:
            _check_engine(stored, engine.path, environment, shared, facts)
        except errors.IncompleteRunError as exc:
            if reused_from is not None:  # otherwise the file is already reported
                facts.wrong(f"engine of run {reused_from}", str(exc))


def _check_engine(run: StoredRun, path: str, environment: Environment, shared: SharedReads, facts: Facts) -> None:
    """Compare an engine's bytes with its options, its layers with the logged ones, its interface with the model's."""
    build = builds.load_build(run)
    plan, options = build.engine.plan, build.engine.options
    stated = options.get("plan_sha256", options.get("sha256"))
    facts.add("engine", {path: build.engine.sha256, Artifact.ENGINE_OPTIONS: stated})
    if environment.backend != "onnxruntime":  # only its GPU reads a TensorRT engine
        return
    for name in ("providers", "intra_op_threads"):
        option = to_jsonable(getattr(build.spec.config.options, name, None))
        facts.add(f"{name} of the engine", {Artifact.SPEC: option, Artifact.ENGINE_OPTIONS: options.get(name)})
    try:
        graph = read_graph(plan)
        engine_layers = sorted((node.kernel, *_tensors(node.inputs, node.outputs)) for node in graph.nodes)
    except Exception as exc:  # the bytes are not those of an engine, and lead anywhere
        facts.wrong(path, f"it cannot be read as an engine of ONNX Runtime ({type(exc).__name__})")
        return
    logged_layers = sorted((layer.tactic or "", *_tensors(layer.inputs, layer.outputs)) for layer in build.layers)
    if engine_layers != logged_layers:
        other = next(
            entry
            for entry in (*engine_layers, *logged_layers)
            if engine_layers.count(entry) != logged_layers.count(entry)
        )
        facts.wrong("layers", f"{path} and {Artifact.LAYERS} differ in {other[0]} that makes {other[2]}")
    if (model := shared.model(run)) is not None:
        for side, engine_names, model_tensors in (
            ("inputs", graph.inputs, model.inputs),
            ("outputs", graph.outputs, model.outputs),
        ):
            names = {entry.name for entry in model_tensors}
            # Weights of old models are inputs, too.
            compared_names = names & {*engine_names} if side == "inputs" else {*engine_names}
            facts.add(f"{side} of the engine", {path: sorted(compared_names), "the model": sorted(names)})


def _tensors(*names: Iterable[str]) -> tuple[list[str], ...]:
    return tuple([name for name in group if name] for group in names)


def _check_tactics(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare the tactic record with layers, environment and metrics."""
    record = TacticRecord.from_json(run.read_bytes(Artifact.TACTICS))
    environment = Environment.from_json(run.read_bytes(Artifact.ENVIRONMENT))
    layers = [Layer.from_dict(fields) for fields in json.loads(run.read_bytes(Artifact.LAYERS))]
    for fact, name in (
        ("release that chose the tactics", "backend_version"),
        ("device of the tactics", "device_sha256"),
    ):
        facts.add(fact, {Artifact.TACTICS: getattr(record, name), Artifact.ENVIRONMENT: getattr(environment, name)})
    if record.mechanism == "onnxruntime":  # its layers and choices have the same names
        chosen, layer_tactics = (
            {c.layer: c.tactic for c in record.choices},
            {layer.name: layer.tactic for layer in layers},
        )
        for name in sorted({*chosen, *layer_tactics}):
            values = {Artifact.TACTICS: chosen.get(name, _NONE), Artifact.LAYERS: layer_tactics.get(name, _NONE)}
            facts.add(f"tactic of {name}", values)


def _check_materials(
    run: StoredRun, spec: BuildSpec, environment: Environment, shared: SharedReads, facts: Facts
) -> None:
    """Compare the inputs of the build with its spec."""
    materials = _check_given(run, spec.config, shared, facts)
    readers: dict[str, tuple[str | None, Callable[[bytes], str]]] = {
        "timing_cache": (spec.timing_cache_sha256, sha256),
        "replay": (spec.replay_sha256, lambda text: TacticRecord.from_json(text).digest),
        "denied": (spec.denied_sha256, lambda text: DenyList.from_json(text).here(environment).digest),
    }
    for name, (spec_sha256, read) in readers.items():
        material = materials.of(name)
        if material is not None and material.path:
            values = {Artifact.SPEC: spec_sha256 or _NONE, material.path: read(run.read_bytes(material.path))}
            facts.add(f"{name} given", {**values, Artifact.MATERIALS: material.sha256})
    cache_material, path = materials.of("calibration_cache"), Artifact.CALIBRATION_CACHE
    if spec.config.calibrates and path in run and cache_material is not None:
        values = {path: sha256(run.read_bytes(path)), Artifact.MATERIALS: cache_material.sha256}
        values[cache_material.path] = sha256(run.read_bytes(cache_material.path))
        facts.add("calibration cache given", {Artifact.SPEC: spec.calibration_sha256 or _NONE, **values})


def _check_given(run: StoredRun, build: BuildConfig, shared: SharedReads, facts: Facts) -> Materials:
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
            facts.add(
                fact, {path: material.sha256, material.path: shared.data_digest(run, material.path, check, build)}
            )
    return materials


def _check_accuracy(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare metrics with the logged comparison, and the verdict with its numbers."""
    path = Artifact.ACCURACY
    evaluation = Evaluation.from_json(run.read_bytes(path))
    families = ("error", "latency", "accuracy", "self_check", "power")
    facts.metrics(evaluation_metrics(evaluation), path, families)
    outputs = {output.name for output in evaluation.report.outputs}
    if (model := shared.model(run)) is not None and not {tensor.name for tensor in model.outputs} <= outputs:
        facts.add("outputs", {path: sorted(outputs), "the model": sorted(tensor.name for tensor in model.outputs)})
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
    facts.metrics(result.metrics(), Artifact.GATE, (Metric.GATE,))


def _check_campaign(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare config, data and golden outputs of a campaign, its result and its iterations with its table."""
    info, table_path = run.info, Artifact.CAMPAIGN_TABLE
    table = CampaignTable.from_bytes(run.read_bytes(table_path))
    result = DebugBuildResult.from_json(run.read_bytes(Artifact.CAMPAIGN_RESULT))
    counts = {"good": result.good, "bad": result.bad, "error": result.errors, "unproven": result.unproven}
    for verdict, count in campaigns.counts(table).items():
        fact = f"iterations that are {verdict}"
        facts.metric(fact, (Metric.ITERATIONS, verdict), table_path, count)
        facts.add(fact, {Artifact.CAMPAIGN_RESULT: float(counts[verdict])})
    facts.tag("verdict", Tag.VERDICT, Artifact.CAMPAIGN_RESULT, result.verdict)
    # A run that was uploaded from the spool is named by its local id.
    children = shared.tracker.find(parent=info.id, tags={Tag.KIND: "iteration"})
    child_runs: dict[str, RunInfo] = {}
    for child in children:
        child_runs |= {child.id: child, child.tags.get(Tag.LOCAL_ID, child.id): child}
    for code, name in zip(table.verdicts, table.names):
        verdict_there = child_runs[name].verdict if name in child_runs else "no such run"
        facts.add(
            f"verdict of iteration {name}", {table_path: VERDICTS[code], "that run's tag": verdict_there or _NONE}
        )
    numbers = {child_runs[name].tags.get(Tag.ITERATION) for name in table.names if name in child_runs}
    for child in children:  # one that was repeated, after its process had ended, does not count
        if child.status == "finished" and child.tags.get(Tag.ITERATION) not in numbers:
            facts.add(f"iteration {child.id}", {table_path: _NONE, "the store": "a finished iteration"})
    config = DebugBuildConfig.from_json(run.read_bytes(Artifact.CAMPAIGN))
    facts.tag("config of the campaign", Tag.SPEC_SHA256, Artifact.CAMPAIGN, config.digest, _NONE)
    materials = _check_given(run, config.build, shared, facts)
    values = {Artifact.CAMPAIGN: canonical_json(config.check), Artifact.MATERIALS: canonical_json(materials.check)}
    facts.add("how builds are evaluated", values)
    model = shared.model(run)
    facts.tag("model", Tag.MODEL_SHA256, "the content of the model file", model and model.sha256)
    if (file := campaigns.golden_file(run)) is not None:
        facts.tag("golden outputs", Tag.GOLDEN_SHA256, Artifact.GOLDEN, sha256_file(file), _NONE)
        facts.add(
            "golden outputs", {f"iteration {child.id}": child.fact(Tag.GOLDEN_SHA256) or None for child in children}
        )
        golden_names = set(chain.from_iterable(RunResults.load(str(file))[0][1]))
        if model is not None and config.check.golden is None:
            names = sorted(output.name for output in model.outputs)
            facts.add("names of the golden outputs", {Artifact.GOLDEN: sorted(golden_names), "the model": names})


def _check_parent(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare an iteration with the table, the config and the golden outputs of its campaign."""
    info, parent = run.info, run.info.parent
    table = None if parent is None else shared.table(parent)
    name = next((n for n in (info.id, info.tags.get(Tag.LOCAL_ID, "")) if table is not None and n in table.names), None)
    if table is None or parent is None:
        return
    verdict = "no such iteration" if name is None else VERDICTS[table.verdicts[table.names.index(name)]]
    if name is not None or info.tags.get(Tag.ITERATION) is not None:
        facts.tag("verdict", Tag.VERDICT, f"{Artifact.CAMPAIGN_TABLE} of run {parent}", verdict)
    campaign = shared.tracker.info(parent)
    for fact, tag in (("model", Tag.MODEL_SHA256), ("golden outputs", Tag.GOLDEN_SHA256)):
        if info.fact(tag):
            facts.tag(fact, tag, f"run {parent}", campaign.fact(tag) or _NONE)
    config = campaigns.read_config(shared.tracker, campaign)
    if config is not None and Artifact.SPEC in run.manifest and info.tags.get(Tag.ITERATION, "").isdecimal():
        expected_build = DebugBuildConfig.from_json(config).build_of(int(info.tags[Tag.ITERATION]))
        built = BuildSpec.from_json(run.read_bytes(Artifact.SPEC)).config
        values = {Artifact.SPEC: built.digest, f"{Artifact.CAMPAIGN} of run {parent}": expected_build.digest}
        facts.add("config of the build", values)


def _check_registry(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare the registered versions of a run, and their aliases, with the tags of the run."""
    info = run.info
    for alias, version in shared.accepted:
        if version.run_id != info.id:
            continue
        version_name = f"version {version.version} of {version.name!r}"
        for tag in (Tag.MODEL_SHA256, Tag.ENGINE_SHA256, *builds.ENVIRONMENT_TAGS):
            fact = {Tag.MODEL_SHA256: "model", Tag.ENGINE_SHA256: "engine"}.get(tag, f"registry ({tag})")
            facts.tag(fact, tag, version_name, version.tags.get(tag, _NONE), _NONE)
        # Aliases that users set are their own; ours name model and device, and then perhaps the precision.
        if alias.startswith("model-"):
            model, device = info.tags.get(Tag.MODEL_SHA256, "")[:12], info.fact(Tag.DEVICE_SHA256)[:12]
            expected = f"model-{model}_device-{device}"
            facts.add(f"alias {alias}", {version_name: "_".join(alias.split("_")[:2]), "the run's tags": expected})
        evidence, fact = version.tags.get(Tag.EVIDENCE, _NONE), f"registry ({Tag.EVIDENCE})"
        if info.kind == "promote":
            facts.tag(fact, Tag.EVIDENCE, version_name, evidence, _NONE)
            continue
        # The evidence is the gate that accepted the engine, which may have been built by another run.
        gate = info if evidence == info.id else shared.tracker.info(evidence)
        concerned = gate.tags.get(Tag.EVIDENCE, gate.id)
        facts.add(f"{fact}: the engine concerned", {version_name: info.id, f"run {gate.id}": concerned})
        decision = gate.tags.get(Tag.GATE, _NONE)
        facts.add(
            f"{fact}: the gate's decision", {version_name: "accept", f"tag {Tag.GATE} of run {gate.id}": decision}
        )


def _check_calibration(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare the two forms of a calibration cache, its numbers and its data."""
    cache = CalibrationCache.from_bytes(run.read_bytes(Artifact.CALIBRATION_JSON))
    text = sha256(run.read_bytes(Artifact.CALIBRATION_CACHE))
    facts.add("ranges", {Artifact.CALIBRATION_CACHE: text, Artifact.CALIBRATION_JSON: sha256(cache.to_tensorrt())})
    facts.tag("data", Tag.DATA_SHA256, Artifact.CALIBRATION_JSON, cache.data_sha256 or "")
    facts.tag("model", Tag.MODEL_SHA256, Artifact.CALIBRATION_JSON, cache.model_sha256)
    for name, value in (("samples", cache.samples), ("feeds", cache.feeds), ("tensors", len(cache))):
        facts.metric(f"number of {name}", (Metric.CALIBRATION, name), Artifact.CALIBRATION_JSON, value)
    if Artifact.CALIBRATION_RANGES in run.manifest:
        rows = json.loads(run.read_bytes(Artifact.CALIBRATION_RANGES))["data"]
        listed = canonical_json([[row[0], row[1]] for row in rows])
        values = {
            Artifact.CALIBRATION_RANGES: listed,
            Artifact.CALIBRATION_JSON: canonical_json([[r.name, r.amax] for r in cache.ranges]),
        }
        facts.add("largest values", {path: sha256(text.encode()) for path, text in values.items()})


_CHECKS: tuple[tuple[str, tuple[str, ...], Callable[[StoredRun, SharedReads, Facts], None]], ...] = (
    ("", schema.KINDS, _check_row),
    ("", schema.KINDS, _check_page),
    (Artifact.CALIBRATION_JSON, ("calibrate",), _check_calibration),
    (Artifact.SPEC, BUILDS, _check_build),
    (Artifact.LAYERS, BUILDS, _check_tactics),
    (Artifact.ACCURACY, (*BUILDS, "compare"), _check_accuracy),
    (Artifact.GATE, ("gate",), _check_gate),
    (Artifact.CAMPAIGN_TABLE, ("debug_build",), _check_campaign),
    ("", ("iteration",), _check_parent),
    ("", schema.KINDS, _check_registry),
)
"""Every check, with the file and the kinds of runs that it needs."""
