"""What a reduction found."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import onnx

from trtops import errors
from trtops.ops.evaluation.submodel import CheckVerdict
from trtops.ops.result import OpResult
from trtops.record import Record
from trtops.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class CulpritNode(Record):
    """One node of a culprit.

    Attributes:
        index: Its place in the whole model's ``graph.node``.
        name: Its name; may be empty.
        op: Its operator.
        outputs: Names of the tensors it makes.
    """

    index: int
    name: str
    op: str
    outputs: tuple[str, ...]

    @classmethod
    def of(cls, node: onnx.NodeProto, index: int) -> CulpritNode:
        """A node of the whole model, by its place in ``graph.node``."""
        return cls(index=index, name=node.name, op=node.op_type, outputs=tuple(node.output))


@dataclass(frozen=True, kw_only=True)
class Culprit(Record):
    """A smallest sub-model that fails.

    Attributes:
        nodes: Its nodes, in the model's order.
        minimal: Whether it was checked that no single node can be left out: always, unless ``max_checks`` ended the search.
            Where only outputs or only inputs are reduced, of nodes at the end or at the beginning only.
        detail: How it fails, in words.
        path: Where it is saved, if it was.
        inputs_path: Where the inputs are saved that it fails with, if they were.
    """

    nodes: tuple[CulpritNode, ...]
    minimal: bool = True
    detail: str = ""
    path: str | None = None
    inputs_path: str | None = None
    _proto: Any = field(default=None, repr=False, compare=False)

    @property
    def model(self) -> onnx.ModelProto:
        """The sub-model.

        Raises:
            ConfigError: If this was read from a file; then :attr:`path` may lead to it.
        """
        if self._proto is None:
            raise errors.ConfigError(
                f"This culprit was read from a file, without its model. Its path was {self.path!r}."
            )
        proto: onnx.ModelProto = self._proto
        return proto

    @property
    def labels(self) -> tuple[str, ...]:
        """Its nodes as messages name them."""
        return tuple(f"{n.op} {n.name or next(filter(None, n.outputs), '')!r}" for n in self.nodes)


@dataclass(frozen=True, kw_only=True)
class ReduceResult(OpResult):
    """What came out of a reduction.

    Attributes:
        verdict: ``bad`` if the model fails, and then there is a culprit; ``good`` if it does not fail in the way meant.
        whole: The check's verdict on the whole model; ``error`` if it fails in another way than the one that is hunted.
        culprits: What was found, in that order.
        nodes: Nodes in the whole model, Constants not counted.
        checks: Sub-models checked.
        resumed: Answers taken from the journal instead.
        seconds: Wall time.
        detail: How the whole model fails, or why it does not, in words.
        min_good: Where the passing sub-model is saved, if there is one and it was asked for.
    """

    verdict: Verdict
    whole: CheckVerdict = "pass"
    culprits: tuple[Culprit, ...] = ()
    nodes: int
    checks: int
    resumed: int = 0
    seconds: float
    detail: str = ""
    min_good: str | None = None

    @property
    def next_step(self) -> str:
        """Look at the part that fails, where it was saved."""
        path = next((culprit.path for culprit in self.culprits if culprit.path), None)
        shown = self.run_id and path
        return f"trtops inspect model {shlex.quote(str(path))} --show layers" if shown else super().next_step

    def body(self) -> Iterator[str]:
        """How many checks it took, and the nodes of each culprit."""
        yield f"{self.checks} checks in {self.seconds:.1f} s. {self.detail}"
        for culprit in self.culprits:
            yield from ("", f"{len(culprit.nodes)} nodes{f', in `{culprit.path}`' if culprit.path else ''}:", "")
            yield from (f"- {label}" for label in culprit.labels)

    def text(self) -> str:
        """The result for a terminal."""
        if self.whole == "error":
            return f"The whole model fails in another way than the one that is hunted: {self.detail}"
        if not self.culprits:
            return "The model does not fail."
        lines = []
        for culprit in self.culprits:
            lines.append(f"{len(culprit.nodes)} of {self.nodes} nodes still fail: {', '.join(culprit.labels)}")
            if culprit.detail:
                lines.append(f"  {culprit.detail.rstrip()}")
            if culprit.path is not None:
                lines.append(f"  saved to {culprit.path}, the inputs it fails with to {culprit.inputs_path}")
        return "\n".join([*lines, f"{self.checks} checks in {self.seconds:.1f} s"])
