"""Code for this machine, inside a plan or in a plugin library, is run only where somebody allowed it."""

from __future__ import annotations

from typing import Any

import pytest

from trtops import errors
from trtops.backend.trt import engine_from_bytes, engine_from_path, load_plugins

pytestmark = pytest.mark.usefixtures("rtx")


class Runtime:
    """A runtime that only notes what it is asked; TensorRT-RTX itself loads nothing without a GPU."""

    engine_host_code_allowed = False

    def deserialize_cuda_engine(self, plan: object) -> Any:
        return None


def refused(**options: Any) -> tuple[bool, str]:
    runtime = Runtime()
    with pytest.raises(errors.EngineLoadError) as raised:
        engine_from_bytes(b"plan", runtime, **options)
    return runtime.engine_host_code_allowed, str(raised.value)


def test_host_code_is_refused_unless_allowed(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    allowed, message = refused()
    assert not allowed and "TRTOPS_ALLOW_HOST_CODE=1" in message

    assert refused(allow_host_code=True)[0] and "HOST_CODE" not in refused(allow_host_code=True)[1]
    monkeypatch.setenv("TRTOPS_ALLOW_HOST_CODE", "1")
    assert refused()[0] and not refused(allow_host_code=False)[0]
    (tmp_path / "x.plan").write_bytes(b"plan")
    runtime = Runtime()
    with pytest.raises(errors.EngineLoadError):
        engine_from_path(tmp_path / "x.plan", runtime)
    assert runtime.engine_host_code_allowed
    monkeypatch.delenv("TRTOPS_ALLOW_HOST_CODE")
    with pytest.raises(errors.EngineLoadError):
        engine_from_bytes(b"plan", runtime)
    assert runtime.engine_host_code_allowed  # a runtime that allows it keeps its word


def test_plugin_library_outside_allowed_folders_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("TRTOPS_ALLOWED_SCRIPTS", str(tmp_path / "allowed"))

    with pytest.raises(errors.ConfigError, match=r"plugin library .*libplugin\.so may not be run"):
        load_plugins([tmp_path / "libplugin.so"])
    with pytest.raises(errors.BackendUnavailableError, match="cannot be loaded"):
        load_plugins([tmp_path / "allowed" / "libplugin.so"])
