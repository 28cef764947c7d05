"""Conversion of torch tensors to arrays and back. Torch is only imported if it is needed."""

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np


def is_torch(value: object) -> bool:
    """Whether a value is a torch tensor."""
    # No tensor exists before torch was imported, which takes seconds.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def from_torch(tensor: Any) -> np.ndarray[Any, Any]:
    """Return a tensor as an array in host memory, sharing memory if it is there.

    Bfloat16 and float8 become ``ml_dtypes``.
    """
    host = tensor.detach().cpu()
    name = str(host.dtype).removeprefix("torch.")
    # Tensor.numpy() refuses these types, so their bits are read as integers.
    if name == "bfloat16" or name.startswith("float8"):
        import ml_dtypes
        import torch

        bits = host.contiguous().view(torch.int16 if name == "bfloat16" else torch.int8).numpy()
        return bits.view(getattr(ml_dtypes, name))  # type: ignore[no-any-return]
    return host.numpy()  # type: ignore[no-any-return]


def in_host_memory(feed: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a feed whose tensors are arrays; the feed itself, with what else it knows, if it has no tensor."""
    if not any(map(is_torch, feed.values())):
        return feed
    return {name: from_torch(value) if is_torch(value) else value for name, value in feed.items()}


def to_torch(array: np.ndarray[Any, Any]) -> Any:
    """Return an array as a tensor sharing its memory; strings stay an array."""
    import torch

    if array.dtype.kind in "OSUT":
        return array
    if array.dtype.kind != "V" and array.dtype.isbuiltin == 1:
        return torch.from_numpy(array)
    bits = torch.from_numpy(array.view(np.int16 if array.dtype.itemsize == 2 else np.int8))
    return bits.view(getattr(torch, array.dtype.name))
