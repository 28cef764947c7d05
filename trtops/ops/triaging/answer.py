"""What a question of the triage comes back with."""

from __future__ import annotations

from dataclasses import dataclass

from trtops.ops.triaging.result import Kind


@dataclass(frozen=True)
class Answer:
    """An answer; fields are those of :class:`trtops.ops.triaging.result.Step`.

    Attributes:
        answer: In a word or two.
        evidence: What it rests on.
        ruled_out: What it cannot be any more.
        kind: The kind of fault.
        places: Where it is.
        remedy: What mends it.
        model: The smallest failing model so far.
        builds: Engines built.
    """

    answer: str
    evidence: tuple[str, ...] = ()
    ruled_out: tuple[str, ...] = ()
    kind: Kind | None = None
    places: tuple[str, ...] = ()
    remedy: str = ""
    model: str = ""
    builds: int = 0
