"""Crafted models, damaged files and damaged stores through all commands: ``python -m tests.attacks.fuzz --cases 5000``.

Each case is a file that follows from its number and some commands on it, with a time limit of 10 s. One process imports
all libraries and forks for each command; every command with a number that ``--real`` divides is a process of its own,
as users start it. Nothing runs in a process that forks, since a session's threads do not survive a fork. Failures are:
a dead command, a foreign exception, a command that reports a mistake of its own, more than 60 s of CPU time, more than
2 GiB of memory, files left in the temporary folder, an input that is not as it was, and a model that lint passes and
ONNX Runtime does not load, or the reverse. The kind ``lines`` is wrong command lines: they must end with exit code 2
and leave nothing.
"""

import argparse
import collections
import contextlib
import faulthandler
import hashlib
import importlib
import io
import json
import logging
import os
import resource
import shutil
import signal
import sqlite3
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np

from tests import models
from tests.attacks.damage import WORDS, crafted_model, damaged
from tests.keys import new_key
from tests.stores import execute, set_root
from trtops import errors
from trtops.backend.onnx import with_onnxruntime
from trtops.cli import registry
from trtops.cli.command_line import load
from trtops.cli.flags import flags_of
from trtops.cli.main import main
from trtops.cli.supervised import supervise
from trtops.tracking.mlflow import embedded

CPU_SECONDS = 60  # of one command
WALL_SECONDS = 300  # of one command
MEMORY_KIB = 2 << 20
PRELOADED = (
    "onnx.inliner", "pandas", "sklearn", "mlflow", "trtops.tracking.mlflow", "trtops.ops.gate.op",
    "trtops.ops.engines.build_list", "trtops.ops.campaign.debug_build", "trtops.ops.search.precision",
    "trtops.ops.comparing.run",
)  # fmt: skip

ON_MODELS = (
    "check lint m.onnx -o report.json",
    "inspect model m.onnx --show layers attrs weights",
    "inspect model m.onnx --shape-inference",
    "inspect capability m.onnx --onnxrt",
    "surgeon sanitize m.onnx --fold-constants --cleanup --toposort -o out.onnx",
    "surgeon sanitize m.onnx --override-input-shapes x:[2,3] -o out.onnx",
    "surgeon extract m.onnx --inputs x:auto:auto --outputs y:auto -o out.onnx",
    "surgeon insert m.onnx --op Neg --inputs x --outputs x -o out.onnx",
    "surgeon prune m.onnx -o out.onnx",
    "surgeon prune m.onnx --remove-node-types Relu Concat -o out.onnx",
    "surgeon weight-strip m.onnx -o out.onnx",
    "surgeon weight-reconstruct m.onnx -o out.onnx",
    "convert m.onnx --fp-to-fp16 -o out.onnx",
    "convert m.onnx --convert-to ort --fp16 -o out.ort",
    "run m.onnx --onnxrt --save-outputs out.json --onnx-outputs mark all",
    "run m.onnx --onnxrt --int8 --onnx-flags native_instancenorm",
    "calibrate m.onnx --load-inputs inputs.json -o out.cache",
    "debug accuracy m.onnx --emulate fp16",
    "debug precision m.onnx --fp16 -o out.onnx",
    "debug reduce m.onnx -o out.onnx --onnxrt",
    "debug build m.onnx --onnxrt --until 1",
    "compare m.onnx good.onnx",
    "template onnx-gs m.onnx -o out.py",
    "template trt-config m.onnx -o out.py",
    "plugin list m.onnx --plugin-dir plugins",
    "plugin match m.onnx --plugin-dir plugins -o out.yaml",
    "build-list list.yaml",
    "gate m.onnx --no-register",
    "evaluate m.onnx --model good.onnx",
    "evaluate good.onnx --model m.onnx --metric classification --labels labels.npy",
    "choose m.onnx --minutes 0.1 --loss 1%",
    "sensitivity m.onnx --samples 2",
    "triage m.onnx --onnxrt --minutes 0.1",
)
"""Commands over a crafted model. What needs a store has one of its own."""

