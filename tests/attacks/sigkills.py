"""Commands and flows killed at random moments, the server with them: ``make test-sigkills N=1000``.

Each case is a command line in a folder of its own with a store, run in a forked child that is killed at a moment that follows
from the case's number. Afterwards ``store reap`` clears up and the same line is run to its end. Wrong are: a finished run that
is not whole, or that is there no longer (lost); an iteration that counts twice (doubled); processes, temporary files, open
runs, and files in the working folder that nobody is told of (left).
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import onnx

from tests import campaigns, models
from tests.servers import MlflowServer
from trtops.cli.main import main
from trtops.tracking.schema import Tag

COMMANDS = (
    "convert m.onnx --convert-to ort -o out.ort --experiment m",
    "convert m.onnx --convert-to ort --fp16 -o out.ort --experiment m",
    "build-list list.yaml",
    "calibrate m.onnx --load-inputs inputs.json -o out.cache --experiment m",
    "compare m.onnx m.onnx --experiment m",
    "triage m.onnx --fp16 --load-inputs inputs.json --experiment m",
    "report RUN -o out.html",
    "gate m.onnx",
    "sensitivity m.onnx --calibration-cache int8.cache --load-inputs inputs.json --experiment m",
    "run m.onnx --onnxrt --save-outputs out.json",
    "run m.onnx --onnxrt --experiment m",
    "check lint m.onnx -o out.json",
    "surgeon sanitize m.onnx --fold-constants -o out.onnx",
    "surgeon extract m.onnx --outputs n0:auto -o out.onnx",
    "surgeon insert m.onnx --op Relu --inputs scores --outputs scores -o out.onnx",
    "surgeon prune m.onnx -o out.onnx",
    "surgeon weight-strip m.onnx -o out.onnx",
    "debug build m.onnx --onnxrt --until 3 --random-tactics --experiment m",
    "debug bisect CAMPAIGN --max-builds 8",
    "debug prove CAMPAIGN --force --repeats 1",
    "debug noise CAMPAIGN --builds 2 --runs 2",
    "debug reduce m.onnx -o out.onnx --onnxrt --atol 1e-9 --experiment m",
    "debug precision m.onnx --fp16 -o out.onnx --experiment m",
    "debug accuracy m.onnx --emulate fp16 --experiment m",
    "data concat inputs.json inputs.json -o out.json",
    "template data-loader m.onnx -o out.py",
    "runs evaluate RUN --atol 1e-3",
    "runs audit RUN",
    "runs bundle RUN -o out.zip",
    "runs promote RUN",
    "store check",
)
FLOWS = (
    'flows.convert("m.onnx", experiment="m")',
    'flows.debug_build("m.onnx", until=2, experiment="m")',
    'flows.reduce("m.onnx", experiment="m")',
    'flows.promote("RUN")',
    'flows.nightly("list.yaml")',
    'flows.gate(["m.onnx"])',
    'flows.triage("m.onnx", experiment="m")',
    'flows.calibrate("m.onnx", data="inputs.json", experiment="m")',
    'flows.precision("m.onnx", experiment="m")',
    'flows.bisect("CAMPAIGN")',
)
TOLD_OF = ("trtops_debug",)
"""What a killed search leaves in the working folder on purpose, and says so: answers by which it is resumed."""

ORT_FILE = ".ses"
"""ONNX Runtime keeps its own there."""

_TURNS = 3  # of each command for one of each flow

fork = multiprocessing.get_context("fork")


def run_line(line: str, place: Path) -> int:
    """Run a line in this process, as if it had been started for it."""
    os.chdir(place / "work")
    os.environ.update(TRTOPS_HOME=str(place / "mlruns"), TMPDIR=str(place / "tmp"), TRTOPS_SPOOL=str(place / "spool"))
    if (place / "server").exists():
        os.environ["MLFLOW_TRACKING_URI"] = (place / "server").read_text()
    tempfile.tempdir = str(place / "tmp")
    if not line.startswith("flows."):
        sys.argv = ["trtops", *line.split()]
        return main()
    from trtops import errors, flows

    try:
        result = eval(line, {"flows": flows})
    except errors.TrtopsError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 3
    return 0 if result.verdict == "good" else 1


def named(line: str, runs: dict[str, str]) -> str:
    """A line with the ids of its place's runs."""
    for name, run in runs.items():
        line = line.replace(name, run)
    return line


