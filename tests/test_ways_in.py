"""The page of all ways to run code from data names tests that exist, and some of them are these."""

import re
from pathlib import Path

import pytest

from tests import models
from trtops import errors
from trtops.backend.onnxrt.loader import SessionFromOnnx
from trtops.ops.engines.model_list import read_model_list
from trtops.ops.gate.policy import read_policy
from trtops.ops.model.plugins import match_plugins, read_matches

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "trtops" / "code_from_data.md").read_text()


def test_every_documented_input_has_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("|") and "---" not in line and "| risk" not in line]
    assert len(rows) > 20
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row)
        assert named, row
        for file, test in named:
            assert not test or re.search(rf"^def {test}\(", (ROOT / file).read_text(), re.MULTILINE), row
    for linked in re.findall(r"\]\(([\w/.]+)\)", PAGE):
        assert (ROOT / "trtops" / linked).exists(), linked


def test_yaml_creates_no_objects(tmp_path: Path) -> None:
    note = tmp_path / "ran"
    path = tmp_path / "evil.yaml"
    for text in (f"!!python/object/apply:os.mknod ['{note}']", f"models: !!python/object/apply:os.mknod ['{note}']"):
        path.write_text(text)
        for read in (read_model_list, read_policy, read_matches):
            with pytest.raises(errors.TrtopsError):
                read(path)
    assert not note.exists()


def test_plugin_patterns_need_script_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plugins" / "evil").mkdir(parents=True)
    (tmp_path / "plugins" / "evil" / "pattern.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.setenv("TRTOPS_ALLOWED_SCRIPTS", str(tmp_path / "elsewhere"))

    with pytest.raises(errors.ConfigError, match="may not be run"):
        match_plugins(models.conv_net().write(tmp_path), tmp_path / "plugins")
    assert not (tmp_path / "ran").exists()


def test_model_loads_no_operator_library(tmp_path: Path) -> None:
    proto = models.model("(float[4] x) => (float[4] y) { y = Relu(x) }")
    proto.graph.node[0].domain = "custom"
    proto.opset_import.add(domain="custom", version=1)
    proto.metadata_props.add(key="ortextensions", value=str(tmp_path / "evil.so"))

    with pytest.raises((errors.InvalidModelError, errors.UnsupportedFeatureError)):
        SessionFromOnnx(proto.SerializeToString())()
