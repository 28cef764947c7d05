"""The commands of ``trtops store``. :mod:`trtops.tracking.store` runs them."""

from __future__ import annotations

from trtops.cli import groups
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Command, Job


def _job(command: str, *switches: str, **options: object) -> Job:
    """Return the job of a command of :func:`trtops.tracking.store.main`; options that are None are left out."""
    given = {f"--{name}": str(value) for name, value in options.items() if value is not None}
    return Job(call=_run, args=(command, *(word for pair in given.items() for word in pair), *switches))


def _run(*words: str) -> int:
    from trtops.tracking.store import main  # imports MLflow, which help does not need

    return main(list(words))


def _upload(args: Options) -> Job:
    return _job("upload", *(["--moved"] if args.moved else []), root=args.root)


COMMANDS = {
    "check": Command(
        lambda args: _job("check", root=args.root, artifacts=args.artifacts),
        (Group("store", (groups.ROOT, flag("--artifacts FOLDER", "for a server: the folder of its files"))),),
        (
            "trtops store check --root mlruns",
            "trtops store check --root http://127.0.0.1:5000 --artifacts mlruns/team/mlflow/artifacts",
        ),
        "Find problems of a store. Nothing is changed. Reported are runs whose processes are gone, runs without "
        "files or "
        "without a manifest, files without runs, half-written files, runs in the spool, and leftovers of dead "
        "processes on "
        "this machine. The exit code is 1 if there is a problem.",
    ),
    "reap": Command(
        lambda args: _job("reap", root=args.root),
        (Group("store", (groups.ROOT,)),),
        ("trtops store reap --root mlruns",),
        "Close the runs of dead processes, and remove their child processes and temporary folders on this machine.",
    ),
    "ui": Command(
        lambda args: _job("ui", root=args.root, port=args.port),
        (Group("store", (groups.ROOT, flag("--port PORT", "the port on this machine", default=5000))),),
        ("trtops store ui --root mlruns",),
        "Show the store in MLflow's UI, until Ctrl-C.",
    ),
    "upload": Command(
        _upload,
        (
            Group(
                "store",
                (
                    groups.ROOT,
                    flag("--moved", "also runs that were meant for another address of the store", default=False),
                ),
            ),
        ),
        ("trtops store upload", "trtops store upload --root http://tracking:5000 --moved"),
        "Upload the runs that were spooled on this machine while the store was away or full. Runs that cannot be "
        "uploaded "
        "stay in the spool, and the exit code is 1.",
    ),
}
