"""The triage and bundle flows call their ops and keep the results in the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.bundle import bundle
from flows.triage import triage
from tests import models
from trtops.tracking.store import default_tracker

pytestmark = pytest.mark.usefixtures("store", "prefect_home")


def test_a_good_model_goes_through_both(tmp_path: Path) -> None:
    model = models.conv_net().write(tmp_path)
    assert triage(model).headline == "nothing is wrong"
    [build] = {info.id for info in default_tracker().find() if info.kind == "build"}
    packed = bundle(build, output=str(tmp_path / "b.zip"))
    assert packed.repeats == "good" and Path(packed.path).is_file()
    assert {"triage", "triage_step", "build"} <= {info.kind for info in default_tracker().find()}
