"""Run runners on inputs: one after the other, each in a child process, or all together as a stream."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from trtops import errors
from trtops.comparator.arrays import to_numpy
from trtops.comparator.data_loader import DataLoader, DataLoaderCache, StreamingDataLoader, check_feed, fit_feed
from trtops.comparator.report_lines import FINISH, START, log_lines
from trtops.comparator.results import IterationResult, RunResults
from trtops.comparator.streams import IterationWriter, PathLike
from trtops.metadata import TensorMetadata
from trtops.torch_tensors import is_torch

if TYPE_CHECKING:
    from trtops.backend.base import BaseRunner

Feeds: TypeAlias = Iterable[Mapping[str, Any]]

_log = logging.getLogger(__name__)


def run_to_end(runner: BaseRunner, cache: DataLoaderCache, warm_up: int) -> list[IterationResult]:
    """Activate a runner, run it on all inputs, deactivate it."""
    log_lines(START, f"{runner.name:35} | Activating and starting inference")
    with runner:
        cache.set_input_metadata(runner.get_input_metadata(use_numpy_dtypes=False))
        count = len(cache)
        if warm_up and count:
            first = cache[0]
            for _ in range(warm_up):
                runner.infer(first)
        results = []
        for index in range(count):
            # The arrays belong to the runner, which may overwrite them.
            outputs = runner.infer(cache[index], check_inputs=False)
            copied_outputs = (
                outputs if count == 1 else {n: a.clone() if is_torch(a) else np.array(a) for n, a in outputs.items()}
            )
            results.append(IterationResult(copied_outputs, runner.last_inference_time(), runner.name))
        if results and _log.isEnabledFor(logging.INFO):
            for title, arrays in (("Inference Input(s)", cache[0]), ("Inference Output(s)", results[0])):
                shown = TensorMetadata.from_feed_dict(arrays)
                log_lines(logging.INFO, f"{runner.name:35}\n---- {title} ----\n{shown}")
        mean = sum(result.runtime or 0.0 for result in results) * 1e3 / max(count, 1)
        times = f"Completed {count} iteration(s) in {mean * count:.4g} ms | Average inference time: {mean:.4g} ms."
        log_lines(FINISH, f"{runner.name:35} | {times}")
        return results


def run_in_child(
    runner: BaseRunner, cache: DataLoaderCache, warm_up: int, timeout: float | None
) -> list[IterationResult]:
    """Run a runner on all inputs in a new process, and put the inputs read there into ``cache``.

    Raises WorkerError if the process crashes, is killed or takes more than ``timeout`` seconds; ConfigError if the
    runner or the inputs cannot be sent to another process.
    """
    from trtops.system.worker import Worker  # imports multiprocessing

    # Generators cannot be pickled for the child process.
    if not isinstance(cache.data_loader, (DataLoader, StreamingDataLoader, Sequence)):
        cache.data_loader = list(cache.data_loader)
    worker = Worker(script=_needs_script(runner, cache), name=runner.name)
    try:
        results, feeds = worker.run(_run_in_this_process, runner, cache, warm_up, timeout=timeout)
    finally:
        worker.close(0)
    cache.cache, cache._loaded = feeds, True
    return results


def _needs_script(*sent: object) -> bool:
    """Whether the child has to import the calling script, because something sent to it is of a class defined there."""
    from multiprocessing.reduction import ForkingPickler

    try:
        return b"__main__" in bytes(ForkingPickler.dumps(sent))
    except Exception:  # sending it fails again, with an error
        return True


def _run_in_this_process(
    runner: BaseRunner, cache: DataLoaderCache, warm_up: int
) -> tuple[list[IterationResult], list[Mapping[str, Any]]]:
    try:
        return run_to_end(runner, cache, warm_up), cache.cache
    except errors.TrtopsError:
        raise
    except Exception as exc:  # an exception of the runner's own class could not be unpickled in the parent
        raise errors.WorkerError(f"{runner.name} failed in its child process: {type(exc).__name__}: {exc}") from None


def stream(
    runners: Sequence[BaseRunner],
    loader: Feeds,
    warm_up: int,
    places: tuple[PathLike | None, PathLike | None, PathLike | None],
) -> Iterator[RunResults]:
    """Run runners one iteration at a time; ``places`` are the paths for inputs, outputs and raw inputs."""
    writers = Writers(*places)
    with contextlib.ExitStack() as stack:
        active = list(map(stack.enter_context, runners))
        inputs = [runner.get_input_metadata(use_numpy_dtypes=False) for runner in active]
        if inputs and hasattr(loader, "input_metadata"):
            loader.input_metadata = inputs[0]
        try:
            for feed in loader if active else ():
                run, checked = RunResults(), check_feed(feed)
                for runner, metadata in zip(active, inputs):
                    fitted = fit_feed(checked, metadata)
                    for _ in range(warm_up):
                        runner.infer(fitted, check_inputs=False)
                    outputs = runner.infer(fitted, check_inputs=False)
                    run.append((runner.name, [IterationResult(outputs, runner.last_inference_time(), runner.name)]))
                warm_up = 0
                if any(places):
                    # A single file is written at the end, when the runners have overwritten these arrays.
                    writers.append(*copy.deepcopy((feed, run)))
                yield run
        except GeneratorExit:  # the caller stopped early: save the results so far
            writers.close()
            raise
    writers.close()


class Writers:
    """Saves inputs, outputs and raw inputs as a run goes; single files are written by :meth:`close`."""

    def __init__(self, inputs: PathLike | None, outputs: PathLike | None, blobs: PathLike | None) -> None:
        real = [os.path.realpath(path) for path in (inputs, outputs, blobs) if path is not None]
        if len(set(real)) < len(real):
            raise errors.ConfigError(
                f"Inputs, outputs and raw inputs must be saved at different places; found {', '.join(real)}."
            )
        self.inputs = IterationWriter[Any](inputs, "inference input data")
        self.outputs = IterationWriter(outputs, "inference results", RunResults.concat)
        self.blobs = None if blobs is None else Path(blobs)
        self.count = 0

    def append(self, feed: Mapping[str, Any] | None, run: RunResults | None) -> None:
        """Save one iteration's inputs and results."""
        if feed is not None:
            self.inputs.append(dict(feed))
            if self.blobs is not None:
                directory = self.blobs.absolute() / f"{self.count:010d}"
                directory.mkdir(parents=True, exist_ok=True)
                for name, array in feed.items():
                    # A model from elsewhere may name an input `../../x`.
                    path = Path(os.path.abspath(directory / f"{name}.bin"))
                    if not path.is_relative_to(os.path.abspath(directory)):
                        raise errors.ConfigError(
                            f"Input {name!r} cannot be saved as raw bytes: its name leads out of {directory}."
                        )
                    path.parent.mkdir(parents=True, exist_ok=True)
                    np.ascontiguousarray(to_numpy(array, f"Input {name!r}")).tofile(path)
        if run is not None:
            self.outputs.append(run)
        self.count += 1

    def close(self) -> None:
        """Write the single files."""
        self.inputs.close()
        self.outputs.close()
