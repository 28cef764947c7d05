"""Correctness and cost of each command on each model of the zoo, next to Polygraphy's.

Every command runs in a child of its own, whose CPU time and peak memory the kernel reports. Results are compared with
plain ONNX Runtime on the feed next to the model, independently of trtops.

Run: ``python tests/real/table.py FOLDER``; prints Markdown, and exits with 1 if anything is wrong.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime as ort

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

SECONDS = 600
TOLERANCE = 1e-4  # relative to an output's largest value, for equal results
LOWERED = {"fp32": TOLERANCE, "fp16": 0.05, "int8": 0.6}  # largest error of an engine with verdict "good"
SMALLEST_FP16 = 2.0**-14  # normal number
SOUND = {"fp32": 1e-6, "fp16": 1e-3, "int8": 0.01}  # smallest error of an engine with verdict "bad"

CONVERT = """
import sys
import numpy as np
from trtops import BuildConfig, ConvertConfig, MemoryTracker, convert, errors
from trtops.backend.engines import engine_backend
from trtops.ops.evaluation.check import CheckConfig
from tests.real.table import perturbed

model, feed, out, precision = sys.argv[1:]
made = []
check = CheckConfig(data=feed, latency_runs=20)
config = ConvertConfig(
    build=BuildConfig(precision=precision, calibration_samples=4), check=check, keep_model=False,
    calibration_data=out + ".calib" if precision == "int8" else None,
)
if precision == "int8":
    import os
    os.makedirs(out + ".calib", exist_ok=True)
    for number in range(4):
        np.savez(f"{out}.calib/{number}.npz", **perturbed(dict(np.load(feed)), number))
try:
    result = convert(model, config, tracker=MemoryTracker(), built=made.append)
except errors.TrtopsError as exc:
    print("RESULT", "refused", "-", type(exc).__name__ + ": " + " ".join(str(exc).split())[:160], sep="|")
    sys.exit(0)
with engine_backend("onnxruntime").runner(made[0].engine) as runner:
    found = runner.infer(dict(np.load(feed)))
