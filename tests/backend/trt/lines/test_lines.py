"""Release lines: chosen by what is there, honest about what is not; and every name the back end touches exists."""

import ast
import copy
import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import trtops.backend.trt as package
from docs.support_table import CAPABILITIES, _passed, reports_table, support_table
from tests.backend.trt import api
from trtops import errors
from trtops.backend.trt import library
from trtops.backend.trt.library import loading
from trtops.backend.trt.lines import LINES, Feature, ReleaseLine, release_line
from trtops.ops.self_test import BackendReport, Check

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
    "flags": ("BuilderFlag",),
    "builder": ("Builder",),
    "network": ("INetworkDefinition",),
    "config": ("IBuilderConfig",),
    "engine": ("ICudaEngine",),
    "context": ("IExecutionContext", "IAlgorithmContext"),
    "runtime": ("Runtime",),
    "parser": ("OnnxParser",),
    "profile": ("IOptimizationProfile",),
    "timing_cache": ("ITimingCache",),
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
    ("reproduce.py", "set_precisions"): Feature.LAYER_PRECISION,
    ("reproduce.py", "calibrate"): Feature.CALIBRATOR,
}
PYTHONS_OWN = {"__class__", "__members__", "__init__", "__version__"}


Scopes = tuple[ast.AST, ...]


def uses(node: ast.AST, scopes: Scopes, ours: set[str]) -> Iterator[tuple[tuple[str, ...], Scopes, int]]:
    """Dotted TensorRT names in one file, each with the classes and functions around it and its line."""
    if isinstance(node, ast.Attribute) and (candidates := tensorrt_names(node, scopes, ours)):
        yield candidates, scopes, node.lineno
    if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
        scopes = (*scopes, node)
    for child in ast.iter_child_nodes(node):
        yield from uses(child, scopes, ours)


def tensorrt_names(node: ast.Attribute, scopes: Scopes, ours: set[str]) -> tuple[str, ...]:
    owner = ast.unparse(node.value)
    variable = owner.removeprefix("self.")
    if node.attr in PYTHONS_OWN:
        return ()
    if module := re.fullmatch(r"(?:trt|self\.trt|library\.load\(\))(?:\.(\w+))?", owner):
        return (f"{module[1]}.{node.attr}" if module[1] else node.attr,)
    if variable in KINDS and variable not in ours and not is_typed(variable, scopes):
        return tuple(f"{kind}.{node.attr}" for kind in KINDS[variable])
    return ()


def is_typed(variable: str, scopes: Scopes) -> bool:
    """Whether it is a parameter with a type of ours; TensorRT's objects are ``Any``."""
    functions = [scope for scope in reversed(scopes) if isinstance(scope, ast.FunctionDef)]
    arguments = (a for function in functions for a in ast.walk(function.args) if isinstance(a, ast.arg))
    annotation = next((a.annotation for a in arguments if a.arg == variable), None)
    return annotation is not None and ast.unparse(annotation) != "Any"


def required_features(function: ast.AST) -> set[Feature]:
    """Features that a function makes sure of: ``self.require(Feature.X)``, or ``if ... supports(Feature.X)``."""
    calls = (node for node in ast.walk(function) if isinstance(node, ast.Call))
    feature_calls = (call for call in calls if getattr(call.func, "attr", None) in ("require", "supports"))
    return {Feature[arg.attr] for call in feature_calls for arg in call.args if isinstance(arg, ast.Attribute)}


def claimed_releases(file: Path, scopes: Scopes) -> list[str]:
    """Releases that the code at a place may run on."""
    releases = list(api.RELEASES)
    if file.parent.name == "lines" and scopes and isinstance(scopes[0], ast.ClassDef):
        module = importlib.import_module(f"trtops.backend.trt.lines.{file.stem}")
        owner = getattr(module, scopes[0].name)
        method = scopes[1].name if len(scopes) > 1 and isinstance(scopes[1], ast.FunctionDef) else "__init__"
        releases = [release for release in releases if isinstance(line_of(release), owner)]
        if method != "__init__":  # a line below may have a method of its own
            implementation = vars(owner).get(method)
            releases = [release for release in releases if getattr(type(line_of(release)), method) is implementation]
    functions = [scope for scope in scopes if isinstance(scope, ast.FunctionDef)]
    needed = {feature for function in functions for feature in required_features(function)}
    needed |= {OF_THE_BUILD[file.name, f.name] for f in functions if (file.name, f.name) in OF_THE_BUILD}
    return [release for release in releases if all(line_of(release).supports(feature) for feature in needed)]


def test_used_tensorrt_names_exist_in_each_release():
    missing, seen = [], set()
    for file in sorted(FOLDER.rglob("*.py")):
        tree = ast.parse(file.read_text())
        imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
        ours = {alias.asname or alias.name for node in imports for alias in node.names}
        for candidates, scopes, line in uses(tree, (), ours):
            seen.update(candidates)
            for release in claimed_releases(file, scopes):
                if not api.names(release) & set(candidates):
                    missing.append(f"{file.name}:{line}: {' or '.join(candidates)} is not in {release}")

    assert not missing, "\n".join(missing)
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


ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize("capability", CAPABILITIES, ids=lambda c: c.title)
def test_shown_capabilities_have_a_test(capability):
    shown = {
        "tests/**/test_*gpu.py": capability.shown_on_8,
        "tests/backend/trt/building/test_[bi]*.py": capability.shown_on_rtx,
    }
    for files, test in shown.items():
        assert test is None or any(f"def {test}(" in file.read_text("utf-8") for file in ROOT.glob(files))
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
    assert reports_table().strip() in page


def test_report_of_a_release_makes_its_rows_shown(monkeypatch, tmp_path):
    passed = tuple(Check(name=name, outcome="passed") for name in ("fp32", "inspector"))
    failed = Check(name="profiles", outcome="failed", detail="x")
    report = BackendReport(backend="tensorrt", release="10.8.0.43", device="a GPU", checks=(*passed, failed))
    (tmp_path / "a.json").write_text(json.dumps([report.to_dict()]))
    before = support_table()
    monkeypatch.setattr("docs.support_table.REPORTS", tmp_path)
    monkeypatch.setattr("docs.support_table._passed", _passed.__wrapped__)

    changed = [line for line in support_table().splitlines() if line not in before]

    assert [line.split("|")[1].strip() for line in changed] == ["build from ONNX, FP32", "inspection of engines"]
    assert all(line.split("|")[3].strip() == "shown" for line in changed)


def test_names_of_enums_that_a_release_lacks_are_left_to_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    # TensorRT 8.6 has no `RuntimePlatform`; the option that takes it is refused by the title of its feature.
    monkeypatch.setattr(loading, "load", lambda: SimpleNamespace(DataType=SimpleNamespace(__members__={"HALF": 1})))
    assert loading.member("RuntimePlatform", "WINDOWS_AMD64") == "WINDOWS_AMD64"
    assert loading.member("DataType", ["half", 2]) == [1, 2]
    with pytest.raises(errors.ConfigError, match=r"DataType has no 'HALV' in this release\. Did you mean 'HALF'"):
        loading.member("DataType", "halv")
