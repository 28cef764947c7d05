"""The server that Prefect starts for flows without one, in a folder of its own.

Importing this imports all of Prefect's server, which takes a second; Prefect does so when it starts one.
"""

from __future__ import annotations

import functools
import subprocess
from types import SimpleNamespace
from typing import Any

from prefect.server.api import server
from prefect.settings import PREFECT_HOME


class IsolatedServer(server.SubprocessASGIServer):
    """Prefect's server as a child process that starts where Prefect keeps its state.

    Prefect starts it where the flow was started, and it looks for modules there: as ``python -m`` does, and once more when
    it makes its tables. A ``fastapi.py`` beside a model would run. Prefect has one instance for a process, the first that is
    made.
    """

    def _run_uvicorn_command(self) -> subprocess.Popen[Any]:
        starting = functools.partial(subprocess.Popen, cwd=PREFECT_HOME.value())
        # What its module calls `subprocess`: to change the working folder of this process would be seen by all threads.
        seen = SimpleNamespace(Popen=starting, TimeoutExpired=subprocess.TimeoutExpired)
        vars(server)["subprocess"] = seen
        try:
            return super()._run_uvicorn_command()
        finally:
            vars(server)["subprocess"] = subprocess
