"""Which of a model's nodes TensorRT's ONNX parser supports. Needs no GPU."""

from dataclasses import dataclass

from trtops.backend.trt import library
from trtops.backend.trt.building.network import create_network, readable


@dataclass(frozen=True, kw_only=True)
class ParserAnswer:
    """The parser's answer."""

    supported: bool  # whether it supports the whole model
    # Connected groups of nodes that it can parse, by their positions in the model's graph, and whether this is
    # certain. It rarely is if the whole model is not supported: then ask about the group as a model of its own. Nodes
    # in no group are not supported.
    subgraphs: tuple[tuple[frozenset[int], bool], ...]
    messages: dict[int, str]  # messages about single nodes, by position


def ask_parser(model: bytes) -> ParserAnswer:
    """Ask the parser about a serialized ONNX model that contains its weights.

    Raises BackendUnavailableError if TensorRT is not installed.
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
        messages={int(error.node()): str(error.desc()).strip() for error in found},
    )
