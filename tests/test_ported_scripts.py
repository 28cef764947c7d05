"""Idioms of scripts written for Polygraphy give the same with the import renamed."""

import copy
import importlib
import json
import tempfile
from operator import add
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest

from tests import models

pytestmark = pytest.mark.parity
pytest.importorskip("polygraphy")


class Library:
    """Modules of Polygraphy, or of trtops under the same paths: ``lib["backend.onnx"]``."""

    def __init__(self, root: str, model: str) -> None:
        self.root, self.model = root, model

    def __getitem__(self, path: str) -> ModuleType:
        return importlib.import_module(f"{self.root}.{path}")


def overridden_loaders(lib: Library) -> Any:
    """Names of the nodes, op types and outputs after loaders with an overridden ``call_impl``."""
    onnx_loaders, base = lib["backend.onnx"], lib["backend.base"]

    class Renamed(onnx_loaders.OnnxFromPath):
        def __init__(self, path, name):
            super().__init__(path)
            self.name = name

        def call_impl(self):
            model = super().call_impl()
            model.graph.name = self.name
            return model

    class Serialized(onnx_loaders.BytesFromOnnx):
        def call_impl(self):
            return super().call_impl()[:0] + b"changed"

    class Folded(onnx_loaders.FoldConstants):
        def call_impl(self):
            model = super().call_impl()
            model.graph.doc_string = "folded"
            return model

    class Twice(base.BaseLoader):
        def __init__(self, number):
            self.number = number

        def call_impl(self, more=0):
            return 2 * self.number + more

    renamed = Renamed(lib.model, "mine")
    folded = Folded(renamed)
    return (
        renamed().graph.name, isinstance(renamed, base.BaseLoader), Serialized(renamed)(), folded().graph.doc_string,
        folded().graph.name, Twice(3)(), Twice(3)(more=1), onnx_loaders.OnnxFromPath(lib.model).call_impl().ir_version,
    )  # fmt: skip


def overridden_runners(lib: Library) -> Any:
    """What runners with overridden methods return and call, and the arguments that ``infer`` passes on."""
    onnxrt, base, common = lib["backend.onnxrt"], lib["backend.base"], lib["common"]
    calls = []

    class Doubled(onnxrt.OnnxrtRunner):
        def activate_impl(self):
            super().activate_impl()
            calls.append([node.name for node in self.sess.get_inputs()])

        def infer_impl(self, feed_dict, factor=2):
            outputs = super().infer_impl(feed_dict)
            return {name: factor * value for name, value in outputs.items()}

        def deactivate_impl(self):
            calls.append("deactivated")
            super().deactivate_impl()

    class Constant(base.BaseRunner):
        def get_input_metadata_impl(self):
            return common.TensorMetadata().add("x", np.float32, (2,))

        def infer_impl(self, feed_dict):
            self.inference_time = 0.5
            return {"y": feed_dict["x"] + 1}

    with Doubled(onnxrt.SessionFromOnnx(lib["backend.onnx"].BytesFromOnnx(onnx.load(lib.model)))) as runner:
        feed = {name: np.ones([1, 1, 2, 2], np.float32) for name in runner.get_input_metadata()}
        found = [float(next(iter(runner.infer(feed, True, *more).values())).sum()) for more in ((), (4,))]
    calls.append(round(found[1] / found[0], 3))
    with Constant("mine") as runner:
        outputs = runner.infer({"x": np.zeros(2, np.float32)})["y"].tolist()
        return calls, outputs, runner.last_inference_time(), runner.name


