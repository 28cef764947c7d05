"""Calibration caches and tactic records."""

from __future__ import annotations

from pathlib import Path

from trtops.ops.arguments import checked_arguments
from trtops.ops.result import Inspection
from trtops.tables import counted, table
from trtops.tactics.record import TacticRecord, algorithm_text, read_record
from trtops.tracking.base import Tracker, run_id_of
from trtops.tracking.builds import load_cache
from trtops.tracking.records import RUN_PREFIX
from trtops.tracking.schema import Artifact


@checked_arguments
def inspect_calibration(source: str, *, tracker: Tracker | None = None) -> Inspection:
    """Inspect a calibration cache: a file of either format, or ``run:ID``."""
    cache = load_cache(source, tracker)

    def text() -> str:
        head = f"{counted(len(cache), 'tensor')} by {cache.algorithm}, from {counted(cache.samples, 'sample')}"
        if not cache.complete:
            head += " (incomplete: the data ended with an error)"
        rows = []
        for entry in cache.ranges:
            seen = "-" if entry.low is None or entry.high is None else f"{entry.low:.5g} to {entry.high:.5g}"
            clipped = "-" if entry.clipped is None else f"{entry.clipped:.3%}"
            rows.append((entry.name, f"{entry.amax:.6g}", f"{entry.scale:.6g}", seen, clipped))
        lines = [head, "", table(("tensor", "amax", "scale", "seen", "clipped"), rows)]
        if cache.excluded:
            lines += ["", f"Without a range, since NaN or infinity occurred: {', '.join(cache.excluded)}"]
        return "\n".join(lines)

    return Inspection(lambda: cache, text)


@checked_arguments
def inspect_tactics(source: str | Path, *, tracker: Tracker | None = None) -> Inspection:
    """Inspect a tactic record of trtops or Polygraphy: a file, or ``run:ID``."""
    if tracker is not None and str(source).startswith(RUN_PREFIX):
        run = tracker.load(run_id_of(str(source), tracker))
        record = TacticRecord.from_json(run.read_bytes(Artifact.TACTICS))
    else:
        record = read_record(source)

    # Polygraphy's lines come first, then what it does not print.
    def text() -> str:
        lines, rows = [], []
        for choice in record.choices:
            rows.append((choice.layer, choice.op, choice.tactic, "" if choice.replayable else "no"))
            if record.mechanism == "algorithm_selector" and choice.replayable:
                lines.append(f"Layer: {choice.layer}\n    Algorithm: {algorithm_text(choice)}")
        replayable = f"{record.coverage:.0%} replayable, by {record.mechanism} {record.backend_version}"
        lines.append(f"{counted(len(record.choices), 'layer')}, {replayable}")
        lines += (f"    {name} = {value}" for name, value in record.settings)
        return "\n".join([*lines, "", table(("layer", "op", "tactic", "replayable"), rows)])

    return Inspection(lambda: record, text)
