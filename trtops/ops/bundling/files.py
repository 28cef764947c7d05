"""A bundle as files: written so that the same case gives the same bytes, and tried as a stranger would."""

from __future__ import annotations

import io
import json
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trtops import errors
from trtops.backend.onnx.model import is_large
from trtops.backend.onnx.save import save_model
from trtops.files import open_atomically
from trtops.masking import masked
from trtops.ops.bundling.case import Case
from trtops.ops.evaluation.command import run_group
from trtops.processes import temporary_prefix
from trtops.spec import Environment

_PACKAGE = Path(__file__).parents[2]
_SCRIPTS = {"onnxruntime": "backend/onnxrt/reproduce.py", "tensorrt": "backend/trt/reproduce.py"}
_EVALUATE = "comparator/standalone.py"
_BEGINNING = (
    1980,
    1,
    1,
    0,
    0,
    0,
)  # the earliest time a zip knows: the same case makes the same bytes whenever it is bundled
_NEEDED = {"onnxruntime": ("numpy", "onnxruntime"), "tensorrt": ("numpy", "tensorrt", "cuda-python")}


def case_files(case: Case, environment: Environment) -> dict[str, bytes]:
    """What the script needs: itself, the case, model and arrays, and the releases to run it in."""
    return {
        "reproduce.py": (_PACKAGE / _SCRIPTS[case.backend]).read_bytes(),
        "evaluate.py": (_PACKAGE / _EVALUATE).read_bytes(),
        "case.json": json.dumps(case.manifest(), indent=1, ensure_ascii=False).encode("utf-8"),
        "inputs.npz": _packed(case.feeds),
        "golden.npz": _packed(case.golden),
        "constraints.txt": _constraints(case.backend, environment).encode("utf-8"),
        **_model_files(case),
    }


def _packed(iterations: Sequence[Mapping[str, Any]]) -> bytes:
    """Arrays as npz, by the numbers of their iteration and place: names of tensors may hold anything."""
    file = io.BytesIO()
    arrays = {
        f"{i}_{j}": array.astype(str) if array.dtype.kind == "O" else array
        for i, named in enumerate(iterations)
        for j, array in enumerate(map(np.asarray, named.values()))
    }
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def _model_files(case: Case) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("bundle")) as folder:
        save_model(case.model, Path(folder, "model.onnx"), external_data_path="" if is_large(case.model) else None)
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def _constraints(backend: str, environment: Environment) -> str:
    versions = {**dict(environment.packages), backend: environment.backend_version}
    lines = [f"{name}=={versions[name]}" for name in _NEEDED[backend] if versions.get(name)]
    return "".join(f"{line}\n" for line in [f"# python {environment.python}", *lines])


def environment_text(environment: Environment) -> bytes:
    """The environment without the host's name and the working folder's commit, which are nobody's business."""
    values = {k: v for k, v in environment.to_dict().items() if k not in ("host", "git_commit")}
    return json.dumps(values, indent=1, ensure_ascii=False).encode("utf-8")


def write_zip(path: str | Path, files: Mapping[str, bytes]) -> None:
    """Write a zip whole or not at all; members in the order of their names, all of one time.

    Raises:
        OSError: If it cannot be written.
    """
    with open_atomically(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name in sorted(files):
            member = zipfile.ZipInfo(name, _BEGINNING)
            member.external_attr = 0o644 << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, files[name])


def tried(files: Mapping[str, bytes], timeout_seconds: float) -> tuple[bool, str]:
    """Whether the script of a bundle repeats its verdict in a process that knows no trtops, and what it prints.

    Raises:
        ReproductionError: If it does not end in time.
    """
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("bundle")) as folder, tempfile.TemporaryFile() as output:
        for name, data in files.items():
            target = Path(folder, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        code = run_group([sys.executable, "-E", "-s", str(Path(folder, "reproduce.py"))], output, timeout_seconds)
        output.seek(0)
        printed = masked(output.read().decode(errors="replace").replace(f"{folder}/", ""))
    if code is None:
        raise errors.ReproductionError(f"The bundle's script did not end within {timeout_seconds:g} s. Give it longer.")
    return code == 0, printed
