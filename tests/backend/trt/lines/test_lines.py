"""Release lines: chosen by what is there, honest about what is not; and every name the back end touches exists."""

from __future__ import annotations

import ast
import copy
import importlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import trtops.backend.trt as package
from tests.backend.trt import api
from trtops import errors
from trtops.backend.trt import library, support_table
from trtops.backend.trt.lines import LINES, Feature, ReleaseLine, release_line
from trtops.backend.trt.lines.support import CAPABILITIES

FOLDER = Path(package.__file__).parent
LINE_OF = {
    "8.6.0": "TensorRT8",
    "10.8.0": "TensorRT10",
    "10.16.1": "TensorRT10",
    "11.4.0": "TensorRT11",
    "rtx-1.7.1": "TensorRTRTX",
}


def line_of(release: str) -> ReleaseLine:
    return release_line(api.stand_in(release))


def version_of(release: str) -> tuple[int, int]:
    major, minor, _ = release.removeprefix("rtx-").split(".")
    return int(major), int(minor)


def test_each_release_gets_its_line():
    assert {release: type(line_of(release)).__name__ for release in api.RELEASES} == LINE_OF
    assert {type(line_of(release)) for release in api.RELEASES} == set(LINES)


@pytest.mark.parametrize("release", api.RELEASES)
def test_features_agree_with_the_api(release):
    written = [feature for feature in Feature if feature.is_in(version_of(release), rtx=release.startswith("rtx"))]

    assert [feature for feature in Feature if line_of(release).supports(feature)] == written


@pytest.mark.parametrize("feature", [f for f in Feature if f.instead])
def test_missing_feature_names_releases_and_remedy(feature):
    lacking = [release for release in api.RELEASES if not line_of(release).supports(feature)]
    assert lacking

    for release in lacking:
        with pytest.raises(errors.UnsupportedFeatureError) as caught:
            line_of(release).require(feature)
        for words in (line_of(release).name, feature.title, feature.releases, feature.instead):
            assert words in str(caught.value)


def test_an_unknown_release_is_refused_by_name():
    old = copy.deepcopy(api.stand_in("8.6.0"))
    old.__version__ = "8.2.1"
    del old.IBuilderConfig.hardware_compatibility_level

    with pytest.raises(errors.BackendUnavailableError, match=r"8\.2\.1"):
        release_line(old)


# By convention a variable of one of these names holds that kind of object, everywhere in the package.
KINDS = {
    "builder": ("Builder",),
    "network": ("INetworkDefinition",),
    "config": ("IBuilderConfig",),
    "builder_config": ("IBuilderConfig",),
    "engine": ("ICudaEngine",),
    "context": ("IExecutionContext", "IAlgorithmContext"),
    "runtime": ("Runtime",),
    "parser": ("OnnxParser",),
    "profile": ("IOptimizationProfile",),
    "timing_cache": ("ITimingCache",),
    "merged": ("ITimingCache",),
    "inspector": ("EngineInspector",),
    "layer": ("ILayer", "IAttentionInputLayer"),
    "tensor": ("ITensor",),
    "error": ("ParserError",),
    "variant": ("IAlgorithmVariant",),
    "io_info": ("IAlgorithmIOInfo",),
    "algorithm": ("IAlgorithm",),
}
# Functions of a bundle's script, which cannot import ours: it does what a build had, on the release that had it.
OF_THE_BUILD = {
    ("reproduce.py", "change_layers"): Feature.LAYER_PRECISION,
    ("reproduce.py", "calibrate"): Feature.CALIBRATOR,
}
PYTHONS_OWN = {"__class__", "__members__", "__init__", "__version__"}


class Touches(ast.NodeVisitor):
    """Dotted TensorRT names in one file, each with the class and function it stands in."""

    def __init__(self, tree: ast.Module) -> None:
        imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
        self.ours = {alias.asname or alias.name for node in imports for alias in node.names}
        self.stack: list[ast.AST] = []
        self.found: list[tuple[tuple[str, ...], list[ast.AST], int]] = []

    def generic_visit(self, node: ast.AST) -> None:
        scope = isinstance(node, (ast.ClassDef, ast.FunctionDef))
        if scope:
            self.stack.append(node)
        super().generic_visit(node)
        if scope:
            self.stack.pop()

    def visit_Attribute(self, node: ast.Attribute) -> None:
        for candidates in self._names(node):
            self.found.append((candidates, list(self.stack), node.lineno))
        self.generic_visit(node)

    def _names(self, node: ast.Attribute) -> list[tuple[str, ...]]:
        owner = _dotted(node.value)
        if owner is None or node.attr in PYTHONS_OWN:
            return []
        if owner in ("trt", "self.trt", "library.load()"):
            return [(node.attr,)]
        for root in ("trt.", "self.trt.", "library.load()."):
            if owner.startswith(root) and "." not in owner.removeprefix(root):
                return [(f"{owner.removeprefix(root)}.{node.attr}",)]
        if owner == "flags":
            return [(f"BuilderFlag.{node.attr}",)]
        variable = owner.removeprefix("self.")
        if variable in KINDS and variable not in self.ours and not self._is_typed(variable):
            return [tuple(f"{kind}.{node.attr}" for kind in KINDS[variable])]
        return []

    def _is_typed(self, variable: str) -> bool:
        """Whether it is a parameter with a type of ours; TensorRT's objects are ``Any``."""
        for scope in reversed(self.stack):
            if isinstance(scope, ast.FunctionDef):
                arguments = (*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs)
                annotations = [a.annotation for a in arguments if a.arg == variable]
                if annotations:
                    return annotations[0] is not None and ast.unparse(annotations[0]) != "Any"
        return False


