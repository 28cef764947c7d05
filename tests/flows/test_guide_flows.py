"""The flows around the guide: each one call of its op, kept in the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.bundle import bundle
from flows.guide import guide
from flows.import_results import import_results
from flows.isolate import isolate
from flows.repair import repair
from tests import models
from trtops.tracking.store import default_tracker

pytestmark = pytest.mark.usefixtures("store", "prefect_home")


def test_a_sound_model_goes_through_all_of_them(tmp_path: Path) -> None:
    model = models.conv_net().write(tmp_path)
    asked = guide(model)
    assert asked.headline == "nothing is wrong"
    assert isolate(model).headline == "nothing to isolate"
    mended = repair(model, max_builds=1, output=str(tmp_path / "config.json"))
    assert mended.verdict == "good" and (tmp_path / "config.json").is_file()
    [build] = {info.id for info in default_tracker().find(parent=mended.run_id)}
    packed = bundle(build, output=str(tmp_path / "b.zip"))
    assert packed.repeats == "good" and Path(packed.path).is_file()
    file = tmp_path / "profile.json"
    file.write_text('[{"count": 2}, {"name": "a", "timeMs": 2, "averageMs": 1, "percentage": 100}]')
    assert import_results([file]).found[0].tool == "trtexec"
    kinds = {info.kind for info in default_tracker().find()}
    assert {"guide", "guide_step", "isolation", "repair", "imported", "build"} <= kinds
