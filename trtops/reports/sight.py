"""What a report reads from a run beyond the op's own words: layers, iterations, pictures."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trtops import errors
from trtops.comparator.report import ComparisonReport, OutputComparison
from trtops.comparator.table import RECORDED
from trtops.comparator.table import Metric as RecordedMetric
from trtops.reports.document import Cell, Chart, Document, Point, Section, Table, Tone
from trtops.tracking.base import RunInfo
from trtops.tracking.schema import Artifact, Metric, Tag

_CHILDREN = 2000


@dataclass(frozen=True)
class Sight:
    """A run as a report sees it.

    Attributes:
        info: The run.
        read: Its artifacts by their paths; None for one that it does not have.
        pictures: Paths of its pictures.
        children: The runs below it, when they are asked for, at most so many.
    """

    info: RunInfo
    read: Callable[[str], bytes | None]
    pictures: Sequence[str]
    children: Callable[[int], Sequence[RunInfo]]


def further_sections(sight: Sight) -> Iterable[Section]:
    """What the store knows of a run: its iterations, its layers, all of its options and numbers."""
    yield from _outputs(sight)
    if sight.info.kind in ("debug_build", "proof", "bisect", "noise"):
        yield from _iterations(sight)
    if (section := _layers(sight)) is not None:
        yield section
    info = sight.info
    if info.params:
        rows = tuple(sorted(info.params.items()))
        yield Section(title="Options", table=Table(columns=("option", "value"), rows=rows), folded=True)
    if info.metrics:
        numbers = tuple(("/".join(name), value) for name, value in sorted(info.metrics.items()))
        yield Section(title="All numbers", table=Table(columns=("number", "value"), rows=numbers), folded=True)


def document_of(info: RunInfo, read: Callable[[str], bytes | None]) -> Document:
    """What a run's op said; of a run that was killed, failed or logged before there were reports, what the run says."""
    if (kept := read(Artifact.REPORT_DATA)) is not None:
        return Document.from_json(kept)
    error = info.tags.get(Tag.ERROR)
    verdict = info.verdict or ("error" if info.status in ("failed", "killed") else "")
    headline = info.status if info.status != "finished" else ""
    why = (error,) if error else ()
    note = "" if error else info.tags.get(Tag.NOTE, "")
    sections = (Section(text=note),) if note else ()
    return Document(title=info.name, verdict=verdict, headline=headline, why=why, sections=sections)


def _outputs(sight: Sight) -> Iterable[Section]:
    """The comparison that a run holds: its outputs with their numbers."""
    data = sight.read(Artifact.ACCURACY)
    if data is None:
        return
    try:
        report = ComparisonReport.from_dict(json.loads(data)["report"])
    except (ValueError, LookupError, TypeError, errors.FormatError):
        return  # of an earlier form
    shown = [metric for metric in RECORDED if metric.column]
    rows = tuple((o.name, o.verdict, *(_number(o, metric) for metric in shown)) for o in report.outputs)
    table = Table(columns=("output", "verdict", *(metric.column for metric in shown)), rows=rows)
    points = tuple(
        Point(label=o.name, y=o.statistics.max_abs, tone=_tone(o.verdict))
        for o in report.outputs
        if o.statistics is not None
    )
    title = "Largest error of each output"
    chart = Chart(title=title, form="bars", x="largest absolute error", points=points) if len(points) > 1 else None
    yield Section(title="Outputs", chart=chart, table=table)


def _number(output: OutputComparison, metric: RecordedMetric) -> float | None:
    if output.statistics is None or (metric.by_class and output.statistics.class_axis is None):
        return None
    value: float | None = getattr(output.statistics, metric.name)
    return None if value is None else float(value)


def _iterations(sight: Sight) -> Iterable[Section]:
    children = [each for each in sight.children(_CHILDREN) if each.kind == "iteration"]
    if not children:
        return
    children.sort(key=lambda each: (int(_digits(each.tags.get(Tag.ITERATION))), each.start_time))
    errors = [each.metrics.get((Metric.ERROR, "max_abs")) for each in children]
    numbers = [int(each.tags.get(Tag.ITERATION) or place) for place, each in enumerate(children)]
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


def _digits(text: str | None) -> str:
    return text if text and text.isdecimal() else "0"


def _tone(verdict: str | None) -> Tone:
    return "good" if verdict == "good" else "bad" if verdict == "bad" else "error" if verdict == "error" else "plain"


def _layers(sight: Sight) -> Section | None:
    layers = _read_layers(sight)
    if not layers:
        return None
    rows = tuple(tuple(str(layer.get(name) or "") for name in _LAYER) for layer in layers)
    columns = ("layer", "type", "precision", "kernel or tactic")
    return Section(title=f"Layers ({len(layers)})", table=Table(columns=columns, rows=rows), folded=len(layers) > 20)


_LAYER = ("name", "op", "precision", "tactic")


def _read_layers(sight: Sight) -> list[dict[str, Any]]:
    data = sight.read(Artifact.LAYERS)
    try:
        layers: Any = [] if data is None else json.loads(data)
    except ValueError:
        return []
    return layers if isinstance(layers, list) and all(isinstance(layer, dict) for layer in layers) else []


def difference(first: Sight, second: Sight) -> Document:
    """Two runs side by side: what differs in options, numbers and layers."""
    names = tuple(f"{sight.info.name} ({sight.info.id[:8]})" for sight in (first, second))
    verdicts = tuple(sight.info.verdict or sight.info.status for sight in (first, second))
    options = _differing(dict(first.info.params), dict(second.info.params))
    numbers = _differing(*({"/".join(name): value for name, value in s.info.metrics.items()} for s in (first, second)))
    layers = _differing(*({str(e.get("name")): _layer_text(e) for e in _read_layers(s)} for s in (first, second)))
    tables = (("Options", "option", options), ("Layers", "layer", layers), ("Numbers", "number", numbers))
    sections = [
        Section(
            title=title,
            text="" if rows else "No difference.",
            table=Table(columns=(of, *names), rows=rows) if rows else None,
        )
        for title, of, rows in tables
    ]
    summary = Table(columns=("run", "verdict", "id"), rows=tuple(zip(names, verdicts, (first.info.id, second.info.id))))
    headline = f"{len(options)} options, {len(layers)} layers and {len(numbers)} numbers differ"
    title = f"{names[0]} and {names[1]}"
    return Document(title=title, headline=headline, sections=(Section(table=summary), *sections))


def _layer_text(layer: Mapping[str, Any]) -> str:
    return ", ".join(str(layer[name]) for name in _LAYER[1:] if layer.get(name))


def _differing(first: Mapping[str, Cell], second: Mapping[str, Cell]) -> tuple[tuple[Cell, ...], ...]:
    names = sorted({*first, *second})
    return tuple((n, first.get(n), second.get(n)) for n in names if first.get(n) != second.get(n))
