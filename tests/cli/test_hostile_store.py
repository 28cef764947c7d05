"""A store that somebody else may write to.

Every command over every forged run ends, runs nothing of it, and writes nothing outside.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile import (
    KINDS_READ,
    RUN,
    WAYS,
    check_unharmed,
    forged_runs,
    manifest_of,
    server_that,
    serving,
    victim_of,
)
from trtops.cli.main import main
from trtops.record import sha256

LOOKING = ("show", "audit", "promote", "pardon", "run", "calibration", "build")


@pytest.fixture
def place(tmp_path: Path, template: Path) -> Iterator[Path]:
    """A folder with a store, a working folder with a model, and a victim, which must not change."""
    with victim_of(tmp_path, template) as folder:
        yield folder


def commands_on(run: str) -> list[list[str]]:
    """Every command that reads a run."""
    lines = (
        "runs show; runs audit; runs compare RUN RUN; runs evaluate RUN --atol 1; runs promote; runs deny; runs pardon "
        "--why forged; inspect run; inspect calibration run:RUN; debug prove; debug bisect; debug build --resume; "
        "compare run:RUN conv_net.onnx"
    )
    return [(line if "RUN" in line else f"{line} RUN").replace("RUN", run).split() for line in lines.split("; ")]


ON_STORES = (
    "runs list",
    "runs list --kind deny --json",
    "runs resolve conv_net.onnx",
    "store check --root",
    "store upload --root",
)
BUILDING = "convert conv_net.onnx --convert-to ort -o o.ort --experiment Default"


def run_all(place: Path, runs: list[str], store: str, caplog: pytest.LogCaptureFixture, building: bool) -> int:
    """Run every command, on all but the first runs those that look into them; returns how many that were."""
    lines = [line.split() for line in (*ON_STORES, *([BUILDING] if building else []))]
    for number, run in enumerate(runs):
        every = commands_on(run)
        lines += every if number < len(KINDS_READ) else [line for line in every if line[1] in LOOKING]
    for line in lines:
        words = [*line, store] if line[-1] == "--root" else [*line, "--store", store]
        code = main(words)
        assert code in (0, 1, 2, 3), words
        check_unharmed(place, words)
        bugs = [r for r in caplog.records if r.exc_info and "bug in trtops" in r.getMessage()]
        assert not bugs, (words, bugs[0].exc_text or logging.Formatter().formatException(bugs[0].exc_info))
        caplog.clear()
    return len(lines)


def test_all_commands_on_forged_runs(place: Path, caplog, capfd) -> None:
    runs = forged_runs(place)
    assert len(set(runs)) == len(runs) == len(KINDS_READ) + 11
    assert sha256(b"plan") in manifest_of({"a": b"plan"}).decode()

    assert run_all(place, runs, str(place / "mlruns"), caplog, building=True) > 150


@pytest.mark.parametrize("way", WAYS)
def test_all_commands_on_a_hostile_server(place: Path, caplog, capfd, way: str) -> None:
    with serving(server_that(way, place)) as address:
        building = way == "digest"
        assert run_all(place, [RUN], address, caplog, building) == len(ON_STORES) + len(commands_on(RUN)) + building
