"""What a reduction found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import onnx

from trtops import errors
from trtops.record import Record


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
class ReduceResult(Record):
    """What came out of a reduction.

    Attributes:
        verdict: ``bad`` if the model fails, and then there is a culprit; ``good`` if it does not fail in the way meant.
        culprits: What was found, in that order.
        nodes: Nodes in the whole model, Constants not counted.
        checks: Sub-models checked.
        resumed: Answers taken from the journal instead.
        seconds: Wall time.
        detail: How the whole model fails, or why it does not, in words.
        min_good: Where the passing sub-model is saved, if there is one and it was asked for.
    """

    verdict: Literal["good", "bad"]
    culprits: tuple[Culprit, ...] = ()
    nodes: int
    checks: int
    resumed: int = 0
    seconds: float
    detail: str = ""
    min_good: str | None = None
