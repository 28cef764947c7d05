"""What all ops share: results, the run of an op in the tracking store, and its steps."""

from __future__ import annotations

import functools
import gc
import os
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeAlias, TypeVar

from trtops.errors import InvalidModelError, WorkerError
from trtops.extras import installed
from trtops.next_step import NextStep
from trtops.record import JSONValue, Record, to_jsonable
from trtops.system.activity import mark_op, needs_child
from trtops.system.masking import masked
from trtops.system.processes import is_temporary
from trtops.tables import listed, markdown_table, table
from trtops.terminal import one_line
from trtops.verdict import MARKS

if TYPE_CHECKING:
    from trtops.backend.onnx.model import Model
    from trtops.reports.document import Document, Section, Table
    from trtops.tracking.base import Run, Tracker
    from trtops.tracking.schema import Kind
    from trtops.verdict import Verdict

P = ParamSpec("P")
R = TypeVar("R")
Result = TypeVar("Result", bound="OpResult")

OnProgress: TypeAlias = Callable[[int, "int | None"], None]
"""Called with the amount done, and the total or None if it is not known."""

StepRunner: TypeAlias = Callable[[str, Callable[[], Any]], Any]
"""Calls a function as a step of the given name, and returns its result."""

# The columns of a screen, and of its labels; and the largest number of lines of texts, less and less of them.
_SCREEN_COLUMNS, _LABEL = 80, 9
_LINES_OF_TEXTS: tuple[Mapping[str, int], ...] = (
    {"verdict:": 2, "because:": 3, "checked:": 3, "needed:": 3, "figures:": 2},
    {"verdict:": 2, "because:": 3, "checked:": 2, "needed:": 3, "figures:": 2},
    {"verdict:": 2, "because:": 2, "checked:": 1, "needed:": 2, "figures:": 2},
    {"verdict:": 1, "because:": 1, "checked:": 1, "needed:": 1, "figures:": 1},
)

LONGEST_NAME = 250  # characters of a run's name that stores accept

# Variables of the context, since flows run ops in several threads of one process.
_step_runner: ContextVar[StepRunner | None] = ContextVar("step_runner", default=None)
_step_times: ContextVar[StepTimes | None] = ContextVar("step_times", default=None)


