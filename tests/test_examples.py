"""The examples in docstrings run, each in a folder with ``model.onnx``, its feed as ``feed.npz``, and an empty store.

They see the names of their module, and ``trtops``.
"""

import doctest
import importlib
import inspect
import pydoc
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import trtops
from tests import models

# Names of these packages are public; so are the values and utilities in these modules.
PACKAGES = ("trtops", "trtops.comparator", "trtops.backend.onnx", "trtops.backend.onnxrt", "trtops.backend.trt")
MODULES = (
    "trtops.calibration.cache", "trtops.datatype", "trtops.errors", "trtops.func", "trtops.logger", "trtops.metadata",
    "trtops.next_step", "trtops.patterns", "trtops.record", "trtops.spec", "trtops.tables", "trtops.tactics.record",
    "trtops.tracking.base",
)  # fmt: skip

# Each has an example.
VERBS = (
    "accuracy", "audit", "bisect", "bundle", "calibrate", "capability", "choose", "compare", "compare_outputs",
    "convert", "debug_build", "deny", "diff_tactics", "evaluate", "extract", "gate", "inspect_data", "inspect_model",
    "lint",
    "precision", "promote", "prove", "reduce", "resolve", "run_models", "runs", "sensitivity", "triage",
)  # fmt: skip


def examples() -> Iterator[doctest.DocTest]:
    """Each docstring with an example, of the modules that define public names."""
    names = dict.fromkeys(MODULES)
    for package in map(importlib.import_module, PACKAGES):
        members = [getattr(package, name) for name in package.__all__]
        names |= dict.fromkeys(member.__module__ for member in members if not inspect.ismodule(member))
    finder = doctest.DocTestFinder(exclude_empty=True)
    for name in names:
        module = importlib.import_module(name)
        if not name.startswith("trtops"):
            continue
        yield from finder.find(module.__doc__ or "", name, module=False, globs=vars(module) | {"trtops": trtops})
        for attribute, value in vars(module).items():
            # Not only what `inspect.getmodule` finds: the wrapper of a decorated op has the globals of its decorator.
            if getattr(value, "__module__", None) == name and (inspect.isroutine(value) or inspect.isclass(value)):
                globs = vars(module) | {"trtops": trtops}
                yield from finder.find(value, f"{name}.{attribute}", module=False, globs=globs)


EXAMPLES = {example.name: example for example in examples() if example.examples and "._" not in example.name}


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case, output = models.conv_net(), []
    case.write(tmp_path, "model")
    np.savez(tmp_path / "feed.npz", **case.feed)  # type: ignore[arg-type]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRTOPS_HOME", str(tmp_path / "mlruns"))
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)

    runner.run(EXAMPLES[name], out=output.append)

    assert runner.failures == 0, "".join(output)


@pytest.mark.parametrize("verb", VERBS)
def test_verb_has_an_example(verb: str) -> None:
    function = getattr(trtops, verb)

    assert f"{function.__module__}.{verb}" in EXAMPLES


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_fits_a_screen(verb: str) -> None:
    page = pydoc.plain(pydoc.render_doc(getattr(trtops, verb)))

    lines = [part for line in page.splitlines() for part in textwrap.wrap(line, 120) or [""]]
    assert len(lines) <= 40, page