def started(line: str, place: Path) -> Any:
    """A child that runs a line, in a session of its own."""

    def work() -> None:
        os.setsid()
        for stream in (1, 2):
            os.dup2(os.open(place / "said", os.O_CREAT | os.O_APPEND | os.O_WRONLY), stream)
        code = 99
        try:
            code = run_line(line, place)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    child = fork.Process(target=work)
    child.start()
    return child


def to_its_end(line: str, place: Path) -> int:
    child = started(line, place)
    child.join(900)
    if child.exitcode is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.join()
    return int(child.exitcode)


def make_bases(work: Path, *, served: bool) -> tuple[Path, dict[str, str]]:
    """A folder with a model, inputs and a store with a good build and a campaign; and their runs, as lines name them.

    What a server is to serve is made over a server, which keeps artifacts where it finds them wherever its folder is.
    """
    place = work / ("served" if served else "bases")
    for name in ("work", "tmp", "spool"):
        (place / name).mkdir(parents=True)
    models.conv_net().write(place / "work").rename(place / "work" / "m.onnx")
    (place / "work" / "list.yaml").write_text("models:\n  - model: m.onnx\n")
    with server_for(place, served):
        for line in (
            "run m.onnx --onnxrt --iterations 3 --save-inputs inputs.json --save-outputs outputs.json",
            "calibrate m.onnx --load-inputs inputs.json -o int8.cache",
            "convert m.onnx --convert-to ort -o x.ort --experiment m",
        ):
            assert to_its_end(line, place) == 0, (place / "said").read_text()
        (place / "work" / "x.ort").unlink()
        [run] = in_child(finished_runs, place)
        names = {"RUN": run, "CAMPAIGN": in_child(campaign_of_good_and_bad, place)}
        in_child(clear_up, place)
    (place / "said").unlink()
    (place / "server").unlink(missing_ok=True)
    return place, names


def campaign_of_good_and_bad(place: Path) -> str:
    """A campaign with good and bad builds, of a model of its own."""
    model, data = campaigns.two_blocks(place / "work")
    config = campaigns.config(data, until=8, bisect=False)
    from trtops.ops.campaign.debug_build import debug_build
    from trtops.tracking.store import default_tracker

    result = debug_build(model, config, tracker=default_tracker(), experiment="campaign")
    assert result.good and result.bad
    return result.run_id


def in_child(function: Any, place: Path, *args: Any) -> Any:
    """What a function finds out in a forked child, which has the place's store."""
    ours, theirs = fork.Pipe(duplex=False)

    def work() -> None:
        try:
            os.environ.update(
                TRTOPS_HOME=str(place / "mlruns"), TMPDIR=str(place / "tmp"), TRTOPS_SPOOL=str(place / "spool")
            )
            tempfile.tempdir = str(place / "tmp")
            if (place / "server").exists():
                os.environ["MLFLOW_TRACKING_URI"] = (place / "server").read_text()
            theirs.send((function(place, *args), None))
        except BaseException:
            theirs.send((None, traceback.format_exc()))
        finally:
            os._exit(0)

    child = fork.Process(target=work)
    child.start()
    theirs.close()
    found, error = ours.recv()
    child.join()
    if error:
        raise AssertionError(error)
    return found


def finished_runs(place: Path) -> list[str]:
    from trtops.tracking.store import default_tracker

    return [info.id for info in default_tracker().find(status="finished")]


def clear_up(place: Path) -> None:
    from trtops.tracking.check import reap, remove_leftovers
    from trtops.tracking.store import default_tracker

    tracker = default_tracker()
    reap(tracker)
    remove_leftovers(tracker)
    tracker.upload_spool()


