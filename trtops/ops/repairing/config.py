"""What repair is asked, and what it found."""

from __future__ import annotations

import io
import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from trtops import errors
from trtops.calibration.histogram import ALGORITHMS, Algorithm
from trtops.ops.engines.convert import ConvertConfig
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.repairing.space import Outcome, Point, pareto_front
from trtops.ops.result import OpResult
from trtops.record import Record
from trtops.reports.document import Chart, Section, Table
from trtops.reports.document import Point as ChartPoint
from trtops.spec import BuildConfig, TensorRTOptions
from trtops.tables import table
from trtops.verdict import Verdict

Change: TypeAlias = Literal["keep", "deny", "mark", "level", "calibration"]
CHANGES: tuple[Change, ...] = ("keep", "deny", "mark", "level", "calibration")


def _timed_check() -> CheckConfig:
    return CheckConfig(plots="never", warm_up=5, latency_runs=30)


@dataclass(frozen=True, kw_only=True)
class RepairConfig(Record):
    """Which engine is to pass, what may be changed for that, and what it may cost.

    Attributes:
        build: The engine as it was asked for.
        check: How engines are evaluated; latency is measured on its first feed.
        calibration_data: Data source for INT8 calibration; the check's own data unless given.
        calibration_cache: A calibration cache that INT8 was built with; other ways to calibrate are tried beside it.
        change: What may be changed: nodes kept in higher precision, tactics denied (of ONNX Runtime its tactics, of TensorRT
            its tactic sources), tensors marked against fusion, the builder's optimization level, INT8's way to calibrate.
        keep: Nodes that may be kept; by default those that can be lowered.
        mark: Tensors that may be marked; by default those that are found to take the error away.
        levels: Optimization levels of TensorRT to try.
        algorithms: Ways to choose INT8 ranges to try.
        max_builds: Builds at most.
        patience: Builds without a faster engine that passes after which the search has stopped improving.
        minutes: No engine is built after so many minutes.
        output: File for the chosen config, as ``convert`` takes it.
        picture: File for the picture, PNG.
    """

    build: BuildConfig = field(default_factory=BuildConfig)
    check: CheckConfig = field(default_factory=_timed_check)
    calibration_data: str | None = None
    calibration_cache: str | None = None
    change: tuple[Change, ...] = CHANGES
    keep: tuple[str, ...] = ()
    mark: tuple[str, ...] = ()
    levels: tuple[int, ...] = (3, 2, 4, 5, 1, 0)
    algorithms: tuple[Algorithm, ...] = ("entropy", "minmax", "percentile")
    max_builds: int = 80
    patience: int = 24
    minutes: float | None = None
    output: str | None = None
    picture: str | None = None

    def __post_init__(self) -> None:
        for name in ("max_builds", "patience"):
            if getattr(self, name) < 1:
                raise errors.ConfigError(f"{name} is {getattr(self, name)}; expected 1 or more.")
        for change in self.change:
            if change not in CHANGES:
                raise errors.ConfigError(f"change: {change!r}. {errors.near(change, CHANGES)}")
        for algorithm in self.algorithms:
            if algorithm not in ALGORITHMS:
                raise errors.ConfigError(f"algorithms: {algorithm!r}. {errors.near(algorithm, ALGORITHMS)}")
        if self.check.latency_runs < 1:
            raise errors.ConfigError("check.latency_runs is 0; the fastest engine cannot be told without measuring.")

    @property
    def on_tensorrt(self) -> bool:
        """Whether TensorRT builds."""
        return isinstance(self.build.options, TensorRTOptions)


@dataclass(frozen=True, kw_only=True)
class RepairTrial(Record):
    """One engine that was tried.

    Attributes:
        point: What was changed.
        outcome: What it is like.
        front: Whether no other is better in both error and latency.
    """

    point: Point
    outcome: Outcome
    front: bool = False


