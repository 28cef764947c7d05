"""Commands and flows killed or interrupted at random moments: ``python -m tests.attacks.sigkills --kills 1000``.

Each case is a command line in a folder of its own with a store, run in a forked child that is killed at a moment that
follows from the case's number. Every fifth command, and each with a Ctrl-C (``--signals SIGINT``), is a process of its
own, as users start it; the Ctrl-C must end it with exit code 130 and without a traceback. Then ``store reap`` clears
up, the store is audited, and the line is run to its end; an interrupted campaign or choice is resumed. Failures are: a
finished run that is damaged, contradicted or gone (lost); an iteration that counts twice (doubled); processes,
temporary files, open runs, outputs that are cut short, and unannounced files in the working folder (left).
"""

import argparse
import collections
import contextlib
import importlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import onnx
import psutil

from tests import campaigns, models
from tests.keys import new_key
from tests.servers import MlflowServer
from tests.stores import set_root
from trtops import errors, tables
from trtops.cli.main import main
from trtops.ops.auditing.op import AuditConfig, audit
from trtops.ops.campaign.debug_build import debug_build
from trtops.system import signing
from trtops.tracking.check import reap, remove_leftovers
from trtops.tracking.schema import Tag
from trtops.tracking.store import default_tracker

COMMANDS = (
    "convert m.onnx --convert-to ort --fp16 -o out.ort --experiment m",
    "evaluate x.ort --model m.onnx --load-inputs inputs.json --experiment m",
    "choose m.onnx --minutes 0.1 --load-inputs inputs.json --experiment m",
    "export RUN --triton out.triton",
    "certificate write RUN -o out.certificate",
    "runs prune --older-than 0 --apply",
    "build-list list.yaml",
    "calibrate m.onnx --load-inputs inputs.json -o out.cache --experiment m",
    "compare m.onnx m.onnx --experiment m",
    "triage m.onnx --fp16 --load-inputs inputs.json --experiment m",
    "report RUN -o out.html",
    "gate m.onnx",
    "sensitivity m.onnx --calibration-cache int8.cache --load-inputs inputs.json --experiment m",
    "run m.onnx --onnxrt --experiment m",
    "check lint m.onnx -o out.json",
    "surgeon sanitize m.onnx --fold-constants -o out.onnx",
    "debug build m.onnx --onnxrt --until 3 --random-tactics --experiment m",
    "debug bisect CAMPAIGN --max-builds 8",
    "debug prove CAMPAIGN --repeats 1",
    "debug reduce m.onnx -o out.onnx --onnxrt --atol 1e-9 --experiment m",
    "debug precision m.onnx --fp16 -o out.onnx --experiment m",
    "data concat inputs.json inputs.json -o out.json",
    "runs evaluate RUN --atol 1e-3",
    "runs audit RUN",
    "runs bundle RUN -o out.zip",
    "runs promote RUN",
    "store check",
)
FLOWS = (
    'flows.convert("m.onnx", experiment="m")',
    'flows.debug_build("m.onnx", until=2, experiment="m")',
    'flows.promote("RUN")',
    'flows.nightly("list.yaml")',
    'flows.gate(["m.onnx"])',
    'flows.triage("m.onnx", experiment="m")',
    'flows.bisect("CAMPAIGN")',
)
RESUMABLE = "trtops_debug"
"""Part of the names of what a killed search keeps in the working folder, to be resumed."""

IMPORT_SECONDS = 3.0
"""That a process of its own takes to import libraries."""

SERVED = 0.1
"""Share of cases with a server, which may be killed as well."""

# Imported before the forks, since each would take three seconds for it.
for library in ("onnxruntime", "pandas", "alembic.migration", "mlflow.store.model_registry.sqlalchemy_store"):
    importlib.import_module(library)

fork = multiprocessing.get_context("fork")
Failures = dict[str, list[str]]


def enter(folder: Path) -> None:
    """Use the store and the temporary folder of a case in this process."""
    os.environ.update(
        TRTOPS_HOME=str(folder / "mlruns"), TMPDIR=str(folder / "tmp"), TRTOPS_SPOOL=str(folder / "spool")
    )
    os.environ[signing.KEY_VARIABLE] = str(folder / "work" / "key.pem")
    tempfile.tempdir = str(folder / "tmp")
    if (folder / "server").exists():
        os.environ["MLFLOW_TRACKING_URI"] = (folder / "server").read_text()


