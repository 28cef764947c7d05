"""A malicious MLflow server and a store with forged runs: test doubles for code that reads what others wrote.

The server answers MLflow's requests with one forged run. Anyone with write access to a shared store can do the same.
"""

import contextlib
import json
import sys
import threading
import time
import urllib.parse
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests import models
from tests.stores import copy_store, execute
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.search.command import CommandCheck
from trtops.record import sha256
from trtops.tracking.schema import Artifact, Tag

RUN = "ab" * 16


@dataclass
class HostileServer:
    """What the server answers; a test changes what it needs."""

    run_id: str = RUN  # whatever id was requested
    tags: dict[str, str] = field(default_factory=dict)
    artifact_uri: str = f"mlflow-artifacts:/0/{RUN}/artifacts"
    files: dict[str, bytes] = field(default_factory=dict)  # artifacts by path, listed and sent
    listed: dict[str, list[tuple[str, int, bool]]] = field(default_factory=dict)  # by folder, instead of the files
    endless: bool = False  # artifacts and pages of runs never end
    junk: bytes | None = None  # the answer to everything
    drips: bool = False  # answers never end, and come a byte at a time
    address: str = ""
    requested_paths: list[str] = field(default_factory=list)

    def run(self) -> dict[str, Any]:
        """The run, as MLflow sends it."""
        info = {
            "run_id": self.run_id,
            "run_uuid": self.run_id,
            "run_name": "forged",
            "experiment_id": "1",
            "status": "FINISHED",
            "start_time": 1,
            "end_time": 2,
            "artifact_uri": self.artifact_uri,
            "lifecycle_stage": "active",
        }
        return {"info": info, "data": {"tags": [{"key": k, "value": v} for k, v in self.tags.items()]}}

    def answer(self, path: str, query: dict[str, str]) -> dict[str, Any]:
        """The answer to a request of MLflow's client."""
        name = path.partition("/mlflow/")[2]
        experiment = {"experiment_id": "1", "name": "forged", "lifecycle_stage": "active", "artifact_location": "x"}
        page_token = {"next_page_token": "x" if self.endless else None}
        if name in ("runs/get", "runs/create"):
            return {"run": self.run()}
        if name == "runs/search":
            return {"runs": [self.run()] * (1000 if self.endless else 1), **page_token}
        if name == "experiments/search":
            return {"experiments": [experiment], **page_token}
        if name.startswith("experiments/get"):
            return {"experiment": experiment}
        if path.endswith("/mlflow-artifacts/artifacts"):
            folder = query.get("path", "").partition("/artifacts")[2].strip("/")
            inside = [p for p in self.files if p.rpartition("/")[0] == folder]
            stored_files = [(p.rpartition("/")[2], len(self.files[p]), False) for p in inside]
            listed = self.listed.get(folder, stored_files)
            return {"files": [{"path": p, "file_size": s, "is_dir": d} for p, s, d in listed]}
        return {}


