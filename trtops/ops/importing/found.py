"""What a file of another tool says, in the words of this project."""

from __future__ import annotations

from dataclasses import dataclass

from trtops.record import Record


@dataclass(frozen=True, kw_only=True)
class LayerTime(Record):
    """The time of one layer or node.

    Attributes:
        name: Its name.
        op: Its type, as far as the tool says.
        ms: Mean time of one execution in milliseconds.
        share: Its part of all layers' time.
        precision: What it computes in, as far as the tool says.
        tactic: The kernel or tactic, likewise.
    """

    name: str
    op: str = ""
    ms: float | None = None
    share: float | None = None
    precision: str = ""
    tactic: str = ""


@dataclass(frozen=True, kw_only=True)
class Found(Record):
    """One result of another tool; a file may hold several.

    Attributes:
        name: What it is of: a runner, a model.
        tool: The tool that wrote it.
        what: What kind of result it is.
        numbers: Numbers by their names in the memory, parts joined by ``/``.
        notes: Names and values of what is no number.
        layers: Layers with their times or tactics.
        lacks: What a run of ours would have and this has not.
        verdict: What the tool itself decided, if it did: ``good`` or ``bad``.
    """

    name: str
    tool: str
    what: str
    numbers: tuple[tuple[str, float], ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    layers: tuple[LayerTime, ...] = ()
    lacks: tuple[str, ...] = ()
    verdict: str = ""
