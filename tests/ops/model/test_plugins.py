"""Where plugins fit, and models with their nodes; patterns as users of Polygraphy write them."""

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
import yaml

from tests import models
from trtops import errors
from trtops.ops.model.plugins import Match, match_plugins, read_matches, replace_plugins, write_matches

GELU = """
def get_plugin_metadata():
    return {"name": "gelu", "op": "FastGelu"}


def get_matching_subgraphs(graph):
    found = []
    for node in graph.nodes:
        if node.op == "Relu":
            reader = node.outputs[0].outputs[0]
            if reader.op == "Neg":
                inputs, outputs = [node.inputs[0].name], [reader.outputs[0].name]
                found.append({"inputs": inputs, "outputs": outputs, "attributes": {"scale": 2}})
    return found
"""
OWN = """

def replace_with_plugin(graph, input_tensors, output_tensors, attrs, op):
    if input_tensors[0].name == "x":
        return None
    output_tensors[0].inputs.clear()
    return graph.layer(op=op + "Own", inputs=input_tensors, outputs=output_tensors, attrs=attrs)
"""


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    """Two plugins: one that fits, and one that does not."""
    folder = tmp_path / "plugins"
    for name, text in (("gelu", GELU), ("none", GELU.replace('"gelu"', '"none"').replace('"Relu"', '"Sin"'))):
        (folder / name).mkdir(parents=True)
        (folder / name / "pattern.py").write_text(text)
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model in which the pattern is found twice."""
    proto = models.model(
        "(float[4] x) => (float[4] y) { a = Relu(x)\n b = Neg(a)\n c = Abs(b)\n d = Relu(c)\n y = Neg(d) }"
    )
    return models.Case(proto, {}, name="twice").write(tmp_path)


def place(source: str, target: str, **attributes: int) -> dict[str, object]:
    return {"inputs": [source], "outputs": [target], "attributes": attributes}


FOUND = (Match("gelu", "FastGelu", (place("x", "b", scale=2), place("c", "y", scale=2))), Match("none", "FastGelu", ()))


def test_every_place_of_every_plugin_is_found(model: Path, plugins: Path) -> None:
    assert match_plugins(model, plugins) == FOUND
    assert match_plugins(model, plugins, include=["none"]) == FOUND[1:]
    assert match_plugins(model, plugins, exclude=["none"]) == FOUND[:1]


def test_plugin_nodes_replace_subgraphs(model: Path, plugins: Path, tmp_path: Path) -> None:
    result = replace_plugins(model, tmp_path / "replaced.onnx", FOUND[:1], plugins)

    replaced = onnx.load(result.path)
    assert nodes_of(replaced) == [("FastGelu", ["x"], ["b"]), ("Abs", ["b"], ["c"]), ("FastGelu", ["c"], ["y"])]
    assert [(a.name, a.i) for a in replaced.graph.node[0].attribute] == [("scale", 2)]
    assert (result.nodes_before, result.nodes) == (5, 3)
    assert result.changes == ("Inserted gelu in 2 places.",)

    # Plugins may insert their nodes themselves.
    (plugins / "gelu" / "pattern.py").write_text(GELU + OWN)
    result = replace_plugins(model, None, FOUND[:1], plugins)
    assert [n.op_type for n in result.model.graph.node] == ["Relu", "Neg", "Abs", "FastGeluOwn"]
    assert result.changes == ("Inserted gelu in 1 places, 1 not changed.",)


def test_impossible_requests_are_refused(model: Path, plugins: Path, tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError, match="Did you mean 'gelu'"):
        match_plugins(model, plugins, include=["gelo"])
    with pytest.raises(errors.ConfigError, match="has no plugins"):
        match_plugins(model, tmp_path)
    for output, places, message in (
        (None, [Match("gelu", "F", (place("q", "y"),))], "no tensor 'q'"),
        (None, [*FOUND[:1], *FOUND[:1]], "share it"),
        (model, FOUND[:1], "would overwrite"),
    ):
        with pytest.raises(errors.ConfigError, match=message):
            replace_plugins(model, output, places, plugins)
    with pytest.raises(errors.ConfigError, match="plugin match"):
        read_matches(tmp_path / "nowhere.yaml")
    for text in ("a: [1", "[" * 5000, "!!python/object/apply:os.getcwd []"):
        (tmp_path / "bad.yaml").write_text(text)
        with pytest.raises(errors.FormatError, match="not YAML"):
            read_matches(tmp_path / "bad.yaml")
    (plugins / "gelu" / "pattern.py").write_text("def get_plugin_metadata():\n    return 1\n")
    with pytest.raises(errors.ConfigError, match="expected a dict with name and op"):
        match_plugins(model, plugins)


def nodes_of(proto: onnx.ModelProto) -> list[tuple[str, list[str], list[str]]]:
    return [(node.op_type, list(node.input), list(node.output)) for node in proto.graph.node]


@pytest.mark.parity
def test_files_and_models_equal_polygraphys(model: Path, plugins: Path, tmp_path: Path) -> None:
    def theirs(*words: str) -> None:
        command = [str(Path(sys.executable).with_name("polygraphy")), "plugin", *words, "--plugin-dir", str(plugins)]
        subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)

    theirs("match", str(model), "-o", "theirs.yaml")
    write_matches(match_plugins(model, plugins), tmp_path / "ours.yaml")
    ours, other = (list(yaml.safe_load_all((tmp_path / f"{who}.yaml").read_text())) for who in ("ours", "theirs"))
    assert ours == other

    theirs("replace", str(model), "--config", "ours.yaml", "-o", "theirs.onnx")
    replaced = replace_plugins(model, None, read_matches(tmp_path / "theirs.yaml"), plugins).model
    assert nodes_of(replaced) == nodes_of(onnx.load(tmp_path / "theirs.onnx"))