@contextlib.contextmanager
def serving(hostile: HostileServer) -> Iterator[str]:
    """Serve it for the time of a block, on a thread; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            address = urllib.parse.urlsplit(self.path)
            hostile.requested_paths.append(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            query = dict(urllib.parse.parse_qsl(address.query))
            if "/mlflow-artifacts/artifacts/" in address.path and hostile.junk is None:
                path = urllib.parse.unquote(address.path).partition("/artifacts/")[2].partition("/artifacts/")[2]
                self._send(hostile.files.get(path, b""), endless=hostile.endless or hostile.drips)
                return
            if body.startswith(b"{"):
                query.update({k: str(v) for k, v in json.loads(body).items()})
            data = json.dumps(hostile.answer(address.path, query)).encode() if hostile.junk is None else hostile.junk
            self._send(data, endless=hostile.drips)

        do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

        def _send(self, data: bytes, endless: bool = False) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            if not endless:
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            with contextlib.suppress(OSError):
                while hostile.drips:
                    self.wfile.write(b" ")
                    time.sleep(0.1)
                self.wfile.write(data)
                while endless:
                    self.wfile.write(b"x" * (1 << 16))

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        hostile.address = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield hostile.address
        finally:
            server.shutdown()


def manifest_of(files: dict[str, bytes], **changes: Any) -> bytes:
    """A manifest of these files, with changes to each of its entries."""
    entries = [{"path": path, "size": len(data), "sha256": sha256(data)} | changes for path, data in files.items()]
    return json.dumps({"artifacts": entries}).encode()


def forge_run(
    root: Path,
    files: dict[str, bytes],
    tags: dict[str, str],
    *,
    manifest: bytes | None = None,
    status: str = "FINISHED",
    uri: str | None = None,
    whole: bool = True,
) -> str:
    """Forge a run in the embedded store at ``root``, and return its id.

    ``manifest`` replaces the one that fits the files, and a run that is not ``whole`` has none.
    """
    run_id = uuid.uuid4().hex
    folder = root / "artifacts" / "forged" / run_id / "artifacts"
    folder.mkdir(parents=True)
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    if whole:
        (folder / Artifact.MANIFEST).write_bytes(manifest_of(files) if manifest is None else manifest)
    columns = {
        "run_uuid": run_id,
        "name": "forged",
        "source_type": "LOCAL",
        "user_id": "mallory",
        "status": status,
        "start_time": 1,
        "end_time": 2,
        "lifecycle_stage": "active",
        "experiment_id": 0,  # "Default"
        "artifact_uri": str(folder) if uri is None else uri,
    }
    marks = ", ".join("?" * len(columns))
    execute(root, f"INSERT INTO runs ({', '.join(columns)}) VALUES ({marks})", *columns.values())
    for key, value in tags.items():
        execute(root, "INSERT INTO tags (key, value, run_uuid) VALUES (?, ?, ?)", key, value, run_id)
    return run_id


KINDS_READ = ("build", "debug_build", "iteration", "proof", "deny", "promote")
"""Kinds of runs with artifacts that commands read."""


def forged_runs(hostile_folder: Path) -> list[str]:
    """A run for each way to forge one that is known, of every kind."""
    root, victim, script = hostile_folder / "mlruns", hostile_folder / "victim", write_evil_script(hostile_folder)
    model = hostile_folder / "work" / "conv_net.onnx"
    evil = DebugBuildConfig(
        check=CheckConfig(data=str(script)),
        calibration_data=str(script),
        command=CommandCheck(command=(sys.executable, str(script), "{engine}"), artifact=str(victim / "engine")),
    )
    campaign = {Artifact.CAMPAIGN: evil.to_json().encode()}
    of_model = {Tag.MODEL_PATH: str(model), Tag.MODEL_SHA256: "0" * 64}
    junk = {
        path: b"[" * 100_000
        for path in (Artifact.SPEC, Artifact.ENVIRONMENT, Artifact.ENGINE_OPTIONS, Artifact.DENIED, Artifact.ACCURACY)
    }
    paths = {"engine/engine.ort": b"plan", Artifact.SPEC: b"{}"}
    runs = []
    for kind in KINDS_READ:
        tags = {Tag.KIND: kind, Tag.VERDICT: "good", Tag.PROOF: "confirmed", Tag.ITERATION: "9" * 5000, **of_model}
        runs.append(forge_run(root, campaign | junk, tags))
    tags = {Tag.KIND: "build", Tag.VERDICT: "good", **of_model}
    runs += [
        forge_run(root, paths, tags, manifest=manifest_of(paths, path="../../../../victim/authorized_keys")),
        forge_run(root, paths, tags, manifest=manifest_of(paths, sha256=str(victim), path="authorized_keys")),
        forge_run(root, paths, tags, manifest=manifest_of(paths, size=1 << 60)),
        forge_run(root, paths, tags, manifest=b"\xff\xfe"),
        forge_run(root, paths, tags, uri=str(victim)),
        forge_run(root, paths, tags, uri=f"mlflow-artifacts:/../../{victim.name}"),
        forge_run(root, paths, tags | {Tag.REUSED_FROM: "../../victim"}),
        forge_run(root, {}, tags | {Tag.TRIAL: "{", Tag.OWNER: "{}", "trtops.text.x.y": "z"}),
        forge_run(root, campaign, {Tag.KIND: "debug_build", **of_model}, status="RUNNING", whole=False),
    ]
    linked = forge_run(root, paths, tags)
    [folder] = root.rglob(f"{linked}/artifacts")
    (folder / "engine" / "engine.ort").unlink()
    (folder / "engine" / "engine.ort").symlink_to(victim / "authorized_keys")
    (folder / "out").symlink_to(victim)
    looped = forge_run(root, campaign, tags | {Tag.KIND: "iteration"})
    execute(root, "INSERT INTO tags (key, value, run_uuid) VALUES ('mlflow.parentRunId', ?, ?)", looped, looped)
    return [*runs, linked, looped]


def write_artifact(root: Path, run_id: str, path: str, data: bytes) -> None:
    """Put other bytes into an artifact of a run of an embedded store, and nothing else."""
    [file] = root.rglob(f"{run_id}/artifacts/{path}")
    file.write_bytes(data)


def rewrite(tracker: Any, run_id: str, path: str, data: bytes) -> None:
    """Change an artifact and the manifest with it."""
    write_artifact(tracker.store.root, run_id, path, data)
    listed = json.loads(tracker.peek(run_id, Artifact.MANIFEST))
    for entry in listed["artifacts"]:
        if entry["path"] == path:
            entry |= {"size": len(data), "sha256": sha256(data)}
    write_artifact(tracker.store.root, run_id, Artifact.MANIFEST, json.dumps(listed).encode())


CONTROLS = "\x1b]0;t\x07\x1b[2J\x9b1A\u202e\u2066\u200f\r\nverdict: forged\x85\u2028\x7f\U000e0041"
"""Ends of names that set a terminal's title, clear it, reverse text, and print a line of their own."""


