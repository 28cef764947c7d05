"""A team's servers on one machine, without containers: Prefect, MLflow, their database, and workers.

``trtops team up`` (``make up``) starts what is not up yet, ``down`` ends it, ``status`` says what is there. Everything
listens on the loopback interface alone. Processes are known by their id and the time they started
(:mod:`trtops.tracking.owner`), and kept in the folder ``<store>/team``::

    team.json         what was started, with which ports and database
    passwords.ini     made on first use; only its owner may read it
    logs/             one file for each process
    postgres/         the database cluster, where PostgreSQL is installed
    prefect/          Prefect's own folder, with its SQLite database otherwise
    mlflow/           artifacts, with MLflow's SQLite databases otherwise
    .lock             held by whoever starts or ends something

Neither Prefect nor MLflow is imported here: they are started as programs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.lazy import exports

if TYPE_CHECKING:
    from trtops.team.access import client_environment as client_environment
    from trtops.team.config import ServiceStatus as ServiceStatus
    from trtops.team.config import TeamConfig as TeamConfig
    from trtops.team.config import TeamStatus as TeamStatus
    from trtops.team.folder import TeamFolder as TeamFolder
    from trtops.team.servers import down as down
    from trtops.team.servers import status as status
    from trtops.team.servers import up as up

__getattr__, __dir__ = exports(__name__)
