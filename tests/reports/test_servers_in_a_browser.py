"""The real MLflow and Prefect in a real browser: verdicts and pictures are there, whatever outputs are called.

Takes a minute or two, so it only runs with `TRTOPS_TEST_BROWSER=1`.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.servers import MlflowServer
from tests.waiting import until

pytestmark = pytest.mark.skipif(
    os.environ.get("TRTOPS_TEST_BROWSER") != "1", reason="takes minutes: set TRTOPS_TEST_BROWSER=1"
)

OUTPUTS = ("two/y", "a b", "ä:0")
PATIENCE = 120_000  # milliseconds; the machine may be busy

MAKE = """
import json, sys
import numpy as np, onnx
from onnx import TensorProto, helper, numpy_helper
names = json.loads(sys.argv[1])
nodes = [helper.make_node("MatMul", ["x", "w"], ["h"], "mm")]
nodes += [helper.make_node(op, ["h"], [name]) for op, name in zip(("Relu", "Sigmoid", "Tanh"), names)]
info = lambda name, width: helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, width])
weights = np.random.default_rng(0).standard_normal((32, 24)).astype(np.float32)
weight = numpy_helper.from_array(weights, "w")
graph = helper.make_graph(nodes, "g", [info("x", 32)], [info(n, 24) for n in names], [weight])
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "odd.onnx")
from flows.convert import convert
from trtops.comparator.report import Tolerances
from trtops.ops import CheckConfig, ConvertConfig
from trtops.spec import BuildConfig
good = convert("odd.onnx")
strict = CheckConfig(tolerances=Tolerances(atol=1e-9, rtol=1e-9))
bad = convert("odd.onnx", ConvertConfig(build=BuildConfig(precision="int8"), check=strict))
print(json.dumps({"good": good.run_id, "bad": bad.run_id, "url": bad.url, "verdict": bad.verdict}))
"""


@dataclass(frozen=True)
class Served:
    """Servers that show two builds: their addresses, and what the flows returned."""

    mlflow: str
    prefect: str
    runs: dict[str, str]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    api = f"http://127.0.0.1:{port}/api"
    environment = {
        **os.environ,
        "TRTOPS_HOME": str(folder / "mlruns"),
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_API_URL": api,
        "PREFECT_UI_API_URL": api,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "true",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }

    def answers() -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{api}/health", timeout=5):
            return True
        return False

    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with open(folder / "prefect.log", "wb") as log:
        prefect = subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log, start_new_session=True)
    try:
        until(answers, while_alive=prefect)
        command = [sys.executable, "-c", MAKE, json.dumps(OUTPUTS)]
        process = subprocess.run(command, env=environment, cwd=folder, capture_output=True, check=False)
        assert process.returncode == 0, process.stderr.decode()[-3000:]
        with MlflowServer(folder / "mlruns", by_command=True) as mlflow:
            yield Served(mlflow.address, api.removesuffix("/api"), json.loads(process.stdout.decode().splitlines()[-1]))
    finally:
        os.killpg(prefect.pid, signal.SIGKILL)
        prefect.wait()


@dataclass
class Watched:
    """A page, and what went wrong on it: errors of scripts, and answers that are errors."""

    page: Any
    wrong: list[str]

    def see(self, address: str, *texts: str) -> None:
        """Open an address, and wait for texts on it."""
        self.page.goto(address, timeout=PATIENCE)
        for text in texts:
            self.page.get_by_text(text).first.wait_for(timeout=PATIENCE)

    def click(self, text: str) -> None:
        """Click on what has this text and no other."""
        self.page.get_by_text(text, exact=True).first.click(timeout=PATIENCE)

    def keep(self, name: str) -> None:
        """Keep what is seen now as a picture for the documentation, where that is asked for."""
        if folder := os.environ.get("TRTOPS_SCREENSHOTS"):
            for panel in self.page.locator(ASSISTANT).all():
                panel.click(timeout=PATIENCE)
            self.page.screenshot(path=str(Path(folder, f"{name}.png")))


ASSISTANT = "[data-component-id='mlflow.assistant.chat_panel.close']"
"""The button that closes the panel next to MLflow's pages."""
OWN_GAPS = ("/users/current", "/favicon")
"""Addresses that the servers' own pages ask for in vain, whatever is shown."""


@pytest.fixture
def watched(browser: Any) -> Iterator[Watched]:
    page = browser.new_page(viewport={"width": 2200, "height": 1000})
    page_watch = Watched(page, [])
    page.on("pageerror", lambda error: page_watch.wrong.append(str(error)))
    page.on(
        "response",
        lambda answer: (
            page_watch.wrong.append(f"{answer.status} {answer.url}")
            if answer.status >= 400 and not any(gap in answer.url for gap in OWN_GAPS)
            else None
        ),
    )
    page.set_default_timeout(PATIENCE)
    yield page_watch
    page.close()


def test_mlflow_s_table_says_which_build_is_bad(served: Served, watched: Watched) -> None:
    assert served.runs["verdict"] == "bad"  # a bad engine is a result of a flow that is called
    experiment = served.runs["url"].split("/")[2]
    watched.see(f"{served.mlflow}/#/experiments/{experiment}/runs?workflowType=machine_learning", "INT8 ort")
    watched.keep("mlflow-runs")
    assert watched.wrong == []


def test_a_run_s_page_begins_with_its_verdict_and_shows_its_pictures(served: Served, watched: Watched) -> None:
    run = f"{served.mlflow}/{served.runs['url'].partition('?')[0]}"
    watched.see(f"{run}?workflowType=machine_learning", "convert odd.onnx to INT8 on onnxruntime", "two/y: ")
    watched.keep("mlflow-run")
    # Addresses of artifacts are no way in: MLflow does not decode them. A person clicks, too.
    watched.see("about:blank")
    watched.see(f"{run}/artifacts")
    watched.click("accuracy")
    seen: list[str] = []
    for stem in ("two~2f~y", "a b", "ä~3a~0"):
        watched.click(f"{stem}.errors.svg")
        shown = (
            "seen => [...document.images].some(i => i.src.startsWith('blob:') && !seen.includes(i.src) "
            "&& i.complete && i.naturalWidth > 100)"
        )
        watched.page.wait_for_function(shown, arg=seen, timeout=PATIENCE)
        seen = watched.page.evaluate("[...document.images].map(i => i.src)")
    watched.keep("mlflow-picture")
    watched.click("report")
    watched.click("report.html")
    watched.page.frame_locator("iframe").get_by_text("Largest error of each output").first.wait_for(timeout=PATIENCE)
    watched.keep("mlflow-report")
    assert watched.wrong == []


def test_prefect_s_list_says_the_verdict_and_its_artifact_leads_to_the_report(served: Served, watched: Watched) -> None:
    watched.see(f"{served.prefect}/runs", "Bad: two/y", "Good", "odd int8 onnxruntime")
    watched.keep("prefect-runs")
    watched.see(f"{served.prefect}/artifacts", "convert odd.onnx")
    watched.page.locator("a[href*='/artifacts/key/convert-odd-onnx']").first.click()
    watched.page.locator("a[href*='/artifacts/artifact/']").first.click()  # the newest
    watched.page.get_by_text(f"trtops report {served.runs['bad']}").first.wait_for(timeout=PATIENCE)
    assert watched.wrong == []
