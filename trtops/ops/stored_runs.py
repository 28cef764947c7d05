"""List, show, compare, re-evaluate and report stored runs. A run is named by its id."""

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from trtops import errors
from trtops.backend.common import save_bytes
from trtops.backend.trt.describe.alignment import EngineLayers, align
from trtops.comparator.report import Tolerances
from trtops.next_step import NextStep
from trtops.ops.arguments import checked_arguments
from trtops.ops.evaluation.check import Evaluation
from trtops.ops.result import Inspection, tracker_or_default
from trtops.record import JSONValue, Record
from trtops.reports.document import Document, Section, Table
from trtops.reports.page import page
from trtops.reports.present import report_page
from trtops.reports.sections import computes_in, document_of, engine_place
from trtops.spec import Layer
from trtops.tables import counted, size
from trtops.terminal import one_line, with_short_words
from trtops.tracking import schema
from trtops.tracking.base import RunStatus, Tracker, Verdict, run_id_of
from trtops.tracking.records import ArtifactEntry, EngineQuery, RunInfo, Runs
from trtops.verdict import worst


@dataclass(frozen=True, kw_only=True)
class Row(Record):
    """One run in a list. Verdict and parent are empty if it has none; the start time is in seconds since the epoch."""

    id: str
    experiment: str
    kind: str
    name: str
    status: str
    verdict: str
    start_time: float
    parent: str = ""
    value: float | None = None  # of the metric that engines are sorted by


def runs(
    experiment: str | None = None,
    *,
    tracker: Tracker | None = None,
    kind: str | None = None,
    verdict: str | None = None,
    status: RunStatus | None = None,
    parent: str | None = None,
    tags: Mapping[str, str] | None = None,
    limit: int | None = 50,
) -> Runs:
    """Runs matching all filters, newest first, for example ``trtops.runs("digits").to_frame()``.

    ``parent`` is an id. Without a tracker, those of the default store. RunNotFoundError if the experiment has no run.

    >>> built = trtops.convert("model.onnx")
    >>> [info.id == built.run_id for info in runs("model", kind="build")]
    [True]
    """
    tracker = tracker_or_default(tracker)
    required_tags = dict(tags or {})
    if kind:
        required_tags[schema.Tag.KIND] = kind
    if verdict:
        required_tags[schema.Tag.VERDICT] = verdict
    parent = None if parent is None else run_id_of(parent, tracker)
    matches = tracker.find(experiment, tags=required_tags, parent=parent, status=status, limit=limit)
    if limit != 0 and not matches:
        _refuse_unknown(experiment, tracker)
    return Runs(matches)


def _refuse_unknown(experiment: str | None, tracker: Tracker) -> None:
    """Raise RunNotFoundError if an experiment has no run at all."""
    if experiment is not None and not tracker.find(experiment, limit=1):
        names = [info.experiment for info in tracker.find(limit=200)]
        raise errors.RunNotFoundError(
            f"There are no runs in experiment {experiment!r}. {errors.near(experiment, names)}"
        )


@checked_arguments
def list_runs(tracker: Tracker, *, engines: EngineQuery | None = None, **filters: Any) -> list[Row]:
    """Runs matching all filters of :func:`runs`, newest first.

    With a query, only runs that built such ``engines``, of at most an experiment and a verdict. The best are good ones
    unless another verdict is given, of builds only; the best of each model if there are several.
    """
    if engines is None:
        matches: list[tuple[RunInfo, float | None]] = [(info, None) for info in runs(tracker=tracker, **filters)]
    else:
        experiment, limit = filters.pop("experiment", None), filters.pop("limit", 50)
        verdict = filters.pop("verdict", None) or ("good" if engines.best else None)
        if unused := list(filter(filters.get, filters)):
            raise errors.ConfigError(f"Engines cannot be searched by {', '.join(unused)}; leave it out.")
        query = replace(engines, verdict=verdict, experiment=experiment)
        matches = _best_of_each_model(tracker, query, limit) if query.best else tracker.engines(query, limit)
        if not matches:
            _refuse_unknown(experiment, tracker)
    rows = []
    for info, value in matches:
        row = Row(
            id=info.id,
            experiment=info.experiment,
            kind=info.kind or "",
            name=info.name,
            status=info.status,
            verdict=info.verdict or "",
            start_time=info.start_time,
            parent=info.parent or "",
            value=value,
        )
        rows.append(row)
    return rows


