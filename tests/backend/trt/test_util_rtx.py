"""``trtops.backend.trt.util`` on TensorRT-RTX, which builds without a GPU."""

from __future__ import annotations

import pytest

from tests import models
from trtops import errors
from trtops.backend.trt import create_config, network_from_onnx_bytes, util
from trtops.metadata import DataType

pytestmark = pytest.mark.usefixtures("rtx")


@pytest.fixture
def parts(rtx):
    return network_from_onnx_bytes(models.conv_net().proto.SerializeToString())


def test_tensors_are_marked_by_pattern_and_type(parts):
    _, network, _ = parts
    names, metadata = util.get_network_input_names_meta(network)

    assert names == ["image"] and metadata["image"].dtype is DataType.FLOAT32
    assert {"image", "scores"} == set(util.get_all_io_tensors(network)) < set(util.get_all_tensors(network))
    util.mark_outputs(network, ["r*"])
    marked, _ = util.get_network_output_names_meta(network)
    assert marked and all(name.startswith("r") for name in marked)
    util.mark_by_layer_type(network, ["convolution"])
    assert set(util.get_network_output_names_meta(network)[0]).isdisjoint(marked)
    util.mark_layerwise(network)
    everything = util.get_network_output_names_meta(network)[0]
    util.unmark_outputs(network, [everything[0]])
    assert util.get_network_output_names_meta(network)[0] == everything[1:]
    with pytest.raises(errors.ConfigError):
        util.mark_outputs(network, ["no such tensor"])


def test_layers_are_described(parts):
    _, network, _ = parts
    mapping = util.get_layer_class_mapping()
    layer = network.get_layer(0)

    assert mapping[layer.type].__name__.lower().replace("_", "") == f"i{layer.type.name.replace('_', '').lower()}layer"
    assert layer.name in util.str_from_layer(layer, 0) and "[dtype=" in util.str_from_layer(layer, 0)
    assert util.str_from_network(network, show_layers=True).startswith("Name: ")
    conv = next(
        network.get_layer(i) for i in range(network.num_layers) if network.get_layer(i).type.name == "CONVOLUTION"
    )
    assert "num_output_maps" in util.get_layer_attribute_names(conv)


def test_a_config_is_described_line_by_line(parts):
    builder, network, _ = parts
    text = util.str_from_config(create_config(builder, network), network)

    titles = [line.partition(" | ")[0].strip() for line in text.splitlines()]
    assert titles[:4] == ["Flags", "Engine Capability", "Memory Pools", "Tactic Sources"]
    assert "Profiling Verbosity" in titles


def test_inputs_have_the_ranges_of_a_profile(parts):
    builder, network, _ = parts
    profile = builder.create_optimization_profile()
    profile.set_shape("image", (1, 3, 8, 8), (2, 3, 8, 8), (4, 3, 8, 8))

    shape = util.get_input_metadata_from_network(network, util.check_profile(profile))["image"].shape
    assert (shape, shape.min, shape.max) == ((-1, 3, 8, 8), (1, 3, 8, 8), (4, 3, 8, 8))
    assert util.get_input_metadata_from_network(network, profile, force_opt_shapes=True)["image"].shape == (2, 3, 8, 8)
    assert util.get_hwc_shape_from_chw((1, 3, 4, 5)) == (1, 4, 5, 3)
    assert util.get_chw_shape_from_hwc((1, 4, 5, 3)) == (1, 3, 4, 5)


def test_what_a_parser_complains_of_is_raised():
    class Parser:
        num_errors = 1

        def get_error(self, index):
            return "bad node"

    with pytest.raises(errors.EngineBuildError, match="bad node"):
        util.check_onnx_parser_errors(Parser(), False)
    with pytest.raises(errors.UnsupportedFeatureError, match="Wings is not available"):
        util.fail_unavailable("Wings")
