"""The relative error of outputs, and the choice between algorithms."""

import math

import numpy as np
import pytest

from trtops import errors
from trtops.calibration.choice import AlgorithmError, Comparison, relative_error


def comparison(**found: float) -> Comparison:
    of_each = tuple(AlgorithmError(algorithm=name, error=error) for name, error in found.items())  # type: ignore[arg-type]
    return Comparison(errors=of_each, feeds=3, data="held-out calibration data")


@pytest.mark.parametrize(
    ("found", "chosen", "text"),
    [
        (
            (0.2, 0.4, 0.05),
            "percentile",
            "percentile, relative error 0.05, 75% smaller than with the next (minmax 0.2, entropy 0.4)",
        ),
        ((0.1005, 0.1, 0.3), "minmax", "minmax, relative error 0.101, equal to the next within 1% (entropy 0.1,"),
        ((0.2, 0.1, 0.1), "percentile", "equal to the next within 1% (entropy 0.1, minmax 0.2), on 3 feeds of the"),
        ((math.inf, math.inf, 2.0), "percentile", "100% smaller than with the next"),
        ((math.inf, math.inf, math.inf), "minmax", "relative error inf, equal"),
        ((0.0, 0.1, 0.1), "minmax", "100% smaller than with the next"),
    ],
)
def test_smallest_error_is_chosen(found, chosen, text) -> None:
    compared = comparison(**dict(zip(("minmax", "entropy", "percentile"), found)))
    assert compared.chosen == chosen and text in compared.sentence()
    assert [row[0] for row in compared.rows() if row[2]] == [chosen]
    assert Comparison.from_json(compared.to_json()) == compared


def test_relative_error_is_that_of_the_worst_output() -> None:
    golden = [{"a": np.array([3.0, 4.0]), "b": np.array([1.0, np.nan]), "n": np.array([1, 2])}]
    actual = [{"a": np.array([3.0, 4.5]), "b": np.array([1.2, 7.0]), "n": np.array([9, 9])}]
    assert relative_error(actual, golden) == pytest.approx(0.2)
    assert relative_error([{**actual[0], "b": np.array([np.nan, 0.0])}], golden) == math.inf
    assert relative_error([{**actual[0], "b": np.zeros(3)}], golden) == math.inf
    integers = [{"n": np.array([1, 2, 3, 4])}], [{"n": np.array([1, 2, 3, 5])}]
    assert relative_error(*integers) == 0.5
    with pytest.raises(errors.CalibrationError, match="no output of numbers"):
        relative_error([{"t": np.array(["x"])}], [{"t": np.array(["x"])}])
