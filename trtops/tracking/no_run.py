"""The run of an untracked op, in a module without imports of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from trtops.tracking.writing import Run


class _NoRun:
    """Accepts everything and stores nothing."""

    id = url = ""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: () if name == "logged" else None


NO_RUN = cast("Run", _NoRun())
