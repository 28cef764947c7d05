"""Show the store in MLflow's UI, until Ctrl-C."""

from __future__ import annotations

from trtops.cli.flags import Asked, Flag, Group

GROUPS = (
    Group(
        "store",
        (
            Flag(
                names=("--root", "--store"),
                shown="FOLDER",
                help="the store's folder (default: TRTOPS_HOME or ./mlruns)",
            ),
            Flag(names=("--port",), convert=int, default=5000, help="the port on this machine"),
        ),
    ),
)
EXAMPLES = ("trtops store ui --root mlruns",)


def plan(args: Asked) -> tuple[str, ...]:
    """The words that :func:`trtops.tracking.store.main` takes."""
    given = {"--root": args.root, "--from": getattr(args, "former", None), "--port": getattr(args, "port", None)}
    return ("ui", *(word for name, value in given.items() if value is not None for word in (name, str(value))))


def execute(plan: tuple[str, ...]) -> int:
    """Do it."""
    from trtops.tracking.store import main

    return main(plan)
