"""Data types, shapes, tensor metadata, and the check of feeds against them."""

import copy
import pickle

import numpy as np
import onnx
import pytest

from trtops import errors
from trtops.metadata import (
    BoundedShape,
    DataType,
    MetadataTuple,
    TensorMetadata,
    TensorSpec,
    check_feed,
    is_dynamic,
    shape_accepts,
)

SIZES = {
    "FLOAT64": 8, "FLOAT32": 4, "FLOAT16": 2, "BFLOAT16": 2, "FLOAT8E4M3FN": 1, "FLOAT8E4M3FNUZ": 1, "FLOAT8E5M2": 1,
    "FLOAT8E5M2FNUZ": 1, "FLOAT8E8M0": 1, "FLOAT4": 0.5, "INT64": 8, "INT32": 4, "INT16": 2, "INT8": 1,
    "INT4": 0.5, "UINT64": 8,
    "UINT32": 4, "UINT16": 2, "UINT8": 1, "BOOL": 1, "STRING": 0,
}  # fmt: skip


@pytest.mark.parametrize("dtype", list(DataType), ids=lambda d: d.name)
def test_data_types_have_size_kind_and_names(dtype: DataType) -> None:
    assert dtype.itemsize == SIZES[dtype.name.upper()]
    assert dtype.is_floating == dtype.name.startswith(("float", "bfloat"))
    assert dtype.is_integral == dtype.name.startswith(("int", "uint"))
    assert DataType.of(dtype.numpy()) is dtype
    if dtype is not DataType.STRING and dtype.itemsize >= 1:
        assert dtype.numpy().itemsize == dtype.itemsize
    for spelling in (dtype, dtype.name, dtype.name.upper(), dtype.value, str(dtype)):
        assert DataType.of(spelling) is dtype


@pytest.mark.parametrize("unknown", ["flaot32", "complex64", np.dtype("datetime64[s]")])
def test_an_unknown_data_type_is_refused(unknown: object) -> None:
    with pytest.raises(errors.ConfigError, match="Unknown data type"):
        DataType.of(unknown)


@pytest.mark.parametrize("dtype", list(DataType), ids=str)
@pytest.mark.parametrize("module", ["numpy", "onnx", "onnxruntime"])
def test_data_types_convert_to_libraries_and_back(dtype: DataType, module: str) -> None:
    if module == "onnxruntime" and dtype in (DataType.FLOAT4, DataType.FLOAT8E8M0):
        with pytest.raises(errors.ConfigError, match="onnxruntime has no data type for float"):
            dtype.onnxruntime()
        return
    newer = {DataType.FLOAT4: "FLOAT4E2M1", DataType.FLOAT8E8M0: "FLOAT8E8M0"}
    if module == "onnx" and dtype in newer and not hasattr(onnx.TensorProto, newer[dtype]):
        with pytest.raises(errors.ConfigError, match="onnx has no data type for float"):
            dtype.onnx()
        return
    theirs = getattr(dtype, module)()

    assert theirs == DataType.to_dtype(dtype, module)
    assert DataType.from_dtype(theirs, module) is DataType.from_dtype(theirs) is dtype


def test_unknown_library_is_refused() -> None:
    with pytest.raises(errors.ConfigError, match="Did you mean 'numpy'"):
        DataType.from_dtype(np.int8, "nunpy")


def test_dynamic_dimensions_accept_any_size() -> None:
    assert [is_dynamic(d) for d in (1, 0, -1, None, "batch")] == [False, False, True, True, True]
    assert shape_accepts(("batch", 3, None, -1), (7, 3, 0, 224))
    assert not shape_accepts(("batch", 3), (7, 4))
    assert not shape_accepts(("batch", 3), (7, 3, 1))
    assert shape_accepts((), ())


def test_metadata_is_built_in_a_chain_and_shown() -> None:
    meta = TensorMetadata().add("x", np.float32, (1, "n", None)).add("y").add("z", "int8", ())

    assert list(meta) == ["x", "y", "z"]
    assert meta["x"] == TensorSpec("x", DataType.FLOAT32, (1, "n", None))
    assert str(meta) == "{x [dtype=float32, shape=(1, 'n', None)],\n y,\n z [dtype=int8, shape=()]}"
    assert str(TensorSpec("v", None, (4,))) == "v [shape=(4,)]"


def test_metadata_entries_unpack_and_change() -> None:
    meta = TensorMetadata().add("x", np.float32, (1, "n"), min_shape=(1, 1), docstring="an image")

    dtype, shape = meta["x"]
    assert (dtype, shape) == (DataType.FLOAT32, (1, "n"))
    meta["x"].shape, meta["x"].dtype = (1, 4), np.int64
    assert str(meta) == "{x [dtype=int64, shape=(1, 4), an image]}"
    meta["y"] = MetadataTuple("int8", (2,))
    assert meta["y"].name == "y"


def test_bounded_shapes_keep_bounds() -> None:
    shape = TensorMetadata().add("x", None, (-1, 3), min_shape=(1, 3), max_shape=(8, 3))["x"].shape

    assert isinstance(shape, BoundedShape)
    assert shape == (-1, 3) and hash(shape) == hash((-1, 3))
    for twin in (pickle.loads(pickle.dumps(shape)), copy.deepcopy(shape)):
        assert (twin, twin.min, twin.max) == (shape, (1, 3), (8, 3))


INPUTS = TensorMetadata().add("image", "float32", ("batch", 3, 8)).add("length", "int64", (1,)).add("any")
FEED = {"image": np.zeros((2, 3, 8), np.float32), "length": np.zeros(1, np.int64), "any": np.zeros((), bool)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image": None}, r"The following inputs were not found: \['image'\]"),
        ({"image": [1]}, r"'image' is fed a list, which .* converts; expected image \[dtype=float32"),
        ({"imaeg": FEED["image"]}, r"Extra inputs in the feed: \['imaeg'\].*Did you mean 'image'"),
        ({"image": np.zeros((2, 3, 8))}, "Received unexpected dtype: float64. Expected float32.*astype"),
        (
            {"image": np.zeros((2, 4, 8), np.float32)},
            r"Received incompatible shape: \(2, 4, 8\). Expected \('batch', 3, 8\)",
        ),
        ({"length": np.zeros((1, 1), np.int64)}, r"shape: \(1, 1\). Expected \(1,\)\.$"),
    ],
)
def test_unfit_feeds_are_refused_by_name(change: dict[str, object], message: str) -> None:
    check_feed(INPUTS, FEED)
    with pytest.raises(errors.InputError, match=message):
        check_feed(INPUTS, {**FEED, **change})
