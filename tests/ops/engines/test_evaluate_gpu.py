"""Plans that plain TensorRT builds: good ones are good, wrong ones are named."""

from pathlib import Path
from typing import Any

import pytest

import trtops
from tests import models
from trtops.tracking.memory import MemoryTracker

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def plan(model: Path, path: Path, *, fp16: bool = False, profiles: int = 1) -> None:
    """Build a plan of a dynamic model by TensorRT's own Python API."""
    import tensorrt as trt

    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    flag: Any = getattr(trt.NetworkDefinitionCreationFlag, "EXPLICIT_BATCH", None)
    network = builder.create_network(0 if flag is None else 1 << int(flag))
    parser, config = trt.OnnxParser(network, logger), builder.create_builder_config()
    assert parser.parse(model.read_bytes())
    if fp16:
        config.set_flag(trt.BuilderFlag.FP16)
    config.builder_optimization_level = 1
    for number in range(profiles):
        profile = builder.create_optimization_profile()
        for index in range(network.num_inputs):
            tensor = network.get_input(index)
            sizes = [tuple(size if dim < 0 else dim for dim in tensor.shape) for size in (1, 2 + number, 4 + number)]
            profile.set_shape(tensor.name, *sizes)
        config.add_optimization_profile(profile)
    path.write_bytes(bytes(builder.build_serialized_network(network, config)))


def test_plans_of_plain_tensorrt(tmp_path: Path) -> None:
    case, engines = models.conv_net(), tmp_path / "engines"
    engines.mkdir()
    model, other = case.write(tmp_path, "net"), models.two_convolutions(3, 4).write(tmp_path, "other")
    plan(model, engines / "net.plan")
    plan(model, engines / "two_profiles.plan", profiles=2)
    plan(other, engines / "other.plan")
    if hasattr(__import__("tensorrt").BuilderFlag, "FP16"):
        plan(model, engines / "half.plan", fp16=True)
    (engines / "cut.plan").write_bytes((engines / "net.plan").read_bytes()[:-100])

    result = trtops.evaluate(engines, model, tracker=MemoryTracker())

    verdicts = {Path(engine.file).stem: engine.verdict for engine in result.engines}
    assert (verdicts.pop("other"), verdicts.pop("cut")) == ("bad", "error")
    assert set(verdicts.values()) == {"good"}, [(engine.file, engine.reasons) for engine in result.engines]
    assert all("builder flags" in engine.unknown for engine in result.engines if engine.verdict == "good")
