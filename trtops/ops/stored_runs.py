"""List, show, compare, re-evaluate and report stored runs. A run is named by its id."""

import functools
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from trtops import errors
from trtops.backend.common import save_bytes
from trtops.backend.trt.describe.alignment import EngineLayers, align
from trtops.comparator.report import Tolerances
from trtops.next_step import NextStep
from trtops.ops.evaluation.check import Evaluation
from trtops.ops.result import Inspection, tracker_or_default
from trtops.record import JSONValue, Record
from trtops.reports.document import Document, Section, Table
from trtops.reports.page import page
from trtops.reports.present import report_page
from trtops.reports.sections import computes_in, document_of, engine_place
from trtops.spec import Layer
from trtops.tables import counted, size
from trtops.terminal import one_line
from trtops.tracking import schema
from trtops.tracking.base import RunStatus, Tracker, Verdict, run_id_of
from trtops.tracking.records import EngineQuery, RunInfo, Runs


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

    ``parent`` is an id. Without a tracker, those of the default store.
    """
    tracker = tracker_or_default(tracker)
    required_tags = dict(tags or {})
    required_tags |= {tag: value for tag, value in ((schema.Tag.KIND, kind), (schema.Tag.VERDICT, verdict)) if value}
    parent = None if parent is None else run_id_of(parent, tracker)
    return Runs(tracker.find(experiment, tags=required_tags, parent=parent, status=status, limit=limit))


def list_runs(tracker: Tracker, *, engines: EngineQuery | None = None, **filters: Any) -> list[Row]:
    """Runs matching all filters of :func:`runs`, newest first.

    With a query, only runs that built such ``engines``, of at most an experiment and a verdict. The best are good ones
    unless another verdict is given.
    """
    if engines is None:
        matches: list[tuple[RunInfo, float | None]] = [(info, None) for info in runs(tracker=tracker, **filters)]
    else:
        limits = {name: filters.pop(name, default) for name, default in (("experiment", None), ("limit", 50))}
        verdict = filters.pop("verdict", None) or ("good" if engines.best else None)
        if unused := [name for name, value in filters.items() if value]:
            raise errors.ConfigError(f"Engines cannot be searched by {', '.join(unused)}; leave it out.")
        matches = tracker.engines(engines, verdict=verdict, **limits)

    def row(info: RunInfo, value: float | None) -> Row:
        same: dict[str, Any] = {name: getattr(info, name) for name in ("id", "experiment", "name", "status")}
        derived = {"kind": info.kind or "", "verdict": info.verdict or "", "parent": info.parent or ""}
        return Row(**same, **derived, start_time=info.start_time, value=value)

    return [row(*match) for match in matches]


def runs_csv(tracker: Tracker, **filters: Any) -> str:
    """Runs matching all filters of :func:`runs` as CSV, with a column for each param and metric."""
    return str(runs(tracker=tracker, **filters).to_frame().to_csv())


def inspect_run(run_id: str, tracker: Tracker) -> Inspection:
    """Tags, params, metrics and artifacts of a run."""
    run_id = run_id_of(run_id, tracker)
    info = tracker.info(run_id)
    files: list[tuple[str, int, str]] = []
    whole = True
    try:
        files = [(entry.path, entry.size, entry.sha256) for entry in tracker.load(run_id).manifest.artifacts]
    except errors.IncompleteRunError:
        whole = False
    metrics = {"/".join(name): value for name, value in info.metrics.items()}
    record: dict[str, JSONValue] = {
        **{name: getattr(info, name) for name in ("id", "experiment", "name", "status", "verdict", "url")},
        "whole": whole,
        "tags": dict(info.tags),
        "params": dict(info.params),
        "metrics": dict(metrics),
        "artifacts": [{"path": path, "bytes": count, "sha256": digest} for path, count, digest in files],
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
            # Lines of a note are indented, so that none looks like a line of this page.
            rows = (f"{one_line(key)} = {value}".replace("\n", "\n        ") for key, value in sorted(values.items()))
            lines += ["", f"---- {title} ----", *(f"    {row}" for row in rows)]
        lines += ["", "---- Artifacts ----", *(f"    {one_line(path)} ({size(count)})" for path, count, _ in files)]
        return "\n".join(lines)

    return Inspection(lambda: record, text)


@dataclass(frozen=True, kw_only=True)
class Line(Record):
    """One differing param or metric of several runs, with its value in each; empty if a run has none."""

    name: str
    kind: str
    values: tuple[str, ...]


def side_by_side(run_ids: Sequence[str], tracker: Tracker) -> list[Line]:
    """Differing params, then metrics, of several runs."""
    infos = [tracker.info(run_id_of(run_id, tracker)) for run_id in run_ids]
    metrics = [{"/".join(name): f"{value:.6g}" for name, value in info.metrics.items()} for info in infos]
    lines = []
    for kind, tables in (("param", [dict(info.params) for info in infos]), ("metric", metrics)):
        for name in sorted(set(chain.from_iterable(tables))):
            values = tuple(columns.get(name, "") for columns in tables)
            if len(set(values)) > 1:
                lines.append(Line(name=name, kind=kind, values=values))
    return lines


@dataclass(frozen=True, kw_only=True)
class Reevaluated(Record):
    """A stored comparison, evaluated with other tolerances; ``before`` is its logged verdict."""

    id: str
    name: str
    before: str
    verdict: Verdict
    reasons: tuple[str, ...]


def reevaluate(run_ids: Iterable[str], tolerances: Tolerances, tracker: Tracker) -> list[Reevaluated]:
    """Evaluate stored comparisons with other tolerances. Nothing runs, and the store does not change."""
    evaluated = []
    for run_id in run_ids:
        stored = tracker.load(run_id_of(run_id, tracker))
        evaluation = Evaluation.from_json(stored.read_bytes(schema.Artifact.ACCURACY))
        report, info = evaluation.report.evaluate(tolerances), stored.info
        missing = "" if evaluation.evidence is None else evaluation.evidence.missing
        # Other tolerances do not make the data prove more.
        verdict, reasons = ("unproven", (missing,)) if report and missing else (report.verdict, report.reasons)
        before = info.verdict or ""
        evaluated.append(Reevaluated(id=info.id, name=info.name, before=before, verdict=verdict, reasons=reasons))
    return evaluated


@dataclass(frozen=True, kw_only=True)
class Report(Record):
    """The written file of a report, and its run."""

    path: str
    run: str


def compare_page(runs: Sequence[str], *, output: str | Path, tracker: Tracker | None = None) -> Report:
    """Write a page with stored runs next to the first one: verdicts, reasons, speed, options and layers."""
    tracker = tracker_or_default(tracker)
    infos = [tracker.info(run_id_of(run, tracker)) for run in runs]
    labels = [f"{computes_in(info)} {info.id[:8]}".strip() for info in infos]
    documents = [document_of(info, functools.partial(tracker.peek, info.id)) for info in infos]
    speed, of_limit = (schema.Metric.LATENCY, "p50_ms"), (schema.Metric.ERROR, "of_limit")
    p50, sizes = ([info.metrics.get(name) for info in infos] for name in (speed, schema.Metric.ENGINE_BYTES))
    rows = tuple(
        (
            label, info.verdict or info.status,
            f"{info.metrics[of_limit]:.3g}" if of_limit in info.metrics else None, p50[number],
            _ratio(p50, number) if info.params.get("evidence.data") == infos[0].params.get("evidence.data") else None,
            None if sizes[number] is None else size(sizes[number] or 0), _ratio(sizes, number),
            info.params.get("evidence.source"),
        )
        for number, (label, info) in enumerate(zip(labels, infos))
    )  # fmt: skip
    columns = ("run", "verdict", "error of limit", "p50 in ms", "× baseline", "engine", "× baseline", "evaluated on")
    differing = tuple(
        (line.name, *(value or None for value in line.values))
        for line in side_by_side(runs, tracker)
        if not line.name.endswith(("sha256", "_url"))
    )
    layers = _layer_rows(tracker, infos)
    good = [number for number, info in enumerate(infos) if info.verdict == "good" and p50[number] is not None]
    fastest = "".join(f"; the fastest good one: {labels[n]}" for n in sorted(good, key=lambda n: p50[n] or 0)[:1])
    reasons: list[str] = []
    for label, run_document in zip(labels, documents):
        reasons += [f"{label}: {reason}" for reason in run_document.reasons]
    document = Document(
        title=f"{Path(infos[0].fact(schema.Tag.MODEL_PATH) or infos[0].name).name}: {counted(len(infos), 'run')}",
        verdict=max((info.verdict or "error" for info in infos), key=("good", "unproven", "bad", "error").index),
        headline=f"{sum(info.verdict == 'good' for info in infos)} of {len(infos)} are good{fastest}",
        reasons=tuple(reasons),
    )
    sections = [
        Section(
            title=f"Runs, compared with {labels[0]}",
            table=Table(columns=columns, rows=rows, pinned=1, ratios=(4, 6)),
        ),
        Section(title="What differs", table=Table(columns=("option or number", *labels), rows=differing)),
        Section(title=f"Layers that differ ({len(layers)})", table=Table(columns=("layer", *labels), rows=layers)),
    ]
    commands = [
        (str(NextStep("report", {"run": info.id})), f"all about {label}; {engine_place(info) or 'it has no engine'}")
        for label, info in zip(labels, infos)
    ]
    return _written(page(document, None, sections, {}, commands), output, infos[0].id)


def _ratio(values: Sequence[float | None], number: int) -> float | None:
    return value / values[0] if (value := values[number]) is not None and values[0] else None


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
                cells[0], cells[number] = (" ".join((*s.precisions, *s.tactics)) or None for s in (row.a, row.b))
    return tuple((" + ".join(nodes), *cells) for nodes, cells in itertools.islice(rows.items(), 1000))


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
