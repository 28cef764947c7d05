"""The page of all commands, made from their help when the documentation is built (``pages.py``)."""

from __future__ import annotations

from collections.abc import Iterator

from trtops.cli import registry
from trtops.cli.command_line import load
from trtops.cli.flags import Flag, flags_of

HEAD = """# Commands

`trtops COMMAND -h` shows the same. Options that every command has (`-h`, `-v`, `-q`, `--verbosity`, `--silent`,
`--log-format`, `--log-file`) are not repeated. Exit codes: 0 for good, 1 for bad, 2 for wrong usage, 3 for errors,
4 for an undecided gate.
"""


def text() -> str:
    """Return the page."""
    return "\n".join([HEAD, *(line for path in registry.COMMANDS for line in section(path))]).rstrip() + "\n"


def section(path: registry.Path) -> Iterator[str]:
    """Yield the lines of one command."""
    command = load(path)
    about = command.about
    yield from (f"## trtops {' '.join(path)}", "", about, "", "```text", *command.examples, "```", "")
    sections: dict[str, list[str]] = {}
    for title, flag in flags_of(command.groups):
        if not flag.refuse and not flag.idle:
            sections.setdefault(title, []).append(option_line(flag))
    for title, lines in sections.items():
        yield from (f"**{title}**", "", *lines, "")


def option_line(flag: Flag) -> str:
    """Return the line of an option: its spellings, values, meaning and default."""
    spelled = ", ".join(f"`{name}`" for name in flag.names)
    shown = flag.shown or ("|".join(map(str, flag.choices)) if flag.choices else "")
    usual = flag.usual or ("" if flag.default in (None, False, (), "") else flag.default)
    default = f" (default: {usual})" if usual else ""
    help = flag.help.replace("<", "&lt;")
    return f"- {spelled}{f' `{shown}`' if shown else ''}: {help}{default}"
