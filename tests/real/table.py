"""Correctness and cost of each command on each model of the zoo, next to Polygraphy's.

Every command runs in a child of its own, whose CPU time and peak memory the kernel reports. Results are compared with
plain ONNX Runtime on the feed next to the model, independently of trtops.

Run: ``python tests/real/table.py FOLDER [--only NAME ...] [--commands run fp32 ...]``; prints Markdown, and exits with
1 if anything is wrong. Rows are written to ``FOLDER/table.jsonl``, and are not measured again.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

SECONDS = 600
TOLERANCE = 1e-4  # relative to an output's largest value, for equal results
LOWERED = {"fp16": 0.05, "int8": 0.6}  # largest error of an engine with verdict "good"
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
    print("SAID", "refused", "-", type(exc).__name__ + ": " + " ".join(str(exc).split())[:160], sep="|")
    sys.exit(0)
with engine_backend("onnxruntime").runner(made[0].engine) as runner:
    found = runner.infer(dict(np.load(feed)))
np.savez(out, **{n: a for n, a in found.items() if getattr(a, "dtype", None) is not None and a.dtype.kind in "fiub"})
print("SAID", result.verdict, result.called, "; ".join(result.reasons)[:160], sep="|")
"""


PLANTED = """
import sys
import numpy as np
from trtops.backend.onnx.model import Model
from trtops.backend.onnxrt.reference import reference_outputs
from trtops.comparator import compare_outputs
from trtops.ops.evaluation.check import tolerances_for

def constant(a): return np.full_like(a, a.reshape(-1)[0])
def shuffled(a): return np.random.default_rng(0).permutation(a.reshape(-1)).reshape(a.shape)
def swapped(a): return np.roll(a, 1, axis=1) if a.ndim > 1 else np.roll(a, 1)
def overrun(a):
    wrong = a.copy()
    wrong.reshape(-1)[wrong.size // 2] = np.inf
    return wrong

model = Model.load(sys.argv[1])
golden = dict(reference_outputs(model.proto(), [dict(np.load(sys.argv[2]))])[0])
planted = missed = 0
for precision in ("fp32", "fp16", "bf16", "int8"):
    tolerances = tolerances_for(precision, None, model)
    if compare_outputs(golden, golden, tolerances).verdict != "good":
        print("MISSED", precision, "the model itself")
        missed += 1
    for name, array in golden.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind != "f" or not array.size:
            continue
        for plant in (np.zeros_like, constant, shuffled, swapped, overrun):
            wrong = plant(array)
            if not np.array_equal(wrong, array):
                planted += 1
                if compare_outputs({**golden, name: wrong}, golden, tolerances).verdict != "bad":
                    print("MISSED", precision, plant.__name__, name, array.shape)
                    missed += 1
print("SAID", planted, missed, sep="|")
"""
"""Zeros, constants, shuffles, other classes and overflows in any output must fail with each precision's tolerances."""

FAULT = "planted_fault"
REDUCING_SECONDS = 120  # time limit of a reduction


@dataclass(frozen=True)
class Row:
    """One command on one model.

    Attributes:
        model: Its name.
        command: The tool and the command.
        right: Whether the result is correct; None if there is nothing to compare it with.
        said: A short result.
        cpu: CPU time in seconds.
        memory: Peak resident memory, in MB.
    """

    model: str
    command: str
    right: bool | None
    said: str
    cpu: float
    memory: float


def run_measured(words: list[str], folder: Path, seconds: int = SECONDS) -> tuple[int, str, float, float]:
    """Exit code, output, CPU seconds and peak MB of a child."""
    home = {"HOME": str(folder), "TRTOPS_HOME": str(folder / "mlruns"), "PYTHONPATH": str(ROOT)}
    with (folder / "said").open("w+") as file:
        limited = ["timeout", "-k", "5", str(seconds), *words]
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


def distance(found: dict[str, np.ndarray], golden: dict[str, np.ndarray]) -> float:
    """The largest relative difference of an output, or the share of different integers; infinite if one is missing."""
    worst = 0.0
    for name, expected in golden.items():
        if name not in found or found[name].shape != expected.shape:
            return float("inf")
        if expected.dtype.kind != "f":  # classes and masks: the share that differs
            worst = max(worst, float((found[name] != expected).mean()) if expected.size else 0.0)
            continue
        difference = np.abs(found[name].astype(np.float64) - expected.astype(np.float64)).max(initial=0.0)
        worst = max(worst, float(difference / max(largest(expected), 1e-30)))
    return worst


def largest(array: np.ndarray) -> float:
    """The largest magnitude in an array."""
    return float(np.abs(array.astype(np.float64)).max(initial=0.0))


