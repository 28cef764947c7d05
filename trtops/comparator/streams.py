"""Iterations on disk, in Polygraphy's formats.

A path with a suffix is one file for all iterations. A path without a suffix is a directory with a file for each:
``0000000000.json``, ``0000000001.json`` and so on.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from trtops import errors
from trtops.json import load_json, save_json

T = TypeVar("T")
PathLike: TypeAlias = str | os.PathLike[str]


def iterate_files(
    paths: PathLike | Sequence[PathLike], load: Callable[[Path], Iterable[T]], allow_dirs: bool
) -> Iterator[T]:
    """Yield the iterations of files and directories one after the other; ``load`` loads the iterations of one file.

    Raises FormatError if a path is a directory and these are not accepted, or a directory without iterations.
    """
    for path in [paths] if isinstance(paths, (str, os.PathLike)) else paths:
        if not Path(path).is_dir():
            yield from load(Path(path))
            continue
        if not allow_dirs:
            raise errors.FormatError(f"{path} is a directory; expected a file.")
        files = sorted(p for p in Path(path).iterdir() if p.suffix in {".json", ".npz"} and not p.name.startswith("."))
        if not files:
            raise errors.FormatError(f"{path} holds no iterations (files such as 0000000000.json).")
        for file in files:
            yield from load(file)


class IterationWriter(Generic[T]):
    """Saves iterations: to a directory at once, to a single file when it is closed; nothing without a path."""

    def __init__(
        self, path: PathLike | None, description: str | None = None, combine: Callable[[list[T]], Any] = list
    ) -> None:
        """Prepare to write to a file, or without a suffix to a directory; it must be empty or not exist.

        ``description`` is logged with a single file, and ``combine`` makes its content from all iterations.
        """
        self.path = None if path is None else Path(path)
        self.description = description
        self.combine = combine
        self.iterations: list[T] = []
        self.count = 0
        self.single_file = self.path is not None and self.path.suffix != ""
        if self.path is not None and not self.single_file:
            if self.path.exists() and not (self.path.is_dir() and not any(self.path.iterdir())):
                raise errors.ConfigError(
                    f"{path} exists and is not an empty directory. Give a new directory, or a path with a suffix for a "
                    "single file."
                )
            self.path.mkdir(parents=True, exist_ok=True)

    def append(self, item: T) -> None:
        """Add one iteration."""
        if self.single_file:
            self.iterations.append(item)
        elif self.path is not None:
            save_json(item, self.path / f"{self.count:010d}.json")
        self.count += 1

    def close(self) -> None:
        """Write the single file."""
        if self.single_file and self.path is not None:
            save_json(self.combine(self.iterations), self.path, self.description)


def load_saved(path: PathLike, description: str = "inputs") -> Any:
    """Load a file: an object saved by trtops or Polygraphy, or numpy's array or arrays by name."""
    if os.fspath(path).endswith((".npy", ".npz")):
        # Imports five modules of the standard library for archives, which most runs do not need.
        from trtops.json.numpy_files import archive_names, load_numpy

        # Archives of trtops have the suffix of numpy's, and an index.
        if "index.json" not in archive_names(path):
            return load_numpy(path)
    return load_json(path, description)
