"""Load an engine for MLflow's clients: ``mlflow.pyfunc.load_model("models:/NAME@accepted").predict(inputs)``.

The ``MLmodel`` file of a logged model names this module. The folder has files of the engine's run with its manifest,
and each file is compared with it before use. An engine too large to be stored twice is read from the run.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trtops import errors
from trtops.backend.engines import engine_backend
from trtops.tracking import builds
from trtops.tracking.artifact_files import LocalFiles
from trtops.tracking.mlflow.installed import library
from trtops.tracking.mlflow.logged_models import MAX_COPIED_BYTES
from trtops.tracking.mlflow.tracker import MlflowTracker
from trtops.tracking.reading import StoredRun, read_manifest
from trtops.tracking.records import ArtifactEntry, RunDetails, RunInfo
from trtops.tracking.schema import Artifact


class EngineModel:
    """A loaded engine. Threads take turns, and the runtime is freed with the object."""

    def __init__(self, engine: Any) -> None:
        self._runner = engine_backend(engine.backend).runner(engine)
        self._lock = threading.Lock()
        self._runner.activate()
        self._inputs = self._runner.get_input_metadata()

    def __del__(self) -> None:
        if hasattr(self, "_lock"):
            self._runner.deactivate()

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> dict[str, np.ndarray[Any, Any]]:
        """Return the outputs by name for a DataFrame or a mapping of arrays by input, or for the only input's array.

        Raises InputError if names, types or shapes are not those of the model.
        """
        if isinstance(model_input, np.ndarray):
            model_input = dict.fromkeys(list(self._inputs)[:1], model_input)
        feed = {}
        for name in model_input:
            values = model_input[name]
            array = np.asarray(values.tolist() if hasattr(values, "tolist") and values.dtype == object else values)
            expected = self._inputs.get(name)
            feed[str(name)] = array if expected is None else array.astype(expected.dtype, copy=False)
        with self._lock:
            outputs = self._runner.infer(feed)
            return {name: np.array(array) for name, array in outputs.items()}


def _load_pyfunc(path: str) -> EngineModel:
    """Load the engine in a folder. MLflow calls it by this name."""
    return EngineModel(builds.load_engine(_stored_run(Path(path))))


def _stored_run(folder: Path) -> StoredRun:
    """The run whose files are in a folder; files that are missing there are read from the run itself."""
    files = LocalFiles(folder)
    manifest = read_manifest(str(folder), files.peek(Artifact.MANIFEST))
    stated = manifest.run
    if stated is None:
        raise errors.IncompleteRunError(f"{folder}: {Artifact.MANIFEST} does not name its run. Download it again.")

    def load(run_id: str) -> StoredRun:
        return MlflowTracker(library().get_tracking_uri()).load(run_id)

    def fetch(entry: ArtifactEntry) -> Path | None:
        if (file := files.get(entry)) is None and entry.size > MAX_COPIED_BYTES:
            return load(stated.id).local_path(entry.path)
        return file

    info = RunInfo(
        id=stated.id, experiment=stated.experiment, name=stated.name, parent=stated.parent, status="finished",
        start_time=stated.start_time, end_time=stated.end_time, tags=stated.tags, params=stated.params, metrics={},
    )  # fmt: skip
    details = RunDetails(user=None, status=("", ""), history={}, files=())
    return StoredRun(info, manifest, fetch, files.peek, load, lambda: details)
