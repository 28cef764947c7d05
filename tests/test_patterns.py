"""Patterns stand for the names that match, each once."""

from __future__ import annotations

import pytest

from trtops import errors
from trtops.patterns import expand

NAMES = ["conv1", "conv2", "relu", "[0]"]


@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        (["relu", "conv*"], ["relu", "conv1", "conv2"]),
        (["conv?", "conv1"], ["conv1", "conv2"]),
        (["[0]"], ["[0]"]),
        ([], []),
    ],
)
def test_names_come_in_the_order_of_the_patterns_and_a_name_stands_for_itself(patterns: list[str], found: list[str]):
    assert expand(patterns, NAMES) == found


def test_what_matches_nothing_is_refused_with_the_nearest_name():
    with pytest.raises(errors.ConfigError, match=r"The network has no layer 'conv3'.*conv"):
        expand(["relu", "conv3"], NAMES, of="The network", what="layer")
