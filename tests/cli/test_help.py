"""Help shows the default of every option that takes a number or one of some words, and -h works everywhere."""

from __future__ import annotations

import pytest

from trtops import ops
from trtops.cli import registry
from trtops.cli.flags import Flag, flags_of
from trtops.cli.main import load, parser_of
from trtops.record import option_fields


def flags_of_command(path: registry.Path) -> list[Flag]:
    return [flag for _, flag in flags_of(load(path).groups)]


def takes_a_value(flag: Flag) -> bool:
    """Whether it takes a number or one of some words, and may be left out."""
    no_value = flag.positional or flag.takes in ("switch", "count", "runner", "rest")
    of_no_use = flag.required or flag.refuse or flag.idle
    return not no_value and not of_no_use and bool(flag.convert in (int, float) or flag.choices)


@pytest.mark.parametrize("path", registry.COMMANDS, ids=" ".join)
def test_help_shows_defaults(path: registry.Path) -> None:
    silent = [
        flag.names[0]
        for flag in flags_of_command(path)
        if takes_a_value(flag) and not (flag.usual or flag.default or "default" in flag.help or "unless" in flag.help)
    ]
    assert silent == []
    shown = " ".join(parser_of(path, load(path)).format_help().split())
    assert all(f"(default: {flag.usual})" in shown for flag in flags_of_command(path) if flag.usual)


def test_defaults_in_help_are_those_of_the_config():
    fields = {".".join(("ReduceConfig", *option.path)): option for option in option_fields(ops.ReduceConfig)}
    derived = [flag for flag in flags_of_command(("debug", "reduce")) if flag.derived]

    assert len(derived) > 5
    for flag in derived:
        default = fields[flag.dest].default
        if flag.usual and default not in (None, ()):
            assert flag.usual == str(default)
        assert flag.help.split("; by")[0].lower() in fields[flag.dest].help.lower() or flag.help.startswith("do not: ")
