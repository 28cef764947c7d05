"""The common part of the ``store`` commands, which :mod:`trtops.tracking.store` executes."""

from __future__ import annotations

from trtops.cli.flags import Flag

ROOT = Flag(
    names=("--root", "--store"),
    shown="FOLDER",
    help="the store's folder or address (default: TRTOPS_HOME or ./mlruns)",
)


def words(command: str, **options: object) -> tuple[str, ...]:
    """Arguments for :func:`trtops.tracking.store.main`, without options that are None."""
    given = {f"--{name}": str(value) for name, value in options.items() if value is not None}
    return (command, *(word for pair in given.items() for word in pair))


def execute(plan: tuple[str, ...]) -> int:
    """Run the command."""
    from trtops.tracking.store import main  # imports MLflow, which help does not need

    return main(plan)
