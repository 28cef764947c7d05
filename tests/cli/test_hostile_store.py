"""A store that somebody else may write to.

Every command over every forged run ends, runs nothing of it, and writes nothing outside.
"""

import logging
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile import (
    CONTROLS,
    KINDS_READ,
    RUN,
    WAYS,
    check_unharmed,
    forged_runs,
    manifest_of,
    server_that,
    serving,
    victim_of,
    write_controlling_models,
)
from trtops.cli.main import main
from trtops.record import sha256
from trtops.system.limits import MEMORY
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.schema import Tag

LOOKING = ("show", "audit", "promote", "pardon", "run", "calibration", "build")


@pytest.fixture
def hostile_folder(tmp_path: Path, template: Path) -> Iterator[Path]:
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


def run_all(hostile_folder: Path, runs: list[str], store: str, caplog: pytest.LogCaptureFixture, building: bool) -> int:
    """Run every command, on all but the first runs those that look into them; returns how many that were."""
    lines = [line.split() for line in (*ON_STORES, *([BUILDING] if building else []))]
    for number, run in enumerate(runs):
        every = commands_on(run)
        lines += every if number < len(KINDS_READ) else [line for line in every if line[1] in LOOKING]
    for line in lines:
        words = [*line, store] if line[-1] == "--root" else [*line, "--store", store]
        code = main(words)
        assert code in (0, 1, 2, 3), words
        check_unharmed(hostile_folder, words)
        bugs = [r for r in caplog.records if r.exc_info and "bug in trtops" in r.getMessage()]
        assert not bugs, (words, bugs[0].exc_text or logging.Formatter().formatException(bugs[0].exc_info))
        caplog.clear()
    return len(lines)


def test_all_commands_on_forged_runs(hostile_folder: Path, caplog, capfd) -> None:
    runs = forged_runs(hostile_folder)
    assert len(set(runs)) == len(runs) == len(KINDS_READ) + 11
    assert sha256(b"plan") in manifest_of({"a": b"plan"}).decode()

    assert run_all(hostile_folder, runs, str(hostile_folder / "mlruns"), caplog, building=True) > 150


ON_NAMES = """
    inspect model M; inspect model M --show layers attrs weights; inspect model M --json; compare M M
    run M --onnxrt -v; run M --onnxrt --save-outputs o.json --save-inputs i.json; inspect data o.json; check lint M
    inspect data i.json -a; surgeon sanitize M -o s.onnx --fold-constants; surgeon prune M -o s.onnx
    surgeon extract M -o s.onnx --inputs z:auto:auto; run M --onnxrt --gen-script -
    surgeon insert M -o s.onnx --inputs a --outputs b --op X; convert M --convert-to onnx -o s.onnx --fp-to-fp16
    convert M --convert-to ort -o s.ort; debug accuracy M --onnxrt; debug reduce M --onnxrt; triage M --onnxrt; gate M
    check compatibility M --onnxrt
"""


def test_output_never_controls_the_terminal(hostile_folder: Path, capfd) -> None:
    write_controlling_models(Path())
    store, experiment = str(hostile_folder / "mlruns"), f"experiment{CONTROLS}"
    tracker = MlflowTracker(store)
    run = tracker.start(experiment, f"run{CONTROLS}", kind="build", tags={"tag": CONTROLS, Tag.NOTE: CONTROLS})
    run.log_params({"param": CONTROLS})
    run.log_metrics({(f"metric{CONTROLS}",): 1.0})
    run.log_text(CONTROLS, f"file{CONTROLS}")
    run.finish("good")
    tracker.start(experiment, "failed", kind="build").fail(CONTROLS)
    lines = [["convert", "fine.onnx", "--convert-to", "ort", "-o", "o.ort", "--experiment", experiment]]
    lines += [["runs", "list"], ["runs", "list", "--experiment", f"none{CONTROLS}"], ["store", "check"]]
    lines += [line for info in tracker.find(experiment) for line in commands_on(info.id)]
    lines = [[*line, "--root" if line[0] == "store" else "--store", store] for line in lines]
    on_names = [line.split() for line in ON_NAMES.strip().replace("\n", ";").split(";")]
    lines += [[f"{m}.onnx" if w == "M" else w for w in line] for m in ("fine", "bad") for line in on_names]

    for line in lines:
        main(line)
        printed = "".join(capfd.readouterr())
        controls = {c for c in printed if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp", "Cs") and c not in "\n\t"}
        assert not controls and "\nverdict: forged" not in printed, line


@pytest.mark.parametrize("way", WAYS)
def test_all_commands_on_a_hostile_server(hostile_folder: Path, caplog, capfd, monkeypatch, way: str) -> None:
    monkeypatch.setenv(MEMORY, "64M")
    with serving(server_that(way, hostile_folder)) as address:
        building = way == "digest"
        assert (
            run_all(hostile_folder, [RUN], address, caplog, building)
            == len(ON_STORES) + len(commands_on(RUN)) + building
        )
