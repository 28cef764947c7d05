"""What the triage found: each question with its answer, evidence and cost, and what follows from all."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from trtops.ops.result import OpResult
from trtops.record import Record
from trtops.reports.document import Chart, Point, Section
from trtops.verdict import Verdict

Kind: TypeAlias = Literal[
    "none", "data", "invalid model", "shape", "not repeatable", "nan", "wrong constant", "lost node", "dead branch", "model",
    "build", "intermittent", "tactic", "overflow", "underflow", "cancellation", "rounding", "range", "quantization",
    "builder", "unknown",
]  # fmt: skip
"""Kinds of faults. ``model`` is a fault of the model that is none of those before it."""


@dataclass(frozen=True, kw_only=True)
class Step(Record):
    """One question, answered.

    Attributes:
        question: Its name.
        asks: The question in words.
        why: Why it was asked now.
        answer: The answer, by which the next question follows.
        evidence: What the answer rests on, one sentence each.
        ruled_out: What it cannot be any more.
        kind: The kind of fault, if the answer says one.
        places: Where the fault is, the surest first: names of nodes, tensors, weights, inputs, tactics.
        remedy: What mends it, as a command or in words.
        model: The smallest failing model so far, in the triage's files.
        builds: Engines built for it.
        seconds: Wall time.
        run_id: The run of it; below it are those of what was done.
    """

    question: str
    asks: str
    why: str
    answer: str
    evidence: tuple[str, ...] = ()
    ruled_out: tuple[str, ...] = ()
    kind: Kind | None = None
    places: tuple[str, ...] = ()
    remedy: str = ""
    model: str = ""
    builds: int = 0
    seconds: float = 0.0
    run_id: str = ""

    def told(self) -> Iterator[str]:
        """Why it was asked, what the answer rests on, and what it rules out, as a list of Markdown."""
        yield f"- why now: {self.why}"
        yield from (f"- {line}" for line in self.evidence)
        if self.ruled_out:
            yield f"- ruled out: {', '.join(self.ruled_out)}"


@dataclass(frozen=True, kw_only=True)
class TriageResult(OpResult):
    """Where a bad engine goes wrong, and why.

    Attributes:
        verdict: ``good`` if nothing is wrong; ``bad`` if a fault was found; ``error`` if the triage was stopped before.
        steps: The questions, in the order in which they were asked.
        next_question: What would be asked next, of a triage that was stopped; empty at the end.
        minimal: The smallest failing case, a file or an artifact of the run; empty if none was made.
        bundle: The bundle of it, likewise.
    """

    verdict: Verdict
    steps: tuple[Step, ...]
    next_question: str = ""
    minimal: str = ""
    bundle: str = ""

    @property
    def kind(self) -> Kind:
        """The kind of fault, as the last step that says one has it."""
        return next((step.kind for step in reversed(self.steps) if step.kind is not None), "none")

    @property
    def places(self) -> tuple[str, ...]:
        """Where the fault is, the surest first."""
        named = [step.places for step in reversed(self.steps) if step.places]
        return tuple(dict.fromkeys(place for places in named for place in places))

    @property
    def remedies(self) -> tuple[str, ...]:
        """What mends it, in the order in which it was found."""
        return tuple(step.remedy for step in self.steps if step.remedy)

    @property
    def builds(self) -> int:
        """Engines built."""
        return sum(step.builds for step in self.steps)

    @property
    def seconds(self) -> float:
        """Wall time, that of earlier processes included."""
        return sum(step.seconds for step in self.steps)

    @property
    def next_step(self) -> str:
        """One that was stopped goes on."""
        if self.run_id and self.next_question:
            return f"trtops triage --resume {self.run_id} --experiment {shlex.quote(self.experiment)}"
        return super().next_step

    @property
    def headline(self) -> str:
        """The kind of fault and its place."""
        if self.next_question:
            return f"stopped before: {self.next_question}"
        if self.kind == "none":
            return "nothing is wrong"
        return f"{self.kind}, {self.places[0]}" if self.places else self.kind

    def sections(self) -> Iterator[Section]:
        """The fault and what mends it, what each question cost as a chart, and then the tree, a question each."""
        points = tuple(
            Point(label=f"{number}. {step.asks}", y=step.seconds, tone="plain" if step.kind is None else "bad")
            for number, step in enumerate(self.steps, start=1)
        )
        chart = Chart(title="What each question cost", form="bars", x="seconds", points=points)
        yield Section(text="\n".join(self._found()), chart=chart if points else None)
        for number, step in enumerate(self.steps, start=1):
            yield Section(title=f"{number}. {step.asks} {step.answer}", text="\n".join(step.told()))
        if self.next_question:
            yield Section(title=f"{len(self.steps) + 1}. {self.next_question}", text="Not asked yet.")

    def body(self) -> Iterator[str]:
        """The fault and what mends it, and then the tree: each question with what it rests on and what it cost."""
        yield from self._found()
        for number, step in enumerate(self.steps, start=1):
            yield f"{number}. {step.asks} **{step.answer}** ({step.builds} builds, {step.seconds:.1f} s)"
            yield from (f"   {line}" for line in step.told())
        if self.next_question:
            yield f"{len(self.steps) + 1}. {self.next_question} **not asked yet**"

    def _found(self) -> Iterator[str]:
        """The fault, what mends it, and what it cost to know."""
        if self.kind != "none":
            places = ", ".join(f"`{place}`" for place in self.places[:5])
            yield f"**{self.kind.capitalize()}**{f' at {places}' if places else ''}."
        yield from (f"- To mend it: {remedy}" for remedy in self.remedies)
        if self.minimal:
            yield f"- The smallest failing case: `{self.minimal}`" + (
                f", bundled in `{self.bundle}`" if self.bundle else ""
            )
        yield from ("", f"{len(self.steps)} questions, {self.builds} builds, {self.seconds:.1f} s.", "")
