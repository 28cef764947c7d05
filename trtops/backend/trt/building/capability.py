"""What TensorRT's ONNX parser says of a model's nodes. Needs no GPU."""

from __future__ import annotations

from dataclasses import dataclass

from trtops.backend.trt import library
from trtops.backend.trt.building.network import create_network, readable


@dataclass(frozen=True, kw_only=True)
class ParserAnswer:
    """What the parser answered.

    Attributes:
        supported: Whether it takes the whole model.
        subgraphs: Connected groups of nodes that it can parse, by their positions in the model's graph, and whether that
            is certain. It seldom is where the whole model is refused: ask again about the group as a model of its own.
            Nodes in no group are refused.
        said: Its messages about single nodes, by position.
    """

    supported: bool
    subgraphs: tuple[tuple[frozenset[int], bool], ...]
    said: dict[int, str]


def ask_parser(model: bytes) -> ParserAnswer:
    """Ask the parser about a model.

    Args:
        model: A serialized ONNX model, with its weights inside.

    Raises:
        BackendUnavailableError: If TensorRT is not installed.
    """
    trt = library.load()
    _, network = create_network()
    parser = trt.OnnxParser(network, library.get_trt_logger())
    with library.collect_log():
        supported, subgraphs = library.line().supported_subgraphs(parser, readable(model))
        found = [parser.get_error(index) for index in range(parser.num_errors)]
    return ParserAnswer(
        supported=supported,
        subgraphs=tuple((frozenset(map(int, nodes)), bool(certain)) for nodes, certain in subgraphs),
        said={int(error.node()): str(error.desc()).strip() for error in found},
    )