def _best_of_each_model(tracker: Tracker, query: EngineQuery, limit: int | None) -> list[tuple[RunInfo, float | None]]:
    """Return the best engine of each model; the best engines if they are of one model, since values compare only then.

    With a limit, further searches leave out the models of earlier ones, so that few engines of a large store are read.
    """
    best: dict[str, tuple[RunInfo, float | None]] = {}
    first = matches = tracker.engines(query, limit)
    while matches:
        count = len(best)
        for info, value in matches:
            best.setdefault(info.tags.get(schema.Tag.MODEL_SHA256, ""), (info, value))
        if limit is None or count == len(best) or len(best) >= limit:
            break
        matches = tracker.engines(replace(query, without_models=tuple(best)), limit)
    return list(best.values())[:limit] if len(best) > 1 else first


@checked_arguments
def runs_csv(tracker: Tracker, **filters: Any) -> str:
    """Runs matching all filters of :func:`runs` as CSV, with a column for each param and metric.

    Text that a spreadsheet would compute as a formula begins with an apostrophe.
    """
    frame = runs(tracker=tracker, **filters).to_frame().rename(columns=_without_formula)
    return str(frame.map(_without_formula).to_csv())


def _without_formula(value: Any) -> Any:
    """Return a cell of a spreadsheet that is not computed; numbers stay."""
    is_formula = isinstance(value, str) and re.match(r"[=+@\t\r]|-(?![\d.]+(e-?\d+)?$)", value)
    return f"'{value}" if is_formula else value


@checked_arguments
def inspect_run(run_id: str, tracker: Tracker) -> Inspection:
    """Tags, params, metrics and artifacts of a run."""
    run_id = run_id_of(run_id, tracker)
    info = tracker.info(run_id)
    files: Sequence[ArtifactEntry] = ()
    whole = True
    try:
        files = tracker.load(run_id).manifest.artifacts
    except errors.IncompleteRunError:
        whole = False
    metrics = {"/".join(name): value for name, value in info.metrics.items()}
    record: dict[str, JSONValue] = {
        "id": info.id,
        "experiment": info.experiment,
        "name": info.name,
        "status": info.status,
        "verdict": info.verdict,
        "url": info.url,
        "whole": whole,
        "tags": dict(info.tags),
        "params": dict(info.params),
        "metrics": dict(metrics),
        "artifacts": [{"path": file.path, "bytes": file.size, "sha256": file.sha256} for file in files],
    }

    def text() -> str:
        named = f"{one_line(info.name)} in {one_line(info.experiment)}"
        lines = [f"{named}: {info.status}{f', {info.verdict}' if info.verdict else ''}"]
        lines += [f"Run {info.id}", *([info.url] if info.url else [])]
        if not whole:
            lines.append("The run is incomplete: it has no manifest, or a file does not match it.")
        tables: tuple[tuple[str, Mapping[str, object]], ...] = (
            ("Params", info.params), ("Metrics", metrics), ("Tags", info.tags),
        )  # fmt: skip
        for title, values in tables:
            lines += ["", f"---- {title} ----"]
            for key, value in sorted(values.items()):
                # Lines of a note are indented, so that none looks like a line of this page.
                text = with_short_words(str(value)).replace("\n", "\n        ")
                lines.append(f"    {one_line(key)} = {text}")
        lines += ["", "---- Artifacts ----", *(f"    {one_line(file.path)} ({size(file.size)})" for file in files)]
        return "\n".join(lines)

    return Inspection(lambda: record, text)


@dataclass(frozen=True, kw_only=True)
class Line(Record):
    """The verdict, or a differing param or metric of several runs, with its value in each; empty if a run has none."""

    name: str
    kind: str
    values: tuple[str, ...]


def _metric_text(name: tuple[str, ...], value: float) -> str:
    return f"{value:.0f}" if name[-1].endswith("bytes") else f"{value:.6g}"


