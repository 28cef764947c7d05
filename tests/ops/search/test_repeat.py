"""Repeated checks by a command, the files that they leave, and the runs of searches."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock, call

import onnx
import pytest

from tests import models
from trtops import errors
from trtops.backend.onnx.submodel import SubModel
from trtops.ops.result import OpResult
from trtops.ops.search.accuracy import Emulated, accuracy
from trtops.ops.search.command import CommandCheck
from trtops.ops.search.precision import precision
from trtops.ops.search.reduce import reduce
from trtops.ops.search.repeat import RepeatConfig, RepeatResult, RepeatStep, repeat
from trtops.tracking.memory import MemoryTracker
from trtops.tracking.schema import Tag


@pytest.fixture
def iteration_file(tmp_path: Path) -> Path:
    """Where each iteration writes its number."""
    return tmp_path / "made.txt"


def check(iteration_file: Path, program: str, **options: object) -> CommandCheck:
    """A program that finds the iteration's number in ``n``."""
    source = f"import sys; n = int(open({str(iteration_file)!r}).read()); {program}"
    return CommandCheck(command=(sys.executable, "-c", source), artifact=str(iteration_file), **options)  # type: ignore[arg-type]


def repeated(iteration_file: Path, check: CommandCheck, **options: object) -> RepeatResult:
    return repeat(lambda n: iteration_file.write_text(str(n)), check, RepeatConfig(**options))  # type: ignore[arg-type]


def test_files_are_sorted_by_the_verdict(iteration_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sorted"
    result = repeated(
        iteration_file,
        check(iteration_file, "sys.exit(n % 2)"),
        until=4,
        artifacts=(str(iteration_file),),
        folder=str(folder),
    )

    assert [step.verdict for step in result.steps] == ["good", "bad", "good", "bad"]
    assert (result.count("good"), result.count("bad"), result.count("error")) == (2, 2, 0)
    sorted_files = {file.parent.name: file for file in folder.rglob("*_N3.txt")}
    assert list(sorted_files) == ["bad"] and sorted_files["bad"].read_text() == "3"
    assert not iteration_file.exists()


@pytest.mark.parametrize(("until", "iterations"), [("good", 3), ("bad", 1), (2, 2)])
def test_it_stops_as_requested(iteration_file: Path, until: object, iterations: int) -> None:
    seen: list[RepeatStep] = []
    config = RepeatConfig(until=until)  # type: ignore[arg-type]
    result = repeat(
        lambda n: iteration_file.write_text(str(n)),
        check(iteration_file, "sys.exit(n < 2)"),
        config,
        progress=seen.append,
    )
    assert len(result.steps) == iterations and tuple(seen) == result.steps


def test_another_failure_is_an_error_with_its_output(iteration_file: Path) -> None:
    meant = check(iteration_file, "print('segment', n); sys.exit(7)", fail_codes=(1,))
    for show, output in (("failing", "segment 0\n"), ("none", "")):
        [step] = repeated(iteration_file, meant, until=1, show=show).steps
        assert (step.verdict, step.detail, step.output) == ("error", "exit code 7", output)


def test_errors_of_a_back_end(iteration_file: Path) -> None:
    passes = check(iteration_file, "sys.exit(0)")
    failing = Mock(side_effect=errors.EngineBuildError("no memory"))
    failed = repeat(failing, passes, RepeatConfig(until="bad"))
    assert [(step.verdict, step.detail) for step in failed.steps] == [("error", "no memory")]
    with pytest.raises(errors.BackendUnavailableError, match="no GPU"):  # which every iteration would meet
        repeat(Mock(side_effect=errors.BackendUnavailableError("no GPU")), passes, RepeatConfig(until=2))
    with pytest.raises(errors.ConfigError, match="nothing to evaluate by"):
        repeat(lambda n: n, None, RepeatConfig(until=1))


def test_the_command_can_read_its_iteration(iteration_file: Path, tmp_path: Path) -> None:
    info = tmp_path / "info.json"
    source = f"import json, sys; sys.exit(json.load(open({str(info)!r}))['iteration'])"
    reads = CommandCheck(command=(sys.executable, "-c", source), artifact=str(iteration_file))

    result = repeated(iteration_file, reads, until=2, info=str(info), intermediate=str(iteration_file))

    assert [step.verdict for step in result.steps] == ["good", "bad"]
    assert not info.exists() and not iteration_file.exists()


def test_recorded_answers_are_not_asked_again(tmp_path: Path) -> None:
    replay = str(tmp_path / "replay.json")
    first = repeat(lambda n: n, None, RepeatConfig(until=2, save_replay=replay), ask=lambda n: n == 0)
    ask = Mock(return_value=True)
    again = repeat(lambda n: n, None, RepeatConfig(until=3, load_replay=replay), ask=ask)

    assert [step.verdict for step in again.steps] == [*(step.verdict for step in first.steps), "good"]
    assert ask.call_args_list == [call(2)] and again.steps[0].detail == "from the replay"
    assert len(json.loads(Path(replay).read_text())) == 2


def has_no_add(part: SubModel) -> bool:
    return all(node.op_type != "Add" for node in part.proto.graph.node)


OPS: dict[str, tuple[Callable[..., OpResult], str]] = {
    "reduce": (lambda model, **options: reduce(model, has_no_add, **options), "multi_output reduce"),
    "precision": (precision, "multi_output precision"),
    "accuracy": (
        lambda model, **options: accuracy(model, Emulated("fp16"), **options),
        "multi_output accuracy emulated fp16",
    ),
}


@pytest.mark.parametrize("kind", OPS)
def test_a_search_opens_its_own_run(kind: str, tmp_path: Path) -> None:
    op, name = OPS[kind]
    path, tracker = models.multi_output().write(tmp_path), MemoryTracker()

    for result in (
        op(onnx.load(path), file=path, tracker=tracker, tags={"a": "b"}),
        op(path, tracker=tracker, tags={"a": "b"}),
    ):
        info = tracker.load(result.run_id).info
        assert (info.name, info.experiment, info.status, info.verdict) == (name, path.stem, "finished", result.verdict)
        assert info.tags[Tag.KIND] == kind and info.fact(Tag.MODEL_PATH) == str(path) and info.tags["a"] == "b"
        assert result.experiment == path.stem
        assert result.page().startswith(f"# {kind} {path.name}: {result.headline}\n")

    # Only a file that exists leaves a failed run.
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    for name, statuses in (("nowhere", []), ("broken", ["failed"])):
        with pytest.raises(errors.InvalidModelError, match=name):
            OPS[kind][0](tmp_path / f"{name}.onnx", tracker=tracker, experiment="lost")

        assert [info.status for info in tracker.find("lost")] == statuses
