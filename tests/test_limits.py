"""Bombs: what would take too much memory, or never end, is refused, and the message says what would have happened."""

import os
import resource
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests import bombs, models
from trtops import errors
from trtops.backend.onnx import fold, shapes
from trtops.backend.onnx.hostile import check_inlined_size
from trtops.backend.onnx.model import Model
from trtops.cli.main import main
from trtops.json.numpy_files import load_numpy
from trtops.ops.model.lint import lint
from trtops.system import limits


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """So much that everything goes on, and so little that a bomb is through with it in a moment."""
    monkeypatch.setenv(limits.MEMORY, "64M")


def peak_mib() -> int:
    """Most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


@pytest.fixture(autouse=True)
def takes_little():
    before, allowed = peak_mib(), resource.getrlimit(resource.RLIMIT_DATA)
    yield
    assert peak_mib() - before < 1500
    assert resource.getrlimit(resource.RLIMIT_DATA) == allowed


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("constant", [False, True])
def test_doubling_nodes_are_reported(tmp_path: Path, constant: bool, caplog) -> None:
    path = tmp_path / "bomb.onnx"
    onnx.save(bombs.doubling(constant=constant), path)
    assert path.stat().st_size < 4096

    assert not lint(path).ok
    assert "more than 0.0625 GiB" in lint(path).text()
    inferred = onnx.load(path)
    # Without a rank, so that symbolic inference, which stores every element, would be tried.
    inferred.graph.node.add(op_type="Custom", domain="bomb", input=["t1"], output=["c"])
    shapes.infer_shapes(inferred)
    last = next(value for value in inferred.graph.value_info if value.name == "t41")
    assert last.type.tensor_type.shape.dim[0].dim_value == 1 << 41
    model = onnx.load(path)
    fold.fold_constants(model)
    assert len(model.graph.node) > 1
    if constant:
        assert main(["convert", str(path), "--convert-to", "ort", "-o", str(tmp_path / "bomb.ort")]) == 3
        assert "TRTOPS_MEMORY_LIMIT" in caplog.text


def test_nested_functions_are_counted_before_inlining(tmp_path: Path, caplog) -> None:
    path = tmp_path / "bomb.onnx"
    onnx.save(bombs.doubling_functions(), path)

    for looking in (lambda: Model.load(path), lambda: shapes.infer_shapes(onnx.load(path))):
        with pytest.raises(errors.InvalidModelError, match=r"2,147,483,\d+ nodes after its 30 functions are inlined"):
            looking()
    for command in (["check", "lint"], ["inspect", "model"], ["surgeon", "sanitize", "-o", str(tmp_path / "o.onnx")]):
        assert main([*command[:2], str(path), *command[2:]]) in (1, 3)


def test_recursive_functions_are_refused(monkeypatch) -> None:
    with pytest.raises(errors.InvalidModelError, match="calls itself"):
        check_inlined_size(bombs.doubling_functions(3, circle=True))
    monkeypatch.setattr("trtops.backend.onnx.hostile.MAX_NODES", 1 << 40)
    monkeypatch.setattr("trtops.backend.onnx.hostile._MAX_SMALL_NODES", 1 << 40)
    with pytest.raises(errors.InvalidModelError, match="through more than 200 others"):
        check_inlined_size(bombs.doubling_functions(300))
    check_inlined_size(bombs.doubling_functions(30))


def _write_special(path: Path, kind: str) -> None:
    """Something that is no regular file, or too large, under the path of a model or its external data."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind in ("device", "loop"):
        path.symlink_to("/dev/zero" if kind == "device" else path)
    else:
        with path.open("wb") as file:
            file.truncate(6 << 30)


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "loop", "sparse"])
def test_only_regular_files_are_read(tmp_path: Path, kind: str, caplog, capsys) -> None:
    _write_special(tmp_path / "model.onnx", kind)
    _write_special(tmp_path / "weights", kind)
    weight = onnx.TensorProto(name="w", data_type=1, dims=[1 << 34], data_location=1)
    weight.external_data.add(key="location", value="weights")
    proto = models.model("(float[1] x) => (float[1] y) { y = Add(x, w) }")
    proto.graph.initializer.append(weight)
    (tmp_path / "outside.onnx").write_bytes(proto.SerializeToString())

    for model in ("model.onnx", "outside.onnx"):
        path = str(tmp_path / model)
        for line in (
            ["check", "lint", path],
            ["run", path, "--onnxrt"],
            ["convert", path, "--convert-to", "ort", "-o", str(tmp_path / "o.ort")],
            ["debug", "reduce", path, "--onnxrt", "-o", str(tmp_path / "o.onnx")],
        ):
            assert main(line) in (1, 3), line
            assert "Traceback" not in caplog.text


