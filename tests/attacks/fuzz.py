"""Crafted models and damaged files through all commands: ``make test-fuzz N=5000``.

Each case is a file that follows from its number and some commands on it, run through the command line's ``main`` in a child
that is forked for a batch, so that a crash is seen and costs one case. Wrong are: a process that dies, an exception that is
none of ours, a command that says that it has made a mistake, more than 60 s of processor time, more than 2 GB of memory, and
a file that was changed.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import faulthandler
import hashlib
import importlib
import io
import logging
import multiprocessing
import os
import resource
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

from tests import models
from tests.attacks.damage import crafted_model, damaged
from tests.stores import set_root
from trtops.cli import registry
from trtops.cli.main import load, main

CPU_SECONDS = 60.0
WALL_SECONDS = 600.0
MEMORY = 2 << 30
BATCH = 20

ON_MODELS = (
    "check lint m.onnx",
    "check lint m.onnx -o report.json",
    "check compatibility m.onnx --onnxrt",
    "inspect model m.onnx --show layers attrs weights",
    "inspect model m.onnx --shape-inference --show layers",
    "inspect model m.onnx --save-visual page.html",
    "inspect capability m.onnx --onnxrt",
    "inspect sparsity m.onnx",
    "surgeon sanitize m.onnx --fold-constants --cleanup --toposort -o out.onnx",
    "surgeon sanitize m.onnx --override-input-shapes x:[2,3] -o out.onnx",
    "surgeon extract m.onnx --inputs x:auto:auto --outputs y:auto -o out.onnx",
    "surgeon insert m.onnx --op Neg --inputs x --outputs x -o out.onnx",
    "surgeon prune m.onnx -o out.onnx",
    "surgeon prune m.onnx --remove-node-types Relu Concat -o out.onnx",
    "surgeon weight-strip m.onnx -o out.onnx",
    "surgeon weight-reconstruct m.onnx -o out.onnx",
    "convert m.onnx --fp-to-fp16 -o out.onnx",
    "convert m.onnx --convert-to ort -o out.ort",
    "convert m.onnx --convert-to ort --fp16 -o out.ort",
    "run m.onnx --onnxrt --save-outputs out.json",
    "run m.onnx --onnxrt --onnx-outputs mark all",
    "run m.onnx --onnxrt --int8 --onnx-flags native_instancenorm",
    "calibrate m.onnx --load-inputs inputs.json -o out.cache",
    "debug accuracy m.onnx --emulate fp16",
    "debug precision m.onnx --fp16 -o out.onnx",
    "debug reduce m.onnx -o out.onnx --onnxrt",
    "debug build m.onnx --onnxrt --until 1",
    "compare m.onnx good.onnx",
    "template onnx-gs m.onnx -o out.py",
    "template data-loader m.onnx -o out.py",
    "template trt-config m.onnx -o out.py",
    "plugin list m.onnx --plugin-dir plugins",
    "plugin match m.onnx --plugin-dir plugins -o out.yaml",
    "build-list list.yaml",
    "gate m.onnx --no-register",
)
"""Commands over a crafted model. What needs a store has one of its own."""

ON_FILES = {
    "inputs.json": ("inspect data F --show-values", "run good.onnx --onnxrt --load-inputs F", "data concat F F -o out.json"),
    "inputs.npz": ("inspect data F --histogram", "run good.onnx --onnxrt --load-inputs F", "calibrate good.onnx --load-inputs F"),
    "outputs.json": ("inspect data F --all", "compare F outputs0.json", "run good.onnx --onnxrt --load-outputs F", "data to-input inputs0.json F -o out.json"),
    "accuracy.json": ("check accuracy F --atol 1e-3", "check accuracy F"),
    "replay.json": ("inspect tactics F", "convert good.onnx --convert-to ort --load-tactics F -o out.ort", "inspect diff-tactics --good F --bad replay0.json"),
    "timing.cache": ("convert good.onnx --convert-to ort --load-timing-cache F -o out.ort",),
    "int8.cache": ("inspect calibration F", "inspect calibration F int80.cache", "convert good.onnx --convert-to ort --int8 --calibration-cache F -o out.ort", "sensitivity good.onnx --calibration-cache F"),
    "good.ort": ("inspect model F", "run F --onnxrt", "compare F good.onnx"),
    "list.yaml": ("build-list F --check",),
    "policy.yaml": ("gate good.onnx --policy F --no-register",),
    "places.yaml": ("plugin replace good.onnx --plugin-dir plugins --config F -o out.onnx",),
    "report.json": ("inspect data F", "check accuracy F"),
}  # fmt: skip
"""Commands over each kind of damaged file; ``F`` is the file, and what has a 0 at its end is the file as it was."""

ON_STORE = (
    "runs list",
    "runs show RUN",
    "runs compare RUN RUN",
    "runs evaluate RUN --atol 1",
    "runs audit RUN",
    "runs audit RUN --no-rebuild",
    "runs promote RUN",
    "runs resolve good.onnx",
    "runs prune --older-than 0",
    "runs pardon RUN --why x",
    "runs deny RUN",
    "runs close RUN",
    "inspect run RUN",
    "inspect run RUN --json",
    "inspect calibration run:RUN",
    "compare run:RUN good.onnx",
    "debug build --resume RUN",
    "debug noise RUN",
    "debug prove RUN",
    "debug bisect RUN",
    "inspect diff-tactics --runs RUN",
    "store check",
    "store reap",
    "store upload",
    "convert good.onnx --convert-to ort -o out.ort --experiment good",
)
"""Commands over a damaged store."""


def make_bases(folder: Path) -> dict[str, Any]:
    """Good files of every kind, and a store with a build and a campaign; says which runs are in it."""
    os.chdir(folder)
    models.conv_net().write(folder).rename("good.onnx")
    Path("plugins").mkdir()
    Path("list.yaml").write_text("models:\n  - model: m.onnx\n")
    Path("policy.yaml").write_text("max_slowdown: 1.1\n")
    Path("places.yaml").write_text("[]\n")
    shutil.copy("good.onnx", "m.onnx")
    os.environ["TRTOPS_HOME"] = str(folder / "mlruns")
    for line in (
        "run good.onnx --onnxrt --iterations 3 --save-inputs inputs.json --save-outputs outputs.json",
        "run good.onnx --onnxrt --onnxrt --save-accuracy-results accuracy.json",
        "convert good.onnx --convert-to ort -o good.ort --experiment good --save-tactics replay.json --save-timing-cache timing.cache",
        "calibrate good.onnx --load-inputs inputs.json -o int8.cache --experiment good",
        "debug build good.onnx --onnxrt --until 2 --experiment good",
        "check lint good.onnx -o report.json",
    ):
        with contextlib.redirect_stdout(io.StringIO()):
            code = main([*line.split(), "-q"])
        print(f"{code} {line}", flush=True)
    import numpy as np

    np.savez("inputs.npz", image=np.ones((1, 3, 8, 8), np.float32))
    with contextlib.closing(sqlite3.connect("mlruns/mlflow.db")) as database:
        return {"runs": [row[0] for row in database.execute("SELECT run_uuid FROM runs")]}


def commands_of(kind: str, seed: int, folder: Path, runs: list[str], count: int) -> list[str]:
    """Put a case's file into a folder, and return its command lines."""
    random = Random(seed)
    if kind == "models":
        (folder / "m.onnx").write_bytes(crafted_model(seed))
        return random.sample(ON_MODELS, min(count, len(ON_MODELS)))
    if kind == "files":
        name = random.choice([name for name in ON_FILES if (folder / name).exists()])
        stem, dot, suffix = name.rpartition(".")
        shutil.copy(folder / name, folder / f"{stem}0{dot}{suffix}")
        content = damaged(folder / name, random)
        (folder / name).unlink()
        (folder / name).write_bytes(content)
        lines = [line.replace(" F", f" {name}") for line in ON_FILES[name]]
        return random.sample(lines, min(count, len(lines)))
    run = random.choice(runs)
    _damage_store(folder / "mlruns", run, random)
    return [line.replace("RUN", run) for line in random.sample(ON_STORE, min(count, len(ON_STORE)))]


