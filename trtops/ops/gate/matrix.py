"""Gate several candidates: every combination of models, precisions, devices and releases, in one table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TypeAlias

from trtops import errors
from trtops.ops.gate.environments import HERE, Release, interpreter_of
from trtops.ops.gate.findings import Finding
from trtops.ops.gate.op import GateConfig, accept, gate
from trtops.ops.gate.result import GateResult
from trtops.ops.result import OnProgress, OpResult, finish_with, op_run
from trtops.record import Record
from trtops.reports.document import Section, Table
from trtops.spec import Precision
from trtops.tracking import builds, schema
from trtops.tracking.base import Tracker, Verdict
from trtops.tracking.tables import log_table

_COLUMNS = (
    "model", "precision", "release", "device", "decision", "latency ratio", "low", "high", "widths", "size ratio",
    "seconds", "run",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class MatrixConfig(Record):
    """The candidates: every combination of what is listed.

    Attributes:
        models: ONNX files.
        releases: Releases of the back end.
        precisions: Precisions to build in.
        devices: GPUs, as in ``CUDA_VISIBLE_DEVICES``; ``cpu`` is the CPU.
        gate: Everything else. Precision, release and devices come from the combination.
    """

    models: tuple[str, ...]
    releases: tuple[Release, ...] = (HERE,)
    precisions: tuple[Precision, ...] = ("fp32",)
    devices: tuple[str, ...] = ()
    gate: GateConfig = field(default_factory=GateConfig)

    def __post_init__(self) -> None:
        for name in ("models", "releases", "precisions"):
            if not getattr(self, name):
                raise errors.ConfigError(f"{name} is empty; expected one or more.")
        repeated = [name for name, n in Counter(release.name for release in self.releases).items() if n > 1]
        if repeated:
            raise errors.ConfigError(f"Two releases are named {repeated[0]!r}; give each its own name (name=path).")
        if self.gate.candidate is not None and len(self.cells()) > 1:
            raise errors.ConfigError(
                f"candidate is one run, but there are {len(self.cells())} combinations; expected one."
            )

    def cells(self) -> tuple[Cell, ...]:
        """Every combination, by model, then precision, then device, then release."""
        cells = []
        for model, precision, device, release in product(
            self.models, self.precisions, self.devices or ("",), self.releases
        ):
            on_cpu = device == "cpu" and self.gate.build.backend == "onnxruntime"
            others = (*self.gate.others, *(each for each in self.releases if each != release))
            config = replace(
                self.gate,
                build=replace(self.gate.build, precision=precision),
                release=release,
                others=tuple(dict.fromkeys(others)),
                devices=() if on_cpu else (device,) if device else self.gate.devices,
            )
            cells.append(Cell(model=model, device=device, config=config))
        return tuple(cells)


@dataclass(frozen=True, kw_only=True)
class Cell(Record):
    """One combination.

    Attributes:
        device: The device as requested.
        parent: The run of the matrix.
    """

    model: str
    device: str
    config: GateConfig
    experiment: str = ""
    parent: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """A name for people."""
        where = f" on {self.device}" if self.device else ""
        return f"{Path(self.model).stem} {self.config.build.precision} {self.config.release.name}{where}"


Submit: TypeAlias = "Callable[[Cell], Future[GateResult]]"
"""Runs one cell somewhere."""


@dataclass(frozen=True, kw_only=True)
class MatrixResult(OpResult):
    """The outcome of a matrix.

    Attributes:
        cells: The result of every combination, in the order of the config.
    """

    title: str = "gate matrix"
    cells: tuple[GateResult, ...]

    @property
    def verdict(self) -> Verdict:
        """``bad`` if a candidate was refused, ``error`` if one is undecided or failed, otherwise ``good``."""
        verdicts = {cell.verdict for cell in self.cells}
        return "bad" if "bad" in verdicts else "error" if "error" in verdicts else "good"

    @property
    def headline(self) -> str:
        """The number of candidates by decision."""
        counts = Counter(cell.decision for cell in self.cells)
        words = {"accept": "accepted", "refuse": "refused", "measure more": "need more measurement", "error": "errors"}
        return ", ".join(f"{counts[each]} {words[each]}" for each in words if counts[each])  # type: ignore[index]

    def rows(self) -> Iterable[tuple[str | float | None, ...]]:
        """Rows of the table."""
        for cell in self.cells:
            measured, ratio = cell.measured, cell.ratio
            accepted = None if measured is None else measured.accepted
            yield (
                Path(cell.subject).stem,
                cell.precision,
                cell.release,
                cell.device or "-",
                cell.decision,
                *((None, None, None) if ratio is None else (ratio.ratio, ratio.low, ratio.high)),
                None if not measured else max((output.distance_widths for output in measured.widths), default=None),
                measured.candidate.engine_bytes / max(1, accepted.engine_bytes) if measured and accepted else None,
                cell.seconds,
                cell.run_id,
            )

    def sections(self) -> Iterable[Section]:
        """Candidates that were not accepted, with reasons; then a table of all."""
        lines = []
        for cell in self.cells:
            if cell.decision != "accept":
                name = f"{Path(cell.subject).stem} {cell.precision} {cell.release} {cell.device}".strip()
                lines.append(f"- **{name}**: {cell.decision}. {'; '.join(cell.reasons)}")
        yield Section(text="\n".join(lines), table=Table(columns=_COLUMNS, rows=tuple(self.rows())))


def gate_all(
    config: MatrixConfig,
    *,
    tracker: Tracker,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    submit: Submit | None = None,
    progress: OnProgress | None = None,
) -> GateResult | MatrixResult:
    """Gate every combination; several of them in child runs, with one table.

    All candidates are compared with the engines that were accepted before the first of them. Accepted ones are
    registered at the end, in order.

    Args:
        config: The combinations.
        tracker: The tracking store and its registry.
        experiment: Experiment to log to; by default the name of the model, or ``gate`` for several combinations.
        tags: Further tags of all runs.
        submit: Runs one combination; by default in this process, one after the other.
        progress: Called after each combination.

    Returns:
        The result of a single combination, or the outcomes of several. Of several, a release that cannot be installed,
        a missing device or an unreadable model only ends its own combination.
    """

    def run_here(cell: Cell) -> Future[GateResult]:
        done: Future[GateResult] = Future()
        try:
            done.set_result(gate_cell(cell, tracker=tracker))
        except errors.TrtopsError as exc:  # raised by result()
            done.set_exception(exc)
        return done

    begin = submit or run_here
    cells = [replace(cell, tags=dict(tags or {})) for cell in config.cells()]
    if len(cells) == 1:
        return begin(replace(cells[0], experiment=experiment or Path(cells[0].model).stem)).result()
    experiment = experiment or "gate"
    with op_run(tracker, experiment, "gate matrix", kind="gate_matrix", tags=tags) as run:
        run.log_params(schema.flat_params({name: value for name, value in config.to_dict().items() if name != "gate"}))
        installed: dict[str, Release] = {}
        failed: dict[str, str] = {}
        for release in config.releases:
            try:
                python = interpreter_of(release, config.gate.build.backend)
                installed[release.name] = Release(name=release.name, python=python)
            except (errors.ConfigError, errors.BackendError) as exc:
                failed[release.name] = str(exc)
        results: list[GateResult] = []

        def begin_cell(cell: Cell) -> Future[GateResult] | Finding:
            name = cell.config.release.name
            if name in failed:
                return Finding("release", "refuse", failed[name])
            if problem := cell.config.device_problem:
                return Finding("device", "refuse", problem)
            # Environments are passed on as interpreters, so that no cell installs one again.
            others = tuple(installed.get(e.name, e) for e in cell.config.others if e.name not in failed)
            changed = replace(cell.config, register=False, release=installed[name], others=others)
            return begin(replace(cell, config=changed, experiment=experiment, parent=run.id))

        begun: Iterable[Future[GateResult] | Finding] = map(begin_cell, cells)
        for cell, waited in zip(cells, begun if submit is None else list(begun)):
            results.append(_result_of(cell, waited))
            if progress is not None:
                progress(len(results), len(cells))
        if config.gate.register:
            for number, (cell, result) in enumerate(zip(cells, results)):
                if result.decision == "accept":
                    build = builds.load_build(tracker.load(result.holder))
                    name = cell.config.name or Path(cell.model).stem
                    version, alias = accept(tracker, result.holder, build, name=name, evidence=result.run_id)
                    results[number] = replace(result, version=version.version, alias=alias)
        matrix = MatrixResult(cells=tuple(results)).kept_in(run, experiment)
        run.log_json(matrix, schema.Artifact.GATE)
        run.log_text(matrix.page(), schema.Artifact.GATE_PAGE)
        log_table(run, schema.Artifact.GATE_TABLE, _COLUMNS, (list(row) for row in matrix.rows()))
        counts = Counter(result.decision for result in results)
        run.log_metrics({(schema.Metric.GATE, decision): float(count) for decision, count in counts.items()})
        finish_with(run, matrix, tracker)
    return matrix


def gate_cell(cell: Cell, *, tracker: Tracker) -> GateResult:
    """Gate one combination, in any thread, process or machine with access to the store, the models and the releases."""
    return gate(
        cell.model, cell.config, tracker=tracker, experiment=cell.experiment, tags=cell.tags, parent=cell.parent or None
    )


def _result_of(cell: Cell, waited: Future[GateResult] | Finding) -> GateResult:
    """The result of a cell; of one that could not be measured, a result with the reason."""
    if not isinstance(waited, Finding):
        try:
            return replace(waited.result(), device=cell.device)
        except errors.TrtopsError as exc:
            waited = Finding("gate", "error", f"{type(exc).__name__}: {exc}")
    return GateResult(
        title=f"gate {cell.name}",
        subject=cell.model,
        findings=(waited,),
        policy=cell.config.policy,
        precision=cell.config.build.precision,
        release=cell.config.release.name,
        device=cell.device,
    )
