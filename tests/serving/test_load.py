"""The loader: what it refuses before any code of an engine runs, and what it loads."""

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests import models
from tests.keys import new_key
from tests.serving import folders
from trtops.backend.engines import engine_backend
from trtops.backend.environment import processor
from trtops.serving import load as loader
from trtops.serving.load import EngineRefusedError, load
from trtops.spec import BuildConfig

Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def engine() -> tuple[Any, dict[str, Any], bytes]:
    return folders.built(models.conv_net())


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The public key; the private one signs."""
    new_key(tmp_path / "key.pem", tmp_path / "key.pub")
    monkeypatch.setenv("TRTOPS_SIGNING_KEY", str(tmp_path / "key.pem"))
    return tmp_path / "key.pub"


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each session that ONNX Runtime creates."""
    created: list[str] = []
    create = ort.InferenceSession.__init__

    def counted(self: Any, *args: Any, **options: Any) -> None:
        created.append("session")
        create(self, *args, **options)

    monkeypatch.setattr(ort.InferenceSession, "__init__", counted)
    return created


def refused(folder: Path, key: Path, **options: Any) -> str:
    with pytest.raises(EngineRefusedError) as refusal:
        load(folder, key, **options)
    return str(refusal.value)


def changed_files(sound: Path) -> Iterator[tuple[str, Callable[[Path], object]]]:
    """Changes of a folder's files, with a name each."""
    for name in sorted(path.name for path in sound.iterdir()):
        content = (sound / name).read_bytes()
        # What a bundle says of itself outside its envelope is not signed, and not used.
        start = content.index(b'"payload": "') + 12 if name == "certificate.sig" else 0
        end = content.index(b'"', start) if start else len(content)
        for position in range(start, end, (end - start) // 9):
            yield f"{name} bit at {position}", lambda folder, n=name, p=position: flip(folder / n, p, 1)  # type: ignore[misc]
        yield f"{name} cut", lambda folder, n=name: (folder / n).write_bytes((folder / n).read_bytes()[:-9])  # type: ignore[misc]
        yield f"{name} empty", lambda folder, n=name: (folder / n).write_bytes(b"")  # type: ignore[misc]
        yield f"{name} absent", lambda folder, n=name: (folder / n).unlink()  # type: ignore[misc]
        yield f"{name} a link", lambda folder, n=name: linked(folder / n)  # type: ignore[misc]
        yield f"{name} a pipe", lambda folder, n=name: ((folder / n).unlink(), os.mkfifo(folder / n))  # type: ignore[misc]
    yield "one more file", lambda folder: (folder / "model.onnx").write_bytes(b"x")
    yield "engine renamed", lambda folder: (folder / "engine.ort").rename(folder / "engine.onnx")


def flip(path: Path, position: int, bits: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= bits
    path.write_bytes(content)


def linked(path: Path) -> None:
    target = path.parent.parent / f"{path.parent.name}-{path.name}"
    path.rename(target)
    path.symlink_to(target)


def signed(folder: Path, bundle: Callable[[dict[str, Any]], object]) -> None:
    """Change a bundle."""
    path = folder / "certificate.sig"
    content = json.loads(path.read_bytes())
    bundle(content["dsseEnvelope"])
    path.write_text(json.dumps(content))


BUNDLES: dict[str, Change] = {
    "no signature": lambda e: e.update(signatures=[]),
    "two signatures": lambda e: e.update(signatures=e["signatures"] * 2),
    "zeros": lambda e: e["signatures"][0].update(sig=base64.b64encode(bytes.fromhex("3006020100020100")).decode()),
    "short": lambda e: e["signatures"][0].update(sig=base64.b64encode(b"0").decode()),
    "not base64": lambda e: e["signatures"][0].update(sig="????"),
    "other payload": lambda e: e.update(payload=base64.b64encode(b"{}").decode()),
    "no payload": lambda e: e.pop("payload"),
    "payload is a list": lambda e: e.update(payload=[]),
}
FACTS: dict[str, tuple[Change, str]] = {
    "expired": (lambda f: f.update(expires=time.time() - 1), "expired"),
    "expired long ago": (lambda f: f.update(expires=0), "expired"),
    "expires at no time": (lambda f: f.update(expires=float("nan")), "expired"),
    "expires in words": (lambda f: f.update(expires="tomorrow"), "no valid certificate"),
    "bad": (lambda f: f["verdict"].update(verdict="bad"), "verdict is 'bad'"),
    "unproven": (lambda f: f["verdict"].update(verdict="unproven"), "verdict is 'unproven'"),
    "no verdict": (lambda f: f.pop("verdict"), "no valid certificate"),
    "another format": (lambda f: f.update(format=2), "another format"),
    "another engine": (lambda f: f["engine"].update(sha256="0" * 64), "another engine"),
    "no fingerprint": (lambda f: f.update(fingerprint={}), "does not run"),
    "older release": (lambda f: f["environment"].update(backend_version="1.17.0"), "was onnxruntime 1.17.0"),
    "newer release": (lambda f: f["environment"].update(backend_version="9.0"), "was onnxruntime 9.0"),
    "development release": (lambda f: f["environment"].update(backend_version="1.31.1+dev"), "was onnxruntime"),
    "another processor": (lambda f: f["environment"].update(device="Z80", device_sha256="1" * 64), "was Z80 (1111"),
    "no processor": (lambda f: f["environment"].update(device_sha256=""), "was "),
    "no release": (lambda f: f["environment"].update(backend="numpy.linalg"), "needs numpy.linalg"),
    "a GPU": (lambda f: f["environment"].update(compute_capability="9.0", device="H100"), "needs onnxruntime and H100"),
    "TensorRT": (lambda f: f["environment"].update(backend="tensorrt"), "needs tensorrt"),
    "no model": (lambda f: f.pop("model"), "no valid certificate"),
    "a model without digest": (lambda f: f["model"].pop("sha256"), "no valid certificate"),
    "a model that is a number": (lambda f: f["model"].update(sha256=7), "another format"),
    "no environment": (lambda f: f.pop("environment"), "no valid certificate"),
    "a processor that is a number": (lambda f: f["environment"].update(device_sha256=7), "another format"),
    "no outputs": (lambda f: f.update(outputs=[]), "no valid certificate"),
    "another output": (lambda f: f["outputs"][0].update(name="z"), "does not run"),
    "another input": (lambda f: f["inputs"][0].update(name="z"), "does not run"),
    "another dtype": (lambda f: f["inputs"][0].update(dtype="float16"), "does not run"),
    "another shape": (lambda f: f["inputs"][0]["shape"].append(1), "does not run"),
    "outside the profile": (lambda f: f.update(profiles=[{"image": {"min": [9] * 4, "max": [9] * 4}}]), "do not fit"),
}  # fmt: skip


def test_changed_folder_is_refused_before_the_engine_loads(
    tmp_path: Path, key: Path, engine: Any, sessions: list[str]
) -> None:
    built, facts, inputs = engine
    sound = folders.write(tmp_path / "sound", built.plan, facts, inputs)
    new_key(tmp_path / "other.pem", tmp_path / "other.pub")
    other = folders.write(tmp_path / "other", built.plan, facts, inputs, lambda f: f.update(run="1" * 32))
    changes = dict(changed_files(sound))
    changes["signature of another folder"] = lambda folder: shutil.copy(other / "certificate.sig", folder)
    for name, change in BUNDLES.items():
        changes[name] = lambda folder, change=change: signed(folder, change)
    for number, (name, apply) in enumerate(changes.items()):
        folder = shutil.copytree(sound, tmp_path / f"changed-{number}")
        apply(folder)
        assert refused(folder, key), name
    assert refused(sound, tmp_path / "other.pub")
    assert len(changes) > 65
    assert sessions == []


@pytest.mark.parametrize("name", FACTS)
def test_signed_facts_that_do_not_fit_are_refused(name: str, tmp_path: Path, key: Path, engine: Any) -> None:
    change, reason = FACTS[name]
    built, facts, inputs = engine

    folder = folders.write(tmp_path / "engine", built.plan, facts, inputs, change)

    assert reason in refused(folder, key, model=facts["model"]["sha256"])


STATEMENTS: dict[str, Change] = {
    "of another kind": lambda s: s.update(_type="https://in-toto.io/Statement/v0.1"),
    "a bill of materials": lambda s: s.update(predicateType="https://cyclonedx.org/bom"),
    "MD5": lambda s: s["predicate"]["resources"][0].update(algorithm="md5"),
    "other files": lambda s: s["predicate"]["resources"][0].update(digest="0" * 64),
    "another subject": lambda s: s["subject"][0]["digest"].update(sha256="0" * 64),
    "no subject": lambda s: s.update(subject=[]),
    "no files": lambda s: s["predicate"].update(resources=[]),
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_other_statement_of_the_trusted_key_is_refused(name: str, tmp_path: Path, key: Path, engine: Any) -> None:
    folder = folders.write(tmp_path / "engine", engine[0].plan, *engine[1:])
    folders.sign_again(folder, STATEMENTS[name])

    assert "no valid certificate" in refused(folder, key)


@pytest.mark.parametrize("index, value", [(3, 2e-5), (0, np.nan), (7, np.inf)])
def test_engine_that_does_not_repeat_its_outputs_is_refused(
    index: int, value: float, tmp_path: Path, key: Path, engine: Any
) -> None:
    arrays = dict(np.load(folders.io.BytesIO(engine[2])))
    arrays["output_0"].flat[index] += value * (1 + abs(arrays["output_0"].flat[index]))

    folder = folders.write(tmp_path / "engine", engine[0].plan, engine[1], folders.npz(arrays))

    assert "does not repeat its output 'scores'" in refused(folder, key)


def test_weights_outside_the_signed_file_are_refused(
    tmp_path: Path, key: Path, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime would read them from the working folder."""
    models.write_external(models.conv_net(), tmp_path)
    monkeypatch.chdir(tmp_path)
    content = (tmp_path / "conv_net.onnx").read_bytes()
    ort.InferenceSession(content, providers=["CPUExecutionProvider"])
    facts = engine[1] | {"engine": engine[1]["engine"] | {"file": "engine.onnx", "sha256": folders.sha256(content)}}
    folder = folders.write(tmp_path / "engine", content, facts, engine[2])

    assert "does not run" in refused(folder, key)


SOUND = [
    models.identity, models.multi_output, models.data_dependent, models.conv_net, models.branch, models.loop,
    models.dynamic_identity, models.reshape, models.transformer, models.foldable,
]  # fmt: skip
PRECISIONS = ["fp32", "fp16"]
if not os.environ.get("TRTOPS_TEST_LONG"):
    SOUND, PRECISIONS = SOUND[:6], PRECISIONS[:1]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("case_of", SOUND)
def test_sound_engine_loads(case_of: Callable[[], models.Case], precision: Any, tmp_path: Path, key: Path) -> None:
    case = case_of()
    engine, facts, inputs = folders.built(case, BuildConfig(precision=precision))
    folder = folders.write(tmp_path / "engine", engine.plan, facts, inputs)

    loaded = load(folder, key, model=facts["model"]["sha256"])

    assert loaded.changes == []
    with engine_backend("onnxruntime").runner(engine) as runner:
        for output, array in runner.infer(dict(case.feed)).items():
            np.testing.assert_array_equal(loaded(case.feed)[output], array)
    with pytest.raises(ValueError, match="do not fit"):
        loaded({**case.feed, "unknown": np.zeros(1)})
    assert "expected 0" in refused(folder, key, model="0" * 64)


def test_processor_is_that_of_builds() -> None:
    name, identity = loader._processor()

    assert (name, folders.digest(identity)) == (processor().name, processor().sha256)


def test_profile_limits_the_shapes(tmp_path: Path, key: Path) -> None:
    engine, facts, inputs = folders.built(models.dynamic_identity())
    name, shape = facts["inputs"][0]["name"], [*models.dynamic_identity().feed[facts["inputs"][0]["name"]].shape]
    facts["profiles"] = [{name: {"min": shape, "opt": shape, "max": [*shape[:3], 2 * shape[3]]}}]
    loaded = load(folders.write(tmp_path / "engine", engine.plan, facts, inputs), key)

    loaded({name: np.ones([*shape[:3], 2 * shape[3]], np.float32)})
    for wrong in (np.ones([*shape[:3], 3 * shape[3]], np.float32), np.ones(shape)):
        with pytest.raises(ValueError, match="do not fit"):
            loaded({name: wrong})


def test_texts_and_scalars_are_taken_as_users_have_them(tmp_path: Path, key: Path) -> None:
    text = (
        "(string[n] x, float z) => (string[n] same, float[n] y) { same = Identity(x) w = Cast<to=1>(x) y = Mul(w, z) }"
    )
    feed = {"x": np.array(["1", "2.5"]), "z": np.array(2, np.float32)}
    engine, facts, inputs = folders.built(models.Case(models.model(text), feed))
    loaded = load(folders.write(tmp_path / "engine", engine.plan, facts, inputs), key)

    outputs = loaded({"x": np.array(["-3", "10.25", "0"], object), "z": np.float32(2)})
    assert outputs["same"].tolist() == ["-3", "10.25", "0"] and outputs["y"].tolist() == [-6, 20.5, 0]
    with pytest.raises(ValueError, match="do not fit"):
        loaded({"x": [1, 2], "z": np.float32(2)})


def test_changed_stack_takes_another_engine_or_rebuilds(tmp_path: Path, key: Path, engine: Any) -> None:
    built, facts, inputs = engine
    release = facts["environment"]["backend_version"]
    old = folders.write(
        tmp_path / "old", built.plan, facts, inputs, lambda f: f["environment"].update(backend_version="1.17.0")
    )
    engines = tmp_path / "engines"
    folders.write(engines / "a-bad", built.plan, facts, inputs, lambda f: f["verdict"].update(verdict="bad"))
    folders.write(engines / "b-tampered", built.plan, facts, inputs)
    flip(engines / "b-tampered" / "engine.ort", 99, 1)
    folders.write(engines / "c-other-model", built.plan, facts, inputs, lambda f: f["model"].update(sha256="0" * 64))

    for others in (engines, tmp_path / "missing"):
        assert f"onnxruntime {release}, was onnxruntime 1.17.0" in refused(old, key, others=str(others))

    folders.write(engines / "d-sound", built.plan, facts, inputs)
    assert load(old, key, others=str(engines)).folder == engines / "d-sound"

    rebuilt = load(old, key, rebuild=lambda given: models.conv_net().proto.SerializeToString())
    assert "was onnxruntime 1.17.0" in rebuilt.changes[0]
    models.conv_net().check(rebuilt)
    wrong = models.off_by(models.conv_net().proto, 0.1, "softmax").SerializeToString()
    assert "does not repeat" in refused(old, key, rebuild=lambda given: wrong)


def test_file_runs_alone(tmp_path: Path, key: Path, engine: Any) -> None:
    """In a process that has numpy and ONNX Runtime, and no trtops."""
    folder = folders.write(tmp_path / "engine", engine[0].plan, *engine[1:])
    shutil.copy(loader.__file__, tmp_path / "load.py")
    np.savez(tmp_path / "feed.npz", **models.conv_net().feed)  # type: ignore[arg-type]
    script = (
        "import sys, numpy as np; sys.modules['trtops'] = sys.modules['cryptography'] = None; from load import load; "
        f"print({{k: v.shape for k, v in load({str(folder)!r}, {str(key)!r})(dict(np.load('feed.npz'))).items()}})"
    )

    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)

    assert done.stdout == "{'scores': (2, 10)}\n", done.stderr


def test_signatures_agree_with_cryptography(key: Path) -> None:
    point = loader._public_key(key)
    for number in range(8):
        signature = folders.signature(b"%d" % number)
        assert loader._signs(point, signature, b"%d" % number)
        assert not loader._signs(point, signature, b"%d" % (number + 1))


def test_key_of_another_kind_is_an_error(tmp_path: Path) -> None:
    key = rsa.generate_private_key(65537, 2048).public_key()
    (tmp_path / "rsa.pub").write_bytes(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))

    with pytest.raises(ValueError, match="P-256"):
        load(tmp_path, tmp_path / "rsa.pub")