RUN, CONVERT = "run good.onnx --onnxrt", "convert good.onnx --convert-to ort -o out.ort"
ON_FILES = {
    "inputs.json": ("inspect data F --show-values", f"{RUN} --load-inputs F", "data concat F F -o out.json"),
    "inputs.npz": ("inspect data F --histogram", f"{RUN} --load-inputs F", "calibrate good.onnx --load-inputs F"),
    "outputs.json": ("inspect data F --all", "compare F outputs0.json", f"{RUN} --load-outputs F"),
    "accuracy.json": ("check accuracy F --atol 1e-3", "check accuracy F"),
    "replay.json": (
        "inspect tactics F",
        f"{CONVERT} --load-tactics F",
        "inspect diff-tactics --good F --bad replay0.json",
    ),
    "timing.cache": (f"{CONVERT} --load-timing-cache F",),
    "int8.cache": ("inspect calibration F", f"{CONVERT} --int8 --calibration-cache F"),
    "good.ort": ("inspect model F", "run F --onnxrt", "compare F good.onnx"),
    "list.yaml": ("build-list F --check",),
    "policy.yaml": ("gate good.onnx --policy F --no-register",),
    "places.yaml": ("plugin replace good.onnx --plugin-dir plugins --config F -o out.onnx",),
    "report.json": ("inspect data F", "check accuracy F"),
    "labels.npy": ("evaluate good.onnx --model good.onnx --load-inputs inputs.npz --metric classification --labels F",),
    "certificate/facts.json": ("certificate verify certificate --key key.pub",),
    "certificate/certificate.sig": ("certificate verify certificate --key key.pub",),
}
"""Commands over each kind of damaged file ``F``; a name with a 0 at its end is the undamaged file."""

ON_STORE = (
    "runs list",
    "runs show RUN",
    "runs compare RUN RUN",
    "runs evaluate RUN --atol 1",
    "runs audit RUN",
    "runs promote RUN",
    "runs resolve good.onnx",
    "runs prune --older-than 0",
    "runs pardon RUN --why x",
    "runs deny RUN",
    "runs close RUN",
    "inspect run RUN --json",
    "inspect calibration run:RUN",
    "compare run:RUN good.onnx",
    "debug build --resume RUN",
    "debug prove RUN",
    "debug bisect RUN",
    "inspect diff-tactics --runs RUN",
    "store check",
    "store reap",
    "store upload",
    "convert good.onnx --convert-to ort -o out.ort --experiment good",
    "runs board",
    "runs bundle RUN -o out.zip",
    "report RUN -o out.html",
    "export RUN --triton out",
    "certificate write RUN -o out",
    "choose good.onnx --resume RUN",
)
"""Commands over a damaged store."""


def make_bases(folder: Path, kinds: list[str]) -> list[str]:
    """Write good files of every kind, and a store with a build and a campaign; returns the ids of its runs.

    Crafted models need only a good one, and inputs.
    """
    os.chdir(folder)
    models.conv_net().fixed().write(folder).rename("good.onnx")
    Path("plugins").mkdir()
    Path("list.yaml").write_text("models:\n  - model: m.onnx\n")
    Path("policy.yaml").write_text("max_slowdown: 1.1\n")
    Path("places.yaml").write_text("[]\n")
    shutil.copy("good.onnx", "m.onnx")
    np.save("labels.npy", np.zeros(1, np.int64))
    new_key(Path("key.pem"), Path("key.pub"))
    os.environ["TRTOPS_SIGNING_KEY"] = str(folder / "key.pem")
    os.environ["TRTOPS_HOME"] = str(folder / "mlruns")
    save_options = "--save-tactics replay.json --save-timing-cache timing.cache"
    lines = (
        "run good.onnx --onnxrt --iterations 3 --save-inputs inputs.json --save-outputs outputs.json",
        "run good.onnx --onnxrt --onnxrt --save-accuracy-results accuracy.json",
        f"convert good.onnx --convert-to ort -o good.ort --experiment good {save_options}",
        "calibrate good.onnx --load-inputs inputs.json -o int8.cache --experiment good",
        "debug build good.onnx --onnxrt --until 2 --experiment good",
        "check lint good.onnx -o report.json",
    )
    for line in lines if {*kinds} - {"models", "lines"} else lines[:1]:
        ending = run_child(lambda line=line: main([*line.split(), "-q"]), Path("log"))
        print(f"{ending.code} {line}", flush=True)
    if not {*kinds} - {"models", "lines"}:
        run_child(lambda: embedded.ensure_store(folder / "mlruns") and 0, Path("log"))
        return []
    np.savez("inputs.npz", image=np.ones((2, 3, 8, 8), np.float32))
    runs = [run for (run,) in execute(folder / "mlruns", "SELECT run_uuid FROM runs ORDER BY start_time")]
    line = f"certificate write {runs[0]} -o certificate --allow-unproven -q"
    print(f"{run_child(lambda: main(line.split()), Path('log')).code} {line}", flush=True)
    return runs


