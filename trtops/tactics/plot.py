"""The picture of a campaign: layers by builds, tactics as colours, bad builds marked, suspects first."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np

from trtops.tactics.choice_keys import choice_texts
from trtops.tactics.findings import TacticDiff
from trtops.tactics.table import CampaignTable
from trtops.verdict import VERDICTS

if TYPE_CHECKING:
    import numpy.typing as npt
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_VERDICT_COLOURS = {"good": "#2ca02c", "bad": "#d62728", "error": "#222222"}
_ABSENT, _USUAL = "#ffffff", "#dadada"
_OTHERS = ("#1f77b4", "#17becf", "#9467bd", "#8c564b", "#e377c2", "#bcbd22", "#ff7f0e", "#7f7f7f")
_HEAD = 2  # rows above the layers: the verdicts, and a gap
_NAMED_BUILDS = 60  # more names than this cannot be read under their columns
_LONGEST_NAME = 48


def draw(table: CampaignTable, found: TacticDiff, *, max_layers: int = 80) -> bytes:
    """Draw a campaign as a PNG.

    The first row shows the verdicts; below it is one row per layer that varies, the most suspicious on top. Builds are
    columns: good ones on the left, bad ones in the middle, crashed ones on the right, each in the table's order. A
        layer's
    commonest choice is grey, its others are coloured in the order of how common they are; colours of different rows are
    unrelated. Dots mark the choices of the explanation, and the names of their layers are red.

    Returns:
        The file's bytes.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # not pyplot, which keeps every figure
    from matplotlib.figure import Figure

    # The layers of the explanation first, then by their most suspicious choice.
    place = {name: position for position, name in enumerate(table.layers)}
    order = dict.fromkeys([*found.suspected, *range(len(found.suspects))])
    ordered = list(dict.fromkeys(place[choice.layer] for s in order for choice in found.suspects[s].choices))
    shown = ordered[:max_layers]
    builds = np.argsort(table.verdicts, kind="stable")
    texts, translate = choice_texts(table.choices, found.by)
    codes = translate[table.codes[builds][:, shown]].T
    size = (5.0 + min(16.0, max(3.0, 0.2 * len(builds))), 2.2 + 0.2 * (len(shown) + _HEAD))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(_cell_colours(codes, table.verdicts[builds]), aspect="auto", interpolation="nearest")
    names = [table.layers[layer] for layer in shown]
    suspected = {(c.layer, c.choice) for s in found.suspected for c in found.suspects[s].choices}
    marks = [
        (column, row + _HEAD)
        for row, name in enumerate(names)
        for column in np.flatnonzero([(name, texts[c] if c >= 0 else None) in suspected for c in codes[row]])
    ]
    if marks:
        columns, rows = zip(*marks)
        axes.scatter(columns, rows, s=9, c=_VERDICT_COLOURS["bad"], edgecolors="white", linewidths=0.4)
    _label_axes(axes, names, {layer for layer, _ in suspected}, [table.names[b] for b in builds])
    left_out = f", {len(ordered) - len(shown)} more vary" if len(ordered) > len(shown) else ""
    counts = f"{found.good} good, {found.bad} bad, {len(found.errors)} crashed; {len(shown)} layers{left_out}"
    axes.set_title(f"{found.conclusion.capitalize()}  ({counts})", loc="left", fontsize=10)
    _draw_legend(figure)
    file = io.BytesIO()
    FigureCanvasAgg(figure)  # becomes the figure's canvas
    figure.savefig(file, format="png")
    return file.getvalue()


def _cell_colours(codes: npt.NDArray[np.int32], verdicts: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    """Colours of shape ``(head + layers, builds, 3)``."""
    from matplotlib.colors import to_rgb

    if not len(verdicts):
        return np.ones((_HEAD, 1, 3))
    head = np.ones((_HEAD, len(verdicts), 3))
    head[0] = np.array([to_rgb(_VERDICT_COLOURS[verdict]) for verdict in VERDICTS])[verdicts]
    palette = np.array([to_rgb(colour) for colour in (_ABSENT, _USUAL, *_OTHERS)])
    ranks = np.array([_by_frequency(row) for row in codes], np.int64).reshape(codes.shape)
    return np.concatenate((head, palette[np.minimum(ranks + 1, len(palette) - 1)]))


def _by_frequency(row: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Ranks of codes: 0 for the commonest, -1 for absent."""
    found, position, counts = np.unique(row, return_inverse=True, return_counts=True)
    ranks = np.empty(len(found), np.int64)
    present = np.flatnonzero(found >= 0)
    ranks[present[np.argsort(-counts[present], kind="stable")]] = np.arange(len(present))
    ranks[found < 0] = -1
    return ranks[position]


def _label_axes(axes: Axes, layers: list[str], suspected: set[str], builds: list[str]) -> None:
    axes.set_yticks([0, *range(_HEAD, _HEAD + len(layers))], ["verdict", *map(_shorten_middle, layers)], fontsize=7)
    for label, layer in zip(axes.get_yticklabels()[1:], layers):
        if layer in suspected:
            label.set(color=_VERDICT_COLOURS["bad"], fontweight="bold")
    if len(builds) <= _NAMED_BUILDS:
        axes.set_xticks(range(len(builds)), [_shorten_middle(name, 16) for name in builds], rotation=90, fontsize=6)
    else:
        axes.set_xticks([])
        axes.set_xlabel(f"{len(builds)} builds")
    if len(builds) <= 4 * _NAMED_BUILDS:  # ticks cost a millisecond each
        axes.set_xticks(np.arange(len(builds) + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(len(layers) + _HEAD + 1) - 0.5, minor=True)
        axes.grid(which="minor", color="white", linewidth=0.6)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)


def _draw_legend(figure: Figure) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(color=colour, label=verdict) for verdict, colour in _VERDICT_COLOURS.items()]
    patches += [Patch(color=_USUAL, label="usual choice"), Patch(color=_OTHERS[0], label="another choice")]
    figure.legend(handles=patches, loc="outside lower left", ncols=len(patches), fontsize=7, frameon=False)


def _shorten_middle(name: str, longest: int = _LONGEST_NAME) -> str:
    """The name, its middle left out if it is too long: layers' names differ at the start or at the end."""
    if len(name) <= longest:
        return name
    half = (longest - 1) // 2
    return f"{name[:half]}…{name[-half:]}"
