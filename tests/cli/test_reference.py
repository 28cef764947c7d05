"""Every command and option of Polygraphy is known here, in every spelling; what is not carried out is listed.

Asked of that tool's own parsers, and of the reference that the project came with, if it lies next to the checkout.
"""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from trtops.cli import registry
from trtops.cli.flags import Flag
from trtops.cli.logs import LOGGING
from trtops.cli.main import load

REFERENCE = Path(__file__).resolve().parents[3] / "shared" / "reference" / "polygraphy.md"

REFUSED = {
    "run": {
        "--save-pb", "--save-tensorboard", "--save-timeline", "--tftrt", "--use-tftrt", "--minimum-segment-size",
        "--dynamic-op",
    },
    "inspect sparsity": {"--ignore-external-data"},
    "check accuracy": {
        "--compare-func-script", "--index-tolerance", "--save-heatmaps", "--show-heatmaps", "--save-error-metrics-plot",
        "--show-error-metrics-plot",
    },
}  # fmt: skip
"""Options that end the command with what to use instead."""


def ours(path: registry.Path) -> dict[str, Flag]:
    """Options of a command by spelling."""
    return {name: flag for group in (*load(path).groups, LOGGING) for flag in group.flags for name in flag.names}


def theirs() -> Iterator[tuple[registry.Path, argparse.ArgumentParser]]:
    """Polygraphy's commands with their parsers."""
    from polygraphy.tools.registry import TOOL_REGISTRY

    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    for tool in TOOL_REGISTRY:
        tool.setup_parser(commands)
    found: list[tuple[registry.Path, argparse.ArgumentParser]] = [((), parser)]
    for path, each in found:  # it grows
        below = [action for action in each._actions if isinstance(action, argparse._SubParsersAction)]
        found += [((*path, name), child) for action in below for name, child in action.choices.items()]
        if not below:
            yield path, each


@pytest.mark.parity
def test_every_polygraphy_option_is_known():
    unknown, refused, count = [], {}, 0
    for path, parser in theirs():
        if path in registry.NOT_SUPPORTED:
            continue
        known = ours(path)
        command = " ".join(path)
        for spelling in (name for action in parser._actions for name in action.option_strings):
            count += 1
            if spelling not in known:
                unknown.append(f"{command} {spelling}")
            elif known[spelling].refuse:
                refused.setdefault(command, set()).add(spelling)

    assert count > 1200
    assert not unknown
    assert refused == REFUSED
    assert {path for path, _ in theirs()} <= {*registry.COMMANDS, *registry.NOT_SUPPORTED}


@pytest.mark.skipif(not REFERENCE.is_file(), reason="the reference is not next to the checkout")
def test_every_documented_option_is_known():
    section = REFERENCE.read_text(encoding="utf-8").partition("### 2.1")[2].partition("### 2.2")[0]
    of_commands_not_carried_out = re.sub(r"(?m)^\| `(plugin autotune|multi-device)`?.*$|\(shard:.*?\)", "", section)
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*(?![a-z0-9-]|/[a-z])", of_commands_not_carried_out))

    known = {name for path in registry.COMMANDS for name in ours(path)} | {"--version"}
    assert len(named) > 200
    assert named - known == set()
