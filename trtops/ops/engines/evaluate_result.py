"""The result of evaluate: the verdict on one engine that another program built, or on several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtops.next_step import NextStep
from trtops.ops.evaluation.check import Evaluation, describe
from trtops.ops.result import OpResult
from trtops.record import Record
from trtops.reports.document import Table
from trtops.spec import BackendName
from trtops.tables import counted, markdown_table, size
from trtops.terminal import one_line
from trtops.verdict import WORST_FIRST, Verdict, worst


@dataclass(frozen=True, kw_only=True)
class EngineVerdict(Record):
    """The outcome for one engine."""

    file: str
    verdict: Verdict
    reasons: tuple[str, ...]
    run_id: str = ""
    backend: BackendName
    called: str = ""  # what it computes in; empty if it does not load
    engine_sha256: str = ""
    engine_bytes: int = 0
    unknown: tuple[str, ...] = ()  # what is not known of its build, in phrases
    evaluation: Evaluation | None = None  # None if it does not load or does not fit the model


@dataclass(frozen=True, kw_only=True)
class EvaluateResult(OpResult):
    """The outcome for an engine, or for each engine of a folder; a single engine's run is the result's."""

    engines: tuple[EngineVerdict, ...]
    options: Mapping[str, Any] = field(default_factory=dict)  # of the config that are not the default

    @property
    def verdict(self) -> Verdict:
        """The worst of all engines."""
        return worst(engine.verdict for engine in self.engines)

    @property
    def evaluation(self) -> Evaluation | None:
        """The evaluation of a single engine."""
        return self.engines[0].evaluation if len(self.engines) == 1 else None

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the engine is not good; of several, a sentence for each that is not, the worst first."""
        if len(self.engines) == 1:
            return self.engines[0].reasons
        wrong = [engine for engine in self._worst_first() if engine.verdict != "good"]
        return tuple(f"{Path(e.file).name} ({e.verdict}): {one_line('; '.join(e.reasons))}" for e in wrong)

    @property
    def figures(self) -> str:
        """Precision, size, latency and task metrics of an engine; the number of several."""
        if len(self.engines) > 1:
            return f"{sum(e.verdict == 'good' for e in self.engines)} of {counted(len(self.engines), 'engine')} good"
        [engine] = self.engines
        figures = () if engine.evaluation is None else engine.evaluation.figures
        return ", ".join((f"{engine.called} engine", size(engine.engine_bytes), *figures)) if engine.called else ""

    @property
    def next_step(self) -> NextStep | None:
        """Promote a good engine."""
        if self.run_id and self.verdict == "good":
            return NextStep("runs promote", {"run": self.run_id})
        return super().next_step

    def overview(self) -> Table | None:
        """Return a row for each of several engines."""
        return self._table() if len(self.engines) > 1 else None

    def body(self) -> Iterable[str]:
        """The numbers of an engine and what is not known of it, or the table."""
        if len(self.engines) > 1:
            table = self._table()
            yield markdown_table(table.columns, table.rows)
            return
        [engine] = self.engines
        unknown = ", ".join(engine.unknown)
        yield f"{engine.called} engine, {size(engine.engine_bytes)}, built elsewhere. Not known: {unknown}."
        yield from ("", *(() if engine.evaluation is None else describe(engine.evaluation)))

    def _table(self) -> Table:
        """A row for each engine."""
        rows = []
        for engine in self._worst_first():
            latency = None if engine.evaluation is None else engine.evaluation.latency
            p50 = "-" if latency is None else f"{latency.p50_ms:.3f} ms"
            rows.append((Path(engine.file).name, engine.called or "-", engine.verdict, p50, engine.run_id[:8] or "-"))
        return Table(columns=("engine", "computes in", "verdict", "p50", "run"), rows=tuple(rows))

    def _worst_first(self) -> list[EngineVerdict]:
        return sorted(self.engines, key=lambda engine: WORST_FIRST.index(engine.verdict))