@dataclass(frozen=True, kw_only=True)
class RepairResult(OpResult):
    """The fastest engine that passes, and all that were tried on the way.

    Attributes:
        verdict: ``good`` if an engine passes.
        chosen: What was changed for it; None if none passes.
        config: How to build it: what ``convert`` takes.
        trials: Every engine tried, in order.
        size: How many there could have been.
        builds: Engines built; those that the memory had are not among them.
        reused: Engines that the memory had.
        ended: Why the search ended.
        seconds: Wall time.
        output: Where the config is, if it was written.
    """

    verdict: Verdict
    chosen: Point | None
    config: ConvertConfig | None
    trials: tuple[RepairTrial, ...]
    size: int
    builds: int
    reused: int
    ended: str
    seconds: float
    output: str | None = None

    @property
    def next_step(self) -> str:
        """The engine that was chosen is built by its config."""
        if self.run_id and self.subject and self.output is not None:
            return f"trtops convert {shlex.quote(self.subject)} --config {shlex.quote(self.output)}"
        return super().next_step

    @property
    def headline(self) -> str:
        """What was changed."""
        return "no engine passes" if self.chosen is None else self.chosen.describe()

    def body(self) -> Iterator[str]:
        """What to do, what it costs, and the table of all that was tried."""
        yield from self._said()
        yield from ("", "```", self.text(), "```")

    def _said(self) -> Iterator[str]:
        """What to do, and what it cost to know."""
        by_point = {trial.point: trial.outcome for trial in self.trials}
        if self.chosen is not None:
            asked = self.trials[0].outcome
            found = by_point[self.chosen]
            yield f"The fastest engine that passes: {self.chosen.describe()}; p50 {found.latency_ms:.3f} ms, error {found.error:.3g}."
            if asked.latency_ms < math.inf and not asked.good:
                yield f"As asked for it took {asked.latency_ms:.3f} ms, and did not pass: {asked.why}"
            if self.output is not None:
                yield f"Build it by `trtops convert {self.subject or 'MODEL'} --config {self.output}`."
        yield ""
        yield (
            f"{len(self.trials)} of {self.size} engines were tried with {self.builds} builds; {self.reused} were there already. "
            f"The search ended since {self.ended}. {self.seconds:.1f} s."
        )

    def sections(self) -> Iterator[Section]:
        """What to do, accuracy against latency as a chart, and every engine that was tried."""
        said = self._said()
        points = tuple(
            ChartPoint(
                label=f"{'chosen: ' if t.point == self.chosen else ''}{t.point.describe()}",
                x=t.outcome.latency_ms,
                y=t.outcome.error,
                tone="good" if t.outcome.good else "bad",
            )
            for t in self.trials
        )
        chart = Chart(
            title="Accuracy against latency", form="points", x="latency, p50 in ms",
            y="relative error of the worst output", points=points,
        )  # fmt: skip
        rows = tuple(
            (
                "front" if t.front else "",
                "good" if t.outcome.good else "bad",
                t.outcome.error,
                t.outcome.latency_ms,
                t.point.describe(),
                t.outcome.run_id,
            )
            for t in sorted(self.trials, key=lambda trial: trial.outcome.latency_ms)
        )
        columns = ("Pareto front", "verdict", "error", "p50 ms", "what was changed", "run")
        yield Section(text="\n".join(said), chart=chart, table=Table(columns=columns, rows=rows))

    def text(self) -> str:
        """Accuracy against latency, the fastest first; those of the Pareto front are marked."""
        ordered = sorted(self.trials, key=lambda trial: trial.outcome.latency_ms)
        rows = (
            (
                "*" if trial.front else "",
                "good" if trial.outcome.good else "bad",
                f"{trial.outcome.error:.3g}",
                f"{trial.outcome.latency_ms:.3f} ms",
                trial.point.describe()[:90],
                trial.outcome.run_id[:8],
            )
            for trial in ordered[:60]
        )
        return table(("front", "verdict", "error", "p50", "what was changed", "run"), rows)

    def picture(self) -> bytes:
        """Draw error against latency, with the front and the engine that was chosen; a PNG file's bytes."""
        from matplotlib.figure import Figure  # takes half a second, and most results are not drawn

        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.add_subplot()
        shown = [trial for trial in self.trials if trial.outcome.latency_ms < math.inf]
        finite = [t.outcome.error for t in shown if 0 < t.outcome.error < math.inf]
        top, bottom = max(finite, default=1.0) * 10, min(finite, default=1e-9) / 3
        for good, colour, label in ((True, "#4477aa", "passes"), (False, "#cc3311", "does not pass")):
            part = [t.outcome for t in shown if t.outcome.good == good]
            heights = [min(max(o.error, bottom), top) for o in part]
            axes.scatter([o.latency_ms for o in part], heights, s=18, c=colour, label=label)
        front = [trial.outcome for trial in shown if trial.front]
        front.sort(key=lambda outcome: outcome.latency_ms)
        axes.step(
            [o.latency_ms for o in front],
            [min(max(o.error, bottom), top) for o in front],
            where="post",
            color="#999999",
            linewidth=0.8,
            label="Pareto front",
        )
        chosen = next((t.outcome for t in shown if t.point == self.chosen), None)
        if chosen is not None:
            axes.scatter(
                [chosen.latency_ms],
                [min(max(chosen.error, bottom), top)],
                s=90,
                facecolors="none",
                edgecolors="black",
                label="chosen",
            )
        axes.set_yscale("log")
        axes.set_xlabel("latency, p50 in ms")
        axes.set_ylabel("relative error of the worst output")
        axes.legend(fontsize=8)
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=90)
        return file.getvalue()


def as_trials(trials: dict[Point, Outcome]) -> tuple[RepairTrial, ...]:
    """Trials in the order in which they were made, those of the front marked."""
    front = set(pareto_front(trials))
    return tuple(RepairTrial(point=p, outcome=o, front=p in front) for p, o in trials.items())
