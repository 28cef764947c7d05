"""Scripts and commands written for Polygraphy give the same, or better, in trtops."""

import argparse
import contextlib
import copy
import dataclasses
import importlib
import json
import os
import subprocess
import sys
import tempfile
from operator import add
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest

from tests import models, zoo
from tests.long_runs import LONG
from trtops.backend.onnx import weights
from trtops.json import save_json

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

        def call_impl(self, increment=0):
            return 2 * self.number + increment

    without_input = onnx_loaders.modify_outputs(onnx.load(lib.model), outputs=["x", "y"], exclude_outputs=["x"])
    renamed = Renamed(lib.model, "mine")
    folded = Folded(renamed)
    return (
        [output.name for output in onnx_loaders.modify_outputs(without_input, exclude_outputs=["x"]).graph.output],
        renamed().graph.name, isinstance(renamed, base.BaseLoader), Serialized(renamed)(), folded().graph.doc_string,
        folded().graph.name, Twice(3)(), Twice(3)(increment=1),
        onnx_loaders.OnnxFromPath(lib.model).call_impl().ir_version,
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
        sums = [float(next(iter(runner.infer(feed, True, *extra).values())).sum()) for extra in ((), (4,))]
    calls.append(round(sums[1] / sums[0], 3))

    class Untimed(Constant):
        def infer_impl(self, feed_dict):
            return feed_dict

    with Untimed("untimed") as runner:
        runner.infer({"x": np.zeros(2, np.float32)})
        calls.append(runner.last_inference_time())
    with Constant("mine") as runner:
        calls.append(runner.last_inference_time())
        outputs = runner.infer({"x": np.zeros(2, np.float32)})["y"].tolist()
        return calls, outputs, runner.last_inference_time(), runner.name


def dtypes_of_metadata(lib: Library) -> Any:
    """What dtypes of a runner's inputs equal and have, and metadata of one library given to its data loader."""
    loader, data_type = lib["backend.onnxrt"].SessionFromOnnx(lib.model), lib["datatype"].DataType
    seen: list[Any] = []
    with lib["backend.onnxrt"].OnnxrtRunner(loader) as runner:
        for options in ({}, {"use_numpy_dtypes": True}):
            metadata = runner.get_input_metadata(**options)
            dtype = metadata["x"].dtype
            seen += [
                dtype, dtype == np.float32, dtype in [np.float32], dtype == "float32", dtype == np.int32, str(metadata),
                {np.dtype("float32"): "key"}.get(dtype), dtype.type, dtype.kind, dtype.char, dtype.itemsize,
                np.zeros(2, dtype).astype(dtype), type(dtype),
            ]  # fmt: skip
        of_polygraphy = runner.get_input_metadata(use_numpy_dtypes=False)["x"].dtype
        seen += [of_polygraphy is data_type.FLOAT32, of_polygraphy == np.float32, of_polygraphy in [np.float32]]
        user = lib["common"].TensorMetadata().add("x", metadata["x"].dtype, metadata["x"].shape)
        for inputs in (metadata, user):
            inputs["x"].shape = (1, 1, 2, 2)
            loaders = lib["comparator"].DataLoader(input_metadata=inputs), lib["comparator"].DataLoader()
            loaders[1].input_metadata = inputs
            seen += [runner.infer(loader[0])["y"].sum() for loader in loaders]
        seen += [runner.last_inference_time() > 0]
    return list(map(str, seen))


def changed_shapes(lib: Library) -> Any:
    """Shapes of metadata, compared with lists, changed in place, joined, copied and printed."""
    session = lib["backend.onnxrt"].SessionFromOnnx(lib["backend.onnx"].BytesFromOnnx(onnx.load(lib.model)))()
    with lib["backend.onnxrt"].OnnxrtRunner(session) as runner:
        metadata = runner.get_input_metadata(use_numpy_dtypes=False)
        shape = metadata["x"].shape
        shapes_equal = [shape == node.shape for node in session.get_inputs()]
    shape[0] = 8
    shape[2:] = [5, -1]
    metadata.add("y", np.int32, ("n", None, 3), min_shape=(1, 1, 3), max_shape=(4, 4, 3))
    bounded = metadata["y"].shape
    metadata["y"].shape = bounded
    other = copy.deepcopy(metadata)
    other["y"].shape.append(2)
    return (
        shapes_equal, list(shape), add([4], shape[1:]), add(shape[1:], [4]), shape[:1] + list(bounded),
        shape == [8, 1, 5, -1], shape != [8, 1, 5, -1],
        shape == [1], shape.index(5), isinstance(shape, list), bounded.min, bounded.max,
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
    for run_results, value in ((same, 1), (other, 2)):
        run_results.add([{"y": np.full(3, value, np.float32)}], runner_name="trt-runner-N0")
    for run_results in (same, same, other):
        results.update(run_results)
    plain = RunResults([pair for run_results in (same, same, other) for pair in run_results.items()])

    assert list(results.keys()) == [*same.keys(), "trt-runner-N0 (2)", "trt-runner-N0 (3)"]
    for runs in (results, plain):
        accuracy = Comparator.compare_accuracy(runs)[0]
        assert [(pair[1][-3:], accuracy.percentage(pair)) for pair in accuracy] == [("(2)", 1.0), ("(3)", 0.0)]
    assert list(results.update({"trt-runner-N0": []}).keys()) == list(results.keys())


def helpers(lib: Library) -> Any:
    """What the small helpers of scripts return."""
    util, onnx_util, mod = lib["util"], lib["backend.onnx.util"], lib["mod"]
    proto = onnx.load(lib.model)
    path = f"{lib.model}.{lib.root}"
    with util.LockFile(path), tempfile.TemporaryFile() as file:
        util.save_file(b"some", file)
        util.save_file(b"more", path)
        loaded = util.load_file(file), util.load_file(path)

    @mod.export()
    def exported():
        pass

    return (
        loaded, util.default(None, 3), util.default(0, 3), util.unique_list([2, 1, 2]), util.volume((2, 3)),
        util.is_shape_dynamic([1, "n"]), util.is_shape_dynamic((1, 2)), util.override_dynamic_shape(["n", -1, None, 4]),
        util.override_dynamic_shape((-1, 2), 8), util.invoke_if_callable(lambda x: x, 4), util.invoke_if_callable(5),
        str(onnx_util.get_input_metadata(proto.graph)), str(onnx_util.get_output_metadata(proto.graph)),
        onnx_util.get_num_nodes(proto), onnx_util.all_tensor_names(proto, include_inputs=True), exported.__name__,
        onnx_util.str_from_onnx(proto, show_layers=True, show_attrs=True, show_weights=True).split(),
    )  # fmt: skip


def test_files_are_logged_by_description(tmp_path, capsys, caplog):
    for root in ("polygraphy", "trtops"):
        lib = Library(root, "")
        with lib["logger"].G_LOGGER.verbosity(20):
            lib["util"].save_file("[1]", tmp_path / "a", "w", description="text")
            lib["util"].load_file(tmp_path / "a", description="text")
            lib["json"].save_json([1], str(tmp_path / "a"), "numbers")

    expected = [line.removeprefix("[I] ") for line in capsys.readouterr().out.splitlines() if "colored" not in line]
    assert caplog.messages == expected and len(expected) == 3


def test_network_and_config_loaders_have_call_impl():
    from trtops import errors
    from trtops.backend import trt

    networks = []

    class Builder:
        def create_builder_config(self):
            raise StopIteration  # no TensorRT here

    class Config(trt.CreateConfig):
        def call_impl(self, builder, network):
            networks.append((builder, network))
            return super().call_impl(builder, network)

    with pytest.raises(StopIteration):
        Config(fp16=True)(Builder(), None)
    with pytest.raises(StopIteration):
        trt.CreateConfig().call_impl(Builder(), None)
    with pytest.raises(errors.ConfigError, match="implicit batch"):
        trt.CreateNetwork(explicit_batch=False)()
    assert len(networks) == 1


def own_tools(lib: Library) -> Any:
    """What tools below a parser of argparse do with groups of options, and what they return."""
    tools, args = lib["tools"], lib["tools.args"]
    found: list[Any] = []

    class Sizes(tools.Tool):
        """
        Show sizes.

        Of a model's inputs.
        """

        def __init__(self):
            super().__init__("sizes")

        def get_subscriptions_impl(self):
            return [
                args.ModelArgs(model_opt_required=True, input_shapes_opt_name="inputs", required_model_type="onnx"),
                args.OnnxInferShapesArgs(),
                args.OnnxLoadArgs(outputs_opt_prefix=False),
                args.OnnxSaveArgs(),
                args.DataLoaderArgs(),
                args.OnnxrtSessionArgs(),
            ]

        def add_parser_args_impl(self, parser):
            parser.add_argument("--code", type=int)

        def run_impl(self, options):
            model = self.arg_groups[args.OnnxLoadArgs].load_onnx()
            self.arg_groups[args.OnnxSaveArgs].save_onnx(model, f"{lib.model}.{lib.root}")
            found.append([node.op_type for node in onnx.load(f"{lib.model}.{lib.root}").graph.node])
            found.append(
                [value.name for value in self.arg_groups[args.OnnxrtSessionArgs].load_onnxrt_session().get_inputs()]
            )
            inputs = self.arg_groups[args.ModelArgs].input_shapes
            feed = self.arg_groups[args.DataLoaderArgs].get_data_loader(inputs)[0]
            found.append({name: (array.shape, float(array.sum())) for name, array in feed.items()})
            found.append(self.arg_groups[args.DataLoaderArgs].is_using_random_data())
            found.append(len(self.arg_groups[args.OnnxInferShapesArgs].infer_shapes(model, force=True).graph.output))
            return options.code

    class Group(tools.Tool):
        """Own commands."""

        def get_subtools_impl(self):
            return "Commands", [Sizes()]

    parser = argparse.ArgumentParser()
    group = Group("own")
    group.setup_parser(parser.add_subparsers())
    for line in ("--inputs x:[1,1,2,2] --seed 2 --code 3", "--inputs x:[1,1,1,2] --val-range [2,2] --shape-inference"):
        options = parser.parse_args(["own", "sizes", lib.model, *line.split()])
        options.subcommand.parse(options)
        found.append(options.subcommand.run(options))
    with pytest.raises(SystemExit), contextlib.redirect_stderr(None):
        parser.parse_args(["own", "sizes", lib.model, "--model-type", "engine"])
    with pytest.raises(NotImplementedError):
        Group().run_impl(None)
    return found, group.name, group.get_subscriptions_impl(), Sizes().setup_parser().parse_args([lib.model]).code


def registered_references(lib: Library) -> Any:
    """What a runner computes for operators of a script, with attributes and optional inputs."""
    references = lib["backend.pluginref.references"]

    @references.register("OwnScale")
    def run_scale(attrs, x, shift, unused=None):
        assert unused is None
        return [x * attrs["factor"] + (attrs["mode"] == "up"), x + shift]

    model = models.model(
        """(float[2] x) => (float[2] scaled, float[2] shifted) {
            y = Identity(x)
            scaled, shifted = custom.OwnScale<factor = 2.0, mode = "up">(y, one, )
        }""",
        {"one": np.ones(1, np.float32)},
    )
    with lib["backend.pluginref"].PluginRefRunner(lib["backend.onnx"].gs_from_onnx(model)) as runner:
        outputs = runner.infer({"x": np.array([1, 3], np.float32)})
    return {name: array.tolist() for name, array in outputs.items()}, "OwnScale" in references.OP_REGISTRY


def own_compare_functions(lib: Library) -> Any:
    """Verdicts and numbers of functors, thresholds and results of a script, alone and derived from the library's."""
    comparator, serde = lib["comparator"], lib["json"]
    compare = lib["comparator.compare"]

    class CountThreshold(compare.Threshold):
        METRIC_FIELDS = ("different",)

        def __init__(self, allowed):
            self.allowed = allowed

        def passed(self, metric_values):
            return metric_values["different"] <= self.allowed

        def describe(self, metric_values):
            passed = self.passed(metric_values)
            return f"Different: {metric_values['different']} | {'PASSED' if passed else 'FAILED'}", passed

    class CountResult(compare.CompareResult):
        _THRESHOLD_CLASS = CountThreshold

        def __init__(self, different, thresholds=None):
            super().__init__(thresholds=thresholds)
            self.different = different

    class CountCompareFunc(compare.BaseCompareFunc):
        _RESULT_CLASS = CountResult

        def __init__(self, allowed):
            self.allowed = allowed

        def thresholds_for(self, output_name):
            return CountThreshold(self.allowed)

        def __call__(self, iter_result0, iter_result1):
            return {
                name: CountResult(int((array != iter_result1[name]).sum()), self.thresholds_for(name))
                for name, array in iter_result0.items()
            }

    class Scaled(compare.SimpleCompareFunc):
        def __init__(self, factor, **options):
            super().__init__(**options)
            self.factor = factor

        def __call__(self, iter_result0, iter_result1):
            scaled = comparator.IterationResult({name: self.factor * array for name, array in iter_result0.items()})
            return super().__call__(scaled, iter_result1)

    def same_sums(iter_result0, iter_result1):
        return {name: array.sum() == iter_result1[name].sum() for name, array in iter_result0.items()}

    class Plain(compare.BaseCompareFunc):
        def __call__(self, iter_result0, iter_result1):
            return {"y": np.bool_(True)}

    serde.Encoder.register(CountThreshold)(lambda threshold: {"allowed": threshold.allowed})
    serde.Decoder.register(CountThreshold)(lambda members: CountThreshold(members["allowed"]))
    serde.Encoder.register(CountResult)(lambda count: {"different": count.different, "limit": count.thresholds})
    serde.Decoder.register(CountResult)(lambda members: CountResult(members["different"], members["limit"]))
    results = comparator.RunResults()
    for runner, values in (("a", [1, 2, 3, 4]), ("b", [2, 4, 6, 9])):
        results.add([{"y": np.array(values, np.float32)}, {"y": np.array(values, np.float32)[:0]}], runner_name=runner)
    answers: list[Any] = []
    functions = [CountCompareFunc(3), CountCompareFunc(4), Scaled(2, atol=1), Scaled(2, atol=0.5), same_sums, Plain()]
    for function in functions:
        accuracy = comparator.Comparator.compare_accuracy(results, compare_func=function)
        match = accuracy[0]["a", "b"][0]["y"]
        answers += [bool(accuracy), accuracy[0].stats(), bool(match), getattr(match, "different", None)]
    counted = comparator.Comparator.compare_accuracy(results, compare_func=[*functions[:2]], check_average=True)
    answers += [[bool(each) for each in counted], counted[0].describe_average(), counted[1].output_names()]
    with tempfile.NamedTemporaryFile() as file:
        counted.save(file.name)
        loaded = comparator.AccuracyResults.load(file.name)
    answers += [
        bool(loaded),
        bool(loaded[0].reevaluate(CountThreshold(1))),
        bool(loaded[0].reevaluate(CountThreshold(2))),
    ]
    with pytest.raises(lib["exception"].PolygraphyException):
        comparator.Comparator.compare_accuracy(results, compare_func=Plain(), check_average=True)
    with pytest.raises(NotImplementedError):
        compare.BaseCompareFunc()(results[0][1][0], results[1][1][0])
    return answers


def error_texts(lib: Library) -> Any:
    """Which texts that scripts search for the errors of results, JSON and runners have."""
    proto = onnx.load(lib.model)
    proto.graph.node[0].op_type = "NoSuchOperator"

    def infer():
        with lib["backend.pluginref"].PluginRefRunner(lib["backend.onnx"].GsFromOnnx(proto)) as runner:
            runner.infer({"x": np.ones((1, 1, 2, 2), np.float32)})

    unknown = '{"polygraphy_class": "NoDecoder", "values": {}}'
    calls = {
        "does not have a reference implementation registered!": infer,
        "JSON cannot be decoded into a RunResults": lambda: lib["comparator"].RunResults.from_json('{"a": 1}'),
        "Could not decode serialized type: NoDecoder. This could be because a required module is missing.": (
            lambda: lib["json"].from_json(unknown)
        ),
    }
    reported = []
    for text, call in calls.items():
        with pytest.raises(lib["exception"].PolygraphyException) as raised:
            call()
        reported.append(text in str(raised.value))
    return reported


IDIOMS = (
    overridden_loaders, overridden_runners, changed_shapes, dtypes_of_metadata, loaded_results, helpers, error_texts,
    own_compare_functions, registered_references, own_tools,
)  # fmt: skip


@pytest.mark.parametrize("idiom", IDIOMS, ids=lambda idiom: idiom.__name__)
def test_idioms_give_the_same_in_both(idiom, tmp_path):
    path = str(tmp_path / "model.onnx")
    onnx.save(models.identity().proto, path)

    theirs, ours = (idiom(Library(root, path)) for root in ("polygraphy", "trtops"))
    assert ours == theirs


EXTENSION = """
import numpy as np
from ROOT import mod, util
from ROOT.backend.base import BaseLoader, BaseRunner
from ROOT.common import TensorMetadata
from ROOT.json import save_json
from ROOT.tools import Tool
from ROOT.tools.args import DataLoaderArgs, ModelArgs, OnnxLoadArgs, TrtConfigArgs, util as args_util
from ROOT.tools.args.base import BaseArgs, BaseRunnerArgs
from ROOT.tools.script import make_invocable


class Renamed(BaseLoader):
    def __init__(self, graph, suffix=None):
        self._graph, self.suffix = graph, util.default(suffix, "")

    @util.check_called_by("__call__")
    def call_impl(self):
        graph, _ = util.invoke_if_callable(self._graph)
        graph.name = graph.name + self.suffix
        return graph


class Scaled(BaseRunner):
    def __init__(self, graph, factor=None, shown=None):
        super().__init__(prefix="scaled")
        self._graph, self.factor, self.shown = graph, util.default(factor, 1), shown

    def activate_impl(self):
        self.graph, _ = util.invoke_if_callable(self._graph)
        print("GRAPH", self.graph.name, self.shown)

    def get_input_metadata_impl(self):
        return TensorMetadata().add("x", np.float32, self.graph.inputs[0].shape)

    def infer_impl(self, feed_dict):
        self.inference_time = 0.1
        return {"y": self.factor * feed_dict["x"]}


class RenamedArgs(BaseArgs):
    '''Renaming: renaming graphs

    Depends on: OnnxLoadArgs
    '''

    def add_parser_args_impl(self):
        self.group.add_argument("--own-suffix", help="what to append", default=None)

    def parse_impl(self, args):
        self.suffix = args_util.get(args, "own_suffix")

    def add_to_script_impl(self, script):
        loader = self.arg_groups[OnnxLoadArgs].add_to_script(script)
        script.add_import(imports=["GsFromOnnx"], frm="ROOT.backend.onnx")
        loader = script.add_loader(make_invocable("GsFromOnnx", loader), loader_id="gs_from_onnx")
        script.add_import(imports=["Renamed"], frm="own_ROOT")
        return script.add_loader(make_invocable("Renamed", loader, suffix=self.suffix), loader_id="renamed")


class ScaledArgs(BaseRunnerArgs):
    '''Scaling: running with the scaling runner'''

    def get_name_opt_impl(self):
        return "Scaling Runner", "own"

    def add_parser_args_impl(self):
        self.group.add_argument("--own-factor", type=float, default=None)

    def parse_impl(self, args):
        self.factor = args_util.get(args, "own_factor")

    def add_to_script_impl(self, script):
        model, config = self.arg_groups[ModelArgs], self.arg_groups[TrtConfigArgs]
        shown = [str(model.model_type), model.path is not None, bool(config.fp16), bool(config.int8)]
        shown += [list(each.shape) for each in model.input_shapes.values()]
        shown += [{name: list(map(list, shapes)) for name, shapes in each.items()} for each in config.profile_dicts]
        loader = self.arg_groups[RenamedArgs].add_to_script(script)
        script.add_import(imports=["Scaled"], frm="own_ROOT")
        script.add_runner(make_invocable("Scaled", loader, factor=self.factor, shown=shown))


def groups():
    return [RenamedArgs(), ScaledArgs()]


class Data(Tool):
    '''Write random data.'''

    def get_subscriptions_impl(self):
        return [DataLoaderArgs()]

    def add_parser_args_impl(self, parser):
        parser.add_argument("-o", "--output", required=True)
        parser.add_argument("--count", default=1, type=int)

    def run(self, args):
        meta = TensorMetadata().add(name="data", dtype=np.float32, shape=(args.count,))
        save_json(list(self.arg_groups[DataLoaderArgs].get_data_loader(meta)), dest=args.output)
"""


@pytest.mark.parametrize("root", ["polygraphy", "trtops"])
def test_extensions_run_in_both(root, tmp_path, monkeypatch, capsys):
    (tmp_path / f"own_{root}.py").write_text(EXTENSION.replace("ROOT", root))
    (tmp_path / "own-1.dist-info").mkdir()
    (tmp_path / "own-1.dist-info" / "METADATA").write_text("Name: own\nVersion: 1\n")
    (tmp_path / "own-1.dist-info" / "entry_points.txt").write_text(f"[{root}.run.plugins]\nown=own_{root}:groups\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    onnx.save(models.identity().proto, "model.onnx")
    call = importlib.import_module("polygraphy.tools._main" if root == "polygraphy" else "trtops.cli.main").main
    line = (
        "run model.onnx --own --own-suffix _new --fp16 --input-shapes x:[1,1,2,2] --trt-opt-shapes x:[1,1,2,2] --onnxrt"
    )

    assert [call([*line.split(), *extra_options]) for extra_options in ([], ["--own-factor", "2"])] == [0, 1]
    shape = [1, 1, 2, 2]
    shown = ["onnx", True, True, False, shape, {"x": [shape] * 3}]
    assert f"GRAPH {models.identity().proto.graph.name}_new {shown}" in capsys.readouterr().out

    assert not call([*line.split(), "--gen-script", "made.py"])
    done = subprocess.run(
        [sys.executable, "made.py"], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": "."}
    )
    assert done.returncode == 0 and f"_new {shown}" in done.stdout, done.stderr

    monkeypatch.setattr(sys, "argv", ["data", "-o", "data.json", "--count", "5", "--seed", "3"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"own_{root}").Data().main()
    assert not ended.value.code
    [feed] = importlib.import_module(f"{root}.json").load_json("data.json")
    np.testing.assert_array_equal(
        np.asarray(feed["data"]), np.random.RandomState(3).random_sample(5).astype(np.float32)
    )


def test_shapes_equal_tuples_too():
    from trtops.metadata import TensorSpec

    shape = TensorSpec("x", "float32", (1, "n")).shape
    plain, other = (1, "n"), (1, "m")
    assert (shape == plain, plain == shape, shape != plain, shape != other) == (True, True, False, True)
    assert (add((2,), shape), add(shape[1:], (2,)), add([2], shape)) == ((2, 1, "n"), ("n", 2), [2, 1, "n"])
    assert {shape: "found"}[plain] == "found"


def flattened() -> models.Case:
    """A torch export of ``y.view(y.size(0), -1)`` with a dynamic batch, scaled by its own width, with a large bias."""
    proto = models.model(
        """(float[batch,3,8,8] x) => (float[batch,5] out) {
            [conv] c = Conv<pads = [1,1,1,1]>(x, w)
            [relu] r = Relu(c)
            [pool] p = MaxPool<kernel_shape = [2,2], strides = [2,2]>(r)
            [shape] s = Shape(p)
            [zero] zero = Constant<value = int64 {0}>()
            [gather] n = Gather<axis = 0>(s, zero)
            [axes] axes = Constant<value = int64[1] {0}>()
            [unsqueeze] u = Unsqueeze(n, axes)
            [rest] rest = Constant<value = int64[1] {-1}>()
            [target] target = Concat<axis = 0>(u, rest)
            [view] v = Reshape(p, target)
            [transpose] t = Transpose<perm = [1,0]>(fc)
            [shift] shifted = Add(v, bias)
            [matmul] m = MatMul(shifted, t)
            [sizes] sizes = Shape(v)
            [one] one = Constant<value = int64 {1}>()
            [width] width = Gather<axis = 0>(sizes, one)
            [cast] f = Cast<to = 1>(width)
            [sqrt] root = Sqrt(f)
            [div] out = Div(m, root)
        }""",
        {"w": models.random(96, 3, 3, 3), "fc": models.random(5, 1536, seed=1), "bias": models.random(1536, seed=2)},
    )
    return models.Case(proto, {"x": models.random(2, 3, 8, 8)}, name="flattened")


def stripped() -> models.Case:
    """A model without its weights."""
    case = models.conv_net()
    weights.strip_weights(case.proto)
    return dataclasses.replace(case, name="stripped")


def declared_types(model: onnx.ModelProto) -> dict[str, tuple[int, list[int] | None]]:
    """Element type and shape of each tensor that a model describes; 0 stands for dynamic sizes."""
    types: dict[str, tuple[int, list[int] | None]] = {}
    for value in (*model.graph.value_info, *model.graph.input, *model.graph.output):
        tensor = value.type.tensor_type
        dims = [dim.dim_value for dim in tensor.shape.dim] if tensor.HasField("shape") else None
        types[value.name] = (tensor.elem_type, dims)
    return types


def undeclared_types(theirs: onnx.ModelProto, ours: onnx.ModelProto) -> list[Any]:
    """What Polygraphy's model says of a tensor of ours, and ours does not, or otherwise."""
    our_types, missing = declared_types(ours), []
    names = {name for node in ours.graph.node for name in (*node.input, *node.output)}
    for name, (kind, dims) in declared_types(theirs).items():
        our_kind, our_dims = our_types.get(name, (0, None))
        known = dims is None or (
            our_dims is not None and len(our_dims) == len(dims) and all(d in (0, o) for d, o in zip(dims, our_dims))
        )
        if name in names and not (kind == our_kind and known):
            missing.append((name, (kind, dims), our_types.get(name)))
    return missing


SANITIZE = "surgeon sanitize {model} -o out.onnx"
COMMANDS = {
    "shapes inferred": SANITIZE,
    "not inferred": f"{SANITIZE} --no-shape-inference --cleanup",
    "shapes overridden": f"{SANITIZE} --override-input-shapes {{shapes}}",
    "cleaned": f"{SANITIZE} --cleanup --toposort",
    "folded": f"{SANITIZE} --fold-constants --cleanup --toposort",
    "folded in one pass": f"{SANITIZE} --fold-constants --num-passes 1 --partitioning basic",
    "folded otherwise": f"{SANITIZE} --fold-constants --no-per-pass-shape-inference --no-onnxruntime-shape-inference"
    " --fold-size-threshold 10K --partitioning recursive --external-data-dir . --set-unbounded-dds-upper-bound 1000",
    "shapes not folded": f"{SANITIZE} --fold-constants --no-fold-shapes --no-shape-inference",
    "shapes given": f"{SANITIZE} --fold-constants --override-input-shapes {{shapes}}",
    "shapes observed": f"{SANITIZE} --force-fallback-shape-inference",
    "shapes of data observed": f"{SANITIZE} --force-fallback-shape-inference --load-inputs feed.json",
    "all marked": f"{SANITIZE} --outputs mark all --exclude-outputs {{output}} --save-external-data w"
    " --external-data-size-threshold 0",
    "marked by type": f"{SANITIZE} --outputs-by-type {{kind}}",
    "outputs chosen": f"{SANITIZE} --outputs {{output}} --cleanup --no-save-all-tensors-to-one-file",
    "extracted": "surgeon extract {model} -o out.onnx --inputs {inputs} --outputs {output}:auto",
    "inserted": "surgeon insert {model} -o out.onnx --op Identity --name new --inputs {output} --outputs {output}",
    "linted": "check lint {model} -o report.json",
    "described": "inspect model {model} --show layers attrs weights",
    "reduced": "debug reduce named.onnx -o out.onnx --mode linear --check sh check.sh",
}
BETTER = {
    **{
        ("all marked", name): "Polygraphy writes a model without outputs"
        for name in ("identity", "dynamic_identity", "reshape", "data_dependent")
    },
    ("linted", "zipmap"): "Polygraphy takes operators of ai.onnx.ml for errors",
    ("linted", "sequence"): "Polygraphy fails on sequences",
    ("linted", "data_dependent"): "trtops feeds values with which the nodes run",
    ("linted", "stripped"): "trtops reports the weights, Polygraphy the node that reads them",
}
"""Results that differ, by command and model, with the reason."""

UNDECLARED = {
    # ONNX infers no shapes of a Loop's state; Polygraphy's come from the time before the override.
    ("shapes given", "loop"): [("last", (1, [4]), (1, None))],
    # Polygraphy writes the sequence as a tensor.
    ("shapes overridden", "sequence"): [("halves", (1, None), (0, None))],
    ("shapes given", "sequence"): [("halves", (1, None), (0, None))],
}
"""Types and shapes that only Polygraphy's models have, by command and model."""

ZOO = [make for make in (*zoo.EVALUATED, zoo.overflowing, zoo.zipmap, zoo.sequence) if make not in models.ALL]
# Others have the nodes of these two as well.
SMALL = () if LONG else (models.identity, models.reshape)
MODELS = [*(make for make in models.ALL if make not in SMALL), *(ZOO if LONG else ZOO[-2:]), flattened, stripped]


def run_both(line: str, folder: Path, capsys) -> list[tuple[int, str, onnx.ModelProto | None, Any]]:
    """Exit code, text, written model and report of Polygraphy and of trtops."""
    from polygraphy.logger import G_LOGGER
    from polygraphy.tools._main import main as their_main

    from trtops.cli.main import main

    outcomes = []
    for call in (their_main, main):
        code = 1
        with G_LOGGER.verbosity(), contextlib.suppress(SystemExit):
            try:
                code = call(line.split())
            except Exception:  # Polygraphy lets errors of other libraries through
                code = 1
        output, report = folder / "out.onnx", folder / "report.json"
        outcomes.append((
            int(bool(code)), capsys.readouterr().out, onnx.load(output) if output.exists() else None,
            json.loads(report.read_text())["summary"] if report.exists() else None,
        ))  # fmt: skip
        output.unlink(missing_ok=True)
        report.unlink(missing_ok=True)
    return outcomes


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_commands_do_as_much_as_polygraphys(make, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    case = make()
    case.write(tmp_path, "model")
    named = onnx.load("model.onnx")
    nodes = [node for node in named.graph.node if node.op_type != "Constant"]
    nodes[len(nodes) // 2].name = "the_culprit"
    onnx.save(named, "named.onnx")
    save_json([case.feed], "feed.json")
    Path("check.sh").write_text("! cat *_debug.onnx | grep -q the_culprit")
    names = {
        "inputs": " ".join(f"{value.name}:auto:auto" for value in case.proto.graph.input),
        "output": case.proto.graph.output[0].name,
        "kind": nodes[len(nodes) // 2].op_type,
        "shapes": " ".join(f"{name}:{[*array.shape]}".replace(" ", "") for name, array in case.feed.items()),
    }
    for label, line in COMMANDS.items():
        theirs, ours = run_both(line.format(**names, model="model.onnx"), tmp_path, capsys)
        # Where Polygraphy fails, doing the work is better; a lint that finds nothing need not be.
        if (label, case.name) not in BETTER:
            assert ours[0] == theirs[0] or (theirs[0] and label != "linted"), (label, ours[1])
        if theirs[2] is not None and ours[2] is not None:
            assert len(ours[2].graph.node) <= len(theirs[2].graph.node), label
            if label == "reduced":
                assert "the_culprit" in [node.name for node in ours[2].graph.node]
                continue
            assert [v.name for v in ours[2].graph.output] == [v.name for v in theirs[2].graph.output], label
            assert undeclared_types(theirs[2], ours[2]) == UNDECLARED.get((label, case.name), []), label
            feed = {value.name: case.feed[value.name] for value in ours[2].graph.input}
            # With sizes of random data, the model does not accept the feed.
            if case.name not in ("no_kernel", "stripped") and label != "shapes observed":
                expected, actual = models.run(case.proto, case.feed), models.run(ours[2], feed)
                if not actual.keys() <= expected.keys():  # marked by the command
                    expected = models.run(theirs[2], feed) | expected
                for name, array in actual.items():
                    if isinstance(array, list):  # of ZipMap, or a sequence
                        assert str(array) == str(expected[name])
                        continue
                    np.testing.assert_allclose(array, expected[name], rtol=1e-4, atol=1e-5, err_msg=label)
        if theirs[3] is not None and (label, case.name) not in BETTER:
            assert len(ours[3]["failing"]) == len(theirs[3]["failing"]), label
