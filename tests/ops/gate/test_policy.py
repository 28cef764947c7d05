"""Reading policies: defaults, overrides by precision, errors with line numbers."""

from pathlib import Path

import pytest

from trtops import errors
from trtops.ops.gate.policy import Policy, read_policy


def write(folder: Path, text: str) -> Path:
    path = folder / "gate.yaml"
    path.write_text(text)
    return path


def test_precision_limits_override_common_limits(tmp_path: Path) -> None:
    policy = read_policy(
        write(
            tmp_path,
            """
latency: {ratio: 1.02}
size: null
accuracy:
  widths: 2
  widths_per_output: {boxes: 4, mask: null}
  tolerances: {atol: 1.0e-4, per_output: {scores: {min_cosine: 0.99}}}
precisions:
  int8:
    latency: {confidence: 0.9}
    accuracy: {widths: 3}
""",
        )
    )

    fp16, int8 = policy.of("fp16"), policy.of("int8")
    assert (fp16.latency.ratio, fp16.latency.confidence) == (1.02, 0.99)
    assert (int8.latency.ratio, int8.latency.confidence) == (1.02, 0.9)
    assert fp16.size is None and int8.size is None
    assert fp16.accuracy.widths == 2 and fp16.accuracy.widths_per_output == {"boxes": 4, "mask": None}
    assert int8.accuracy.widths == 3 and int8.accuracy.tolerances == fp16.accuracy.tolerances
    assert int8.accuracy.tolerances.of("scores").min_cosine == 0.99


def test_every_problem_is_reported_with_its_line(tmp_path: Path) -> None:
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
    precision_share: most
first: maybe
""",
    )

    with pytest.raises(errors.FormatError) as caught:
        read_policy(path)

    complaints = dict(line.split(": ", 1) for line in str(caught.value).splitlines())
    lines = {int(location.rpartition(":")[2]): text for location, text in complaints.items()}
    assert "sizes" in lines[4] and "int9" in lines[8] and "int8" in lines[8]
    assert "most" in lines[10] and "first" in lines[11]
    with pytest.raises(errors.FormatError, match="expected limits"):
        read_policy(write(tmp_path, "- latency"))


def test_partial_limits_keep_their_defaults(tmp_path: Path) -> None:
    assert read_policy(write(tmp_path, "")) == Policy()
    policy = read_policy(write(tmp_path, "size: {ratio: 1.5}\nprecisions:\n  int8:\n    latency: {rounds: 7}\n"))
    size, latency = policy.of("fp32").size, policy.of("int8").latency
    assert (size.ratio, size.slack) == (1.5, 1 << 16)
    assert (latency.ratio, latency.rounds) == (1.05, 7)
