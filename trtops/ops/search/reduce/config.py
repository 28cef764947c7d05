"""How a model is reduced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from trtops import errors
from trtops.ops.evaluation.feeds import DataConfig
from trtops.ops.model.saving import SaveConfig


@dataclass(frozen=True, kw_only=True)
class ReduceConfig(DataConfig):
    """How a model is reduced, and on what data the whole of it is run.

    Attributes:
        mode: How all stages but the last search: ``bisect`` asks about ``log2(nodes)`` sub-models each; ``linear`` asks
            about one after the other from the smallest, and so also finds what fails only now and then.
        find: Stop at the first culprit, or find every one, also where they share nodes.
        max_culprits: Where ``find="all"`` stops.
        max_checks: Where the search stops with the smallest failing sub-model so far; None never does.
        reduce_outputs: Whether nodes may be cut off at the end. Without it the model's outputs stay, and the *inputs* stage
            is the only one.
        reduce_inputs: Whether nodes may be cut off at the beginning; likewise.
        inputs: What flows into sub-models: ``real`` values, as observed in the whole model, or ``random`` numbers. Or
            ``declared``, for models that ONNX Runtime does not run: no data at all, and types and shapes as the model
            declares them or as they can be inferred; the check must do without data.
        branches: What becomes of tensors that other branches bring into a sub-model: weights with the values they have for
            the data (``frozen``; where feeds differ in them, inputs all the same), or further inputs (``inputs``). Unless
            given they are frozen where data is given, as Polygraphy does it, and else inputs.
        input_shapes: Shapes of inputs with dynamic dimensions, by name, for random data; 1 for each such dimension
            unless given.
        width: How many sub-models to check at a time.
        memory_limit_bytes: How much of the observed values to keep in memory; the rest goes to temporary files.
        output: Where to save the reduced model; the inputs it fails with go beside it, as ``<name>_inputs.json``.
            Further culprits get ``_2`` and so on behind the name.
        save_as: Where the weights of these models go; beside others than the first, in files of their names.
        min_good: Where to save the passing sub-model that is closest in size to the culprit.
        journal: Where answers are kept, so that a reduction that was killed can resume. Unless given they are kept beside
            ``output``, as ``<name>_journal.jsonl``, until the reduction ends: name that file here to resume.
        after_crash: What a sub-model counts as whose check did not end because the process died: ask again, or take it
            for failing or passing.
        load_replay: A debug replay, of trtops or Polygraphy. If it answers every question, nothing is checked; else the
            smallest sub-model that failed there is tried first.
        save_replay: Where to write such a file: with it Polygraphy retraces this result without checking anything.
    """

    mode: Literal["bisect", "linear"] = "bisect"
    find: Literal["first", "all"] = "first"
    max_culprits: int = 100
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
    journal: str | None = None
    after_crash: Literal["retry", "fail", "pass"] = "retry"
    load_replay: str | None = None
    save_replay: str | None = None

    def __post_init__(self) -> None:
        if not (self.reduce_outputs or self.reduce_inputs):
            raise errors.ConfigError(
                "Neither outputs nor inputs may be reduced: nothing is left to do. Allow one of them."
            )
        if self.branches == "frozen" and self.inputs != "real":
            raise errors.ConfigError(
                f"Branches can be frozen at real values only; found inputs={self.inputs!r}. Leave one of the two out."
            )
        for name in ("width", "max_culprits", "max_checks", "iterations"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise errors.ConfigError(f"{name} is {value}; expected 1 or more.")
