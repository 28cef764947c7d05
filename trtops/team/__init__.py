"""The servers of a team on one machine, without containers: Prefect, MLflow and workers.

``trtops team up`` (``make up``) starts what is not running yet, ``down`` ends it, ``status`` reports it. The servers
listen on the loopback interface only. Everything is in the folder ``<store>/team``: what was started (``team.json``),
the passwords, the logs, and the data of both servers. Neither Prefect nor MLflow is imported here: they are started as
programs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.lazy import exports

if TYPE_CHECKING:
    from trtops.team.access import client_environment as client_environment
    from trtops.team.access import team_folder as team_folder
    from trtops.team.servers import down as down
    from trtops.team.servers import status as status
    from trtops.team.servers import up as up

__getattr__, __dir__ = exports(__name__)
