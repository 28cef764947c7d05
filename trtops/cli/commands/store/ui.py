"""Show the store in MLflow's UI, until Ctrl-C."""

from __future__ import annotations

from trtops.cli import store
from trtops.cli.flags import Asked, Flag, Group

_PORT = Flag(names=("--port",), convert=int, default=5000, help="the port on this machine")
GROUPS = (Group("store", (store.ROOT, _PORT)),)
EXAMPLES = ("trtops store ui --root mlruns",)


def plan(args: Asked) -> tuple[str, ...]:
    """The arguments for :func:`trtops.tracking.store.main`."""
    return store.words("ui", root=args.root, port=args.port)


execute = store.execute
