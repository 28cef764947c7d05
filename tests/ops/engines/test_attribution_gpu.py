"""Thirty engines of real TensorRT, each wrong for one of three reasons, and whose fault each is said to be.

Ten models overflow in FP16; ten engines got kernels that add up in FP16, or compute something else; ten were asked for
in FP16 and compute in FP32. With ``OUT`` set, what was said of each is written to ``$OUT/attribution.json``.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests import models
from tests.models import Case
from tests.ops.campaign import test_bisect_gpu as cancelling
from trtops.backend.base import Build
from trtops.backend.onnx.model import Model
from trtops.cli.main import main
from trtops.comparator.report import Tolerances
from trtops.ops.engines.convert import ConvertConfig, ConvertResult, convert
from trtops.ops.evaluation.check import CheckConfig
from trtops.spec import BuildConfig, TensorRTOptions
from trtops.tracking import schema
from trtops.tracking.memory import MemoryTracker
from trtops.tracking.mlflow import MlflowTracker

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore::DeprecationWarning")]

EACH = 10
RIGHT_OF_30 = 28
SECONDS = float(os.environ.get("TRTOPS_FAULT_SECONDS", "75"))
"""After this many seconds no further engine is built in search of a wrong kernel; wrong ones are planted instead."""

BETWEEN_KERNELS = 0.03
"""Between the errors of kernels that add in FP32, thousandths, and of those that add in FP16, tenths."""

QUICK = TensorRTOptions(optimization_level=1, record_tactics=False)
OVERFLOW, WRONG, SILENT = "precision is the problem", "worse than its precision", "not in its precision"


def convolutions(seed: int, first: float = 0.06, second: float = 0.06) -> Case:
    """Two convolutions whose weights are as large as it is said."""
    weights = {
        "w0": models.random(32, 32, 3, 3, seed=2 * seed, scale=first),
        "w1": models.random(32, 32, 3, 3, seed=2 * seed + 1, scale=second),
    }
    proto = models.model(
        """(float[4,32,14,14] x) => (float[4,32,14,14] y) {
            [conv0] a = Conv<pads = [1,1,1,1]>(x, w0)
            [relu0] b = Relu(a)
            [conv1] y = Conv<pads = [1,1,1,1]>(b, w1)
        }""",
        weights,
        name=f"convolutions_{seed}",
    )
    return Case(proto, {"x": models.random(4, 32, 14, 14, seed=seed + 100)}, name=f"convolutions_{seed}")


def pinned(*types: tuple[str, str]) -> TensorRTOptions:
    return replace(QUICK, layer_precisions=types, precision_constraints="obey")


HALF = pinned(("conv0", "float16"), ("conv1", "float16"))
FULL = pinned(("conv0", "float32"), ("conv1", "float32"))


@dataclass
class Faults:
    """Converts models with one timing cache for all, and keeps what is said of them."""

    folder: Path
    tracker: MemoryTracker = field(default_factory=MemoryTracker)
    said: list[dict[str, Any]] = field(default_factory=list)

    def convert(self, case: Case, build: BuildConfig, tolerances: Tolerances | None = None) -> ConvertResult:
        np.savez(self.folder / "feed.npz", **dict(case.feed))
        cache = self.folder / "timing.cache"

        def keep(made: Build) -> None:
            if made.timing_cache is not None:
                cache.write_bytes(made.timing_cache)

        check = CheckConfig(
            data=str(self.folder / "feed.npz"), tolerances=tolerances, latency_runs=0, warm_up=0, plots="never"
        )
        config = ConvertConfig(
            build=build, check=check, attribute_error=True, keep_model=False, rebuild=True,
            timing_cache=str(cache) if cache.exists() else None,
        )  # fmt: skip
        return convert(case.write(self.folder), config, tracker=self.tracker, built=keep)

    def note(self, kind: str, expected: str, name: str, result: ConvertResult) -> None:
        found = result.evaluation.attribution
        assert found is not None
        worst = found.worst
        self.said.append(
            {
                "kind": kind, "name": name, "expected": expected, "statement": found.statement,
                "verdict": result.verdict,
                "engine": worst and worst.engine, "precision": worst and worst.precision,
                "noise": worst and worst.noise,
                "builder": worst and worst.builder, "seconds": round(result.build_seconds, 2), "why_not": found.why_not,
                "kernels": result.evaluation.computed and result.evaluation.computed.kernels,
            }
        )  # fmt: skip
        print(json.dumps(self.said[-1]), flush=True)

    def of(self, expected: str) -> list[dict[str, Any]]:
        return [each for each in self.said if each["expected"] == expected]


@pytest.fixture
def faults(tmp_path: Path) -> Iterator[Faults]:
    found = Faults(tmp_path)
    yield found
    if out := os.environ.get("OUT"):
        Path(out, "attribution.json").write_text(json.dumps(found.said, indent=1), encoding="utf-8")


def add_overflows(faults: Faults) -> None:
    """The sums of the first convolution are in the hundred thousands; the second one makes them small again."""
    for seed in range(EACH):
        case = convolutions(seed, first=3000.0 + 500 * seed, second=1e-3)
        result = faults.convert(case, BuildConfig(precision="fp16", options=HALF))
        faults.note("overflow", OVERFLOW, case.name, result)


def add_wrong_kernels(faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of TensorRT that accumulate nearly cancelling numbers in FP16, and planted wrong ones."""
    ended = time.perf_counter() + SECONDS
    tolerances = Tolerances(atol=BETWEEN_KERNELS, rtol=0)
    for seed in range(6):
        for make in (cancelling.strided, cancelling.pointwise, cancelling.upsampling):
            if len(faults.of(WRONG)) >= EACH or time.perf_counter() > ended:
                break
            network = make()
            options = TensorRTOptions(tactic_seed=seed)
            case = Case(network.proto, network.feed, name=network.name)
            result = faults.convert(case, BuildConfig(precision="fp16", options=options), tolerances)
            bad = result.evaluation.report.verdict == "bad"
            kind = "kernel" if bad else "sound kernel"
            faults.note(kind, WRONG if bad else "good for its precision", f"{network.name} {seed}", result)
    plant_wrong_weights(monkeypatch)
    for seed in range(EACH - len(faults.of(WRONG))):
        case = convolutions(seed)
        faults.note("planted", WRONG, case.name, faults.convert(case, BuildConfig(precision="fp16", options=HALF)))
    monkeypatch.undo()


