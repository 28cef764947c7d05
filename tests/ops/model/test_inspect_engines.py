"""Comparison of two engines from JSON files or runs: page, JSON and run."""

import json
from pathlib import Path

import pytest

from tests import models
from tests.backend.trt.describe import inspected
from tests.backend.trt.describe.test_inspector import FP16_TIMES, INT8_TIMES
from trtops import errors, ops
from trtops.cli.main import main
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.model.inspect.engines import InspectEnginesResult
from trtops.spec import BuildConfig, OnnxRuntimeOptions
from trtops.tracking import schema
from trtops.tracking.memory import MemoryTracker


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    for name, text in (("fp16", inspected.eight_fp16()), ("int8", inspected.eight_int8())):
        (tmp_path / f"{name}.json").write_text(text, encoding="utf-8")
    (tmp_path / "fp16_times.json").write_text(json.dumps(FP16_TIMES))
    profile = [{"count": 20}, *({"name": n, "timeMs": 20 * ms, "averageMs": ms} for n, ms in INT8_TIMES.items())]
    (tmp_path / "int8_times.json").write_text(json.dumps(profile))  # as trtexec's --exportProfile
    return str(tmp_path / "fp16.json"), str(tmp_path / "int8.json")


def test_page_starts_with_the_slowest_boundary(files: tuple[str, str]) -> None:
    times = [path.replace(".json", "_times.json") for path in files]
    config = ops.InspectEnginesConfig(a=files[0], b=files[1], times_a=times[0], times_b=times[1])
    result = ops.inspect_engines(config)

    assert (result.a.layers, result.a.inserted, result.b.inserted) == (5, 2, 3)
    assert (result.a.ms, result.b.inserted_ms) == (pytest.approx(0.064), pytest.approx(0.053))
    assert dict(result.b.precisions) == {"int8": 2, "fp16": 2}
    assert result.a.aligned == result.b.aligned == 1
    lines = result.page().splitlines()
    boundaries = lines[lines.index("## Boundaries, largest differences first") + 4 :]
    assert boundaries[0].startswith("| `conv1 + relu1 → conv2` | - | - | 1: fp16 Channel major")
    assert "0.093 ms for 0.064 ms, 3 layers inserted for 2" in lines[0]
    assert any(line.startswith("| `conv1 + relu1` | 1 → 2 | fp16 |") for line in lines)
    assert result.losing == ("conv2",) and "8 bits do not speed up `conv2`." in lines
    assert result.needed.endswith("--int8 that keeps (--keep) 'conv2'") and result.next_step is None
    assert InspectEnginesResult.from_json(result.to_json()) == result


def test_engines_of_runs_are_compared(tmp_path: Path) -> None:
    tracker = MemoryTracker()
    path = models.conv_net().write(tmp_path)
    # Nothing is timed, since layers of timed builds depend on the machine.
    builds = [
        BuildConfig(precision=precision, options=OnnxRuntimeOptions(tactics=()))
        for precision in ("fp32", "fp16", "int8")
    ]
    runs = [convert(path, ConvertConfig(build=build, isolated=False), tracker=tracker).run_id for build in builds]

    result = ops.inspect_engines(ops.InspectEnginesConfig(a=runs[0], b=runs[1]), tracker=tracker, experiment="e")

    assert result.a.layers and result.b.layers and result.a.ms is None
    info = tracker.info(result.run_id)
    assert info.kind == "engine_diff" and info.verdict is None
    assert "Boundaries, largest differences first" in info.tags[schema.Tag.NOTE]

    timed = ops.inspect_engines(ops.InspectEnginesConfig(a=runs[0], b=runs[2], profile=True), tracker=tracker)
    assert timed.a.ms is not None and timed.b.ms is not None and timed.a.aligned == timed.b.aligned == 1
    assert set(timed.losing) <= {"conv0", "conv1", "fc"}
    assert not timed.losing or "--int8 that keeps" in timed.needed


def test_the_command_prints_the_page_or_json(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    times = [path.replace(".json", "_times.json") for path in files]
    assert main(["inspect", "engines", *files, "--times-a", times[0], "--times-b", times[1], "--show", "1"]) == 0
    output = capsys.readouterr().out
    assert "conv1 + relu1 → conv2" in output and "And 3 more." in output

    assert main(["inspect", "engines", *files, "--json"]) == 0
    assert InspectEnginesResult.from_dict(json.loads(capsys.readouterr().out)).a.layers == 5


def test_other_files_are_refused(files: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"some": "thing"}')
    (tmp_path / "times.json").write_text("[1, 2]")

    for options, kind, message in (
        ({"b": str(tmp_path / "other.json")}, errors.FormatError, r"other\.json lists no layers"),
        ({"b": str(tmp_path / "gone.json")}, errors.ConfigError, "cannot be read"),
        ({"b": "8d6e3f"}, errors.ConfigError, "no tracking store"),
        ({"b": files[1], "times_a": str(tmp_path / "times.json")}, errors.FormatError, "has no times of layers"),
    ):
        with pytest.raises(kind, match=message):
            ops.inspect_engines(ops.InspectEnginesConfig(a=files[0], **options))
