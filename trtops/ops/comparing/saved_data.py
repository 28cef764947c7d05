"""Join saved inputs and outputs: side by side, or one after the other."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trtops import errors
from trtops.comparator.results import RunResults
from trtops.json import load_json, save_json
from trtops.ops.arguments import checked_arguments


@checked_arguments
def merge(paths: Sequence[str | Path], output: str | Path) -> int:
    """Merge the arrays of several files, iteration by iteration, into inputs; returns the number of iterations.

    Of a file's runners the last counts, and of arrays with the same name the last.

    FormatError if a file cannot be read, or is of another kind; ComparisonError if numbers of iterations differ.
    """
    merged: list[dict[str, Any]] = []
    for number, path in enumerate(paths):
        held = _load_saved(path)
        if isinstance(held, RunResults):
            if not len(held):
                raise errors.FormatError(f"{path} holds the outputs of no runner.")
            held = held[-1][1]
        feeds = list(map(dict, held))
        if number and len(feeds) != len(merged):
            raise errors.ComparisonError(
                f"{path} has {len(feeds)} iterations, the files before it {len(merged)}; expected as many in each."
            )
        merged = merged or [{} for _ in feeds]
        for target, feed in zip(merged, feeds):
            target.update(feed)
    save_json(merged, str(output), "inputs")
    return len(merged)


@checked_arguments
def concat(paths: Sequence[str | Path], output: str | Path) -> int:
    """Concatenate the iterations of files of inputs, or of outputs; returns the number of iterations.

    Outputs of runners of the same name are joined. Runners that share a name within a file get numbers.

    FormatError if a file cannot be read, or is of another kind; ComparisonError if inputs and outputs are mixed.
    """
    contents = list(map(_load_saved, paths))
    runs = [content for content in contents if isinstance(content, RunResults)]
    if runs and len(runs) < len(contents):
        raise errors.ComparisonError("Some files hold inputs and some outputs; join one kind at a time.")
    if not runs:
        feeds = list(itertools.chain.from_iterable(contents))
        save_json(feeds, str(output), "inputs")
        return len(feeds)
    joined = RunResults().update(RunResults.concat(runs))
    joined.save(str(output))
    return max(map(len, joined.values()), default=0)


def _load_saved(path: str | Path) -> Any:
    held = load_json(str(path))
    if isinstance(held, Mapping):
        held = [held]
    if isinstance(held, RunResults) or (isinstance(held, list) and all(isinstance(feed, Mapping) for feed in held)):
        return held
    raise errors.FormatError(f"{path} holds a {type(held).__name__}; expected saved inputs or outputs.")
