import numpy as np
import pytest

from trtops import errors
from trtops.comparator import DataLoader
from trtops.comparator.data_loader import DataLoaderCache, fit_feed
from trtops.metadata import TensorMetadata

MODEL = TensorMetadata().add("x", np.float32, (2, 3)).add("ids", np.int64, (4,)).add("mask", bool, (5,))


def loader_for(model=MODEL, **options):
    loader = DataLoader(**options)
    loader.input_metadata = model
    return loader


def test_unused_names_are_warned_about(caplog):
    loader = loader_for(input_metadata=TensorMetadata().add("idss", None, (4,)), val_range={"y": (0, 1)})
    _ = loader[0]
    assert "'idss', which is not an input of the model. Did you mean 'ids'" in caplog.text
    assert "val_range names 'y'" in caplog.text


def test_invalid_options_are_refused():
    with pytest.raises(errors.ConfigError, match="expected 'numpy' or 'torch'"):
        DataLoader(data_loader_backend_module="jax")
    with pytest.raises(IndexError):
        loader_for(iterations=3)[3]
    for dtype, shape, options, message in (
        (np.float32, (2,), {"val_range": (2, 1)}, "start exceeds its end"),
        (np.uint8, (2,), {"val_range": (0, 300)}, r"range \(0, 300\) does not fit uint8"),
        ("str", (2,), {}, "Random strings"),
        (np.float32, None, {}, "shape of input 'x' is not known"),
    ):
        with pytest.raises(errors.ConfigError, match=message):
            loader_for(TensorMetadata().add("x", dtype, shape), **options)[0]


def test_runners_get_inputs_of_their_shapes():
    cache = DataLoaderCache(DataLoader())
    cache.set_input_metadata(TensorMetadata().add("x", np.float32, (2, 3)))
    first = cache[0]["x"]
    cache.set_input_metadata(TensorMetadata().add("x", np.float32, (4, 5)))
    assert first.shape == (2, 3) and cache[0]["x"].shape == (4, 5)


@pytest.mark.parametrize("array", [np.zeros((3, 2), np.float32), np.zeros(6, np.float16), np.zeros((1, 2, 3))])
def test_arrays_are_permuted_reshaped_and_cast(array):
    model = TensorMetadata().add("x", np.float32, (2, 3))
    fitted = fit_feed({"x": array, "more": array}, model)
    assert (fitted["x"].shape, fitted["x"].dtype) == ((2, 3), np.float32)
    assert fit_feed(fitted, model)["x"] is fitted["x"] and list(fitted) == ["x"]
    for value in (300, np.nan):
        with pytest.raises(errors.InputError, match="values that int8 does not hold"):
            fit_feed({"x": np.array([value])}, TensorMetadata().add("x", np.int8, (1,)))
