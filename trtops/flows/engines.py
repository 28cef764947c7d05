"""Flows for building, calibrating and comparing engines: one model, a list of models, or a folder."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from prefect.artifacts import create_markdown_artifact

from trtops import errors
from trtops.backend.onnx.model import Model
from trtops.flows.flow_of import flow_of, run_as_task
from trtops.flows.slots import device_slot, in_flow
from trtops.ops.comparing.compare import compare as compare_op
from trtops.ops.engines.board import board
from trtops.ops.engines.build_list import BuildListConfig, BuildListResult, build_list
from trtops.ops.engines.calibrate import calibrate as calibrate_op
from trtops.ops.engines.convert import ConvertConfig
from trtops.ops.engines.convert import convert as convert_op
from trtops.ops.engines.convert_result import ConvertResult
from trtops.ops.engines.evaluate import evaluate as evaluate_op
from trtops.ops.engines.model_list import ListedModel, folder_list
from trtops.ops.engines.sensitivity import sensitivity as sensitivity_op
from trtops.ops.result import model_file
from trtops.reports.description import without_links
from trtops.spec import BackendName, Precision


def _nightly(models: Path, config: BuildListConfig = BuildListConfig(), **logged: Any) -> BuildListResult:
    """Build and evaluate every model of a list, log everything to MLflow, and show a summary.

    Args:
        models: The list, a YAML file on the worker's machine.
    """

    def convert_one(
        model: str | Model, config: ConvertConfig, experiment: str, tags: Mapping[str, str]
    ) -> ConvertResult:
        def build() -> ConvertResult:
            with device_slot(config.build.backend):
                return convert_op(model, config, tracker=logged["tracker"], experiment=experiment, tags=tags)

        name = f"build {model_file(model).stem} {config.build.precision} {config.build.backend}"
        return run_as_task(name, build, by_steps=True)

    result = build_list(models, config, convert_one=convert_one, **logged)
    if result.run_id and in_flow():
        with contextlib.suppress(errors.TrtopsError):  # without the other nights, there is no board
            create_markdown_artifact(without_links(board(tracker=logged["tracker"]).page()), key="board")
    return result


def _watch(
    folder: Path,
    *,
    pattern: str = "**/*.onnx",
    precisions: tuple[Precision, ...] = ("fp32",),
    backends: tuple[BackendName, ...] = ("onnxruntime",),
    data: str | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    settle_seconds: float = 10.0,
    **logged: Any,
) -> BuildListResult:
    """Build and evaluate the new and changed models of a folder.

    What is new is decided by the digests of the models: one that was copied, renamed or touched is not built again.

    Args:
        folder: The folder, on the worker's machine; it need not exist yet.
        pattern: Files in it; ``**`` stands for any folders.
        precisions: The precisions to build each model in.
        backends: The back ends to build each model with.
        data: Where inputs come from: saved inputs, a folder of them, or a script (default: random).
        shapes: Shapes of random data, by input.
        settle_seconds: How long a file must be unchanged, since it may still be being copied.
    """
    entry = ListedModel(model="", precisions=precisions, backends=backends, data=data, input_shapes=shapes or {})
    models = folder_list(folder, pattern, entry)
    if all(build.missing for build in models.builds()):
        return BuildListResult(title=f"build list {Path(folder).name}", builds=())
    config = BuildListConfig(only_new=True, settle_seconds=settle_seconds)
    return _nightly(cast(Path, models), config, **logged)


convert = flow_of(convert_op, by_steps=True)
calibrate = flow_of(calibrate_op, by_steps=True)
sensitivity = flow_of(sensitivity_op)
compare = flow_of(compare_op)
evaluate = flow_of(evaluate_op)
nightly = flow_of(_nightly, by_steps=True)
watch = flow_of(_watch, by_steps=True)
