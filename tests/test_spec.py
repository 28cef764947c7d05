"""What decides an engine: the spec's digest changes when, and only when, something deciding does."""

import dataclasses
from typing import Any

import pytest

from trtops import errors
from trtops.metadata import DataType, TensorSpec
from trtops.spec import (
    BuildConfig,
    BuildSpec,
    Environment,
    Layer,
    ModelInfo,
    OnnxRuntimeOptions,
    OptimizationProfile,
    ShapeRange,
    TensorRTOptions,
)

RANGE = ShapeRange(name="x", min=(1,), opt=(2,), max=(4,))
PROFILE = OptimizationProfile(shapes=(RANGE,))
SPEC = BuildSpec(model_sha256="a" * 64, config=BuildConfig())


def spec_of(part: Any) -> BuildSpec:
    """A spec that differs from others only in this part."""
    if isinstance(part, BuildSpec):
        return part
    if isinstance(part, ShapeRange):
        part = OptimizationProfile(shapes=(part,))
    if isinstance(part, OptimizationProfile):
        part = BuildConfig(profiles=(part,))
    if isinstance(part, (OnnxRuntimeOptions, TensorRTOptions)):
        part = BuildConfig(options=part)
    return dataclasses.replace(SPEC, config=part)


INT8 = BuildConfig(precision="int8")

