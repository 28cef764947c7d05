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
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from trtops.comparator import metrics
from trtops.comparator.arrays import Array, holds_strings, to_numpy
from trtops.comparator.report import Outputs, iterations_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_error_metrics", "draw_heatmaps", "error_figures"]

Kind = Literal["absolute", "relative"]

_PANELS = 16  # images in a heat map
_PIXELS = 512  # of an image's side
_POINTS = 50_000  # drawn at random
_LARGEST = 2_000  # further points with the largest errors
_WITHOUT_SCREEN = ("agg", "cairo", "pdf", "pgf", "ps", "svg", "template")  # Matplotlib's back ends that draw to files

_log = logging.getLogger(__name__)


def error_figures(actual: Outputs, golden: Outputs) -> Iterator[tuple[str, bytes]]:
    """File names and SVG files, three per output, of a run's first iteration against a golden one's.

    Outputs that cannot be compared are left out.
    """
    ours, theirs = iterations_of(actual, "actual"), iterations_of(golden, "golden")
    for name in ours[0] if ours and theirs else ():
        if name not in theirs[0]:
            continue
        a, b = to_numpy(ours[0][name]), to_numpy(theirs[0][name])
        if a.shape != b.shape or not a.size or holds_strings(a) or holds_strings(b):
            continue
        stem = file_stem(name)
        yield f"{stem}.absolute.svg", _file_bytes(heatmap(a, b, name, "absolute"), "svg")
        yield f"{stem}.relative.svg", _file_bytes(heatmap(a, b, name, "relative"), "svg")
        yield f"{stem}.errors.svg", _file_bytes(error_plot(a, b, name), "svg")


def draw_heatmaps(a: Array, b: Array, name: str, directory: str | None, show: bool = False) -> None:
    """Draw heat maps of both errors of one output; save them to a directory, or show them in a window."""
    for kind in ("absolute", "relative"):
        if a.size:
            _save_and_show(heatmap(a, b, name, kind), directory, f"{file_stem(name)}.{kind}.png", show)


def draw_error_metrics(a: Array, b: Array, name: str, directory: str | None, show: bool = False) -> None:
    """Draw both errors of one output over the reference's magnitude; arguments as for :func:`draw_heatmaps`."""
    if a.size:
        _save_and_show(error_plot(a, b, name), directory, f"{file_stem(name)}.errors.png", show)


def file_stem(name: str) -> str:
    """A file name for an output; different names give different file names."""
    # MLflow decodes %2F in the name of an artifact, and then looks for a folder.
    safe = re.sub(r"[^\w ()\[\]+,=@-]", lambda found: f"~{ord(found[0]):x}~", name) or "~"
    if len(safe.encode("utf-8", "backslashreplace")) <= 120:
        return safe
    head = safe.encode("utf-8", "ignore")[:100].decode("utf-8", "ignore")
    return f"{head}~{hashlib.sha256(name.encode('utf-8', 'backslashreplace')).hexdigest()[:12]}"


def heatmap(a: Array, b: Array, name: str, kind: Kind) -> Figure:
    """One error of one output, an image for each index of the leading axes; a vector is drawn in rows.

    Of more than 16 images those with the largest errors are drawn. Images larger than 512 pixels are shrunk; each pixel
    shows the largest error of its area.
    """
    from matplotlib import colormaps
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    images_a, images_b = _as_images(a), _as_images(b)
    total, shape = images_a.shape[0], images_a.shape[1:]
    chosen = np.arange(total)
    if total > _PANELS:
        worst = np.array([np.nanmax(_shrunk_errors(x, y, kind), initial=0) for x, y in zip(images_a, images_b)])
        chosen = np.sort(np.argsort(-worst, kind="stable")[:_PANELS])
    panels = [_shrunk_errors(images_a[index], images_b[index], kind) for index in chosen]
    values = np.concatenate([panel.ravel() for panel in panels])
    values = values[np.isfinite(values)]
    positive = values[values > 0]
    norm: Normalize = Normalize(0, float(positive.max()) if positive.size else 1)
    if positive.size and positive.max() > 1e3 * np.quantile(positive, 0.05):
        norm = LogNorm(float(np.quantile(positive, 0.05)), float(positive.max()))

    columns = math.ceil(math.sqrt(len(panels)))
    rows = math.ceil(len(panels) / columns)
    width, height = max(5.5, 2.8 * columns + 1.4), max(3.8, 2.6 * rows + 0.9)
    figure = Figure(figsize=(width, height), dpi=110)
    # Margins in inches: the layout engines take seconds for this many axes.
    figure.subplots_adjust(0.5 / width, 0.35 / height, 1 - 1.3 / width, 1 - 0.6 / height, wspace=0.22, hspace=0.28)
    grid = figure.subplots(rows, columns, squeeze=False)
    bar = figure.add_axes((1 - 1.1 / width, 0.35 / height, 0.2 / width, 1 - 0.95 / height))
    colors = colormaps["viridis"].with_extremes(bad="#d62728", under="#000000")
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, index, panel in zip(grid.flat, chosen, panels):
        drawn = axes.imshow(
            np.ma.masked_invalid(panel),
            cmap=colors,
            norm=norm,
            aspect="auto",
            interpolation="nearest",
            extent=(-0.5, shape[1] - 0.5, shape[0] - 0.5, -0.5),
        )
        axes.set_axis_on()
        axes.tick_params(labelsize=7)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
        if total > 1:
            places = ", ".join(str(int(place)) for place in np.unravel_index(int(index), a.shape[:-2]))
            axes.set_title(f"[{places}, :, :]", fontsize=8)
    figure.colorbar(drawn, cax=bar, label=f"{kind} error")
    some = f", the {len(panels)} of {total} slices with the largest errors" if len(panels) < total else ""
    rows_of = f", in rows of {images_a.shape[2]}" if a.ndim == 1 else ""
    figure.suptitle(f"{_short_title(name)} {list(a.shape)}: {kind} error{some}{rows_of}", fontsize=10)
    return figure


