"""Candidates of a precision search, judged by an outside command: each is written to a file that the command reads."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtops import errors
from trtops.ops.judging.command import CommandCheck
from trtops.ops.search.precision.engines import restricted
from trtops.ops.search.precision.op import Candidate
from trtops.ops.search.repeat import RepeatConfig, RepeatStep, finish, iterate


def require_layer_precisions() -> None:
    """Go on only where TensorRT takes precisions of layers.

    Raises:
        BackendUnavailableError: If there is no TensorRT.
        UnsupportedFeatureError: If this release takes precisions from the model alone.
    """
    from trtops.backend.trt import library
    from trtops.backend.trt.lines import Feature

    line = library.line()
    if not line.supports(Feature.LAYER_PRECISION):
        raise errors.UnsupportedFeatureError(
            f"{line.name} takes precisions from the model, and not per layer. Search the model: without --trt, or by a "
            "check that reads {model}, such as `--check trtops run {model} --trt --load-outputs golden.json`."
        )


@dataclass(frozen=True, kw_only=True)
class EngineWriter:
    """Writes a candidate as a TensorRT engine: the nodes to keep by layer precisions that bind.

    Attributes:
        network: Makes the network: builder, network, parser.
        config: Makes the builder config.
        path: Where the engine goes.
        kept_in: What the kept nodes compute in: ``float32`` or ``float16``.
        save_timing_cache: Where timings are kept from one build to the next.
    """

    network: Callable[[], Any]
    config: Callable[..., Any]
    path: str
    kept_in: str = "float32"
    save_timing_cache: str | None = None

    def __call__(self, candidate: Candidate) -> None:
        """Build, and write.

        Raises:
            BackendError: If the candidate cannot be built.
        """
        from trtops.backend.common import save_bytes
        from trtops.backend.trt import engine_bytes_from_network

        network = restricted(self.network, candidate, self.kept_in)
        save_bytes(
            engine_bytes_from_network(network, config=self.config, save_timing_cache=self.save_timing_cache), self.path
        )

    def runner(self, candidate: Candidate) -> Any:
        """A runner of the candidate's engine, for :func:`trtops.ops.search.precision.precision`."""
        from trtops.backend.trt import EngineFromNetwork, TrtRunner

        network = restricted(self.network, candidate, self.kept_in)
        return TrtRunner(EngineFromNetwork(network, self.config, save_timing_cache=self.save_timing_cache))


@dataclass(frozen=True, kw_only=True)
class ModelWriter:
    """Writes a candidate as an ONNX model in mixed precision.

    Attributes:
        path: Where it goes.
    """

    path: str

    def __call__(self, candidate: Candidate) -> None:
        """Rewrite the model, and write it."""
        from trtops.backend.onnx.save import save_model

        save_model(candidate.rewritten.model, self.path)


@dataclass(frozen=True, kw_only=True)
class CandidateCheck:
    """Says whether a candidate is good: writes it, runs a command, and sorts what that left. Use it as a context.

    Attributes:
        write: Writes a candidate.
        check: The command.
        config: What to sort and to keep; its ``until`` does not count.
        progress: Told of each step.
    """

    write: Callable[[Candidate], None]
    check: CommandCheck
    config: RepeatConfig
    progress: Callable[[RepeatStep], None] | None = None
    _numbers: Iterator[int] = field(default_factory=itertools.count, repr=False)

    def __enter__(self) -> CandidateCheck:
        """Begin."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Remove the file that the command read."""
        finish(self.config)
        if self.config.intermediate is not None and not self.config.keep_intermediate:
            Path(f"{self.config.intermediate}.data").unlink(missing_ok=True)

    def __call__(self, candidate: Candidate) -> bool:
        """Whether the command passes.

        Raises:
            ConfigError: If the command cannot be run.
        """
        step = iterate(next(self._numbers), lambda _: self.write(candidate), self.check, self.config)
        if self.progress is not None:
            self.progress(step)
        return step.verdict == "good"