def test_too_many_dimensions_are_reported(tmp_path: Path, caplog) -> None:
    proto = models.model("(float[1] x) => (float[1] y) { y = Relu(x) }")
    proto.graph.input[0].type.tensor_type.shape.dim.extend(5000 * [proto.graph.input[0].type.tensor_type.shape.dim[0]])
    onnx.save(proto, tmp_path / "m.onnx")

    for line in (["run"], ["convert", "--convert-to", "ort", "-o", str(tmp_path / "o.ort")], ["debug", "reduce"]):
        caplog.clear()
        assert main([*line, str(tmp_path / "m.onnx"), *([] if "convert" in line else ["--onnxrt"])]) == 3
        assert "'x' has 5001 dimensions" in caplog.text


@pytest.mark.parametrize("empty", [False, True])
def test_inference_that_never_ends_is_an_error(tmp_path: Path, empty: bool) -> None:
    onnx.save(bombs.endless_loop(empty=empty), tmp_path / "m.onnx")
    words = [sys.executable, "-m", "trtops.cli", "run", "m.onnx", "--onnxrt", "--timeout", "1"]

    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)

    assert done.returncode == 3
    assert "did not finish within 1 s" in done.stderr and "endless" in done.stderr
    assert "The command " in done.stderr if empty else "onnxrt-runner" in done.stderr


def test_random_data_size_is_checked_first(tmp_path: Path, caplog) -> None:
    path = tmp_path / "large.onnx"
    onnx.save(bombs.large_input(1 << 26), path)

    for line in (
        ["run", str(path), "--onnxrt"],
        ["convert", str(path), "--convert-to", "ort", "-o", str(tmp_path / "x")],
    ):
        caplog.clear()
        assert main(line) == 3
        assert "'x' of shape (67108864,) would take" in caplog.text
    main(["check", "lint", str(path)])


def test_archive_size_is_checked_before_unpacking(tmp_path: Path, caplog, monkeypatch) -> None:
    small = bombs.write_zeros(tmp_path / "zeros.npz", 1 << 27)  # 512 MiB in half a megabyte
    model = models.conv_net().write(tmp_path)

    with pytest.raises(errors.FormatError, match="unpacks to 53687"):
        load_numpy(small)
    monkeypatch.setenv(limits.MEMORY, "100M")
    with pytest.raises(errors.InputError, match=r"zeros.npz, of \d+ bytes, would take 0.5 GiB"):
        load_numpy(small)
    for line in (["inspect", "data", str(small)], ["run", str(model), "--onnxrt", "--load-inputs", str(small)]):
        assert main(line) == 3
    with pytest.raises(errors.FormatError, match=r"cannot be read as \.npz"):
        load_numpy(bombs.write_zeros(tmp_path / "lie.npz", 1 << 20, claimed=1 << 40))
    with pytest.raises(errors.FormatError, match=r"bytes; 0 are there"):
        load_numpy(bombs.write_header(tmp_path / "lie.npy"))


