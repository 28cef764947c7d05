"""The parts of a report that are read from the run: outputs, iterations, layers, options, metrics."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from trtops import errors
from trtops.comparator.report import ComparisonReport
from trtops.reports.document import Chart, Document, Point, Section, Table, Tone
from trtops.tracking.base import RunInfo
from trtops.tracking.schema import Artifact, Metric, Tag

_CHILDREN = 2000


@dataclass(frozen=True)
class RunView:
    """A run for a report, with functions that read an artifact (or None) and find a number of child runs."""

    info: RunInfo
    read: Callable[[str], bytes | None]
    pictures: Sequence[str]
    children: Callable[[int], Sequence[RunInfo]]


def stored_sections(view: RunView) -> Iterable[Section]:
    """Sections from the store: outputs, iterations, layers, and all options and metrics."""
    yield from _outputs(view)
    if view.info.kind in ("debug_build", "proof", "bisect"):
        yield from _iterations(view)
    if layers := _read_layers(view):
        rows = tuple(tuple(str(layer.get(name) or "") for name in _LAYER) for layer in layers)
        table = Table(columns=("layer", "type", "precision", "kernel or tactic"), rows=rows)
        yield Section(title=f"Layers ({len(layers)})", table=table, folded=len(layers) > 20)
    info = view.info
    if info.params:
        options = Table(columns=("option", "value"), rows=tuple(sorted(info.params.items())))
        yield Section(title="Options", table=options, folded=True)
    if info.metrics:
        numbers = tuple(("/".join(name), value) for name, value in sorted(info.metrics.items()))
        yield Section(title="All numbers", table=Table(columns=("number", "value"), rows=numbers), folded=True)


def document_of(info: RunInfo, read: Callable[[str], bytes | None]) -> Document:
    """The document that a run's op logged; for a run that was killed or failed, its error."""
    if (kept := read(Artifact.REPORT_DATA)) is not None:
        return Document.from_json(kept)
    error = info.tags.get(Tag.ERROR)
    verdict = info.verdict or ("error" if info.status in ("failed", "killed") else "")
    headline = info.status if info.status != "finished" else ""
    why = (error,) if error else ()
    note = "" if error else info.tags.get(Tag.NOTE, "")
    sections = (Section(text=note),) if note else ()
    return Document(title=info.name, verdict=verdict, headline=headline, why=why, sections=sections)


def _outputs(view: RunView) -> Iterable[Section]:
    """The comparison of a run: its outputs with their statistics."""
    data = view.read(Artifact.ACCURACY)
    if data is None:
        return
    try:
        report = ComparisonReport.from_dict(json.loads(data)["report"])
    except (ValueError, LookupError, TypeError, errors.FormatError):
        return
    columns, rows = report.table()
    table = Table(columns=columns, rows=rows)
    points = tuple(
        Point(label=o.name, y=o.statistics.max_abs, tone=_tone(o.verdict))
        for o in report.outputs
        if o.statistics is not None
    )
    title = "Largest error of each output"
    chart = Chart(title=title, form="bars", x="largest absolute error", points=points) if len(points) > 1 else None
    yield Section(title="Outputs", chart=chart, table=table)


def _iterations(view: RunView) -> Iterable[Section]:
    children = [each for each in view.children(_CHILDREN) if each.kind == "iteration"]
    if not children:
        return

    def number_of(run: RunInfo) -> int:
        text = run.tags.get(Tag.ITERATION, "")
        return int(text) if text.isdecimal() else 0

    children.sort(key=lambda each: (number_of(each), each.start_time))
    errors = [each.metrics.get((Metric.ERROR, "max_abs")) for each in children]
    numbers = list(map(number_of, children))
    points = tuple(
        Point(label=f"{each.name}: {each.verdict or each.status}", x=float(number), y=error, tone=_tone(each.verdict))
        for each, number, error in zip(children, numbers, errors)
        if error is not None
    )
    rows = tuple(
        (
            float(number), each.verdict or each.status, each.tags.get(Tag.TRIAL) or each.name, error,
            each.metrics.get((Metric.LATENCY, "p50_ms")), each.metrics.get(Metric.BUILD_SECONDS), each.id,
        )
        for each, number, error in zip(children, numbers, errors)
    )  # fmt: skip
    columns = ("number", "verdict", "build", "largest error", "p50 in ms", "build in s", "run")
    chart = Chart(
        title="Largest error of each build", form="points", x="build", y="largest absolute error", points=points
    )
    yield Section(title="Builds", chart=chart if points else None, table=Table(columns=columns, rows=rows))


def _tone(verdict: str | None) -> Tone:
    return verdict if verdict in ("good", "bad", "error") else "plain"  # type: ignore[return-value]


_LAYER = ("name", "op", "precision", "tactic")


def _read_layers(view: RunView) -> list[dict[str, Any]]:
    data = view.read(Artifact.LAYERS)
    try:
        layers: Any = [] if data is None else json.loads(data)
    except ValueError:
        return []
    return layers if isinstance(layers, list) and all(isinstance(layer, dict) for layer in layers) else []
