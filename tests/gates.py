"""Candidates for the gate: models of different kinds, engines with a planted regression, and runs that hold them."""

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from tests import models
from trtops.backend.base import Build, BuildRequest, Caches
from trtops.backend.engines import engine_backend
from trtops.backend.onnx.model import Model
from trtops.backend.ratio import Metric
from trtops.ops.gate.releases import COMPLETE, environment_of
from trtops.spec import BuildConfig
from trtops.tactics.record import TacticRecord
from trtops.tracking import builds, schema
from trtops.tracking.base import Tracker, tracked


def ten_outputs() -> onnx.ModelProto:
    """Ten heads over one body: ``y0`` to ``y9``, each of shape (2, 32)."""
    width = 32
    outputs = ", ".join(f"float[2,{width}] y{i}" for i in range(10))
    heads = "\n".join(f"h{i} = MatMul(b, w{i}) y{i} = Tanh(h{i})" for i in range(10))
    weights = {f"w{i}": models.random(width, width, seed=i, scale=width**-0.5) for i in range(10)}
    weights["w"] = models.random(width, width, seed=11, scale=width**-0.5)
    text = f"(float[2,{width}] x) => ({outputs}) {{ a = MatMul(x, w) b = Relu(a) {heads} }}"
    return models.model(text, weights, name="ten_outputs")


def perceptron(width: int = 256, layers: int = 4) -> onnx.ModelProto:
    """Fully connected layers with ReLUs between them: (8, ``width``) to (8, ``width``)."""
    steps = [f"m{i} = Gemm({'x' if i == 0 else f'r{i - 1}'}, w{i}, b{i}) r{i} = Relu(m{i})" for i in range(layers)]
    weights = {f"w{i}": models.random(width, width, seed=i, scale=width**-0.5) for i in range(layers)}
    weights |= {f"b{i}": models.random(width, seed=50 + i, scale=0.1) for i in range(layers)}
    text = f"(float[8,{width}] x) => (float[8,{width}] y) {{ {' '.join(steps)} y = Identity(r{layers - 1}) }}"
    return models.model(text, weights, name="perceptron")


def convolutions(channels: int = 16, size: int = 24, layers: int = 3) -> onnx.ModelProto:
    """Convolutions with batch normalization and ReLUs, pooling and ten scores."""
    weights: dict[str, np.ndarray] = {}
    steps = []
    for i in range(layers):
        before = 3 if i == 0 else channels
        weights |= {
            f"w{i}": models.random(channels, before, 3, 3, seed=i, scale=(before * 9) ** -0.5),
            f"s{i}": np.abs(models.random(channels, seed=20 + i)) + 0.5,
            f"o{i}": models.random(channels, seed=30 + i, scale=0.1),
            f"mean{i}": models.random(channels, seed=40 + i, scale=0.1),
            f"var{i}": np.abs(models.random(channels, seed=60 + i)) + 0.5,
        }
        source = "image" if i == 0 else f"r{i - 1}"
        steps.append(
            f"c{i} = Conv<pads = [1,1,1,1]>({source}, w{i}) "
            f"n{i} = BatchNormalization(c{i}, s{i}, o{i}, mean{i}, var{i}) r{i} = Relu(n{i})"
        )
    weights["fc"] = models.random(channels, 10, seed=99, scale=channels**-0.5)
    text = (
        f"(float[2,3,{size},{size}] image) => (float[2,10] scores) {{ {' '.join(steps)} "
        f"p = GlobalAveragePool(r{layers - 1}) f = Flatten(p) logits = MatMul(f, fc) "
        "scores = Softmax<axis = 1>(logits) }"
    )
    return models.model(text, weights, name="convolutions")


ZOO: dict[str, Callable[[], onnx.ModelProto]] = {
    "ten_outputs": ten_outputs,
    "perceptron": perceptron,
    "convolutions": convolutions,
    "conv_net": lambda: models.conv_net().fixed().proto,
    "transformer": lambda: models.transformer().fixed().proto,
    "deep": lambda: perceptron(64, 16),
}
"""Six models."""


def write(proto: onnx.ModelProto, folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.onnx"
    onnx.save(proto, path)
    return path


def with_wrong_weight(proto: onnx.ModelProto, factor: float = 1.05) -> onnx.ModelProto:
    """The model with one of its weights a few percent off."""
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    tensor = max(changed.graph.initializer, key=lambda weight: int(np.prod(weight.dims)))
    array = numpy_helper.to_array(tensor) * np.float32(factor)
    tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float32), tensor.name))
    return changed


def with_offset(proto: onnx.ModelProto, output: str, offset: float) -> onnx.ModelProto:
    """The model with a constant added to one output."""
    changed = renamed(proto, output)
    changed.graph.initializer.append(numpy_helper.from_array(np.array(offset, np.float32), "offset"))
    changed.graph.node.append(onnx.helper.make_node("Add", ["before", "offset"], [output], "add_offset"))
    return changed


def renamed(proto: onnx.ModelProto, output: str) -> onnx.ModelProto:
    """A copy of a model whose output is now an inner tensor called ``before``."""
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    for node in changed.graph.node:
        node.output[:] = ["before" if name == output else name for name in node.output]
    return changed


