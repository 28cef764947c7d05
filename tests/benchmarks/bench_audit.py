"""Audits: how fast runs are held against themselves, what signing costs, and how well builds come out again.

Without arguments: 150 runs of a local store and a few of a server audited without rebuilding, and what signing costs a build;
with ``--full`` 1,000 runs of each, which takes half an hour.
With ``--rebuild``: 20 builds (three models in three precisions and one more, of two releases of ONNX Runtime in two
environments) logged to a server and audited from its address alone by a fresh process of each environment; then half of them
where one thing was changed on purpose: the release, numpy, onnx, the cores, and with ``--python`` Python itself. The
environments are made with pip.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests import models
from tests.keys import new_key
from tests.servers import MlflowServer
from trtops import signing
from trtops.ops.auditing.config import AuditConfig
from trtops.ops.auditing.op import audit
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.evaluation.check import CheckConfig
from trtops.record import sha256
from trtops.spec import BuildConfig, OnnxRuntimeOptions
from trtops.tracking import builds, schema
from trtops.tracking.base import StoredRun, tracked
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.mlflow.embedded import ensure_store

RUNS = 150
FULL_RUNS = 1000
MOST_SIGNING_SECONDS = 0.05  # of processor time
OPTIONS = OnnxRuntimeOptions(timing_iterations=2)
CHECK = CheckConfig(iterations=4, latency_runs=2, warm_up=0, plots="never")


def copied(tracker: MlflowTracker, source: StoredRun, number: int) -> None:
    """Log a build again, as another run: the same tags, params and numbers, and files of its own but for the model.

    Files that are equal would be fetched from a server once for all runs.
    """
    own = (
        schema.Tag.KIND,
        schema.Tag.SCHEMA,
        schema.Tag.HOST,
        schema.Tag.OWNER,
        schema.Tag.LOCAL_ID,
        schema.Tag.VERDICT,
    )
    tags = {k: v for k, v in source.info.tags.items() if k.startswith("trtops.") and k not in own}
    metrics = dict(source.info.metrics)
    with tracked(tracker, "many", f"run {number}", kind="build", tags=tags) as run:
        for entry in source.manifest.artifacts:
            data = source.read_bytes(entry.path)
            if entry.path.startswith(f"{builds.ENGINE_STEM}."):
                data += number.to_bytes(8, "little")
                run.set_tags({schema.Tag.ENGINE_SHA256: sha256(data)})
                metrics[schema.Metric.ENGINE_BYTES] = float(len(data))
            elif Path(entry.path).suffix in (".json", ".html", ".md", ".txt", ".log"):
                data += f"{number:b}".replace("0", " ").replace("1", "\n").encode()  # white space means nothing there
            if entry.path != schema.Artifact.NAMES:
                run.log_bytes(data, entry.path)
        run.log_params(source.info.params)
        run.log_metrics(metrics)
        run.finish(source.info.verdict)


def audit_many(tracker: MlflowTracker, count: int, where: str) -> None:
    begun, worked = time.perf_counter(), time.process_time()
    result = audit(AuditConfig(experiment="many", rebuild=False), tracker=tracker)
    seconds, busy = time.perf_counter() - begun, time.process_time() - worked
    files = sum(run.files for run in result.runs)
    assert len(result.runs) == count and not result.failed, [run.headline() for run in result.failed][:3]
    print(
        f"{where}: {count} runs with {files} files in {seconds:.1f} s, {busy:.1f} s of it this process' own: "
        f"{count / seconds:.1f} runs per second, {count / busy:.0f} per second of processor time",
        flush=True,
    )


def many(folder: Path, count: int, served: int) -> None:
    """Runs audited without rebuilding, of a local store and of a server."""
    model = models.conv_net().write(folder)
    config = ConvertConfig(build=BuildConfig(options=OPTIONS), check=CHECK)
    local = MlflowTracker(folder / "local")
    source = local.load(convert(model, config, tracker=local).run_id)
    for number in range(count):
        copied(local, source, number)
    audit_many(local, count, "local store")
    ensure_store(folder / "served" / "mlruns")
    with MlflowServer(folder / "served" / "mlruns") as server:
        remote = MlflowTracker(server.address)
        for number in range(served):
            copied(remote, source, number)
        audit_many(MlflowTracker(server.address), served, "server")


def signing_overhead(folder: Path, rounds: int = 5) -> float:
    """Processor seconds of a signature; builds with and without one, in turn, are told beside it."""
    private, public = folder / "key.pem", folder / "key.pub"
    new_key(private, public)
    model = models.conv_net().write(folder)
    tracker = MlflowTracker(folder / "signed")
    config = ConvertConfig(build=BuildConfig(options=OPTIONS), check=CHECK, rebuild=True)
    convert(model, config, tracker=tracker)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    busy: dict[bool, list[float]] = {True: [], False: []}
    for number in range(2 * rounds):
        signed = number % 2 == 0
        if signed:
            os.environ[signing.KEY_VARIABLE] = str(private)
        begun, worked = time.perf_counter(), time.process_time()
        convert(model, config, tracker=tracker)
        seconds[signed].append(time.perf_counter() - begun)
        busy[signed].append(time.process_time() - worked)
        os.environ.pop(signing.KEY_VARIABLE, None)
    with_it, without = (statistics.median(seconds[signed]) for signed in (True, False))
    work_with, work_without = (statistics.median(busy[signed]) for signed in (True, False))
    statement = signing.statement({f"file {n}": "0" * 64 for n in range(20)}, {"spec": {}})
    os.environ[signing.KEY_VARIABLE] = str(private)
    worked = time.process_time()
    for _ in range(100):
        signing.sign(statement)
    alone = (time.process_time() - worked) / 100
    os.environ.pop(signing.KEY_VARIABLE)
    print(
        f"a build signed {with_it * 1e3:.0f} ms, unsigned {without * 1e3:.0f} ms (medians of {rounds}), of the processor "
        f"{work_with * 1e3:.0f} and {work_without * 1e3:.0f} ms; making one signature "
        f"takes {alone * 1e3:.2f} ms of the processor, at most {MOST_SIGNING_SECONDS * 1e3:.0f}: "
        f"{'kept' if alone <= MOST_SIGNING_SECONDS else 'BROKEN'}",
        flush=True,
    )
    return alone


BUILD = """
import sys
from pathlib import Path
from tests import models
from tests.benchmarks.bench_audit import CHECK, OPTIONS
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.spec import BuildConfig
from trtops.tracking.mlflow import MlflowTracker