_INCOMPARABLE = ("sha256", "skipped", "listed")  # ends of names of params that say nothing next to others
_FIRST_LINES = ("computes_in", "error/of_limit", "latency/p50_ms", "latency/p99_ms", "build/engine_bytes")


@checked_arguments
def side_by_side(run_ids: Sequence[str], tracker: Tracker) -> list[Line]:
    """The verdicts, then differing params and metrics, of several runs; nothing if they differ in nothing.

    What people choose by comes first. Digests, and settings that a builder had no time for, are left out: other lines
    say what differs.
    """
    infos = [tracker.info(run_id_of(run_id, tracker)) for run_id in run_ids]
    params, metrics = [], []
    for info in infos:
        params.append({name: text for name, text in info.params.items() if not name.endswith(_INCOMPARABLE)})
        metrics.append({"/".join(name): _metric_text(name, value) for name, value in info.metrics.items()})
    verdicts = Line(name="verdict", kind="tag", values=tuple(info.verdict or info.status for info in infos))
    lines = []
    for kind, tables in (("param", params), ("metric", metrics)):
        for name in sorted(set(chain.from_iterable(tables))):
            values = tuple(columns.get(name, "") for columns in tables)
            if len(set(values)) > 1:
                lines.append(Line(name=name, kind=kind, values=values))
    ranks = {name: rank for rank, name in enumerate(_FIRST_LINES)}
    lines.sort(key=lambda line: ranks.get(line.name, len(ranks)))
    return [verdicts, *lines] if lines or len(set(verdicts.values)) > 1 else []


@dataclass(frozen=True, kw_only=True)
class Reevaluated(Record):
    """A stored comparison, evaluated with other tolerances; ``before`` is its logged verdict."""

    id: str
    name: str
    before: str
    verdict: Verdict
    reasons: tuple[str, ...]


@checked_arguments
def reevaluate(run_ids: Iterable[str], tolerances: Tolerances, tracker: Tracker) -> list[Reevaluated]:
    """Evaluate stored comparisons with other tolerances. Nothing runs, and the store does not change."""
    evaluated = []
    for run_id in run_ids:
        stored = tracker.load(run_id_of(run_id, tracker))
        evaluation = Evaluation.from_json(stored.read_bytes(schema.Artifact.ACCURACY))
        info, evidence = stored.info, evaluation.evidence
        # Other tolerances do not make the data prove more, and an export is as wrong as before.
        again = Evaluation(
            report=evaluation.report.evaluate(tolerances),
            evidence=None if evidence is None else replace(evidence, shapes=()),
            export=evaluation.export,
        )
        entry = Reevaluated(
            id=info.id, name=info.name, before=info.verdict or "", verdict=again.verdict, reasons=again.reasons
        )
        evaluated.append(entry)
    return evaluated


@dataclass(frozen=True, kw_only=True)
class Report(Record):
    """The written file of a report, and its run."""

    path: str
    run: str


@checked_arguments
def compare_page(runs: Sequence[str], *, output: str | Path, tracker: Tracker | None = None) -> Report:
    """Write a page with stored runs next to the first one: verdicts, reasons, speed, options and layers."""
    tracker = tracker_or_default(tracker)
    infos = [tracker.info(run_id_of(run, tracker)) for run in runs]
    labels = [f"{computes_in(info)} {info.id[:8]}".strip() for info in infos]
    rows, reasons, commands, times = [], list[str](), list[tuple[str, str]](), dict[str, float]()
    for label, info in zip(labels, infos):
        rows.append((label, *_run_cells(info, infos[0])))
        reasons += (f"{label}: {reason}" for reason in document_of(info, partial(tracker.peek, info.id)).reasons)
        content = f"all about {label}; {engine_place(info) or 'it has no engine'}"
        commands.append((str(NextStep("report", {"run": info.id})), content))
        if info.verdict == "good" and _SPEED in info.metrics:
            times[label] = info.metrics[_SPEED]
    fastest = f"; the fastest good one: {min(times, key=times.__getitem__)}" if times else ""
    document = Document(
        title=f"{Path(infos[0].fact(schema.Tag.MODEL_PATH) or infos[0].name).name}: {counted(len(infos), 'run')}",
        verdict=worst(info.verdict or "error" for info in infos),
        headline=f"{sum(info.verdict == 'good' for info in infos)} of {len(infos)} are good{fastest}",
        reasons=tuple(reasons),
    )
    differing = []
    for line in side_by_side(runs, tracker):
        if line.kind != "tag" and not line.name.endswith("_url"):
            differing.append((line.name, *(value or None for value in line.values)))
    layers = _layer_rows(tracker, infos)
    runs_table = Table(columns=_RUN_COLUMNS, rows=tuple(rows), pinned=1, ratios=(4, 6))
    differing_table = Table(columns=("option or number", *labels), rows=tuple(differing))
    sections = [
        Section(title=f"Runs, compared with {labels[0]}", table=runs_table),
        Section(title="What differs", table=differing_table),
        Section(title=f"Layers that differ ({len(layers)})", table=Table(columns=("layer", *labels), rows=layers)),
    ]
    return _written(page(document, None, sections, {}, commands), output, infos[0].id)


