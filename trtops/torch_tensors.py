"""Torch tensors as arrays and back. Never imports torch by itself: where it is not loaded there are no tensors."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np


def is_torch(value: object) -> bool:
    """Whether a value is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def from_torch(tensor: Any) -> np.ndarray[Any, Any]:
    """A torch tensor on any device as an array in host memory; shares memory with a tensor that is there.

    bfloat16 and 8-bit floats, which numpy lacks, become arrays of ``ml_dtypes`` with the same bits.
    """
    host = tensor.detach().cpu()
    name = str(host.dtype).removeprefix("torch.")
    if name == "bfloat16" or name.startswith("float8"):
        import ml_dtypes
        import torch

        bits = host.contiguous().view(torch.int16 if name == "bfloat16" else torch.int8).numpy()
        return bits.view(getattr(ml_dtypes, name))  # type: ignore[no-any-return]
    return host.numpy()  # type: ignore[no-any-return]


def to_torch(array: np.ndarray[Any, Any]) -> Any:
    """An array as a torch tensor in host memory, which shares its memory; strings, which torch lacks, stay an array."""
    import torch

    if array.dtype.kind in "OSUT":
        return array
    if array.dtype.kind != "V" and array.dtype.isbuiltin == 1:
        return torch.from_numpy(array)
    bits = torch.from_numpy(array.view(np.int16 if array.dtype.itemsize == 2 else np.int8))
    return bits.view(getattr(torch, array.dtype.name))
