"""The flows of lists and folders, and deploying without a server."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from flows.nightly import nightly
from flows.watch import watch
from tests import models
from trtops import errors
from trtops.tracking.store import open_tracker


def test_missing_server_is_reported(tmp_path: Path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/api"
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    plain["TRTOPS_HOME"] = str(tmp_path)

    for server, said in (
        ({}, "No Prefect server is configured."),
        ({"PREFECT_API_URL": url}, f"server at {url} cannot be used"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "flows.deployments"], env=plain | server, capture_output=True, text=True
        )
        assert done.returncode == 3
        assert said in done.stderr and "make up" in done.stderr
        assert not [line for line in done.stderr.splitlines() if "Traceback" in line]


def test_list_and_folder_are_built(store: Path, tmp_path: Path):
    models.conv_net().write(tmp_path)
    listed = tmp_path / "list.yaml"
    listed.write_text("models:\n  - model: conv_net.onnx\n    policy: {isolated: false}\n  - model: conv_nett.onnx\n")

    result = nightly(listed)
    assert result.headline == "1 of 2 failed (1 good, 1 error)"
    assert [build.outcome for build in result.builds] == ["good", "error"]
    assert len(open_tracker().find("conv_net")) == 1

    listed.write_text("models: []")
    assert nightly(listed, experiment="x").headline == "nothing to build"
    assert watch(tmp_path / "none").builds == ()
    listed.write_text("modles: []")
    with pytest.raises(errors.FormatError, match="Did you mean 'models'"):
        nightly(listed)