def tool(name: str) -> list[str]:
    """The command of a tool installed for this interpreter."""
    return [sys.executable, "-m", "trtops.cli"] if name == "trtops" else [str(Path(sys.executable).parent / name)]


def command_line(whose: str, what: str, model: Path, folder: Path) -> list[str]:
    """The arguments of one command."""
    if what == "inspect":
        return [*tool(whose), "inspect", "model", str(model), "--show", "layers"]
    if what == "lint":
        return [*tool(whose), "check", "lint", str(model)]
    if what == "sanitize":
        return [*tool(whose), "surgeon", "sanitize", str(model), "--fold-constants", "-o", str(folder / "out.onnx")]
    if what == "run":
        inputs = ["--load-inputs", str(folder / "inputs.json"), "--save-outputs", str(folder / "out.json")]
        return [*tool(whose), "run", str(model), "--onnxrt", *inputs]
    if what == "reduce":
        check = ["sh", "-c", f"! grep -q {FAULT} {whose}_debug.onnx"]
        return [*tool(whose), "debug", "reduce", "faulty.onnx", "-o", "out.onnx", "--mode", "bisect", "--check", *check]
    if what == "planted":
        return [sys.executable, "-c", PLANTED, str(model), str(model.with_suffix(".npz"))]
    return [sys.executable, "-c", CONVERT, str(model), str(model.with_suffix(".npz")), str(folder / "out.npz"), what]


def measure(model: Path, whose: str, what: str) -> Row:
    """Run one command on one model, and compare its result with plain ONNX Runtime."""
    feed = dict(np.load(model.with_suffix(".npz")))
    with tempfile.TemporaryDirectory(prefix="trtops-zoo-") as name:
        folder = Path(name)
        if what == "run":
            from trtops.json import save_json

            save_json([feed], str(folder / "inputs.json"))
        if what == "reduce":
            plant_fault(model, folder / "faulty.onnx")
        seconds = REDUCING_SECONDS if what == "reduce" else SECONDS
        code, text, cpu, memory = run_measured(command_line(whose, what, model, folder), folder, seconds)
        lines = text.strip().splitlines() or [""]
        said = f"exit {code}"
        right: bool | None = code == 0
        if "Traceback (most recent call last)" in text or code < 0 or code >= 124:
            right, said = False, f"exit {code}: {lines[-1][:100]}"
        elif code == 0 or what == "lint":
            try:
                right, said = _CHECKS[what](model, folder, feed, text) if what in _CHECKS else (True, said)
            except Exception as exc:  # the result cannot be used at all
                right, said = False, f"{type(exc).__name__}: {' '.join(str(exc).split())[:140]}"
        else:
            said = f"exit {code}: {lines[-1][:160]}"
    return Row(model.stem, f"{whose} {what}", right, said, round(cpu, 2), round(memory))


def _check_sanitized(model: Path, folder: Path, feed: dict[str, np.ndarray], text: str) -> tuple[bool, str]:
    off = distance(plain(folder / "out.onnx", feed), plain(model, feed))
    return off <= TOLERANCE, f"off by {off:.1e}"


def _check_run(model: Path, folder: Path, feed: dict[str, np.ndarray], text: str) -> tuple[bool, str]:
    from trtops.comparator.results import RunResults

    (_, [iteration]), *_ = RunResults.load(folder / "out.json").items()
    off = distance(dict(iteration), plain(model, feed))
    return off <= TOLERANCE, f"off by {off:.1e}"


def _check_converted(what: str, model: Path, folder: Path, feed: dict[str, np.ndarray], text: str) -> tuple[bool, str]:
    _, verdict, called, reasons = next(line for line in text.splitlines() if line.startswith("SAID|")).split("|", 3)
    if verdict == "refused":  # only INT8 may be, if there is nothing to quantize
        return what == "int8" and "no layer of the model is quantized" in reasons, f"refused: {reasons}"
    golden = plain(model, feed)
    with np.load(folder / "out.npz") as saved:
        off = distance(dict(saved), golden)
    if verdict == "good":
        right = off <= LOWERED.get(what, TOLERANCE)
    else:  # FP16 flushes such outputs to 0, though this engine computes in FP32
        lost = what == "fp16" and min(largest(array) for array in golden.values()) < SMALLEST_FP16
        right = bool(reasons) and (off > SOUND[what] or lost)
    return right, f"{verdict}, {called}, off by {off:.1e}{': ' + reasons if verdict != 'good' else ''}"


def perturbed(feed: dict[str, np.ndarray], number: int) -> dict[str, np.ndarray]:
    """A feed with floating-point numbers changed by up to 10 %."""
    rng = np.random.default_rng(number)
    return {n: (a * rng.uniform(0.9, 1.1)).astype(a.dtype) if a.dtype.kind == "f" else a for n, a in feed.items()}


