"""Everything that the memory holds of one run."""

from __future__ import annotations

from collections.abc import Mapping

from trtops import errors
from trtops.ops.model.inspect.inspection import Inspection
from trtops.record import JSONValue
from trtops.tables import size
from trtops.tracking.base import Tracker


def inspect_run(run_id: str, tracker: Tracker) -> Inspection:
    """What the memory holds of a run: its tags, params and numbers, and what it left.

    Args:
        run_id: The run's id or what it begins with, with or without ``run:`` before it.
        tracker: The memory.

    Raises:
        RunNotFoundError: If there is none with this id.
    """
    run_id = tracker.whole_id(run_id)
    info = tracker.info(run_id)
    files: list[tuple[str, int, str]] = []
    whole = True
    try:
        stored = tracker.load(run_id)
        files = [(entry.path, entry.size, entry.sha256) for entry in stored.manifest.artifacts]
    except errors.IncompleteRunError:
        whole = False
    record: dict[str, JSONValue] = {
        "id": info.id,
        "experiment": info.experiment,
        "name": info.name,
        "status": info.status,
        "verdict": info.verdict,
        "whole": whole,
        "url": info.url,
        "tags": dict(info.tags),
        "params": dict(info.params),
        "metrics": {"/".join(name): value for name, value in info.metrics.items()},
        "artifacts": [{"path": path, "bytes": count, "sha256": digest} for path, count, digest in files],
    }

    def text() -> str:
        lines = [f"{info.name} in {info.experiment}: {info.status}{f', {info.verdict}' if info.verdict else ''}"]
        lines += [f"Run {info.id}", *([info.url] if info.url else [])]
        if not whole:
            lines.append("The run is not whole: it has no manifest, or a file does not match it.")
        for title, values in (("Params", info.params), ("Metrics", record["metrics"]), ("Tags", info.tags)):
            assert isinstance(values, Mapping)
            lines += ["", f"---- {title} ----", *(f"    {key} = {value}" for key, value in sorted(values.items()))]
        lines += ["", "---- Artifacts ----", *(f"    {path} ({size(count)})" for path, count, _ in files)]
        return "\n".join(lines)

    return Inspection("run", lambda: record, text)
