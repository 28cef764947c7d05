"""Names and values of any kind go into MLflow's keys and values and come back."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtops import errors
from trtops.spec import BuildConfig
from trtops.tracking import schema

# Any character, lone surrogates too, with the encoding's own marks and MLflow's pitfalls often among them.
marks = st.sampled_from([*"-./: _0af\n", "-empty-", "-2d-", "..", "-cut-0123456789abcdef-"])
anything = st.lists(st.one_of(st.characters(categories=None), marks), max_size=30).map("".join)
parts = st.one_of(anything, st.text(st.sampled_from("a[日-."), min_size=100, max_size=600))
names = st.lists(parts, min_size=1, max_size=4).map(tuple)


@pytest.fixture(scope="module", autouse=True)
def mlflow_is_imported() -> None:
    """Its import takes longer than hypothesis allows an example."""
    import mlflow.utils.validation  # noqa: F401


@given(names)
def test_metric_keys_are_valid_and_decoded(name: tuple[str, ...]):
    from mlflow.utils.validation import MAX_ENTITY_KEY_LENGTH, _validate_metric_name

    short = schema.fitting(name)
    key = schema.metric_key(short)

    _validate_metric_name(key)
    assert len(key) <= MAX_ENTITY_KEY_LENGTH
    assert schema.metric_name(key) == short == schema.fitting(short)
    assert schema.metric_name(schema.metric_key(name)) == name


@given(names, names)
def test_metric_keys_differ(a: tuple[str, ...], b: tuple[str, ...]):
    assert (schema.metric_key(schema.fitting(a)) == schema.metric_key(schema.fitting(b))) == (a == b)


def test_ordinary_names_stay_readable():
    assert schema.metric_key(("error", "logits", "max_abs")) == "error/logits/max_abs"
    assert schema.metric_key(("error", "gpu_0/softmax:1", "max_abs")) == "error/gpu_0-2f-softmax:1/max_abs"
    assert schema.metric_key(("error", "日本", "max_abs")) == "error/日本/max_abs"
    assert schema.metric_key(("error", "out-1[0]", "")) == "error/out--1-5b-0-5d-/-empty-"
    for name in ("options.builder_level", "mlflow.note.content", "my-team/x y"):
        schema.check_text("Tag", name, "")


def test_long_names_keep_their_ends():
    error, output, statistic = schema.fitting(("error", "encoder." * 100 + "last", "max_abs"))

    assert (error, statistic) == ("error", "max_abs")
    assert output.startswith("encoder.encoder.") and output.endswith("encoder.last")


@pytest.mark.parametrize("text", ["", "-", "a-b", "-zz-", "-5b", "-110000-", "-ffffffffffffffffffff-"])
def test_malformed_parts_are_refused(text: str):
    with pytest.raises(errors.FormatError, match="encoded name part"):
        schema.decode(text)
    with pytest.raises(errors.LogError, match="no parts"):
        schema.metric_key(())


def test_config_becomes_flat_params():
    flat = schema.flat_params(BuildConfig(precision="fp16"))

    assert flat["precision"] == "fp16"
    assert "profiles" not in flat
    assert flat["options.kind"] == "onnxruntime"


def test_numpy_numbers_are_params():
    import numpy as np

    assert schema.text(np.int64(3)) == "3"
    assert schema.text(np.float32(0.5)) == "0.5"
    assert schema.text(math.nan) == "nan"
    with pytest.raises(errors.LogError, match="ndarray"):
        schema.text(np.zeros(3))
