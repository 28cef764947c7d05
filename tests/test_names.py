"""Every public name of Polygraphy's modules exists, with its parameters, members and attributes.

Found by walking the installed package; what is not here has a reason in a table.
"""

import ast
import importlib
import inspect
import itertools
import pkgutil
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.parity

polygraphy = pytest.importorskip("polygraphy")

MODULES = tuple(
    module_info.name.removeprefix("polygraphy.")
    for module_info in pkgutil.walk_packages(polygraphy.__path__, "polygraphy.")
)

_TENSORFLOW = "TensorFlow models are converted to ONNX by tf2onnx first"
_LPIPS = "LPIPS is not computed: it needs torch and downloaded weights"
_STANDARD = "trtops writes JSON itself; Encoder and Decoder are where types are registered, not json.JSONEncoder"
_ENUM = "members of an enum"
_LEVELS = "levels of Python's logging, whose numbers are positive"
_RUNTIME = "calls of the CUDA runtime by address, which cuda-python has"
_CONVERTED = "DataType.from_dtype and to_dtype convert"
_INTERNAL = "of Polygraphy's own works; its reference does not explain it"

_INTERNAL_NAMES = (
    "backend.onnx.loader.BaseLoadOnnxCopy", "backend.onnx.loader.ConvertToFp16.load",
    "backend.onnx.loader.FoldConstants.load", "backend.onnx.loader.ModifyOutputs.load",
    "backend.onnx.loader.SetUpperBound.load", "backend.trt.algorithm_selector.check_is_instance",
    "backend.trt.algorithm_selector.get_base_selector_type", "backend.trt.loader.BaseNetworkFromOnnx",
    "comparator.data_loader.check_feed_dict", "cuda.cuda.void_ptr",
    "comparator.compare.run_comparison", "comparator.compare.default_find_output_func",
    "comparator.compare.metric_fields_for_func", "comparator.data_loader.ArraySampler",
    "comparator.data_loader.coerce_buffer", "comparator.data_loader.coerce_feed_dict", "json.serde.is_single_file",
    "json.serde.legacy_str_from_type", "json.serde.str_from_type", "json.serde.try_register_common_json",
    "logger.logger.has_colors", "logger.logger.Logger.module_path", "logger.logger.Logger.backtrace",
    "logger.logger.Logger.internal_error", "logger.logger.Logger.log_exception", "logger.logger.Logger.module_info",
    "datatype.datatype.register_dtype_exporter", "datatype.datatype.register_dtype_importer",
)  # fmt: skip

EXCEPTIONS: dict[str, str] = {
    **dict.fromkeys(
        [
            f"tools.{name}"
            for name in ("check", "convert", "data", "debug", "inspect", "plugin", "run", "surgeon", "template")
        ],
        "tests/cli compares commands as commands",
    ),
    "tools.multi_device": "the command exits with what to do instead",
    "tools.args": "trtops.tools has the groups that public extensions use",
    "tools.script": "trtops.tools has what public extensions use; loaders are objects, not text",
    "tools.base": "Tool has what public tools override",
    **dict.fromkeys(["tools.registry", "tools.sparse", "tools.util", "tools._main"], _INTERNAL),
    "backend.tf": _TENSORFLOW,
    "backend.onnx.loader.OnnxFromTfGraph": _TENSORFLOW,
    **dict.fromkeys(
        [
            f"comparator.compare.{name}"
            for name in (
                "LpipsThreshold",
                "PerceptualMetricsResult",
                "PerceptualMetricsCompareFunc",
                "CompareFunc.perceptual_metrics",
            )
        ],
        _LPIPS,
    ),
    "backend.pyt": "its runner needs CUDA and returns a pair, not outputs; derive one from BaseRunner",
    "backend.base.util": _INTERNAL,
    "backend.onnx.util": "has what public scripts import; trtops.backend.onnx has the rest as loaders",
    **dict.fromkeys(
        [f"backend.pluginref.references.run_{name}" for name in ("identity", "instancenorm", "meanvarnorm")],
        "ONNX's own reference implementation computes operators",
    ),
    "common.interface": _INTERNAL,
    "comparator.util": _INTERNAL,
    **dict.fromkeys(
        [f"datatype.{attribute}" for attribute in ("numpy", "onnx", "onnxrt", "tensorrt", "torch")], _CONVERTED
    ),
    "mod.G_LOGGER": "trtops.logger has it",
    "mod.exporter.warn_deprecated": _INTERNAL,
    "mod.exporter.deprecate": _INTERNAL,
    "mod.exporter.export_deprecated_alias": _INTERNAL,
    "mod.trt_importer.tensorrt_module_and_version_string": _INTERNAL,
    "util": "has what public scripts import, trtops.util.__all__",
    "backend.trt.util": "has what public scripts import; trtops.backend.trt has the rest as loaders and runners",
    "comparator.compare.OutputCompareResult(passed)": "a verdict follows from the numbers and the threshold",
    "datatype.datatype.DataTypeEntry(name)": _ENUM,
    "datatype.datatype.DataTypeEntry(itemsize)": _ENUM,
    "json.serde.BaseCustomImpl": _STANDARD,
    "json.serde.Decoder": _STANDARD,
    "json.serde.Encoder": _STANDARD,
    "json.serde.IterationWriter": "Comparator.run writes iterations",
    "json.serde.iterate_from_files": "StreamingDataLoader and RunResults.load_streaming read iterations",
    "json.serde.iterate_json_list": "StreamingDataLoader reads them",
    "json.serde.list_iteration_files": "StreamingDataLoader and RunResults.load_streaming find them",
    "logger.logger.LoggerIndent": "what G_LOGGER.indent() returns",
    "logger.logger.LoggerVerbosity": "what G_LOGGER.verbosity() returns",
    "logger.logger.SeverityTrie": "severities by path are levels of Python's loggers",
    "logger.logger.Logger.SEVERITY_COLOR_MAPPING": _LEVELS,
    "logger.logger.Logger.SEVERITY_LETTER_MAPPING": _LEVELS,
    **{
        f"cuda.cuda.Cuda.{attribute}": _RUNTIME
        for attribute in ("check", "create_stream", "destroy_stream", "stream_synchronize")
    },
    "cuda.cuda.try_get_stream_handle": _RUNTIME,
    **dict.fromkeys(_INTERNAL_NAMES, _INTERNAL),
}
"""What is not here, with a reason: modules, names, members and parameters."""

