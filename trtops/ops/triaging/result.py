"""Config and result of triage: each question with its answer, evidence and cost."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal, TypeAlias

from trtops import errors
from trtops.next_step import NextStep
from trtops.ops.evaluation.check import CheckConfig, EngineConfig
from trtops.ops.result import OpResult
from trtops.record import Record, setting
from trtops.tables import counted
from trtops.verdict import Verdict

Kind: TypeAlias = Literal[
    "none", "data", "invalid model", "shape", "not repeatable", "nan", "wrong constant", "lost node", "dead branch",
    "model", "build", "intermittent", "tactic", "overflow", "underflow", "cancellation", "rounding", "range",
    "quantization", "builder", "export",
]  # fmt: skip
"""Kinds of faults. ``model`` is any fault of the model other than those listed before it, ``export`` one of the way
from PyTorch to ONNX."""

NOT_ANSWERED = "not answered"  # the answer to a question that there was no time for


@dataclass(frozen=True, kw_only=True)
class TriageConfig(
    EngineConfig,
    uses={
        "check": "data input_shapes input_dtypes iterations seed val_range golden tolerances min_precision_share "
        "self_check"
    },
):
    """The engine to triage, the data, and the limits of the search.

    Attributes:
        golden_model: A model that is right, for example an earlier export. Tensors are matched by name. With it the
            fault of a wrong model is located.
        replay: A tactic record that the engine is built with.
        minutes: Time limit. Questions that would take longer are left open, with their commands. None for no limit.
        campaign_builds: Maximum number of builds to find a tactic.
        output: Folder for the smallest failing case and its bundle; only the run has them by default.
    """

    check: CheckConfig = field(default_factory=lambda: CheckConfig(plots="never", latency_runs=0))
    golden_model: str | None = setting(None, file="reads")
    replay: str | None = setting(None, file="reads")
    minutes: float | None = None
    campaign_builds: int = setting(40, least=1)
    output: str | None = setting(None, file="writes")

    def __post_init__(self) -> None:
        if self.minutes is not None and not self.minutes > 0:
            raise errors.ConfigError(f"minutes is {self.minutes}; expected more than 0.")


@dataclass(frozen=True)
class Step(Record):
    """One question with its answer."""

    answer: str  # selects the next question; empty before it is known
    evidence: tuple[str, ...] = ()  # one sentence each, of the op that answers
    kind: Kind | None = None  # of fault, if the answer gives one
    places: tuple[str, ...] = ()  # the most certain first: names of nodes, tensors, weights, inputs, tactics
    remedy: str = ""  # a command, or in words
    builds: int = 0
    question: str = ""  # by name, and in words
    asks: str = ""
    seconds: float = 0.0
    run_id: str = ""
    command: NextStep | None = None  # acts on the answer, or answers a question that was left open


@dataclass(frozen=True, kw_only=True)
class TriageResult(OpResult):
    """Where a bad engine goes wrong, and why."""

    verdict: Verdict  # of the engine and its model; ``unproven`` also if it is not known in the time
    steps: tuple[Step, ...]
    minimal: str = ""  # the smallest failing case, a file or an artifact of the run
    bundle: str = ""  # its bundle, likewise

    @property
    def kind(self) -> Kind:
        """The kind of fault, from the last step with one."""
        return next((step.kind for step in reversed(self.steps) if step.kind is not None), "none")

    @property
    def places(self) -> tuple[str, ...]:
        """Where the fault is, the most certain first."""
        return tuple(dict.fromkeys(chain.from_iterable(step.places for step in reversed(self.steps))))

    @property
    def remedies(self) -> tuple[str, ...]:
        """Corrections of the fault, in the order of their discovery."""
        return tuple(step.remedy for step in self.steps if step.remedy)

    @property
    def open(self) -> tuple[Step, ...]:
        """The questions without an answer, for lack of time."""
        return tuple(step for step in self.steps if step.answer == NOT_ANSWERED)

    @property
    def builds(self) -> int:
        """Engines built."""
        return sum(step.builds for step in self.steps)

    @property
    def headline(self) -> str:
        """The kind of fault and its place."""
        if self.kind != "none":
            return f"{self.kind}, {self.places[0]}" if self.places else self.kind
        if self.open:
            return f"not answered: {self.open[0].asks}"
        return "nothing is wrong" if self.verdict == "good" else "nothing is wrong on data that proves nothing"

    @property
    def next_step(self) -> NextStep | None:
        """The command that acts on the last answer with one, or else answers the first open question."""
        acting = [step.command for step in self.steps if step.command is not None and step not in self.open]
        steps = [*reversed(acting), *(step.command for step in self.open)]
        return steps[0] if steps else super().next_step

    @property
    def because(self) -> tuple[str, ...]:
        """The last evidence, and the remedy."""
        evidence = next((step.evidence[-1] for step in reversed(self.steps) if step.kind and step.evidence), "")
        return tuple(filter(None, (evidence, *(f"remedy: {remedy}" for remedy in self.remedies[-1:]))))

    @property
    def figures(self) -> str:
        """The cost of the search."""
        seconds, answered = sum(step.seconds for step in self.steps), len(self.steps) - len(self.open)
        return f"{counted(answered, 'answer')}, {counted(self.builds, 'build')}, {seconds:.1f} s"

    def body(self) -> Iterator[str]:
        """The fault and its remedies, and each question with its answer, evidence and cost."""
        yield from self.summary()
        for number, step in enumerate(self.steps, start=1):
            yield f"{number}. {step.asks} **{step.answer}** ({counted(step.builds, 'build')}, {step.seconds:.1f} s)"
            yield from (f"   - {line}" for line in step.evidence)

    def summary(self) -> Iterator[str]:
        """The fault, its remedies, the open questions, and the cost of the search."""
        if self.kind != "none":
            places = ", ".join(f"`{location}`" for location in self.places[:5])
            yield f"**{self.kind.capitalize()}**{f' at {places}' if places else ''}."
        yield from (f"- Remedy: {remedy}" for remedy in self.remedies)
        if self.minimal:
            bundled = f", bundled in `{self.bundle}`" if self.bundle else ""
            yield f"- Smallest failing case: `{self.minimal}`{bundled}"
        for evidence in dict.fromkeys(step.evidence for step in self.open):
            questions = " ".join(step.asks for step in self.open if step.evidence == evidence)
            yield f"- Not answered: {questions} {evidence[0]}"
        yield from ("", f"{self.figures}.", "")
