"""Commands that ask one op one question and print its answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trtops.cli.logs import say, say_json
from trtops.cli.script import Call, Maker


@dataclass(frozen=True)
class Question:
    """A call whose result has ``text()`` and ``to_json()``, and how to print that.

    Attributes:
        call: The call.
        json: Whether to print JSON.
    """

    call: Call
    json: bool = False


def answer(question: Question) -> int:
    """Ask, and print."""
    show(Maker()(question.call), question.json)
    return 0


def show(found: Any, as_json: bool) -> None:
    """Print an answer."""
    if as_json:
        say_json(found.to_json())
    else:
        say(found.text())
