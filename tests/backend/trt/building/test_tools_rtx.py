"""Capability reports on the real TensorRT-RTX."""

from __future__ import annotations

import pytest

from tests import models
from trtops.ops.model.capability import capability

pytestmark = pytest.mark.usefixtures("rtx")


def test_a_whole_model_is_taken() -> None:
    report = capability(models.conv_net().proto)
    assert report.supported
    assert len(report.parts) == 1


def test_unknown_operator_splits_the_model() -> None:
    report = capability(models.no_kernel().proto)
    assert not report.supported
    assert [(refusal.op, refusal.nodes) for refusal in report.refused] == [("custom.Frobnicate", ("frob",))]
    assert [part.supported for part in report.parts] == [True, False, True]
