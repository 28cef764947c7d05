"""Audits: how fast runs are held against themselves, what signing costs, and how well builds come out again.

Without arguments: 150 runs of a local store and a few of a server audited without rebuilding, and what signing costs a build;
with ``--full`` 1,000 runs of each, which takes half an hour.
With ``--rebuild``: 20 builds (three models, three precisions and two more) logged to a server and audited from its address alone
by a fresh process. With ``--other PYTHON``, an interpreter that has another release of ONNX Runtime, half of them are built by
that one and audited by it; then each interpreter audits a sample of the other's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests import models
from tests.servers import MlflowServer
from trtops import signing
from trtops.ops.auditing.config import AuditConfig
from trtops.ops.auditing.op import audit
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.judging.judgement import CheckConfig
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
    signing.new_key(private, public)
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


def child(python: str, words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """A process of an environment, in a folder of its own, that knows an address and nothing else."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRTOPS_HOME": str(home)}
    return subprocess.run([python, *words], cwd=home, env=environment, stdout=subprocess.PIPE, text=True)


def rebuild(folder: Path, other: str | None) -> bool:
    """Builds of one or two environments, audited by each; whether what is unchanged came out tactic by tactic."""
    pythons = {"here": sys.executable} | ({"other": other} if other else {})
    ensure_store(folder / "rebuilt" / "mlruns")
    fine = True
    with MlflowServer(folder / "rebuilt" / "mlruns") as server:
        for name, python in pythons.items():
            for batch in range(1 if other else 2):
                child(python, ["-c", BUILD, server.address, str(folder), f"{name}-{batch}"], folder)
        for builder in pythons:
            for auditor, python in pythons.items():
                for batch in range(1 if other else 2):
                    words = ["-m", "trtops.cli", "runs", "audit", "--experiment", f"{builder}-{batch}", "--store"]
                    done = child(python, [*words, server.address, "--anew", "--json"], folder)
                    fine &= tell(builder, auditor, json.loads(done.stdout))
    return fine


def tell(builder: str, auditor: str, result: dict) -> bool:
    """Print the grades of an audit; whether all are as they must be."""
    runs = result["runs"]
    grades = [run["grade"] for run in runs]
    counts = ", ".join(f"{grade}: {grades.count(grade)}" for grade in dict.fromkeys(sorted(map(str, grades))))
    print(f"built {builder}, audited {auditor}: {len(runs)} runs, {counts}")
    named = sorted({f"{d['what']} {d['then']} -> {d['now']}" for run in runs for d in run["differences"]})
    print(f"    differences named: {'; '.join(named) or 'none'}")
    for run in runs:
        print(f"    {run['name']}: {run['grade']}. {run['explanation']}")
    wrong = [c for run in runs for c in run["contradictions"]]
    if wrong:
        print("    contradictions:", wrong[:3])
    return not wrong and (builder != auditor or all(grade in ("bytes equal", "tactics equal") for grade in grades))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help=f"{FULL_RUNS} runs")
    parser.add_argument("--rebuild", action="store_true")
    parser.add_argument("--other", help="an interpreter with another release of ONNX Runtime")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trtops-bench-") as name:
        if given.rebuild:
            return int(not rebuild(Path(name), given.other))
        alone = signing_overhead(Path(name))
        # A server takes half a second for a run that is logged.
        many(Path(name), FULL_RUNS if given.full else RUNS, FULL_RUNS if given.full else RUNS // 20)
    return int(alone > MOST_SIGNING_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
