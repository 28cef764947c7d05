"""Debug replays of reduce: to resume a killed search, and to exchange results with ``polygraphy debug reduce``.

While a search runs, its replay has one answer per check, with the nodes of the sub-model. In the end it has the answers
to the questions that Polygraphy asks of the model, ``_N<index>_outputs`` and then ``_N<index>_inputs``, so that
Polygraphy reaches the same result without a check. :func:`_retrace` works these questions out, also to read
Polygraphy's replays.

Polygraphy's search as of version 0.53.6: in the first stage, the sub-model of node *i* is the node with everything it
needs. In the second, it is what lies between the inputs of node *i* and the outputs found before, without what does not
depend on those inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from trtops import errors
from trtops.backend.onnx.submodel import Cutter
from trtops.ops.evaluation.submodel import CheckVerdict
from trtops.ops.search.delta import Mode
from trtops.ops.search.replays import IterationContext, load_replay, save_replay
from trtops.record import Record

Nodes: TypeAlias = frozenset[int]
_CULPRIT = "trtops_culprit"
"""Key in the state of a replay's last answer: the nodes of the culprit found by trtops."""


@dataclass(frozen=True, kw_only=True)
class Step(Record):
    """One checked sub-model.

    Attributes:
        number: Counts answers from 1, including those of the search that is resumed.
        stage: Stage of the search: ``whole``, ``halves``, ``outputs``, ``inputs``, ``nodes`` or ``replay``.
        nodes: Its nodes as ranges of indices into the model's ``graph.node``: ``0-4,9``.
        nodes_left: Number of nodes.
    """

    number: int
    stage: str
    nodes: str
    nodes_left: int
    verdict: CheckVerdict
    seconds: float
    detail: str = ""


def as_ranges(nodes: Iterable[int]) -> str:
    """Numbers as text, with runs shortened: ``0-4,9``."""
    runs: list[list[int]] = []
    for node in sorted(nodes):
        if runs and node == runs[-1][1] + 1:
            runs[-1][1] = node
        else:
            runs.append([node, node])
    return ",".join(str(start) if start == end else f"{start}-{end}" for start, end in runs)


def save_answers(path: str, steps: Sequence[Step], holds_for: Mapping[str, str]) -> None:
    """Write the replay of a running search.

    Args:
        path: The file.
        steps: The answers so far.
        holds_for: What they depend on.
    """
    replay = {
        f"_N{number}": IterationContext({"step": step.to_dict()}, {"iteration": number}, step.verdict != "fail")
        for number, step in enumerate(steps)
    }
    replay["_N0"].state["holds_for"] = dict(holds_for)
    save_replay(replay, path)


def load_answers(path: str, cutter: Cutter, holds_for: Mapping[str, str]) -> list[tuple[Step, Nodes]]:
    """Read the answers of a search that did not end, with their nodes; none from another replay.

    Raises:
        ConfigError: If the answers belong to another model, check or data, or the file does not exist.
        FormatError: If the file is not a replay, or damaged.
    """
    answers = []
    known = set(cutter.order)
    for context in load_replay(path).values():
        if "step" not in context.state:
            return []
        for key, value in context.state.get("holds_for", {}).items():
            if value != holds_for.get(key):
                raise errors.ConfigError(
                    f"{path} was begun with {key} {str(value)[:60]!r}; now it is {holds_for.get(key, '')[:60]!r}, so "
                    "its answers do not hold. Use another replay."
                )
        step = Step.from_dict(context.state["step"])
        ends = [run.split("-") for run in step.nodes.split(",")]
        if not all(end.isdigit() and int(end) in known for run in ends for end in run):
            raise errors.FormatError(f"{path}: {step.nodes!r} are not nodes of this model. It is damaged.")
        nodes = (node for run in ends for node in range(int(run[0]), int(run[-1]) + 1))
        answers.append((step, frozenset(nodes) & known))
    return answers


def read_replay(path: str, cutter: Cutter, mode: Mode) -> tuple[list[Nodes], Nodes | None]:
    """Read the failing sub-models and the result of a replay in the form of Polygraphy's.

    Args:
        path: The replay, made for this model.
        cutter: The model.
        mode: The mode in which the replay was made.

    Returns:
        The sub-models that failed, and the culprit (empty if the model passes); None for it if an answer is missing.
    """
    replay = load_replay(path)
    complete = True

    def answer(key: str, nodes: Nodes) -> bool | None:
        nonlocal complete
        complete = complete and key in replay
        return bool(replay[key].success) if key in replay else None

    asked = list(_retrace(cutter, mode, answer))
    failing = sorted(dict.fromkeys(nodes for _, _, nodes, passed in asked if nodes and not passed), key=len)
    if not complete or not asked:
        return failing, None
    for context in replay.values():
        found = context.state.get(_CULPRIT)
        if isinstance(found, list) and set(found) <= set(cutter.order):
            return failing, frozenset(found)
    return failing, failing[0] if failing else frozenset()


def write_replay(path: str, cutter: Cutter, culprit: Nodes, mode: Mode) -> None:
    """Write the replay that leads Polygraphy to the culprit without a check; it is empty if the model passes."""
    replay = {
        key: IterationContext({"num_nodes": len(nodes)}, {"iteration": index}, passed)
        for key, index, nodes, passed in _retrace(cutter, mode, lambda _, nodes: not culprit or not culprit <= nodes)
    }
    if replay:
        list(replay.values())[-1].state[_CULPRIT] = sorted(culprit)
    save_replay(replay, path)


def _retrace(
    cutter: Cutter, mode: Mode, answer: Callable[[str, Nodes], bool | None]
) -> Iterator[tuple[str, int, Nodes, bool]]:
    """Yield key, number within the stage, nodes and answer of each question; an answer of None ends the questions."""
    nodes = sorted(cutter.order)
    among = set(nodes)
    last: int | None = None
    for stage in ("outputs", "inputs"):
        backwards = stage == "inputs"
        count = len(nodes)
        good, bad = (count, 0) if backwards else (0, count)
        at = count // 2 if mode == "bisect" else 0 if backwards else count - 1
        best, fewest = None, count + 1
        for index in range(count + 1):
            start = nodes[at]
            held = (
                _nodes_between(cutter, start, last, among) if backwards else frozenset(cutter.ancestors(start, among))
            )
            passed = answer(f"_N{index}_{stage}", held)
            if passed is None:
                return
            yield f"_N{index}_{stage}", index, held, passed
            if not passed and len(held) <= fewest:
                fewest, best = len(held), at
            if mode == "linear":
                at += 1 if backwards else -1
                if not 0 <= at < count:
                    break
                continue
            good, bad = (at, bad) if passed else (good, at)
            at = math.ceil((good + bad) / 2) if passed else math.floor((good + bad) / 2)
            if abs(good - bad) <= 1:
                break
        if not backwards and best is not None:
            last = nodes[best]
            among = cutter.ancestors(last, among)
            nodes = sorted(among)


def _nodes_between(cutter: Cutter, start: int, end: int | None, among: set[int]) -> Nodes:
    """Nodes among some that depend on the inputs of one node, and that another (None: any output) needs."""
    cut = set(cutter.reads(start))
    depending: set[int] = set()
    reached = set(cut)
    for index in (i for i in cutter.order if i in among):
        made = set(cutter.makes(index))
        if reached.intersection(cutter.reads(index)) and not made & cut:
            depending.add(index)
            reached |= made
    return frozenset(depending if end is None else cutter.ancestors(end, depending) & depending)
