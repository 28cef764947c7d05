"""The ONNX loaders: what they make, what they leave alone, and how they say no."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from tests import models
from trtops import errors
from trtops.backend import onnx as room
from trtops.backend.common import BytesFromPath
from trtops.backend.onnx import Model
from trtops.backend.onnx.model import model_digest
from trtops.metadata import TensorMetadata


def run(proto: onnx.ModelProto, feed: models.Arrays) -> models.Arrays:
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feed))))


def names(values: object) -> list[str]:
    return [value.name for value in values]  # type: ignore[attr-defined]


def test_loaders_do_nothing_until_called_and_compose(tmp_path: Path) -> None:
    load = room.OnnxFromBytes(BytesFromPath(tmp_path / "identity.onnx"))
    save = room.SaveOnnx(room.ModifyOutputs(load, outputs=["y"]), tmp_path / "deep" / "er" / "out.onnx")

    models.identity().write(tmp_path)  # made only now
    save()

    models.identity().check(lambda feed: run(onnx.load(tmp_path / "deep" / "er" / "out.onnx"), feed))


def test_every_loader_has_a_twin_with_the_same_parameters_and_defaults() -> None:
    import inspect
    import re

    loaders = [name for name in room.__all__ if name[0].isupper() and name != "Model"]
    assert len(loaders) == 12
    for name in loaders:
        twin = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
        ours, its = (inspect.signature(getattr(room, n)).parameters for n in (name, twin))
        assert [(p.name, p.default) for p in ours.values()] == [(p.name, p.default) for p in its.values()], name


def test_loaders_are_values_that_can_be_pickled_compared_and_printed(tmp_path: Path) -> None:
    path = models.identity().write(tmp_path)
    loader = room.SaveOnnx(room.ConvertToFp16(room.OnnxFromPath(path)), tmp_path / "half.onnx", size_threshold=7)

    copy = pickle.loads(pickle.dumps(loader))

    assert copy == loader and "size_threshold=7" in repr(copy)
    copy()
    assert (tmp_path / "half.onnx").exists()


def test_a_value_is_copied_before_it_is_changed_unless_told_otherwise() -> None:
    case = models.conv_net()
    before = model_digest(case.proto)

    assert room.modify_outputs(case.proto, ["c0"]) is not case.proto
    room.fold_constants(case.proto)
    room.infer_shapes(case.proto)
    room.convert_to_fp16(case.proto)
    room.extract_subgraph(case.proto, None, TensorMetadata().add("r0"))
    assert model_digest(case.proto) == before

    assert room.modify_outputs(case.proto, ["c0"], copy=False) is case.proto
    assert names(case.proto.graph.output) == ["c0"]


def test_what_a_callable_makes_is_changed_in_place() -> None:
    made = models.conv_net().proto

    assert room.modify_outputs(lambda: made, ["c0"]) is made
    assert room.modify_outputs(lambda: made, ["n0"], copy=True) is not made


def test_a_checked_model_is_taken_wherever_a_model_is(tmp_path: Path) -> None:
    model = Model.load(models.conv_net().write(tmp_path))

    assert names(room.modify_outputs(model, ["c0"]).graph.output) == ["c0"]
    assert isinstance(room.bytes_from_onnx(model), bytes)


def test_external_data_is_loaded_from_the_models_folder_or_another_or_not_at_all(tmp_path: Path) -> None:
    case = models.conv_net()
    path = models.write_external(case, tmp_path / "model")

    case.check(lambda feed: run(room.onnx_from_path(path), feed))

    (tmp_path / "data").mkdir()
    (tmp_path / "model" / "weights.bin").rename(tmp_path / "data" / "weights.bin")
    case.check(lambda feed: run(room.onnx_from_path(path, external_data_dir=tmp_path / "data"), feed))
    with pytest.raises(errors.ExternalDataError, match="does not exist"):
        room.onnx_from_path(path)
    bare = room.onnx_from_path(path, ignore_external_data=True)
    assert bare.graph.initializer[0].external_data


def test_bytes_go_both_ways_and_damaged_ones_are_refused() -> None:
    case = models.identity()
    data = room.bytes_from_onnx(case.proto)

    case.check(lambda feed: run(room.onnx_from_bytes(data), feed))
    with pytest.raises(errors.InvalidModelError):
        room.onnx_from_bytes(data[:-3])


def test_graphs_of_onnx_graphsurgeon_come_out_and_go_in() -> None:
    case = models.conv_net()
    graph = room.gs_from_onnx(case.proto)
    assert isinstance(graph, gs.Graph) and len(graph.nodes) == 9

    part = room.extract_subgraph(graph, None, TensorMetadata().add("r0", np.float32))

    assert isinstance(part, gs.Graph)
    assert [node.op for node in part.nodes] == ["Conv", "BatchNormalization", "Relu"]
    assert len(graph.nodes) == 9


def test_tensorflow_graphs_say_what_to_install() -> None:
    with pytest.raises(errors.BackendUnavailableError, match="pip install tensorflow tf2onnx"):
        room.onnx_from_tf_graph((None, ["out"]))


class TestModifyOutputs:
    def test_marks_all_but_constants(self) -> None:
        marked = room.modify_outputs(models.foldable().proto, "mark-all")

        assert names(marked.graph.output) == ["s", "first", "one", "target", "flat", "double", "y"]
        assert run(marked, models.foldable().feed)["s"].tolist() == [2, 3, 4]

    def test_patterns_names_and_inputs(self) -> None:
        proto = models.conv_net().proto

        assert names(room.modify_outputs(proto, ["r*", "scores", "r0"]).graph.output) == ["r0", "r1", "scores"]
        assert names(room.modify_outputs(proto, ["image", "c[01]"]).graph.output) == ["image", "c0", "c1"]

    def test_a_tensor_whose_name_looks_like_a_pattern_is_itself(self) -> None:
        proto = models.identity().proto
        proto.graph.node[0].output[0] = proto.graph.output[0].name = "y[0]"

        assert names(room.modify_outputs(proto, ["y[0]"]).graph.output) == ["y[0]"]

    def test_new_outputs_have_types_and_shapes(self) -> None:
        marked = Model.from_proto(room.modify_outputs(models.transformer().proto, ["s2", "q1"]))

        assert [str(o) for o in marked.info.outputs] == [
            "s2 [dtype=float32, shape=('batch', 2, 'seq', 'seq')]",
            "q1 [dtype=float32, shape=('batch', 'seq', 2, 8)]",
        ]

    def test_types_replace_outputs_and_exclusion_comes_last(self) -> None:
        proto = models.conv_net().proto

        assert names(room.modify_outputs(proto, mark_types=["relu", "Conv"]).graph.output) == ["r0", "r1", "c0", "c1"]
        assert names(room.modify_outputs(proto, "mark-all", ["c*", "f"]).graph.output) == [
            *["n0", "r0", "r1", "p", "logits", "scores"]
        ]

    @pytest.mark.parametrize(
        ("kwargs", "message"),
        [
            ({"outputs": ["score"]}, "no tensor 'score'. Did you mean 'scores'"),
            ({"outputs": ["z*"]}, r"no tensor 'z\*'"),
            ({"outputs": []}, "No outputs were selected"),
            ({"mark_types": ["Cnv"]}, "no 'Cnv' nodes. Did you mean 'Conv'"),
            ({"exclude_outputs": ["scores"]}, "leave at least one"),
            ({"exclude_outputs": ["ghost"]}, "no tensor 'ghost'"),
        ],
    )
    def test_refuses_what_fits_nothing(self, kwargs: dict[str, object], message: str) -> None:
        with pytest.raises(errors.ConfigError, match=message):
            room.modify_outputs(models.conv_net().proto, **kwargs)  # type: ignore[arg-type]


class TestExtractSubgraph:
    def test_a_part_computes_what_it_computed_in_the_whole(self) -> None:
        case = models.transformer()
        whole = run(room.modify_outputs(case.proto, "mark-all"), case.feed)

        part = room.extract_subgraph(
            case.proto, TensorMetadata().add("s0").add("v2"), TensorMetadata().add("a1", np.float32)
        )

        assert names(part.graph.node) == ["", "softmax", "", ""]
        assert names(part.graph.initializer) == ["depth"]
        out = run(part, {"s0": whole["s0"], "v2": whole["v2"]})
        np.testing.assert_array_equal(out["a1"], whole["a1"])

    def test_given_dtypes_and_shapes_win_and_missing_ones_are_inferred(self) -> None:
        part = room.extract_subgraph(
            models.conv_net().proto,
            TensorMetadata().add("n0", None, (2, 8, "height", None)),
            TensorMetadata().add("c1", np.float32, None),
        )

        info = Model.from_proto(part).info
        assert info.inputs[0].shape == (2, 8, "height", None)
        assert info.outputs[0].shape == ("batch", 16, 3, 3)

    def test_an_input_that_a_needed_node_also_makes_is_cut_off(self) -> None:
        proto = models.model(
            "(float[4] x) => (float[2] y) { a, b = Split<axis = 0>(x)\n c = Add(a, b)\n y = Relu(c) }", opset=13
        )

        part = room.extract_subgraph(proto, TensorMetadata().add("x").add("a"), TensorMetadata().add("c", np.float32))

        out = run(part, {"x": np.arange(4, dtype=np.float32), "a": np.full(2, 10, np.float32)})
        assert out["c"].tolist() == [12, 13]

    def test_bodies_keep_what_they_capture(self) -> None:
        case = models.branch()

        part = room.extract_subgraph(case.proto, TensorMetadata().add("t").add("flag"), TensorMetadata().add("y"))

        assert names(part.graph.initializer) == ["w"]
        t = case.feed["x"] * numpy_helper.to_array(case.proto.graph.initializer[0])
        np.testing.assert_allclose(run(part, {"t": t, "flag": np.array(True)})["y"], case.expected["y"], rtol=1e-6)

    def test_says_which_tensors_the_part_also_needs(self) -> None:
        proto = models.transformer().proto
        with pytest.raises(errors.ConfigError, match=r"also needs 'x' \(for LayerNormalization 'norm0'\)"):
            room.extract_subgraph(proto, TensorMetadata().add("s2"), TensorMetadata().add("a0"))
        with pytest.raises(errors.ConfigError, match=r"no tensor 's22'\. Did you mean 's2'"):
            room.extract_subgraph(proto, TensorMetadata().add("s22"))

    def test_weights_that_are_listed_as_inputs_stay_weights(self) -> None:
        case = models.conv_net()
        for tensor in case.proto.graph.initializer:
            case.proto.graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )

        part = room.extract_subgraph(case.proto, None, TensorMetadata().add("r0"))

        assert [spec.name for spec in Model.from_proto(part).info.inputs] == ["image"]
        assert run(part, case.feed)["r0"].shape == (2, 8, 8, 8)


class TestInferShapes:
    def test_fills_in_every_intermediate_tensor(self) -> None:
        inferred = room.infer_shapes(models.transformer().proto)

        assert len(inferred.graph.value_info) == len(inferred.graph.node) - 1

    def test_takes_a_path_and_leaves_weights_alone(self, tmp_path: Path) -> None:
        case = models.conv_net()
        path = models.write_external(case, tmp_path)

        inferred = room.infer_shapes(str(path))

        case.check(lambda feed: run(inferred, feed))
        assert inferred.graph.value_info

    def test_contradictions_pass_unless_told_otherwise(self) -> None:
        proto = models.model("(float[2,3] x) => (float[2,5] y) { y = Reshape(x, s) }", {"s": np.array([2, 4])})

        assert room.infer_shapes(proto).graph.node[0].op_type == "Reshape"
        with pytest.raises(errors.InvalidModelError, match="Shape inference failed"):
            room.infer_shapes(proto, error_ok=False)

    def test_onnxruntime_helps_where_onnx_knows_no_rank_and_leaves_no_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        proto = models.model(
            """(float[batch,4] x) => (float[n,m] y) {
                 g = com.microsoft.Gelu(x)
                 y = Relu(g)
            }"""
        )

        monkeypatch.chdir(tmp_path)

        without = room.infer_shapes(proto, allow_onnxruntime=False)
        with_help = room.infer_shapes(proto)

        assert "g" not in names(without.graph.value_info)
        assert "g" in names(with_help.graph.value_info)
        room.infer_shapes(models.no_kernel().proto)
        assert list(tmp_path.iterdir()) == []


class TestSetUpperBound:
    proto = models.model(
        """(float[n] x, int64[1] reps) => (float[m] y) {
            r = Abs(reps)
            t = Tile(x, r)
            y = Relu(t)
        }"""
    )

    def test_puts_min_behind_what_sets_a_size(self) -> None:
        bounded = room.set_upper_bound(room.infer_shapes(self.proto), 3)

        assert [node.op_type for node in bounded.graph.node] == ["Abs", "Min", "Tile", "Relu"]
        feed = {"x": np.ones(2, np.float32), "reps": np.array([9])}
        assert run(bounded, feed)["y"].shape == (6,)
        assert run(self.proto, feed)["y"].shape == (18,)

    def test_bounds_by_name_with_a_default(self) -> None:
        inferred = room.infer_shapes(self.proto)

        assert len(room.set_upper_bound(inferred, {"r": 5}).graph.node) == 4
        assert len(room.set_upper_bound(inferred, {"": 5}).graph.node) == 4
        assert len(room.set_upper_bound(inferred, {}).graph.node) == 3
        with pytest.raises(errors.ConfigError, match="No node produces a tensor 'reps'"):
            room.set_upper_bound(inferred, {"reps": 5})

    def test_what_is_bounded_stays_as_it_is(self) -> None:
        once = room.set_upper_bound(room.infer_shapes(self.proto), 3)

        assert len(room.set_upper_bound(room.infer_shapes(once), 2).graph.node) == 4

    def test_a_tensor_named_again_is_bounded_again(self) -> None:
        once = room.set_upper_bound(room.infer_shapes(self.proto), {"r": 5})

        twice = room.set_upper_bound(room.infer_shapes(once), {"r": 2})

        onnx.checker.check_model(twice)
        assert run(twice, {"x": np.ones(2, np.float32), "reps": np.array([9])})["y"].shape == (4,)


class TestSaveOnnx:
    @pytest.mark.parametrize("one_file", [True, False])
    def test_weights_outside_the_file_come_back(self, tmp_path: Path, one_file: bool) -> None:
        case = models.transformer()
        path = tmp_path / "m.onnx"

        returned = room.save_onnx(
            case.proto, path, external_data_path="", size_threshold=0, all_tensors_to_one_file=one_file
        )

        assert returned is case.proto and not case.proto.graph.initializer[0].external_data
        assert Model.load(path).info.sha256 == model_digest(case.proto)
        np.testing.assert_array_equal(
            ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, dict(case.feed))[0],
            run(case.proto, case.feed)["y"],
        )
        shapes = ("split", "join")
        outside = [t for t in case.proto.graph.initializer if t.name not in shapes]
        assert len(Model.load(path).files()) == (2 if one_file else 1 + len(outside))

    def test_small_tensors_stay_inside(self, tmp_path: Path) -> None:
        proto = models.transformer().proto

        room.save_onnx(proto, tmp_path / "m.onnx", external_data_path="w/eights.bin", size_threshold=1024)

        stored = onnx.load(tmp_path / "m.onnx", load_external_data=False)
        outside = {t.name for t in stored.graph.initializer if t.external_data}
        assert outside == {"w_q", "w_k", "w_v", "w_o", "w_in", "w_out"}
        assert (tmp_path / "w" / "eights.bin").stat().st_size % 64 == 0

    def test_saving_over_an_older_model_replaces_both_files(self, tmp_path: Path) -> None:
        path = tmp_path / "m.onnx"
        room.save_onnx(models.transformer().proto, path, external_data_path="", size_threshold=0)
        room.save_onnx(models.conv_net().proto, path, external_data_path="", size_threshold=0)

        assert Model.load(path).info.sha256 == model_digest(models.conv_net().proto)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]

    def test_external_data_cannot_leave_the_folder(self, tmp_path: Path) -> None:
        for place in ("../w.bin", str(tmp_path.parent / "w.bin")):
            with pytest.raises(errors.ExternalDataError, match="leads out"):
                room.save_onnx(models.conv_net().proto, tmp_path / "m.onnx", external_data_path=place)

    def test_a_model_that_cannot_be_written_leaves_the_old_file(self, tmp_path: Path) -> None:
        path = models.identity().write(tmp_path)
        before = path.read_bytes()
        broken = models.conv_net().proto
        broken.graph.initializer[0].raw_data = b"short"

        with pytest.raises(errors.InvalidModelError):
            room.save_onnx(broken, path, external_data_path="", size_threshold=0)

        assert path.read_bytes() == before
        assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_importing_the_loaders_imports_no_runtime() -> None:
    code = (
        "import sys, trtops.backend.onnx; print([m for m in ('onnxruntime', 'onnx_graphsurgeon') if m in sys.modules])"
    )

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


@pytest.mark.parity
class TestLikeTheFieldsTool:
    @pytest.fixture(autouse=True)
    def elsewhere(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)  # its shape inference may leave a file in the working folder

    def test_the_same_outputs_are_marked(self) -> None:
        from polygraphy.backend.onnx import modify_outputs as theirs
        from polygraphy.constants import MARK_ALL

        for make in models.ALL:
            for outputs in (MARK_ALL, [make().proto.graph.output[0].name]):
                ours = room.modify_outputs(make().proto, outputs)
                assert names(ours.graph.output) == names(theirs(make().proto, outputs).graph.output)

    def test_the_same_part_is_cut_out(self) -> None:
        from polygraphy.backend.onnx import extract_subgraph as theirs
        from polygraphy.common import TensorMetadata as TheirMetadata

        proto = models.transformer().proto
        ours = room.extract_subgraph(
            proto, TensorMetadata().add("h", np.float32, (2, 5, 16)), TensorMetadata().add("s2", np.float32)
        )
        its = theirs(
            proto, TheirMetadata().add("h", np.float32, (2, 5, 16)), TheirMetadata().add("s2", np.float32, None)
        )

        assert sorted(n.output[0] for n in ours.graph.node) == sorted(n.output[0] for n in its.graph.node)
        assert sorted(names(ours.graph.initializer)) == sorted(names(its.graph.initializer))

    def test_the_same_tensors_are_bounded(self) -> None:
        from polygraphy.backend.onnx import infer_shapes as their_shapes
        from polygraphy.backend.onnx import set_upper_bound as theirs

        proto = TestSetUpperBound.proto
        ours = room.set_upper_bound(room.infer_shapes(proto), 3)
        its = theirs(their_shapes(proto), 3)

        assert sorted(n.op_type for n in ours.graph.node) == sorted(n.op_type for n in its.graph.node)
