"""The commands of ``trtops inspect``; the others are modules of their own."""

from __future__ import annotations

from typing import Any

from trtops import ops
from trtops.backend.common import save_bytes
from trtops.cli import groups, loading
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Command, Job, Store, op_job
from trtops.cli.logs import say, say_json
from trtops.cli.script import given, late, loaded
from trtops.tracking.ids import RUN_PREFIX


def _calibration_job(args: Options) -> Job:
    store: Store = "reads" if args.cache.startswith(RUN_PREFIX) else "none"
    return op_job(args, "inspect_calibration", args.cache, store=store)


def _capability_job(args: Options) -> Job:
    partition = bool(args.with_partitioning)
    options = {
        "input_shapes": loading.input_shapes(args) or {},
        "partition": partition,
        "output_dir": args.output if partition else None,
        "save_as": loading.save_config(args) if partition else None,
    }
    model = loading.onnx_model(args.but(model_type="onnx")) if loading.wants_onnx_changes(args) else args.model_file
    shown = {"report": f"{args.output}/results.txt", "as_json": bool(args.json), "exit_on_bad": bool(args.exit_on_bad)}
    return Job(call=_show_capability, args=(model, args.backend or "tensorrt", options), kwargs=shown)


def _show_capability(
    model: Any, backend: Any, options: dict[str, Any], *, report: str, as_json: bool, exit_on_bad: bool
) -> int:
    found = ops.capability(loaded(model), backend, **options)
    save_bytes(f"{found.text()}\n".encode(), report)
    if as_json:
        say_json(found.to_dict())
    else:
        say(found.text())
    return 1 if exit_on_bad and not found.supported else 0


def _data_job(args: Options) -> Job:
    shown = given(
        show_values=args.show_values,
        histogram=args.histogram,
        all_iterations=args.all,
        items=args.num_items,
        line_width=args.line_width,
    )
    return op_job(args, "inspect_data", args.path, **shown)


def _run_job(args: Options) -> Job:
    return op_job(args, "inspect_run", args.run, store="reads", code=_incomplete)


def _incomplete(found: Any) -> int:
    return 0 if found.to_json()["whole"] else 1


def _sparsity_job(args: Options) -> Job:
    model = args.model_file
    if args.external_data_dir or args.fp_to_fp16:
        model = late("trtops.backend.onnx.onnx_from_path", model, external_data_dir=args.external_data_dir)
        model = late("trtops.backend.onnx.convert_to_fp16", model) if args.fp_to_fp16 else model
    return op_job(args, "inspect_sparsity", model)


def _tactics_job(args: Options) -> Job:
    return op_job(args, "inspect_tactics", args.tactic_replay)


COMMANDS = {
    "calibration": Command(
        _calibration_job,
        (
            Group("cache", (flag("cache", "a file of either format, or run:<id>"),)),
            groups.JSON,
            groups.STORE,
        ),
        ("trtops inspect calibration int8.cache",),
        "Show a calibration cache: the range of each tensor.",
    ),
    "capability": Command(
        _capability_job,
        (
            groups.ONNX_MODEL,
            Group(
                "capability",
                (
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
            ),
            groups.JSON,
            Group(
                "saving parts",
                (
                    flag(
                        "--save-external-data --external-data-path FILE?",
                        "keep weights next to each part, in <part>.data",
                        usual="in the model file",
                        value="",
                        choices=("",),
                        shown="",
                    ),
                    *groups.SAVE_AS.without("--save-external-data").flags,
                ),
            ),
            *groups.ONNX,
        ),
        ("trtops inspect capability model.onnx --with-partitioning", "trtops inspect capability model.onnx --onnxrt"),
        "Report which nodes of a model a back end supports, and why not the others. With partitioning the model is "
        "cut into supported and unsupported parts. The exit code is 0, as in Polygraphy; --exit-on-bad makes it 1 "
        "if some nodes are not supported.",
    ),
    "data": Command(
        _data_job,
        (
            Group(
                "data",
                (
                    flag("path", "a .json file of saved inputs or outputs, an .npz or an .npy"),
                    flag("-a --all", "show every iteration, not only the first", to="all"),
                    flag("-s --show-values", "show values", to="show_values"),
                    flag("--histogram", "show the distribution of values"),
                    flag("--statistics", "show statistics", idle="they are always shown"),
                    flag("-n --num-items N", "values at the ends of each axis", usual="3", to="num_items"),
                    flag("--line-width N", "longest line of values; -1 for no limit", usual="75"),
                ),
            ),
            groups.JSON,
        ),
        ("trtops inspect data outputs.json --show-values", "trtops inspect data inputs.json --histogram --all"),
        "Show saved inputs or outputs: types, shapes, statistics, and values with --show-values.",
    ),
    "run": Command(
        _run_job,
        (
            Group("run", (flag("run", "the run's id or its first characters, with or without run: before it"),)),
            groups.JSON,
            groups.STORE,
        ),
        ("trtops inspect run 8d6e3f", "trtops inspect run run:8d6e3f --json"),
        "Show what the store holds of a run: params, numbers, tags and files. Exits with 1 if the run is incomplete.",
    ),
    "sparsity": Command(
        _sparsity_job,
        (
            groups.ONNX_MODEL,
            groups.JSON,
            groups.ONNX_LOAD.without("--ignore-external-data"),
            Group(
                groups.ONNX_LOAD.title,
                (flag("--ignore-external-data", "", refuse="a model's sparsity is that of its weights; leave it out"),),
            ),
        ),
        ("trtops inspect sparsity model.onnx",),
        "Report which weights of an ONNX model sparse kernels could use, and which are already 2:4 sparse.",
    ),
    "tactics": Command(
        _tactics_job,
        (Group("record", (flag("tactic_replay", "the file"),)), groups.JSON),
        ("trtops inspect tactics replay.json",),
        "Show a tactic record: the tactic of each layer. Reads records of trtops, and Polygraphy's replay files.",
    ),
}
