"""What Prefect's forms say of each deployment's parameters, and what is said where there is no server."""

from __future__ import annotations

import importlib
import inspect
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flows import deployments
from flows.command import run
from flows.deployments import read_deployments
from flows.forms import form_of
from flows.nightly import nightly
from flows.watch import watch
from tests import models
from trtops import errors
from trtops.record import _attribute_texts, _plain_text
from trtops.tracking.store import open_tracker

FLOWS = sorted({deployment["entrypoint"] for deployment in read_deployments()})


def flow_of(entrypoint: str) -> Any:
    module, _, function = entrypoint.rpartition(".")
    return getattr(importlib.import_module(module), function)


@pytest.mark.parametrize("entrypoint", FLOWS)
def test_every_parameter_is_titled_and_explained_also_those_inside_configs(entrypoint: str):
    form = form_of(flow_of(entrypoint))

    for name, part in form.properties.items():
        assert part["title"][0].isupper() and "_" not in part["title"], name
        assert part.get("description"), f"{entrypoint}: {name}"
    for kind, definition in form.definitions.items():
        assert definition["description"] and "\n" not in definition["description"], kind
        unexplained = [name for name, part in definition["properties"].items() if not part.get("description")]
        assert not unexplained, f"{kind}: {unexplained}"


def test_choices_and_ranges_are_in_the_form():
    properties = form_of(watch).properties

    assert properties["precisions"]["items"]["enum"] == ["fp32", "fp16", "bf16", "fp8", "int8"]
    assert properties["precisions"]["minItems"] == 1
    assert (properties["attempts"]["minimum"], properties["settle_seconds"]["minimum"]) == (1, 0)
    assert properties["bad"]["enum"] == ["fail", "report"]
    assert properties["attempts"]["description"].endswith(" (at least 1)")
    until = form_of(flow_of("flows.debug_build.debug_build")).properties["until"]["anyOf"]
    assert until == [
        {"title": "whole number, at least 1", "type": "integer", "minimum": 1},
        {"title": "good | bad | decided", "type": "string", "enum": ["good", "bad", "decided"]},
        {"title": "not given", "type": "null"},
    ]


def test_parameters_of_deployments_are_ones_of_their_flows_and_beat_no_config():
    for deployment in read_deployments():
        given = deployment.get("parameters", {})
        assert set(given) <= set(inspect.signature(flow_of(deployment["entrypoint"]).fn).parameters)
        assert not {"precision", "config"} & set(given)
        assert "env" not in deployment["work_pool"].get("job_variables", {})
        assert deployment["name"] == deployment["work_pool"]["name"].removeprefix("trtops-")
    keys = [deployments._deployment_key(deployment) for deployment in read_deployments()]
    assert len(keys) == len(set(keys))


def test_a_docstring_s_attributes_are_read_whole():
    docstring = """First line.

    Attributes:
        one: Of :class:`~a.b.Thing`, and
            two lines: of ``text``.
        two: Second.

    Raises:
        Error: Not an attribute.
    """
    assert _attribute_texts(docstring) == {"one": "Of Thing, and two lines: of 'text'.", "two": "Second."}
    assert _attribute_texts("Nothing.") == {}
    assert _plain_text(":func:`f` and :mod:`a.b`") == "f and b"


@pytest.mark.parametrize("verb", ["deploy", "serve"])
def test_without_a_server_it_is_said_what_to_do(verb: str, tmp_path: Path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/api"
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    plain["TRTOPS_HOME"] = str(tmp_path)

    for server, said in (({}, "No Prefect server is named."), ({"PREFECT_API_URL": url}, f"answers at {url}")):
        done = subprocess.run(
            [sys.executable, "-m", "flows.deployments", verb], env=plain | server, capture_output=True, text=True
        )
        assert done.returncode == 3
        assert said in done.stderr and "make up" in done.stderr
        assert not [line for line in done.stderr.splitlines() if "Traceback" in line]


def test_a_list_and_a_folder_are_built_by_flows_whose_state_says_what_failed(store: Path, tmp_path: Path):
    models.conv_net().write(tmp_path)
    listed = tmp_path / "list.yaml"
    listed.write_text("models:\n  - model: conv_net.onnx\n    policy: {isolated: false}\n  - model: conv_nett.onnx\n")

    with pytest.raises(errors.BuildListError, match=r"^1 of 2 failed \(1 good, 1 error\)$") as raised:
        nightly(listed)
    assert [build.outcome for build in raised.value.result.builds] == ["good", "error"]  # type: ignore[attr-defined]
    assert len(open_tracker().find("conv_net")) == 1

    listed.write_text("models: []")
    assert nightly(listed, experiment="x").headline == "nothing to build"
    assert watch(tmp_path / "none").builds == ()
    with pytest.raises(errors.ConfigError, match="attempts"):
        watch(tmp_path, attempts=0)
    listed.write_text("modles: []")
    with pytest.raises(errors.FormatError, match="Did you mean 'models'"):
        nightly(listed)


@pytest.mark.filterwarnings("ignore:Cyclopts application invoked without tokens")
def test_from_the_shell_the_verdict_of_a_list_is_the_exit_code(store: Path, tmp_path: Path, monkeypatch, capsys):
    listed = tmp_path / "list.yaml"
    listed.write_text("models:\n  - model: conv_nett.onnx\n")
    monkeypatch.setattr(sys, "argv", ["nightly", str(listed)])

    assert run(nightly, "nightly") == 1
    assert "# build list list.yaml: 1 of 1 failed (1 error)" in capsys.readouterr().out
