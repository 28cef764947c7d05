"""The gate flow: candidates are built, measured beside the accepted engines, and accepted or refused.

From Python: ``from trtops.flows.gate import gate; gate(["model.onnx"], precisions=["fp16"])``. From the shell:
``python -m trtops.flows.gate --models model.onnx --precisions fp16``. As a deployment: see ``prefect.yaml``.

An accepted version gets its alias in the registry, and the event ``trtops.gate.accept`` is sent, with the version as its resource;
``trtops.gate.refuse`` and ``trtops.gate.measure-more`` likewise. Automations of Prefect can follow each.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from prefect.events import emit_event
from prefect.task_runners import ThreadPoolTaskRunner

from trtops.flows.artifacts import ended
from trtops.flows.command import config_flag, run
from trtops.flows.parameters import Count
from trtops.flows.slots import bench_slot
from trtops.flows.spread import hand_over
from trtops.flows.tasks import flow_tags, tracker, trtops_flow, trtops_task
from trtops.ops.gate.environments import Release
from trtops.ops.gate.matrix import Cell, MatrixConfig, MatrixResult, Submit, gate_all, gate_cell
from trtops.ops.gate.op import GateConfig
from trtops.ops.gate.policy import read_policy
from trtops.ops.gate.result import GateResult
from trtops.spec import BackendName, Precision
from trtops.terminal import progress


@trtops_task(name="gate-candidate")
def gate_candidate(cell: Cell) -> GateResult:
    """One call of the gate op, logged to the default store, on a GPU of its own if it needs one."""
    with bench_slot(cell.config.place) as devices:
        return gate_cell(replace(cell, config=replace(cell.config, devices=devices)), tracker=tracker())


@trtops_flow(name="gate")
def gate(
    models: tuple[Path, ...],
    config: Annotated[GateConfig | None, config_flag] = None,
    *,
    policy: Path | None = None,
    releases: tuple[str, ...] = (),
    precisions: tuple[Precision, ...] = (),
    devices: tuple[str, ...] = (),
    backend: BackendName | None = None,
    data: str | None = None,
    parallel: Count = 1,
    experiment: str | None = None,
) -> GateResult | MatrixResult:
    """Build candidates, measure each beside the accepted engine, and accept it, refuse it or ask for more measurement.

    Args:
        models: ONNX files.
        config: Everything that can be chosen; what is given beside it takes its place.
        policy: What passes, a YAML file on the worker's machine.
        releases: Releases of the back end: constraints files (.txt) or environments, with or without ``name=`` before.
        precisions: Precisions to build in.
        devices: GPUs, as ``CUDA_VISIBLE_DEVICES`` names them; ``cpu`` is the processor.
        backend: What builds the engines, with that back end's default options; onnxruntime unless given.
        data: Where input data comes from; random unless given.
        parallel: Candidates under way at a time. They are timed one after the other whatever this says.
        experiment: MLflow experiment; the model's name unless given, or ``gate`` for several candidates.

    Returns:
        The decision for each candidate, with reasons.

    Raises:
        TrtopsError: If the policy or the only model cannot be read.
    """
    config = GateConfig() if config is None else config
    config = replace(
        config,
        build=config.build.on_backend(backend),
        check=config.check if data is None else replace(config.check, data=data),
        policy=config.policy if policy is None else read_policy(policy),
    )
    matrix = MatrixConfig(
        models=tuple(map(str, models)),
        releases=tuple(map(Release.parse, releases)) or (config.release,),
        precisions=precisions or (config.build.precision,),
        devices=devices or config.devices,
        gate=config,
    )
    with _spread_cells(parallel) as submit, progress("Gating", "candidates") as bar:
        result = gate_all(
            matrix, tracker=tracker(), experiment=experiment, tags=flow_tags(), submit=submit, progress=bar.update
        )
    announce(result)
    return ended(result)


@contextmanager
def _spread_cells(parallel: int) -> Iterator[Submit]:
    """Candidates as Prefect tasks on threads, for the time of a block."""
    threads: ThreadPoolTaskRunner[Any] = ThreadPoolTaskRunner(max_workers=parallel)
    with threads as runner:

        def submit(cell: Cell) -> Future[GateResult]:
            done: Future[GateResult] = Future()
            future = runner.submit(gate_candidate.with_options(task_run_name=cell.name), parameters={"cell": cell})
            future.add_done_callback(lambda finished: hand_over(finished, done))
            return done

        yield submit


def announce(result: GateResult | MatrixResult) -> None:
    """Send an event for each decision, which automations can follow."""
    for each in result.cells if isinstance(result, MatrixResult) else (result,):
        emit_event(
            event=f"trtops.gate.{each.decision.replace(' ', '-')}",
            resource={
                "prefect.resource.id": f"trtops.run.{each.run_id or 'none'}",
                "trtops.alias": each.alias,
                "trtops.version": each.version,
            },
            payload={"reasons": list(each.reasons), "url": each.url},
        )


if __name__ == "__main__":
    sys.exit(run(gate, "gate"))
