"""The options that choose runs of the store, spelled alike by every command that reads many runs."""

from __future__ import annotations

from trtops.cli.flags import Flag
from trtops.errors import near
from trtops.tracking.schema import KINDS


def _known_kind(text: str) -> str:
    if text not in KINDS:
        raise ValueError(f"{text!r} is no kind of run. {near(text, KINDS)}")
    return text


def tag(text: str) -> tuple[str, str]:
    """``NAME=VALUE``, the value as it is written: ``007`` is no number, and an empty one is one too."""
    name, found, value = text.partition("=")
    if not found or not name:
        raise ValueError(f"{text!r} is no tag with its value; expected NAME=VALUE")
    return name, value


EXPERIMENT = Flag(names=("--experiment",), shown="NAME", help="only runs of this experiment")
KIND = Flag(names=("--kind",), convert=_known_kind, help="only of this kind: build, compare, debug_build, reduce, ...")
KINDS_OF_RUNS = Flag(names=("--kind",), takes="many", convert=_known_kind, help="only runs of these kinds")
VERDICT = Flag(names=("--verdict",), usual="any", choices=("good", "bad", "error"), help="only with this verdict")
TAGS = Flag(names=("--tag",), takes="many", convert=tag, shown="NAME=VALUE", help="only with all of these tags")
