"""Bring a store that an older MLflow made to the installed one's schema, after a backup."""

from __future__ import annotations

from trtops.cli import store
from trtops.cli.flags import Asked, Group

GROUPS = (Group("store", (store.ROOT,)),)
EXAMPLES = ("trtops store upgrade --root mlruns",)


def plan(args: Asked) -> tuple[str, ...]:
    """The words that :func:`trtops.tracking.store.main` takes."""
    return store.words("upgrade", root=args.root)


execute = store.execute
