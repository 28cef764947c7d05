"""Debug replays of Polygraphy, both ways, with Polygraphy itself at the other end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from tests import models
from trtops import errors
from trtops.backend.onnx.submodel import SubModel
from trtops.ops.evaluation.submodel import Check
from trtops.ops.search.reduce import ReduceResult, reduce
from trtops.ops.search.reduce_replay import Step
from trtops.ops.search.reduce_search import ReduceConfig
from trtops.ops.search.replays import load_replay, save_replay

POLYGRAPHY = str(Path(sys.executable).with_name("polygraphy"))
THEIR_REPLAY = "polygraphy_debug_replay.json"


def branchy() -> models.Case:
    proto = models.model(
        """(float[8] x) => (float[8] y) {
            c = Constant<value = float {2}>()
            [node_a] t0 = Mul(x, c)
            [node_b] t1 = Relu(t0)
            [node_c] t2 = Sigmoid(t0)
            [node_d] t3 = Add(t1, t2)
            [node_e] t4 = Tanh(t3)
            [node_f] t5 = Neg(t3)
            [node_g] y = Add(t4, t5)
        }"""
    )
    return models.Case(onnx.shape_inference.infer_shapes(proto), {"x": models.random(8)}, name="branchy")


def fails_with(name: str):
    def check(part: SubModel) -> bool:
        return name not in {node.name for node in part.proto.graph.node}

    return check


def never_asked(part: SubModel) -> bool:
    raise AssertionError("nothing is to be checked")


def ours(check: Check, steps: list[Step] | None = None, **options: object) -> ReduceResult:
    case, progress = branchy(), None if steps is None else steps.append
    return reduce(case.proto, check, ReduceConfig(**options), feeds=[case.feed], progress=progress)  # type: ignore[arg-type]


def theirs(folder: Path, mode: str, check: str, *options: str) -> None:
    model = branchy().write(folder)
    command = [POLYGRAPHY, "debug", "reduce", str(model), "-o", "theirs.onnx", "--mode", mode, *options]
    command += ["--show-output", "--check", "sh", "-c", check]
    subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)


def looks_for(name: str) -> str:
    return f"! grep -qa {name} polygraphy_debug.onnx"


@pytest.mark.parity
@pytest.mark.parametrize(("mode", "culprit"), [("bisect", "node_e"), ("linear", "node_c")])
def test_polygraphy_retraces_our_result_without_a_check(tmp_path: Path, mode: str, culprit: str):
    replay = tmp_path / "replay.json"
    ours(fails_with(culprit), mode=mode, save_replay=str(replay))

    theirs(tmp_path, mode, "touch asked", "--load-debug-replay", str(replay))

    assert not (tmp_path / "asked").exists()
    assert culprit in {node.name for node in onnx.load(tmp_path / "theirs.onnx").graph.node}


@pytest.mark.parity
@pytest.mark.parametrize(("mode", "culprit"), [("bisect", "node_c"), ("linear", "node_e")])
def test_an_incomplete_replay_of_polygraphy_gives_a_start(tmp_path: Path, mode: str, culprit: str):
    theirs(tmp_path, mode, looks_for(culprit))
    replay = tmp_path / THEIR_REPLAY
    early = dict(list(load_replay(replay).items())[:-1])
    save_replay(early, replay)
    steps: list[Step] = []

    result = ours(fails_with(culprit), steps, mode=mode, load_replay=str(replay))

    assert [node.name for node in result.culprits[0].nodes] == [culprit]
    assert steps[1].stage == "replay" and steps[1].verdict == "fail"
    assert steps[1].nodes_left == min(c.state["num_nodes"] for c in early.values() if not c.success)


@pytest.mark.parity
@pytest.mark.parametrize(("mode", "culprit"), [("bisect", "node_c"), ("linear", "node_e"), ("bisect", "none of them")])
def test_a_complete_replay_of_polygraphy_needs_no_check(tmp_path: Path, mode: str, culprit: str):
    theirs(tmp_path, mode, looks_for(culprit))
    replay = tmp_path / THEIR_REPLAY
    failed = [c.state["num_nodes"] for c in load_replay(replay).values() if not c.success]

    result = ours(never_asked, mode=mode, load_replay=str(replay))

    assert result.checks == 0
    assert [len(found.nodes) for found in result.culprits] == ([min(failed)] if failed else [])


@pytest.mark.parity
@pytest.mark.parametrize(
    ("mode", "culprit"), [("bisect", "node_a"), ("bisect", "node_b"), ("bisect", "node_g"), ("linear", "node_b")]
)
def test_our_replay_has_the_questions_of_polygraphy(tmp_path: Path, mode: str, culprit: str):
    theirs(tmp_path, mode, looks_for(culprit))
    ours(fails_with(culprit), mode=mode, save_replay=str(tmp_path / "ours.json"))

    expected, found = load_replay(tmp_path / THEIR_REPLAY), load_replay(tmp_path / "ours.json")
    assert list(found) == list(expected)
    for key, context in expected.items():
        assert (found[key].success, found[key].iteration_info) == (context.success, context.iteration_info), key
        assert found[key].state["num_nodes"] == context.state["num_nodes"], key


def test_our_own_replay_needs_no_check(tmp_path: Path):
    replay = str(tmp_path / "replay.json")
    before = ours(fails_with("node_c"), save_replay=replay)

    again = ours(never_asked, load_replay=replay)
    assert (again.checks, again.culprits[0].nodes) == (0, before.culprits[0].nodes)

    save_replay(dict(list(load_replay(replay).items())[:-1]), replay)  # an incomplete one is only a start
    assert [node.name for node in ours(fails_with("node_f"), load_replay=replay).culprits[0].nodes] == ["node_f"]


def test_invalid_replays_are_refused(tmp_path: Path):
    replay = tmp_path / "replay.json"
    for content in ("[]", '{"_N0_outputs": {"success": true}}', "{", '{"_N0_outputs": 3}'):
        replay.write_text(content)
        with pytest.raises(errors.FormatError):
            ours(fails_with("node_e"), load_replay=str(replay))
    with pytest.raises(errors.ConfigError, match=r"missing\.json"):
        ours(fails_with("node_e"), load_replay="missing.json")
