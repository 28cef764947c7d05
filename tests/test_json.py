import base64
import binascii
import io
import json
import pickle
import tracemalloc
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trtops import errors
from trtops.comparator import AccuracyResults, RunResults
from trtops.json import base64_text, from_json, load_json, save_json, to_json
from trtops.json.numpy_files import read_npy

DATA = Path(__file__).parent / "data"

DTYPES = [np.float16, np.float32, np.float64, np.int8, np.uint8, np.int16, np.int32, np.int64, np.uint64, bool, "U5"]
arrays = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0, max_dims=3))
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | arrays,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def same(a, b):
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or a != a)


@settings(max_examples=150, deadline=None)
@given(values)
def test_both_formats_keep_all_values(tmp_path_factory, value):
    folder = tmp_path_factory.mktemp("saved", numbered=True)
    for name in ("x.json", "x.npz"):
        save_json(value, folder / name)
        assert same(value, load_json(folder / name))
    assert same(value, from_json(to_json(value)))


@pytest.mark.parametrize("ending", ["json", "npz"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "int4"])
def test_ml_dtypes_keep_their_bits(tmp_path, dtype, ending):
    array = np.array([1, -2, 3, 0]).astype(getattr(ml_dtypes, dtype)).reshape(2, 2)
    save_json({"x": array}, tmp_path / f"x.{ending}")
    back = load_json(tmp_path / f"x.{ending}")["x"]
    assert back.dtype == array.dtype and back.tobytes() == array.tobytes()


def test_open_files():
    text, binary = io.StringIO(), io.BytesIO()
    save_json({"x": np.arange(3)}, text)
    save_json({"x": np.arange(3)}, binary)
    assert text.getvalue() == binary.getvalue().decode()
    text.seek(0), binary.seek(0)
    assert load_json(text)["x"].tolist() == load_json(binary)["x"].tolist() == [0, 1, 2]


def test_polygraphy_files_are_read():
    run = RunResults.load(DATA / "polygraphy-0.53.6-run-results.json")
    assert list(run.keys()) == ["onnxrt-runner", "onnxrt-runner"]
    outputs = run[0][1][0]
    assert (run[0][1][0].runtime, outputs["y"].dtype, outputs["y"].tolist()) == (0.001, np.float32, [[0.5, 1.5]])
    assert np.isnan(outputs["half"][0]) and outputs["half"].dtype == np.float16

    accuracy = AccuracyResults.load(DATA / "polygraphy-0.53.6-accuracy-results.json")
    assert [bool(result) for result in accuracy] == [False, True, True]
    assert accuracy[2]["a", "b"][0]["y"].psnr == float("inf")

    [feed] = load_json(DATA / "polygraphy-0.53.6-inputs.json")
    assert feed["x"].tolist() == [[1, 2]]


def npy(array, **options):
    out = io.BytesIO()
    np.save(out, array, **options)
    return out.getvalue()


def npz(array):
    out = io.BytesIO()
    np.savez_compressed(out, array)
    return out.getvalue()


@pytest.mark.parametrize("data", [npy(np.arange(3.0)), npz(np.arange(3.0))], ids=["npy", "npz"])
@pytest.mark.parametrize("size", [3, 4000])
def test_old_polygraphy_files_are_read(data, size):
    array = np.arange(float(size))
    text = (npy(array) if data[:2] != b"PK" else npz(array)).decode("latin-1")

    def marked(kind: str, **members) -> dict:
        return {**members, f"__polygraphy_encoded_{kind}": "polygraphy_serialized_json_type"}

    values = marked("LazyNumpyArray", values=marked("ndarray", array=text))
    iteration = marked("IterationResult", outputs={"y": values}, runtime=None, runner_name="runner")
    old = json.dumps(marked("RunResults", lst=[["runner", [iteration]]]))
    np.testing.assert_array_equal(RunResults.from_json(old)["runner"][0]["y"], array)


def b64(data):
    return base64.b64encode(data).decode()


def array_text(data):
    return json.dumps({"array": b64(data), "polygraphy_class": "ndarray"})


def marked(kind, **members):
    return json.dumps(members | {"polygraphy_class": kind})


STATISTICS = [f"{which}_{kind}" for which in ("max", "mean", "median", "quantile") for kind in ("absdiff", "reldiff")]


