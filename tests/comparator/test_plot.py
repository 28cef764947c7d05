from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from trtops.comparator import CompareFunc, IterationResult, plot

_SVG = "{http://www.w3.org/2000/svg}"


def outputs(**arrays):
    random = np.random.default_rng(0)
    return {k: v + 1e-3 * random.standard_normal(v.shape) for k, v in arrays.items()}, arrays


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
    def planted(shape, place):
        actual = np.zeros(shape, np.float32)
        actual[place] = 8.0
        return actual, np.zeros(shape, np.float32)

    figure = plot.heatmap(*planted((64, 5, 5), (37, 2, 2)), "x", "absolute")
    assert "16 of 64 slices" in figure.get_suptitle() and figure.axes[0].images[0].get_array().max() == 8.0
    shrunk = plot._shrunk_errors(*planted((3000, 2000), (1234, 567)), "absolute")
    assert max(shrunk.shape) <= 512 and shrunk.max() == 8.0
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