_SPEED = (schema.Metric.LATENCY, "p50_ms")
_RUN_COLUMNS = (
    "run", "verdict", "error of limit", "p50 in ms", "× baseline", "engine", "× baseline", "evaluated on",
)  # fmt: skip


def _run_cells(info: RunInfo, baseline: RunInfo) -> tuple[str | float | None, ...]:
    """The cells of a run, after its name; times are only compared if both were measured on the same data."""

    def ratio(metric: tuple[str, ...]) -> float | None:
        value, other = info.metrics.get(metric), baseline.metrics.get(metric)
        return value / other if value is not None and other else None

    of_limit = info.metrics.get((schema.Metric.ERROR, "of_limit"))
    engine_bytes = info.metrics.get(schema.Metric.ENGINE_BYTES)
    is_same_data = info.params.get("evidence.data") == baseline.params.get("evidence.data")
    return (
        info.verdict or info.status,
        None if of_limit is None else f"{of_limit:.3g}",
        info.metrics.get(_SPEED),
        ratio(_SPEED) if is_same_data else None,
        None if engine_bytes is None else size(engine_bytes),
        ratio(schema.Metric.ENGINE_BYTES),
        info.params.get("evidence.source"),
    )


def _layer_rows(tracker: Tracker, infos: Sequence[RunInfo]) -> tuple[tuple[str | None, ...], ...]:
    """Precisions and kernels of ONNX nodes with a difference from the first engine; at most 1000 rows."""
    rows: dict[tuple[str, ...], list[str | None]] = {}
    engines = []
    for info in infos:
        layers = tracker.peek(info.tags.get(schema.Tag.REUSED_FROM, info.id), schema.Artifact.LAYERS)
        engines.append(EngineLayers.of(map(Layer.from_dict, json.loads(layers or b"[]")), {}))
    first, *others = engines
    for number, engine in enumerate(others, 1):
        for row in align(first, engine).rows if engine.layers else ():
            if row.differs:
                cells = rows.setdefault(row.nodes, [None] * len(infos))
                for column, side in ((0, row.a), (number, row.b)):
                    cells[column] = " ".join((*side.precisions, *side.tactics)) or None
    return tuple((" + ".join(nodes), *cells) for nodes, cells in itertools.islice(rows.items(), 1000))


@checked_arguments
def report(run: str, *, tracker: Tracker | None = None, output: str | Path | None = None) -> Report:
    """Write the HTML report of a run; by default to ``report-<run>.html``."""
    tracker = tracker_or_default(tracker)
    run = run_id_of(run, tracker)
    return _written(report_page(tracker, run), output or f"report-{run[:8]}.html", run)


def _written(content: str, output: str | Path, run: str) -> Report:
    path = Path(output)
    try:
        save_bytes(content.encode("utf-8"), path)
    except OSError as exc:
        raise errors.ConfigError(
            f"The report cannot be written to {path}: {exc.strerror}. Use another --output."
        ) from None
    return Report(path=str(path.absolute()), run=run)
