"""PyTorch modules and programs as models. Importing this package does not import torch."""

import os
import re
import sys

SCRIPT = re.compile(r"(.+\.py):(\w+)")
PICKLED = (".pt", ".pth", ".ckpt")


def is_torch_model(value: object) -> bool:
    """True for a module, a program, ``script.py:function``, or the path of a ``.pt2`` file. Does not import torch."""
    if isinstance(value, (str, os.PathLike)):
        text = os.fspath(value)
        return isinstance(text, str) and (text.endswith((".pt2", *PICKLED)) or SCRIPT.fullmatch(text) is not None)
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, (torch.nn.Module, torch.export.ExportedProgram))
