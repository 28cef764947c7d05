"""What reports show of any run: facts, next commands, and sections with outputs, builds, layers and options."""

import contextlib
import json
import math
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from trtops import errors
from trtops.comparator.report import ComparisonReport
from trtops.next_step import NextStep
from trtops.reports.document import Chart, Document, Point, Section, Table
from trtops.tables import size
from trtops.tracking.base import RunInfo, Tracker
from trtops.tracking.owner import host_of
from trtops.tracking.schema import Artifact, Metric, MetricName, Tag
from trtops.tracking.writing import step_after_failure

Facts: TypeAlias = tuple[tuple[str, str], ...]
Read: TypeAlias = Callable[[str], "bytes | None"]

# A page with more rows is slow in a browser.
_MAX_BUILDS = 2000
# More rows than this are folded, so that what follows can be seen.
_MANY_LAYERS = 20

_NUMBERS: tuple[tuple[str, MetricName, Callable[[float], str]], ...] = (
    ("engine", Metric.ENGINE_BYTES, size),
    ("kernels in the requested precision", Metric.KERNELS_LOWERED, "{:.0%}".format),
    ("latency p50", (Metric.LATENCY, "p50_ms"), "{:.3f} ms".format),
    ("latency p99", (Metric.LATENCY, "p99_ms"), "{:.3f} ms".format),
    ("p50 on the device", (Metric.LATENCY, "device_p50_ms"), "{:.3f} ms".format),
    ("build time", Metric.BUILD_SECONDS, "{:.2f} s".format),
)
_TAGS = {
    "Machine": {
        "back end": Tag.BACKEND,
        "release": Tag.BACKEND_VERSION,
        "device": Tag.DEVICE,
        "driver": Tag.DRIVER,
        "CUDA": Tag.CUDA,
        "commit": Tag.GIT_COMMIT,
    },
    "Links": {
        "engine of run": Tag.REUSED_FROM,
        "because of run": Tag.EVIDENCE,
        "Prefect flow run": Tag.PREFECT_FLOW_RUN,
    },
    "Digests": {
        "model": Tag.MODEL_SHA256,
        "spec": Tag.SPEC_SHA256,
        "engine": Tag.ENGINE_SHA256,
        "data": Tag.DATA_SHA256,
        "device": Tag.DEVICE_SHA256,
        "environment": Tag.ENVIRONMENT_SHA256,
    },
}


def facts_of(info: RunInfo) -> dict[str, Facts]:
    """Names and values in groups: size and speed, machine, links, and digests. Unknown values are left out."""
    precision = computes_in(info)
    numbers = [(label, form(info.metrics[name])) for label, name, form in _NUMBERS if name in info.metrics]
    groups = {
        title: tuple((name, value) for name, tag in tags.items() if (value := info.fact(tag)))
        for title, tags in _TAGS.items()
    }
    if host := host_of(info):
        groups["Machine"] = (*groups["Machine"], ("host", host))
    run_links = [("run", info.id), *([("below run", info.parent)] if info.parent else [])]
    groups["Links"] = (*run_links, *groups["Links"])
    return {"Size and speed": (*([("precision", precision)] if precision else []), *numbers), **groups}


def computes_in(info: RunInfo) -> str:
    """The precision of a run's engine, such as ``FP32 (not FP16)``; empty without one."""
    return info.params.get("computes_in") or info.params.get("precision", "").upper()


def engine_place(info: RunInfo) -> str:
    """Where the engine of a run is; empty if it has none."""
    if Tag.ENGINE_SHA256 not in info.tags:
        return ""
    holder = info.tags.get(Tag.REUSED_FROM)
    return "engine in artifact engine/" + (f" of run {holder[:8]}" if holder else "")


def next_commands(document: Document, run: str) -> Iterator[tuple[str, str]]:
    """Commands for a shell, each with its purpose."""
    inspect = str(NextStep("inspect run", {"run": run}))
    if document.next not in ("", inspect):
        yield document.next, "what usually comes next"
    yield str(NextStep("report", {"run": run})), "this page, from the store"
    yield inspect, "everything in the store about it"


