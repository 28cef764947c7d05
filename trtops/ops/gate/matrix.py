"""A matrix of candidates: models, precisions, devices and releases, each combination gated, in one table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias

from trtops import errors
from trtops.ops.gate.accepted import accept
from trtops.ops.gate.config import GateConfig
from trtops.ops.gate.environments import HERE, Release, interpreter_of
from trtops.ops.gate.op import gate
from trtops.ops.gate.result import GateResult
from trtops.ops.result import OnProgress, OpResult, finish_with, op_run
from trtops.record import Record
from trtops.spec import Precision
from trtops.tracking import builds, schema
from trtops.tracking.base import Run, Verdict
from trtops.tracking.registry import RegisteringTracker
from trtops.tracking.tables import log_table

CellDecision: TypeAlias = Literal["accept", "refuse", "measure more", "error"]
_COLUMNS = (
    "model", "precision", "release", "device", "decision", "latency ratio", "low", "high", "widths", "size ratio", "seconds",
    "run",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class MatrixConfig(Record):
    """Which candidates are gated: every combination of what is listed.

    Attributes:
        models: ONNX files.
        releases: Releases of the back end.
        precisions: Precisions to build in.
        devices: GPUs, as ``CUDA_VISIBLE_DEVICES`` names them; ``cpu`` is the processor.
        candidate: Run of a candidate that was built before, of the only combination; built now unless given.
        gate: All else. Its precision, release, devices and candidate are those of the combination.
    """

    models: tuple[str, ...]
    releases: tuple[Release, ...] = (HERE,)
    precisions: tuple[Precision, ...] = ("fp32",)
    devices: tuple[str, ...] = ()
    candidate: str | None = None
    gate: GateConfig = field(default_factory=GateConfig)

    def __post_init__(self) -> None:
        for name in ("models", "releases", "precisions"):
            if not getattr(self, name):
                raise errors.ConfigError(f"{name} is empty; expected one or more.")
        twice = [name for name, count in Counter(release.name for release in self.releases).items() if count > 1]
        if twice:
            raise errors.ConfigError(f"Two releases are called {twice[0]!r}; give each a name of its own (name=path).")
        if self.candidate is not None and len(self.cells()) > 1:
            raise errors.ConfigError(
                f"candidate is one run, and there are {len(self.cells())} combinations; expected one."
            )

    def cells(self) -> tuple[Cell, ...]:
        """Every combination, by model, then precision, then device, then release."""
        combinations = (
            (model, precision, device, release)
            for model in self.models
            for precision in self.precisions
            for device in self.devices or ("",)
            for release in self.releases
        )
        return tuple(self._cell(*combination) for combination in combinations)

    def _cell(self, model: str, precision: Precision, device: str, release: Release) -> Cell:
        on_processor = device == "cpu" and self.gate.build.backend == "onnxruntime"
        config = replace(
            self.gate,
            build=replace(self.gate.build, precision=precision),
            candidate=self.candidate,
            release=release,
            others=tuple(dict.fromkeys((*self.gate.others, *(each for each in self.releases if each != release)))),
            devices=() if on_processor else (device,) if device else self.gate.devices,
        )
        return Cell(model=model, device=device, config=config)


@dataclass(frozen=True, kw_only=True)
class Cell(Record):
    """One combination.

    Attributes:
        model: The ONNX file.
        device: The device as it was asked for.
        config: The whole config of its gate.
        experiment: Where it is logged.
        parent: The matrix's run.
        tags: Further tags of its run.
    """

    model: str
    device: str
    config: GateConfig
    experiment: str = ""
    parent: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What it is called."""
        where = f" on {self.device}" if self.device else ""
        return f"{Path(self.model).stem} {self.config.build.precision} {self.config.release.name}{where}"


Submit: TypeAlias = "Callable[[Cell], Future[GateResult]]"
"""Whoever spreads the cells implements this one call."""