EVERYWHERE: dict[str, str] = {
    "RUNNER_COUNTS": "runners are counted elsewhere",
    "polygraphy_registered": _STANDARD,
    "dct": "dicts, made as dicts are",
    "other": "dicts, updated as dicts are",
}
"""Members and parameters that are not here, whatever class they are of."""


def public_names(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """What a module of Polygraphy defines for others."""
    for name, value in vars(module).items():
        home = getattr(value, "__module__", None)
        is_setting = name.isupper() and module.__name__ in (
            "polygraphy.config",
            "polygraphy.constants",
            "polygraphy.mod",
        )
        if not name.startswith("_") and (is_setting or (callable(value) and home == module.__name__)):
            yield name, value


def parameters(function: Any) -> list[str]:
    try:
        all_parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        return []
    return [
        p.name
        for p in all_parameters
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name not in ("self", "cls")
    ]


def documented_attributes(kind: type) -> Iterator[str]:
    """Attributes with a docstring of their own behind their assignment."""
    for base in kind.__mro__:
        if base.__module__.startswith("polygraphy"):
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
            for node in ast.walk(tree):
                body = getattr(node, "body", None)
                for first, second in itertools.pairwise(body) if isinstance(body, list) else ():
                    has_docstring = isinstance(second, ast.Expr) and isinstance(
                        getattr(second.value, "value", None), str
                    )
                    if has_docstring and isinstance(first, ast.Assign):
                        target = first.targets[0]
                        name = getattr(target, "attr", getattr(target, "id", "_"))
                        yield from [] if name.startswith("_") else [name]


def known_attributes(kind: Any) -> set[str]:
    """What an object of ours has: members, fields, and what its classes document or set when it is made."""
    names = {*dir(kind), *parameters(kind)}
    for base in getattr(kind, "__mro__", ()):
        names.update(vars(base), getattr(base, "__annotations__", ()))
        initializer = vars(base).get("__init__")
        names.update(initializer.__code__.co_names if inspect.isfunction(initializer) else ())
    return names


def gaps(path: str) -> Iterator[str]:
    theirs = importlib.import_module(f"polygraphy.{path}")
    try:
        ours = importlib.import_module(f"trtops.{path}")
    except ImportError:
        yield path
        return
    for name, value in public_names(theirs):
        full_name = f"{path}.{name}"
        if not hasattr(ours, name):
            yield full_name
            continue
        mine = getattr(ours, name)
        missing = [f"({p})" for p in parameters(value) if p not in parameters(mine)]
        if isinstance(value, type):
            attributes = known_attributes(mine)
            members = [member for member in dir(value) if not member.startswith("_")]
            missing += [
                f".{member}"
                for member in dict.fromkeys([*documented_attributes(value), *members])
                if member not in attributes
            ]
            for member in members:
                method = getattr(value, member)
                if inspect.isroutine(method) and member in dir(mine) and inspect.isfunction(inspect.unwrap(method)):
                    our_parameters = parameters(getattr(mine, member))
                    missing += [f".{member}({p})" for p in parameters(method) if p not in our_parameters]
        yield from (f"{full_name}{gap}" for gap in missing)


def reason(gap: str) -> str | None:
    """Why a name is not here, by the gap itself or what it belongs to."""
    for excepted, explanation in EXCEPTIONS.items():
        if gap == excepted or gap.startswith((f"{excepted}.", f"{excepted}(")):
            return explanation
    last = gap.replace("(", ".").rstrip(")").rpartition(".")[2]
    return EVERYWHERE.get(last)


@pytest.mark.parametrize(
    "package",
    ["backend.base", "backend.common", "backend.onnx", "backend.onnxrt", "backend.pluginref", "backend.trt", "common",
     "comparator", "config", "constants", "cuda", "datatype", "exception", "func", "json", "logger"],
)  # fmt: skip
def test_package_exports_are_importable(package):
    theirs, ours = (importlib.import_module(f"{root}.{package}") for root in ("polygraphy", "trtops"))
    for name, value in vars(theirs).items():
        home = getattr(value, "__module__", None)
        if not name.startswith("_") and isinstance(home, str) and home.startswith(f"polygraphy.{package}"):
            gap = f"{home.removeprefix('polygraphy.')}.{name}"
            assert hasattr(ours, name) or reason(gap) or package == "datatype", gap  # methods of DataType do that


def test_every_name_exists_or_is_excepted():
    all_gaps = [gap for path in MODULES for gap in gaps(path)]
    assert [gap for gap in all_gaps if reason(gap) is None] == []

    idle = [
        excepted
        for excepted in EXCEPTIONS
        if not any(gap == excepted or gap.startswith((f"{excepted}.", f"{excepted}(")) for gap in all_gaps)
    ]
    assert idle == []


def test_documentation_lists_the_names_of_extensions():
    from trtops import tools

    page = (Path(__file__).parents[1] / "docs" / "pages" / "polygraphy.md").read_text()
    theirs = {n for p in MODULES if p.startswith("tools") for n in dir(importlib.import_module(f"polygraphy.{p}"))}
    ours = {n for n in dir(tools) if getattr(getattr(tools, n), "__module__", "") == "trtops.tools"}
    assert set(re.findall(r"`(\w+)`", page.partition("## Extensions")[2].partition("\n## ")[0])) == ours & theirs


def test_further_module_names_are_the_same():
    import trtops.backend.base.runner
    import trtops.datatype.datatype
    from trtops.backend import base, trt
    from trtops.backend.trt.loader import EngineFromBytes
    from trtops.comparator import RunResults as Same
    from trtops.comparator.struct import RunResults

    assert trtops.config.ARRAY_SWAP_THRESHOLD_MB == -1
    assert RunResults is Same and EngineFromBytes is trt.EngineFromBytes and trtops.backend.base.runner is base
    assert trtops.datatype.datatype.DataType.__module__ == "trtops.datatype"


def test_lazy_modules_import_on_use():
    from trtops import errors, mod

    colors = mod.lazy_import("colorsys>=1.0")
    numpy = mod.lazy_import("numpy<1.0")
    missing = mod.lazy_import("no_such_module==2.0")

    assert colors.rgb_to_hsv(0, 0, 0) == (0.0, 0.0, 0)
    assert numpy.float32(2) == 2
    with pytest.raises(errors.BackendUnavailableError, match="pip install no_such_module"):
        missing.anything()
    mod.autoinstall(missing)


@pytest.mark.parametrize("text", ["1.8.0", "0.53.6", "2.0.0rc1", "1.13.1+cu117", "1.0.post2"])
def test_versions_compare_like_polygraphys(text):
    from polygraphy import mod as theirs

    from trtops import mod

    assert mod.version(text) == theirs.version(text)


def test_settings_read_both_variables(monkeypatch):
    monkeypatch.setenv("POLYGRAPHY_AUTOINSTALL_DEPS", "1")
    monkeypatch.setenv("TRTOPS_INTERNAL_CORRECTNESS_CHECKS", "1")
    monkeypatch.setenv("POLYGRAPHY_INSTALL_CMD", "uv pip")
    code = "from trtops import config as c; print(c.AUTOINSTALL_DEPS, c.INTERNAL_CORRECTNESS_CHECKS, c.INSTALL_CMD)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "True True ['uv', 'pip']\n"
