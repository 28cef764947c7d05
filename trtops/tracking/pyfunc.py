"""Engines as MLflow models: ``mlflow.pyfunc.load_model("models:/<name>@accepted")`` loads one.

The folder of an engine in a run has a file ``MLmodel`` that names this module as the loader. Nothing is pickled, and
nothing from the store is executed but the engine itself, whose digest is checked first.
"""

from __future__ import annotations

import datetime
import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trtops import errors
from trtops.backend.base import BaseRunner, Engine
from trtops.backend.engines import engine_backend
from trtops.record import JSONValue, sha256
from trtops.spec import Environment

if TYPE_CHECKING:
    from numpy.typing import NDArray

FILE = "MLmodel"
_KEY = "trtops"


def mlmodel(engine: Engine, file_name: str) -> dict[str, JSONValue]:
    """The content of the file ``MLmodel`` for an engine's file in the same folder, as JSON, which is also YAML."""
    about: dict[str, JSONValue] = {
        "backend": engine.backend,
        "engine_sha256": engine.sha256,
        "options": dict(engine.options),
        "environment": engine.environment.to_dict(),
    }
    return {
        "flavors": {
            "python_function": {
                "loader_module": __name__,
                "python_version": platform.python_version(),
                "data": file_name,
                "env": {},
            }
        },
        "metadata": {_KEY: about},
        "utc_time_created": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f"),
    }


class EngineModel:
    """An engine with MLflow's method ``predict``. It is opened on first use; :meth:`close` frees its memory."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._runner: BaseRunner | None = None

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> dict[str, NDArray[Any]]:
        """Run the engine once.

        Args:
            model_input: Arrays by input name; one array if there is one input; or a pandas frame with a column per
                input.
            params: Not used; MLflow passes it.

        Returns:
            New arrays by output name.

        Raises:
            ConfigError: If inputs are missing or unknown.
        """
        if self._runner is None:
            self._runner = engine_backend(self._engine.backend).runner(self._engine)
            self._runner.activate()
        wanted = self._runner.get_input_metadata()
        feed = _feed_of(model_input, tuple(wanted))
        types = {name: None if (type_ := wanted[name].dtype) is None else type_.numpy() for name in wanted}
        feed = {name: np.asarray(array, dtype=types[name]) for name, array in feed.items()}
        return {name: np.array(array) for name, array in self._runner.infer(feed).items()}

    def close(self) -> None:
        """Free the engine's memory."""
        if self._runner is not None:
            self._runner.deactivate()
            self._runner = None


def _feed_of(given: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The input of an MLflow call as arrays by input name."""
    if hasattr(given, "to_dict") and hasattr(given, "columns"):
        given = {str(name): np.stack([np.asarray(each) for each in given[name]]) for name in given.columns}
    if not isinstance(given, Mapping) and len(names) == 1:
        given = {names[0]: given}
    if not isinstance(given, Mapping) or set(given) != set(names):
        found = ", ".join(map(str, given)) if isinstance(given, Mapping) else type(given).__name__
        raise errors.ConfigError(f"The engine has the inputs {', '.join(names)}; found {found}.")
    return dict(given)


def _load_pyfunc(path: str) -> EngineModel:
    """MLflow calls this with the path of the engine's file.

    Raises:
        FormatError: If trtops did not write its ``MLmodel``.
        StoreError: If the engine is not the one that was logged.
    """
    file = Path(path)
    try:
        about = json.loads((file.parent / FILE).read_text("utf-8"))["metadata"][_KEY]
        environment = Environment.from_dict(about["environment"])
        backend, options, digest = str(about["backend"]), dict(about["options"]), str(about["engine_sha256"])
    except (OSError, ValueError, LookupError, TypeError) as exc:
        raise errors.FormatError(f"{file.parent / FILE} was not written by trtops ({exc}).") from None
    plan = file.read_bytes()
    if sha256(plan) != digest:
        raise errors.StoreError(f"{file} is not the engine that was logged: it has digest {sha256(plan)[:12]}.")
    return EngineModel(Engine(backend=backend, plan=plan, options=options, environment=environment))