@dataclass(frozen=True, kw_only=True)
class CellOutcome(Record):
    """What became of one combination.

    Attributes:
        model: The ONNX file.
        precision: Its precision.
        release: What its release is called.
        device: Its device, as it was asked for.
        decision: The gate's; ``error`` if there could be none.
        reasons: Why it is not accepted, a sentence each.
        run_id: Its run; empty if it was refused before there was one.
        url: Where a person can look at the run.
        version: The registered version; empty unless it was accepted and registered.
        alias: Its alias likewise.
        compared: Whether there was an accepted engine to compare with.
        latency_ratio: The candidate's latency to the accepted engine's; None if not measured.
        latency_low: Lower end of its interval.
        latency_high: Upper end.
        widths: Distance of the output that is furthest from the accepted one, in noise widths.
        size_ratio: The engine's size to the accepted one's.
        build_seconds: Wall time of the build.
        seconds: Wall time of the whole gate.
    """

    model: str
    precision: Precision
    release: str
    device: str
    decision: CellDecision
    reasons: tuple[str, ...] = ()
    run_id: str = ""
    url: str = ""
    version: str = ""
    alias: str = ""
    compared: bool = False
    latency_ratio: float | None = None
    latency_low: float | None = None
    latency_high: float | None = None
    widths: float | None = None
    size_ratio: float | None = None
    build_seconds: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class MatrixResult(OpResult):
    """What became of a matrix.

    Attributes:
        cells: Every combination, in the config's order.
    """

    title: str = "gate matrix"
    cells: tuple[CellOutcome, ...]

    @property
    def verdict(self) -> Verdict:
        """``bad`` if a candidate was refused, ``error`` if something is open or went wrong, ``good`` otherwise."""
        decisions = {cell.decision for cell in self.cells}
        return "bad" if "refuse" in decisions else "good" if decisions <= {"accept"} else "error"

    @property
    def headline(self) -> str:
        """How many of each."""
        counts = Counter(cell.decision for cell in self.cells)
        words = {"accept": "accepted", "refuse": "refused", "measure more": "need more measurement", "error": "errors"}
        return ", ".join(f"{counts[each]} {words[each]}" for each in words if counts[each])  # type: ignore[index]

    def body(self) -> Iterable[str]:
        """What was not accepted and why, then all in a table."""
        for cell in self.cells:
            if cell.decision != "accept":
                where = f" on {cell.device}" if cell.device else ""
                yield (
                    f"- **{Path(cell.model).stem} {cell.precision} {cell.release}{where}**: {cell.decision}. "
                    + "; ".join(cell.reasons)
                )
        yield ""
        yield f"| {' | '.join(_COLUMNS)} |"
        yield "|---" * len(_COLUMNS) + "|"
        for cell in self.cells:
            yield f"| {' | '.join(str(value).replace('|', '/') for value in _table_row(cell, shown=True))} |"


def gate_all(
    config: MatrixConfig,
    *,
    tracker: RegisteringTracker,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    submit: Submit | None = None,
    progress: OnProgress | None = None,
) -> GateResult | MatrixResult:
    """Gate what is listed: a single combination as :func:`~trtops.ops.gate.op.gate` does it, several as a matrix.

    Arguments and errors as :func:`gate_matrix`; of a single combination, what cannot be read raises.
    """
    cells = config.cells()
    if len(cells) > 1:
        return gate_matrix(
            config, tracker=tracker, experiment=experiment or "gate", tags=tags, submit=submit, progress=progress
        )
    [cell] = cells
    cell = replace(cell, experiment=experiment or Path(cell.model).stem, tags=dict(tags or {}))
    return (submit or _submit_here(tracker))(cell).result()


def gate_matrix(
    config: MatrixConfig,
    *,
    tracker: RegisteringTracker,
    experiment: str = "gate",
    tags: Mapping[str, str] | None = None,
    submit: Submit | None = None,
    progress: OnProgress | None = None,
) -> MatrixResult:
    """Gate every combination, each in a child run, and put all into one table.

    All are compared with what was accepted before the first of them; those that pass are registered at the end, in order.

    Args:
        config: The combinations.
        tracker: The memory, and its registry.
        experiment: Experiment of the matrix and of its children.
        tags: Further tags of all runs.
        submit: What gates one combination; here, one after the other, unless given.
        progress: Called after each.

    Returns:
        What became of each. A release that cannot be installed, a device that is not there and a model that cannot be read
        end that combination alone.
    """
    begin = submit or _submit_here(tracker)
    with op_run(tracker, experiment, "gate matrix", kind="gate_matrix", tags=tags) as run:
        run.log_params(schema.flat_params({name: value for name, value in config.to_dict().items() if name != "gate"}))
        releases = {release.name: _ready_release(release, config.gate) for release in config.releases}
        cells = [_child_of(run, cell, experiment, tags or {}) for cell in config.cells()]
        begun = (_refused_early(cell, releases) or begin(_with_interpreters(cell, releases)) for cell in cells)
        pending = begun if submit is None else list(begun)  # here each is done by the time it has begun
        outcomes = []
        for cell, waited in zip(cells, pending):
            outcome = waited if isinstance(waited, CellOutcome) else _outcome_of(cell, waited)
            outcomes.append(outcome)
            if progress is not None:
                progress(len(outcomes), len(cells))
        if config.gate.register:
            outcomes = [_register_outcome(cell, outcome, tracker) for cell, outcome in zip(cells, outcomes)]
        result = MatrixResult(cells=tuple(outcomes)).kept_in(run, experiment)
        _log_matrix(run, result)
        finish_with(run, result, tracker)
    return result


def _child_of(run: Run, cell: Cell, experiment: str, tags: Mapping[str, str]) -> Cell:
    """A cell to be logged below the matrix. It is registered after all of them, whose comparisons it must not change."""
    config = replace(cell.config, register=False)
    return replace(cell, config=config, experiment=experiment, parent=run.id, tags=dict(tags))