def wrong_lines(random: Random) -> list[str]:
    """Command lines with a wrong word, or an input as output, made from the declarations of the options."""
    lines = []
    while len(lines) < 10:
        path = random.choice([path for path in registry.COMMANDS if path not in registry.OTHER_WORDS])
        flags = [flag for _, flag in flags_of(load(path).groups) if not (flag.positional or flag.refuse or flag.idle)]
        is_model = any(flag.dest == "model_file" for _, flag in flags_of(load(path).groups))
        if not (is_model and flags):
            continue
        flag = random.choice(flags)
        if flag.file == "writes":
            word = "m.onnx"
        elif flag.choices:
            word = "nope"
        elif flag.convert in (int, float) and flag.takes != "switch":
            word = random.choice(("nan", "word", "9" * 9 + "x"))
        else:
            continue
        lines.append(f"{' '.join(path)} m.onnx {flag.names[0]}={word}")
    return lines


def commands_of(kind: str, seed: int, folder: Path, runs: list[str], count: int) -> list[str]:
    """Put a case's file into a folder, and return its command lines."""
    random = Random(seed)
    lines = wrong_lines(random) if kind == "lines" else list(ON_MODELS)
    if kind == "lines":
        shutil.copy(folder / "good.onnx", folder / "m.onnx")
    elif kind == "models":
        (folder / "m.onnx").write_bytes(crafted_model(seed))
    elif kind == "files":
        name = random.choice([name for name in ON_FILES if (folder / name).exists()])
        stem, dot, suffix = name.rpartition(".")
        if f"{stem}0" in "".join(ON_FILES[name]):
            shutil.copy(folder / name, folder / f"{stem}0{dot}{suffix}")
        (folder / name).write_bytes(damaged(folder / name, random))
        lines = [line.replace(" F", f" {name}") for line in ON_FILES[name]]
    else:
        run = random.choice(runs)
        damage_store(folder / "mlruns", run, random)
        lines = [line.replace("RUN", run) for line in ON_STORE]
    return random.sample(lines, min(count, len(lines)))


def damage_store(root: Path, run: str, random: Random) -> None:
    """Damage the database, a row of it, or artifacts of a run."""
    choice = random.random()
    if choice < 0.15:
        (root / "mlflow.db").write_bytes(damaged(root / "mlflow.db", random))
    elif choice < 0.4:
        value = random.choice((*WORDS, "9" * 5000, "-1", "null"))
        with contextlib.suppress(sqlite3.IntegrityError):  # the database has checks of its own
            tags = [tag for (tag,) in execute(root, "SELECT key FROM tags WHERE run_uuid = ?", run)]
            if tags and random.random() < 0.8:
                tag = random.choice(tags)
                execute(root, "UPDATE tags SET value = ? WHERE run_uuid = ? AND key = ?", value, run, tag)
            else:
                column = random.choice(("artifact_uri", "status", "name", "start_time", "lifecycle_stage"))
                execute(root, f"UPDATE runs SET {column} = ? WHERE run_uuid = ?", value, run)
    else:
        files = [path for path in root.glob(f"artifacts/**/{run}/**/*") if path.is_file()]
        for path in random.sample(files, min(len(files), random.choice((1, 1, 3)))):
            path.write_bytes(damaged(path, random))
            if random.random() < 0.5:
                fit_manifest(path)


def fit_manifest(path: Path) -> None:
    """Adapt the manifest to a changed file, as anyone who can write to the store may do."""
    folder = next((parent for parent in path.parents if (parent / "manifest.json").is_file()), None)
    if folder is None or path.name == "manifest.json":
        return
    content = path.read_bytes()
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        manifest = json.loads((folder / "manifest.json").read_bytes())
        for entry in manifest["artifacts"]:
            if entry["path"] == str(path.relative_to(folder)):
                entry.update(size=len(content), sha256=hashlib.sha256(content).hexdigest())
        (folder / "manifest.json").write_text(json.dumps(manifest))