def with_ballast(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a large table whose zero row is added to an output: the same outputs, a larger engine."""
    output = proto.graph.output[0].name
    changed = renamed(proto, output)
    table = models.random(50_000, 1, seed=5)
    table[0] = 0
    arrays = {"table": table, "nothing": np.array(0, np.float32), "ballast_shape": np.array([1], np.int64)}
    changed.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    make = onnx.helper.make_node
    changed.graph.node.extend(
        [
            make("ReduceMax", [changed.graph.input[0].name], ["highest"], "ballast_max", keepdims=0),
            make("Mul", ["highest", "nothing"], ["zero_float"], "ballast_zero"),
            make("Cast", ["zero_float"], ["zero_index"], "ballast_cast", to=onnx.TensorProto.INT64),
            make("Reshape", ["zero_index", "ballast_shape"], ["index"], "ballast_reshape"),
            make("Gather", ["table", "index"], ["row"], "ballast_row"),
            make("Add", ["before", "row"], [output], "ballast_add"),
        ]
    )
    return changed


SLOW = (
    "NchwcTransformer", "ConvActivationFusion", "ConvBNFusion", "MatMulAddFusion", "GemmActivationFusion",
    "LayerNormFusionL1", "SkipLayerNormFusion", "GeluFusionL2", "BiasGeluFusion",
)  # fmt: skip


def built(path: Path, config: BuildConfig, caches: Caches | None = None) -> Build:
    """An engine of ONNX Runtime, built in this process."""
    backend = engine_backend(config.backend)
    return backend.build(BuildRequest(Model.load(path), config, caches=caches or Caches()))


def slow_build(path: Path, config: BuildConfig) -> Build:
    """An engine whose session settings leave the faster kernels out, but for those that do not fit the model."""
    # On a busy machine the usual time is too short to try all settings.
    first_build = built(path, replace(config, options=replace(config.options, timing_seconds=120.0)))
    setting_names = {name for name, _ in first_build.tactics.settings}
    settings = tuple(
        (name, "off" if name in SLOW else value)
        for name, value in first_build.tactics.settings
        if name in setting_names
    )
    record = TacticRecord(
        mechanism="onnxruntime",
        backend_version=first_build.tactics.backend_version,
        device_sha256=first_build.tactics.device_sha256,
        settings=settings,
    )
    return built(path, config, Caches(replay=record))


def claiming(build: Build, config: BuildConfig) -> Build:
    """A build that says it was asked for something else than what it is."""
    return replace(build, spec=replace(build.spec, config=config))


def kept(tracker: Tracker, path: Path, build: Build, *, suffix: str = ".ort", model: bool = False) -> str:
    """Log a build as a run of its own, with its model where that is asked for; returns the run's id."""
    with tracked(tracker, path.stem, "planted", kind="build") as run:
        run.set_tags({schema.Tag.MODEL_PATH: str(path)})
        builds.log_spec(run, build.spec, build.engine.environment)
        builds.log_build(run, build, Model.load(path).info, suffix)
        if model:
            run.log_file(path, f"{schema.Artifact.MODEL}{path.name}")
        run.finish("good")
    return run.id


def existing_release(folder: Path, name: str, startup: str = "") -> str:
    """A constraints file whose environment exists already: this one, with a module that Python imports first."""
    file, modules = folder / f"{name}.txt", folder / f"{name}_modules"
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(f"# {file}\n")
    modules.mkdir()
    (modules / "sitecustomize.py").write_text(startup)
    environment = environment_of(str(file), "onnxruntime")
    python = environment / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{modules}" exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (environment / COMPLETE).touch()
    return str(file)


class Machine:
    """A machine with a clock of its own and noise from a seed; stands in for the module ``time``.

    ``load`` is the share of inferences that other work interrupts, and of those that it slows down; ``drift`` the speed
    lost per minute; ``bursts`` the share of seconds in which everything takes twice as long.
    """

    def __init__(self, seed: int, *, load: float = 0.0, drift: float = 0.0, bursts: float = 0.0) -> None:
        self.random, self.now = np.random.default_rng(seed), 0.0
        self._load, self._drift, self._bursts = load, drift, bursts
        self._burst, self._burst_ends = 1.0, 0.0

    def monotonic(self) -> float:
        return self.now

    def times(self, seconds: float, count: int) -> np.ndarray:
        """Wall and CPU time of some inferences, shape (2, ``count``)."""
        if self.now >= self._burst_ends:
            self._burst_ends = self.now + self.random.exponential(4)
            self._burst = 2.0 if self.random.random() < self._bursts else 1.0
        # Another process shares the core, for some inferences at a time.
        shared = np.repeat(self.random.random(count) < self._load, 20)[:count]
        slower = (1 + 0.4 * shared) * self._burst * (1 + self._drift * self.now / 60)
        cpu = seconds * slower * self.random.lognormal(0.01, 0.01 + 0.1 * self._load, count)
        interrupted = self.random.random(count) < self._load
        wall = cpu + interrupted * self.random.exponential(0.004, count)
        self.now += float(wall.sum())
        return np.stack([wall, cpu])


class SimulatedEngine:
    """Stands in for an engine's process on a :class:`Machine`; ``waiting`` is time without work, not CPU time."""

    metrics: tuple[Metric, ...] = ("wall", "cpu-time")

    def __init__(self, machine: Machine, seconds: float = 2e-4, waiting: float = 0.0, apart: float = 0.004) -> None:
        self._machine, self._seconds, self._waiting, self._apart = machine, seconds, waiting, apart
        self.reopen()

    def reopen(self) -> None:
        self.opening_seconds = 1.0
        self._machine.now += 0.5  # both are opened at once
        self._now = self._seconds * math.exp(self._machine.random.normal(0, self._apart))
        self.seconds = self._now + self._waiting

    def visit(self, count: int, core: int | None) -> list[list[float]]:
        wall, cpu = self._machine.times(self._now, count)
        return [(wall + self._waiting).tolist(), cpu.tolist()]
