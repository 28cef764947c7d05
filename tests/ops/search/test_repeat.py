"""Made again and again, evaluated by a command, and what was left sorted into good and bad."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from trtops import errors
from trtops.ops.evaluation.command import CommandCheck
from trtops.ops.search.repeat import RepeatConfig, RepeatStep, repeat


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """Where each iteration writes its number."""
    return tmp_path / "made.txt"


def check(made: Path, program: str, **options: object) -> CommandCheck:
    """A program that finds the iteration's number in ``n``."""
    source = f"import sys; n = int(open({str(made)!r}).read()); {program}"
    return CommandCheck(command=(sys.executable, "-c", source), artifact=str(made), **options)  # type: ignore[arg-type]


def test_what_is_left_is_sorted_by_what_the_command_says(made: Path, tmp_path: Path) -> None:
    config = RepeatConfig(until=4, artifacts=(str(made),), folder=str(tmp_path / "sorted"))

    result = repeat(lambda n: made.write_text(str(n)), check(made, "sys.exit(n % 2)"), config)

    assert [step.verdict for step in result.steps] == ["good", "bad", "good", "bad"]
    assert (result.count("good"), result.count("bad"), result.count("error")) == (2, 2, 0)
    sorted_files = {file.parent.name: file for file in (tmp_path / "sorted").rglob("*_N3.txt")}
    assert list(sorted_files) == ["bad"] and sorted_files["bad"].read_text() == "3"
    assert not made.exists()


@pytest.mark.parametrize(("until", "iterations"), [("good", 3), ("bad", 1), (2, 2)])
def test_it_stops_with_the_first_of_the_kind_asked_for(made: Path, until: object, iterations: int) -> None:
    config = RepeatConfig(until=until)  # type: ignore[arg-type]
    seen: list[RepeatStep] = []

    result = repeat(lambda n: made.write_text(str(n)), check(made, "sys.exit(n < 2)"), config, progress=seen.append)

    assert len(result.steps) == iterations and tuple(seen) == result.steps


def test_another_failure_than_the_one_meant_is_an_error_and_its_output_is_shown(made: Path) -> None:
    meant = check(made, "print('segment', n); sys.exit(7)", fail_codes=(1,))

    [step] = repeat(lambda n: made.write_text(str(n)), meant, RepeatConfig(until=1)).steps
    [hidden] = repeat(lambda n: made.write_text(str(n)), meant, RepeatConfig(until=1, show="none")).steps

    assert (step.verdict, step.detail, step.output) == ("error", "exit code 7", "segment 0\n")
    assert (hidden.verdict, hidden.output) == ("error", "")


def test_a_back_end_s_error_is_a_verdict_and_one_that_all_would_meet_is_raised(made: Path) -> None:
    def fails(number: int) -> None:
        raise errors.EngineBuildError("out of memory")

    def cannot(number: int) -> None:
        raise errors.BackendUnavailableError("no GPU")

    failed = repeat(fails, check(made, "sys.exit(0)"), RepeatConfig(until="bad"))

    assert [(step.verdict, step.detail) for step in failed.steps] == [("error", "out of memory")]
    with pytest.raises(errors.BackendUnavailableError, match="no GPU"):
        repeat(cannot, check(made, "sys.exit(0)"), RepeatConfig(until=2))


def test_the_command_is_told_its_iteration_and_what_is_not_to_stay_goes(made: Path, tmp_path: Path) -> None:
    info = tmp_path / "info.json"
    reads = CommandCheck(
        command=(sys.executable, "-c", f"import json, sys; sys.exit(json.load(open({str(info)!r}))['iteration'])"),
        artifact=str(made),
    )
    config = RepeatConfig(until=2, info=str(info), intermediate=str(made))

    result = repeat(lambda n: made.write_text("x"), reads, config)

    assert [step.verdict for step in result.steps] == ["good", "bad"]
    assert not info.exists() and not made.exists()


def test_answers_of_an_earlier_run_are_not_asked_for_again(made: Path, tmp_path: Path) -> None:
    replay = str(tmp_path / "replay.json")
    first = repeat(lambda n: n, None, RepeatConfig(until=2, save_replay=replay), ask=lambda n: n == 0)
    asked: list[int] = []

    def ask(number: int) -> bool:
        asked.append(number)
        return True

    again = repeat(lambda n: n, None, RepeatConfig(until=3, load_replay=replay), ask=ask)

    assert [step.verdict for step in again.steps] == [*(step.verdict for step in first.steps), "good"]
    assert asked == [2] and again.steps[0].detail == "from the replay"
    assert len(json.loads(Path(replay).read_text())) == 2


def test_something_must_evaluate() -> None:
    with pytest.raises(errors.ConfigError, match="nothing to evaluate by"):
        repeat(lambda n: n, None, RepeatConfig(until=1))
