"""The commands of ``trtops inspect``; the others are modules of their own."""

from __future__ import annotations

from typing import Any

from trtops.backend.common import save_bytes
from trtops.cli import groups, loading
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job, command, op_job
from trtops.cli.script import given, late
from trtops.tracking.ids import RUN_PREFIX


@command(
    Group("cache", flag("cache", "a file of either format, or run:<id>")),
    groups.JSON,
    groups.STORE,
    examples=("trtops inspect calibration int8.cache",),
)
def calibration(args: Options) -> Job:
    """Show a calibration cache: the range of each tensor."""
    return op_job(
        args, "inspect_calibration", args.cache, store="reads" if args.cache.startswith(RUN_PREFIX) else "none"
    )


@command(
    groups.ONNX_MODEL,
    Group(
        "capability",
        flag(
            "-o --output --output-dir FOLDER",
            "where to write the report and the parts",
            to="output",
            default="trtops_capability_dumps",
        ),
        flag("--with-partitioning", "write the parts as models"),
        flag("--onnxrt", "check ONNX Runtime, not TensorRT", to="backend", value="onnxruntime"),
        flag("--input-shapes NAME:[DIMS]+", "shapes of inputs"),
        flag("--exit-on-bad", "exit with 1 if some nodes are not supported"),
    ),
    groups.JSON,
    Group(
        "saving parts",
        flag(
            "--save-external-data --external-data-path FILE?",
            "keep weights next to each part, in <part>.data",
            usual="in the model file",
            value="",
            choices=("",),
            shown="",
        ),
        groups.SAVE_AS.without("--save-external-data"),
    ),
    *groups.ONNX,
    examples=(
        "trtops inspect capability model.onnx --with-partitioning",
        "trtops inspect capability model.onnx --onnxrt",
    ),
)
def capability(args: Options) -> Job:
    """Report which nodes of a model a back end supports, and why not the others.

    With partitioning the model is cut into supported and unsupported parts. The exit code is 0, as in Polygraphy;
    --exit-on-bad makes it 1 if some nodes are not supported.
    """
    partition, path, exit_on_bad = bool(args.with_partitioning), f"{args.output}/results.txt", bool(args.exit_on_bad)

    def code(report: Any) -> int:
        save_bytes(f"{report.text()}\n".encode(), path)
        return int(exit_on_bad and not report.supported)

    return op_job(
        args,
        "capability",
        late("trtops.cli.script.loaded", loading.changed_model(args)),
        args.backend or "tensorrt",
        input_shapes=loading.input_shapes(args) or {},
        partition=partition,
        output_dir=args.output if partition else None,
        save_as=loading.save_config(args) if partition else None,
        code=code,
    )


@command(
    Group(
        "data",
        flag("path", "a .json file of saved inputs or outputs, an .npz or an .npy"),
        flag("-a --all", "show every iteration, not only the first", to="all"),
        flag("-s --show-values", "show values", to="show_values"),
        flag("--histogram", "show the distribution of values"),
        flag("--statistics", "show statistics", idle="they are always shown"),
        flag("-n --num-items N", "values at the ends of each axis", usual="3", to="num_items"),
        flag("--line-width N", "longest line of values; -1 for no limit", usual="75"),
    ),
    groups.JSON,
    examples=("trtops inspect data outputs.json --show-values", "trtops inspect data inputs.json --histogram --all"),
)
def data(args: Options) -> Job:
    """Show saved inputs or outputs: types, shapes, statistics, and values with --show-values."""
    names = {"show_values": "show_values", "histogram": "histogram", "all_iterations": "all", "items": "num_items"}
    shown = {name: getattr(args, dest) for name, dest in names.items()} | {"line_width": args.line_width}
    return op_job(args, "inspect_data", args.path, **given(**shown))


@command(
    Group("run", flag("run", "the run's id, with or without run: before it")),
    groups.JSON,
    groups.STORE,
    examples=("trtops inspect run 8d6e3f", "trtops inspect run run:8d6e3f --json"),
)
def run(args: Options) -> Job:
    """Show what the store holds of a run: params, numbers, tags and files. Exits with 1 if the run is incomplete."""
    return op_job(args, "inspect_run", args.run, store="reads", code=lambda found: int(not found.to_json()["whole"]))


@command(
    groups.ONNX_MODEL,
    groups.JSON,
    groups.ONNX_LOAD.without("--ignore-external-data"),
    Group(
        groups.ONNX_LOAD.title,
        flag("--ignore-external-data", "", refuse="a model's sparsity is that of its weights; leave it out"),
    ),
    examples=("trtops inspect sparsity model.onnx",),
)
def sparsity(args: Options) -> Job:
    """Report which weights of an ONNX model sparse kernels could use, and which are already 2:4 sparse."""
    model = args.model_file
    if args.external_data_dir or args.fp_to_fp16:
        model = late("trtops.backend.onnx.onnx_from_path", model, external_data_dir=args.external_data_dir)
        model = late("trtops.backend.onnx.convert_to_fp16", model) if args.fp_to_fp16 else model
    return op_job(args, "inspect_sparsity", model)


@command(
    Group("record", flag("tactic_replay", "the file")), groups.JSON, examples=("trtops inspect tactics replay.json",)
)
def tactics(args: Options) -> Job:
    """Show a tactic record: the tactic of each layer. Reads records of trtops, and Polygraphy's replay files."""
    return op_job(args, "inspect_tactics", args.tactic_replay)
