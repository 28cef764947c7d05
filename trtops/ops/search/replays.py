"""Debug replays: the answers of a search in a file, in Polygraphy's layout: a JSON object of answers by question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtops import errors
from trtops.json import Decoder, Encoder, load_json, save_json


@dataclass
class IterationContext:
    """One answer; name and fields are Polygraphy's."""

    state: dict[str, Any] = field(default_factory=dict)
    iteration_info: dict[str, Any] = field(default_factory=dict)
    success: bool = True


Encoder.register(IterationContext)(lambda context: dict(vars(context)))
Decoder.register(IterationContext)(
    lambda members: IterationContext(members["state"], members["iteration_info"], members["success"])
)


def load_replay(path: str | Path) -> dict[str, IterationContext]:
    """Read a replay; FormatError if the file is not one, ConfigError if it does not exist."""
    try:
        replay = load_json(path, "debug replay")
    except FileNotFoundError:
        raise errors.ConfigError(f"Debug replay {str(path)!r} does not exist.") from None
    if not isinstance(replay, dict) or not all(isinstance(c, IterationContext) for c in replay.values()):
        raise errors.FormatError(f"{path} is not a debug replay; expected an object of IterationContext by _N<index>.")
    return replay


def save_replay(replay: Mapping[str, IterationContext], path: str | Path) -> None:
    """Write a replay."""
    save_json(dict(replay), path, "debug replay")
