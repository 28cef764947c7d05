"""Pictures of errors: heat maps, and errors over the magnitude of the reference.

Matplotlib is imported when the first picture is drawn, and draws without a window.
"""

from __future__ import annotations

import hashlib
import io
import logging
import math
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from trtops.comparator import metrics
from trtops.comparator.arrays import Array, holds_strings, to_numpy
from trtops.comparator.report import Outputs, iterations_of
from trtops.extras import installed, sentence

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Kind = Literal["absolute", "relative"]
KINDS: tuple[Kind, ...] = ("absolute", "relative")

# Images in a heat map, and pixels of the map's side: larger ones would be shrunk again when they are drawn.
_IMAGES, _PIXELS = 16, 512
_BORDER, _NAN, _INFINITE = "#ffffff", "#d62728", "#ff7f0e"
# Points that are drawn at random, and further points with the largest errors.
_POINTS, _LARGEST = 50_000, 2_000

_log = logging.getLogger(__name__)


def error_figures(actual: Outputs, golden: Outputs) -> Iterator[tuple[str, bytes]]:
    """File names and SVG files, three per output, of a run's first iteration against a golden one's.

    Outputs that cannot be compared are left out. Without matplotlib, there are no figures.
    """
    if not installed("matplotlib"):
        _log.warning("Errors are not drawn. %s", sentence("matplotlib"))
        return
    ours, theirs = iterations_of(actual, "actual"), iterations_of(golden, "golden")
    for name in (name for name in ours[0] if name in theirs[0]):
        a, b = to_numpy(ours[0][name]), to_numpy(theirs[0][name])
        if a.shape == b.shape and a.size and not (holds_strings(a) or holds_strings(b)):
            stem = file_stem(name)
            for kind in KINDS:
                yield f"{stem}.{kind}.svg", _file_bytes(heatmap(a, b, name, kind), "svg")
            yield f"{stem}.errors.svg", _file_bytes(error_plot(a, b, name), "svg")


def save_and_show(figure: Figure, directory: str | None, file_name: str, show: bool) -> None:
    """Save a figure as PNG to a directory if one is given, and show it in a window if requested."""
    data = _file_bytes(figure, "png")
    if directory is not None:
        Path(directory).mkdir(parents=True, exist_ok=True)
        path = Path(directory) / file_name
        path.write_bytes(data)
        _log.info("Saved %s", path)
    if show:
        import matplotlib.pyplot as plt
        from matplotlib.image import imread

        plt.figure(figsize=figure.get_size_inches())
        plt.imshow(imread(io.BytesIO(data)))
        plt.axis("off")
        plt.show()


def file_stem(name: str) -> str:
    """A file name for an output; different names give different file names."""
    # MLflow decodes %2F in the name of an artifact, and then looks for a folder.
    safe = re.sub(r"[^\w ()\[\]+,=@-]", lambda character: f"~{ord(character[0]):x}~", name) or "~"
    if len(safe.encode("utf-8", "backslashreplace")) <= 120:
        return safe
    head = safe.encode("utf-8", "ignore")[:100].decode("utf-8", "ignore")
    return f"{head}~{hashlib.sha256(name.encode('utf-8', 'backslashreplace')).hexdigest()[:12]}"


