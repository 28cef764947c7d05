"""The page of all commands, from their own help: what each does, its options with their defaults, and examples.

It is written when the documentation is built (``pages.py``).
"""

from __future__ import annotations

from collections.abc import Iterator

from trtops.cli import registry
from trtops.cli.flags import Flag
from trtops.cli.main import load

HEAD = """# Commands

`trtops COMMAND -h` says all of this, too. Options that every command has (`-h`, `-v`, `-q`, `--verbosity`, `--silent`,
`--log-format`, `--log-file`) are not repeated. Exit codes are 0 for good, 1 for bad, 2 for wrong usage and 3 for errors.
"""


def text() -> str:
    """The page."""
    return "\n".join([HEAD, *(line for path in registry.COMMANDS for line in section(path))]).rstrip() + "\n"


def section(path: registry.Path) -> Iterator[str]:
    """One command."""
    module = load(path)
    about = " ".join((module.__doc__ or registry.COMMANDS[path]).split())
    yield from (f"## trtops {' '.join(path)}", "", about, "", "```text", *module.EXAMPLES, "```", "")
    for group in module.GROUPS:
        flags = [flag for flag in group.flags if not flag.refuse and not flag.idle]
        if flags:
            yield from (f"**{group.title}**", "", *map(option_line, flags), "")


def option_line(flag: Flag) -> str:
    """One option: its spellings, what it takes, what it does, its default."""
    spelled = ", ".join(f"`{name}`" for name in flag.names)
    shown = flag.shown or ("|".join(map(str, flag.choices)) if flag.choices else "")
    default = f" (default: {flag.default})" if flag.default not in (None, False, (), "") else ""
    help = flag.help.replace("<", "&lt;")
    return f"- {spelled}{f' `{shown}`' if shown else ''}: {help}{default}"