def start(line: str, folder: Path, *, real: bool = False) -> Any:
    """Start a child that runs a line, in a session of its own, with its output in ``output``.

    A ``real`` command is a new process with its own supervisor.
    """

    def work() -> None:
        os.setsid()
        for stream in (1, 2):
            os.dup2(os.open(folder / "output", os.O_CREAT | os.O_APPEND | os.O_WRONLY), stream)
        enter(folder)
        os.chdir(folder / "work")
        code = 99
        try:
            if line.startswith("flows."):
                from trtops import flows

                code = int(eval(line, {"flows": flows}).verdict != "good")
            elif not real:
                code = main(line.split())
            else:
                os.execv(sys.executable, [sys.executable, "-m", "trtops", *line.split()])
        except errors.TrtopsError as exc:
            print(f"error: {exc}", file=sys.stderr)
            code = 3
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    child = fork.Process(target=work)
    child.start()
    return child


def join(child: Any, seconds: float) -> bool:
    """Wait for a child, and kill its session after this time. True if it ended by itself."""
    child.join(seconds)
    if child.exitcode is not None:
        return True
    os.killpg(child.pid, signal.SIGKILL)
    child.join()
    return False


def run_to_the_end(line: str, folder: Path) -> int:
    child = start(line, folder)
    join(child, 900)
    return int(child.exitcode)


def in_child(function: Callable[..., Any], folder: Path, *args: Any) -> Any:
    """Return the result of a function that uses the store of a case, called in a forked child."""
    with ProcessPoolExecutor(1, mp_context=fork, initializer=enter, initargs=(folder,)) as pool:
        return pool.submit(function, folder, *args).result()


def make_base(folder: Path, *, served: bool) -> dict[str, str]:
    """Make a folder with a model, inputs, and a store with a good build and a campaign; returns ids by placeholder.

    A base for servers is made over a server, whose artifact addresses do not depend on its folder.
    """
    for name in ("work", "tmp", "spool"):
        (folder / name).mkdir(parents=True)
    models.conv_net().fixed().write(folder / "work").rename(folder / "work" / "m.onnx")
    (folder / "work" / "list.yaml").write_text("models:\n  - model: m.onnx\n")
    new_key(folder / "work" / "key.pem", folder / "work" / "key.pub")
    with server_for(folder, served):
        for line in (
            "run m.onnx --onnxrt --iterations 3 --save-inputs inputs.json --save-outputs outputs.json",
            "calibrate m.onnx --load-inputs inputs.json -o int8.cache",
            "convert m.onnx --convert-to ort -o x.ort --experiment m",
        ):
            assert run_to_the_end(line, folder) == 0, (folder / "output").read_text()
        [run] = in_child(finished_runs, folder)
        names = {"RUN": run, "CAMPAIGN": in_child(make_campaign, folder)}
        in_child(clear_up, folder)
    (folder / "output").unlink()
    (folder / "server").unlink(missing_ok=True)
    return names


def make_campaign(folder: Path) -> str:
    """Run a campaign with good and bad builds, of a model of its own."""
    model, data = campaigns.two_blocks(folder / "work")
    config = campaigns.config(data, until=8, bisect=False)
    return debug_build(model, config, tracker=default_tracker(), experiment="campaign").run_id


def finished_runs(folder: Path) -> list[str]:
    return [info.id for info in default_tracker().find(status="finished")]


def clear_up(folder: Path) -> None:
    tracker = default_tracker()
    reap(tracker)
    remove_leftovers(tracker)
    tracker.upload_spool()


def contradictions(folder: Path) -> list[str]:
    """Contradictions that an audit of the whole store reports."""
    config, tracker = AuditConfig(sample=1000, rebuild=False), default_tracker()
    result = audit(config, tracker=tracker)
    lines = [contradiction.text() for contradiction in result.log.contradictions]
    for run in result.runs:
        lines += [f"run {run.id} ({run.kind}): {contradiction.text()}" for contradiction in run.contradictions]
    return lines


def resumed(folder: Path, line: str, before: set[str]) -> str:
    """The line that resumes a campaign or a choice which was interrupted, or the same line again."""
    for info in default_tracker().find(status="killed"):
        if info.id not in before and line.startswith("debug build") and info.kind == "debug_build":
            return f"debug build --resume {info.id}"
        if info.id not in before and line.startswith("choose") and info.kind == "choose":
            return f"{line} --resume {info.id}"
    return line


