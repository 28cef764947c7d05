"""Rules for choosing the inputs of nodes to quantize for TensorRT, and their application to a graph.

The rules are those of NVIDIA's Model-Optimizer 0.47. TensorRT fuses a *chain*: a convolution or matrix product with the
element-wise and moving nodes that read only its result. A Q/DQ pair inside a chain would split it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

import onnx

from trtops.backend.onnx import walk
from trtops.calibration.quantization import OP_TYPES

EightBits: TypeAlias = Literal["int8", "fp8"]


# Rules exclude products, add inputs of other nodes, or join scales. Model-Optimizer has them in
# ``modelopt/onnx/quantization``: graph_utils.py (``find_nodes_from_*_to_exclude`` and others) and partitioning.py.
RULES = {
    "attention": "excludes: there is no fused 8-bit attention with a computed mask added to the unscaled product, over "
    "512 positions (INT8), or with heads below 9 or above 256 (FP8)",
    "gemv": "excludes: a product with one row or column does not use Tensor Cores",
    "small_matmul": "excludes: Tensor Cores need 16 columns and 16 summands",
    "computed_kernel": "excludes: the kernel of the convolution is not constant",
    "few_channels": "excludes: no 8-bit kernel is efficient below 16 channels, with INT8 exceptions",
    "large_kernel": "excludes: FP8 kernels take at most 32 positions",
    "residual_add": "adds: the sum is fused into the product before it, and reads its other operand in 8 bits",
    "pointwise": "adds: a sum or product of computed tensors reads the result of a chain in 8 bits",
    "layer_norm": "adds: the chain before the normalization writes 8 bits (INT8)",
    "pool": "adds: pooling next to a quantized node moves 8 bits (INT8)",
    "resize": "adds: resizing the result of a chain moves 8 bits (INT8)",
    "concat": "joins: quantized inputs and output of Concat have one scale, so that nothing is quantized again",
}

_MOVING_OPS = frozenset((
    "Concat", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Reshape", "Slice", "Split", "Squeeze",
    "Tile", "Transpose", "Unsqueeze",
))  # fmt: skip
_POINTWISE = frozenset((
    "Abs", "Add", "Cast", "Ceil", "Cos", "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu", "Greater", "LeakyRelu",
    "Less", "Log", "Max", "Min", "Mul", "Neg", "Pow", "Round", "Sigmoid", "Sign", "Sin", "Softmax", "Softplus", "Sqrt",
    "Sub", "Tanh",
))  # fmt: skip
_AFTER_CONVOLUTIONS = frozenset({"BatchNormalization", "Relu"})
_BEFORE_POINTWISE = frozenset({"AveragePool", "BatchNormalization", "GlobalAveragePool", "MaxPool", "Mul"})
_POOLS = frozenset({"AveragePool", "GlobalAveragePool", "MaxPool"})
_IN_ATTENTION = frozenset({"Add", "Cast", "Div", "Flatten", "Mul", "Reshape", "Transpose"})
_LONGEST_ATTENTION = 512
_HEADS_IN_FP8 = range(9, 257)
_MIN_CHANNELS = 16  # channels, columns or summands
_LARGEST_FP8_KERNEL = 32


class Placement:
    """The nodes of a graph to quantize.

    Attributes:
        nodes: All nodes in order of execution.
        activations: Nodes to quantize, by index, with the positions of the inputs that are activations.
        excluded: Names of the products that a rule excludes, by rule.
        one_scale: Groups of tensors with a common scale.
    """

    def __init__(
        self,
        graph: onnx.GraphProto,
        products: Mapping[str, tuple[int, ...]],
        sizes: Mapping[str, Sequence[int]],
        constants: Collection[str],
        rules: Collection[str],
        precision: EightBits,
        fp32_names: Collection[str],
    ) -> None:
        """Apply rules, by name, to a graph.

        ``products`` are the activations of the products that may be quantized, by first output; ``fp32_names`` are
        names and outputs of nodes to leave. ``sizes`` are shapes of tensors; no rule applies to a dimension of 0 or
        omitted.
        """
        self.sizes, self.constants, self.rules, self.precision = sizes, constants, rules, precision
        self.inputs = walk.names_of(graph.input)
        self.nodes = nodes = walk.in_order(graph.node)
        self.activations: dict[int, tuple[int, ...]] = {}
        self.excluded: dict[str, list[str]] = {}
        self.one_scale: list[frozenset[str]] = []
        chosen, fp32_names = self.activations, frozenset(fp32_names)
        self.maker = walk.makers(nodes)
        self.readers = walk.readers(node for node in nodes if node.output)
        # Tensors of chains, with the number of the chain. Those that begin with another node have negative numbers.
        self.chains: dict[str, int] = {}
        self.ended: set[str] = set()  # results of residual sums: nothing that reads them belongs to their chain
        attention = self._attention()
        for index, node in enumerate(nodes):
            if not node.output:
                continue
            if node.output[0] in products:
                rule = next(self._against(node, node.output[0] in attention), None)
                if rule is None:
                    chosen[index] = products[node.output[0]]
                    self.chains.update(dict.fromkeys(node.output, index + 1))
                else:
                    self.excluded.setdefault(rule, []).append(walk.node_name(node))
            elif (
                walk.is_onnx_op(node) and not fp32_names & {node.name, *node.output} and node.output[0] not in attention
            ):
                self._add_node(index, node)
        outputs = walk.names_of(graph.output)
        for index, node in enumerate(nodes):
            in_chain = node.op_type in OP_TYPES or not self.ended.isdisjoint(node.output)
            if not in_chain and outputs.intersection(node.output):
                chosen.pop(index, None)
        quantized = set(walk.produced(map(nodes.__getitem__, chosen)))
        if "pool" in rules and precision == "int8":
            for index, node in enumerate(nodes):
                eligible = (
                    node.output and node.output[0] not in self.chains and not fp32_names & {node.name, *node.output}
                )
                if eligible and node.op_type in _POOLS and self._is_near(node, quantized):
                    chosen[index] = (0,)
        if "concat" in rules:
            self._join_scales()

    def _add_node(self, index: int, node: onnx.NodeProto) -> None:
        """Add a node other than a product to the chain it reads, or choose inputs to quantize."""
        dynamic = [i for i, name in enumerate(node.input) if name and name not in self.constants]
        chains = {self.chains.get(node.input[i], 0) for i in dynamic if node.input[i] not in self.ended} or {0}
        [first, *other_chains] = chains
        main = self._main_input(node) if node.op_type == "Add" and len(dynamic) == 2 else None
        if main is not None and self.chains.get(node.input[main], 0) > 0 and node.input[main] not in self.ended:
            if "residual_add" in self.rules:
                self.activations[index] = (1 - main,)
            self.chains[node.output[0]] = self.chains[node.input[main]]
            self.ended.add(node.output[0])
            return
        unary = node.op_type in _MOVING_OPS | _POINTWISE or (
            node.op_type in _AFTER_CONVOLUTIONS and self._backbone(node.input[0]) is not None
        )
        if unary and first and not other_chains and all(node.input[i] not in self.ended for i in dynamic):
            self.chains.update(dict.fromkeys(node.output, first))
            return
        if node.op_type in _POINTWISE:
            self.chains.update(dict.fromkeys(node.output, -index - 1))
        if node.op_type == "Add" or (node.op_type == "Mul" and self.precision == "int8"):
            if "pointwise" in self.rules and len(dynamic) == len(node.input):
                self._add_pointwise(index, node)
        elif self.precision == "int8" and dynamic[:1] == [0] and self._follows_chain(node.input[0]):
            rule = {"LayerNormalization": "layer_norm", "Resize": "resize", "Upsample": "resize"}.get(node.op_type)
            if rule in self.rules:
                self.activations[index] = (0,)

    def _add_pointwise(self, index: int, node: onnx.NodeProto) -> None:
        behind = {reader.op_type for reader in self._readers_behind(node.output[0], {"Flatten", "Reshape"})}
        if node.op_type == "Add" and "Softmax" in behind:  # a mask
            return
        makers: list[str] = []
        positions: set[int] = set()
        for i, name in enumerate(node.input):
            makers.append(self.maker[name].op_type if name in self.maker else "")
            if self._follows_chain(name) or makers[i] in _BEFORE_POINTWISE:
                positions.add(i)
        if not positions and (node.op_type != "Mul" or {"Sigmoid", "HardSigmoid"}.isdisjoint(makers)):
            return
        heads = {self.nodes[index].output[0] for index in self.activations}
        for i, name in enumerate(node.input):
            if node.op_type == "Mul" or any(other.output[0] in heads for other in self.readers[name]):
                positions.add(i)
        self.activations[index] = tuple(sorted(positions))

    def _against(self, node: onnx.NodeProto, in_attention: bool) -> Iterator[str]:
        """Return the names of the rules excluding a product."""
        exclusions = []
        if in_attention:
            exclusions.append("attention")
        if node.op_type in ("Gemm", "MatMul"):
            out, weight = self.sizes.get(node.output[0], ()), self.sizes.get(node.input[1], ())
            dynamic = self._is_dynamic(node)
            if 1 in out[-2:] if dynamic else len(out) < 3 and 1 in out:
                exclusions.append("gemv")
            summands, columns = weight[-2:] if len(weight) > 1 else (0, 0)
            if walk.int_attribute(node, "transB", 0):
                summands, columns = columns, summands
            if 0 < columns < _MIN_CHANNELS or 0 < summands < _MIN_CHANNELS:
                exclusions.append("small_matmul")
        elif node.op_type == "Conv":
            if node.input[1] not in self.constants:
                exclusions.append("computed_kernel")
            else:
                channels = self.sizes[node.input[1]]
                if not self._has_kernel(node, *channels[:2]):
                    exclusions.append("few_channels")
                if self.precision == "fp8" and math.prod(channels[2:]) > _LARGEST_FP8_KERNEL:
                    exclusions.append("large_kernel")
        return filter(self.rules.__contains__, exclusions)

    def _has_kernel(self, node: onnx.NodeProto, outputs: int, inputs: int) -> bool:
        """Whether a convolution has channels for an 8-bit kernel; ``inputs`` are those of a group."""
        if min(outputs, inputs) > _MIN_CHANNELS or (min(outputs, inputs) == _MIN_CHANNELS and self.precision == "int8"):
            return True
        if self.precision == "fp8":
            return False
        kernel = walk.ints_attribute(node, "kernel_shape") or self.sizes[node.input[1]][2:]
        if walk.int_attribute(node, "group", 1) > 1:
            return outputs % 8 == 0 and min(kernel) >= 3
        enough = max(outputs, inputs) >= _MIN_CHANNELS or node.input[0] in self.inputs
        return enough and (outputs % 8 == 0 or inputs % 8 == 0) and len(set(kernel)) == 1

    def _attention(self) -> set[str]:
        """Return the outputs of nodes in unquantized attention, from the first product to the second."""
        outputs: set[str] = set()
        for softmax in self.nodes:
            if softmax.op_type != "Softmax" or "attention" not in self.rules:
                continue
            first = self._product_before(softmax.input[0])
            second = [n for n in self._readers_behind(softmax.output[0], _IN_ATTENTION) if n.op_type == "MatMul"]
            if first is None or not second:
                continue
            rows, columns = [0, 0, *self.sizes.get(first.input[1], ())][-2:]
            add = self.maker.get(softmax.input[0])
            masked = add is not None and add.op_type == "Add" and self._is_dynamic(add)
            if masked and first.output[0] in add.input and second[0].input[0] == softmax.output[0]:  # type: ignore[union-attr]
                outputs |= {first.output[0], softmax.input[0], softmax.output[0], second[0].output[0]}
            elif columns > _LONGEST_ATTENTION if self.precision == "int8" else rows and rows not in _HEADS_IN_FP8:
                outputs |= {first.output[0], second[0].output[0]}
        return outputs

    def _is_dynamic(self, node: onnx.NodeProto) -> bool:
        return not any(map(self.constants.__contains__, node.input))

    def _product_before(self, name: str) -> onnx.NodeProto | None:
        waiting, seen = [name], {name}
        while waiting:
            node = self.maker.get(waiting.pop())
            if node is not None and node.op_type == "MatMul" and self._is_dynamic(node):
                return node
            if node is not None and node.op_type in _IN_ATTENTION:
                waiting += [name for name in node.input if name not in seen]
                seen.update(node.input)
        return None

    def _readers_behind(self, name: str, passed: Collection[str]) -> Iterator[onnx.NodeProto]:
        """Yield the readers of a tensor, also behind nodes of the given types."""
        waiting, seen = [name], {name}
        while waiting:
            for node in self.readers.get(waiting.pop(), ()):
                if node.op_type not in passed:
                    yield node
                elif seen.isdisjoint(node.output):
                    waiting += node.output
                    seen.update(node.output)

    def _backbone(self, name: str) -> onnx.NodeProto | None:
        """Return the convolution before a tensor, with only fusible nodes between."""
        while (node := self.maker.get(name)) is not None and node.op_type not in ("Conv", "ConvTranspose"):
            dynamic = [tensor for tensor in node.input if tensor and tensor not in self.constants]
            gates = []
            if node.op_type == "Mul" and len(dynamic) == 2:
                gates = [s for s in map(self.maker.get, dynamic) if s is not None and s.op_type == "Sigmoid"]
            if gates and gates[0].input[0] in dynamic:  # swish
                name = gates[0].input[0]
            elif len(dynamic) == 1 and node.op_type in _MOVING_OPS | _AFTER_CONVOLUTIONS | {"Add", "Mul"}:
                name = dynamic[0]
            else:
                return None
        return node

    def _main_input(self, node: onnx.NodeProto) -> int | None:
        """Which input of a sum the convolution before it is fused with; None if it is not residual."""
        if not self.maker.keys() >= set(node.input):
            return None
        left_conv, right_conv = map(self._backbone, node.input)
        if left_conv is None and right_conv is None:
            return None
        left_distances, right_distances = map(self._distances, node.input)
        near = min(left_distances.keys() & right_distances.keys(), key=lambda name: left_distances[name], default=None)
        if left_conv is not None and right_conv is not None:
            if left_conv.output[0] == right_conv.output[0]:
                return None
            return 0 if near is not None and left_distances[near] > right_distances[near] else 1
        main = 0 if left_conv is not None else 1
        return None if near in walk.makers(filter(None, (left_conv, right_conv))) else main

    def _distances(self, name: str) -> dict[str, int]:
        """Return the distance from a tensor's maker to each node before it, by the node's first output."""
        distances, waiting = {self.maker[name].output[0]: 0}, [self.maker[name]]
        for node in waiting:
            for source in map(self.maker.get, node.input):
                if source is not None and source.output[0] not in distances:
                    distances[source.output[0]] = distances[node.output[0]] + 1
                    waiting.append(source)
        return distances

    def _follows_chain(self, name: str) -> bool:
        """Whether a tensor is the result of a chain, or was moved from such results."""
        if self.chains.get(name, 0) > 0:
            return True
        node = self.maker.get(name)
        if node is None or node.op_type not in _MOVING_OPS:
            return False
        dynamic = list(filter(self.maker.__contains__, node.input))
        return bool(dynamic) and all(map(self._follows_chain, dynamic))

    def _is_near(self, node: onnx.NodeProto, quantized: Collection[str]) -> bool:
        """Whether a quantized node reads a node's result, or makes its input, perhaps moved."""
        if any(reader.output[0] in quantized for reader in self._readers_behind(node.output[0], _MOVING_OPS)):
            return True
        source = self.maker.get(node.input[0])
        while source is not None and source.op_type in _MOVING_OPS | {"Cast"} and source.output[0] not in quantized:
            source = self.maker.get(source.input[0])
        return source is not None and source.output[0] in quantized

    def _join_scales(self) -> None:
        chosen = self.activations
        read: set[str] = set()
        for index, positions in chosen.items():
            read.update(self.nodes[index].input[i] for i in positions)
        for node in self.nodes:
            if node.op_type == "Concat" and node.output[0] in read and (inputs := read.intersection(node.input)):
                group = frozenset((*inputs, node.output[0]))
                apart = []
                for joined in self.one_scale:
                    if joined & group:
                        group |= joined
                    else:
                        apart.append(joined)
                self.one_scale = [*apart, group]