def heatmap(a: Array, b: Array, name: str, kind: Kind) -> Figure:
    """One error of one output: an image for each index of the leading axes, side by side; a vector is drawn in rows.

    Of more than 16 images those with the largest errors are drawn. Large images are shrunk to 512 pixels for all that
    are side by side; each pixel shows the largest error of its area. An error of 0 has the lowest color; NaN and
    infinity have colors outside of the scale, which a legend names.
    """
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm, Normalize, to_rgba
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    images_a, images_b = _as_images(a), _as_images(b)
    chosen = np.arange(len(images_a))
    if chosen.size > _IMAGES:
        worst = [float(_shrunk_errors(x, y, kind, _PIXELS).max()) for x, y in zip(images_a, images_b)]
        chosen = np.sort(np.argsort(worst)[-_IMAGES:])
    columns = math.ceil(math.sqrt(chosen.size))
    images = [_shrunk_errors(images_a[i], images_b[i], kind, _PIXELS // columns) for i in chosen]
    shown = np.stack(images)
    positive = shown[np.isfinite(shown) & (shown > 0)]
    low, high = (float(np.quantile(positive, 0.05)), float(positive.max())) if positive.size else (0.0, 1.0)
    norm = LogNorm(low, high) if high > 1e3 * low > 0 else Normalize(0, high)
    colors = colormaps["viridis"]
    pixels = colors(norm(np.clip(shown, norm.vmin, high).ravel())).reshape(*shown.shape, 4)
    legend = []
    for name_of, color, where in (("NaN", _NAN, np.isnan(shown)), ("infinity", _INFINITE, np.isinf(shown))):
        pixels[where] = to_rgba(color)
        legend += [Patch(color=color, label=name_of)] if where.any() else []
    # Borders separate the images.
    bordered = np.pad(pixels, ((0, -chosen.size % columns), (1, 1), (1, 1), (0, 0)), constant_values=np.nan)
    bordered[np.isnan(bordered[..., 0])] = to_rgba(_BORDER)
    rows = [np.concatenate(bordered[start : start + columns], axis=1) for start in range(0, len(bordered), columns)]

    figure = Figure(figsize=(8, 6.5), layout="constrained", dpi=110)
    axes = figure.subplots()
    axes.set_axis_off()
    # Colors between those of two pixels would be those of other errors.
    axes.imshow(np.concatenate(rows), aspect="auto", interpolation="none")
    figure.colorbar(ScalarMappable(norm, colors), ax=axes, label=f"{kind} error")
    if legend:
        figure.legend(handles=legend, loc="outside lower center", ncols=2)
    left_out = chosen.size < len(images_a)
    some = f", the {chosen.size} of {len(images_a)} slices with the largest errors" if left_out else ""
    figure.suptitle(f"{name:.60} {list(a.shape)}: {kind} error{some}", fontsize=10)
    return figure


def error_plot(a: Array, b: Array, name: str) -> Figure:
    """Both errors of one output over the reference's magnitude: a random sample and the largest errors."""
    from matplotlib.figure import Figure

    magnitude, absolute, relative = _sampled_errors(a, b)
    figure = Figure(figsize=(7.5, 6.5), layout="constrained", dpi=110)
    for axes, error, label in zip(figure.subplots(2, sharex=True), (absolute, relative), ("absolute", "relative")):
        axes.scatter(magnitude, error, s=8, alpha=0.5, linewidths=0, rasterized=True)
        axes.set_ylabel(f"{label} error")
        axes.grid(alpha=0.3)
        _set_log_scale(axes, "y", error)
        _set_log_scale(axes, "x", magnitude)
    axes.set_xlabel("magnitude of the reference")
    count = "all" if magnitude.size == a.size else f"{magnitude.size} of"
    figure.suptitle(f"{name:.60} {list(a.shape)}: errors of {count} {a.size} elements", fontsize=10)
    return figure


def _as_images(array: Array) -> Array:
    """The array as ``(images, height, width)``; a vector in rows, the last one padded with zeros."""
    if array.ndim >= 2:
        return array.reshape(-1, *array.shape[-2:])
    flat = array.reshape(-1)
    width = min(flat.size, max(16, math.ceil(math.sqrt(flat.size))))
    height = math.ceil(flat.size / width)
    return np.pad(flat, (0, width * height - flat.size)).reshape(1, height, width)


def _errors(a: Array, b: Array, kind: Kind) -> Array:
    """The error of each element; 0 for equal ones, including 0 / 0 and differences of infinities."""
    return np.where(a == b, 0.0, metrics.elementwise(a, b)[KINDS.index(kind)])


def _shrunk_errors(a: Array, b: Array, kind: Kind, side: int) -> Array:
    """The largest error under each of ``side`` x ``side`` pixels, computed a few rows at a time; NaN is the largest."""
    high, wide = (max(1, math.ceil(n / side)) for n in a.shape)
    rows = []
    starts = np.arange(0, a.shape[1], wide)
    for top in range(0, a.shape[0], high):
        errors = _errors(a[top : top + high], b[top : top + high], kind)
        rows.append(np.maximum.reduceat(errors.max(axis=0), starts))
    return np.stack(rows)


def _sampled_errors(a: Array, b: Array) -> tuple[Array, Array, Array]:
    """Magnitudes and both errors of the points to draw."""
    flat_a, flat_b = a.reshape(-1), b.reshape(-1)
    if flat_a.size > _POINTS:
        absolute = _errors(flat_a, flat_b, "absolute")
        largest = np.argpartition(absolute, -_LARGEST)[-_LARGEST:]
        places = np.union1d(np.random.default_rng(0).integers(0, flat_a.size, _POINTS), largest)
        flat_a, flat_b = flat_a[places], flat_b[places]
    absolute, relative = _errors(flat_a, flat_b, "absolute"), _errors(flat_a, flat_b, "relative")
    return np.abs(flat_b.astype(np.float64)), absolute, relative


def _set_log_scale(axes: Axes, axis: Literal["x", "y"], values: Array) -> None:
    """Make an axis logarithmic if values span more than a factor of 100, with a linear piece for zeros."""
    finite = values[np.isfinite(values)]
    positive = finite[finite > 0]
    if positive.size and positive.max() > 100 * positive.min():
        scale = axes.set_xscale if axis == "x" else axes.set_yscale
        scale("symlog", linthresh=float(np.quantile(positive, 0.01)))


def _file_bytes(figure: Figure, file_format: Literal["png", "svg"]) -> bytes:
    from matplotlib import rc_context

    out = io.BytesIO()
    metadata = {"Date": None} if file_format == "svg" else None
    # Text stays text, which can be searched; a fixed salt makes ids, and so files, the same every time.
    with warnings.catch_warnings(), rc_context({"svg.fonttype": "none", "svg.hashsalt": "trtops"}):
        warnings.filterwarnings("ignore", message="Glyph")  # names in scripts that the font lacks
        figure.savefig(out, format=file_format, metadata=metadata)
    return out.getvalue()
