"""What a type checker knows of the flows and of the package in a user's script."""

import os
import subprocess
import sys
from pathlib import Path

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


def test_stub_is_that_of_the_flows() -> None:
    assert flow_stub.FILE.read_text(encoding="utf-8") == flow_stub.stub(), "run: python -m docs.flow_stub"


def test_mypy_finds_wrong_keywords(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(SCRIPT)
    # Checking the libraries as well would take half a minute.
    skipped = "mypy-prefect.*,mypy-mlflow.*,mypy-onnx.*,mypy-numpy.*,mypy-pandas.*,mypy-pydantic.*"
    (tmp_path / "mypy.ini").write_text(f"[mypy]\nfollow_imports = silent\n[{skipped}]\nfollow_imports = skip\n")

    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file=mypy.ini", f"--cache-dir={tmp_path}/cache", "user.py"],
        cwd=tmp_path, env={**os.environ, "MYPYPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip

    errors = [line.removeprefix("user.py:") for line in done.stdout.splitlines() if " error: " in line]
    assert [line.partition(":")[0] for line in errors] == ["7", "8", "9"], done.stdout
    assert "nonsense" in errors[0] and "fp17" in errors[1] and "nonsense" in errors[2]
    assert "Literal['good'] | Literal['bad']" in done.stdout and 'note: Revealed type is "Any"' not in done.stdout
