"""The README's command lines, as they stand there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests import models
from trtops.cli.main import main

README = Path(__file__).resolve().parents[2] / "README.md"


def lines() -> list[list[str]]:
    """The words of each line that begins with ``trtops`` in a block of shell commands."""
    blocks = re.findall(r"```sh\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    found = (shlex.split(line, comments=True) for block in blocks for line in block.splitlines())
    return [words[1:] for words in found if words[:1] == ["trtops"]]


def test_the_command_lines_of_the_readme_work_one_after_the_other(tmp_path, monkeypatch, no_tensorrt, caplog, capsys):
    models.conv_net().write(tmp_path, "model")
    monkeypatch.chdir(tmp_path)
    ran = lines()
    assert len(ran) >= 8

    for words in ran:
        caplog.clear()
        code = main(words)
        needs_tensorrt = "--trt" in words or "model.engine" in words
        assert code == (3 if needs_tensorrt else 0), f"{words}: {capsys.readouterr()} {caplog.text}"
        assert not needs_tensorrt or "pip install tensorrt" in caplog.text


@pytest.mark.parametrize("words", lines(), ids=" ".join)
def test_every_option_in_the_readme_exists(words):
    from trtops.cli import registry
    from trtops.cli.main import load, parser_of

    path, rest = registry.find(words)
    parser_of(path, load(path)).parse(rest)


def test_commands_that_the_readme_names_in_passing_exist():
    from trtops.cli import registry

    text = re.sub("```.*?```", "", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    named = [shlex.split(span.replace("\n", " "))[1:] for span in re.findall("`(trtops [^`(]+)`", text)]
    assert ["debug", "prove"] in named
    for words in named:
        assert registry.find(words)[0] in registry.COMMANDS, words
