"""The servers of a team on one machine, without containers: Prefect, MLflow and workers.

``trtops team up`` (``make up``) starts what is not running yet, ``down`` ends it, ``status`` reports it. The servers listen
on the loopback interface only. Everything is in the folder ``<store>/team``::

    team.json         what was started, and with which ports and database
    passwords.ini     created on first use, readable by its owner only
    logs/             one file per process
    prefect/          Prefect's folder, with its SQLite database unless another one is configured
    mlflow/           artifacts, with MLflow's SQLite databases unless another one is configured

Neither Prefect nor MLflow is imported here: they are started as programs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.lazy import exports

if TYPE_CHECKING:
    from trtops.team.access import client_environment as client_environment
    from trtops.team.servers import down as down
    from trtops.team.servers import status as status
    from trtops.team.servers import up as up
    from trtops.team.state import ServiceStatus as ServiceStatus
    from trtops.team.state import TeamConfig as TeamConfig
    from trtops.team.state import TeamFolder as TeamFolder
    from trtops.team.state import TeamStatus as TeamStatus

__getattr__, __dir__ = exports(__name__)