class StepTimes:
    """Wall and CPU seconds of the steps of an op. CPU time covers this process, all threads together.

    The time of a step below another counts for the inner one only. Steps of the same name add up.
    """

    def __init__(self, since: tuple[float, float] | None = None) -> None:
        """Start to measure; the time ``since`` earlier clocks is the step ``start``."""
        self.in_use = False  # by an op; the ops that it calls have times of their own
        self._start = self._counted_until = since or _clocks()
        self._running: list[str] = []
        self._steps: dict[str, tuple[float, float]] = {}
        if since is not None:
            self._count("start")

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure a block as a step."""
        self._count(self._running[-1] if self._running else "other")
        self._steps.setdefault(name, (0.0, 0.0))
        self._running.append(name)
        try:
            yield
        finally:
            self._count(self._running.pop())

    def _count(self, name: str) -> None:
        """Add the time since the last call to a step."""
        wall, cpu = self._steps.get(name, (0.0, 0.0))
        before, self._counted_until = self._counted_until, _clocks()
        self._steps[name] = wall + self._counted_until[0] - before[0], cpu + self._counted_until[1] - before[1]

    def to_dict(self) -> dict[str, Any]:
        """``seconds`` and ``cpu_seconds`` of each step, of ``other`` work, and in ``total``, so far."""
        self._count(self._running[-1] if self._running else "other")
        steps = dict(self._steps)
        other = steps.pop("other", (0.0, 0.0))
        total = tuple(current - start for current, start in zip(self._counted_until, self._start))
        named = {**steps, "other": other, "total": total}
        return {name: {"seconds": round(w, 4), "cpu_seconds": round(c, 4)} for name, (w, c) in named.items()}

    def text(self) -> str:
        """A table in plain text."""
        rows = (
            (name, *(f"{seconds:.2f} s" for seconds in step_times.values()))
            for name, step_times in self.to_dict().items()
        )
        return table(("step", "wall time", "CPU time"), rows)


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


@dataclass(frozen=True, kw_only=True)
class OpResult(Record):
    """The base of all results of ops.

    A subclass has a ``verdict``, as a field or a property, implements :meth:`body` or :meth:`sections`, and may
    override :attr:`headline`.
    """

    is_named_by_outcome: ClassVar[bool] = False  # whether the headline alone stands for the verdict

    title: str = ""  # what was done, and to what: ``convert model.onnx``
    run_id: str = ""  # the run that holds everything; empty without one
    url: str = ""  # a page of the run; empty if no run was kept, or it ends with this process
    experiment: str = ""  # the run's experiment
    subject: str = ""  # the input file, as it was given; empty without one

    if TYPE_CHECKING:
        # Not at run time: a dataclass would use it as the default of a subclass's field.
        @property
        def verdict(self) -> Verdict:
            """``good``, ``bad``, ``unproven``, or ``error`` if there could be no verdict."""

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 0 if the verdict is good, else 1."""
        return int(self.verdict != "good")

    @property
    def headline(self) -> str:
        """The outcome in a few words (default: the ``outcome`` or else the verdict)."""
        return str(getattr(self, "outcome", self.verdict))

    @property
    def evidence(self) -> str:
        """What the verdict rests on, in a line; empty if the op evaluates nothing, or its data is not known."""
        data_evidence = getattr(getattr(self, "evaluation", None), "evidence", None)
        return "" if data_evidence is None else str(data_evidence.sentence())

    @property
    def next_step(self) -> NextStep | None:
        """The usual next command; None without a run, or if something is :attr:`needed` first."""
        return NextStep("inspect run", {"run": self.run_id}) if self.run_id and not self.needed else None

    @property
    def needed(self) -> str:
        """What only the user can supply before another step makes sense, such as data; empty if nothing."""
        return ""

    @property
    def figures(self) -> str:
        """Size and speed, or the work that was done, in a line; empty for results without them."""
        return ""

    @property
    def because(self) -> tuple[str, ...]:
        """Sentences that explain the verdict on a screen (default: the ``reasons``)."""
        return getattr(self, "reasons", ())

    @property
    def verdict_text(self) -> str:
        """The verdict, with the outcome if it says more."""
        if self.is_named_by_outcome:
            return self.headline
        return self.verdict if self.headline == self.verdict else f"{self.verdict} ({self.headline})"

    def overview(self) -> Table | None:
        """Return the table that a screen shows above the verdict; by default none."""
        return None

    def screen(self, step: NextStep | None = None, most: int | None = None, cut: str = " ...") -> list[str]:
        """Return verdict, first reasons, evidence, required inputs, figures, run and next step in 80 columns.

        Args:
            step: The next step.
            most: The number of lines above which longer texts are cut; all of them by default.
            cut: The end of a text that was cut.
        """
        sentences = [textwrap.shorten(one_line(text.rstrip(". \n")), 240, placeholder=" ...") for text in self.because]
        because = listed(sentences, 2, "; ")
        texts = {
            "verdict:": self.verdict_text,
            "because:": because or self.evidence,
            "checked:": self.evidence if because else "",
            "needed:": self.needed,
            "figures:": self.figures,
            "run:": self.run_id,
            "first:": "" if step is None else step.first,
        }
        command = [] if step is None else step.lines(_SCREEN_COLUMNS - _LABEL)
        for limits in _LINES_OF_TEXTS if most is not None else ({},):
            lines = []
            for label, text in texts.items():
                shown = textwrap.wrap(
                    one_line(text),
                    _SCREEN_COLUMNS - _LABEL,
                    break_on_hyphens=False,
                    max_lines=limits.get(label),
                    placeholder=cut,
                )
                lines += _labelled(label, shown)
            lines += _labelled("next:", command)
            if most is None or len(lines) <= most:
                break
        return lines

    def __str__(self) -> str:
        """The screen, uncut."""
        return "\n".join(self.screen(self.next_step))

    def _repr_html_(self) -> str:
        """The page, for notebooks."""
        from trtops.reports.page import as_html

        return as_html(self.page())

    def body(self) -> Iterable[str]:
        """Lines of Markdown below the reasons; by default the :meth:`sections`, without charts."""
        for section in self.sections():
            yield from ("", f"## {section.title}", "") if section.title else ()
            yield from (section.text, "") if section.text else ()
            if section.table is not None:
                yield markdown_table(section.table.columns, section.table.rows)

    def sections(self) -> Iterable[Section]:
        """Sections of the report below the reasons; by default the :meth:`body`."""
        from trtops.reports.document import Section

        return (Section(text="\n".join(self.body())),)

    def document(self) -> Document:
        """The report of the run."""
        from trtops.reports.document import Document

        step = str(self.next_step or "")
        return Document(
            title=self.title,
            verdict=self.verdict,
            headline=self.headline,
            reasons=tuple(map(one_line, (*getattr(self, "reasons", ()), *filter(None, (self.needed,))))),
            next="" if is_temporary(step) else step,
            sections=tuple(self.sections()),
        )

    def page(self) -> str:
        """The result as a page of Markdown: heading, reasons, :meth:`body`, and a link to the run."""
        heading = f"{self.title}: {self.headline}" if self.title else self.headline
        lines = [f"# {one_line(heading)}", ""]
        reasons = [f"- {one_line(reason)}" for reason in getattr(self, "reasons", ())]
        lines += [*reasons, *([""] if reasons else []), *self.body()]
        if self.url:
            run = f"[{self.run_id}]({self.url})" if self.url.startswith("http") else f"`{self.run_id}`"
            lines += ["", f"MLflow run {run} in experiment `{self.experiment}`."]
        return "\n".join(lines)