def error_plot(a: Array, b: Array, name: str) -> Figure:
    """Both errors of one output over the reference's magnitude: a random sample and the largest errors."""
    from matplotlib.figure import Figure

    magnitude, absolute, relative, drawn = _sampled_errors(a, b)
    figure = Figure(figsize=(7.5, 6.5), layout="constrained", dpi=110)
    upper, lower = figure.subplots(2, sharex=True)
    size, alpha = (4, 0.4) if drawn > 5000 else (14, 0.8)
    for axes, error, label in [(upper, absolute, "absolute error"), (lower, relative, "relative error")]:
        axes.scatter(magnitude, error, s=size, alpha=alpha, linewidths=0, color="#3b7dd8", rasterized=True)
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
        _scale_axis(axes.set_yscale, error)
    _scale_axis(lower.set_xscale, magnitude)
    lower.set_xlabel("magnitude of the reference")
    count = "all" if drawn == a.size else f"{drawn} of"
    figure.suptitle(f"{_short_title(name)} {list(a.shape)}: errors of {count} {a.size} elements", fontsize=10)
    return figure


def _short_title(name: str) -> str:
    return name if len(name) <= 60 else f"{name[:28]}…{name[-28:]}"


def _as_images(array: Array) -> Array:
    """The array as ``(images, height, width)``; a vector in rows, the last one padded with zeros."""
    if array.ndim >= 2:
        return array.reshape(-1, *array.shape[-2:])
    flat = array.reshape(-1)
    width = min(flat.size, max(16, math.ceil(math.sqrt(flat.size))))
    height = math.ceil(flat.size / width)
    return np.pad(flat, (0, width * height - flat.size)).reshape(1, height, width)


def _shrunk_errors(a: Array, b: Array, kind: Kind) -> Array:
    """The largest error under each pixel, computed a few rows at a time."""
    high, wide = (max(1, math.ceil(n / _PIXELS)) for n in a.shape)
    rows = []
    starts = np.arange(0, a.shape[1], wide)
    for top in range(0, a.shape[0], high):
        errors = metrics.elementwise(a[top : top + high], b[top : top + high])[kind == "relative"]
        rows.append(np.maximum.reduceat(errors.max(axis=0), starts))
    return np.stack(rows)


def _sampled_errors(a: Array, b: Array) -> tuple[Array, Array, Array, int]:
    """Magnitudes and both errors of the points to draw, and their number."""
    flat_a, flat_b = a.reshape(-1), b.reshape(-1)
    places = np.arange(flat_a.size)
    if flat_a.size > _POINTS:
        absolute, _ = metrics.elementwise(flat_a, flat_b)
        largest = np.argpartition(absolute, -_LARGEST)[-_LARGEST:]
        places = np.union1d(np.random.default_rng(0).integers(0, flat_a.size, _POINTS), largest)
    absolute, relative = metrics.elementwise(flat_a[places], flat_b[places])
    return np.abs(flat_b[places].astype(np.float64)), absolute, relative, places.size


def _scale_axis(set_scale: Any, values: Array) -> None:
    """Make an axis logarithmic if values span more than a factor of 100, with a linear piece for zeros."""
    finite = values[np.isfinite(values)]
    positive = finite[finite > 0]
    if positive.size and positive.max() > 100 * positive.min():
        if positive.size == finite.size:
            set_scale("log")
        else:
            set_scale("symlog", linthresh=float(np.quantile(positive, 0.01)))


def _file_bytes(figure: Figure, file_format: Literal["png", "svg"]) -> bytes:
    from matplotlib import rc_context

    out = io.BytesIO()
    metadata = {"Date": None} if file_format == "svg" else None
    with warnings.catch_warnings(), rc_context({"svg.fonttype": "none", "svg.hashsalt": "trtops"}):  # stable ids
        warnings.filterwarnings("ignore", message="Glyph")  # names in scripts that the font lacks
        figure.savefig(out, format=file_format, metadata=metadata)
    return out.getvalue()


def _save_and_show(figure: Figure, directory: str | None, file_name: str, show: bool) -> None:
    data = _file_bytes(figure, "png")
    if directory is not None:
        Path(directory).mkdir(parents=True, exist_ok=True)
        path = Path(directory) / file_name
        path.write_bytes(data)
        _log.info("Saved %s", path)
    if show:
        import matplotlib.pyplot as plt
        from matplotlib.image import imread

        if plt.get_backend().lower() in _WITHOUT_SCREEN:
            _log.warning("%s is not shown: there is no screen here. Save it to a folder instead", file_name)
            return
        plt.figure(figsize=figure.get_size_inches())
        plt.imshow(imread(io.BytesIO(data)))
        plt.axis("off")
        plt.show()
