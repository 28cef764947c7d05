"""Calibration caches, tactic records, and weights eligible for sparse kernels."""

from __future__ import annotations

from pathlib import Path

from trtops.ops.result import Inspection
from trtops.tables import counted, table
from trtops.tactics.record import algorithm_text, read_record
from trtops.tracking.base import Tracker
from trtops.tracking.builds import load_cache


def inspect_calibration(source: str, *, tracker: Tracker | None = None) -> Inspection:
    """Inspect a calibration cache: a file of either format, or ``run:ID``."""
    cache = load_cache(source, tracker)

    def text() -> str:
        head = f"{counted(len(cache), 'tensor')} by {cache.algorithm}, from {counted(cache.samples, 'sample')}"
        if not cache.complete:
            head += " (incomplete: the data ended with an error)"
        rows = (
            (
                entry.name,
                f"{entry.amax:.6g}",
                f"{entry.scale:.6g}",
                "-" if entry.low is None or entry.high is None else f"{entry.low:.5g} to {entry.high:.5g}",
                "-" if entry.clipped is None else f"{entry.clipped:.3%}",
            )
            for entry in cache.ranges
        )
        lines = [head, "", table(("tensor", "amax", "scale", "seen", "clipped"), rows)]
        if cache.excluded:
            lines += ["", f"Without a range, since NaN or infinity occurred: {', '.join(cache.excluded)}"]
        return "\n".join(lines)

    return Inspection(lambda: cache, text)


def inspect_tactics(path: str | Path) -> Inspection:
    """Inspect a tactic record of trtops or Polygraphy."""
    record = read_record(path)

    # Polygraphy's lines come first, then what it does not print.
    def text() -> str:
        settings = [f"    {name} = {value}" for name, value in record.settings]
        rows = (
            (choice.layer, choice.op, choice.tactic, "" if choice.replayable else "no") for choice in record.choices
        )
        algorithms = [
            f"Layer: {choice.layer}\n    Algorithm: {algorithm_text(choice)}"
            for choice in record.choices
            if record.mechanism == "algorithm_selector" and choice.replayable
        ]
        head = (
            f"{counted(len(record.choices), 'layer')}, {record.coverage:.0%} replayable, by {record.mechanism} "
            f"{record.backend_version}"
        )
        return "\n".join([*algorithms, head, *settings, "", table(("layer", "op", "tactic", "replayable"), rows)])

    return Inspection(lambda: record, text)
