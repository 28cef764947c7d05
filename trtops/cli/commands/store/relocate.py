"""Make a store's artifact addresses fit the folder that it was moved or copied to."""

from __future__ import annotations

from trtops.cli import store
from trtops.cli.flags import Asked, Flag, Group

GROUPS = (
    Group(
        "store",
        (
            store.ROOT,
            Flag(names=("--from",), to="former", shown="FOLDER", help="where it was, if it does not say so itself"),
        ),
    ),
)
EXAMPLES = ("trtops store relocate --root mlruns",)


def plan(args: Asked) -> tuple[str, ...]:
    """The words that :func:`trtops.tracking.store.main` takes."""
    return store.words("relocate", root=args.root, **{"from": args.former})


execute = store.execute
