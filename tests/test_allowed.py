"""Scripts, check commands and plugins are run from folders that are allowed, where that is said at all."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import models
from trtops import errors
from trtops.backend.common import import_from_script
from trtops.metadata import TensorMetadata
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.campaign.debug_build import debug_build
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.evaluation.data import open_feeds
from trtops.ops.search.command import CommandCheck, run_group
from trtops.system import allowed
from trtops.tracking.memory import MemoryTracker

ROOT = Path(__file__).parents[1]
INPUTS = TensorMetadata().add("x", np.float32, (1,))


@pytest.fixture
def scripts(tmp_path: Path) -> tuple[Path, Path]:
    """A script in an allowed folder, and one elsewhere that leaves a note when it is run."""
    inside, outside = tmp_path / "allowed" / "good.py", tmp_path / "elsewhere" / "bad.py"
    for path, note in ((inside, "pass"), (outside, f"open({str(tmp_path / 'ran')!r}, 'w')")):
        path.parent.mkdir()
        path.write_text(f"import numpy as np\n{note}\ndef load_data():\n    return [dict(x=np.ones(1, np.float32))]\n")
    yield inside, outside
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def setting(scripts: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(allowed.VARIABLE, f"/nowhere{os.pathsep}{scripts[0].parent}")


@pytest.mark.usefixtures("setting")
def test_links_are_resolved(scripts) -> None:
    inside, outside = scripts
    link = inside.parent / "link.py"
    link.symlink_to(outside)

    assert len(list(open_feeds(str(inside), INPUTS))) == 1
    assert import_from_script(inside, "load_data")()
    for refused in (outside, link, inside.parent / ".." / "elsewhere" / "bad.py"):
        for use in (
            lambda path: open_feeds(str(path), INPUTS),
            lambda path: open_feeds(f"{path}:load_data", INPUTS),
            lambda path: import_from_script(path, "load_data"),
        ):
            with pytest.raises(errors.ConfigError, match=r"SCRIPTS only allows files in /nowhere, .*allowed"):
                use(refused)


@pytest.mark.usefixtures("setting")
def test_command_outside_allowed_folders_is_refused(scripts, tmp_path: Path) -> None:
    inside, outside = scripts
    program = inside.parent / "check"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)

    assert run_group([str(program), "x"], None)[0] == 3
    assert run_group([sys.executable, str(inside)], None)[0] == 0
    for command in (
        [sys.executable, str(outside)],
        [sys.executable, "-c", "open('ran', 'w')"],
        [sys.executable, "-m", "this"],
        ["true"],
        ["/bin/sh", "-c", "true", str(inside)],
        ["env", str(program)],
    ):
        with pytest.raises(errors.ConfigError, match="may not be run"):
            run_group(command, None)


@pytest.mark.parametrize("source", ["data", "calibration_data", "command"])
@pytest.mark.usefixtures("setting")
def test_campaign_refuses_scripts_before_it_builds(scripts, source: str, tmp_path: Path) -> None:
    outside = str(scripts[1])
    config = {
        "data": DebugBuildConfig(check=CheckConfig(data=outside)),
        "calibration_data": DebugBuildConfig(calibration_data=outside),
        "command": DebugBuildConfig(command=CommandCheck(command=(sys.executable, outside, "{engine}"))),
    }[source]
    memory = MemoryTracker()

    with pytest.raises(errors.ConfigError, match="may not be run"):
        debug_build(models.identity().write(tmp_path), config, tracker=memory)

    assert len(memory.find()) == 1


def test_unset_allows_all_and_empty_allows_nothing(scripts, monkeypatch) -> None:
    inside, _ = scripts
    monkeypatch.delenv(allowed.VARIABLE, raising=False)
    assert import_from_script(inside, "load_data")()

    monkeypatch.setenv(allowed.VARIABLE, "")
    with pytest.raises(errors.ConfigError, match=r"start the worker with TRTOPS_ALLOWED_SCRIPTS=.*job_variables"):
        import_from_script(inside, "load_data")


@pytest.mark.parametrize("flow", [False, True], ids=["a person's", "a deployment's"])
@pytest.mark.parametrize("folders", [None, "/srv/scripts"])
def test_worker_allows_no_folder_by_default(flow: bool, folders: str | None, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "TRTOPS_"))}
    environment |= {"PYTHONPATH": str(ROOT), "TRTOPS_HOME": str(tmp_path)}
    environment |= {"PREFECT__FLOW_RUN_ID": "1"} if flow else {}
    environment |= {allowed.VARIABLE: folders} if folders else {}
    code = "import os, trtops.flows; print(repr(os.environ.get('TRTOPS_ALLOWED_SCRIPTS')))"
    shown = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)

    assert shown.strip() == repr("" if flow and not folders else folders)
