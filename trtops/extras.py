"""Optional packages: the extra of each, and one error for all missing ones."""

import sys
from importlib.util import find_spec

from trtops import errors

_MODULES = {  # by extra; pyproject.toml lists the packages
    "cpu": "onnxruntime flatbuffers sympy",
    "trt": "tensorrt cuda",
    "mlflow": "mlflow sqlalchemy requests pandas scipy jinja2 markupsafe markdown_it rich cryptography",
    "prefect": "prefect",
    "dask": "prefect_dask",
    "team": "flask_wtf",
    "plots": "matplotlib",
    "tasks": "pycocotools jiwer",
    "torch": "torch onnxscript",
}
EXTRAS = {module: extra for extra, modules in _MODULES.items() for module in modules.split()}
"""Extras of pyproject.toml by the module that they install."""

RECORDING = ("mlflow", "jinja2", "markdown_it", "scipy")
"""The modules that recording a run needs."""

_HINTS = {
    "cpu": ' (for an NVIDIA GPU: pip install "trtops[cuda]")',
    "trt": " (with the package index that NVIDIA's installation guide names)",
}


def installed(*modules: str) -> bool:
    """True if all of these top-level modules can be imported. None is imported."""
    return all(sys.modules.get(module) is not None or find_spec(module) is not None for module in modules)


def require(*modules: str, error: type[errors.TrtopsError] = errors.BackendUnavailableError) -> None:
    """Raise an error with the install command and the ``missing`` modules, unless all can be imported."""
    missing = [module for module in modules if not installed(module)]
    if missing:
        raise error(sentence(*missing), missing=missing)


def hidden_onnxruntime() -> tuple[str, str]:
    """Return a sentence about several distributions of ONNX Runtime, and the repair commands; empty without."""
    from importlib.metadata import packages_distributions  # takes longer to import than help takes

    # All of them install the folder `onnxruntime`, so the files of the last one replaced those of the others.
    names = sorted(set(packages_distributions().get("onnxruntime", ())))
    if len(names) < 2:
        return "", ""
    remaining = next(name for name in reversed(names) if name != "onnxruntime")
    text = f"{' and '.join(names)} are both installed and share a folder, so one hides the providers of the other"
    return text, f"pip uninstall -y {' '.join(names)} && pip install {remaining}"


def sentence(*missing: str) -> str:
    """Return the sentence about missing modules, with the install command."""
    extras = sorted({EXTRAS.get(module, "") for module in missing} - {""})
    packages = [module for module in missing if module not in EXTRAS]
    names = [*([f'"trtops[{",".join(extras)}]"'] if extras else []), *packages]
    verb = "is" if len(missing) == 1 else "are"
    hints = "".join(_HINTS.get(extra, "") for extra in extras)
    listed = " and ".join(filter(None, (", ".join(missing[:-1]), missing[-1])))
    return f"This needs {listed}, which {verb} not installed: pip install {' '.join(names)}{hints}"