np.savez(out, **{n: a for n, a in found.items() if getattr(a, "dtype", None) is not None and a.dtype.kind in "fiub"})
print("RESULT", result.verdict, result.called, "; ".join(result.reasons)[:160], sep="|")
"""


class Row(NamedTuple):
    """One command on one model: whether its result is correct, CPU time in seconds and peak memory in MB."""

    model: str
    command: str
    right: bool
    result: str
    cpu: float
    memory: float


def run_measured(words: list[str], folder: Path) -> tuple[int, str, float, float]:
    """Exit code, output, CPU seconds and peak MB of a child."""
    home = {"HOME": str(folder), "TRTOPS_HOME": str(folder / "mlruns"), "PYTHONPATH": str(ROOT)}
    with (folder / "output").open("w+") as file:
        limited = ["timeout", "-k", "5", str(SECONDS), *words]
        child = subprocess.Popen(limited, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, **home}, cwd=folder)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        file.seek(0)
        return child.returncode, file.read(), used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3


def plain(model: Path, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs of plain ONNX Runtime without optimization; only numbers."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    outputs = zip(session.get_outputs(), session.run(None, feed))
    return {node.name: value for node, value in outputs if isinstance(value, np.ndarray) and value.dtype.kind in "fiub"}


def distance(actual: dict[str, np.ndarray], golden: dict[str, np.ndarray]) -> float:
    """The largest relative difference of an output, or the share of different integers; infinite if one is missing."""
    worst = 0.0
    for name, expected in golden.items():
        if name not in actual or actual[name].shape != expected.shape:
            return float("inf")
        if expected.dtype.kind != "f":
            worst = max(worst, float((actual[name] != expected).mean()) if expected.size else 0.0)
            continue
        difference = np.abs(actual[name].astype(np.float64) - expected.astype(np.float64)).max(initial=0.0)
        worst = max(worst, float(difference / max(float(np.abs(expected).max(initial=0.0)), 1e-30)))
    return worst


def command_line(tool: str, job: str, model: Path, folder: Path) -> list[str]:
    """The arguments of one command."""
    feed = str(model.with_suffix(".npz"))
    if job in LOWERED:
        return [sys.executable, "-c", CONVERT, str(model), feed, str(folder / "out.npz"), job]
    words = {
        "lint": ["check", "lint", str(model)],
        "sanitize": ["surgeon", "sanitize", str(model), "--fold-constants", "-o", "out.onnx"],
        "run": ["run", str(model), "--onnxrt", "--load-inputs", "inputs.json", "--save-outputs", "out.json"],
    }
    program = [sys.executable, "-m", "trtops.cli"] if tool == "trtops" else [str(Path(sys.executable).parent / tool)]
    return [*program, *words[job]]


def measure(model: Path, tool: str, job: str) -> Row:
    """Run one command on one model, and compare its result with plain ONNX Runtime."""
    from trtops.json import save_json

    feed = dict(np.load(model.with_suffix(".npz")))
    with tempfile.TemporaryDirectory(prefix="trtops-zoo-") as name:
        folder = Path(name)
        save_json([feed], str(folder / "inputs.json"))
        code, text, cpu, memory = run_measured(command_line(tool, job, model, folder), folder)
        lines = text.strip().splitlines() or [""]
        try:
            right, result = check(job, model, folder, feed, lines)
        except Exception as exc:  # the result cannot be used at all
            right, result = False, f"exit {code}: {lines[-1][:160]} {type(exc).__name__}: {exc!s:.140}"
        if code and job != "lint":
            right = False
    return Row(model.stem, f"{tool} {job}", right, result, cpu, memory)


def check(job: str, model: Path, folder: Path, feed: dict[str, np.ndarray], lines: list[str]) -> tuple[bool, str]:
    """Whether the result of a command is correct, and a short result."""
    if job == "lint":
        wrong = [line for line in lines if "error" in line.lower().replace("0 error", "")]
        return not wrong, wrong[0][:140] if wrong else "clean"
    golden = plain(model, feed)
    if job == "sanitize":
        outputs = plain(folder / "out.onnx", feed)
    elif job == "run":
        from trtops.comparator.results import RunResults

        (_, [iteration]), *_ = RunResults.load(folder / "out.json").items()
        outputs = dict(iteration)
    else:
        _, verdict, called, reasons = next(line for line in lines if line.startswith("RESULT|")).split("|", 3)
        if verdict == "refused":  # only INT8 may be, if there is nothing to quantize
            return job == "int8" and "no layer of the model is quantized" in reasons, f"refused: {reasons}"
        with np.load(folder / "out.npz") as saved:
            off = distance(dict(saved), golden)
        if verdict == "good":
            return off <= LOWERED[job], f"good, {called}, off by {off:.1e}"
        # FP16 flushes small outputs to 0, though this engine computes in FP32.
        lost = job == "fp16" and min(np.abs(array).max(initial=0.0) for array in golden.values()) < SMALLEST_FP16
        return bool(reasons) and (off > SOUND[job] or lost), f"{verdict}, {called}, off by {off:.1e}: {reasons}"
    off = distance(outputs, golden)
    return off <= TOLERANCE, f"off by {off:.1e}"


def perturbed(feed: dict[str, np.ndarray], number: int) -> dict[str, np.ndarray]:
    """A feed with floating-point numbers changed by up to 10 %."""
    rng = np.random.default_rng(number)
    return {n: (a * rng.uniform(0.9, 1.1)).astype(a.dtype) if a.dtype.kind == "f" else a for n, a in feed.items()}


COMMANDS = ("lint", "sanitize", "run", "fp32", "fp16", "int8")
COMPARED = ("lint", "sanitize", "run")


def main() -> int:
    folder = Path(sys.argv[1]).resolve()  # commands run in another folder
    rows: list[Row] = []
    print("| model | command | right | result | CPU s | peak MB |\n|---|---|---|---|---|---|")
    for model in sorted(folder.glob("*.onnx")):
        for job in COMMANDS if model.with_suffix(".npz").exists() else ():
            for tool in ("trtops", "polygraphy") if job in COMPARED else ("trtops",):
                rows.append(row := measure(model, tool, job))
                words = (row.model, row.command, "yes" if row.right else "NO", row.result)
                print("|", " | ".join(words), f"| {row.cpu:.2f} | {row.memory:.0f} |", flush=True)
    print("\n| command | models | wrong | CPU s, sum | peak MB, largest |\n|---|---|---|---|---|")
    for command in dict.fromkeys(row.command for row in rows):
        of = [row for row in rows if row.command == command]
        wrong = sum(not row.right for row in of)
        print(f"| {command} | {len(of)} | {wrong} | {sum(r.cpu for r in of):.1f} | {max(r.memory for r in of):.0f} |")
    return 1 if any(not row.right for row in rows if row.command.startswith("trtops")) else 0


if __name__ == "__main__":
    sys.exit(main())
