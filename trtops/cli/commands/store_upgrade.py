"""Bring a store that an older MLflow made to the installed one's schema, after a backup."""

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
EXAMPLES = ("trtops store upgrade --root mlruns",)


def plan(args: Asked) -> tuple[str, ...]:
    """The words that :func:`trtops.tracking.store.main` takes."""
    given = {"--root": args.root, "--from": getattr(args, "former", None), "--port": getattr(args, "port", None)}
    return ("upgrade", *(word for name, value in given.items() if value is not None for word in (name, str(value))))


def execute(plan: tuple[str, ...]) -> int:
    """Do it."""
    from trtops.tracking.store import main

    return main(plan)