class Ending(NamedTuple):
    """How a child ended."""

    code: int  # negative: the signal
    seconds: float  # of CPU time
    kib: int  # of memory


def run_child(work: Callable[[], int], log: Path) -> Ending:
    """Call a function in a fork of this process, with its output in a file; it may replace the process."""
    # Threads do not survive a fork: a session made before would hide faults, or have some of its own.
    threads = [path.joinpath("comm").read_text().strip() for path in Path("/proc/self/task").iterdir()]
    assert len(threads) - threads.count("jemalloc_bg_thd") == 1, f"The process that forks has threads: {threads}"
    pid = os.fork()
    if pid == 0:
        for stream in (1, 2):
            os.dup2(os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), stream)
        signal.alarm(WALL_SECONDS)
        code = 99
        try:
            code = work()
            sys.stdout.flush()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status, used = os.wait4(pid, 0)
    return Ending(os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, used.ru_maxrss)


def failure_of(line: str, log: Path, *, must_refuse: bool = False, real: bool = False) -> str | None:
    """Run a line as the command `trtops` does, and return what went wrong: the exit, memory, time, or an exception."""
    mistakes = log.with_name("mistakes")
    mistakes.unlink(missing_ok=True)
    words = line.split()

    def run() -> int:
        if real:
            os.execv(sys.executable, [sys.executable, "-m", "trtops", *words])
        return supervise(lambda: _code_of(line, mistakes), words)

    code, seconds, kib = run_child(run, log)
    output = log.read_text(errors="replace")
    if code == -signal.SIGALRM:
        return f"hang: {WALL_SECONDS} s"
    if code not in (0, 1, 2, 3, 4):
        return f"died: exit code {code}\n{output[-2500:]}"
    if seconds > CPU_SECONDS:
        return f"hang: {seconds:.0f} s"
    if kib > MEMORY_KIB:
        return f"memory: {kib / (1 << 20):.2f} GiB"
    if must_refuse and code != 2:
        return f"accepted: exit code {code}"
    # ONNX Runtime does not check all that ONNX's own checker does.
    if line.startswith("check lint") and code in (0, 1) and "onnx_checker" not in output:
        contradicting = _load_code if code == 0 else lambda: main(["run", "m.onnx", "--onnxrt"])
        if run_child(contradicting, log).code == 1 - code:
            verdict = "passes" if code == 0 else "refuses what runs"
            return f"{output[-1500:]}\n{log.read_text(errors='replace')[-300:]}\nlint {verdict}"
    if real:
        return output[-2500:] if "Traceback (most recent call last)" in output else None
    return mistakes.read_text() if mistakes.exists() else None


def _load_code() -> int:
    """Load ``m.onnx`` in ONNX Runtime: 0 if it does, 1 if not, 2 if it lacks a kernel that others may have."""
    try:
        with_onnxruntime.load("m.onnx")
    except errors.InferenceError as exc:
        print(exc)
        missing = (
            "not a registered function/op",
            "Could not find an implementation",
            "takes more than",
            "No opset import",
        )
        return 2 if any(text in str(exc) for text in missing) else 1
    return 0