def write_controlling_models(folder: Path) -> None:
    """Write ``fine.onnx`` and ``bad.onnx``, whose second node is unknown; every name in them ends in CONTROLS."""
    x, w, y, z, size, domain = (f"{name}{CONTROLS}" for name in "xwyznd")
    weight = onnx.numpy_helper.from_array(np.ones((4, 4), np.float32), w)
    nodes = [helper.make_node("MatMul", [x, w], [y], name=f"first{CONTROLS}", doc_string=CONTROLS)]
    further = helper.make_node(f"Op{CONTROLS}", [y], [z], name=f"second{CONTROLS}", domain=domain, a=CONTROLS)
    for name, graph_nodes, output in (("fine", nodes, y), ("bad", [*nodes, further], z)):
        ends = [helper.make_tensor_value_info(end, TensorProto.FLOAT, [size, 4]) for end in (x, output)]
        graph = helper.make_graph(graph_nodes, f"g{CONTROLS}", ends[:1], ends[1:], [weight], doc_string=CONTROLS)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
        model = helper.make_model(graph, producer_name=CONTROLS, opset_imports=opsets, ir_version=8)
        model.metadata_props.add(key=f"key{CONTROLS}", value=CONTROLS)
        onnx.save(model, folder / f"{name}.onnx")


WAYS = ("id", "digest", "path", "scripts", "endless", "elsewhere", "junk", "listing")
"""Attacks by a server on its readers."""


def server_that(way: str, hostile_folder: Path) -> HostileServer:
    """A server that attacks its readers in one of the ways; the place is one of :func:`victim_of`."""
    config = DebugBuildConfig(check=CheckConfig(data=str(write_evil_script(hostile_folder)))).to_json().encode()
    files = {"engine/engine.ort": b"plan", Artifact.CAMPAIGN: config, Artifact.DENIED: b"{}"}
    tags = {Tag.KIND: "debug_build", Tag.VERDICT: "good", Tag.MODEL_PATH: "conv_net.onnx", Tag.PROOF: "confirmed"}
    server = HostileServer(files=files | {Artifact.MANIFEST: manifest_of(files)}, tags=tags)
    victim = hostile_folder / "victim"
    if way == "id":
        server.run_id = str(victim)
    elif way == "digest":
        server.files[Artifact.MANIFEST] = manifest_of(files, sha256=str(victim), path="authorized_keys")
    elif way == "path":
        server.files[Artifact.MANIFEST] = manifest_of(files, path=str(victim / "authorized_keys"))
    elif way == "endless":
        server.endless = True
    elif way == "elsewhere":
        server.artifact_uri = str(victim)
    elif way == "junk":
        server.junk = json.dumps({"run": {"info": {"run_id": 7}}, "runs": 1, "experiments": "x"}).encode()
    elif way == "listing":
        server.listed[""] = [("../../victim/authorized_keys", 1, False), (Artifact.MANIFEST, 1 << 50, False)]
    return server


def write_evil_script(hostile_folder: Path) -> Path:
    """A script of input data that writes a file when it is run."""
    script = hostile_folder / "work" / "evil.py"
    script.write_text(f"open({str(hostile_folder / 'ran')!r}, 'w')\ndef load_data():\n    return []\n")
    return script


@contextlib.contextmanager
def victim_of(folder: Path, template: Path) -> Iterator[Path]:
    """An empty folder with a copied store, a working folder with a model, and a victim; fails if it was harmed."""
    copy_store(template, folder / "mlruns")
    for name in ("work", "victim", "tmp", "spool"):
        (folder / name).mkdir()
    (folder / "victim" / "authorized_keys").write_text("mine")
    models.conv_net().write(folder / "work")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder / "work")
        patch.setattr("tempfile.tempdir", str(folder / "tmp"))
        patch.setenv("TRTOPS_TRACKING_WAIT", "0")
        patch.setenv("TRTOPS_SPOOL", str(folder / "spool"))
        yield folder
    # What a server sent lies in a temporary folder until this process ends.
    assert {path.name for path in folder.iterdir()} == {"mlruns", "work", "victim", "tmp", "spool"}
    check_unharmed(folder)


def check_unharmed(hostile_folder: Path, action: object = None) -> None:
    """Fail if something of the store's was run, or written where it should not."""
    assert not (hostile_folder / "ran").exists(), action
    assert [path.name for path in (hostile_folder / "victim").iterdir()] == ["authorized_keys"], action
    assert (hostile_folder / "victim" / "authorized_keys").read_text() == "mine", action


MODULES = (
    *("typing", "runpy", "json", "logging", "pydoc", "socket", "ssl", "venv", "ensurepip", "pip"),
    *("numpy", "onnx", "onnxruntime", "google", "mlflow", "prefect", "uvicorn", "fastapi", "sqlalchemy", "alembic"),
    *("trtops_script", "sitecustomize", "usercustomize"),
)
"""What Python would look for in a working folder that comes first in its module search path.

Without `contextlib`, which Python's own `-m` imports from there before any module of ours.
"""


def plant_modules(folder: Path, note: Path) -> None:
    """Put modules into a folder that each say in a file that they were imported, and by whom."""
    for name in MODULES:
        (folder / f"{name}.py").write_text(
            f"import os, sys\nopen({str(note)!r}, 'a').write(f'{{__name__}}: {{sys.orig_argv}}\\n')\n"
            f"raise SystemExit('{name} of the working folder was imported')\n"
        )