def plant_wrong_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on engines are built with their first weight a tenth too large, as a wrong kernel would compute."""
    from trtops.backend.trt import TensorRTBackend

    build = TensorRTBackend.build

    def build_another(self: TensorRTBackend, model: Model, config: BuildConfig, **others: Any) -> Build:
        proto = model.proto()
        weight = proto.graph.initializer[0]
        weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight) * np.float32(1.1), weight.name))
        return build(self, Model.from_proto(proto, model.name), config, **others)

    monkeypatch.setattr(TensorRTBackend, "build", build_another)


def add_silent_fp32(faults: Faults) -> None:
    """FP16 that no layer computes in: kept from it layer by layer, or by what the build says to keep."""
    for seed in range(EACH):
        case = convolutions(seed)
        kept = seed % 2 == 1
        options, keep = (QUICK, ("conv0", "conv1")) if kept else (FULL, ())
        result = faults.convert(case, BuildConfig(precision="fp16", keep=keep, options=options))
        faults.note("kept" if kept else "layer precisions", SILENT, case.name, result)


def test_28_of_30_engines_are_attributed_correctly(faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    add_overflows(faults)
    add_silent_fp32(faults)
    add_wrong_kernels(faults, monkeypatch)

    sought = [each for each in faults.said if each["expected"] != "good for its precision"]
    right = [each for each in sought if each["statement"] == each["expected"]]
    print(
        f"{len(right)} of {len(sought)} blamed rightly",
        {kind: sum(e["kind"] == kind for e in faults.said) for kind in {e["kind"] for e in faults.said}},
    )
    assert len(sought) == 3 * EACH
    assert len(right) >= RIGHT_OF_30, [each for each in sought if each not in right]
    assert [each["verdict"] for each in faults.of(SILENT)] == ["bad"] * EACH
    assert {each["verdict"] for each in sought} == {"bad"}


def test_silent_fp32_engines_are_bad(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = convolutions(3)
    model = case.write(tmp_path)
    store = tmp_path / "mlruns"
    words = ["--fp16", "--precision-constraints", "obey", "--layer-precisions", "conv0:float32", "conv1:float32"]

    code = main(
        [
            "convert",
            str(model),
            *words,
            "--builder-optimization-level",
            "1",
            "--experiment",
            "silent",
            "--store",
            str(store),
        ]
    )

    said = capsys.readouterr().out
    assert code == 1, said
    assert "No FP16 engine: Of 2 kernels 2 in FP32. 0% compute in the requested FP16" in said.replace("\n", " ")
    [info] = MlflowTracker(store).find("silent", tags={schema.Tag.KIND: "build"})
    assert info.verdict == "bad" and info.metrics[schema.Metric.KERNELS_LOWERED] == 0
