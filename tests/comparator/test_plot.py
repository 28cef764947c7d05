import io
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from trtops.comparator import CompareFunc, IterationResult, plot

_SVG = "{http://www.w3.org/2000/svg}"


def outputs(**arrays):
    random = np.random.default_rng(0)
    return {k: v + 1e-3 * random.standard_normal(v.shape) for k, v in arrays.items()}, arrays


def viridis(value: float) -> tuple[int, ...]:
    return tuple(int(c) for c in colormaps["viridis"](value, bytes=True)[:3])


def drawn_colors(actual, reference, kind) -> set[tuple[int, ...]]:
    """The colors of the pixels of a heat map's PNG file, without its title, colorbar and legend."""
    png = imread(io.BytesIO(plot._file_bytes(plot.heatmap(actual, reference, "x", kind), "png")))
    pixels = (png[60:-100, 60:700, :3] * 255).round().astype(int)
    packed = np.unique(pixels @ [1 << 16, 1 << 8, 1]).tolist()
    return {(color >> 16, color >> 8 & 255, color & 255) for color in packed}


@pytest.mark.parametrize("kind", plot.KINDS)
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_equal_elements_have_the_lowest_color(kind, dtype):
    same = (np.arange(64).reshape(8, 8) % 2).astype(dtype)  # zeros in the reference make a relative error of 0 / 0
    assert drawn_colors(same, same, kind) == {viridis(0.0), (255, 255, 255)}
    vector = same.reshape(-1)[:50]  # padded when it is drawn in rows
    assert drawn_colors(vector, vector, kind) == {viridis(0.0), (255, 255, 255)}


@pytest.mark.parametrize("smallest", [1e-9, 0.5], ids=["logarithmic", "linear"])
def test_nan_and_infinity_have_colors_in_a_legend(smallest):
    reference = np.ones((16, 16))
    actual = reference.copy()
    actual[0, :8] += np.geomspace(smallest, 1.0, 8)
    reference[3, 3] = actual[3, 3] = np.inf  # equal, so no error
    finite = drawn_colors(actual, reference, "absolute")
    red, orange = (tuple(int(255 * part + 0.5) for part in to_rgb(color)) for color in (plot._NAN, plot._INFINITE))
    assert viridis(0.0) in finite and not {red, orange, (0, 0, 0)} & finite

    actual[5, 5], actual[9, 9] = np.nan, np.inf
    colors = drawn_colors(actual, reference, "absolute")

    assert colors == finite | {red, orange}
    [legend] = plot.heatmap(actual, reference, "x", "absolute").legends
    assert {text.get_text(): patch.get_facecolor()[:3] for text, patch in zip(legend.texts, legend.get_patches())} == {
        "NaN": to_rgb(plot._NAN), "infinity": to_rgb(plot._INFINITE)
    }  # fmt: skip


@pytest.mark.parametrize("shape", [(), (1000,), (3, 4), (1, 40, 8, 9), (2, 1, 3, 2, 4, 5), (1500, 30)], ids=str)
def test_outputs_of_any_rank_are_drawn(shape):
    pictures = dict(plot.error_figures(*outputs(x=np.random.default_rng(1).standard_normal(shape))))
    assert list(pictures) == ["x.absolute.svg", "x.relative.svg", "x.errors.svg"]
    for svg in pictures.values():
        root = ElementTree.fromstring(svg)
        [title] = [text.text for text in root.iter(f"{_SVG}text") if "error" in text.text and "[" in text.text]
        assert title.startswith(f"x {list(shape)}")  # as text, which can be found
        assert next(root.iter(f"{_SVG}image")).get("{http://www.w3.org/1999/xlink}href").startswith("data:image/png")


def test_large_outputs_show_their_worst_elements():
    def planted(shape, index):
        actual = np.zeros(shape, np.float32)
        actual[index] = 8.0
        return actual, np.zeros(shape, np.float32)

    assert "16 of 64 slices" in plot.heatmap(*planted((64, 5, 5), (37, 2, 2)), "x", "absolute").get_suptitle()
    highest = viridis(1.0)
    for shape, index in (((64, 5, 5), (37, 2, 2)), ((3000, 2000), (1234, 567)), ((20, 900, 700), (7, 800, 1))):
        colors = drawn_colors(*planted(shape, index), "absolute")
        assert highest in colors and viridis(0.0) in colors, shape
    _, absolute, _ = plot._sampled_errors(*planted(300_000, 299_999))
    assert absolute.max() == 8.0 and absolute.size < 60_000


def test_strings_empty_and_mismatched_outputs_are_left_out():
    a = {"s": np.array(["a"]), "e": np.zeros((0, 3)), "m": np.zeros(3), "o": np.zeros(1)}
    b = {"s": np.array(["a"]), "e": np.zeros((0, 3)), "m": np.zeros(4)}
    assert list(plot.error_figures(a, b)) == []


def test_output_names_give_distinct_files():
    names = ["a/b", "a_b", "../x", "日本", "a" * 300, "a" * 299 + "b", "", ".", "a.b", "CON:1"]
    stems = [plot.file_stem(name) for name in names]
    assert len(set(stems)) == len(names)
    assert all("/" not in stem and "\\" not in stem and len(stem) < 200 and not stem.startswith(".") for stem in stems)


def test_compare_functions_save_pictures(tmp_path):
    a, b = (IterationResult(o) for o in outputs(**{"out/1": np.ones((4, 4))}))
    CompareFunc.simple(save_heatmaps=str(tmp_path / "maps"), save_error_metrics_plot=str(tmp_path / "plots"))(a, b)
    assert sorted(p.name for p in (tmp_path / "maps").iterdir()) == ["out~2f~1.absolute.png", "out~2f~1.relative.png"]
    assert [p.name for p in (tmp_path / "plots").iterdir()] == ["out~2f~1.errors.png"]