def _damage_store(root: Path, run: str, random: Random) -> None:
    choice = random.random()
    if choice < 0.15:
        (root / "mlflow.db").write_bytes(damaged(root / "mlflow.db", random))
        return
    if choice < 0.4:
        from tests.attacks.damage import WORDS

        refused = contextlib.suppress(sqlite3.IntegrityError)  # the database has checks of its own
        with refused, contextlib.closing(sqlite3.connect(root / "mlflow.db")) as database, database:
            tags = [row[0] for row in database.execute("SELECT key FROM tags WHERE run_uuid = ?", (run,))]
            value = random.choice((*WORDS, "9" * 5000, "-1", "null"))
            if tags and random.random() < 0.8:
                database.execute(
                    "UPDATE tags SET value = ? WHERE run_uuid = ? AND key = ?", (value, run, random.choice(tags))
                )
            else:
                column = random.choice(("artifact_uri", "status", "name", "start_time", "lifecycle_stage"))
                database.execute(f"UPDATE runs SET {column} = ? WHERE run_uuid = ?", (value, run))
        return
    files = [path for path in root.glob(f"artifacts/**/{run}/**/*") if path.is_file()]
    for path in random.sample(files, min(len(files), random.choice((1, 1, 3)))):
        content = damaged(path, random)
        path.unlink()
        path.write_bytes(content)
        if random.random() < 0.5:
            _fit_manifest(path, content)


