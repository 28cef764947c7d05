"""Exports to Triton: parsed by Triton's own definitions, and served by a double (``triton_double.py``)."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

pytest.importorskip("tritonclient.grpc")  # it is among the requirements of the tests
from tritonclient.grpc import model_config_pb2

import trtops
from tests import models
from tests.serving.triton_double import FAULTS, serving
from trtops import errors
from trtops.serving import client
from trtops.serving.triton import TritonModel
from trtops.tracking.store import open_tracker

Facts = dict[str, Any]
HELD = {"held": ["batch size", "permuted rows"], "broken": []}


def tensor(name: str, dtype: str, *shape: int) -> Facts:
    return {"name": name, "dtype": dtype, "shape": [*shape]}


def span(least: list[int], best: list[int], most: list[int]) -> Facts:
    return {"min": least, "opt": best, "max": most}


def images(least: int, best: int, most: int) -> Facts:
    """A profile for batches of images."""
    return {"image": span([least, 3, 8, 8], [best, 3, 8, 8], [most, 3, 8, 8])}


def of_verdict(verdict: str, *broken: str, reason: str = "", checked: bool = False) -> Facts:
    """Facts of an engine with a verdict, and of its self-check if it had one."""
    self_check = {"held": ["batch size"], "broken": [*broken]} if broken or checked else None
    return facts(verdict={"verdict": verdict, "reasons": [reason] if reason else [], "self_check": self_check})


IMAGE, SCORES = tensor("image", "float32", -1, 3, 8, 8), tensor("scores", "float32", -1, 10)
FIXED = {"inputs": [tensor("image", "float32", 2, 3, 8, 8)], "outputs": [tensor("scores", "float32", 2, 10)]}


def facts(**changes: Any) -> Facts:
    """Facts of an image classifier for TensorRT, with batches of 1 to 16."""
    content = {
        "engine": {"file": "engine.plan", "backend": "tensorrt", "options": {}},
        "environment": {"backend": "tensorrt"},
        "profiles": [images(1, 4, 16)],
        "inputs": [IMAGE],
        "outputs": [SCORES],
        "verdict": {"verdict": "good", "reasons": ["it differs"], "self_check": HELD},
    }
    return content | changes


def on_onnxruntime(*providers: str, **options: Any) -> Facts:
    chosen = {"providers": list(providers) or ["CPUExecutionProvider"], **options}
    return {
        "engine": {"file": "engine.ort", "backend": "onnxruntime", "options": chosen},
        "environment": {"backend": "onnxruntime"}, "profiles": [],
    }  # fmt: skip


def model(content: Facts, rows: int = 2, **options: Any) -> TritonModel:
    def arrays(entries: list[Facts]) -> dict[str, np.ndarray]:
        sizes = {entry["name"]: [rows if size == -1 else size for size in entry["shape"]] for entry in entries}
        return {
            e["name"]: np.zeros(sizes[e["name"]], "uint16" if e["dtype"] == "bfloat16" else e["dtype"]) for e in entries
        }

    feed, golden = arrays(content["inputs"]), arrays(content["outputs"])
    return TritonModel(**{"name": "digits", "facts": content, "feeds": [feed], "golden": [golden], **options})


def parsed(written: TritonModel) -> Any:
    return text_format.Parse(written.config(), model_config_pb2.ModelConfig())


SEQUENCE = {"inputs": [tensor("ids", "int64", -1, -1)], "outputs": [tensor("y", "float32", -1, -1, 8)]}
ROWS = {"inputs": [tensor("x", "float32", -1)], "outputs": [tensor("y", "int32", -1)]}
SIZES = {"size": span([1, 1], [4, 4], [9, 9])}
QUOTES = 'a "b"\\\n\u00e9'
DTYPES = ("float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool")
CUDA = on_onnxruntime("CUDAExecutionProvider", provider_settings={"use_tf32": "0"})
SHORT, LONG = span([1, 1], [8, 64], [32, 128]), span([1, 129], [2, 256], [8, 512])
# Facts, options, largest batch.
SOUND: dict[str, tuple[Facts, Facts, int]] = {
    "profile": (facts(), {}, 16),
    "smaller batch": (facts(), {"max_batch": 4}, 4),
    "batch of 1": (facts(), {"max_batch": 1}, 1),
    "no batches": (facts(), {"max_batch": 0}, 0),
    "instances": (facts(), {"instances": 2}, 16),
    "labels": (facts(), {"labels": tuple("0123456789")}, 16),
    "no self-check": (of_verdict("good"), {}, 0),
    "broken rows": (of_verdict("good", "equal rows"), {}, 0),
    "unproven": (of_verdict("unproven", checked=True), {"allow_unproven": True}, 16),
    "two profiles": (facts(profiles=[{"ids": SHORT}, {"ids": LONG}], **SEQUENCE), {}, 8),
    "split batches": (facts(profiles=[images(1, 1, 1), images(2, 8, 8)]), {}, 8),
    "gap in batches": (facts(profiles=[images(1, 4, 16), images(32, 32, 64)]), {}, 16),
    "profile without 1": (facts(profiles=[images(2, 2, 4)]), {}, 0),
    "static": (facts(profiles=[], **FIXED), {}, 0),
    "rank 1": (facts(profiles=[{"x": span([1], [4], [8])}], **ROWS), {}, 8),
    "shape tensor": (facts(profiles=[images(1, 4, 16) | SIZES], inputs=[IMAGE, tensor("size", "int32", 2)]), {}, 0),
    "quoted names": (facts(profiles=[{QUOTES: images(1, 4, 16)["image"]}], inputs=[IMAGE | {"name": QUOTES}]), {}, 16),
    **{dtype: (facts(inputs=[IMAGE | {"dtype": dtype}]), {}, 16) for dtype in DTYPES},
    "ONNX Runtime": (facts(**on_onnxruntime()), {"max_batch": 8}, 8),
    "ONNX Runtime, no limit": (facts(**on_onnxruntime()), {}, 0),
    "threads": (facts(**on_onnxruntime(intra_op_threads=2)), {"max_batch": 8}, 8),
    "CUDA": (facts(**CUDA), {"max_batch": 8}, 8),
    "scalars": (facts(**on_onnxruntime(), inputs=[tensor("x", "float64")], outputs=[tensor("y", "uint16")]), {}, 0),
    "five dimensions": (facts(profiles=[], inputs=[tensor("x", "float32", 2, 3, 4, 5, 6)]), {}, 0),
    "texts": (facts(**on_onnxruntime(), inputs=[tensor("x", "str", -1)]), {"max_batch": 4}, 4),
    "data-dependent": (facts(**on_onnxruntime(), outputs=[tensor("n", "int64", 1, -1)]), {}, 0),
    "names of models": (facts(), {"name": "ResNet-50_v1.5-fp16"}, 16),
}  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
def test_configuration_is_read_by_triton(name: str, tmp_path: Path) -> None:
    content, options, largest = SOUND[name]
    written = model(content, **options)

    config = parsed(written)

    assert config.max_batch_size == largest
    assert [t.name for t in config.input] == [t["name"] for t in content["inputs"]]
    for ours, theirs in zip((*content["inputs"], *content["outputs"]), (*config.input, *config.output)):
        batch = [-1] if largest else []
        assert [*batch, *([] if theirs.HasField("reshape") else theirs.dims)] == (ours["shape"] or [1])
        assert all(size == -1 or size > 0 for size in theirs.dims)
    assert config.HasField("dynamic_batching") == (largest > 1)
    assert all(size <= largest for size in config.dynamic_batching.preferred_batch_size)
    (group,) = config.instance_group
    assert len(group.profile) == (len(content["profiles"]) if len(content["profiles"]) > 1 else 0)
    assert [warmup.batch_size for warmup in config.model_warmup] == sorted({1, max(largest, 1)})
    version = written.write(tmp_path, {config.default_model_filename: b"engine"}, {})
    for warmup in config.model_warmup:
        for entry in warmup.inputs.values():
            assert (tmp_path / written.name / "warmup" / entry.input_data_file).stat().st_size > 0
    assert (version, config.name) == (1, written.name)
    assert (tmp_path / written.name / "labels.txt").exists() == ("labels" in options)


REFUSED: dict[str, tuple[Facts, Facts, str]] = {
    "bad": (of_verdict("bad", reason="it differs"), {}, "verdict is bad: it differs"),
    "error": (of_verdict("error"), {"allow_unproven": True}, "is error"),
    "unproven": (of_verdict("unproven", reason="random data"), {}, "--allow-unproven"),
    "profile without 1": (facts(profiles=[images(2, 2, 4)]), {"max_batch": 4}, "exclude batches of 1"),
    "beyond the profile": (facts(), {"max_batch": 32}, "up to 16"),
    "gap in batches": (facts(profiles=[images(1, 4, 16), images(32, 32, 64)]), {"max_batch": 64}, "up to 16"),
    "static": (facts(profiles=[], **FIXED), {"max_batch": 2}, "is not a batch"),
    "data-dependent": (facts(), {"max_batch": 4, "golden": [{"scores": np.zeros((7, 10))}]}, "depends on the data"),
    "no self-check": (of_verdict("good"), {"max_batch": 4}, "--self-check"),
    "broken rows": (of_verdict("good", "permuted rows"), {"max_batch": 4}, "depend on each other"),
    **{f"name {name!r}": (facts(), {"name": name}, "cannot be") for name in ("", "..", "a/b", ".x", " x", "*", "a+b")},
    "complex numbers": (facts(inputs=[IMAGE | {"dtype": "complex64"}]), {}, "does not take"),
    "float64 in TensorRT": (facts(outputs=[tensor("scores", "float64", -1, 10)]), {}, "does not take"),
    "scalar in TensorRT": (facts(outputs=[tensor("scores", "float32")]), {}, "scalar"),
    "empty": (facts(outputs=[tensor("scores", "float32", -1, 0)]), {}, "empty"),
    "TensorRT-RTX": (facts(environment={"backend": "tensorrt-rtx"}), {}, "no back end"),
    "another provider": (facts(**on_onnxruntime("TensorrtExecutionProvider")), {}, "TensorrtExecutionProvider"),
    "labels of others": (facts(), {"labels": ("a", "b")}, "2 labels are for"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_model_is_refused(name: str) -> None:
    content, options, reason = REFUSED[name]

    with pytest.raises(errors.ConfigError, match=re.escape(reason)):
        model(content, **options)


def test_versions_count_on_and_stay(tmp_path: Path) -> None:
    folder = tmp_path / "digits"
    for existing in ("2", "007", "10.bak", "notes"):
        (folder / existing).mkdir(parents=True)
        (folder / existing / "engine.plan").write_text(existing)

    versions = [model(facts()).write(tmp_path, {"engine.plan": b"new"}, {}) for _ in range(2)]

    assert versions == [11, 12]  # Triton takes 10.bak for version 10
    assert (folder / "2" / "engine.plan").read_text() == "2"
    with pytest.raises(errors.ConfigError, match="other inputs, outputs or batches"):
        model(facts(outputs=[tensor("y", "float32", -1, 2)])).write(tmp_path, {"engine.plan": b"other"}, {})
    assert not list(folder.glob("trtops*")) and not (folder / "13").exists()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with models of two outputs that batch, of numbers and of texts, and one that does not."""
    folder = tmp_path_factory.mktemp("triton")
    tracker = open_tracker(str(folder / "mlruns"))
    rng = np.random.default_rng(0)
    two = models.model(
        "(float[batch,6] x) => (float[batch,4] a, float[batch,4] b) { h = MatMul(x, w) a = Tanh(h) b = Sigmoid(h) }",
        {"w": models.random(6, 4, seed=1)},
    )
    texts = models.model("(string[batch] x) => (string[batch] y, float[batch] z) { y = Identity(x) z = Cast<to=1>(x) }")
    cases = {
        "texts": (texts, [{"x": np.array(["1", "2.5", "-3", f"{number}"])} for number in range(4)], 8),
        "two": (two, [{"x": rng.standard_normal((5, 6), np.float32)} for _ in range(5)], 8),
        "static": (
            models.conv_net().fixed().proto,
            [{"image": rng.standard_normal((2, 3, 8, 8), np.float32)} for _ in range(6)],
            None,
        ),
    }
    for name, (proto, feeds, largest) in cases.items():
        models.Case(proto, feeds[0]).write(folder, name)
        check = trtops.CheckConfig(data=feeds, self_check=True, plots="never", latency_runs=0)
        built = trtops.convert(folder / f"{name}.onnx", trtops.ConvertConfig(check=check), tracker=tracker)
        trtops.export(built.run_id, tracker=tracker, triton=str(folder / "models"), max_batch=largest)
    return folder / "models"


