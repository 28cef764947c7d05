"""What a type checker knows of the flows and of the package in a user's script."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs import flow_stub

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import trtops
from trtops.flows import convert

result = convert("model.onnx", precision="fp16", data="images.npz")
reveal_type(result.verdict)
convert("model.onnx", nonsense=3)
convert("model.onnx", precision="fp17")
trtops.convert("model.onnx", nonsense=3)
"""


def test_stubs_are_those_of_flows_and_ops() -> None:
    for file, stub in flow_stub.STUBS.items():
        assert file.read_text(encoding="utf-8") == stub(), "run: python -m docs.flow_stub"


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_type_checkers_find_wrong_keywords(checker: str, tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(SCRIPT)
    # Checking the libraries as well would take half a minute.
    stubs = "[mypy-numpy.*,mypy-pandas.*,mypy-matplotlib.*]\nfollow_imports_for_stubs = true\n"
    options_of_mypy = f"[mypy]\nfollow_imports = skip\n[mypy-trtops.*]\nfollow_imports = silent\n{stubs}"
    (tmp_path / "mypy.ini").write_text(options_of_mypy)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(ROOT)]}))
    options = {
        "mypy": ["--config-file=mypy.ini", f"--cache-dir={tmp_path}/cache", "user.py"],
        "pyright": [f"--pythonpath={sys.executable}"],
    }

    done = subprocess.run(
        [sys.executable, "-m", checker, *options[checker]],
        cwd=tmp_path, env={**os.environ, "MYPYPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip

    errors = re.findall(r"user\.py:(\d+):.* error: (.*)", done.stdout)
    assert [int(number) for number, _ in errors] == [7, 8, 9], done.stdout + done.stderr
    assert "nonsense" in errors[0][1] and "fp17" in errors[1][1] and "nonsense" in errors[2][1]
    [verdict] = re.findall(r"(?:Revealed type is|Type of \"result.verdict\" is) (.*)", done.stdout)
    assert "good" in verdict and "bad" in verdict
