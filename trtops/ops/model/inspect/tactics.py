"""Tactic records: which tactic each layer got."""

from __future__ import annotations

from pathlib import Path

from trtops.ops.model.inspect.inspection import Inspection
from trtops.tables import table
from trtops.tactics.replays import read_record
from trtops.tactics.spelling import algorithm_text


def inspect_tactics(path: str | Path) -> Inspection:
    """Look into a tactic record of trtops or Polygraphy.

    Raises:
        ConfigError: If there is no such file.
        FormatError: If it is no tactic record.
    """
    record = read_record(path)

    def text() -> str:
        head = f"{len(record.choices)} layers, {record.coverage:.0%} replayable, by {record.mechanism} {record.backend_version}"
        settings = [f"    {name} = {value}" for name, value in record.settings]
        rows = (
            (choice.layer, choice.op, choice.tactic, "" if choice.replayable else "no") for choice in record.choices
        )
        algorithms = [
            f"Layer: {choice.layer}\n    Algorithm: {algorithm_text(choice)}"
            for choice in record.choices
            if record.mechanism == "algorithm_selector" and choice.replayable
        ]
        return "\n".join([*algorithms, head, *settings, "", table(("layer", "op", "tactic", "replayable"), rows)])

    return Inspection("tactics", lambda: record, text)
