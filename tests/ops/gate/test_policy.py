"""Policies: read with defaults, put over one another by precision, and refused with the line of everything that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtops import errors
from trtops.ops.gate.history import HistoryResult, propose
from trtops.ops.gate.policy import Policy, read_policy


def write(folder: Path, text: str) -> Path:
    path = folder / "gate.yaml"
    path.write_text(text)
    return path


def test_limits_of_a_precision_are_put_over_those_of_all(tmp_path: Path) -> None:
    policy = read_policy(
        write(
            tmp_path,
            """
latency: {ratio: 1.02}
memory: null
accuracy:
  widths: 2
  widths_per_output: {boxes: 4, mask: null}
  tolerances: {atol: 1.0e-4, per_output: {scores: {min_cosine: 0.99}}}
precisions:
  int8:
    latency: {confidence: 0.9}
    accuracy: {widths: 3}
first: refuse
""",
        )
    )

    fp16, int8 = policy.of("fp16"), policy.of("int8")
    assert fp16.latency is not None and int8.latency is not None
    assert (fp16.latency.ratio, fp16.latency.confidence) == (1.02, 0.99)
    assert (int8.latency.ratio, int8.latency.confidence) == (1.02, 0.9)
    assert fp16.memory is None and int8.memory is None and fp16.size is not None
    assert fp16.accuracy is not None and int8.accuracy is not None
    assert [fp16.accuracy.widths_of(name) for name in ("scores", "boxes", "mask")] == [2, 4, None]
    assert int8.accuracy.widths == 3 and int8.accuracy.tolerances == fp16.accuracy.tolerances
    assert int8.accuracy.tolerances is not None and int8.accuracy.tolerances.of("scores").min_cosine == 0.99
    assert policy.first == "refuse"


def test_an_empty_policy_is_the_usual_one(tmp_path: Path) -> None:
    assert read_policy(write(tmp_path, "")) == Policy()


def test_all_that_is_wrong_is_said_at_once_each_with_its_line(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """latency:
  ratio: fast
  rounds: 8
sizes: {ratio: 2}
accuracy:
  tolerances: {atol: -1}
precisions:
  int9: {size: null}
  int8:
    layers: {tactics: forbid}
first: maybe
""",
    )

    with pytest.raises(errors.FormatError) as caught:
        read_policy(path)

    complaints = dict(line.split(": ", 1) for line in str(caught.value).splitlines())
    lines = {int(place.rpartition(":")[2]): text for place, text in complaints.items()}
    assert "sizes" in lines[4] and "size" in lines[4]
    assert "int9" in lines[8] and "int8" in lines[8]
    assert "forbid" in lines[10]
    assert "maybe" in lines[11]


def test_a_value_that_cannot_be_meant_has_its_line(tmp_path: Path) -> None:
    with pytest.raises(errors.FormatError, match=r"gate\.yaml:2: .*atol is -1"):
        read_policy(write(tmp_path, "accuracy:\n  tolerances: {atol: -1}\n"))
    with pytest.raises(errors.FormatError, match=r"gate\.yaml:1: .*ratio"):
        read_policy(write(tmp_path, "latency: {ratio: fast}\n"))
    with pytest.raises(errors.FormatError, match="expected limits"):
        read_policy(write(tmp_path, "- latency\n"))


def test_a_proposed_limit_covers_good_runs_and_is_never_below_the_largest_and_its_noise(tmp_path: Path) -> None:
    import numpy as np

    random = np.random.default_rng(0)
    key = ("resnet", "ab" * 32, "fp16", "scores:0")
    covered = []
    for _ in range(200):
        drawn = 10 ** random.normal(-3, 0.1, 10)
        covered.append(propose(key, list(drawn), None).limit > 10 ** (-3 + 0.1 * 2.3263))  # the 99% quantile

    equal = propose(key, [1e-3] * 5, 1e-4)

    assert np.mean(covered) == pytest.approx(0.95, abs=0.04)
    assert equal.limit == pytest.approx(1e-3 + 3e-4) and equal.spread == 0


def test_proposed_limits_are_shown_as_a_policy_that_can_be_read(tmp_path: Path) -> None:
    proposals = tuple(
        propose(("m", "cd" * 32, precision, output), [1e-3, 2e-3, 1.5e-3], 1e-5)
        for precision in ("fp16", "int8")
        for output in ("scores", "it's:0")
    )
    page = HistoryResult(evaluated=(), proposals=proposals).page()

    policy = read_policy(write(tmp_path, page.split("```yaml\n")[1].split("```")[0]))

    limits = policy.of("int8").accuracy
    assert limits is not None and limits.tolerances is not None
    own = limits.tolerances.of("it's:0")
    assert (own.check_error_stat, own.rtol) == ("max", 0)
    assert own.atol == pytest.approx(proposals[-1].limit, rel=1e-3)
