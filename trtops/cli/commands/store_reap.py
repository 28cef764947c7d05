"""Close the runs whose processes are gone without having done so."""

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
        ),
    ),
)
EXAMPLES = ("trtops store reap --root mlruns",)


def plan(args: Asked) -> tuple[str, ...]:
    """The words that :func:`trtops.tracking.store.main` takes."""
    given = {"--root": args.root, "--from": getattr(args, "former", None), "--port": getattr(args, "port", None)}
    return ("reap", *(word for name, value in given.items() if value is not None for word in (name, str(value))))


def execute(plan: tuple[str, ...]) -> int:
    """Do it."""
    from trtops.tracking.store import main

    return main(plan)
