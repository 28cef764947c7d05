"""Operators that pass the elements of their inputs on without computing with them, by their definitions in ONNX.

Each set names one property. Tensors that an operator only reads as shapes, axes or indices are not passed on.
"""

# The elements of the first input, each at the same position: converted to another type, or rounded to it.
CASTS = frozenset(("Cast", "CastLike"))
KEEP_PLACES = CASTS | {"DequantizeLinear", "Identity", "QuantizeLinear"}
# All elements of the first input in their order, possibly in another shape.
KEEP_ORDER = frozenset(("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"))
# All elements of the first input, and no others: the range of the values stays.
KEEP_RANGE = KEEP_ORDER | {"DepthToSpace", "Expand", "ReverseSequence", "SpaceToDepth", "Tile", "Transpose"}
# Elements of the first input, possibly not all.
FROM_FIRST_INPUT = KEEP_RANGE | {"Compress", "Gather", "GatherElements", "GatherND", "Slice", "Split"}
# Elements of the inputs.
PASS_ON = FROM_FIRST_INPUT | {"Concat"}
