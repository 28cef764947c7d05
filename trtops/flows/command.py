"""The shell's door to a flow: its parameters as flags, its result as text, its verdict as exit code."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import cyclopts

from trtops.ending import ended_by_signals
from trtops.errors import AuditError, BuildListError, TrtopsError
from trtops.ops.result import OpResult
from trtops.record import Record


def _read_config(type_: Any, tokens: Sequence[cyclopts.Token]) -> Record:
    """A config from the JSON text or the JSON file that a flag names."""
    kind = next(t for t in (type_, *get_args(type_)) if isinstance(t, type) and issubclass(t, Record))
    value = tokens[0].value
    return kind.from_json(value if value.lstrip().startswith("{") else Path(value).read_bytes())


config_flag = cyclopts.Parameter(accepts_keys=False, n_tokens=1, converter=_read_config, negative="")
"""Marks a flow's config parameter: a flag that takes a JSON file, or JSON itself."""


def run(flow: Callable[..., OpResult], name: str) -> int:
    """Run a flow with the arguments of this process.

    Returns:
        0 if the verdict is good, 1 if it is bad, 3 if an error of ours prevented one. Wrong usage exits with 2.
    """
    app = cyclopts.App(name=f"python -m trtops.flows.{name}", version_flags=[], result_action="return_value")
    app.default(flow)
    try:
        with ended_by_signals(alone=threading.active_count() == 1):
            result: Any = app()
    except (
        AuditError,
        BuildListError,
    ) as exc:  # its flow fails, so that its state says so; here it is a result like others
        result = exc.result
    except TrtopsError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 3
    if not isinstance(result, OpResult):
        return 0  # help was asked for
    print(result.page())
    return 0 if result.verdict == "good" else 1
