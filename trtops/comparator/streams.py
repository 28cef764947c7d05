"""Iterations on disk: one file for all, or a directory with one file each, so that only one need be in memory.

A path with an ending is a file; one without is a directory of ``0000000000.json``, ``0000000001.json`` … Both are
Polygraphy's formats.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from trtops import errors
from trtops.json import load_json, save_json
from trtops.lazy import function

T = TypeVar("T")
PathLike: TypeAlias = "str | os.PathLike[str]"


def is_single_file(path: PathLike) -> bool:
    """Whether a path stands for one file rather than a directory of iterations; it need not exist."""
    return Path(path).suffix != ""


def iteration_files(directory: PathLike) -> list[Path]:
    """The files of a directory of iterations, in order."""
    return sorted(p for p in Path(directory).iterdir() if p.suffix in {".json", ".npz"} and not p.name.startswith("."))


def iterate_files(
    paths: PathLike | Sequence[PathLike], load: Callable[[Path], Iterable[T]], allow_dirs: bool
) -> Iterator[T]:
    """The iterations of files and directories, one after the other, each loaded when its turn comes.

    Args:
        paths: One path or several, whose iterations are chained.
        load: Loads the iterations of one file.
        allow_dirs: Whether directories are taken.

    Raises:
        FormatError: If a path is a directory and none is allowed, or one that holds no iterations.
    """
    for path in [paths] if isinstance(paths, (str, os.PathLike)) else paths:
        if not Path(path).is_dir():
            yield from load(Path(path))
            continue
        if not allow_dirs:
            raise errors.FormatError(f"{path} is a directory; expected a file.")
        files = iteration_files(path)
        if not files:
            raise errors.FormatError(f"{path} holds no iterations (files such as 0000000000.json).")
        for file in files:
            yield from load(file)


class IterationWriter(Generic[T]):
    """Saves iterations as they come.

    To a directory each is written at once; for a single file they are kept, and written together by :meth:`close`.
    """

    def __init__(
        self,
        path: PathLike,
        combine: Callable[[list[T]], Any] = list,
        *,
        keep_copies: bool = False,
        description: str | None = None,
    ) -> None:
        """Prepare to write.

        Args:
            path: A file, or a directory that is empty or does not exist yet; see :func:`is_single_file`.
            combine: Makes what a single file holds from all iterations.
            keep_copies: Whether iterations that are kept must be copied, since their arrays will be overwritten.
            description: What they are, for the log and errors.

        Raises:
            ConfigError: If the directory is not empty, or is a file.
        """
        self.path = Path(path)
        self.combine = combine
        self.keep_copies = keep_copies
        self.description = description
        self.kept: list[T] = []
        self.count = 0
        self.single_file = is_single_file(path)
        if not self.single_file:
            if self.path.exists() and not (self.path.is_dir() and not any(self.path.iterdir())):
                raise errors.ConfigError(
                    f"{path} exists and is not an empty directory; one file per iteration would be mixed with what is "
                    "there. Give a new directory, or a path with an ending for a single file."
                )
            self.path.mkdir(parents=True, exist_ok=True)

    def append(self, item: T) -> None:
        """Take one iteration."""
        if self.single_file:
            self.kept.append(copy.deepcopy(item) if self.keep_copies else item)
        else:
            save_json(item, self.path / f"{self.count:010d}.json", self.description)
        self.count += 1

    def close(self) -> None:
        """Write what was kept."""
        if self.single_file:
            save_json(self.combine(self.kept), self.path, self.description)

    def __enter__(self) -> IterationWriter[T]:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


# Archives bring five modules of the standard library, which runs that load none do not need.
_load_numpy = function("trtops.json.numpy_files.load_numpy")
_archive_names = function("trtops.json.numpy_files.archive_names")


def load_list(path: PathLike, description: str) -> Iterator[Any]:
    """The iterations of one file: the items of a list, or the one object that it holds."""
    of_numpy = os.fspath(path).endswith(".npz") and not has_index(path)
    content = _load_numpy(path) if of_numpy else load_json(path, description)
    yield from content if isinstance(content, list) else [content]


def has_index(path: PathLike) -> bool:
    """Whether a file is an archive of ours, and not one that numpy wrote."""
    return os.fspath(path).endswith(".npz") and "index.json" in _archive_names(path)
