"""Repeat a verdict with numpy alone, without trtops. Bundles contain this file as ``evaluate.py``.

The definitions are those of :mod:`trtops.comparator.metrics`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

# The tolerances that can be evaluated here. A bundle of a run with others is refused.
RULES = frozenset(
    {
        "atol", "rtol", "atol_of_scale", "check_error_stat", "error_quantile", "infinities_equal", "nans_equal",
        "clamped_equal", "class_axis", "channels", "check_dtypes", "max_l2", "min_cosine", "max_nrmse",
        "min_correlation", "min_agreement", "min_top1_agreement",
    }
)  # fmt: skip

Array = Any


def repeat(folder: Path, library: str, run: Callable[[dict[str, Any], list[dict[str, Array]]], Any]) -> int:
    """Run the case in a folder, print the verdict, and return the exit code: 0 if the verdict is the reported one.

    ``run`` returns the outputs by name for each feed; an exception is the verdict ``error``.
    """
    case = json.loads((folder / "case.json").read_text(encoding="utf-8"))
    saved_inputs, saved_golden = (np.load(folder / f"{kind}.npz", allow_pickle=False) for kind in ("inputs", "golden"))
    inputs: list[dict[str, Array]] = [{} for _ in range(case["iterations"])]
    golden: dict[str, list[Array]] = {}
    for i, feed in enumerate(inputs):
        for j, name in enumerate(case["inputs"]):
            feed[name] = saved_inputs[f"{i}_{j}"]
        for j, name in enumerate(case["outputs"]):
            golden.setdefault(name, []).append(saved_golden[f"{i}_{j}"])
    verdict = "good"
    try:
        runs = run(case, inputs)
    except Exception as exc:
        print(f"{library}: {exc}")
        verdict = "error"
    else:
        for name, expected in golden.items():
            actual = [outputs[name] for outputs in runs]
            lines = objections(actual, expected, case["rules"][name])
            verdict = "bad" if lines else verdict
            if expected[0].dtype.kind in "fiub" and actual[0].shape == expected[0].shape:
                absolute, relative = errors(actual, expected, case["rules"][name])
                lines.insert(0, f"max abs error {absolute.max(initial=0):.6g}, max rel {relative.max(initial=0):.6g}")
            print(f"{name}: {'; '.join(lines)}")
        for name, limit in case.get("peaks", {}).items():
            peak = max(float(outputs[name]) for outputs in runs)
            if peak >= limit:
                verdict = "bad"
                print(f"{name.removesuffix('/peak')}: overflows, {peak:,.0f} is beyond FP16")
    print(f"verdict: {verdict} (reported: {case['verdict']}; {library}, numpy {np.__version__})")
    return 0 if verdict == case["verdict"] else 1


def survived(script: str) -> int:
    """Run a script in a child process; a crash of the library is reported as a verdict too."""
    code = subprocess.call(
        [sys.executable, *(["-E", "-s"] if sys.flags.ignore_environment else []), script, *sys.argv[1:], "--inside"]
    )
    if code in (0, 1):
        return code
    reported = json.loads(Path(script).with_name("case.json").read_text(encoding="utf-8"))["verdict"]
    print(f"verdict: error (reported: {reported}; the process died of {-code if code < 0 else code})")
    return 0 if reported == "error" else 1


def objections(actual: list[Array], golden: list[Array], rule: dict[str, Any]) -> list[str]:
    """Why one output is not good enough, over all iterations; empty if it is good.

    ``rule`` holds tolerances, by the names in :data:`RULES`.
    """
    shapes, expected_shapes = [a.shape for a in actual], [g.shape for g in golden]
    if shapes != expected_shapes:
        return [f"shapes are {shapes}, expected {expected_shapes}"]
    problems = []
    dtypes = str(actual[0].dtype), str(golden[0].dtype)
    # TensorRT before 10 has no INT64, and returns INT32.
    if rule.get("check_dtypes", True) and dtypes[0] != dtypes[1] and dtypes != ("int32", "int64"):
        problems.append(f"dtype is {dtypes[0]}, expected {dtypes[1]}")
    if golden[0].dtype.kind in "OUS":
        differing = sum(int(np.sum(a.astype(str) != g.astype(str))) for a, g in zip(actual, golden))
        return [*problems, *([f"{differing} strings differ"] if differing else [])]
    a, b = _flat(actual), _flat(golden)
    difference, relative = errors(actual, golden, rule)
    nans = np.isnan(a) & ~(np.isnan(b) & bool(rule.get("nans_equal")))
    if nans.any():
        problems.append(f"{int(nans.sum())} of {a.size} elements are NaN")
    if rule.get("min_agreement") is not None and golden[0].dtype.kind in "iub":
        share = _agreement(a, b)
        return problems + ([] if share >= rule["min_agreement"] else [f"agreement is {share:.5g}"])
    problems += _error_objections(b, difference, relative, rule)
    problems += _limits_broken(a, b, difference, rule)
    if rule.get("channels"):
        problems += _channel_objections(golden, difference, rule["channels"])
    if rule.get("min_top1_agreement") is not None and rule.get("class_axis") is not None:
        share = _top1_agreement(actual, golden, rule["class_axis"])
        if share < rule["min_top1_agreement"]:
            problems.append(f"top-1 agreement is {share:.5g}")
    return problems


def errors(actual: list[Array], golden: list[Array], rule: dict[str, Any]) -> tuple[Array, Array]:
    """The absolute and relative errors of all elements of all iterations, flattened, in float64."""
    a, b = _flat(actual), _flat(golden)
    with np.errstate(all="ignore"):
        difference = np.abs(a - b)
        same = np.zeros(a.shape, bool)
        if rule.get("infinities_equal"):
            same |= np.isinf(a) & (a == b)
        if rule.get("nans_equal"):
            same |= np.isnan(a) & np.isnan(b)
        if rule.get("clamped_equal"):
            same |= (np.abs(b) >= 1e9) & (np.sign(a) == np.sign(b)) & (np.abs(a) >= 3e4)
        difference[same] = 0.0
        return difference, difference / np.maximum(np.abs(b), np.finfo(np.float64).eps)


def _flat(arrays: list[Array]) -> Array:
    return np.concatenate(list(map(np.ravel, arrays))).astype(np.float64)


def _error_objections(b: Array, difference: Array, relative: Array, rule: dict[str, Any]) -> list[str]:
    if not difference.size:
        return []
    scale = float(np.max(np.abs(b[np.isfinite(b)]), initial=0.0))
    atol = max(rule["atol"], (rule.get("atol_of_scale") or 0.0) * scale) * (1 + 1e-12)
    rtol = rule["rtol"] * (1 + 1e-12)
    statistic = rule.get("check_error_stat", "elemwise")
    if statistic == "elemwise":
        wrong = ~(difference <= atol) & ~(relative <= rtol)
        if wrong.any():
            return [f"{int(wrong.sum())} of {b.size} elements exceed atol {atol:.3g} and rtol {rtol:.3g}"]
        return []
    level = rule.get("error_quantile", 0.99)
    measures: dict[str, Any] = {"max": np.max, "mean": np.mean, "median": np.median}
    measure = measures.get(statistic, lambda x: np.quantile(x, level))
    if measure(difference) <= atol or measure(relative) <= rtol:
        return []
    return [f"{statistic} error exceeds atol {atol:.3g} and rtol {rtol:.3g}"]


def _limits_broken(a: Array, b: Array, difference: Array, rule: dict[str, Any]) -> list[str]:
    """Metrics of the whole output beyond their limits."""
    # Values that stand for infinity must not make infinite norms.
    if rule.get("clamped_equal"):
        stands_for_infinity = np.abs(b) >= 1e9
        a = np.where(difference == 0.0, np.where(stands_for_infinity, 0.0, b), a)
        b = np.where(stands_for_infinity, 0.0, b)
    norm_a, norm_b, norm = (float(np.linalg.norm(x)) for x in (a, b, difference))
    with np.errstate(all="ignore"):
        cosine = float(a @ b / (norm_a * norm_b)) if norm_a and norm_b else float(norm_a == norm_b)
        correlation = None  # where the golden output is constant
        if a.size > 1 and np.ptp(b) != 0:
            correlation = 0.0 if np.ptp(a) == 0 else float(np.corrcoef(a, b)[0, 1])
    broken_limits = []
    for name, value, sign in (
        ("max_l2", norm, 1),
        ("max_nrmse", norm / norm_b if norm_b else None, 1),
        ("min_cosine", cosine, -1),
        ("min_correlation", correlation, -1),
    ):
        limit = rule.get(name)
        if limit is not None and value is not None and not sign * value <= sign * limit:
            broken_limits.append(f"{name[4:]} is {value:.5g}, limit {limit:g}")
    return broken_limits


def _channel_objections(golden: list[Array], difference: Array, limits: dict[str, Any]) -> list[str]:
    """The channels with the largest or root mean square error beyond its limit."""
    ends = np.cumsum([g.size for g in golden])
    parts = (d.reshape(g.shape) for d, g in zip(np.split(difference, ends[:-1]), golden))
    axis = limits["axis"]
    rows = np.concatenate([np.moveaxis(d, axis, 0).reshape(d.shape[axis], -1) for d in parts], axis=1)
    within = rows.max(axis=1, initial=0.0) <= np.multiply(limits["max_abs"], 1 + 1e-12)
    within &= np.sqrt(np.mean(np.square(rows), axis=1)) <= np.multiply(limits["rms"], 1 + 1e-12)
    return [] if within.all() else [f"errors of {int((~within).sum())} channels are too large"]


def _agreement(a: Array, b: Array) -> float:
    """The share of equal elements; of the commonest value or of all others, if it makes up half or more."""
    equal = a == b
    values, counts = np.unique(b, return_counts=True)
    if b.size and 2 * counts.max() >= b.size:
        common = b == values[counts.argmax()]
        return float(min(np.mean(equal[part]) for part in (common, ~common) if part.any()))
    return float(np.mean(equal)) if b.size else 1.0


def _top1_agreement(actual: list[Array], golden: list[Array], axis: int) -> float:
    """The share of rows with the largest element at the golden position, or within a twentieth of the row's range."""
    agreeing = []
    for a, g in zip(actual, golden):
        a, g = (np.moveaxis(x.astype(np.float64), axis, -1).reshape(-1, x.shape[axis]) for x in (a, g))
        chosen = np.take_along_axis(g, np.nan_to_num(a, nan=-np.inf).argmax(-1)[:, None], -1)[:, 0]
        agreeing.append((chosen >= g.max(-1) - np.ptp(g, -1) / 20) & ~np.isnan(a).any(-1))
    return float(np.mean(np.concatenate(agreeing)))
