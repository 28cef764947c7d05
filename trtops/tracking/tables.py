"""Tables in a run: rows of named columns, shown by the UI as a table and read by ``mlflow.load_table``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence

from trtops.record import JSONValue
from trtops.tracking import schema
from trtops.tracking.base import Run


def log_table(run: Run, path: str, columns: Sequence[str], rows: Iterable[Sequence[JSONValue]]) -> None:
    """Log a table; a run can have one.

    The format is what ``mlflow.log_table`` writes: pandas' ``split`` orientation, and a tag that names the artifact.

    Args:
        run: The run.
        path: Artifact to write, ending in ``.json``.
        columns: Names of the columns.
        rows: One value per column; NaN and infinities are written as null.
    """
    data: list[JSONValue] = [
        [None if isinstance(value, float) and not math.isfinite(value) else value for value in row] for row in rows
    ]
    run.log_json({"columns": list(columns), "data": data}, path)
    run.set_tags({schema.Tag.TABLES: json.dumps([{"path": path, "type": "table"}])})
