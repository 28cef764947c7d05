"""What the ``store`` commands share: each hands its words to :mod:`trtops.tracking.store`, which is a command of its own."""

from __future__ import annotations

from trtops.cli.flags import Flag

ROOT = Flag(
    names=("--root", "--store"),
    shown="FOLDER",
    help="the store's folder (default: TRTOPS_HOME or ./mlruns)",
)


def words(command: str, **options: object) -> tuple[str, ...]:
    """A command line for :func:`trtops.tracking.store.main`; options that are None are left out."""
    given = {f"--{name}": str(value) for name, value in options.items() if value is not None}
    return (command, *(word for pair in given.items() for word in pair))


def execute(plan: tuple[str, ...]) -> int:
    """Do it."""
    from trtops.tracking.store import main  # imports MLflow, which help need not wait for

    return main(plan)
