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
from trtops.ops.search.delta import Evaluate, Items, OutOfTestsError, Search, Step

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
        inputs: Inputs of sub-models: ``real`` values as observed in the whole model, or ``declared`` types and shapes
            without data, for models that ONNX Runtime does not run.
        input_shapes: Shapes of dynamic inputs, by name, for random data; 1 for each dynamic dimension by default.
        width: Number of sub-models checked at the same time.
        output: File for the reduced model. Its inputs are saved next to it as ``<name>_inputs.json``.
        save_as: Where the weights of these models go.
        min_good: File for the passing sub-model that is closest in size to the culprit.
        load_replay: The debug replay of a search that was killed or interrupted. Its answers are not checked again.
        save_replay: File for a debug replay, written after each check.
    """

    mode: Literal["bisect", "linear"] = "bisect"
    max_checks: int | None = None
    reduce_outputs: bool = True
    reduce_inputs: bool = True
    inputs: Literal["real", "declared"] = "real"
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    width: int = 1
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
        for name in ("width", "max_checks", "iterations"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise errors.ConfigError(f"{name} is {value}; expected 1 or more.")


class Reduction:
    """One reduction under way.

    Attributes:
        everything: All parts of the model.
        search: The search for a set of parts that fails.
        unfinished: The culprit at which ``max_checks`` stopped the search before it was minimal; else None.
    """

    def __init__(
        self,
        cutter: Cutter,
        values: Values,
        check: Check,
        config: ReduceConfig,
        freeze: bool,
        progress: Callable[[Step], None] | None,
        evaluate: Evaluate,
    ) -> None:
        self.cutter = cutter
        self.everything = frozenset(range(len(cutter.parts)))
        self.unfinished: Items | None = None
        self._values = values
        self._check = check
        self._config = config
        self._freeze = freeze
        self.search = Search(
            self._check_part,
            holds_if="fail",
            max_tests=config.max_checks,
            width=config.width,
            evaluate=evaluate,
            size=lambda parts: len(self.nodes(parts)),
            progress=progress,
        )

    def nodes(self, parts: Iterable[int]) -> frozenset[int]:
        """Indices of the nodes in some parts."""
        return frozenset(index for part in parts for index in self.cutter.parts[part])

    def cut(self, parts: Items) -> SubModel:
        """The sub-model of some parts."""
        return self.cutter.cut(self.nodes(parts), self._values, freeze_branches=self._freeze)

    def _check_part(self, parts: Items) -> CheckOutcome:
        try:
            return CheckOutcome.of(self._check(self.cut(parts)))
        except errors.ConfigError:
            raise
        except Exception as exc:  # of a part it is an error of another kind than the one searched for
            if parts == self.everything:
                raise
            return CheckOutcome(verdict="error", detail=f"{type(exc).__name__}: {exc}")

    def culprit(self) -> Items:
        """A smallest failing set of parts, given that the whole model fails."""
        try:
            return self._smallest(self.everything)
        except OutOfTestsError:
            log.warning("Stopped after %d checks; a smaller culprit may exist.", self.search.tests)
            self.unfinished = self.search.smallest_so_far()
            return self.unfinished

    def _smallest(self, within: Items) -> Items:
        """One smallest failing set within a set that fails."""
        parts = sorted(within)
        if not self._config.reduce_inputs:
            return self._without_ends(frozenset(self._shortest_beginning(parts)))
        if not self._config.reduce_outputs:
            return self._without_ends(frozenset(self._shortest_end(parts)))
        self.search.stage = "halves"
        low, high = 0, len(parts)
        if self._config.mode == "bisect":
            low, high = self.search.halve(parts)
        elif single := self.search.first(frozenset([part]) for part in parts):
            return single
        found = self._shortest_end(self._shortest_beginning(parts[low:high]))
        self.search.stage = "nodes"
        smallest = frozenset(self.search.smallest(found))
        if len(smallest) == 1:
            return smallest
        # A long stretch can fail because of errors that add up along it, such as rounding, next to a smaller culprit.
        others = [self._smallest(frozenset(side)) for side in (parts[:low], parts[high:]) if self.search.holds(side)]
        return min([smallest, *others], key=len)

    def _shortest_beginning(self, parts: list[int]) -> list[int]:
        """The shortest beginning that fails, or only what its last part needs, if that fails too."""
        self.search.stage = "outputs"
        beginning = parts[: self.search.least(lambda length: parts[:length], len(parts), self._config.mode)]
        owner = {index: part for part in beginning for index in self.cutter.parts[part]}
        last = self.cutter.parts[beginning[-1]]
        needed = sorted({owner[i] for start in last for i in self.cutter.ancestors(start, owner)})
        return needed if len(needed) < len(beginning) and self.search.holds(needed) else beginning

    def _shortest_end(self, parts: list[int]) -> list[int]:
        """The shortest end that fails."""
        self.search.stage = "inputs"
        count = len(parts)
        return parts[count - self.search.least(lambda length: parts[count - length :], count, self._config.mode) :]

    def _without_ends(self, parts: Items) -> Items:
        """Leave out parts one by one at the end that may be reduced, the latest first, until none can be left out."""
        self.search.stage = "nodes"
        while True:
            members = [(part, index) for part in parts for index in self.cutter.parts[part]]
            maker = {name: part for part, index in members for name in self.cutter.makes(index)}
            needs = {(p, maker[n]) for p, index in members for n in self.cutter.reads(index) if maker.get(n, p) != p}
            inner = {needed if self._config.reduce_outputs else needing for needing, needed in needs}
            found = self.search.first(parts - {end} for end in sorted(parts - inner, reverse=True))
            if found is None:
                return parts
            parts = found


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