def repeat(repository: Path, name: str, fault: str = "", *, grpc: bool = False) -> tuple[int, str]:
    """Run the client against the double."""
    with serving(repository / name, fault) as addresses:
        script, options = repository / name / "client" / "client.py", ["--grpc"] * grpc
        command = [sys.executable, str(script), "--url", addresses[grpc], "--concurrency", "1", "8", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=repository)
    return done.returncode, done.stdout + done.stderr


def test_export_reads_labels_and_names_an_unproven_engine(tmp_path: Path) -> None:
    tracker = trtops.MemoryTracker()
    case = models.conv_net()
    path = case.write(tmp_path, "dynamic")
    check = trtops.CheckConfig(plots="never", latency_runs=0)
    built = trtops.convert(path, trtops.ConvertConfig(check=check), tracker=tracker)
    names = [f"class {number}" for number in range(case.proto.graph.output[0].type.tensor_type.shape.dim[-1].dim_value)]
    (tmp_path / "labels.txt").write_text("\n".join(names))  # some editors write no newline at the end
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe")
    options = {"tracker": tracker, "triton": str(tmp_path / "models"), "name": "dynamic", "allow_unproven": True}

    trtops.export(built.run_id, **options)
    exported = trtops.export(built.run_id, labels=str(tmp_path / "labels.txt"), **options)

    assert exported.version == 2 and exported.because[0] == "the engine's verdict is unproven"
    assert (tmp_path / "models" / "dynamic" / "labels.txt").read_text().split("\n")[:-1] == names
    with pytest.raises(errors.FormatError, match="cannot be read as txt"):
        trtops.export(built.run_id, labels=str(tmp_path / "binary.txt"), **options)


