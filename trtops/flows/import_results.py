"""The import flow: what other tools left becomes runs.

From Python: ``from trtops.flows.import_results import import_results; import_results(["times.json"])``. From the shell: ``python -m
flows.import_results times.json``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from trtops.flows.artifacts import show_result
from trtops.flows.command import run
from trtops.flows.tasks import flow_tags, tracker, trtops_flow, trtops_task
from trtops.ops.importing.op import ImportResult
from trtops.ops.importing.op import import_results as import_op


@trtops_task(name="import-files")
def import_files(files: list[str], experiment: str | None) -> ImportResult:
    """One call of the import op, logged to the default store."""
    return import_op(files, tracker=tracker(), experiment=experiment, tags=flow_tags())


@trtops_flow(name="import")
def import_results(files: list[Path], *, experiment: str | None = None) -> ImportResult:
    """Make runs of what trtexec, Polygraphy, ONNX Runtime's profiler, Model Navigator and ModelOpt left.

    Args:
        files: The files; what each is is told by its content.
        experiment: MLflow experiment; each file's name unless given.

    Returns:
        The runs, and what each lacks beside one of ours.
    """
    result = import_files([str(file) for file in files], experiment)
    show_result(result)
    return result


if __name__ == "__main__":
    sys.exit(run(import_results, "import_results"))
