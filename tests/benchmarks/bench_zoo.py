"""What converting costs for each model of the zoo, beside starting and running it, and beside another commit of trtops.

Measures CPU time, each model in a child of its own: a plain session's start, an inference, and the convert op in FP32 with the
feed that lies beside the model. Goal: no more than twice what the smallest model costs, and ten starts and 130 inferences
(what ``bench_resnet.py`` says of one model), or a minute if these take longer. Without a zoo (``make zoo``) nothing is measured.

Run: ``python tests/benchmarks/bench_zoo.py [--only NAME ...] [--before COMMIT]``; a commit is checked out beside this one for
as long as it takes, and measured in the same run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STARTS, INFERENCES, MOST_SECONDS = 10, 130, 60.0
LIMIT_SECONDS = 900

COSTS = """
import json, resource, sys
import numpy as np
import onnxruntime as ort
from trtops import ConvertConfig, MemoryTracker, convert
from trtops.ops.evaluation.check import CheckConfig

def cost(call):
    def spent():
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(each.ru_utime + each.ru_stime for each in used)
    before = spent()
    made = call()
    return spent() - before, made

model, data, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
start, session = cost(lambda: ort.InferenceSession(model, providers=["CPUExecutionProvider"]))
feed = dict(np.load(data))
session.run(None, feed)
inference = cost(lambda: [session.run(None, feed) for _ in range(count)])[0] / count
del session
config = ConvertConfig(check=CheckConfig(data=data), keep_model=False)
seconds, result = cost(lambda: convert(model, config, tracker=MemoryTracker()))
print(json.dumps({"start": start, "inference": inference, "convert": seconds, "verdict": result.verdict}))
"""


def costs_of(model: Path, root: Path) -> dict[str, object]:
    """Seconds of CPU time of a model's start, inference and conversion with the trtops that lies in ``root``, or what failed."""
    done = subprocess.run(
        [sys.executable, "-c", COSTS, str(model), str(model.with_suffix(".npz")), "10"],
        env={**os.environ, "PYTHONPATH": str(root)},
        cwd=root,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return {"failed": f"exit code {done.returncode}: {said[:80]}"}
    return dict(json.loads(done.stdout.splitlines()[-1]))


@contextlib.contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """A working tree of a commit, taken away at the end."""
    with tempfile.TemporaryDirectory(prefix="trtops-bench-") as folder:
        tree = Path(folder, "before")
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def models_of(folder: Path, only: list[str] | None) -> list[Path]:
    """The zoo's models that have a feed, smallest first."""
    found = [path for path in folder.glob("*.onnx") if path.with_suffix(".npz").exists()]
    weights = {path: sum(each.stat().st_size for each in folder.glob(f"{path.stem}.*")) for path in found}
    return [path for path in sorted(found, key=weights.__getitem__) if not only or path.stem in only]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=ROOT / ".venv-zoo" / "models")
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--before", metavar="COMMIT", help="measure the trtops of this commit beside today's")
    args = parser.parse_args()
    models = models_of(args.folder, args.only)
    if not models:
        print(f"No models in {args.folder}: `make zoo` writes them. Nothing was measured.")
        return 0
    with contextlib.ExitStack() as stack:
        before = stack.enter_context(checkout(args.before)) if args.before else None
        return print_table(models, before)


def print_table(models: list[Path], before: Path | None) -> int:
    """Measure each model, and print a line as soon as it is known; 1 if a goal was missed."""
    least: float | None = None
    missed = []
    print(f"{'CPU seconds':32}{'start':>8}{'infer':>8}{'convert':>9}{'goal':>8}{'before':>9}")
    for model in models:
        now = costs_of(model, ROOT)
        was = "" if before is None else said_of(costs_of(model, before))
        if "failed" in now:
            missed.append(model.stem)
            print(f"{model.stem:32}{now['failed']}", flush=True)
            continue
        start, inference, convert = (float(str(now[key])) for key in ("start", "inference", "convert"))
        least = convert if least is None else least
        allowed = 2 * least + min(STARTS * start + INFERENCES * inference, MOST_SECONDS)
        if convert > allowed:
            missed.append(model.stem)
        print(f"{model.stem:32}{start:8.2f}{inference:8.3f}{convert:9.2f}{allowed:8.2f}{was:>9}", flush=True)
    print(f"GOAL MISSED by {', '.join(missed)}" if missed else "goal kept")
    return 1 if missed else 0


def said_of(costs: dict[str, object]) -> str:
    """A conversion's seconds, or that it failed."""
    return f"{costs['convert']:.2f}" if "failed" not in costs else str(costs["failed"]).partition(":")[0]


if __name__ == "__main__":
    sys.exit(main())