@pytest.mark.parametrize("name, grpc", [("two", False), ("two", True), ("static", False), ("texts", True)])
def test_client_repeats_the_verdict(repository: Path, name: str, grpc: bool) -> None:
    code, printed = repeat(repository, name, grpc=grpc)

    assert (code, printed.splitlines()[-1].split(" (")[0]) == (0, "verdict: good"), printed


@pytest.mark.parametrize("fault", FAULTS)
def test_client_finds_the_fault(repository: Path, fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder, grpc = repository / "two", FAULTS.index(fault) % 2 == 1
    with serving(folder, fault) as addresses:
        verdict = client.verdict(
            client.Client(addresses[grpc], "two", "1", grpc=grpc), client.Case(folder / "client"), [1, 8], 2
        )

    assert verdict == "bad", capsys.readouterr().out


def test_client_finds_stale_outputs_without_batches(repository: Path) -> None:
    assert "belong to other requests" in repeat(repository, "static", "stale outputs")[1]


def test_client_sends_enough_requests_to_run_at_once(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = repository / "static"  # with six inputs, one request each
    with serving(folder) as addresses:
        server = client.Client(addresses[0], "static", "1", grpc=False)
        assert client.verdict(server, client.Case(folder / "client"), [16], 1) == "good"

    assert capsys.readouterr().out == "18 requests, 16 at once: good\n"


def test_client_without_a_server_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["client.py", "--url", "localhost:1", "--model", "digits"])

    with pytest.raises(SystemExit, match="digits at localhost:1 was not checked"):
        client.main()


def test_client_proves_nothing_by_equal_answers(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = client.Case(repository / "static" / "client")
    case.feeds, case.golden = case.feeds[:1] * 3, case.golden[:1] * 3
    with serving(repository / "static") as addresses:
        assert client.verdict(client.Client(addresses[0], "static", "1", grpc=False), case, [2], 1) == "unproven"

    assert "answers to other requests would not show" in capsys.readouterr().out
