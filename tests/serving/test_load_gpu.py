"""The loader with engines of TensorRT: certified plans load without trtops, and changed ones are refused."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trtops
from tests import models
from tests.keys import new_key
from tests.serving import folders
from trtops.backend.trt import current_gpu
from trtops.serving import load as loader
from trtops.serving.load import EngineRefusedError, load
from trtops.spec import BuildConfig, OptimizationProfile, Precision, ShapeRange
from trtops.system import signing
from trtops.tracking.memory import MemoryTracker

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

PROFILES = tuple(
    OptimizationProfile(shapes=(ShapeRange(name="image", min=(low, 3, 8, 8), opt=(low, 3, 8, 8), max=(high, 3, 8, 8)),))
    for low, high in ((1, 2), (3, 8))
)


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The public key; the private one signs."""
    new_key(tmp_path / "key.pem", tmp_path / "key.pub")
    monkeypatch.setenv(signing.KEY_VARIABLE, str(tmp_path / "key.pem"))
    return tmp_path / "key.pub"


def certified(case: models.Case, folder: Path, precision: Precision = "fp32", **build: Any) -> Path:
    """A certified engine of TensorRT in ``folder``; its model and feed lie next to it."""
    tracker = MemoryTracker()
    np.savez(folder.with_suffix(".npz"), **case.feed)  # type: ignore[arg-type]
    config = trtops.ConvertConfig(
        build=BuildConfig(precision=precision, options=trtops.TensorRTOptions(optimization_level=1), **build),
        check=trtops.CheckConfig(data=str(folder.with_suffix(".npz"))),
    )
    run = trtops.convert(case.write(folder.parent, folder.name), config, tracker=tracker)
    assert run.verdict == "good", run.page()
    trtops.write_certificate(run.run_id, folder, tracker=tracker)
    return folder


@pytest.mark.parametrize("name", ["identity", "multi_output", "convolutions", "transformer"])
def test_certified_plan_loads_without_trtops(name: str, tmp_path: Path, key: Path) -> None:
    case = models.three_convolutions(16, 256, 14, 0.02, name) if name == "convolutions" else getattr(models, name)()
    folder = certified(case, tmp_path / "engine", "fp16" if name == "convolutions" else "fp32")
    shutil.copy(loader.__file__, tmp_path / "load.py")
    script = (
        "import sys, numpy as np; sys.modules['trtops'] = sys.modules['cryptography'] = None; from load import load; "
        f"engine = load({str(folder)!r}, {str(key)!r}); feed = dict(np.load('engine.npz')); "
        "print(engine.changes, len({v.tobytes() for _ in range(3) for v in [engine(feed)[sorted(engine(feed))[0]]]})); "
        "np.savez('outputs.npz', **engine(feed))"
    )

    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120)

    assert done.stdout.splitlines()[-1:] == ["[] 1"], done.stderr
    expected = models.run(case.proto, case.feed)
    with np.load(tmp_path / "outputs.npz") as outputs:
        for output, array in expected.items():
            np.testing.assert_allclose(outputs[output], array, atol=2e-2, rtol=2e-2)


def test_each_profile_takes_its_shapes(tmp_path: Path, key: Path) -> None:
    """Calls change between profiles and sizes; a shape that no profile takes is refused."""
    case = models.conv_net()
    engine = load(certified(case, tmp_path / "net", profiles=PROFILES), key)
    for batch in (1, 8, 2, 3, 5, 1, 8):
        feed = {"image": models.random(batch, 3, 8, 8, seed=batch)}
        np.testing.assert_allclose(engine(feed)["scores"], models.run(case.proto, feed)["scores"], atol=1e-3, rtol=1e-3)
    for batch in (0, 9):
        with pytest.raises(ValueError, match="do not fit"):
            engine({"image": models.random(batch, 3, 8, 8)})


def test_changed_plan_and_stack_are_refused(tmp_path: Path, key: Path) -> None:
    """A changed stack takes another engine of the folder, or the bytes of the hook, which must repeat the outputs."""
    case, gpu = models.conv_net(), current_gpu()
    sound = certified(case, tmp_path / "net")
    facts = load(sound, key).facts
    plan, inputs = (sound / facts["engine"]["file"]).read_bytes(), (sound / "inputs.npz").read_bytes()
    assert facts["environment"]["device"] == gpu.name

    tampered = Path(shutil.copytree(sound, tmp_path / "tampered"))
    (tampered / facts["engine"]["file"]).write_bytes(plan[:-1] + bytes([plan[-1] ^ 1]))
    with pytest.raises(EngineRefusedError, match="is not what was signed"):
        load(tampered, key)

    def refused(name: str, engine: bytes, **options: Any) -> str:
        def change(signed: dict[str, Any]) -> None:
            signed["environment"].update(options.pop("environment", {}))
            signed["engine"]["sha256"] = folders.sha256(engine)

        folder = folders.write(tmp_path / name, engine, facts, inputs, change)
        with pytest.raises(EngineRefusedError) as refusal:
            load(folder, key, **options)
        return str(refusal.value)

    assert "does not run" in refused("cut", plan[: len(plan) // 2])
    assert "does not run" in refused("none", b"plan")
    assert "was tensorrt 7.0.0" in refused("older", plan, environment={"backend_version": "7.0.0"})
    other_gpu = {"device": "NVIDIA T4", "device_sha256": "1" * 64, "compute_capability": "7.5"}
    assert "was NVIDIA T4 (1111" in refused("other-gpu", plan, environment=other_gpu)
    wrong = certified(models.Case(models.off_by(case.proto, 0.1, "softmax"), case.feed), tmp_path / "wrong")
    wrong_plan = (wrong / load(wrong, key).facts["engine"]["file"]).read_bytes()
    assert "does not repeat its output 'scores'" in refused("of-another-model", wrong_plan)

    older = folders.write(
        tmp_path / "old", plan, facts, inputs, lambda f: f["environment"].update(backend_version="7.0.0")
    )
    shutil.copytree(sound, tmp_path / "engines" / "net")
    assert load(older, key, others=str(tmp_path / "engines")).folder == tmp_path / "engines" / "net"
    assert "was tensorrt 7.0.0" in load(older, key, rebuild=lambda given: plan).changes[0]
    with pytest.raises(EngineRefusedError, match="does not repeat"):
        load(older, key, rebuild=lambda given: wrong_plan)