def gate_cell(cell: Cell, *, tracker: RegisteringTracker) -> GateResult:
    """Gate one combination. Safe in any thread, process or machine that reaches the memory, the models and the releases."""
    return gate(
        cell.model, cell.config, tracker=tracker, experiment=cell.experiment, tags=cell.tags, parent=cell.parent or None
    )


def _submit_here(tracker: RegisteringTracker) -> Submit:
    def submit(cell: Cell) -> Future[GateResult]:
        done: Future[GateResult] = Future()
        try:
            done.set_result(gate_cell(cell, tracker=tracker))
        except errors.TrtopsError as exc:  # it is raised where the result is asked for
            done.set_exception(exc)
        return done

    return submit


def _ready_release(release: Release, config: GateConfig) -> Release | errors.TrtopsError:
    """A release as the environment that it is in now, or why it cannot be used."""
    try:
        python = interpreter_of(release, config.build.backend)
    except (errors.ConfigError, errors.BackendError) as exc:
        return exc
    return Release(name=release.name, python=python)


def _refused_early(cell: Cell, releases: Mapping[str, Release | errors.TrtopsError]) -> CellOutcome | None:
    release = releases[cell.config.release.name]
    reason = f"release: {release}" if isinstance(release, errors.TrtopsError) else ""
    if not reason and cell.config.wrong_device:
        reason = f"device: {cell.config.wrong_device}"
    return _unmeasured_outcome(cell, "refuse", (reason,)) if reason else None


def _with_interpreters(cell: Cell, releases: Mapping[str, Release | errors.TrtopsError]) -> Cell:
    """The cell with releases that are installed, so that nobody installs one again."""
    own = releases[cell.config.release.name]
    assert isinstance(own, Release)
    others = [releases.get(each.name, each) for each in cell.config.others]
    usable = tuple(each for each in others if isinstance(each, Release))
    return replace(cell, config=replace(cell.config, release=own, others=usable))


def _unmeasured_outcome(cell: Cell, decision: CellDecision, reasons: tuple[str, ...]) -> CellOutcome:
    return CellOutcome(
        model=cell.model,
        precision=cell.config.build.precision,
        release=cell.config.release.name,
        device=cell.device,
        decision=decision,
        reasons=reasons,
    )


def _outcome_of(cell: Cell, waited: Future[GateResult]) -> CellOutcome:
    try:
        result = waited.result()
    except errors.TrtopsError as exc:
        return _unmeasured_outcome(cell, "error", (f"{type(exc).__name__}: {exc}",))
    measured, ratio = result.measured, result.ratio
    base = replace(
        _unmeasured_outcome(cell, result.decision, result.reasons),
        run_id=result.run_id,
        url=result.url,
        seconds=result.seconds,
    )
    if measured is None:
        return base
    accepted = measured.accepted
    return replace(
        base,
        compared=accepted is not None,
        latency_ratio=None if ratio is None else ratio.ratio,
        latency_low=None if ratio is None else ratio.low,
        latency_high=None if ratio is None else ratio.high,
        widths=max((output.distance_widths for output in measured.widths), default=None),
        size_ratio=None if accepted is None else measured.candidate.engine_bytes / max(1, accepted.engine_bytes),
        build_seconds=measured.candidate.build_seconds,
    )


def _register_outcome(cell: Cell, outcome: CellOutcome, tracker: RegisteringTracker) -> CellOutcome:
    if outcome.decision != "accept" or not outcome.run_id:
        return outcome
    build = builds.load_build(tracker.load(outcome.run_id))
    name = cell.config.name or Path(cell.model).stem
    version, alias = accept(tracker, outcome.run_id, build, name=name, evidence=outcome.run_id)
    return replace(outcome, version=version.version, alias=alias)


def _table_row(cell: CellOutcome, *, shown: bool = False) -> list[str | float | None]:
    numbers = (cell.latency_ratio, cell.latency_low, cell.latency_high, cell.widths, cell.size_ratio, cell.seconds)
    texts = ["-" if number is None else f"{number:.3g}" for number in numbers]
    words = (Path(cell.model).stem, cell.precision, cell.release, cell.device or "-", cell.decision)
    return [*words, *(texts if shown else numbers), cell.run_id[:8] if shown else cell.run_id]


def _log_matrix(run: Run, result: MatrixResult) -> None:
    run.log_json(result, schema.Artifact.GATE)
    run.log_text(result.page(), schema.Artifact.GATE_PAGE)
    log_table(run, schema.Artifact.GATE_TABLE, _COLUMNS, (_table_row(cell) for cell in result.cells))
    counts = Counter(cell.decision for cell in result.cells)
    run.log_metrics({(schema.Metric.GATE, decision): float(count) for decision, count in counts.items()})
