"""The Python surfaces of TensorRT releases, read from real bindings, as data and as stand-in modules.

``tests/data/tensorrt_api.json`` lists every class, member, enum value and function of five releases; a name's five
digits say which of them have it.
"""

import functools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_FILE = Path(__file__).parents[2] / "data" / "tensorrt_api.json"
_CONTENT = json.loads(_FILE.read_text())
RELEASES: tuple[str, ...] = tuple(_CONTENT["releases"])


@functools.cache
def names(release: str) -> frozenset[str]:
    """Dotted names of everything in a release: ``ICudaEngine``, ``ICudaEngine.name``, ``BuilderFlag.FP16``."""
    column = RELEASES.index(release)
    return frozenset(
        name for digits, text in _CONTENT["names"].items() if digits[column] == "1" for name in text.split(" ")
    )


@functools.cache
def stand_in(release: str) -> Any:
    """A module with the names of a release and nothing behind them: enough to probe."""
    module = SimpleNamespace(__version__=release.removeprefix("rtx-"))
    for name in sorted(names(release)):
        owner, _, member = name.partition(".")
        if not member:
            setattr(module, owner, SimpleNamespace(__members__={}))
        else:
            setattr(getattr(module, owner), member, len(getattr(module, owner).__members__))
            getattr(module, owner).__members__[member] = member
    return module