def check_store(folder: Path, before: list[str]) -> Failures:
    """Runs that are lost, doubled or still open."""
    tracker = default_tracker()
    infos = tracker.find()
    lost = [f"run {run} is gone" for run in set(before) - {info.id for info in infos}]
    left = [f"run {info.id} ({info.tags.get(Tag.KIND)}) is open" for info in infos if info.status == "running"]
    finished = [info for info in infos if info.status == "finished"]
    iterations = collections.Counter(
        (info.tags.get("mlflow.parentRunId"), info.tags[Tag.ITERATION])
        for info in finished
        if Tag.ITERATION in info.tags
    )
    doubled = [f"iteration {key} {times} times" for key, times in iterations.items() if times > 1]
    for info in finished:
        try:
            stored = tracker.load(info.id)
            for entry in stored.manifest.artifacts:
                stored.read_bytes(entry.path)
        except errors.TrtopsError as exc:
            lost.append(str(exc))
    return {"lost": lost, "doubled": doubled, "left": left}


def left_processes(folder: Path, session: int, server: int | None) -> list[str]:
    """Processes of a line's session, or with its store in their environment, except those of its server.

    Waits for them: the server of a flow needs some seconds to end.
    """
    leftovers: list[str] = []
    for _ in range(200):
        leftovers.clear()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                group = os.getsid(process.pid)
                mine = group == session or any(str(folder) in text for text in process.environ().values())
                if mine and group != server and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                    leftovers.append(f"process {' '.join(process.cmdline())[:120] or process.pid}")
        if not leftovers:
            break
        time.sleep(0.2)
    return leftovers


def outputs(folder: Path) -> dict[str, list[str]]:
    """Names of the outputs of a line, and of the files in those that are folders."""
    names = {}
    for path in (folder / "work").glob("out.*"):
        names[path.name] = sorted(str(file.relative_to(path)) for file in path.rglob("*"))
    return names


def left_files(folder: Path, initial_files: set[str], expected: dict[str, list[str]]) -> list[str]:
    """Files in the working folder that no line writes, outputs that are cut short, and temporary files.

    ``expected`` are the outputs of the line that was not killed.
    """
    leftovers = [f"temporary {path.name}" for path in (folder / "tmp").iterdir()]
    for path in (folder / "work").iterdir():
        if path.name not in {*initial_files, *expected} and RESUMABLE not in path.name:
            leftovers.append(f"file {path.name}")
        if path.name == "out.onnx" or path.suffix in (".json", ".zip"):
            read = {".onnx": onnx.load, ".json": lambda file: json.loads(file.read_text()), ".zip": zipfile.ZipFile}
            try:
                read[path.suffix](path)
            except Exception as exc:
                leftovers.append(f"{path.name} is cut short: {exc}")
    for name, files in outputs(folder).items():
        if name in expected and files != expected[name]:
            leftovers.append(f"{name} has not all of its files: {files}")
    return leftovers


@contextlib.contextmanager
def server_for(folder: Path, served: bool) -> Iterator[MlflowServer | None]:
    """A real server over the store of a case."""
    with MlflowServer(folder / "mlruns") if served else contextlib.nullcontext() as server:
        if server is not None:
            (folder / "server").write_text(server.address)
        yield server


@contextlib.contextmanager
def copy_of(base: Path, folder: Path) -> Iterator[Path]:
    """A copy of a base, removed afterwards."""
    shutil.copytree(base, folder)
    set_root(folder / "mlruns")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def try_case(
    number: int,
    line: str,
    base: Path,
    seconds: float,
    initial_files: set[str],
    expected_outputs: dict[str, list[str]],
    with_server: bool,
    signals: list[signal.Signals],
) -> Failures:
    """Kill a line at a moment of the seconds that it takes, run it again, and return what is wrong."""
    random = Random(number)
    with copy_of(base, base.parent / f"case-{number}") as folder, server_for(folder, with_server) as server:
        before = in_child(finished_runs, folder)
        kill = random.choice(signals)
        real = kill is signal.SIGINT or number % 5 == 0
        child = start(line, folder, real=real)
        child.join(random.uniform(0, 1.1 * seconds + IMPORT_SECONDS * real))
        if server is not None and random.random() < 0.7:
            server.kill()
        was_running = child.exitcode is None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, kill) if kill is signal.SIGINT else os.kill(child.pid, kill)
        left = [] if join(child, 120) else [f"{kill.name} did not end it"]
        printed = (folder / "output").read_text(errors="replace") if (folder / "output").exists() else ""
        if "Traceback (most recent" in printed:
            left.append(f"a traceback: {printed[-1500:]}")
        # A command that has its verdict already may still report it; Python itself may not have its handlers yet.
        if kill is signal.SIGINT and was_running and child.exitcode not in (130, 0, 1, -signal.SIGINT):
            left.append(f"Ctrl-C ended it with {child.exitcode}: {printed[-500:]}")
        left += left_processes(folder, child.pid, server.session if server else None)
        if server is not None and not server.is_up:
            server.start()
        in_child(clear_up, folder)
        left += left_files(folder, initial_files, expected_outputs)
        # An interrupted retention is contradicted until it is repeated.
        contradicted = [] if line.startswith("runs prune") else in_child(contradictions, folder)
        again = in_child(resumed, folder, line, {*before})
        code = run_to_the_end(again, folder)
        output = (folder / "output").read_text(errors="replace")[-1500:]
        # Some commands refuse to overwrite what was written before the kill.
        lost = [] if code in (0, 1) or "exists" in output else [f"run again it ends with {code}:\n{output}"]
        if any(line.startswith(verb) for verb in ("runs p", "gate")):
            contradicted += in_child(contradictions, folder)
        lost += [f"contradicted: {contradiction}" for contradiction in contradicted]
        in_child(clear_up, folder)
        store_failures: Failures = in_child(check_store, folder, before)
        return {
            "lost": lost + store_failures["lost"],
            "doubled": store_failures["doubled"],
            "left": left + store_failures["left"],
        }


