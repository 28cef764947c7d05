"""Models as pictures: layout, page, and server."""

import contextlib
import re
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Callable

import pytest

from tests import models
from trtops import errors
from trtops.backend.onnx.summary import describe
from trtops.backend.trt.describe.inspector import EngineDescription, LayerDescription, TensorDescription
from trtops.comparator import RunResults
from trtops.metadata import TensorSpec
from trtops.ops.model import graph
from trtops.ops.model.inspect import data


@pytest.mark.parametrize("make", [models.identity, models.transformer, models.branch, models.loop, models.multi_output])
def test_nodes_are_below_their_inputs(make: Callable[[], models.Case]) -> None:
    found = graph.boxes(describe(make().proto))
    at = graph.places(found)

    maker = {tensor: index for index, box in enumerate(found) for tensor in box.outputs}
    for index, box in enumerate(found):
        assert all(at[maker[tensor]][1] < at[index][1] for tensor in box.inputs if tensor in maker)
    assert len(set(at)) == len(found)


def test_pages_are_self_contained_and_escaped() -> None:
    proto = models.model("(float[4] x) => (float[4] y) { t = Relu(x)\n y = Neg(t) }")
    proto.graph.node[0].name = "</title><i>&"

    page = graph.model_page(describe(proto), "<net>")
    assert "<i>&" not in page and "<script" not in page and "&lt;net&gt;" in page
    assert len(re.findall("<g id=n", page)) == 4 and len(re.findall("<path", page)) == 3
    assert "http" not in page and "src=" not in page


def test_pages_are_served_locally_until_interrupted() -> None:
    found: list[object] = []

    def visit(address: str) -> None:
        try:
            with urllib.request.urlopen(address) as answer:
                found.append(answer.read())
            for other in (f"{address}other", address.replace("127.0.0.1", "127.0.0.2")):
                try:
                    urllib.request.urlopen(other)
                except urllib.error.URLError as exc:
                    found.append(getattr(exc, "code", "no server"))
            try:
                graph.serve_page("", int(address.rstrip("/").rpartition(":")[2]), found.append)
            except errors.ConfigError as exc:
                found.append(str(exc))
        finally:
            signal.raise_signal(signal.SIGINT)  # as Ctrl-C does; Python hands it to the main thread

    visitors: list[threading.Thread] = []

    def ready(address: str) -> None:
        assert address.startswith("http://127.0.0.1:")
        visitors.append(threading.Thread(target=visit, args=(address,)))
        visitors[0].start()

    with contextlib.suppress(KeyboardInterrupt):
        graph.serve_page("<p>page</p>", 0, ready)
    visitors[0].join()
    assert found[:3] == [b"<p>page</p>", 404, "no server"]
    assert "cannot be used" in str(found[3])


def test_engines_are_drawn_with_tactics_and_statistics(tmp_path) -> None:
    x, t, y = (TensorDescription(name=name, dtype="fp16", shape=(4,)) for name in ("x", "t", "y"))
    layers = (
        LayerDescription(name="relu", op="PointWise", tactic="k1", inputs=(x,), outputs=(t,)),
        LayerDescription(name="neg", op="PointWise", inputs=(t,), outputs=(y,)),
    )
    ends = {"inputs": (TensorSpec("x", None, (4,)),), "outputs": (TensorSpec("y", None, (4,)),)}
    sizes = {"device_memory_bytes": 0, "weights_bytes": 0, "refittable": False}
    engine = EngineDescription(name="net", profiles=(), layers=layers, **ends, **sizes)

    found = graph.boxes(engine)
    assert [box.title for box in found] == ["input", "PointWise", "PointWise", "output"]
    assert "tactic: k1" in found[1].details

    results = RunResults()
    results.add([{"t": models.random(4), "elsewhere": models.random(2)}], runner_name="trt-runner-N0")
    results.save(str(tmp_path / "saved.json"))

    text = data.tensors_text(engine, tmp_path / "saved.json")
    assert text.count("t [dtype=float32, shape=(4,), mean=") == 2
    assert "x [not saved]" in text
    with pytest.raises(errors.ConfigError, match="does not exist"):
        data.tensors_text(engine, tmp_path / "nowhere.json")
