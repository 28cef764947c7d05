"""The picture of a campaign."""

from __future__ import annotations

import io

import numpy as np
import pytest

from tests.tactics.synthetic import campaign
from trtops.tactics.diff import diff
from trtops.tactics.plot import draw
from trtops.tactics.table import CampaignTable


def pixels(png: bytes) -> np.ndarray:
    from matplotlib.image import imread

    assert png.startswith(b"\x89PNG")
    return (imread(io.BytesIO(png))[..., :3] * 255).round().astype(int)


def count(picture: np.ndarray, colour: tuple[int, int, int]) -> int:
    return int((picture == colour).all(axis=-1).sum())


def test_verdict_row_shows_the_share_of_bad():
    table = campaign(2, 50, culprit="one", layers=30).table
    picture = pixels(draw(table, diff(table)))
    first_row = max(picture, key=lambda row: count(row, (44, 160, 44)) + count(row, (214, 39, 40)))
    share = count(first_row, (214, 39, 40)) / (count(first_row, (214, 39, 40)) + count(first_row, (44, 160, 44)))

    assert share == pytest.approx(len(table.named("bad")) / 50, abs=0.03)


def test_large_campaign_shows_the_most_suspicious_layers():
    table = campaign(2, 150, culprit="one", layers=120).table
    small, large = (pixels(draw(table, diff(table), max_layers=n)) for n in (5, 35))

    assert large.shape[0] - small.shape[0] == pytest.approx(30 * 20, abs=2), "20 pixels for each layer"
    assert max(large.shape) < 4000


def test_empty_tables_can_be_drawn():
    same = campaign(1, 5, culprit="none", settle=1.0).table
    for table in (CampaignTable(), same):
        assert pixels(draw(table, diff(table))).size
