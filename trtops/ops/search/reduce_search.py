"""The search of reduce: which sub-models are checked, in which order, and what the answers mean.

It works on *parts* of a model, numbered in execution order (:attr:`trtops.backend.onnx.submodel.Cutter.parts`), mostly
single nodes. The stages:

* *halves*: a stretch of parts that fails while neither of its halves does. A single wrong node is found here.
* *outputs*: the shortest beginning of that stretch that fails. Its last part is needed.
* *inputs*: the shortest end of what is left that fails.
* *nodes*: delta debugging over the rest, until no single part can be left out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import onnx.parser

from trtops import errors
from trtops.backend.onnx.submodel import Cutter, SubModel, Values
from trtops.backend.onnxrt.observe import observe
from trtops.ops.evaluation.feeds import DataConfig
from trtops.ops.evaluation.submodel import Check, CheckOutcome
from trtops.ops.model.model_files import SaveConfig
from trtops.ops.search.delta import Evaluate, Items, OutOfTestsError, Search
from trtops.ops.search.reduce_replay import Step, as_ranges, load_answers, read_replay, save_answers

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ReduceConfig(DataConfig):
    """How to reduce a model, and the data of the whole model.

    Attributes:
        mode: ``bisect`` checks ``log2(nodes)`` sub-models in each stage but the last. ``linear`` checks one after the
            other from the smallest, and so also finds failures that larger sub-models hide.
        max_checks: Maximum number of checks; the result is then the smallest failing sub-model so far.
        reduce_outputs: Whether nodes may be removed at the end of the model. Otherwise its outputs stay.
        reduce_inputs: Whether nodes may be removed at the beginning. Otherwise its inputs stay.
        inputs: Inputs of sub-models: ``real`` values as observed in the whole model, ``random`` numbers, or
            ``declared`` types and shapes without data, for models that ONNX Runtime does not run.
        branches: How tensors from other branches enter a sub-model: ``frozen`` as weights with their observed values
            (inputs where these differ between feeds), or as further ``inputs``. By default frozen if data is given.
        input_shapes: Shapes of dynamic inputs, by name, for random data; 1 for each dynamic dimension by default.
        width: Number of sub-models checked at the same time.
        memory_limit_bytes: Observed values kept in memory; the rest goes to temporary files.
        output: File for the reduced model. Its inputs are saved next to it as ``<name>_inputs.json``.
        save_as: Where the weights of these models go.
        min_good: File for the passing sub-model that is closest in size to the culprit.
        load_replay: A debug replay. A search of trtops that was killed or interrupted resumes: its answers are not
            checked again. A complete replay, of trtops or Polygraphy, gives the result without a check. Of an
            incomplete one of Polygraphy, the smallest sub-model that failed is checked first.
        save_replay: File for a debug replay, written after each check. In the end Polygraphy can read it.
    """

    mode: Literal["bisect", "linear"] = "bisect"
    max_checks: int | None = None
    reduce_outputs: bool = True
    reduce_inputs: bool = True
    inputs: Literal["real", "random", "declared"] = "real"
    branches: Literal["frozen", "inputs"] | None = None
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    width: int = 1
    memory_limit_bytes: int = 2 << 30
    output: str | None = None
    save_as: SaveConfig = field(default_factory=SaveConfig)
    min_good: str | None = None
    load_replay: str | None = None
    save_replay: str | None = None

    def __post_init__(self) -> None:
        if not (self.reduce_outputs or self.reduce_inputs):
            raise errors.ConfigError(
                "reduce_outputs and reduce_inputs are both False; expected one of them to be True."
            )
        if self.branches == "frozen" and self.inputs != "real":
            raise errors.ConfigError(
                f"Branches can be frozen at real values only; found inputs={self.inputs!r}. Leave one of the two out."
            )
        for name in ("width", "max_checks", "iterations"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise errors.ConfigError(f"{name} is {value}; expected 1 or more.")


class Reduction:
    """One reduction under way.

    Attributes:
        cutter: The model.
        everything: All its parts.
        answers: The outcomes of checks, by parts.
        steps: All answers in order, those of a resumed search first.
        resumed: Number of answers from a resumed search.
        unfinished: The culprit at which ``max_checks`` stopped the search before it was minimal; else None.
    """

    def __init__(
        self,
        cutter: Cutter,
        values: Values,
        check: Check,
        config: ReduceConfig,
        holds_for: Mapping[str, str],
        progress: Callable[[Step], None] | None,
        evaluate: Evaluate,
    ) -> None:
        """Begin with the answers of a replay. Answers depend on ``holds_for``; for the rest, see ``reduce``."""
        self.cutter = cutter
        self.everything = frozenset(range(len(cutter.parts)))
        self.answers: dict[Items, CheckOutcome] = {}
        self.steps: list[Step] = []
        self.unfinished: Items | None = None
        self._values = values
        self._check = check
        self._holds_for = holds_for
        self._lock = threading.Lock()
        self._config = config
        self._progress = progress
        self._stage = "whole"
        self._starts: list[Items] = []
        self._recalled: Items | None = None
        self._part_of = {index: part for part, members in enumerate(cutter.parts) for index in members}
        self._search = Search(self._fails, max_tests=config.max_checks, width=config.width, evaluate=evaluate)
        if config.load_replay is not None:
            self._recall(config.load_replay)
        self.resumed = len(self.steps)

    def nodes(self, parts: Iterable[int]) -> frozenset[int]:
        """Indices of the nodes in some parts."""
        return frozenset(index for part in parts for index in self.cutter.parts[part])

    def cut(self, parts: Items) -> SubModel:
        """The sub-model of some parts."""
        return self.cutter.cut(self.nodes(parts), self._values, freeze_branches=self._config.branches == "frozen")

    def _recall(self, path: str) -> None:
        for step, nodes in load_answers(path, self.cutter, self._holds_for):
            self.steps.append(step)
            self._know(self._parts(nodes), CheckOutcome(verdict=step.verdict, detail=step.detail))
        if self.steps:
            return
        failing, culprit = read_replay(path, self.cutter, self._config.mode)
        self._starts = [self._parts(nodes) for nodes in failing]
        if culprit is None or not culprit <= self._part_of.keys():
            return
        if culprit:
            self._recalled = self._parts(culprit)
        for parts in filter(None, (self.everything, self._recalled)):
            self._know(parts, CheckOutcome(verdict="fail" if culprit else "pass", detail="from the replay"))

    def check_whole(self) -> CheckOutcome:
        """Check the whole model. Exceptions of the check are raised."""
        self._search.holds(self.everything)
        return self.answers[self.everything]

    def culprit(self) -> Items:
        """A smallest failing set of parts, given that the whole model fails."""
        if self._recalled is not None:
            return self._recalled
        self._stage = "replay"
        try:
            return self._smallest(self._search.first(self._starts) or self.everything)
        except OutOfTestsError:
            log.warning("Stopped after %d checks; a smaller culprit may exist.", self._search.tests)
            failing = [parts for parts, answer in self.answers.items() if answer.verdict == "fail"]
            self.unfinished = min(failing, key=lambda parts: (len(self.nodes(parts)), sorted(parts)))
            return self.unfinished

    def _smallest(self, within: Items) -> Items:
        """One smallest failing set within a set that fails."""
        parts = sorted(within)
        if not self._config.reduce_inputs:
            return self._without_ends(frozenset(self._shortest_beginning(parts)))
        if not self._config.reduce_outputs:
            return self._without_ends(frozenset(self._shortest_end(parts)))
        self._stage = "halves"
        low, high = 0, len(parts)
        if self._config.mode == "bisect":
            low, high = self._search.halve(parts)
        elif single := self._search.first(frozenset([part]) for part in parts):
            return single
        found = self._shortest_end(self._shortest_beginning(parts[low:high]))
        self._stage = "nodes"
        smallest = frozenset(self._search.smallest(found))
        if len(smallest) == 1:
            return smallest
        # A long stretch can fail because of errors that add up along it, such as rounding, next to a smaller culprit.
        others = [self._smallest(frozenset(side)) for side in (parts[:low], parts[high:]) if self._search.holds(side)]
        return min([smallest, *others], key=len)

    def _shortest_beginning(self, parts: list[int]) -> list[int]:
        """The shortest beginning that fails, or only what its last part needs, if that fails too."""
        self._stage = "outputs"
        beginning = parts[: self._search.least(lambda length: parts[:length], len(parts), self._config.mode)]
        owner = {index: part for part in beginning for index in self.cutter.parts[part]}
        last = self.cutter.parts[beginning[-1]]
        needed = sorted({owner[i] for start in last for i in self.cutter.ancestors(start, owner)})
        return needed if len(needed) < len(beginning) and self._search.holds(needed) else beginning

    def _shortest_end(self, parts: list[int]) -> list[int]:
        """The shortest end that fails."""
        self._stage = "inputs"
        count = len(parts)
        return parts[count - self._search.least(lambda length: parts[count - length :], count, self._config.mode) :]

    def _without_ends(self, parts: Items) -> Items:
        """Leave out parts one by one at the end that may be reduced, the latest first, until none can be left out."""
        self._stage = "nodes"
        while True:
            members = [(part, index) for part in parts for index in self.cutter.parts[part]]
            maker = {name: part for part, index in members for name in self.cutter.makes(index)}
            needs = {(p, maker[n]) for p, index in members for n in self.cutter.reads(index) if maker.get(n, p) != p}
            inner = {needed if self._config.reduce_outputs else needing for needing, needed in needs}
            found = self._search.first(parts - {end} for end in sorted(parts - inner, reverse=True))
            if found is None:
                return parts
            parts = found

    def _fails(self, parts: Items) -> bool:
        """Check a sub-model and keep the answer. May run in any thread."""
        start = time.perf_counter()
        try:
            outcome = CheckOutcome.of(self._check(self.cut(parts)))
        except errors.ConfigError:
            raise
        except Exception as exc:  # of a part it is an error of another kind than the one searched for
            if parts == self.everything:
                raise
            outcome = CheckOutcome(verdict="error", detail=f"{type(exc).__name__}: {exc}")
        seconds = time.perf_counter() - start
        nodes = self.nodes(parts)
        with self._lock:
            step = Step(
                number=len(self.steps) + 1, stage=self._stage, nodes=as_ranges(nodes), nodes_left=len(nodes),
                verdict=outcome.verdict, seconds=seconds, detail=outcome.detail,
            )  # fmt: skip
            self.steps.append(step)
            if self._config.save_replay is not None:
                save_answers(self._config.save_replay, self.steps, self._holds_for)
        self.answers[parts] = outcome
        log.debug(
            "Check %d (%s): %d nodes, %s, %.3f s", step.number, step.stage, step.nodes_left, step.verdict, seconds
        )
        if self._progress is not None:
            self._progress(step)
        return outcome.verdict == "fail"

    def _know(self, parts: Items, outcome: CheckOutcome) -> None:
        self.answers[parts] = outcome
        self._search.known[parts] = outcome.verdict == "fail"

    def _parts(self, nodes: frozenset[int]) -> Items:
        return frozenset(self._part_of[index] for index in nodes)


def require_working_check(check: Check) -> None:
    """Raise an error if a check that has passed nothing also fails on a model of one node, which cannot be wrong.

    A check that cannot work here, for example because a module is missing, fails on the whole model and on each part of
    it. Without this control the search would end with an arbitrary node.

    Raises:
        ConfigError: If the check fails on the model of one node.
    """
    outcome = CheckOutcome(verdict="pass")
    for op in ("Identity", "Neg"):  # two, since a check may look for one operator
        # The names differ from those of the searched model, since a check may look for names.
        proto = onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["" : 17]> control (float[4] control_in) => (float[4] control_out) '
            f"{{ [control] control_out = {op}(control_in) }}"
        )
        cutter = Cutter(proto)
        values = observe(cutter, [{"control_in": np.linspace(-1, 1, 4, dtype=np.float32)}])
        try:
            outcome = CheckOutcome.of(check(cutter.cut(cutter.order, values)))
        except errors.ConfigError:
            raise
        except Exception as exc:  # not the kind of failure searched for
            log.info("The control was not evaluated: %s: %s", type(exc).__name__, exc)
            return
        finally:
            values.close()
        if outcome.verdict != "fail":
            return
    said = outcome.detail.strip()
    raise errors.ConfigError(
        "The check is broken: it fails on the model, on every part of it that was tried, and on a model of one "
        "Identity as well. Run it by hand on a model that is right, and correct it."
        + (f" Its output: {said}" if said else "")
    )