def _code_of(line: str, mistakes: Path) -> int:
    """Run a line in this process and return its exit code; exceptions, raised or logged, go to a file."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(lambda record: bool(record.exc_info and record.exc_info[1]))
    for name in (None, "trtops"):
        logging.getLogger(name).addHandler(handler)
    code = 3
    try:
        code = main(line.split())
    except BaseException as exc:
        stream.write("".join(traceback.format_exception(exc)))
    if stream.getvalue():
        mistakes.write_text(stream.getvalue())
    return code


def try_case(
    kind: str, seed: int, bases: Path, runs: list[str], count: int, notes: Path, real: Callable[[int], bool]
) -> None:
    """Run one case in this process, which is a child; each command, and what went wrong, becomes a line of notes."""
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=bases.parent) as name, notes.open("a") as file:
        folder = Path(name, "here")
        shutil.copytree(bases, folder)
        os.chdir(folder)
        os.environ["TRTOPS_HOME"] = str(folder / "mlruns")
        tempfile.tempdir = name
        if runs:
            set_root(folder / "mlruns")
        lines = commands_of(kind, seed, folder, runs, count)
        inputs = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        for number, line in enumerate(lines, seed * count):
            print(json.dumps([line, "died"]), file=file, flush=True)
            failure = failure_of(line, Path(name, "log"), must_refuse=kind == "lines", real=real(number))
            changed = [path.name for path, content in inputs.items() if path.read_bytes() != content]
            # That of golden outputs is removed at the regular end of a process, which these children do not reach.
            left = [path.name for path in Path(name).glob("trtops.*") if not path.name.startswith("trtops.golden.")]
            if failure is None and (changed or left or Path("PWNED").exists()):
                failure = f"left: {left} changed: {changed}"
            print(json.dumps([line, failure]), file=file, flush=True)
        os.chdir("/")


def watch_case(
    kind: str, seed: int, bases: Path, runs: list[str], count: int, real: Callable[[int], bool]
) -> dict[str, str | None]:
    """Run one case in a forked child; returns what went wrong by command line."""
    notes, log = bases.parent / "notes", bases.parent / "log"
    notes.write_text(json.dumps(["setup", None]) + "\n")
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        for stream in (1, 2):
            os.dup2(os.open(log, os.O_CREAT | os.O_RDWR | os.O_TRUNC), stream)
        faulthandler.enable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            try_case(kind, seed, bases, runs, count, notes, real)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    outcomes: dict[str, str | None] = dict(map(json.loads, notes.read_text().splitlines()))
    if status:  # the last command is to blame
        code = os.waitstatus_to_exitcode(status)
        outcomes[list(outcomes)[-1]] = f"died: exit code {code}\n{log.read_text(errors='replace')[-2500:]}"
    return outcomes


def run_all(kinds: list[str], numbers: range, count: int, work: Path, real: Callable[[int], bool]) -> int:
    """Run cases of each kind; prints failures and a table, and returns the number of failures."""
    bases = work / "bases"
    bases.mkdir(parents=True)
    for path in registry.COMMANDS:  # so that children need not import them
        load(path)
    for name in PRELOADED:
        importlib.import_module(name)
    runs = make_bases(bases, kinds)
    causes: collections.Counter[str] = collections.Counter()
    for kind in kinds:
        lines = 0
        for seed in numbers:
            outcomes = watch_case(kind, seed, bases, runs, count, real)
            lines += len(outcomes) - 1
            if not (seed + 1) % 100:
                print(f"{kind}: up to {seed}, {lines} commands, {sum(causes.values())} wrong", flush=True)
            for line, failure in outcomes.items():
                if failure is not None:
                    cause = (
                        failure[:60] if failure.startswith(("hang", "died")) else failure.strip().splitlines()[-1][:160]
                    )
                    causes[cause] += 1
                    if causes[cause] <= 2:
                        print(f"--- {kind} {seed}: {line}\n{failure}", flush=True)
        print(f"{kind}: {len(numbers)} cases, {lines} commands, {sum(causes.values())} wrong so far", flush=True)
    for cause, times in causes.most_common(40):
        print(f"{times:6} {cause}")
    return sum(causes.values())


def main_of_fuzz() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=200, help="cases of each kind")
    parser.add_argument("--first", type=int, default=0, help="the first case's number")
    parser.add_argument("--commands", type=int, default=3, help="commands for each case, drawn by its number")
    parser.add_argument("--real", type=int, default=27, help="every Nth command is a process of its own")
    parser.add_argument("--kinds", nargs="+", default=["models", "files", "store", "lines"])
    arguments = parser.parse_args()
    if os.environ.get("OMP_NUM_THREADS") != "1":  # numpy starts threads when it is imported
        os.environ["OMP_NUM_THREADS"] = "1"
        os.execv(sys.executable, [sys.executable, "-m", "tests.attacks.fuzz", *sys.argv[1:]])
    with tempfile.TemporaryDirectory(prefix="trtops-fuzz-", ignore_cleanup_errors=True) as work:
        os.environ.update(
            HOME=work,
            TRTOPS_TRACKING_WAIT="0",
            TRTOPS_SPOOL=f"{work}/spool",
            TRTOPS_TIME_LIMIT="10",
        )
        numbers = range(arguments.first, arguments.first + arguments.cases)
        real = arguments.real
        return min(
            1, run_all(arguments.kinds, numbers, arguments.commands, Path(work), lambda number: number % real == 0)
        )


if __name__ == "__main__":
    sys.exit(main_of_fuzz())
