"""The options that select runs of the store, alike in every command that reads many runs."""

from __future__ import annotations

from trtops.cli.flags import flag
from trtops.errors import near
from trtops.tracking.schema import KINDS


def _known_kind(text: str) -> str:
    if text not in KINDS:
        raise ValueError(f"{text!r} is not a kind of run. {near(text, KINDS)}")
    return text


def tag(text: str) -> tuple[str, str]:
    """Return name and value of ``NAME=VALUE``. The value stays text: ``007`` is not a number."""
    name, found, value = text.partition("=")
    if not found or not name:
        raise ValueError(f"{text!r} is not a tag with its value; expected NAME=VALUE")
    return name, value


EXPERIMENT = flag("--experiment NAME", "only runs of this experiment")
KIND = flag("--kind KIND", "only of this kind: build, compare, debug_build, reduce, ...", convert=_known_kind)
KINDS_OF_RUNS = flag("--kind KIND+", "only runs of these kinds", convert=_known_kind)
VERDICT = flag("--verdict CHOICE", "only with this verdict", usual="any", choices=("good", "bad", "error"))
TAGS = flag("--tag NAME=VALUE+", "only with all of these tags", convert=tag)
