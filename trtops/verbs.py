"""The ops whose configs have many options, as functions with these options as keywords; ``trtops`` exports them."""

import functools
import importlib
from typing import Any

VERBS = (
    "accuracy", "audit", "bisect", "build_list", "bundle", "calibrate", "choose", "choose_all", "compare", "convert",
    "debug_build", "diff_tactics", "evaluate", "export", "gate", "gate_all", "inspect_engines", "precision", "promote",
    "prove", "reduce", "sensitivity", "triage",
)  # fmt: skip


@functools.cache
def __getattr__(name: str) -> Any:
    if name not in VERBS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from trtops.ops.keywords import with_keywords

    module = "trtops.ops.gate.op" if name == "gate" else "trtops.ops"  # a package there has the name of the op
    return with_keywords(getattr(importlib.import_module(module), name))
