"""What the ``store`` commands share: each passes its words to :mod:`trtops.tracking.store`, which runs them."""

from __future__ import annotations

from trtops.cli.flags import flag
from trtops.cli.jobs import Job

ROOT = flag("--root --store FOLDER", "the store's folder or address (default: TRTOPS_HOME or ./mlruns)")


def job(command: str, *switches: str, **options: object) -> Job:
    """Return the job of a command of :func:`trtops.tracking.store.main`; options that are None are left out."""
    given = {f"--{name}": str(value) for name, value in options.items() if value is not None}
    return Job(call=_run, args=(command, *(word for pair in given.items() for word in pair), *switches))


def _run(*words: str) -> int:
    from trtops.tracking.store import main  # imports MLflow, which help does not need

    return main(list(words))
