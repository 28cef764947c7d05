"""Tables: in a run, where the UI shows them and ``mlflow.load_table`` reads them, and runs as a pandas table."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from trtops.record import JSONValue
from trtops.tracking import schema
from trtops.tracking.base import Run, RunInfo

if TYPE_CHECKING:
    import pandas as pd


def log_table(run: Run, path: str, columns: Sequence[str], rows: Iterable[Sequence[JSONValue]]) -> None:
    """Log a table in the format of ``mlflow.log_table``; a run can have one. NaN and infinities become null."""
    data: list[JSONValue] = [
        [None if isinstance(value, float) and not math.isfinite(value) else value for value in row] for row in rows
    ]
    run.log_json({"columns": list(columns), "data": data}, path)
    run.set_tags({schema.Tag.TABLES: json.dumps([{"path": path, "type": "table"}])})


def runs_frame(runs: Iterable[RunInfo]) -> pd.DataFrame:
    """A table with a row for each run, such as those that ``tracker.find()`` returns, and its id as index.

    Params and metrics are columns named ``params.<name>`` and ``metrics.<part>/<part>``; start times are in UTC.
    """
    import pandas as pd  # takes half a second

    rows = [
        {
            "run_id": run.id, "experiment": run.experiment, "name": run.name, "kind": run.kind, "status": run.status,
            "verdict": run.verdict, "started": pd.to_datetime(run.start_time, unit="s", utc=True),
            **{f"params.{name}": value for name, value in run.params.items()},
            **{f"metrics.{'/'.join(name)}": value for name, value in run.metrics.items()},
        }
        for run in runs
    ]  # fmt: skip
    fixed = ["run_id", "experiment", "name", "kind", "status", "verdict", "started"]
    frame: pd.DataFrame = (pd.DataFrame(rows) if rows else pd.DataFrame(columns=fixed)).set_index("run_id")
    return frame
