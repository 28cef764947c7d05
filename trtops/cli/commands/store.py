"""The commands of ``trtops store``. :mod:`trtops.tracking.store` runs them."""

from __future__ import annotations

from trtops.cli import groups
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job, command


def _job(command: str, *switches: str, **options: object) -> Job:
    """Return the job of a command of :func:`trtops.tracking.store.main`; options that are None are left out."""
    given = {f"--{name}": str(value) for name, value in options.items() if value is not None}
    words = [command, *(word for pair in given.items() for word in pair), *switches]

    def run() -> int:
        from trtops.tracking.store import main  # imports MLflow, which help does not need

        return main(words)

    return run


@command(
    Group("store", groups.ROOT, flag("--artifacts FOLDER", "for a server: the folder of its files")),
    examples=(
        "trtops store check --root mlruns",
        "trtops store check --root http://127.0.0.1:5000 --artifacts mlruns/team/mlflow/artifacts",
    ),
)
def check(args: Options) -> Job:
    """Find problems of a store. Nothing is changed.

    Reported are runs whose processes are gone, runs without files or without a manifest, files without runs,
    half-written files, runs in the spool, and leftovers of dead processes on this machine. The exit code is 1 if there
    is a problem.
    """
    return _job("check", root=args.root, artifacts=args.artifacts)


@command(Group("store", groups.ROOT), examples=("trtops store reap --root mlruns",))
def reap(args: Options) -> Job:
    """Close the runs of dead processes, and remove their child processes and temporary folders on this machine."""
    return _job("reap", root=args.root)


@command(
    Group("store", groups.ROOT, flag("--port PORT", "the port on this machine", default=5000)),
    examples=("trtops store ui --root mlruns",),
)
def ui(args: Options) -> Job:
    """Show the store in MLflow's UI, until Ctrl-C."""
    return _job("ui", root=args.root, port=args.port)


@command(
    Group("store", groups.ROOT, flag("--moved", "also runs that were meant for another address of the store")),
    examples=("trtops store upload", "trtops store upload --root http://tracking:5000 --moved"),
)
def upload(args: Options) -> Job:
    """Upload the runs that were spooled on this machine while the store was away or full.

    Runs that cannot be uploaded stay in the spool, and the exit code is 1.
    """
    return _job("upload", *(["--moved"] if args.moved else []), root=args.root)
