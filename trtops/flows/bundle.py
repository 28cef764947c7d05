"""The bundle flow: a run's verdict in one zip, for a stranger to repeat.

From Python: ``from trtops.flows.bundle import bundle; bundle("<run>")``. From the shell: ``python -m trtops.flows.bundle <run>``.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated

from trtops.flows.artifacts import show_result
from trtops.flows.command import config_flag, run
from trtops.flows.tasks import tracker, trtops_flow, trtops_task
from trtops.ops.bundling.op import BundleConfig, BundleResult
from trtops.ops.bundling.op import bundle as bundle_op


@trtops_task(name="pack")
def pack(logged_run: str, config: BundleConfig) -> BundleResult:
    """One call of the bundle op, which reads the default store."""
    return bundle_op(logged_run, config, tracker=tracker())


@trtops_flow(name="bundle")
def bundle(
    logged_run: str,
    config: Annotated[BundleConfig | None, config_flag] = None,
    *,
    output: str | None = None,
) -> BundleResult:
    """Pack a run so that a stranger repeats its verdict without trtops, and try that first.

    Args:
        logged_run: A build's run, or an iteration's.
        config: Everything that can be chosen.
        output: The zip.

    Returns:
        Where the zip is, and what its script printed.
    """
    config = BundleConfig() if config is None else config
    config = replace(config, output=output or config.output)
    result = pack(logged_run, config)
    show_result(result)
    return result


if __name__ == "__main__":
    sys.exit(run(bundle, "bundle"))
