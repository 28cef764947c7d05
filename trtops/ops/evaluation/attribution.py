"""Whose fault an engine's error is: the precision's own, noise, or the builder's. As values, which need neither model nor back end.

Three errors are measured on the same data, each as a root mean square against the golden outputs, relative to theirs:

- the engine's;
- the precision's own: what the model gives where each result is rounded to the precision asked for, by no engine;
- noise: what outputs differ by from run to run of the engine, and what rounding to FP32 does to the model.

They are independent, so their squares add up, and what of the engine's error the other two leave is the builder's: kernels
that add up in too few bits, fusions, wrong tactics.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from trtops.record import Record
from trtops.spec import Precision
from trtops.verdict import Verdict

Statement: TypeAlias = Literal[
    "good for its precision",
    "worse than its precision",
    "precision is the problem",
    "not in its precision",
    "unknown",
]

TIMES = 3.0
"""By how many times an engine's error may exceed precision and noise together: sound engines round in other places and orders."""

UNITS_ALLOWED = 4.0
"""Rounding units of the output's size that every engine may be off by."""


@dataclass(frozen=True, kw_only=True)
class OutputErrors(Record):
    """One output's errors, each relative to the root mean square of the golden output.

    Attributes:
        name: The output.
        engine: The engine's error.
        precision: The precision's own.
        run_to_run: What the engine's outputs differ by from run to run.
        rounding: What rounding weights and inputs to FP32 does; 0 for a model that cannot be moved.
    """

    name: str
    engine: float
    precision: float
    run_to_run: float = 0.0
    rounding: float = 0.0

    @property
    def noise(self) -> float:
        """Run to run and rounding together."""
        return math.hypot(self.run_to_run, self.rounding)

    @property
    def builder(self) -> float:
        """What precision and noise leave of the engine's error; 0 where they explain all of it."""
        explained = math.hypot(self.precision, self.noise)
        if math.isinf(explained):
            return 0.0
        return math.sqrt(self.engine**2 - explained**2) if self.engine > explained else 0.0

    def allowed(self, unit: float) -> float:
        """The largest error that a sound engine of the precision is expected to have.

        Args:
            unit: The rounding unit of the precision.
        """
        return max(TIMES * math.hypot(self.precision, self.noise), UNITS_ALLOWED * unit)

    def excess(self, unit: float) -> float:
        """The engine's error as a multiple of what is allowed; 1 where both are infinite."""
        allowed = self.allowed(unit)
        return self.engine / allowed if math.isfinite(allowed) else 1.0 if math.isinf(self.engine) else 0.0


@dataclass(frozen=True, kw_only=True)
class Attribution(Record):
    """Whose fault an engine's error is.

    Attributes:
        precision: The precision that was asked for.
        unit: Its rounding unit.
        outputs: The errors of every output of numbers.
        engine: Whether the engine is good.
        emulated: Whether the emulated model does, without an overflow.
        computed: Whether the engine computes in the precision at all; see :class:`trtops.ops.evaluation.realised.Computed`.
        overflows: Tensors that overflow in the emulated model.
        why_not: Why nothing could be measured; empty if it was.
    """

    precision: Precision
    unit: float
    outputs: tuple[OutputErrors, ...] = ()
    engine: Verdict
    emulated: Verdict = "good"
    computed: bool = True
    overflows: tuple[str, ...] = ()
    why_not: str = ""

    @property
    def worst(self) -> OutputErrors | None:
        """The output whose error exceeds what is allowed the most; None if there is none of numbers."""
        return max(self.outputs, key=lambda output: output.excess(self.unit), default=None)

    @property
    def statement(self) -> Statement:
        """Whose fault it is, in four words.

        A bad engine within what its precision allows is put down to the larger of the two shares, the precision's with the
        noise and the builder's.
        """
        if not self.computed:
            return "not in its precision"
        worst = self.worst
        if worst is None or self.why_not:
            return "unknown"
        if worst.excess(self.unit) > 1:
            return "worse than its precision"
        if self.engine == "good":
            return "good for its precision"
        if self.emulated != "good" or math.hypot(worst.precision, worst.noise) >= worst.builder:
            return "precision is the problem"
        return "worse than its precision"

    def sentence(self) -> str:
        """The statement, with its numbers."""
        name = self.precision.upper()
        if self.why_not:
            return f"Whose fault the error is cannot be told: {self.why_not}."
        if (worst := self.worst) is None:
            return (
                f"The engine is {self.statement}: {name} was asked for."
                if not self.computed
                else "No output has numbers."
            )
        said = {
            "good for its precision": f"The engine is good for its precision, {name}",
            "worse than its precision": f"The engine is worse than its precision, {name}: the builder is to blame",
            "precision is the problem": f"The precision is the problem: {name} does not suffice for this model",
            "not in its precision": f"The engine is not in its precision: {name} was asked for, and it does not compute in it",
        }[str(self.statement)]
        shares = (
            f"of the relative error {worst.engine:.3g} of `{worst.name}`, {worst.precision:.3g} is {name}'s own, "
            f"{worst.noise:.3g} noise and {worst.builder:.3g} the builder's"
        )
        beyond = f" ({worst.excess(self.unit):.3g} times what is allowed)" if worst.excess(self.unit) > 1 else ""
        overflows = f"; in {name} {_listed(self.overflows)} overflow{'s' if len(self.overflows) == 1 else ''}"
        return f"{said}; {shares}{beyond}{overflows if self.overflows else ''}."

    def lines(self) -> Iterable[str]:
        """The sentence and a table of the outputs, in Markdown."""
        yield from (self.sentence(), "")
        if self.outputs:
            yield f"| output | engine's error | {self.precision.upper()}'s own | noise | builder's | allowed |"
            yield "|---" * 6 + "|"
            for o in self.outputs:
                numbers = (o.engine, o.precision, o.noise, o.builder, o.allowed(self.unit))
                yield f"| `{o.name}` | {' | '.join(f'{number:.3g}' for number in numbers)} |"
            yield ""


def _listed(names: tuple[str, ...], shown: int = 3) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(f"`{name}`" for name in names[:shown]) + more
