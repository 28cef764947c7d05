"""The perceptual distance of images (LPIPS)."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from trtops import errors
from trtops.comparator.arrays import Array
from trtops.extras import require


def lpips_distance(pairs: Sequence[tuple[Array, Array]]) -> float | None:
    """The mean perceptual distance of pairs of images, 0 for equal ones: LPIPS with AlexNet, in float32 on the CPU.

    Images are of any numeric dtype, ``(N, C, H, W)``, ``(N, H, W, C)`` or ``(C, H, W)`` with 1 or 3 channels; None for
    other arrays. ComparisonError if torch, lpips or its model is missing.
    """
    # Zhang et al., "The Unreasonable Effectiveness of Deep Features as a Perceptual Metric", CVPR 2018.
    distances = []
    for a, b in pairs:
        # Values up to 1 are taken to be scaled to 1, larger ones to 255.
        scale = 255.0 if max(float(a.max(initial=0)), float(b.max(initial=0))) > 1 else 1.0
        images = [_as_images(array, scale) for array in (a, b)]
        if images[0] is None or images[1] is None:
            return None
        model = _load_model()
        import torch  # installed, since the model was loaded

        with torch.no_grad():
            distances.append(float(model(*map(torch.from_numpy, images)).mean()))
    return sum(distances) / len(distances)


@functools.cache
def _load_model() -> Any:
    require("lpips", error=errors.ComparisonError)  # which needs torch itself
    import lpips
    import torch

    try:
        return lpips.LPIPS(net="alex", verbose=False).to(torch.device("cpu")).eval()
    except (OSError, RuntimeError) as exc:
        raise errors.ComparisonError(f"The perceptual metric's model could not be loaded: {exc}") from exc


def _as_images(array: Array, scale: float) -> Array | None:
    """RGB images ``(N, 3, H, W)`` between -1 and 1, from values in ``[0, scale]``; None for other shapes."""
    images = array[None] if array.ndim == 3 else array
    if images.ndim == 4 and images.shape[1] not in (1, 3) and images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.ndim != 4 or images.shape[1] not in (1, 3) or not images.size:
        return None
    scaled = images.astype(np.float32) / np.float32(scale)
    # LPIPS expects values from -1 to 1.
    if scaled.min() >= 0:
        scaled = scaled * 2 - 1
    return np.ascontiguousarray(np.broadcast_to(scaled, (images.shape[0], 3, *images.shape[2:])))
