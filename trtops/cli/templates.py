"""What the template commands share: a script of the op's, or one made of the options that were given."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from trtops import ops
from trtops.backend.common import save_bytes
from trtops.cli.flags import Asked, Flag, Group
from trtops.cli.logs import say

OUTPUT = Group(
    "script", (Flag(names=("-o", "--output"), to="output", required=True, shown="FILE", help="where to write it"),)
)


@dataclass(frozen=True)
class Plan:
    """What to write.

    Attributes:
        kind: The op's template.
        model: The model to fill in.
        text: The script, where options decide what is in it; None lets the op write its own.
        output: Where to write it.
    """

    kind: str
    model: str | None
    text: str | None
    output: str


def plan(args: Asked, kind: str, groups: Iterable[Group], text: Callable[[Asked], Any]) -> Plan:
    """A script of the options if there are any beside model and output, else the op's."""
    flags = [
        flag for group in groups for flag in group.flags if flag.dest not in ("model_file", "output") and not flag.idle
    ]
    given = any(args.peek(flag.dest) not in (None, flag.default) for flag in flags)
    model = getattr(args, "model_file", None)
    return Plan(kind, model, str(text(args)) if given else None, args.output)


def execute(plan: Plan) -> int:
    """Write it."""
    if plan.text is None:
        ops.template(plan.kind, plan.output, model=plan.model)  # type: ignore[arg-type]
    else:
        save_bytes(plan.text.encode(), plan.output)
    say(f"Wrote {plan.output}")
    return 0