def evaluated(place: Path, before: list[str]) -> dict[str, list[str]]:
    """What is wrong with the store: runs that are lost, doubled or still open."""
    from trtops import errors
    from trtops.tracking.store import default_tracker

    tracker = default_tracker()
    wrong: dict[str, list[str]] = {"lost": [], "doubled": [], "left": []}
    infos = tracker.find()
    wrong["lost"] += [f"run {run} is gone" for run in set(before) - {info.id for info in infos}]
    iterations = collections.Counter(
        (info.tags.get("mlflow.parentRunId"), info.tags[Tag.ITERATION])
        for info in infos
        if Tag.ITERATION in info.tags and info.status == "finished"
    )
    wrong["doubled"] += [f"iteration {key} {times} times" for key, times in iterations.items() if times > 1]
    for info in infos:
        if info.status == "running":
            wrong["left"].append(f"run {info.id} ({info.tags.get(Tag.KIND)}) is open")
        elif info.status == "finished":
            try:
                stored = tracker.load(info.id)
                for entry in stored.manifest.artifacts:
                    stored.read_bytes(entry.path)
            except errors.TrtopsError as exc:
                wrong["lost"].append(str(exc))
    return wrong


def processes_of(place: Path, session: int, server: int | None) -> list[str]:
    """Processes that a line has left: of its session, or with its store in their environment; not those of its server."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            mine = int(fields[3]) == session or str(place).encode() in (entry / "environ").read_bytes()
            if mine and int(fields[3]) != server and fields[0] != "Z" and int(entry.name) != os.getpid():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:120] or entry.name)
    return found


def gone_in_time(place: Path, session: int, server: int | None) -> list[str]:
    """Processes that are still there after a while; the watch of a flow's server needs some seconds."""
    until = time.monotonic() + 40
    while (found := processes_of(place, session, server)) and time.monotonic() < until:
        time.sleep(0.2)
    return found


def stray_files(place: Path, known: set[str]) -> list[str]:
    """Files in the working folder that no line writes, and outputs that are cut off."""
    wrong = []
    for path in (place / "work").iterdir():
        if (
            path.name not in known
            and not path.name.startswith("out.")
            and not any(part in path.name for part in TOLD_OF)
        ):
            wrong.append(f"file {path.name}")
        if path.name == "out.onnx":
            try:
                onnx.load(path)
            except Exception as exc:
                wrong.append(f"out.onnx is cut off: {exc}")
    return wrong


@contextlib.contextmanager
def server_for(place: Path, wanted: bool) -> Iterator[MlflowServer | None]:
    """A real server over the place's store."""
    if not wanted:
        yield None
        return
    with MlflowServer(place / "mlruns") as server:
        (place / "server").write_text(server.address)
        yield server


def try_case(
    number: int, line: str, bases: Path, seconds: float, known: set[str], with_server: bool, only: str | None
) -> dict[str, list[str]]:
    """Kill a line at a moment, run it again, and say what is wrong."""
    random = Random(number)
    place = bases.parent / f"case-{number}"
    shutil.copytree(bases, place)
    in_child(_relocate, place)
    try:
        with server_for(place, with_server) as server:
            before = in_child(finished_runs, place)
            kill = random.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGHUP))
            kill = kill if only is None else signal.Signals[only]
            child = started(line, place)
            child.join(random.uniform(0, 1.1 * seconds))
            if server is not None and random.random() < 0.7:
                server.kill()
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, kill)
            child.join(120)
            hung = child.exitcode is None
            if hung:
                os.killpg(child.pid, signal.SIGKILL)
            wrong: dict[str, list[str]] = {
                "lost": [],
                "doubled": [],
                "left": [f"{kill.name} did not end it"] if hung else [],
            }
            wrong["left"] += [
                f"process {each}" for each in gone_in_time(place, child.pid, server.session if server else None)
            ]
            if server is not None and not server.is_up:
                server.start()
            in_child(clear_up, place)
            wrong["left"] += stray_files(place, known)
            wrong["left"] += [f"temporary {path.name}" for path in (place / "tmp").iterdir() if path.name != ORT_FILE]
            code = to_its_end(line, place)
            said = (place / "said").read_text(errors="replace")[-1500:]
            # What was written before the kill is not overwritten by some.
            if code not in (0, 1) and "exists already" not in said:
                wrong["lost"].append(f"run again it ends with {code}:\n{said}")
            in_child(clear_up, place)
            for kind, found in in_child(evaluated, place, before).items():
                wrong[kind] += found
            return wrong
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _relocate(place: Path) -> None:
    from tests.stores import set_root

    set_root(place / "mlruns")