def changed_shapes(lib: Library) -> Any:
    """Shapes of metadata, compared with lists, changed in place, joined, copied and printed."""
    session = lib["backend.onnxrt"].SessionFromOnnx(lib["backend.onnx"].BytesFromOnnx(onnx.load(lib.model)))()
    with lib["backend.onnxrt"].OnnxrtRunner(session) as runner:
        metadata = runner.get_input_metadata(use_numpy_dtypes=False)
        shape = metadata["x"].shape
        found = [shape == node.shape for node in session.get_inputs()]
    shape[0] = 8
    shape[2:] = [5, -1]
    metadata.add("y", np.int32, ("n", None, 3), min_shape=(1, 1, 3), max_shape=(4, 4, 3))
    bounded = metadata["y"].shape
    metadata["y"].shape = bounded
    other = copy.deepcopy(metadata)
    other["y"].shape.append(2)
    return (
        found, list(shape), add([4], shape[1:]), add(shape[1:], [4]), shape[:1] + list(bounded), shape == [8, 1, 5, -1],
        shape != [8, 1, 5, -1], shape == [1], shape.index(5), isinstance(shape, list), bounded.min, bounded.max,
        repr(bounded), str(metadata), metadata["y"] == other["y"], list(other["y"].shape), np.zeros(shape[:3]).shape,
        json.dumps(shape), sorted([shape, bounded], key=len)[0] is bounded, [*reversed(bounded)],
    )  # fmt: skip


def loaded_results(lib: Library) -> Any:
    """Verdicts and pairs of results with one runner name, and results read back from the file they were saved to."""
    structures = lib["comparator"]
    parts = []
    for value in (1, 1, 2):
        results = structures.RunResults()
        results.add([{"y": np.full(3, value, np.float32)}], runner_name="onnxrt-runner-N0")
        with tempfile.TemporaryFile("w+") as file:
            results.save(file)
            parts += structures.RunResults.load(file).items()
    two = structures.Comparator.compare_accuracy(structures.RunResults(parts[1:]))
    return next(iter(two[0])), bool(two), [name for name, _ in parts]


def test_results_of_one_name_stay_apart():
    from trtops.comparator import Comparator, RunResults

    results, same, other = RunResults(), RunResults(), RunResults()
    for each, value in ((same, 1), (other, 2)):
        each.add([{"y": np.full(3, value, np.float32)}], runner_name="trt-runner-N0")
    for each in (same, same, other):
        results.update(each)
    plain = RunResults([pair for each in (same, same, other) for pair in each.items()])

    assert list(results.keys()) == [*same.keys(), "trt-runner-N0 (2)", "trt-runner-N0 (3)"]
    for runs in (results, plain):
        accuracy = Comparator.compare_accuracy(runs)[0]
        assert [(pair[1][-3:], accuracy.percentage(pair)) for pair in accuracy] == [("(2)", 1.0), ("(3)", 0.0)]
    assert list(results.update({"trt-runner-N0": []}).keys()) == list(results.keys())


def test_network_and_config_loaders_have_call_impl():
    from trtops.backend import trt

    made = []

    class Builder:
        def create_builder_config(self):
            raise StopIteration  # no TensorRT here

    class Config(trt.CreateConfig):
        def call_impl(self, builder, network):
            made.append((builder, network))
            return super().call_impl(builder, network)

    with pytest.raises(StopIteration):
        Config(fp16=True)(Builder(), None)
    with pytest.raises(StopIteration):
        trt.CreateConfig().call_impl(Builder(), None)
    assert len(made) == 1


IDIOMS = (overridden_loaders, overridden_runners, changed_shapes, loaded_results)


@pytest.mark.parametrize("idiom", IDIOMS, ids=lambda idiom: idiom.__name__)
def test_idioms_give_the_same_in_both(idiom, tmp_path):
    path = str(tmp_path / "model.onnx")
    onnx.save(models.identity().proto, path)

    theirs, ours = (idiom(Library(root, path)) for root in ("polygraphy", "trtops"))
    assert ours == theirs


def test_shapes_equal_tuples_too():
    from trtops.metadata import TensorSpec

    shape = TensorSpec("x", "float32", (1, "n")).shape
    plain, other = (1, "n"), (1, "m")
    assert (shape == plain, plain == shape, shape != plain, shape != other) == (True, True, False, True)
    assert (add((2,), shape), add(shape[1:], (2,)), add([2], shape)) == ((2, 1, "n"), ("n", 2), [2, 1, "n"])
    assert {shape: "found"}[plain] == "found"
