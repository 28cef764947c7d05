"""Audits of many runs without rebuilding, and what signing costs a build.

150 runs of a local store and a few of a server; 1,000 of each with ``--full``, which takes half an hour.
Goal: a signature takes at most 50 ms of CPU time.
"""

import functools
import os
import sys
import time
from pathlib import Path

from tests import models
from tests.benchmarks.harness import benchmark, timed
from tests.keys import new_key
from tests.servers import MlflowServer
from trtops.ops.auditing.op import AuditConfig, audit
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.evaluation.check import CheckConfig
from trtops.record import sha256
from trtops.spec import BuildConfig, OnnxRuntimeOptions
from trtops.system import signing
from trtops.tracking import builds, schema
from trtops.tracking.base import StoredRun, tracked
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.mlflow.embedded import ensure_store

_OWN = ("KIND", "SCHEMA", "OWNER", "LOCAL_ID", "VERDICT", "MANIFEST_SHA256")
OWN_TAGS = {getattr(schema.Tag, name) for name in _OWN}


def copy_run(tracker: MlflowTracker, source: StoredRun, number: int) -> None:
    """Log a build again, with files of its own: equal files would be fetched from a server once for all runs."""
    tags = {k: v for k, v in source.info.tags.items() if k.startswith("trtops.") and k not in OWN_TAGS}
    with tracked(tracker, source.info.experiment, f"run {number}", kind="build", tags=tags) as run:
        plans = [each.path for each in source.manifest.artifacts if each.path.startswith(f"{builds.ENGINE_STEM}.")]
        [(engine, plan)] = [(path, source.read_bytes(path)[:-8] + number.to_bytes(8, "little")) for path in plans]
        # What the page and the description state of the run itself.
        own = {source.info.id: run.id, source.info.id[:8]: run.id[:8], sha256(source.read_bytes(engine)): sha256(plan)}

        def changed(text: str) -> str:
            return functools.reduce(lambda text, pair: text.replace(*pair), own.items(), text)

        run.set_tags({schema.Tag.NOTE: changed(source.info.tags[schema.Tag.NOTE])})
        for entry in source.manifest.artifacts:
            data = source.read_bytes(entry.path)
            if entry.path.endswith((".html", "options.json")):
                data = changed(data.decode()).encode()
            if entry.path == engine:
                data = plan
                run.set_tags({schema.Tag.ENGINE_SHA256: sha256(data)})
            elif Path(entry.path).suffix in (".json", ".md", ".txt", ".log"):
                data += f"{number:b}".replace("0", " ").replace("1", "\n").encode()  # white space is ignored there
            run.log_bytes(data, entry.path)
        run.log_params(source.info.params)
        run.log_metrics(source.info.metrics)
        run.finish(source.info.verdict)


def bench_place(name: str, location: str | Path, source: StoredRun, count: int) -> None:
    tracker = MlflowTracker(location)
    for number in range(count):
        copy_run(tracker, source, number)
    config = AuditConfig(experiment=source.info.experiment, rebuild=False)
    begin = time.perf_counter()
    cpu, result = timed(lambda: audit(config, tracker=MlflowTracker(location)))
    seconds = time.perf_counter() - begin
    assert len(result.runs) >= count and not result.failed, [run.headline() for run in result.failed][:3]
    print(f"{name}: {count / seconds:.1f} runs per second, {count / cpu:.0f} per second of CPU time", flush=True)


def signing_seconds(folder: Path) -> float:
    new_key(folder / "key.pem", folder / "key.pub")
    subjects = {f"file {n}": "0" * 64 for n in range(20)}
    os.environ[signing.KEY_VARIABLE] = str(folder / "key.pem")
    seconds, _ = timed(lambda: [signing.sign(subjects, {"spec": {}}) for _ in range(100)])
    os.environ.pop(signing.KEY_VARIABLE)
    return seconds / 100


def main() -> None:
    full = "--full" in sys.argv
    with benchmark() as (goals, folder):
        check = CheckConfig(iterations=4, latency_runs=2, warm_up=0, plots="never")
        config = ConvertConfig(build=BuildConfig(options=OnnxRuntimeOptions(timing_iterations=2)), check=check)
        local = MlflowTracker(folder / "local")
        source = local.load(convert(models.conv_net().fixed().write(folder), config, tracker=local).run_id)
        bench_place("local store", folder / "local", source, 1000 if full else 150)
        ensure_store(folder / "served" / "mlruns")
        with MlflowServer(folder / "served" / "mlruns") as server:
            bench_place("server", server.address, source, 1000 if full else 7)
        goals.at_most("sign a build", signing_seconds(folder) * 1e3, 50.0, "ms")


if __name__ == "__main__":
    main()