def _fit_manifest(path: Path, content: bytes) -> None:
    """Let the manifest say what is there now, as whoever may write to the store can."""
    import json

    folder = next((parent for parent in path.parents if (parent / "manifest.json").is_file()), None)
    if folder is None or path.name == "manifest.json":
        return
    manifest = folder / "manifest.json"
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        told = json.loads(manifest.read_bytes())
        for entry in told["artifacts"]:
            if entry["path"] == str(path.relative_to(folder)):
                entry.update(size=len(content), sha256=hashlib.sha256(content).hexdigest())
        manifest.write_text(json.dumps(told))


class Mistakes(logging.Handler):
    """Collects what commands report as mistakes of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self.found.append("".join(traceback.format_exception(record.exc_info[1])))


def try_case(kind: str, seed: int, bases: Path, runs: list[str], count: int, told: Connection) -> None:
    """Run one case in this process, which is a child, and say what went wrong."""
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=bases.parent) as name:
        folder = Path(name, "here")
        shutil.copytree(bases, folder, symlinks=True, copy_function=_link if kind != "store" else shutil.copy)
        os.chdir(folder)
        os.environ["TRTOPS_HOME"] = str(folder / "mlruns")
        tempfile.tempdir = name
        if kind == "store":
            set_root(folder / "mlruns")
        lines = commands_of(kind, seed, folder, runs, count)
        for line in lines:
            told.send(("at", seed, line))
            _try_line(line, seed, told)
        os.chdir("/")


def _link(source: str, target: str) -> None:
    """Good files are not changed: they are linked and not copied, but for those that a case writes to."""
    if source.endswith(".onnx") or "/mlruns/" in source:
        shutil.copy(source, target)
    else:
        os.link(source, target)


def _try_line(line: str, seed: int, told: Connection) -> None:
    mistakes, silent = Mistakes(), io.StringIO()
    root = logging.getLogger()
    logger = logging.getLogger("trtops")
    for each in (root, logger):
        each.addHandler(mistakes)
    try:
        with contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent):
            code = main(line.split())
        if code not in (0, 1, 2, 3):
            told.send(("wrong", seed, line, f"exit code {code}"))
    except BaseException as exc:
        told.send(("wrong", seed, line, "".join(traceback.format_exception(exc))))
    finally:
        for each in (root, logger):
            each.removeHandler(mistakes)
    if mistakes.found:
        told.send(("wrong", seed, line, mistakes.found[0]))


def serve_batch(kind: str, seeds: range, bases: Path, runs: list[str], count: int, told: Connection) -> None:
    """What a forked child does: one case after the other."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    log = os.open(bases.parent / f"child-{os.getpid()}.log", os.O_CREAT | os.O_RDWR)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.enable()
    for seed in seeds:
        try_case(kind, seed, bases, runs, count, told)
        told.send(("done", seed, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10))
    os._exit(0)