def test_numpy_files_round_trip(tmp_path: Path) -> None:
    arrays = {"a/b": np.arange(6).reshape(2, 3), "c": np.array(True), "d": np.array(["x", "yz"]), "e": np.zeros((0, 3))}
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "x.npz", **arrays)
        loaded = load_numpy(tmp_path / "x.npz")
        assert loaded.keys() == arrays.keys()
        assert all(
            np.array_equal(loaded[name], arrays[name]) and loaded[name].dtype == arrays[name].dtype for name in arrays
        )
    np.save(tmp_path / "x.npy", np.asfortranarray(arrays["a/b"]))
    assert np.array_equal(load_numpy(tmp_path / "x.npy"), arrays["a/b"])
    np.save(tmp_path / "o.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(errors.FormatError, match="Python objects"):
        load_numpy(tmp_path / "o.npy")


def test_limit_covers_nested_blocks_and_threads(monkeypatch) -> None:
    monkeypatch.setenv(limits.MEMORY, "64M")
    with limits.limited_memory():
        # More than free blocks of the heap could hold, which the limit does not count; the pages are never touched.
        with limits.limited_memory(1 << 40), pytest.raises(MemoryError):
            np.empty(16 << 30, np.uint8)
        held = limits.limited_memory()
        thread = threading.Thread(target=held.__enter__)
        thread.start()
        thread.join()
        with pytest.raises(MemoryError):
            np.empty(16 << 30, np.uint8)
    held.__exit__(None, None, None)
    with limits.limited_memory(1 << 30):
        bytearray(1 << 29)


def test_allocation_up_to_the_limit_is_allowed(monkeypatch) -> None:
    monkeypatch.setenv(limits.MEMORY, "1M")
    for own_size in (0, 10):
        limits.check_memory("x", (1 << 20) + own_size, own_size)
        with pytest.raises(errors.InputError, match="the limit is"):
            limits.check_memory("x", (1 << 20) + own_size + 1, own_size)


def test_limits_accept_units(monkeypatch) -> None:
    expected = {"": 1792 << 20, "4G": 4 << 30, "512M": 512 << 20, "100": 100, "2 GiB": 2 << 30, "10k": 10 << 10}
    for text, size in expected.items():
        monkeypatch.setenv(limits.MEMORY, text)
        assert limits.memory_limit() == size
    for wrong in ("x", "-1", "0", "4GG", "1.5G"):
        monkeypatch.setenv(limits.MEMORY, wrong)
        with pytest.raises(errors.ConfigError, match="expected bytes"):
            limits.memory_limit()


@pytest.mark.usefixtures("little")
def test_other_threads_keep_their_memory(tmp_path: Path) -> None:
    path, over = tmp_path / "bomb.onnx", threading.Event()
    onnx.save(bombs.doubling(), path)

    def work() -> None:
        while not over.wait(0.002):
            onnx.ModelProto.FromString(bombs.doubling(3).SerializeToString())

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        try:
            assert not lint(path).ok
        finally:
            over.set()
        working.result()


def test_too_many_nodes_are_refused_when_read(tmp_path: Path, capsys, caplog) -> None:
    model = models.identity().proto
    graph = model.graph.SerializeToString() + b"\x0a\x00" * 1_000_000  # nodes without anything in them
    model.ClearField("graph")
    size = bytes([128 | len(graph) & 127, 128 | len(graph) >> 7 & 127, 128 | len(graph) >> 14 & 127, len(graph) >> 21])
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString() + b"\x3a" + size + graph)
    for words in (["check", "lint"], ["inspect", "model"], ["surgeon", "sanitize", "-o", str(tmp_path / "s.onnx")]):
        assert main([*words, str(tmp_path / "m.onnx")]) in (1, 3)
        assert "has 1,000,001 nodes; expected at most 1,000,000" in capsys.readouterr().out + caplog.text


def test_folding_leaves_an_endless_node(caplog, monkeypatch) -> None:
    assert limits.trial_limit() == 30
    monkeypatch.setenv(limits.TIME, "1")
    model = bombs.endless_loop()
    for value in model.graph.input:
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(1, np.float32), value.name))
    del model.graph.input[:]
    fold.fold_constants(model)
    assert "Loop 'endless' is not folded" in caplog.text and "did not finish within" in caplog.text
    assert [node.op_type for node in model.graph.node] == ["Loop"]
