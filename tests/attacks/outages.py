"""Stores that go away, or get full: ``python -m tests.attacks.outages --moments 20 [--disks 20] [--real 20]``.

A model is converted while the store fails from one of its calls on, at moments spread over all calls. After the upload
of the spool, the store must have the same run as without the failure. A campaign, a promotion and an audit may also end
with an error that names the store; then their runs are whole, and the same call succeeds. With ``--disks``, a store on
a file system in memory gets full at other numbers of bytes, which needs the right to mount one. With ``--real``, a real
server is killed, stopped, or replaced by a program that closes each connection, while a command works. The command must
end within 30 s more than it takes, without a traceback; then the server is back, and the spool is uploaded.
"""

import argparse
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import psutil

from tests import campaigns, models
from tests.attacks import sigkills
from tests.servers import MlflowServer
from tests.stores import copy_store
from tests.tracking.test_offline import NEVER, Gate, GatedTracker, come_back
from trtops import errors
from trtops.ops.auditing.op import AuditConfig, audit
from trtops.ops.campaign.debug_build import debug_build
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.registry.promote import PromoteConfig, promote
from trtops.tracking import builds
from trtops.tracking.base import Tracker
from trtops.tracking.mlflow import MlflowTracker, embedded
from trtops.tracking.offline import OfflineTracker
from trtops.tracking.schema import Artifact
from trtops.tracking.spool import Spool, upload

CONFIG = ConvertConfig(check=CheckConfig(latency_runs=0, plots="never"))


def contents(tracker: Tracker) -> object:
    """The only run of a store: verdict, names of all that was logged, sections of its page; and that it is sound."""
    [info] = tracker.find()
    stored = tracker.load(info.id)
    assert builds.load_build(stored).engine.plan
    [run_audit] = audit(AuditConfig(runs=(info.id,), rebuild=False), tracker=tracker).runs
    # A store in memory has no log.
    missing = [] if isinstance(tracker, MlflowTracker) else ["it is not in the log of the store"]
    assert (
        run_audit.whole
        and not run_audit.contradictions
        and [reason.partition(":")[0] for reason in run_audit.unverified] == missing
    )
    logged = sorted(info.tags), sorted(info.params), sorted(info.metrics)
    sections = re.findall("<h2.*?</h2>", stored.read_bytes(Artifact.REPORT).decode())
    return info.status, info.verdict, logged, [entry.path for entry in stored.manifest.artifacts], sections


def failing_at(moment: int, error: type[errors.TrackingError], model: Path, spool: Path) -> tuple[int, object]:
    """The calls of a store that fails from one of them on, and what it has after the upload."""
    memory = GatedTracker(Gate(range(moment, NEVER)))
    memory.gate.error = error
    tracker = OfflineTracker(memory, Spool(spool))
    assert convert(model, CONFIG, tracker=tracker).verdict == "good"
    calls = memory.gate.calls
    come_back(memory)
    assert all(not uploaded.reason for uploaded in upload(memory, tracker.spool)) and not tracker.spool.runs()
    return calls, contents(memory)