def run_all(
    numbers: range, seconds: float, lines: list[str], servers: float, work: Path, only: str | None = None
) -> int:
    """Kill as many lines as there is time for, by ``only`` one signal if it is given; prints a table by line.

    Returns how often something was wrong.
    """
    import mlflow.store.tracking.sqlalchemy_store  # noqa: F401 - so that children need not import it
    import onnxruntime  # noqa: F401

    places = [make_bases(work, served=served) for served in (False, True)]
    known = {path.name for path in (places[0][0] / "work").iterdir()}
    # A flow starts Prefect's server, and takes ten times as long as a command.
    turns = [line for line in lines if not line.startswith("flows.")] * _TURNS
    turns += [line for line in lines if line.startswith("flows.")]
    Random(0).shuffle(turns)
    took: dict[str, float] = {}
    table: dict[str, collections.Counter[str]] = {line: collections.Counter() for line in lines}
    until = time.monotonic() + seconds
    for number in numbers:
        if time.monotonic() > until:
            break
        line = turns[number % len(turns)]
        with_server = Random(number + 1).random() < servers
        bases, runs = places[with_server]
        words = named(line, runs)
        if line not in took:
            place = work / "timed"
            own, its_runs = places[0]
            shutil.copytree(own, place)
            in_child(_relocate, place)
            begin = time.monotonic()
            code = to_its_end(named(line, its_runs), place)
            took[line] = time.monotonic() - begin
            print(f"{line}: {took[line]:.1f} s, exit code {code}", flush=True)
            shutil.rmtree(place, ignore_errors=True)
        wrong = try_case(number, words, bases, took[line], known, with_server, only)
        table[line]["kills"] += 1
        for kind, found in wrong.items():
            table[line][kind] += bool(found)
            for each in found:
                print(f"--- case {number}, {line}: {kind}: {each}", flush=True)
    print(f"{'kills':>6}{'lost':>6}{'doubled':>9}{'left':>6}  line")
    for line, counts in table.items():
        print(f"{counts['kills']:6}{counts['lost']:6}{counts['doubled']:9}{counts['left']:6}  {line}")
    total = sum(table.values(), collections.Counter())
    print(f"{total['kills']:6}{total['lost']:6}{total['doubled']:9}{total['left']:6}  all")
    return total["lost"] + total["doubled"] + total["left"]


def main_of_sigkills() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--first", type=int, default=0, help="the first case's number")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so many seconds")
    parser.add_argument(
        "--servers", type=float, default=0.1, help="share of cases with a server, which is killed as well"
    )
    parser.add_argument("--only", default="", help="lines with this in them")
    parser.add_argument(
        "--signal",
        choices=("SIGKILL", "SIGTERM", "SIGHUP"),
        help="this one always, and not SIGKILL in half of the cases and each of the others in a quarter",
    )
    parser.add_argument(
        "--no-flows", action="store_true", help="leave out flows, each of which starts a Prefect server"
    )
    given = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="sigkills-"))
    os.environ.update(HOME=str(work), PREFECT_HOME=str(work / "prefect"), TRTOPS_TRACKING_WAIT="0", OMP_NUM_THREADS="1")
    lines = [line for line in (*COMMANDS, *(() if given.no_flows else FLOWS)) if given.only in line]
    try:
        numbers = range(given.first, given.first + given.kills)
        return min(1, run_all(numbers, given.seconds, lines, given.servers, work, given.signal))
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main_of_sigkills())