class Batch:
    """A forked child at work, watched."""

    def __init__(self, kind: str, seeds: range, bases: Path, runs: list[str], count: int) -> None:
        self.kind, self.seeds = kind, seeds
        self.wrong: list[tuple[int, str, str]] = []
        self.done, self.lines, self.peak = 0, 0, 0
        fork = multiprocessing.get_context("fork")
        self._pipe, theirs = fork.Pipe(duplex=False)
        self._child = fork.Process(target=serve_batch, args=(kind, seeds, bases, runs, count, theirs))
        self._child.start()
        theirs.close()
        self._log = bases.parent / f"child-{self._child.pid}.log"
        self._at: tuple[int, str] = (seeds.start, "setup")
        self._since, self._cpu = time.monotonic(), 0.0

    def watch(self) -> range:
        """Watch until it ends; returns the seeds that are left."""
        while True:
            if self._pipe.poll(1.0):
                try:
                    self._note(self._pipe.recv())
                except EOFError:
                    break
            elif self._is_late():
                self.wrong.append(
                    (*self._at, f"hang: {self._spent():.0f} s of CPU, {time.monotonic() - self._since:.0f} s")
                )
                self._kill()
                break
        self._child.join(30)
        self._kill()
        if self._child.exitcode != 0 and not any(wrong[:2] == self._at and "hang" in wrong[2] for wrong in self.wrong):
            said = self._log.read_text(errors="replace")[-2500:]
            self.wrong.append((*self._at, f"died: exit code {self._child.exitcode}\n{said}"))
        with contextlib.suppress(OSError):
            self._log.unlink()
        finished = self._child.exitcode == 0
        return range(self.seeds.stop if finished else self._at[0] + 1, self.seeds.stop)

    def _note(self, message: tuple[Any, ...]) -> None:
        kind, *what = message
        if kind == "at":
            self._at, self._since, self._cpu = (what[0], what[1]), time.monotonic(), _cpu_of(self._child.pid)
            self.lines += 1
        elif kind == "wrong":
            self.wrong.append((what[0], what[1], what[2]))
        else:
            self.done += 1
            self.peak = max(self.peak, what[1])
            if what[1] > MEMORY and not any("memory" in wrong[2] for wrong in self.wrong):
                self.wrong.append((what[0], self._at[1], f"memory: {what[1] / (1 << 30):.2f} GiB"))

    def look_again_at_memory(self, bases: Path, runs: list[str], count: int) -> None:
        """Count the memory of a case that was one of many anew, by itself: a command has a process of its own."""
        for place, (seed, _, what) in enumerate(self.wrong):
            if what.startswith("memory") and len(self.seeds) > 1:
                alone = Batch(self.kind, range(seed, seed + 1), bases, runs, count)
                alone.watch()
                self.peak = alone.peak
                self.wrong[place : place + 1] = alone.wrong
                return

    def _spent(self) -> float:
        return _cpu_of(self._child.pid) - self._cpu

    def _is_late(self) -> bool:
        return self._spent() > CPU_SECONDS or time.monotonic() - self._since > WALL_SECONDS

    def _kill(self) -> None:
        assert self._child.pid is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.join()


def _cpu_of(pid: int | None) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_all(kinds: list[str], numbers: range, count: int, seconds: float, work: Path) -> int:
    """Run cases of each kind; prints what went wrong, and a table. Returns how many did."""
    bases = work / "bases"
    bases.mkdir(parents=True)
    runs = make_bases(bases)["runs"]
    for path in registry.COMMANDS:
        with contextlib.suppress(ImportError):
            load(path)
    for name in ("onnxruntime", "onnx", "mlflow", "numpy", "pandas"):
        importlib.import_module(name)
    causes: collections.Counter[str] = collections.Counter()
    until = time.monotonic() + seconds
    table = []
    for place, kind in enumerate(kinds):
        left, cases, lines, wrong, peak = numbers, 0, 0, 0, 0
        deadline = time.monotonic() + (until - time.monotonic()) / (len(kinds) - place)
        while left and time.monotonic() < deadline:
            batch = Batch(kind, range(left.start, min(left.start + BATCH, left.stop)), bases, runs, count)
            rest = batch.watch()
            batch.look_again_at_memory(bases, runs, count)
            left = range(rest.start if rest else batch.seeds.stop, numbers.stop)
            cases, lines, wrong = cases + batch.done, lines + batch.lines, wrong + len(batch.wrong)
            peak = max(peak, batch.peak)
            if cases % (25 * BATCH) < BATCH:
                print(f"{time.strftime('%H:%M:%S')} {kind}: {cases} cases, {lines} commands, {wrong} wrong", flush=True)
            for seed, line, what in batch.wrong:
                cause = what.strip().splitlines()[-1][:160] if "hang" not in what and "died" not in what else what[:60]
                causes[cause] += 1
                if causes[cause] <= 2:
                    print(f"--- {kind} {seed}: {line}\n{what}", flush=True)
        table.append((kind, cases, lines, wrong, f"{peak / (1 << 30):.2f} GiB"))
    print(f"{'kind':10}{'cases':>8}{'commands':>10}{'wrong':>8}{'peak':>12}")
    for row in table:
        print("{:10}{:>8}{:>10}{:>8}{:>12}".format(*row))
    for cause, times in causes.most_common(40):
        print(f"{times:6} {cause}")
    return sum(row[3] for row in table)


def main_of_fuzz() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=200, help="cases of each kind")
    parser.add_argument("--first", type=int, default=0, help="the first case's number")
    parser.add_argument("--commands", type=int, default=3, help="commands for each case, drawn by its number")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so many seconds")
    parser.add_argument("--kinds", nargs="+", default=["models", "files", "store"])
    given = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="trtops-fuzz-"))
    os.environ.update(HOME=str(work), TRTOPS_TRACKING_WAIT="0", TRTOPS_SPOOL=str(work / "spool"), OMP_NUM_THREADS="1")
    try:
        return min(
            1, run_all(given.kinds, range(given.first, given.first + given.cases), given.commands, given.seconds, work)
        )
    finally:
        os.chdir("/")
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main_of_fuzz())