def _dotted(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value)
        return None if inner is None else f"{inner}.{node.attr}"
    if isinstance(node, ast.Call) and not node.args:
        inner = _dotted(node.func)
        return None if inner is None else f"{inner}()"
    return None


def required_features(function: ast.AST) -> set[Feature]:
    """Features that a function makes sure of: ``self.require(Feature.X)``, or ``if ... supports(Feature.X)``."""
    calls = (node for node in ast.walk(function) if isinstance(node, ast.Call))
    asked = (call for call in calls if getattr(call.func, "attr", None) in ("require", "supports"))
    return {Feature[arg.attr] for call in asked for arg in call.args if isinstance(arg, ast.Attribute)}


def claimed_releases(file: Path, stack: list[ast.AST]) -> list[str]:
    """Releases that the code at a place may run on."""
    releases = list(api.RELEASES)
    if file.parent.name == "lines" and stack and isinstance(stack[0], ast.ClassDef):
        module = importlib.import_module(f"trtops.backend.trt.lines.{file.stem}")
        owner = getattr(module, stack[0].name)
        method = stack[1].name if len(stack) > 1 and isinstance(stack[1], ast.FunctionDef) else None
        releases = [release for release in releases if isinstance(line_of(release), owner)]
        if method not in (None, "__init__"):  # a line below may have a method of its own
            own = vars(owner).get(method)
            releases = [release for release in releases if getattr(type(line_of(release)), method) is own]
    needed: set[Feature] = set()
    for scope in stack:
        if isinstance(scope, ast.FunctionDef):
            needed |= required_features(scope)
            if (of_the_build := OF_THE_BUILD.get((file.name, scope.name))) is not None:
                needed.add(of_the_build)
    return [release for release in releases if all(line_of(release).supports(feature) for feature in needed)]


def touched() -> list[tuple[Path, int, tuple[str, ...], list[str]]]:
    result = []
    for file in sorted(FOLDER.rglob("*.py")):
        tree = ast.parse(file.read_text())
        visitor = Touches(tree)
        visitor.visit(tree)
        result += [(file, line, names, claimed_releases(file, stack)) for names, stack, line in visitor.found]
    return result


def test_used_tensorrt_names_exist_in_each_release():
    used = touched()
    missing = [
        f"{file.relative_to(FOLDER)}:{line}: {' or '.join(candidates)} is not in {release}"
        for file, line, candidates, releases in used
        for release in releases
        if not any(name in api.names(release) for name in candidates)
    ]

    assert not missing, "\n".join(missing)
    seen = {name for _, _, candidates, _ in used for name in candidates}
    assert {
        "BuilderFlag.SPARSE_WEIGHTS", "IBuilderConfig.set_timing_cache", "ITimingCache.queryKeys",
        "IExecutionContext.execute_async_v3", "IAlgorithmVariant.tactic", "EngineInspector.get_engine_information",
    } <= seen  # fmt: skip
    assert len(seen) > 120


def test_no_release_is_read_outside_the_lines():
    for file in FOLDER.rglob("*.py"):
        if file.parent.name != "lines":
            text = file.read_text()
            assert "except AttributeError" not in text
            for expression in (".__version__ <", ".__version__ >", ".__version__.s", "version_info", "Version("):
                assert expression not in text, file


def test_incompatible_numpy_is_refused():
    def weights(array):
        return SimpleNamespace(numpy=lambda: np.zeros(array.size, np.float32))

    broken = SimpleNamespace(__version__="8.6.0", Weights=weights)

    with pytest.raises(errors.BackendUnavailableError, match=r"numpy<2"):
        library.check_numpy(broken)


TESTS = Path(__file__).parents[1]


def names_in(name: str) -> set[str]:
    return {node.name for node in ast.walk(ast.parse((TESTS / name).read_text())) if isinstance(node, ast.FunctionDef)}


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
