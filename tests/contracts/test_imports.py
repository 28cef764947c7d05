"""Imports of the product: no modules import each other in a circle, counting imports inside functions."""

from graphlib import CycleError, TopologicalSorter

import pytest


def test_no_modules_import_in_circles() -> None:
    graph = pytest.importorskip("grimp").build_graph("trtops")
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    circle: list[str] = []
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as exc:
        circle = exc.args[1]
    assert len(imports) > 300 and circle == []