address, folder, experiment = sys.argv[1:]
weights = {"w": models.random(16, 32, scale=0.3), "v": models.random(32, 8, seed=1, scale=0.3)}
text = "(float[4,16] x) => (float[4,8] y) { a = MatMul(x, w)  b = Relu(a)  y = MatMul(b, v) }"
dense = models.Case(models.model(text, weights, name="dense"), {"x": models.random(4, 16)}, name="dense")
tracker = MlflowTracker(address)
cases = [(case, precision) for case in (models.conv_net(), models.transformer(), dense)
         for precision in ("fp32", "fp16", "int8")]
for case, precision in [*cases, (models.identity(), "fp32")]:
    path = case.write(Path(folder))
    config = ConvertConfig(build=BuildConfig(precision=precision, options=OPTIONS), check=CHECK)
    try:
        convert(path, config, tracker=tracker, experiment=experiment)
    except Exception as exc:
        print(experiment, path.name, precision, type(exc).__name__, exc, file=sys.stderr)
    path.unlink()
"""


@dataclass(frozen=True)
class Surroundings:
    """An environment that audits.

    Attributes:
        python: Its interpreter.
        differs: What must be named of it, beside where the builds were made.
        replays: Whether a tactic record of there can be replayed.
        one_core: Whether it may use one core alone.
    """

    python: str
    differs: frozenset[str] = frozenset()
    replays: bool = True
    one_core: bool = False


def laid_over(folder: Path, name: str, pin: str) -> str:
    """The interpreter of an environment that has one package of its own, and this one's else."""
    place = folder / name
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    own = sysconfig.get_path("purelib", vars={"base": str(place), "platbase": str(place)})
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", own, pin]
    subprocess.run(command, check=True)
    Path(own, "below.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return str(place / "bin" / "python")


def child(where: Surroundings, words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """A process of an environment, in a folder and a home of its own, that knows an address and nothing else."""
    home = Path(tempfile.mkdtemp(dir=folder))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRTOPS_HOME": str(home)}
    limited = (lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})) if where.one_core else None
    return subprocess.run(
        [where.python, *words], cwd=home, env=environment, stdout=subprocess.PIPE, text=True, preexec_fn=limited
    )