def run_all(numbers: range, lines: list[str], work: Path, signals: list[signal.Signals]) -> int:
    """Kill lines in turn; prints a table by line, and returns the number of failures."""
    with_server = [Random(number + 1).random() < SERVED for number in numbers]
    bases = {served: work / ("served" if served else "plain") for served in (False, *{*with_server} - {False})}
    runs = {served: make_base(base, served=served) for served, base in bases.items()}
    initial_files = {path.name for path in (bases[False] / "work").iterdir()}
    # A flow starts Prefect's server and takes ten times as long as a command: commands have three turns for one.
    turns = [line for line in lines for _ in range(1 if line.startswith("flows.") else 3)]
    Random(0).shuffle(turns)
    seconds: dict[str, float] = {}
    expected_outputs: dict[str, dict[str, list[str]]] = {}
    table: dict[str, collections.Counter[str]] = {line: collections.Counter() for line in lines}

    def named(line: str, served: bool) -> str:
        for name, run in runs[served].items():
            line = line.replace(name, run)
        return line

    for number in numbers:
        line = turns[number % len(turns)]
        served = with_server[number - numbers.start]
        if line not in seconds:
            with copy_of(bases[False], work / "timed") as folder:
                begin = time.monotonic()
                code = run_to_the_end(named(line, False), folder)
                seconds[line] = time.monotonic() - begin
                expected_outputs[line] = outputs(folder)
            print(f"{line}: {seconds[line]:.1f} s, exit code {code}", flush=True)
        arguments = seconds[line], initial_files, expected_outputs[line], served, signals
        wrong = try_case(number, named(line, served), bases[served], *arguments)
        table[line]["kills"] += 1
        if sum(row["kills"] for row in table.values()) % 10 == 0:
            print(f"{number + 1 - numbers.start} cases", flush=True)
        for kind, failures in wrong.items():
            table[line][kind] += bool(failures)
            for failure in failures:
                print(f"--- case {number}, {line}: {kind}: {failure}", flush=True)
    total = sum(table.values(), collections.Counter())
    columns = ("kills", "lost", "doubled", "left")
    rows = [(*(str(failures[name]) for name in columns), line) for line, failures in (table | {"all": total}).items()]
    print(tables.table((*columns, "line"), rows))
    return total["lost"] + total["doubled"] + total["left"]


def main_of_sigkills() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--first", type=int, default=0, help="the first case's number")
    parser.add_argument("--only", nargs="+", default=[""], help="lines with one of these in them")
    parser.add_argument("--signals", nargs="+", default=["SIGKILL", "SIGKILL", "SIGTERM", "SIGHUP"])
    arguments = parser.parse_args()
    lines = [line for line in (*COMMANDS, *FLOWS) if any(text in line for text in arguments.only)]
    signals = [signal.Signals[name] for name in arguments.signals]
    with tempfile.TemporaryDirectory(prefix="sigkills-", ignore_cleanup_errors=True) as work:
        os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = "120"  # of a loaded machine
        os.environ.update(HOME=work, PREFECT_HOME=f"{work}/prefect", TRTOPS_TRACKING_WAIT="0", OMP_NUM_THREADS="1")
        return min(1, run_all(range(arguments.first, arguments.first + arguments.kills), lines, Path(work), signals))


if __name__ == "__main__":
    sys.exit(main_of_sigkills())
