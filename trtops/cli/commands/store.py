"""The commands of ``trtops store``. MLflow is imported when they run, since help does not need it."""

from trtops.cli import groups
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import direct_command
from trtops.cli.logs import say
from trtops.tables import counted
from trtops.terminal import one_line


@direct_command(Group("store", groups.ROOT), examples=("trtops store check --root mlruns",))
def check(args: Options) -> int:
    """Find problems of a store. Nothing is changed.

    Reported are runs whose processes are gone, runs without a manifest, files without runs, half-written files, and
    runs in the spool. The files of a server are not checked. The exit code is 1 if there is a problem.
    """
    from trtops.tracking.check import check_store
    from trtops.tracking.store import existing_tracker

    tracker = existing_tracker(args.root)
    problems = check_store(tracker)
    say(f"{tracker.shown}: {len(problems)} problem{'' if len(problems) == 1 else 's'}.")
    for subject, text in problems:
        say(f"{subject}: {text}")
    return int(bool(problems))


@direct_command(Group("store", groups.ROOT), examples=("trtops store reap --root mlruns",))
def reap(args: Options) -> int:
    """Close the runs of dead processes, and remove their child processes and temporary folders on this machine."""
    from trtops.tracking import check
    from trtops.tracking.store import existing_tracker

    tracker = existing_tracker(args.root)
    closed = check.reap(tracker)
    say(f"{counted(len(closed), 'run')} closed.")
    for info in closed:
        say(f"{info.id} {info.status} {one_line(info.name)}")
    for removed in check.remove_leftovers(tracker):
        say(f"Removed: {removed}")
    return 0


@direct_command(
    Group("store", groups.ROOT, flag("--port PORT", "the port on this machine", default=5000)),
    examples=("trtops store ui --root mlruns",),
)
def ui(args: Options) -> int:
    """Show the store in MLflow's UI, until Ctrl-C."""
    from trtops.tracking.mlflow.embedded import serve

    serve(args.root, port=args.port)


@direct_command(
    Group("store", groups.ROOT, flag("--moved", "also runs that were meant for another address of the store")),
    examples=("trtops store upload", "trtops store upload --root http://tracking:5000 --moved"),
)
def upload(args: Options) -> int:
    """Upload the runs that were spooled on this machine while the store was away or full.

    Runs that cannot be uploaded stay in the spool, and the exit code is 1.
    """
    from trtops.tracking import spool
    from trtops.tracking.store import existing_tracker

    tracker = existing_tracker(args.root)
    results = spool.upload(tracker.inner, tracker.spool, moved=bool(args.moved))
    left = sum(bool(uploaded.reason) for uploaded in results)
    say(f"{len(results) - left} runs uploaded, {left} left.")
    for uploaded in results:
        say(
            f"Left in {uploaded.folder}: {uploaded.reason}"
            if uploaded.reason
            else f"{uploaded.run_id} {one_line(uploaded.name)}"
        )
    return int(left > 0)