def stored_sections(tracker: Tracker, info: RunInfo, read: Read) -> Iterator[Section]:
    """Sections from the store; ``read`` returns an artifact of the run, or None."""
    # Damaged files must not keep the rest of a report from being shown.
    with contextlib.suppress(ValueError, LookupError, TypeError, errors.FormatError):
        if (data := read(Artifact.ACCURACY)) is not None:
            yield _outputs(ComparisonReport.from_dict(json.loads(data)["report"]))
    if info.kind in ("debug_build", "proof", "bisect"):
        yield from _builds(tracker, info)
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        if layers := json.loads(read(Artifact.LAYERS) or b"[]"):
            names = ("name", "op", "precision", "tactic")
            rows = tuple(tuple(str(layer.get(name) or "") for name in names) for layer in layers)
            table = Table(columns=("layer", "type", "precision", "kernel or tactic"), rows=rows)
            yield Section(title=f"Layers ({len(layers)})", table=table, folded=len(layers) > _MANY_LAYERS)
    if info.params:
        options = Table(columns=("option", "value"), rows=tuple(sorted(info.params.items())))
        yield Section(title="Options", table=options, folded=True)
    if info.metrics:
        numbers = tuple(("/".join(name), value) for name, value in sorted(info.metrics.items()))
        yield Section(title="All numbers", table=Table(columns=("number", "value"), rows=numbers), folded=True)


def document_of(info: RunInfo, read: Read) -> Document:
    """The document logged by a run's op; for a killed or failed run, its error."""
    if (data := read(Artifact.REPORT_DATA)) is not None:
        return Document.from_json(data)
    verdict = info.verdict or ("error" if info.status in ("failed", "killed") else "")
    headline = info.status if info.status != "finished" else ""
    reasons = (info.tags[Tag.ERROR],) if Tag.ERROR in info.tags else ()
    step = str(step_after_failure(info.id, info.kind)) if info.status in ("failed", "killed") else ""
    return Document(title=info.name, verdict=verdict, headline=headline, reasons=reasons, next=step)


def _outputs(report: ComparisonReport) -> Section:
    """The outputs of a comparison, with their statistics."""
    columns, rows = report.table()
    points = tuple(
        Point(label=o.name, y=o.statistics.max_abs, tone=o.verdict) for o in report.outputs if o.statistics is not None
    )
    title = "Largest error of each output"
    chart = Chart(title=title, form="bars", x="largest absolute error", points=points) if len(points) > 1 else None
    return Section(title="Outputs", chart=chart, table=Table(columns=columns, rows=rows))


def _builds(tracker: Tracker, info: RunInfo) -> Iterable[Section]:
    """The builds of a campaign by number: a table, and a chart of their errors."""
    builds: list[tuple[int, RunInfo]] = []
    # A store that is away now can be read later, by `trtops report`.
    with contextlib.suppress(errors.TrackingError):
        for child in tracker.find(info.experiment, parent=info.id, limit=_MAX_BUILDS):
            text = child.tags.get(Tag.ITERATION, "")
            if child.kind == "iteration":
                builds.append((int(text) if text.isdecimal() else 0, child))
    builds.sort(key=lambda build: (build[0], build[1].start_time))
    points, rows = [], []
    for number, run in builds:
        outcome, error = run.verdict or run.status, run.metrics.get((Metric.ERROR, "max_abs"))
        if error is not None and math.isfinite(error):
            points.append(Point(label=f"{run.name}: {outcome}", x=float(number), y=error, tone=run.verdict or "plain"))
        rows.append(
            (
                float(number), outcome, run.tags.get(Tag.TRIAL) or run.name, error,
                run.metrics.get((Metric.LATENCY, "p50_ms")), run.metrics.get(Metric.BUILD_SECONDS), run.id,
            )
        )  # fmt: skip
    columns = ("number", "verdict", "build", "largest error", "p50 in ms", "build in s", "run")
    title, y = "Largest error of each build", "largest absolute error"
    chart = Chart(title=title, form="points", x="build", y=y, points=tuple(points)) if points else None
    if builds:
        yield Section(title="Builds", chart=chart, table=Table(columns=columns, rows=tuple(rows)))
