"""What the perceptual metric needs: its model, and images as the model takes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from trtops import errors
from trtops.comparator.arrays import Array


def load_model() -> Any:
    """LPIPS with AlexNet on the CPU; MetricUnavailableError if it cannot be had."""
    try:
        import lpips
        import torch
    except ImportError as exc:
        raise errors.MetricUnavailableError(
            f"The perceptual metric needs torch and lpips ({exc}). Install them, or compare by another metric."
        ) from None
    try:
        return lpips.LPIPS(net="alex", verbose=False).to(torch.device("cpu")).eval()
    except (OSError, RuntimeError) as exc:
        raise errors.MetricUnavailableError(f"The perceptual metric's model could not be loaded: {exc}") from exc


def as_images(name: str, array: Array, scale: float) -> Array:
    """An array as RGB images ``(N, 3, H, W)`` between -1 and 1, from values in ``[0, scale]``."""
    images = array[None] if array.ndim == 3 else array
    if images.ndim == 4 and images.shape[1] not in (1, 3) and images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.ndim != 4 or images.shape[1] not in (1, 3) or not images.size:
        raise errors.MetricUnavailableError(
            f"Output {name!r} has shape {array.shape}; the perceptual metric needs images with 1 or 3 channels."
        )
    scaled = images.astype(np.float32) / np.float32(scale)
    if scaled.min() >= 0:
        scaled = scaled * 2 - 1
    return np.ascontiguousarray(np.broadcast_to(scaled, (images.shape[0], 3, *images.shape[2:])))
