"""What the result of every op has: a verdict, a page for people, and the run that remembers it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from trtops.errors import InvalidModelError
from trtops.masking import masked
from trtops.record import Record

if TYPE_CHECKING:
    from typing_extensions import Self

    from trtops.reports.document import Document, Section
    from trtops.tracking.base import Run, Tracker
    from trtops.tracking.schema import Kind
    from trtops.verdict import Verdict

OnProgress: TypeAlias = Callable[[int, "int | None"], None]
"""Called with how much is done, and of how much; None where that is not known. Ops take it as ``progress``.

An op that has more to tell calls with one frozen value of its own instead, under the same name.
"""

LONGEST_NAME = 250  # characters that stores take for a run's name


@dataclass(frozen=True, kw_only=True)
class OpResult(Record):
    """The base of all results of ops that evaluate something.

    A subclass has a ``verdict``, as a field or as a property that follows from its fields; it writes :meth:`body`, and
    :attr:`headline` where there is more to say than the verdict.

    Attributes:
        title: What was done, and to what: ``convert model.onnx``. Stays the same when it is done again.
        run_id: The run that holds everything; empty if none does.
        url: Where a person can look at the run; empty if nowhere, since no run was kept or it ends with this process.
        experiment: The run's experiment.
        subject: The file that it was done to, as it was given; empty if there is none.
    """

    title: str = ""
    run_id: str = ""
    url: str = ""
    experiment: str = ""
    subject: str = ""

    if TYPE_CHECKING:
        # At run time there is no such attribute here: a dataclass would take it for the default of a subclass's field.
        @property
        def verdict(self) -> Verdict:
            """``good`` if nothing was found wrong, ``bad`` if something was, ``error`` if there could be no verdict."""

    @property
    def headline(self) -> str:
        """The outcome in a few words, for the page's heading."""
        return self.verdict

    @property
    def next_step(self) -> str:
        """The command line that usually comes next; empty if no run was kept, since all of them read one."""
        return f"trtops inspect run {self.run_id}" if self.run_id else ""

    def ending(self, store: str | None = None) -> str:
        """Verdict, run and next step, a line each, as every command and flow ends; the verdict alone if no run outlives this.

        Args:
            store: The store that was named on the command line, which the next step must name, too.
        """
        said = self.verdict if self.headline == self.verdict else f"{self.verdict} ({self.headline})"
        if not self.url:
            return f"verdict: {said}"
        place = f" --store {shlex.quote(store)}" if store else ""
        return f"verdict: {said}\nrun:     {self.run_id}\nnext:    {self.next_step}{place}"

    def body(self) -> Iterable[str]:
        """Lines of Markdown below the heading: reasons, numbers, tables."""
        raise NotImplementedError

    def sections(self) -> Iterable[Section]:
        """What a report shows below the reasons: the :meth:`body`, unless there is something better to show."""
        from trtops.reports.document import Section

        said = {f"- {reason}" for reason in getattr(self, "reasons", ())}
        return (Section(text="\n".join(line for line in self.body() if line not in said)),)

    def document(self) -> Document:
        """What the report of the run says."""
        from trtops.reports.document import Document

        return Document(
            title=self.title,
            verdict=self.verdict,
            headline=self.headline,
            why=tuple(getattr(self, "reasons", ())),
            sections=tuple(self.sections()),
        )

    def page(self) -> str:
        """The result as a page of Markdown: heading, :meth:`body`, and the way to the run where a person can look at it."""
        lines = [f"# {self.title}: {self.headline}" if self.title else f"# {self.headline}", "", *self.body()]
        if self.url:
            run = f"[{self.run_id}]({self.url})" if self.url.startswith("http") else f"`{self.run_id}`"
            lines += ["", f"MLflow run {run} in experiment `{self.experiment}`."]
        return "\n".join(lines)

    def kept_in(self, run: Run, experiment: str) -> Self:
        """The result with its run written in; unchanged if the run keeps nothing."""
        return self if not run.id else replace(self, run_id=run.id, url=run.url, experiment=masked(experiment))


def finish_with(
    run: Run, result: OpResult, tracker: Tracker | None, *, title: str = "", evaluated: bool = True
) -> None:
    """End a run with what came of it: description, report, verdict, and the manifest.

    A report that cannot be made costs nothing but itself.

    Args:
        run: The run.
        result: What came of it; its own run need not be written in yet.
        tracker: The memory; None where nothing is kept.
        title: What was done, where the result does not say.
        evaluated: Whether the verdict is of what the run made, and so becomes the run's own.
    """
    if tracker is not None and run.id:
        # It brings templates and Markdown, which what is not kept does not need.
        from trtops.reports.present import present

        document = result.document()
        document = replace(document, title=title or document.title, verdict=document.verdict if evaluated else "")
        present(run, tracker, document)
    run.finish(result.verdict if evaluated else None)


@contextmanager
def op_run(
    tracker: Tracker | None,
    experiment: str,
    name: str,
    *,
    kind: Kind,
    model: str | Path | None = None,
    tags: Mapping[str, str] | None = None,
    parent: str | None = None,
) -> Iterator[Run]:
    """The run of one call of an op, ended as :func:`trtops.tracking.base.tracked` ends it.

    Args:
        tracker: The memory; None keeps nothing, and the run takes everything without a word.
        experiment: The experiment's name.
        name: The run's name; cut where it is longer than stores take.
        kind: What the run is of (:data:`trtops.tracking.schema.KINDS`).
        model: The model file, whose absolute path becomes a tag.
        tags: Further tags.
        parent: Id of a parent run.
    """
    # Results of ops that nobody remembers, such as lint's, are there before the memory's names could be imported.
    from trtops.tracking import schema
    from trtops.tracking.base import NO_RUN, tracked

    if tracker is None:
        yield NO_RUN
        return
    with tracked(tracker, experiment, name[:LONGEST_NAME], kind=kind, tags=tags, parent=parent) as run:
        if model is not None:
            run.set_tags({schema.Tag.MODEL_PATH: str(Path(model).absolute())})
        yield run


def model_file(path: str | Path) -> Path:
    """The path of a model, looked at before a run begins: a name that was mistyped leaves no run and no experiment.

    Raises:
        InvalidModelError: If there is no such file.
    """
    path = Path(path)
    if not path.exists():
        raise InvalidModelError(f"{path.absolute()} does not exist; expected an ONNX file.")
    return path