def plant_fault(model: Path, out: Path) -> None:
    """Rename a model's middle computing node to a name that a check searches for."""
    proto = onnx.load(model)
    idle = ("Constant", "Identity", "Shape", "Cast", "Dropout")
    computing = [node for node in proto.graph.node if node.op_type not in idle]
    computing[len(computing) // 2].name = FAULT
    onnx.save(proto, out, save_as_external_data=_bytes_of(model) > 2**30, location="faulty.data")


def write_small(folder: Path) -> None:
    """Write the tests' small models with the structure of real exports: loops, branches, Q/DQ, masks, caches, boxes."""
    from tests import zoo

    for make in zoo.EVALUATED:
        case = make()
        path = folder / f"small_{make.__name__}.onnx"
        if not path.exists():
            np.savez(path.with_suffix(".npz"), **case.feed)
            case.write(folder, path.stem)


def _check_reduced(model: Path, folder: Path, feed: dict[str, np.ndarray], text: str) -> tuple[bool, str]:
    names = [node.name for node in onnx.load(folder / "out.onnx").graph.node]
    return names == [FAULT], f"{len(names)} nodes{'' if FAULT in names else ', not the one'}"


def _check_planted(model: Path, folder: Path, feed: dict[str, np.ndarray], text: str) -> tuple[bool, str]:
    *lines, last = text.strip().splitlines()
    _, planted, missed = last.split("|")
    first = next((line for line in lines if line.startswith("MISSED")), "")
    return missed == "0", f"{planted} planted, {missed} not caught {first}".strip()[:200]


def _check_lint(model: Path, folder: Path, feed: dict[str, np.ndarray], text: str) -> tuple[bool, str]:
    clean = "ERROR" not in text and "error" not in text.lower().replace("0 error", "")
    return clean, "clean" if clean else next(line for line in text.splitlines() if "rror" in line)[:140]


_CHECKS: dict[str, Callable[[Path, Path, dict[str, np.ndarray], str], tuple[bool, str]]] = {
    "sanitize": _check_sanitized,
    "run": _check_run,
    "lint": _check_lint,
    "reduce": _check_reduced,
    "planted": _check_planted,
    **{what: functools.partial(_check_converted, what) for what in ("fp32", "fp16", "int8")},
}
COMMANDS = ("inspect", "lint", "sanitize", "run", "planted", "reduce", "fp32", "fp16", "int8")
COMPARED = ("inspect", "lint", "sanitize", "run", "reduce")


def _bytes_of(model: Path) -> int:
    """Size of a model and its data files."""
    return sum(
        path.stat().st_size for path in (model, model.with_suffix(".data"), Path(f"{model}.data")) if path.exists()
    )


def print_table(rows: list[Row]) -> None:
    """Print a row per command and model, and sums, in Markdown."""
    print("| model | command | right | result | CPU s | peak MB |\n|---|---|---|---|---|---|")
    for row in rows:
        right = "yes" if row.right else "NO"
        print(f"| {row.model} | {row.command} | {right} | {row.said} | {row.cpu:.2f} | {row.memory:.0f} |")
    print("\n| command | models | wrong | CPU s, sum | peak MB, largest |\n|---|---|---|---|---|")
    for command in dict.fromkeys(row.command for row in rows):
        of = [row for row in rows if row.command == command]
        wrong = sum(not row.right for row in of)
        print(f"| {command} | {len(of)} | {wrong} | {sum(r.cpu for r in of):.1f} | {max(r.memory for r in of):.0f} |")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--commands", nargs="*", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--alone", action="store_true", help="do not run Polygraphy")
    args = parser.parse_args()
    folder = args.folder.resolve()  # commands run in another folder
    kept = folder / "table.jsonl"
    rows = [Row(**json.loads(line)) for line in kept.read_text().splitlines()] if kept.exists() else []
    done = {(row.model, row.command) for row in rows}
    write_small(folder)
    for model in sorted(folder.glob("*.onnx"), key=_bytes_of):
        if (args.only and model.stem not in args.only) or not model.with_suffix(".npz").exists():
            continue
        for what in args.commands:
            for whose in ("trtops", "polygraphy") if what in COMPARED and not args.alone else ("trtops",):
                if (model.stem, f"{whose} {what}") not in done:
                    rows.append(measure(model, whose, what))
                    with kept.open("a") as file:
                        file.write(json.dumps(asdict(rows[-1])) + "\n")
                    print(rows[-1], file=sys.stderr, flush=True)
    print_table(rows)
    return 1 if any(not row.right for row in rows if row.command.startswith("trtops")) else 0


if __name__ == "__main__":
    sys.exit(main())
