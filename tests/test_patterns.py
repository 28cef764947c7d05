"""Patterns stand for the names that match, each once."""

import pytest

from trtops import errors
from trtops.patterns import expand

NAMES = ["conv1", "conv2", "relu", "[0]"]


@pytest.mark.parametrize(
    ("patterns", "matches"),
    [
        (["relu", "conv*"], ["relu", "conv1", "conv2"]),
        (["conv?", "conv1"], ["conv1", "conv2"]),
        (["[0]"], ["[0]"]),
        ([], []),
    ],
)
def test_names_follow_pattern_order(patterns: list[str], matches: list[str]):
    assert expand(patterns, NAMES) == matches


def test_no_match_names_the_nearest():
    with pytest.raises(errors.ConfigError, match=r"The network has no layer 'conv3'.*conv"):
        expand(["relu", "conv3"], NAMES, of="The network", kind="layer")
