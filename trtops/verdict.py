"""Verdicts: the one word that a build, a comparison or a run is given, and that exit codes follow from."""

from __future__ import annotations

from typing import Literal, TypeAlias

Verdict: TypeAlias = Literal["good", "bad", "error"]
"""``good`` and ``bad`` evaluate what was made; ``error`` says that none could be made or evaluated."""

BadIn: TypeAlias = Literal["outputs", "precision"]
"""What of an engine is bad: what it gives, or the precision that its kernels compute in."""

VERDICTS: tuple[Verdict, ...] = ("good", "bad", "error")
"""All of them. Stored tables number verdicts by their place here, so the order never changes."""
