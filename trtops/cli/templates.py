"""What the template commands share: a script of the op, or one made from the options."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from trtops import ops
from trtops.backend.common import save_bytes
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job
from trtops.cli.logs import say

OUTPUT = Group("script", (flag("-o --output FILE", "where to write it", to="output", required=True),))


def job(args: Options, kind: Any, groups: Iterable[Group], text: Callable[[Options], str]) -> Job:
    """Return the job that writes a script of the options if any is given besides model and output, else the op's."""
    flags = [flag for group in groups for flag in group.flags if flag.dest not in ("model_file", "output")]
    given = any(args.peek(flag.dest) not in (None, flag.default) for flag in flags if not flag.idle)
    model = getattr(args, "model_file", None)
    return Job(call=_write, args=(kind, model, text(args) if given else None, args.output))


def _write(kind: Any, model: str | None, text: str | None, output: str) -> int:
    if text is None:
        ops.template(kind, output, model=model)
    else:
        save_bytes(text.encode(), output)
    say(f"Wrote {output}")
    return 0