def failures(error: type[errors.TrackingError], count: int, folder: Path) -> Iterator[int]:
    """Moments, of some that are spread over all calls of a store, after which it has another run."""
    model = models.identity().write(folder)
    calls, expected = failing_at(NEVER, error, model, folder / "never")
    for moment in sorted({calls * number // count for number in range(count)}):
        if failing_at(moment, error, model, folder / f"{error.__name__} {moment}")[1] != expected:
            yield moment


WORK: dict[str, Callable[[Tracker, Path, str], object]] = {
    "campaign": lambda tracker, model, run: debug_build(model, campaigns.of_one_node(2), tracker=tracker),
    "promote": lambda tracker, model, run: promote(run, PromoteConfig(check=CONFIG.check), tracker=tracker),
    "audit": lambda tracker, model, run: audit(AuditConfig(runs=(run,), rebuild=False), tracker=tracker),
}


def problems_of(name: str, moment: int, error: type[errors.TrackingError], folder: Path) -> tuple[int, str]:
    """The calls of a piece of work whose store fails from one of them on, and what is wrong afterwards."""
    memory = GatedTracker()
    folder.mkdir(exist_ok=True)
    model, spool = models.identity().write(folder), Spool(folder / "spool")
    run = convert(model, CONFIG, tracker=memory).run_id
    memory.gate.calls, memory.gate.away, memory.gate.error = 0, range(moment, NEVER), error
    try:
        WORK[name](OfflineTracker(memory, spool), model, run)
    except errors.TrackingError as exc:
        if memory.shown not in str(exc) and "gone" not in str(exc):
            return memory.gate.calls, f"the error does not name the store: {exc}"
    calls = memory.gate.calls
    come_back(memory)
    reasons = [uploaded.reason for uploaded in upload(memory, spool) if uploaded.reason]
    infos = memory.find()
    open_runs = [info.name for info in infos if info.status == "running"]
    for info in infos:
        if info.status == "finished":
            stored = memory.load(info.id)
            for entry in stored.manifest.artifacts:
                stored.read_bytes(entry.path)
    WORK[name](OfflineTracker(memory, spool), model, run)
    return calls, f"not uploaded: {reasons}; open: {open_runs}" if reasons or open_runs else ""


def failing_work(error: type[errors.TrackingError], count: int, folder: Path) -> Iterator[str]:
    """Problems of each piece of work at moments that are spread over its calls."""
    for name in WORK:
        calls, problem = problems_of(name, NEVER, error, folder / name)
        for moment in sorted({calls * number // count for number in range(count)}):
            try:
                _, problem = problems_of(name, moment, error, folder / f"{name} {error.__name__} {moment}")
            except Exception as exc:
                problem = f"{type(exc).__name__}: {exc}"
            if problem:
                yield f"{name}, {error.__name__} at call {moment} of {calls}: {problem}"


def full_disks(count: int, folder: Path) -> Iterator[int]:
    """Numbers of bytes left for a run after which a real store has another run than with enough room."""
    template, spool = folder / "template", folder / "spool"
    embedded.ensure_store(template)
    model, expected = models.identity().write(folder), None
    for number in range(count, -1, -1):  # with enough room first
        (disk := folder / f"disk {number}").mkdir()  # MLflow keeps connections to a path
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)], check=True)
        try:
            store = copy_store(template, disk / "mlruns")
            used = os.statvfs(disk)
            size = (used.f_blocks - used.f_bfree) * used.f_frsize + (8192 * number if number < count else 1 << 25)
            words = ["convert", str(model), "--convert-to", "ort", "--experiment", "m", "--store", str(store)]
            environment = {**os.environ, "TRTOPS_SPOOL": str(spool)}
            for room, line in ((size, words), (1 << 26, ["store", "upload", "--root", str(store)])):
                subprocess.run(["mount", "-o", f"remount,size={room}", str(disk)], check=True)
                command = [sys.executable, "-m", "trtops.cli.main", *line]
                done = subprocess.run(command, env=environment, capture_output=True, text=True)
                assert done.returncode == 0, (number, line, done.stderr)
            stored = contents(MlflowTracker(store))
            expected = stored if number == count else expected
            if stored != expected:
                yield size
        finally:
            subprocess.run(["umount", "--lazy", str(disk)], check=True)


LINES = (
    "debug build m.onnx --onnxrt --until 3 --random-tactics --experiment m",
    "runs promote RUN",
    "runs audit RUN",
    "convert m.onnx --convert-to ort --experiment n",
)
MAX_WAIT = 30.0
"""Seconds that a command may wait for a store, all its calls together."""


@contextlib.contextmanager
def closing_each_connection(port: int) -> Iterator[None]:
    """A program at a port that closes each connection without an answer."""
    while True:
        try:
            listener = socket.create_server(("127.0.0.1", port))
            break
        except OSError:  # a worker of the killed server still has it
            time.sleep(0.1)
    with listener:

        def serve() -> None:
            with contextlib.suppress(OSError):  # the listener was closed
                while True:
                    listener.accept()[0].close()

        threading.Thread(target=serve, daemon=True).start()
        yield
        listener.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def without_server(server: MlflowServer, kind: str) -> Iterator[None]:
    """The time of an outage; then the server is back."""
    if kind == "stopped":
        assert server.session is not None
        os.killpg(server.session, signal.SIGSTOP)
        yield
        os.killpg(server.session, signal.SIGCONT)
        return
    server.kill()
    with closing_each_connection(server.port) if kind == "replaced" else contextlib.nullcontext():
        yield
    server.start()


def wait_for_work(pid: int, cpu_seconds: float) -> float:
    """Wait until a process and its children have used this much CPU time, or have ended; returns what they used.

    Unlike the time on the clock it does not depend on what else the machine does.
    """
    used = 0.0
    while used < cpu_seconds:
        try:
            command = psutil.Process(pid)
            times = [process.cpu_times() for process in (command, *command.children(recursive=True))]
            used = max(used, sum(spent.user + spent.system for spent in times) + times[0].children_user)
            if command.status() == psutil.STATUS_ZOMBIE:
                break
        except psutil.Error:  # a child that ended
            if not psutil.pid_exists(pid):
                break
        time.sleep(0.05)
    return used


def real_outage(number: int, line: str, base: Path, seconds: float, cpu_seconds: float) -> Iterator[str]:
    """Problems of a command that takes these seconds, and whose server goes away at a moment of them."""
    random, kind = Random(number), ("killed", "stopped", "replaced")[number % 3]
    with sigkills.copy_of(base, base.parent / f"real-{number}") as folder, sigkills.server_for(folder, True) as server:
        assert server is not None
        before = {*sigkills.in_child(sigkills.finished_runs, folder)}
        child = sigkills.start(line, folder, real=True)
        wait_for_work(child.pid, random.uniform(0.2, 0.95) * cpu_seconds)
        was_running, begin = child.exitcode is None, time.monotonic()
        with without_server(server, kind):
            ended = sigkills.join(child, 10 * seconds + 300)
            waited = time.monotonic() - begin
        printed = (folder / "output").read_text(errors="replace")
        print(f"{number} {kind}, {line}: running {was_running}, exit code {child.exitcode} {waited:.0f} s later: "
              f"{printed.splitlines()[-1:]}", flush=True)  # fmt: skip
        if not ended or waited > MAX_WAIT + seconds:
            yield f"it ended after {waited:.0f} s, and takes {seconds:.0f} s without an outage"
        if child.exitcode not in (0, 3) or "Traceback (most recent" in printed:
            yield f"it ended with {child.exitcode}: {printed[-1500:]}"
        if child.exitcode == 3 and server.address not in printed:
            yield f"the error does not name the store: {printed[-500:]}"
        if sigkills.run_to_the_end("store upload", folder) != 0 or Spool(folder / "spool").runs():
            yield f"not uploaded: {(folder / 'output').read_text()[-1500:]}"
        sigkills.in_child(sigkills.clear_up, folder)
        runs = {*sigkills.in_child(sigkills.finished_runs, folder)}
        if child.exitcode == 0 and was_running and not runs - before:
            yield "its runs are lost"
        for failures in sigkills.in_child(sigkills.check_store, folder, before).values():
            yield from failures
        yield from sigkills.in_child(sigkills.contradictions, folder)
        if (code := sigkills.run_to_the_end(line, folder)) != 0:
            yield f"run again it ends with {code}: {(folder / 'output').read_text()[-1500:]}"


def real_outages(first: int, count: int, work: Path) -> Iterator[str]:
    """Problems of commands with a real server, each with its case."""
    base, durations = work / "base", dict[str, tuple[float, float]]()
    names = sigkills.make_base(base, served=True)
    for number in range(first, first + count):
        line = LINES[number % len(LINES)].replace("RUN", names["RUN"])
        if line not in durations:
            with sigkills.copy_of(base, work / "timed") as folder, sigkills.server_for(folder, True):
                begin = time.monotonic()
                child = sigkills.start(line, folder, real=True)
                used = wait_for_work(child.pid, float("inf"))
                assert sigkills.join(child, 900) and child.exitcode == 0, (folder / "output").read_text()
                durations[line] = time.monotonic() - begin, used
                print(f"{line}: {durations[line][0]:.0f} s, {used:.1f} s of CPU time", flush=True)
        for problem in real_outage(number, line, base, *durations[line]):
            print(f"--- {number}: {problem}", flush=True)
            yield f"{number}, {line}: {problem}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--real", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the first case with a real server")
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--disks", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        lost = [*real_outages(arguments.first, arguments.real, Path(work))] if arguments.real else []
        for kind in (errors.TrackingUnavailableError, errors.NoRoomError) if arguments.moments else ():
            lost += [f"{kind.__name__} at call {moment}" for moment in failures(kind, arguments.moments, Path(work))]
            lost += failing_work(kind, arguments.moments, Path(work))
        lost += [
            f"full disk at {size} bytes"
            for size in (full_disks(arguments.disks, Path(work)) if arguments.disks else ())
        ]
    cases = 2 * arguments.moments * (1 + len(WORK)) + arguments.disks + arguments.real
    print(f"{len(lost)} of at most {cases} cases are not whole", *lost, sep="\n")
    sys.exit(bool(lost))
