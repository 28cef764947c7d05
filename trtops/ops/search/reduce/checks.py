"""What is asked of the parts of a model where no command evaluates them."""

from __future__ import annotations

from trtops.backend.engines import engine_backend
from trtops.comparator.report import Tolerances
from trtops.ops.evaluation.check import tolerances_for
from trtops.ops.evaluation.submodel import ComparisonCheck, EngineRunner
from trtops.spec import BuildConfig


def engine_check(build: BuildConfig, tolerances: Tolerances | None = None) -> ComparisonCheck:
    """Build an engine of each part, and compare its outputs with what the whole model computes there.

    Args:
        build: How engines are built.
        tolerances: When outputs are good enough; by default what is expected of the precision.

    Raises:
        BackendUnavailableError: If the back end's library is missing, rather than a failure of each part.
    """
    engine_backend(build.backend).environment()
    return ComparisonCheck(runner=EngineRunner(build), tolerances=tolerances_for(build.precision, tolerances))