class Bomb:
    def __reduce__(self):
        return (Path("/tmp/trtops-bomb").touch, ())


def header(text, data=b""):
    padded = text.ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded.encode() + data


BAD = {
    "not JSON": ("{", "cut short"),
    "ends in a string": ('{"array": "abc', "cut short"),
    "empty": ("", "not valid JSON"),
    "nested too deep": ("[" * 200_000, "not valid JSON"),
    "a number too long": ("1" * 50_000, "not valid JSON"),
    "unknown type": ('{"polygraphy_class": "RunResult"}', "RunResult. This could be because a required"),
    "type is no name": ('{"polygraphy_class": [1]}', "polygraphy_class"),
    "member missing": (
        marked("RunResults", lst=[["r", [json.loads(marked("IterationResult", outputs={}))]]]),
        "lacks its member 'runtime'",
    ),
    "pickled objects": (array_text(npy(np.array([Bomb()], object), allow_pickle=True)), "Python objects"),
    "a bare pickle": (array_text(pickle.dumps(Bomb())), "magic string"),
    "array cut short": (array_text(npy(np.arange(100))[:-9]), "791 are there"),
    "array too long": (array_text(npy(np.arange(100)) + b"12345678"), "needs 800 bytes; 808 are there"),
    "claims an exabyte": (
        array_text(header(f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({1 << 57},)}}")),
        "0 are there",
    ),
    "negative size": (array_text(header("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}")), "needs -8"),
    "header runs code": (array_text(header("__import__('os').system('touch /tmp/trtops-bomb')")), "damaged header"),
    "structured dtype": (array_text(npy(np.zeros(2, "i4,f4"))), "only numbers"),
    "newer npy": (array_text(b"\x93NUMPY\x09\x00" + b"\0" * 100), "version 9"),
    "array is a number": ('{"array": 3, "polygraphy_class": "ndarray"}', "is a int; expected text"),
    "archive in array is empty": (array_text(b"PK\x05\x06" + b"\0" * 18), "damaged archive: it is empty"),
    "wrong runtime": (marked("IterationResult", outputs={}, runtime="x", runner_name="r"), "expected seconds"),
    "outputs are no arrays": (marked("IterationResult", outputs={"y": 3}, runtime=1, runner_name="r"), "not arrays"),
    "verdict of text": (
        marked(
            "OutputCompareResult", **dict.fromkeys([*STATISTICS, "thresholds", "passed"]) | {"max_absdiff": "x"}
        ),
        "expected a number",
    ),
    "a tensor without torch": ('{"tensor": "", "polygraphy_class": "Tensor"}', "torch|damaged"),
    "unknown extended dtype": (marked("ExtendedArray", bits=None, dtype="bfloat16"), "unknown dtype"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_refused(tmp_path, case):
    text, message = BAD[case]
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(errors.FormatError, match=message) as caught:
        load_json(path)
    assert str(path) in str(caught.value)
    assert not Path("/tmp/trtops-bomb").exists()


def rewritten(path, **changes):
    """The archive with members replaced (or, for None, left out)."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members.update({name.replace("_json", ".json").replace("_npy", ".npy"): data for name, data in changes.items()})
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            if data is not None:
                archive.writestr(name, data)


INDEX = b'{"format": "trtops.npz", "version": %s, "content": %s}'
ENTRY = b'{"array": "%s", "polygraphy_class": "ndarray"}'

BAD_ARCHIVES = {
    "no index": ({"index_json": None}, "no index.json"),
    "foreign index": ({"index_json": b"{}"}, "was not written by trtops"),
    "newer version": ({"index_json": INDEX % (b"2", b"1")}, "version 2; expected 1. Update trtops"),
    "array not there": ({"index_json": INDEX % (b"1", ENTRY % b"7.npy")}, "'7.npy', which is missing"),
    "array used twice": (
        {"index_json": INDEX % (b"1", b"[%s, %s]" % (ENTRY % b"000000.npy", ENTRY % b"000000.npy"))},
        "used before",
    ),
    "pickled objects": ({"000000_npy": npy(np.array([Bomb()], object), allow_pickle=True)}, "Python objects"),
    "array cut short": ({"000000_npy": npy(np.arange(100))[:-9]}, "791 are there"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_ARCHIVES)
def test_bad_archives_are_refused(tmp_path, case):
    changes, message = BAD_ARCHIVES[case]
    path = tmp_path / "x.npz"
    save_json({"x": np.arange(100)}, path)
    rewritten(path, **changes)
    with pytest.raises(errors.FormatError, match=message):
        load_json(path)
    assert not Path("/tmp/trtops-bomb").exists()


def test_compressed_bomb_is_not_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("000000.npy", bytes(50_000_000))
        archive.writestr("index.json", INDEX % (b"1", ENTRY % b"000000.npy"))
    tracemalloc.start()
    with pytest.raises(errors.FormatError, match="larger than the whole archive"):
        load_json(tmp_path / "x.npz")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5_000_000


@pytest.mark.parametrize("ending", ["json", "npz"])
def test_truncated_files_are_refused(tmp_path, ending):
    run = RunResults()
    run.add([{"x": np.arange(2000.0), "y": np.ones((2, 2), np.float32)}], runner_name="r")
    run.save(tmp_path / f"whole.{ending}")
    data = (tmp_path / f"whole.{ending}").read_bytes()
    for end in [*range(0, 300, 7), *range(300, len(data) - 1, len(data) // 60)]:
        (tmp_path / "cut").write_bytes(data[:end])
        with pytest.raises(errors.FormatError):
            RunResults.load(tmp_path / "cut")


def test_changed_header_bytes_raise_only_format_errors():
    file = io.BytesIO()
    np.save(file, np.ones(3, np.float32))
    refused = 0
    for position in range(128):
        for value in b"({['\n\\\xf6":
            content = bytearray(file.getvalue())
            content[position] = value
            try:
                read_npy(io.BytesIO(content), len(content))
            except errors.FormatError:
                refused += 1
    assert refused > 128


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.array([object()]), "Python objects"),
        (object(), "cannot be saved"),
        ({(1, 2): 3}, "must be strings"),
        ({1, 2}, "set cannot be saved"),
    ],
)
def test_failed_save_keeps_the_old_file(tmp_path, value, message):
    for ending in ("json", "npz"):
        path = tmp_path / f"x.{ending}"
        save_json([1], path)
        with pytest.raises(errors.FormatError, match=message):
            save_json({"big": np.zeros(10), "bad": value}, path)
        assert load_json(path) == [1]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.json", "x.npz"]


@pytest.mark.parametrize("ending", ["json", "npz"])
def test_saving_and_loading_need_little_memory(tmp_path, ending):
    array = np.random.default_rng(0).standard_normal(2_500_000)
    run = RunResults()
    run.add([{"x": array}], runner_name="r")
    path = tmp_path / f"x.{ending}"

    tracemalloc.start()
    run.save(path)
    _, saving = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    loaded = RunResults.load(path)
    _, loading = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    # JSON is read as a whole, an archive array by array.
    assert saving < 60e6
    assert loading < (4 * array.nbytes if ending == "json" else array.nbytes + 12e6)
    np.testing.assert_array_equal(loaded["r"][0]["x"], array)


def test_cyclic_object_is_refused():
    loop: list = []
    loop.append(loop)
    with pytest.raises(errors.FormatError, match="contains itself"):
        to_json(loop)


def test_long_base64_is_decoded_as_by_binascii():
    random = np.random.default_rng(0)
    for size in (4, 5, 6, 4096, 300_001):
        data = random.bytes(size)
        text = binascii.b2a_base64(data, newline=False)
        assert base64_text.decode(text).tobytes() == data
    text = bytearray(binascii.b2a_base64(bytes(9000), newline=False))
    for letter in b"\n=-_\x80":  # none of base64: binascii decides what becomes of them
        for position in (0, 3, 6001):
            assert base64_text.decode(bytes(text[:position] + bytes([letter]) + text[position + 1 :])) is None
    array = np.arange(30_000, dtype=np.int16).reshape(3, -1).T
    loaded = from_json(to_json({"a": array}).replace("AAA", "AA\\nA", 1))["a"]  # an escape: read in the usual way
    np.testing.assert_array_equal(loaded, array)
    loaded = from_json(to_json({"a": array}))["a"]
    np.testing.assert_array_equal(loaded, array)
    loaded[0] = 7  # arrays may be changed