def rebuild(folder: Path, release: str, python: str | None) -> bool:
    """20 builds of two releases audited by fresh processes, and half of them where one thing was changed on purpose."""
    other = laid_over(folder, "release", f"onnxruntime=={release}")
    here = Surroundings(sys.executable)
    changed = {
        "the release": Surroundings(other, frozenset({"backend_version", "package onnxruntime"}), replays=False),
        "numpy": Surroundings(laid_over(folder, "numpy", "numpy==2.3.5"), frozenset({"package numpy"})),
        "onnx": Surroundings(laid_over(folder, "onnx", "onnx==1.21.0"), frozenset({"package onnx"})),
        "the cores": Surroundings(sys.executable, frozenset({"device cores"}), one_core=True),
    }
    if python is not None:
        changed["Python"] = Surroundings(python, frozenset({"python"}))
    ensure_store(folder / "rebuilt" / "mlruns")
    with MlflowServer(folder / "rebuilt" / "mlruns") as server:
        builders = {"here": here, "there": Surroundings(other)}
        for name, where in builders.items():
            child(where, ["-c", BUILD, server.address, str(folder), name], folder)
        right = [
            tell(name, name, where, audited(where, server.address, name, folder)) for name, where in builders.items()
        ]
        say(f"nothing changed: {sum(map(sum, right))} of {sum(map(len, right))} grades are right")
        for what, where in changed.items():
            right.append(tell("here", f"with {what} changed", where, audited(where, server.address, "here", folder)))
    total = sum(map(len, right))
    say(f"{sum(map(sum, right))} of {total} grades are right, with the difference named where there is one")
    return sum(map(sum, right)) == total and total >= 20


def audited(where: Surroundings, address: str, experiment: str, folder: Path) -> dict:
    """What the command says in an environment."""
    words = ["-m", "trtops.cli", "runs", "audit", "--experiment", experiment, "--store", address, "--anew", "--json"]
    return json.loads(child(where, words, folder).stdout)


def tell(builder: str, auditor: str, where: Surroundings, result: dict) -> list[bool]:
    """Print the grades of an audit; whether each is as it must be."""
    runs, right = result["runs"], []
    say(f"built {builder}, audited {auditor}: {len(runs)} runs in {result['seconds']:.0f} s")
    for run in runs:
        named = frozenset(each["what"] for each in run["differences"])
        ways = {each["way"]: each["grade"] for each in run["rebuilds"]}
        fine = run["whole"] and not run["contradictions"] and not run["missing"] and named == where.differs
        if where.replays:
            fine = fine and run["grade"] in ("bytes equal", "tactics equal")
        else:
            fine = fine and ways["replay"] == "cannot be rebuilt" and run["grade"] not in ("bytes equal", None)
        right.append(fine)
        differences = "; ".join(f"{d['what']} {d['then']} -> {d['now']}" for d in run["differences"])
        by = ", ".join(f"{way}: {grade}" for way, grade in ways.items())
        say(
            f"  {'right' if fine else 'WRONG'}: {run['name']}: {run['grade']} ({by}). {differences} {run['explanation']}"
        )
        for line in () if fine else [*run["contradictions"], *run["missing"]]:
            say(f"      {line}")
    return right


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help=f"{FULL_RUNS} runs")
    parser.add_argument("--rebuild", action="store_true")
    parser.add_argument("--release", default="1.24.4", help="the other release of ONNX Runtime (default: %(default)s)")
    parser.add_argument("--python", help="an interpreter of another Python that has trtops and the same releases")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trtops-bench-") as name:
        if given.rebuild:
            return int(not rebuild(Path(name), given.release, given.python))
        alone = signing_overhead(Path(name))
        # A server takes half a second for a run that is logged.
        many(Path(name), FULL_RUNS if given.full else RUNS, FULL_RUNS if given.full else RUNS // 20)
    return int(alone > MOST_SIGNING_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
