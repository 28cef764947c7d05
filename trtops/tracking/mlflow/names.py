"""Names that a shell completes, read from an embedded store's database without MLflow: a tab key does not wait for seconds."""

from __future__ import annotations

from pathlib import Path

from trtops.errors import TrtopsError
from trtops.tracking.location import Store, resolve
from trtops.tracking.mlflow.embedded import open_database

_MOST = 200  # a shell shows no more


def run_names(location: str | Path | None = None) -> list[tuple[str, str]]:
    """Ids of the newest runs, each with its name; none where there is no embedded store, or it cannot be read."""
    query = "SELECT run_uuid, name FROM runs WHERE lifecycle_stage = 'active' ORDER BY start_time DESC LIMIT ?"
    return _pairs(location, query)


def experiment_names(location: str | Path | None = None) -> list[tuple[str, str]]:
    """Names of the newest experiments, each with an empty text; none likewise."""
    query = (
        "SELECT name, '' FROM experiments WHERE lifecycle_stage = 'active' AND experiment_id != 0 "
        "ORDER BY last_update_time DESC LIMIT ?"
    )
    return _pairs(location, query)


def _pairs(location: str | Path | None, query: str) -> list[tuple[str, str]]:
    try:
        store = resolve(location)
        if not isinstance(store, Store) or not store.database.exists():
            return []
        with open_database(store) as database:
            return [(str(one), str(other or "")) for one, other in database.execute(query, (_MOST,))]
    except TrtopsError:  # a message in the middle of a line that somebody types helps nobody
        return []
