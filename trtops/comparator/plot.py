"""Pictures of errors: where they are (heat maps), and how large they are beside the values they sit on.

Matplotlib is loaded when the first picture is drawn, and draws without a window.
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
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_error_metrics", "draw_heatmaps", "error_figures"]

Kind = Literal["absolute", "relative"]

_PANELS = 16
_PIXELS = 512
_POINTS = 50_000
_LARGEST = 2_000

_log = logging.getLogger(__name__)


def error_figures(actual: Outputs, golden: Outputs) -> Iterator[tuple[str, bytes]]:
    """All pictures of a run's first iteration against a golden one's.

    Args:
        actual: The run under test, as :func:`trtops.comparator.report.compare_outputs` takes it.
        golden: The golden run, as :func:`trtops.comparator.report.compare_outputs` takes it.

    Yields:
        A file name and an SVG file's bytes, three per output, with its text as text; outputs that cannot be compared are
        left out.
    """
    ours, theirs = iterations_of(actual, "actual"), iterations_of(golden, "golden")
    for name in ours[0] if ours and theirs else ():
        if name not in theirs[0]:
            continue
        a, b = to_numpy(ours[0][name]), to_numpy(theirs[0][name])
        if a.shape != b.shape or not a.size or holds_strings(a) or holds_strings(b):
            continue
        stem = file_stem(name)
        yield f"{stem}.absolute.svg", _svg_bytes(heatmap(a, b, name, "absolute"))
        yield f"{stem}.relative.svg", _svg_bytes(heatmap(a, b, name, "relative"))
        yield f"{stem}.errors.svg", _svg_bytes(error_plot(a, b, name))


def draw_heatmaps(a: Array, b: Array, name: str, directory: str | None, show: bool = False) -> None:
    """Draw heat maps of both errors of one output.

    Args:
        a: The output under test.
        b: The reference, of the same shape.
        name: The output's name.
        directory: Where to save them, or None.
        show: Whether to show them in a window.
    """
    for kind in ("absolute", "relative"):
        if a.size:
            _save_and_show(heatmap(a, b, name, kind), directory, f"{file_stem(name)}.{kind}.png", show)


def draw_error_metrics(a: Array, b: Array, name: str, directory: str | None, show: bool = False) -> None:
    """Draw both errors of one output over the magnitude of the reference; arguments as for :func:`draw_heatmaps`."""
    if a.size:
        _save_and_show(error_plot(a, b, name), directory, f"{file_stem(name)}.errors.png", show)


def file_stem(name: str) -> str:
    """A file name for an output, whatever is in its name, and different for each."""
    # MLflow decodes %2F in the name of an artifact, and then looks for a folder.
    safe = re.sub(r"[^\w ()\[\]+,=@-]", lambda found: f"~{ord(found[0]):x}~", name) or "~"
    if len(safe.encode("utf-8", "backslashreplace")) <= 120:
        return safe
    head = safe.encode("utf-8", "ignore")[:100].decode("utf-8", "ignore")
    return f"{head}~{hashlib.sha256(name.encode('utf-8', 'backslashreplace')).hexdigest()[:12]}"


def heatmap(a: Array, b: Array, name: str, kind: Kind) -> Figure:
    """A heat map of one error of one output.

    The last two axes make an image; a vector is wrapped into rows. Of more than 16 images those with the largest errors
    are shown. An image larger than 512 pixels is shrunk so that each pixel has the largest error below it.

    Args:
        a: The output under test; at least one element.
        b: The reference, of the same shape.
        name: The output's name.
        kind: Which error.
    """
    from matplotlib.figure import Figure

    images_a, images_b = _as_images(a), _as_images(b)
    chosen, total = _worst_images(images_a, images_b, kind), images_a.shape[0]
    panels = [_shrunk_errors(images_a[index], images_b[index], kind) for index in chosen]
    columns = math.ceil(math.sqrt(len(panels)))
    rows = math.ceil(len(panels) / columns)
    width, height = max(5.5, 2.8 * columns + 1.4), max(3.8, 2.6 * rows + 0.9)
    figure = Figure(figsize=(width, height), dpi=110)
    # Margins in inches: the layout engines take seconds for this many axes.
    figure.subplots_adjust(0.5 / width, 0.35 / height, 1 - 1.3 / width, 1 - 0.6 / height, wspace=0.22, hspace=0.28)
    grid = figure.subplots(rows, columns, squeeze=False)
    bar = figure.add_axes((1 - 1.1 / width, 0.35 / height, 0.2 / width, 1 - 0.95 / height))
    norm = _color_norm(panels)
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, index, panel in zip(grid.flat, chosen, panels):
        drawn = _draw_image(axes, panel, norm, images_a.shape[1:])
        if total > 1:
            axes.set_title(_slice_name(a, int(index)), fontsize=8)
    figure.colorbar(drawn, cax=bar, label=f"{kind} error")
    some = f", the {len(panels)} of {total} slices with the largest errors" if len(panels) < total else ""
    rows_of = f", in rows of {images_a.shape[2]}" if a.ndim == 1 else ""
    figure.suptitle(f"{_short_title(name)} {list(a.shape)}: {kind} error{some}{rows_of}", fontsize=10)
    return figure


def error_plot(a: Array, b: Array, name: str) -> Figure:
    """Both errors of one output over the magnitude of the reference, with the largest ones in any case.

    Args:
        a: The output under test; at least one element.
        b: The reference, of the same shape.
        name: The output's name.
    """
    from matplotlib.figure import Figure

    magnitude, absolute, relative, drawn = _sampled_errors(a, b)
    figure = Figure(figsize=(7.5, 6.5), layout="constrained", dpi=110)
    upper, lower = figure.subplots(2, sharex=True)
    for axes, error, label in [(upper, absolute, "absolute error"), (lower, relative, "relative error")]:
        axes.scatter(
            magnitude,
            error,
            s=4 if drawn > 5000 else 14,
            alpha=0.4 if drawn > 5000 else 0.8,
            linewidths=0,
            color="#3b7dd8",
            rasterized=True,
        )
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
        _scale_axis(axes, "y", error)
    _scale_axis(lower, "x", magnitude)
    lower.set_xlabel("magnitude of the reference")
    count = "all" if drawn == a.size else f"{drawn} of"
    figure.suptitle(f"{_short_title(name)} {list(a.shape)}: errors of {count} {a.size} elements", fontsize=10)
    return figure


def _short_title(name: str) -> str:
    return name if len(name) <= 60 else f"{name[:28]}…{name[-28:]}"


def _as_images(array: Array) -> Array:
    """The array as ``(images, height, width)``; a vector in rows, the last one filled up with zeros."""
    if array.ndim >= 2:
        return array.reshape(-1, *array.shape[-2:])
    flat = array.reshape(-1)
    width = min(flat.size, max(16, math.ceil(math.sqrt(flat.size))))
    height = math.ceil(flat.size / width)
    return np.pad(flat, (0, width * height - flat.size)).reshape(1, height, width)


def _worst_images(a: Array, b: Array, kind: Kind) -> Array:
    """The places of the images with the largest errors, in order of place."""
    if a.shape[0] <= _PANELS:
        return np.arange(a.shape[0])
    worst = np.array([np.nanmax(_shrunk_errors(x, y, kind), initial=0) for x, y in zip(a, b)])
    places: Array = np.sort(np.argsort(-worst, kind="stable")[:_PANELS])
    return places


def _shrunk_errors(a: Array, b: Array, kind: Kind) -> Array:
    """The largest error under each pixel, without computing all of them at once."""
    high, wide = (max(1, math.ceil(n / _PIXELS)) for n in a.shape)
    rows = []
    starts = np.arange(0, a.shape[1], wide)
    for top in range(0, a.shape[0], high):
        errors = metrics.elementwise(a[top : top + high], b[top : top + high])[kind == "relative"]
        rows.append(np.maximum.reduceat(errors.max(axis=0), starts))
    return np.stack(rows)


def _color_norm(panels: list[Array]) -> Any:
    """One colour scale for all: logarithmic if the errors span more than a factor of 1000."""
    from matplotlib.colors import LogNorm, Normalize

    values = np.concatenate([panel.ravel() for panel in panels])
    values = values[np.isfinite(values)]
    positive = values[values > 0]
    if positive.size and positive.max() > 1e3 * np.quantile(positive, 0.05):
        return LogNorm(float(np.quantile(positive, 0.05)), float(positive.max()))
    return Normalize(0, float(values.max()) if values.size and values.max() > 0 else 1)


def _draw_image(axes: Axes, panel: Array, norm: Any, shape: tuple[int, ...]) -> Any:
    from matplotlib import colormaps
    from matplotlib.ticker import MaxNLocator

    colors = colormaps["viridis"].with_extremes(bad="#d62728", under="#000000")
    shown = np.where(np.isinf(panel), np.nan, panel)
    drawn = axes.imshow(
        np.ma.masked_invalid(shown),
        cmap=colors,
        norm=norm,
        aspect="auto",
        interpolation="nearest",
        extent=(-0.5, shape[1] - 0.5, shape[0] - 0.5, -0.5),
    )
    axes.set_axis_on()
    axes.tick_params(labelsize=7)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    return drawn


def _slice_name(array: Array, index: int) -> str:
    places = np.unravel_index(index, array.shape[:-2])
    return f"[{', '.join(str(int(place)) for place in places)}, :, :]"


def _sampled_errors(a: Array, b: Array) -> tuple[Array, Array, Array, int]:
    """Magnitude and both errors of a random sample and of the largest errors."""
    flat_a, flat_b = a.reshape(-1), b.reshape(-1)
    if flat_a.size <= _POINTS:
        places = np.arange(flat_a.size)
    else:
        sample = np.random.default_rng(0).integers(0, flat_a.size, _POINTS)
        places = np.union1d(sample, _largest_places(flat_a, flat_b))
    reference = flat_b[places].astype(np.float64)
    absolute, relative = metrics.elementwise(flat_a[places], flat_b[places])
    return np.abs(reference), absolute, relative, places.size


def _largest_places(a: Array, b: Array) -> Array:
    found: list[tuple[Array, Array]] = []
    block = 1 << 20
    for start in range(0, a.size, block):
        absolute, _ = metrics.elementwise(a[start : start + block], b[start : start + block])
        count = min(_LARGEST, absolute.size)
        places = np.argpartition(absolute, absolute.size - count)[absolute.size - count :]
        found.append((absolute[places], places + start))
    errors, places = (np.concatenate(part) for part in zip(*found))
    kept: Array = places[np.argsort(errors)[-_LARGEST:]]
    return kept


def _scale_axis(axes: Axes, which: Literal["x", "y"], values: Array) -> None:
    """Logarithmic where values span more than a factor of 100; zeros then lie on a short linear piece."""
    finite = values[np.isfinite(values)]
    positive = finite[finite > 0]
    if not positive.size or positive.max() <= 100 * positive.min():
        return
    set_scale = axes.set_xscale if which == "x" else axes.set_yscale
    if positive.size == finite.size:
        set_scale("log")
    else:
        set_scale("symlog", linthresh=float(np.quantile(positive, 0.01)))


def _png_bytes(figure: Figure) -> bytes:
    return _drawn(figure, "png")


def _svg_bytes(figure: Figure) -> bytes:
    from matplotlib import rc_context

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "trtops"}):  # text stays text, and ids are always the same
        return _drawn(figure, "svg", metadata={"Date": None})


def _drawn(figure: Figure, form: str, **options: Any) -> bytes:
    out = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # names in scripts that the font lacks
        figure.savefig(out, format=form, **options)
    return out.getvalue()


_WITHOUT_SCREEN = ("agg", "cairo", "pdf", "pgf", "ps", "svg", "template")  # back ends of Matplotlib that draw to files


def _save_and_show(figure: Figure, directory: str | None, file_name: str, show: bool) -> None:
    data = _png_bytes(figure)
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
