"""The text of a bug report, filled in."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence

from trtops.masking import masked
from trtops.ops.bundling.case import Case
from trtops.spec import Environment
from trtops.tactics.record import TacticRecord

_SHOWN = 40


def issue_text(
    case: Case, environment: Environment, tactics: TacticRecord | None, said: str, stripped: Sequence[str], how: str
) -> str:
    """The report as Markdown: what happens, what should, where, and how to see it."""
    return masked("\n".join(_lines(case, environment, tactics, said, stripped, how)) + "\n")


def _lines(
    case: Case, environment: Environment, tactics: TacticRecord | None, said: str, stripped: Sequence[str], how: str
) -> Iterator[str]:
    what = {"bad": "wrong outputs", "good": "right outputs", "error": "an error"}[case.verdict]
    yield from (f"# {environment.backend} {environment.backend_version}: {what} of {case.name}", "")
    yield from ("## What happens", "")
    if said:
        yield from ("```", said.rstrip(), "```", "")
    yield from (f"- {reason}" for reason in case.reasons)
    expected = "The outputs in `golden.npz`, within the tolerances in `case.json`." if case.golden[0] else "An engine."
    yield from ("", "## What is expected", "", expected, "")
    yield from (
        "## How to see it",
        "",
        "```",
        "python -m pip install -r constraints.txt",
        "python reproduce.py",
        "```",
        "",
    )
    if stripped:
        yield from (f"The weights are random ({how}); the fault shows with them as with the true ones.", "")
    nodes = Counter(node.op_type for node in case.model.graph.node)
    counted = ", ".join(f"{count} {op}" for op, count in nodes.most_common())
    yield from ("## The model", "", f"{sum(nodes.values())} nodes: {counted}.", "")
    if sum(nodes.values()) <= _SHOWN:
        yield from (
            f"- {n.op_type} `{n.name or n.output[0]}`: {shlex.join(n.input)} -> {shlex.join(n.output)}"
            for n in case.model.graph.node
        )
        yield ""
    yield from ("## Where", "", "| | |", "|---|---|")
    yield from (f"| {name} | {value} |" for name, value in _places(environment))
    if tactics is not None and tactics.settings:
        settings = ", ".join(f"{name} {value}" for name, value in tactics.settings)
        yield from ("", f"Settings of the build: {settings}. Every choice is in `tactics.json`.")


def _places(environment: Environment) -> Iterator[tuple[str, str]]:
    values = {
        environment.backend: environment.backend_version,
        "device": environment.device,
        "compute capability": environment.compute_capability,
        "driver": environment.driver,
        "CUDA": environment.cuda,
        "system": environment.os,
        "Python": environment.python,
        **dict(environment.packages),
    }
    yield from ((name, value) for name, value in values.items() if value)