# For each class: a base, and another value for each field. A new field needs another value here.
DECIDING: dict[type, tuple[Any, dict[str, Any]]] = {
    ShapeRange: (RANGE, {"name": "y", "min": (2,), "opt": (3,), "max": (5,)}),
    OptimizationProfile: (PROFILE, {"shapes": ()}),
    OnnxRuntimeOptions: (
        OnnxRuntimeOptions(),
        {
            "kind": None, "providers": ("CUDAExecutionProvider", "CPUExecutionProvider"), "tactics": (),
            "allow_approximation": True, "timing_iterations": 9, "timing_seconds": 9.0, "intra_op_threads": 1,
            "tactic_seed": 0, "tf32": True, "cpu_fallback": False,
        },
    ),
    TensorRTOptions: (
        TensorRTOptions(),
        {
            "kind": None, "tf32": True, "record_tactics": False, "also": ("fp16",), "strongly_typed": True,
            "precision_constraints": "obey", "layer_precisions": (("conv1", "float32"),), "use_dla": True,
            "avg_timing_iterations": 0, "max_num_tactics": 0, "l2_limit_for_tiling": 0, "build_route": "-a=b",
            "allow_gpu_fallback": True, "workspace_bytes": 0, "optimization_level": 0, "tactic_sources": (),
            "sparse_weights": True, "refittable": True, "version_compatible": True, "tactic_seed": 0,
        },
    ),
    BuildConfig: (
        INT8,
        {
            "precision": "fp16", "profiles": (PROFILE,), "calibration_samples": 65, "calibration_fit": "partial",
            "keep": ("head",), "mark": ("head",), "options": TensorRTOptions(),
            "qdq_op_types": ("Conv",), "qdq_rules": (),
        },
    ),
    BuildSpec: (
        dataclasses.replace(SPEC, config=INT8),
        {
            "model_sha256": "b" * 64, "config": BuildConfig(), "timing_cache_sha256": "c", "calibration_sha256": "d",
            "replay_sha256": "e", "denied_sha256": "f", "timed_shapes": (("x", (2, 3)),), "engine_sha256": "e",
            "unknown": ("builder flags",),
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("cls", DECIDING, ids=lambda c: c.__name__)
def test_digest_changes_with_every_field(cls: type) -> None:
    base, others = DECIDING[cls]
    assert {field.name for field in dataclasses.fields(cls)} == set(others)
    for name, value in others.items():
        if name != "kind":  # which the class has
            assert spec_of(base).digest != spec_of(dataclasses.replace(base, **{name: value})).digest, name
    assert spec_of(OnnxRuntimeOptions()).digest != spec_of(TensorRTOptions()).digest


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (BuildConfig(calibration_samples=8), BuildConfig(calibration_samples=9)),
        (SPEC, dataclasses.replace(SPEC, calibration_sha256="unused unless INT8")),
        (BuildConfig(calibration_fit="partial"), BuildConfig()),
        (BuildConfig(keep=("head",), qdq_rules=(), qdq_op_types=("Conv",)), BuildConfig()),
        (BuildConfig(precision="fp16", keep=("b", "a", "a")), BuildConfig(precision="fp16", keep=("a", "b"))),
        (BuildConfig(mark=("b", "a")), BuildConfig(mark=("a", "b"))),
        (
            OptimizationProfile(shapes=(RANGE, dataclasses.replace(RANGE, name="a"))),
            OptimizationProfile(shapes=(dataclasses.replace(RANGE, name="a"), RANGE)),
        ),
        (OnnxRuntimeOptions(tactics=("b", "a", "a")), OnnxRuntimeOptions(tactics=("a", "b"))),
        (TensorRTOptions(also=("fp16", "bf16")), TensorRTOptions(also=("bf16", "fp16"))),
        (TensorRTOptions(tactic_sources=("B", "A")), TensorRTOptions(tactic_sources=("A", "B"))),
    ],
)
def test_digest_ignores_undecided_fields(first: Any, second: Any) -> None:
    assert first != second
    assert spec_of(first).digest == spec_of(second).digest


def test_the_order_of_profiles_and_providers_decides() -> None:
    other = OptimizationProfile.fixed(x=(3,))
    for original, turned in (
        (BuildConfig(profiles=(PROFILE, other)), BuildConfig(profiles=(other, PROFILE))),
        (OnnxRuntimeOptions(providers=("A", "B")), OnnxRuntimeOptions(providers=("B", "A"))),
    ):
        assert spec_of(original).digest != spec_of(turned).digest


ENVIRONMENT = Environment(backend="onnxruntime", backend_version="1.31", device="cpu", device_sha256="f" * 64)
BUILD_DECIDING = {"backend", "backend_version", "device_sha256", "driver", "cuda", "cudnn", "os", "packages"}
BUILD_NOT_DECIDING = {"device", "compute_capability", "python", "host", "git_commit"}


@pytest.mark.parametrize("name", sorted(BUILD_DECIDING | BUILD_NOT_DECIDING))
def test_the_build_digest_changes_only_with_what_decides(name: str) -> None:
    value: Any = (("onnx", "1.0"),) if name == "packages" else "other"
    changed = dataclasses.replace(ENVIRONMENT, **{name: value})

    assert (changed.build_digest() != ENVIRONMENT.build_digest()) == (name in BUILD_DECIDING)


def test_records_survive_json_with_their_digest() -> None:
    tensors = (TensorSpec("x", DataType.BFLOAT16, (1, "n", None)), TensorSpec("y"))
    for record in (
        dataclasses.replace(ENVIRONMENT, packages=(("onnx", "1.0"),), git_commit="abc-dirty"),
        Layer(name="l", op="Conv", inputs=("x",), onnx_nodes=("a", "b")),
        ModelInfo(name="m", sha256="0" * 64, inputs=tensors, outputs=tensors[:1], opset=17, nodes=3),
        *(spec_of(base) for base, _ in DECIDING.values()),
    ):
        copy = type(record).from_json(record.to_json())
        assert copy == record and hash(copy) == hash(record) and copy.digest == record.digest


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"precision": "fp61"}, "precision: .*found 'fp61'"),
        ({"profiles": [{"shapes": [{"name": "x", "min": [1], "opt": [1]}]}]}, "profiles.0.shapes.0.max: Field req"),
        ({"options": {"kind": "tensorrt", "tf23": True}}, "unknown field 'options.TensorRTOptions.tf23'"),
        ({"calibration_samples": "64"}, "calibration_samples: expected int"),
        ({"calibration_samples": 0}, "calibration_samples: found 0; expected 1 or more"),
    ],
)
def test_damaged_configs_name_the_field(data: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.FormatError, match=message):
        BuildConfig.from_dict(data)


def test_invalid_configs_are_refused() -> None:
    with pytest.raises(errors.ConfigError, match=r"precision: found 'fp61'; .* Did you mean 'fp16'"):
        BuildConfig(precision="fp61")  # type: ignore[arg-type]
    for opt in ((1,), (4,), (2, 2)):
        with pytest.raises(errors.ConfigError, match=r"'x': min .* must have one rank, and min <= opt <= max"):
            ShapeRange(name="x", min=(2,), opt=opt, max=(3,))
