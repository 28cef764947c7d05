"""PyTorch modules and programs as models. Importing this package does not import torch."""

import os
import sys
from pathlib import Path
from typing import Any, Protocol

from trtops.system.allowed import split_script

PICKLED = (".pt", ".pth", ".ckpt")


class TorchObject(Protocol):
    """A module or a program, for type checkers."""

    def named_parameters(self) -> Any:
        """Return its weights with their names."""


def is_torch_model(value: object) -> bool:
    """True for a module, a program, ``script.py:function``, or the path of a ``.pt2`` file. Does not import torch."""
    if isinstance(value, (str, os.PathLike)):
        text = os.fspath(value)
        return isinstance(text, str) and (text.endswith((".pt2", *PICKLED)) or split_script(text)[1] != "")
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, (torch.nn.Module, torch.export.ExportedProgram))


def model_name(value: object) -> str:
    """Return the text of a path, ``script.py:function``, or the class of a module or program."""
    return os.fspath(value) if isinstance(value, (str, os.PathLike)) else type(value).__name__


def model_stem(source: str | os.PathLike[str]) -> str:
    """Return the name of a model's files, runs and experiment: without folder and ending, or ``script-function``."""
    script, function = split_script(os.fspath(source))
    return f"{Path(script).stem}-{function}" if function else Path(script).stem
