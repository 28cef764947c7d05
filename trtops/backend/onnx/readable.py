"""Which values a model can read: ids of rows that its embeddings have, words that it knows, masks that hide nothing.

Numbers between 0 and 1 are as good as any for most inputs. An integer that picks rows out of a table is not: made-up data
should pick from all of it, and from nothing beyond it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trtops.backend.onnx import walk
from trtops.backend.onnx.constants import constant_tensors

if TYPE_CHECKING:
    import onnx

_PASSING = frozenset(
    {"Cast", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze"}
)
"""What they make are values of their first input, in other places."""

_VOCABULARIES = {
    "CategoryMapper": "cats_strings",
    "LabelEncoder": "keys_strings",
    "OneHotEncoder": "cats_strings",
    "TfIdfVectorizer": "pool_strings",
}
_LETS_THROUGH = "attention_mask"
_SOME_WORDS = ("one", "two", "three")


@dataclass(frozen=True)
class ReadableValues:
    """What may be made up for a model's inputs.

    Attributes:
        ranges: Smallest and largest number, both included, by input.
        words: Strings, by input; every input of strings has some.
    """

    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    words: dict[str, tuple[str, ...]] = field(default_factory=dict)


def readable_values(model: onnx.ModelProto) -> ReadableValues:
    """What a model can read, as far as its main graph says.

    Args:
        model: The model; large weights may be missing, as long as their shapes are there.
    """
    constants = constant_tensors(model.graph)
    found = ReadableValues()
    source = {value.name: value.name for value in model.graph.input if value.name not in constants}
    for value in model.graph.input:
        kind = value.type.tensor_type.elem_type
        if value.name in source and kind == 8:  # TensorProto.STRING
            found.words[value.name] = _SOME_WORDS
        elif value.name in source and value.name.endswith(_LETS_THROUGH) and kind in (6, 7, 9):  # INT32, INT64, BOOL
            found.ranges[value.name] = (1, 1)
    for index in walk.execution_order(model.graph.node):
        node = model.graph.node[index]
        if not node.input or not node.output:
            continue
        if node.op_type in _PASSING and node.input[0] in source:
            source[node.output[0]] = source[node.input[0]]
        for tensor, rows in _rows_read(node, constants):
            if tensor in source:
                known = found.ranges.get(source[tensor], (0, rows - 1))
                found.ranges[source[tensor]] = (0, min(known[1], rows - 1))
        words = _vocabulary(node)
        if words and node.input[0] in source:
            found.words[source[node.input[0]]] = words
    return found


def _rows_read(node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]) -> Iterator[tuple[str, int]]:
    """The tensor of ids that a node reads, and how many rows there are to choose from; nothing for other nodes."""
    if walk.is_onnx_op(node, "Gather") and len(node.input) > 1 and node.input[0] in constants:
        dims = constants[node.input[0]].dims
        axis = walk.int_attribute(node, "axis", 0)
        if -len(dims) <= axis < len(dims) and dims[axis] > 0:
            yield node.input[1], dims[axis]


def _vocabulary(node: onnx.NodeProto) -> tuple[str, ...]:
    """The words that a node knows; none if it knows no words."""
    wanted = _VOCABULARIES.get(node.op_type)
    strings = [text for attribute in node.attribute if attribute.name == wanted for text in attribute.strings]
    return tuple(text.decode("utf-8", "replace") for text in strings)
