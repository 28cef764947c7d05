"""Export of PyTorch modules to ONNX files, which are kept by content."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from trtops import errors
from trtops.backend.torch.lower import EXPORTED, lower_file
from trtops.backend.torch.module import TorchModel, error_place, frame_place, named_tensors, quiet
from trtops.system.processes import temporary_prefix
from trtops.torch_tensors import to_torch

_NUMBER = re.compile(r"(?<!\w)\d{1,6}(?!\w)")
_FORMAT = "2"
_STATIC = re.compile(r"inferred a static shape of (\d+) for dimension inputs\['(\w+)'\]\.shape\[(\d+)\]")


@dataclass(frozen=True)
class Example:
    """The inputs of an export: an array for each, and the axes whose size may change."""

    arrays: Mapping[str, np.ndarray[Any, Any]]
    dynamic: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Export:
    """An exported module, and what its export showed."""

    model: TorchModel
    path: Path
    example: Example
    fixed: tuple[tuple[str, int, int], ...] = ()  # axes that were to be dynamic: input, axis, the only size
    decisions: tuple[str, ...] = ()  # places that turn a size into a number or a branch, in order
    bounds: tuple[int, ...] = ()  # numbers that branches compare sizes with

    @property
    def dropped(self) -> tuple[str, ...]:
        """Inputs of the example that the exported file does not have."""
        return tuple(name for name in self.example.arrays if name not in self.inputs)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs in the exported file."""
        import onnx

        return tuple(value.name for value in onnx.load(self.path, load_external_data=False).graph.input)


def export_folder() -> Path:
    """Return the folder of exported files."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trtops" / "exports"


def export(model: TorchModel, example: Example, opset: int | None = None) -> Export:
    """Export a module to an ONNX file, unless there is one of the same content, example, options and releases.

    Axes that the module fixes become static, and are named by the result. InvalidModelError names what cannot be
    exported, and where.
    """
    import torch

    shapes = {name: [str(array.dtype), *array.shape] for name, array in example.arrays.items()}
    dynamic = {name: list(axes) for name, axes in example.dynamic.items()}
    releases = (torch.__version__, version("onnxscript"), ".".join(map(str, sys.version_info[:2])))
    key = json.dumps([_FORMAT, model.name, model.digest(), shapes, dynamic, opset, releases])
    folder = export_folder() / hashlib.sha256(key.encode()).hexdigest()[:32]
    path = folder / f"{model.name}.onnx"
    if not path.is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=temporary_prefix("export")) as temporary:
            written = Path(temporary, "export")
            written.mkdir()
            facts = _export(model, example, opset, written / path.name)
            (written / "export.json").write_text(json.dumps(facts))
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # another process was faster, with the same content
                written.rename(folder)
    facts = json.loads((folder / "export.json").read_text())
    fixed = tuple((str(name), int(axis), int(size)) for name, axis, size in facts["fixed"])
    return Export(model, path, example, fixed, tuple(map(str, facts["decisions"])), tuple(facts["bounds"]))


def _export(model: TorchModel, example: Example, opset: int | None, path: Path) -> dict[str, Any]:
    import torch

    tensors = {name: to_torch(np.array(array)) for name, array in example.arrays.items()}
    axes = {name: set(example.dynamic.get(name, ())) for name in tensors}
    with torch.no_grad():
        outputs = [name for name, _ in named_tensors(model._call(model.fresh(), tensors))]
    exported = opset if opset is None else max(opset, EXPORTED)
    options: dict[str, Any] = {"input_names": list(tensors), "output_names": outputs, "opset_version": exported}
    fixed: list[tuple[str, int, int]] = []
    decisions: list[str] = []
    bounds: list[int] = []
    while True:
        try:
            module = model.fresh()
            with quiet(), _recorded(module, decisions, bounds):
                if model.program is not None:
                    program = torch.onnx.export(model.program, dynamo=True, verbose=False, **options)
                else:
                    dims = {name: dict.fromkeys(axes[name], torch.export.Dim.DYNAMIC) for name in tensors}
                    program = torch.onnx.export(
                        module, (), kwargs=tensors, dynamic_shapes=dims, dynamo=True, verbose=False, **options
                    )
                program.save(str(path))
            break
        except Exception as exc:
            static = [(name, int(axis), int(size)) for size, name, axis in _STATIC.findall(str(exc))]
            static = [(name, axis, size) for name, axis, size in static if axis in axes.get(name, ())]
            if not static:
                raise errors.InvalidModelError(_failure(model.source, module, exc)) from exc
            fixed += static
            for name, axis, _ in static:
                axes[name].discard(axis)
    if opset is not None and opset < EXPORTED:
        lower_file(path, opset)
    for name, value in zip(tensors, program.model.graph.inputs):
        for axis in sorted(axes[name]) if model.program is not None else ():
            if isinstance(size := value.shape[axis], int):
                fixed.append((name, axis, size))
    return {"fixed": fixed, "decisions": list(dict.fromkeys(decisions)), "bounds": sorted(set(bounds))}


@contextlib.contextmanager
def _recorded(module: Any, decisions: list[str], bounds: list[int]) -> Iterator[None]:
    """Record where the module turns a symbolic size into a number or a branch."""
    import torch

    names = {id(part): path for path, part in module.named_modules()}
    kinds = ((torch.SymInt, "__index__"), (torch.SymInt, "__int__"), (torch.SymBool, "__bool__"))
    originals = [(kind, name, kind.__dict__.get(name)) for kind, name in kinds]

    def recording(original: Any, label: str) -> Any:
        def record(self: Any) -> Any:
            place = frame_place(sys._getframe(1), names)
            if place:
                decisions.append(f"{label} {place}")
                bounds.extend(map(int, _NUMBER.findall(str(self.node.expr))))
            return original(self)

        return record

    for kind, name, original in originals:
        if original is not None:
            setattr(kind, name, recording(original, "a branch" if kind is torch.SymBool else "a number"))
    try:
        yield
    finally:
        for kind, name, original in originals:
            if original is not None:
                setattr(kind, name, original)


def _failure(source: str, module: Any, exc: BaseException) -> str:
    """Return a sentence about a failed export, with the line of the module, from the innermost error."""
    cause = exc
    while (inner := cause.__cause__ or cause.__context__) is not None:
        cause = inner
    first = f"{type(cause).__name__}: {cause}".strip().split("\n\n")[0].replace("\n", " ")
    advice = " A branch that depends on values needs torch.where or torch.cond." if "data-dependent" in first else ""
    return f"torch.onnx.export does not export {source}{error_place(module, exc)}: {first[:300].rstrip('.')}.{advice}"