@dataclass(frozen=True)
class Inspection:
    """The content of a file or run, as a record for programs and as text; both are created on request."""

    describe: Callable[[], Record | JSONValue]
    text: Callable[[], str]

    def to_json(self) -> JSONValue:
        """The result as JSON values."""
        return to_jsonable(self.describe())


@dataclass(frozen=True)
class OpRun:
    """The run of one call of an op; without a tracker, the ``run`` accepts everything and stores nothing."""

    run: Run
    tracker: Tracker | None
    experiment: str

    def finish(self, result: Result, *, artifact: str = "", title: str = "", evaluated: bool = True) -> Result:
        """End the run with a result, as a step: log it with report, times, verdict and manifest.

        Args:
            result: The op's result.
            artifact: Path of the result in the run; the result is not logged without one.
            title: The report's title (default: the result's).
            evaluated: Whether the op evaluated something, so that its verdict becomes the run's own.

        Returns:
            The result with the id, page and experiment of the run.
        """
        result = self.recorded(result)
        if self.run.id:
            run_step("log", self._log_end, result, artifact, title or result.title, evaluated)
        return result

    def recorded(self, result: Result) -> Result:
        """Return the result with the id, page and experiment of the run; unchanged without a tracker."""
        if not self.run.id:
            return result
        return replace(result, run_id=self.run.id, url=self.run.url, experiment=masked(self.experiment))

    def _log_end(self, result: OpResult, artifact: str, title: str, evaluated: bool) -> None:
        from trtops.tracking.schema import Artifact

        if artifact:
            self.run.log_json(result, artifact)
        if self.tracker is not None and installed("jinja2", "markdown_it"):
            with step_time("draw report"):
                from trtops.reports.present import present  # imports templates and Markdown

                document = replace(result.document(), title=title)
                present(self.run, self.tracker, document if evaluated else replace(document, verdict=""))
        if (times := _step_times.get()) is not None:
            self.run.log_json(times.to_dict(), Artifact.TIMING)
        self.run.finish(result.verdict if evaluated else None)


