"""Reads engines from a file in blocks, as TensorRT requests them."""

import os
from pathlib import Path
from typing import Any

from trtops import errors
from trtops.backend.trt import library


def FileReader(filepath: str | os.PathLike[str], BaseClass: type | None = None) -> Any:
    """Create a reader for TensorRT to deserialize an engine from, block by block.

    Use it in a ``with`` block or close it with ``free()``. ``BaseClass`` is ``IStreamReader`` by default, or
    ``IStreamReaderV2`` on releases without it.

    Raises EngineLoadError if there is no such file; UnsupportedFeatureError if this release reads engines only from
    memory.
    """
    trt = library.load()
    base: Any = BaseClass or getattr(trt, "IStreamReader", None) or getattr(trt, "IStreamReaderV2", None)
    if base is None:
        raise errors.UnsupportedFeatureError(
            f"{library.line().name} reads engines only from memory; use EngineFromPath instead of FileReader."
        )
    if not Path(filepath).is_file():
        raise errors.EngineLoadError(f"{os.fspath(filepath)} is not a file; expected an engine.")

    class Reader(base):  # type: ignore[misc]
        """Called from C++."""

        def __init__(self) -> None:
            base.__init__(self)
            self.filepath = filepath
            self.mode = "rb"
            self.file = open(filepath, "rb")  # noqa: SIM115 - closed by free()

        def read(self, size: int, stream: Any = None) -> bytes:
            return self.file.read(size)

        def seek(self, offset: int, whence: int = 0) -> int:
            return self.file.seek(offset, int(whence))

        def free(self) -> None:
            self.file.close()

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *exc_info: object) -> None:
            self.free()

    return Reader()
