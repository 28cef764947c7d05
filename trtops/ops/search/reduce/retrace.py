"""What ``polygraphy debug reduce`` would ask, and the answers: its debug replays, read and written.

A replay has answers by question, ``_N<index>_outputs`` and then ``_N<index>_inputs``. :func:`retrace` works the questions
out, so that a replay made by Polygraphy tells us which sub-models failed, and one made here leads Polygraphy to our result.

Its search, as read from version 0.53.6: over outputs, the sub-model of node *i* is the node with all that it needs; over
inputs, what lies between the inputs of node *i* and the outputs found before, without what does not depend on those inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from trtops.backend.onnx.submodel import Cutter
from trtops.ops.search.replays import IterationContext, load_replay, save_replay

Mode: TypeAlias = Literal["bisect", "linear"]
Nodes: TypeAlias = frozenset[int]


def answers_of_replay(path: Path, cutter: Cutter, mode: Mode) -> list[tuple[Nodes, bool]]:
    """The sub-models that a replay has answers for, as node sets, with whether each passed.

    Args:
        path: The replay, made for this model.
        cutter: The model.
        mode: The mode that it was made in.

    Raises:
        FormatError: If the file is something else.
        ConfigError: If there is no such file.
    """
    replay = load_replay(path)

    def answer(key: str, nodes: Nodes) -> bool | None:
        context = replay.get(key)
        return None if context is None else bool(context.success)

    return [(nodes, passed) for _, _, nodes, passed in retrace(cutter, mode, answer) if nodes]


def culprits_of_replay(path: Path, cutter: Cutter, mode: Mode) -> list[Nodes] | None:
    """What a replay leads to, if it answers every question: the culprits that were found, none if the model passes.

    Args:
        path: The replay, made for this model: here, where the culprits are in it, or by Polygraphy, where they follow from
            the answers.
        cutter: The model.
        mode: The mode that it was made in.

    Returns:
        The culprits; None if a question has no answer.

    Raises:
        FormatError: If the file is something else.
        ConfigError: If there is no such file.
    """
    replay = load_replay(path)
    unanswered = []

    def answer(key: str, nodes: Nodes) -> bool | None:
        if key not in replay:
            unanswered.append(key)
            return None
        return bool(replay[key].success)

    asked = list(retrace(cutter, mode, answer))
    if unanswered or not asked:
        return None
    for context in replay.values():
        found = context.state.get(_CULPRITS)
        if isinstance(found, list) and all(isinstance(each, list) and set(each) <= set(cutter.order) for each in found):
            return [frozenset(each) for each in found]
    failing = [nodes for _, _, nodes, passed in asked if nodes and not passed]
    return [min(failing, key=len)] if failing else []


_CULPRITS = "trtops_culprits"
"""In the state of a replay's last answer: the nodes of what was found here."""


def save_retraced(path: Path, cutter: Cutter, culprits: Sequence[Nodes], mode: Mode) -> None:
    """Write the replay that leads Polygraphy to what was found here; every answer follows from the culprits."""
    replay = {
        key: IterationContext({"num_nodes": len(nodes)}, {"iteration": index}, passed)
        for key, index, nodes, passed in retrace(cutter, mode, lambda _, nodes: not any(c <= nodes for c in culprits))
    }
    if replay:
        list(replay.values())[-1].state[_CULPRITS] = [sorted(each) for each in culprits]
    save_replay(replay, path)


def retrace(
    cutter: Cutter, mode: Mode, answer: Callable[[str, Nodes], bool | None]
) -> Iterator[tuple[str, int, Nodes, bool]]:
    """The questions that Polygraphy asks of a model, each following from the answers before it.

    Args:
        cutter: The model.
        mode: How it searches.
        answer: Whether a sub-model passes, from its key and nodes; None ends the questions.

    Yields:
        Key, number within its stage, nodes, and the answer.
    """
    nodes = sorted(cutter.order)
    among = set(nodes)
    best: int | None = None
    for stage in ("outputs", "inputs"):
        marker = _Marker(mode, len(nodes), backwards=stage == "inputs")
        for index in range(len(nodes) + 1):
            at = nodes[marker.index]
            held = (
                frozenset(cutter.ancestors(at, among))
                if stage == "outputs"
                else _nodes_between(cutter, at, best, among)
            )
            key = f"_N{index}_{stage}"
            passed = answer(key, held)
            if passed is None:
                return
            yield key, index, held, passed
            marker.step(passed, len(held))
            if marker.done:
                break
        if stage == "outputs" and marker.best is not None:
            best = nodes[marker.best]
            among = cutter.ancestors(best, among)
            nodes = sorted(among)


def _nodes_between(cutter: Cutter, start: int, end: int | None, among: set[int]) -> Nodes:
    """Nodes among some that depend on the inputs of one node, and that another (None: any output) needs from there on."""
    cut = set(cutter.reads(start))
    depending: set[int] = set()
    reached = set(cut)
    for index in (i for i in cutter.order if i in among):
        made = set(cutter.makes(index))
        if reached.intersection(cutter.reads(index)) and not made & cut:
            depending.add(index)
            reached |= made
    if end is None:
        return frozenset(depending)
    return frozenset(cutter.ancestors(end, depending) & depending)


class _Marker:
    """Which node comes next, by Polygraphy's rules."""

    def __init__(self, mode: Mode, count: int, *, backwards: bool) -> None:
        self._mode = mode
        self._count = count
        self._step = 1 if backwards else -1
        self._good, self._bad = (count, 0) if backwards else (0, count)
        self.index = count // 2 if mode == "bisect" else 0 if backwards else count - 1
        self.best: int | None = None
        self._fewest = count + 1

    def step(self, passed: bool, nodes: int) -> None:
        if not passed and nodes <= self._fewest:
            self._fewest, self.best = nodes, self.index
        if self._mode == "linear":
            self.index += self._step
            return
        if passed:
            self._good = self.index
        else:
            self._bad = self.index
        middle = (self._good + self._bad) / 2
        self.index = math.ceil(middle) if passed else math.floor(middle)

    @property
    def done(self) -> bool:
        if self._mode == "linear":
            return not 0 <= self.index < self._count
        return abs(self._good - self._bad) <= 1
