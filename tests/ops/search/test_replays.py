"""Debug replays of Polygraphy, both ways, with Polygraphy itself at the other end."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from tests import models
from trtops import errors
from trtops.backend.onnx.submodel import Cutter, SubModel
from trtops.ops.search.reduce import reduce
from trtops.ops.search.reduce_journal import Step
from trtops.ops.search.reduce_search import ReduceConfig
from trtops.ops.search.replays import load_replay, save_replay

POLYGRAPHY = str(Path(sys.executable).with_name("polygraphy"))
ASKED = "touch asked"


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


def fails_with(*names: str):
    def check(part: SubModel) -> bool:
        return not set(names) <= {node.name for node in part.proto.graph.node}

    return check


def their_reduce(model: Path, mode: str, *options: str, check: str) -> subprocess.CompletedProcess[str]:
    command = [POLYGRAPHY, "debug", "reduce", str(model), "-o", "theirs.onnx", "--mode", mode, *options]
    return subprocess.run(
        [*command, "--show-output", "--check", "sh", "-c", check],
        cwd=model.parent,
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.mark.parity
@pytest.mark.parametrize(("mode", "culprit"), [("bisect", "node_e"), ("linear", "node_c")])
def test_polygraphy_retraces_our_result_from_our_replay_without_checking_anything(
    tmp_path: Path, mode: str, culprit: str
):
    case = branchy()
    model, replay = case.write(tmp_path), tmp_path / "replay.json"
    reduce(model, fails_with(culprit), ReduceConfig(mode=mode, save_replay=str(replay)), feeds=[case.feed])  # type: ignore[arg-type]

    their_reduce(model, mode, "--load-debug-replay", str(replay), check=ASKED)

    assert not (tmp_path / "asked").exists()
    assert culprit in {node.name for node in onnx.load(tmp_path / "theirs.onnx").graph.node}


@pytest.mark.parity
@pytest.mark.parametrize(("mode", "culprit"), [("bisect", "node_c"), ("linear", "node_e")])
def test_a_replay_of_polygraphy_that_ends_early_gives_us_its_smallest_failing_sub_model_to_start_from(
    tmp_path: Path, mode: str, culprit: str
):
    case = branchy()
    model = case.write(tmp_path)
    look = f"! grep -qa {culprit} polygraphy_debug.onnx"
    their_reduce(model, mode, check=look)
    replay = tmp_path / "polygraphy_debug_replay.json"
    early = dict(list(load_replay(replay).items())[:-1])
    save_replay(early, replay)
    failed = [c.state["num_nodes"] for c in early.values() if not c.success]
    steps: list[Step] = []

    result = reduce(
        model,
        fails_with(culprit),
        ReduceConfig(mode=mode, load_replay=str(replay)),  # type: ignore[arg-type]
        feeds=[case.feed],
        progress=steps.append,
    )

    assert [node.name for node in result.culprits[0].nodes] == [culprit]
    assert steps[1].stage == "replay" and steps[1].verdict == "fail"
    assert len(steps[1].nodes) == min(failed)


@pytest.mark.parity
@pytest.mark.parametrize(("mode", "culprit"), [("bisect", "node_c"), ("linear", "node_e"), ("bisect", "none of them")])
def test_a_replay_of_polygraphy_that_has_all_answers_leaves_nothing_to_check(tmp_path: Path, mode: str, culprit: str):
    case = branchy()
    model = case.write(tmp_path)
    their_reduce(model, mode, check=f"! grep -qa {culprit} polygraphy_debug.onnx")
    replay = tmp_path / "polygraphy_debug_replay.json"
    failed = [c.state["num_nodes"] for c in load_replay(replay).values() if not c.success]

    config = ReduceConfig(mode=mode, load_replay=str(replay))  # type: ignore[arg-type]
    result = reduce(model, never_asked, config, feeds=[case.feed])

    assert result.checks == 0
    assert [len(found.nodes) for found in result.culprits] == ([min(failed)] if failed else [])


def never_asked(part):
    raise AssertionError("nothing is to be checked")


def test_our_own_replay_gives_the_same_result_without_checking_anything(tmp_path: Path):
    case, replay = branchy(), tmp_path / "replay.json"
    check = fails_with("node_e")
    before = reduce(case.proto, check, ReduceConfig(save_replay=str(replay)), feeds=[case.feed])

    again = reduce(case.proto, never_asked, ReduceConfig(load_replay=str(replay)), feeds=[case.feed])

    assert (again.checks, again.culprits[0].nodes) == (0, before.culprits[0].nodes)


@pytest.mark.parity
@pytest.mark.parametrize(
    ("mode", "culprit"), [("bisect", "node_a"), ("bisect", "node_b"), ("bisect", "node_g"), ("linear", "node_b")]
)
def test_we_know_what_polygraphy_asks_and_in_which_order(tmp_path: Path, mode: str, culprit: str):
    case = branchy()
    model, replay = case.write(tmp_path), tmp_path / "ours.json"
    look = f"! grep -qa {culprit} polygraphy_debug.onnx"
    their_reduce(model, mode, check=look)
    theirs = load_replay(tmp_path / "polygraphy_debug_replay.json")

    reduce(model, fails_with(culprit), ReduceConfig(mode=mode, save_replay=str(replay)), feeds=[case.feed])  # type: ignore[arg-type]

    ours = load_replay(replay)
    assert list(ours) == list(theirs)
    for key, context in theirs.items():
        assert (ours[key].success, ours[key].iteration_info) == (context.success, context.iteration_info), key
        assert ours[key].state["num_nodes"] == context.state["num_nodes"], key


def test_our_replay_has_the_form_of_theirs(tmp_path: Path):
    case, replay = branchy(), tmp_path / "replay.json"

    reduce(case.proto, fails_with("node_e"), ReduceConfig(save_replay=str(replay)), feeds=[case.feed])

    raw = json.loads(replay.read_text())
    assert list(itertools.islice(raw, 2)) == ["_N0_outputs", "_N1_outputs"] and "_N0_inputs" in raw
    entry = raw["_N0_outputs"]
    assert entry["polygraphy_class"] == "IterationContext"
    assert set(entry) == {"polygraphy_class", "state", "iteration_info", "success"}


@pytest.mark.parametrize("content", ["[]", '{"_N0_outputs": {"success": true}}', "{", '{"_N0_outputs": 3}'])
def test_a_file_that_is_no_replay_is_refused(tmp_path: Path, content: str):
    replay = tmp_path / "replay.json"
    replay.write_text(content)

    with pytest.raises(errors.FormatError):
        reduce(branchy().proto, fails_with("node_e"), ReduceConfig(load_replay=str(replay)))


def test_a_replay_that_does_not_exist_is_named():
    with pytest.raises(errors.ConfigError, match=r"missing\.json"):
        reduce(branchy().proto, fails_with("node_e"), ReduceConfig(load_replay="missing.json"))


def test_answers_of_a_replay_that_lacks_some_are_only_a_start_and_are_checked_again(tmp_path: Path):
    case, replay = branchy(), tmp_path / "replay.json"
    reduce(case.proto, fails_with("node_c"), ReduceConfig(save_replay=str(replay)), feeds=[case.feed])
    save_replay(dict(list(load_replay(replay).items())[:-1]), replay)

    result = reduce(case.proto, fails_with("node_f"), ReduceConfig(load_replay=str(replay)), feeds=[case.feed])

    assert [node.name for node in result.culprits[0].nodes] == ["node_f"]
    assert Cutter(case.proto).order == list(range(1, 8))