@contextmanager
def op_run(
    tracker: Tracker | None,
    experiment: str | None,
    name: str,
    *,
    kind: Kind,
    model: str | Path | None = None,
    tags: Mapping[str, str] | None = None,
    parent: str | None = None,
) -> Iterator[OpRun]:
    """Open the run of one call of an op; without a tracker, nothing is logged.

    The run ends as :func:`trtops.tracking.base.tracked` ends it. The default experiment is the name of the model file,
    without its ending. The absolute path of that file becomes a tag. A name that is too long is shortened. If a child
    process that was to survive native code dies, WorkerError names the nodes that fail by themselves.
    """
    from trtops.tracking.no_run import NO_RUN

    mark_op()
    if experiment is None:
        experiment = "" if model is None else Path(model).stem
    with ExitStack() as stack:
        if parent is not None:
            # The command line turns the regular collection off. Without this, a campaign grows by 0.4 MB per build.
            stack.callback(gc.collect, 1)
        stack.enter_context(op_times()).in_use = True
        if tracker is None:
            yield OpRun(NO_RUN, None, experiment)
            return
        from trtops.tracking import schema
        from trtops.tracking.base import tracked

        path_tags = {}
        if model is not None and os.path.exists(model):
            path = Path(model).absolute()
            path_tags = {schema.Tag.MODEL_PATH: path.name if is_temporary(str(path)) else str(path)}
        tags = {**(tags or {}), **path_tags}
        with step_time("start run"):
            run_context = tracked(tracker, experiment, name[:LONGEST_NAME], kind=kind, tags=tags, parent=parent)
            run = stack.enter_context(run_context)
        try:
            yield OpRun(run, tracker, experiment)
        except WorkerError as exc:
            if model is None or not exc.doing or not needs_child():
                raise
            from trtops.backend.onnx.lint import failing_nodes

            lines = (str(exc), *failing_nodes(model))
            raise WorkerError("\n".join(lines), timed_out=exc.timed_out, doing=exc.doing) from exc


@contextmanager
def op_times(since: tuple[float, float] | None = None) -> Iterator[StepTimes]:
    """Measure the steps of the next op from here on, with those before its run starts; ``since`` as for StepTimes."""
    outer = _step_times.get()
    if outer is not None and not outer.in_use:
        yield outer
        return
    times = StepTimes(since)
    _step_times.set(times)
    try:
        yield times
    finally:
        _step_times.set(outer)


def tracker_or_default(tracker: Tracker | None) -> Tracker:
    """The given tracker (default: the default store's, created if missing)."""
    if tracker is not None:
        return tracker
    from trtops.tracking.store import default_tracker

    return default_tracker()


def _labelled(label: str, lines: Sequence[str]) -> list[str]:
    return [f"{'' if number else label:<{_LABEL}}{line}" for number, line in enumerate(lines)]


def run_name(model: str, *facts: str, verdict: Verdict | None = None) -> str:
    """The name of a model's run: a mark for the verdict, its distinguishing options, and the model's name.

    MLflow's table of runs shows about 20 characters of a name, and the same red mark for bad engines and crashes.
    """
    mark = () if verdict is None else (MARKS[verdict],)
    return " ".join((*mark, *facts, model))[:LONGEST_NAME]


def model_file(model: str | Path | Model) -> Path:
    """The path of a model, checked before a run starts: a mistyped name leaves no run.

    For a model in memory, a path that does not exist, with the model's name.
    """
    if not isinstance(model, (str, Path)) and model.path is None:
        return Path(f"{model.name}.onnx")
    path = Path(model if isinstance(model, (str, Path)) else model.path or "")
    if not path.exists():
        raise InvalidModelError(f"{path.absolute()} does not exist; expected an ONNX file.")
    return path


def model_source(model: str | Path | Model) -> str:
    """The model as it was given: the PyTorch model of an exported file, or else the file."""
    return str(model) if isinstance(model, (str, Path)) else model.source


def run_step(name: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function as a step of an op: a task in a flow, a plain call everywhere else.

    It may be called again if infrastructure was lost, so it must allow that.
    """
    with step_time(name):
        runner = _step_runner.get()
        if runner is None:
            return function(*args, **kwargs)
        result: R = runner(name, functools.partial(function, *args, **kwargs))
        return result


@contextmanager
def step_time(name: str) -> Iterator[None]:
    """Add the time of a block to the op's times, as a step hidden from flows."""
    times = _step_times.get()
    with nullcontext() if times is None else times.step(name):
        yield


@contextmanager
def steps_run_by(runner: StepRunner) -> Iterator[None]:
    """Let a function run the steps of all ops called in the block, in this thread."""
    token = _step_runner.set(runner)
    try:
        yield
    finally:
        _step_runner.reset(token)
