"""The support table says ``shown`` only where a test shows it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from trtops.backend.trt import support_table
from trtops.backend.trt.lines.support import CAPABILITIES

FOLDER = Path(__file__).parents[1]


def names_in(name: str) -> set[str]:
    return {node.name for node in ast.walk(ast.parse((FOLDER / name).read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("capability", CAPABILITIES, ids=lambda c: c.title)
def test_shown_capabilities_have_a_test(capability):
    assert capability.shown_on_8 is None or capability.shown_on_8 in names_in("test_on_gpu.py")
    assert capability.shown_on_rtx is None or capability.shown_on_rtx in names_in("building/test_build_rtx.py")
    assert not (capability.gpu and capability.shown_on_rtx), "TensorRT-RTX was not run on a GPU"


def test_support_table_has_one_column_per_release():
    lines = support_table().splitlines()

    assert lines[0] == "|  | 8.6 | 10.8 | 10.16 | 11.4 | RTX 1.7 |"
    assert all(line.count("|") == 7 for line in lines)
    assert (
        "| INT8 with calibrators (entropy, entropy 2, min-max, legacy) | shown | written | written | - | - |" in lines
    )
    assert "| tactic record and replay by editable timing cache | - | written | written | written | - |" in lines


def test_documented_support_table_is_current():
    page = (Path(__file__).parents[4] / "docs" / "pages" / "support.md").read_text(encoding="utf-8")

    assert support_table().strip() in page
