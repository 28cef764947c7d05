"""Answers of a precision search in a file, so that a search that was ended can resume."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trtops import errors
from trtops.ops.search.precision.result import PrecisionStep
from trtops.ops.search.replays import IterationContext, load_replay, save_replay


def save_answers(path: Path, known: Mapping[frozenset[str], PrecisionStep]) -> None:
    """Write answers, in the layout of Polygraphy's debug replays, with the question of each in ``keep``."""
    replay = {
        f"_N{number}": IterationContext(
            {"keep": sorted(names), "excess": step.excess}, {"iteration": number}, step.good
        )
        for number, (names, step) in enumerate(known.items())
    }
    save_replay(replay, path)


def load_answers(path: Path) -> dict[frozenset[str], tuple[bool, float]]:
    """Read answers: by the nodes kept, whether that was good, and the error as a multiple of the tolerances.

    Raises:
        ConfigError: If there is no such file, or it does not say which nodes were kept, as Polygraphy's do not.
        FormatError: If it is something else.
    """
    answers = {}
    for key, context in load_replay(path).items():
        kept, excess = context.state.get("keep"), context.state.get("excess", 0.0)
        if not isinstance(kept, list):
            raise errors.ConfigError(
                f"{path}: answer {key!r} does not say which nodes were kept; expected a replay that `trtops debug "
                "precision` saved. Those of other tools answer other questions: search anew."
            )
        answers[frozenset(map(str, kept))] = (bool(context.success), float(excess))
    return answers
