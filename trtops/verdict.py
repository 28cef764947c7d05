"""Verdicts: one word for the outcome of a build, a comparison or a run; exit codes follow from it."""

from collections.abc import Iterable
from typing import Literal, TypeAlias

Verdict: TypeAlias = Literal["good", "bad", "error", "unproven"]
"""``good`` and ``bad`` evaluate what was made; ``error`` says that none could be made or evaluated. ``unproven``: the
comparison found no deviation, but on data that cannot support a verdict, such as random values in shapes that were not
given. Only ``good`` is exit code 0, can be promoted, and passes a gate."""

WORST_FIRST: tuple[Verdict, ...] = ("error", "bad", "unproven", "good")
"""The verdict on several engines is the first of these that one of them has."""

BadIn: TypeAlias = Literal["outputs", "precision"]
"""What of an engine is bad: what it gives, or the precision that its kernels compute in."""

VERDICTS: tuple[Verdict, ...] = ("good", "bad", "error", "unproven")
"""All of them. Stored tables number verdicts by their place here, so the order never changes."""

MARKS: dict[Verdict, str] = {"good": "✓", "bad": "✗", "error": "!", "unproven": "?"}
"""Signs that names of runs begin with."""

PASSED: tuple[Verdict, ...] = ("good", "unproven")
"""Verdicts of comparisons without a deviation. The search for culprits counts both as good builds: all builds of a
campaign are compared on the same data, and a bad one among them shows that this data reveals the fault."""


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict on several engines; good without any."""
    return min(verdicts, key=WORST_FIRST.index, default="good")


def unmarked(name: str) -> str:
    """Return the name of a run without its sign."""
    return name.lstrip("".join(MARKS.values()) + " ")
