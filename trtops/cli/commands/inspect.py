"""The commands of ``trtops inspect``."""

from pathlib import Path
from typing import Any

from trtops import ops
from trtops.backend import trt
from trtops.backend.common import save_bytes
from trtops.cli import configs, groups, loading
from trtops.cli.flags import Group, Options, UsageError, flag
from trtops.cli.jobs import Job, Store, command, no_verdict, op_job
from trtops.cli.logs import log_line, on_brief_terminal, say, say_json, say_report, say_result
from trtops.cli.script import given, product
from trtops.errors import ConfigError
from trtops.tracking.records import RUN_PREFIX, may_be_run_id


@command(
    Group("cache", flag("cache", "a file of either format, or run:ID", file="reads")),
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
        flag("-o --output --output-dir FOLDER", "for report and parts", default="trtops_capability_dumps"),
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
    ).each(needs="with_partitioning"),
    *groups.ONNX,
    examples=("trtops inspect capability model.onnx --with-partitioning",),
)
def capability(args: Options) -> Job:
    """Report which nodes of a model a back end supports, and why not the others.

    With partitioning the model is cut into supported and unsupported parts. The exit code is 0, as in Polygraphy;
    --exit-on-bad makes it 1 if some nodes are not supported.
    """
    partition, path, exit_on_bad = bool(args.with_partitioning), f"{args.output}/results.txt", bool(args.exit_on_bad)

    def code(report: Any) -> int:
        if not report.supported:
            save_bytes(f"{report.text()}\n".encode(), path)
        return int(exit_on_bad and not report.supported)

    return op_job(
        args,
        "capability",
        loading.changed_model(args),
        args.backend or "tensorrt",
        input_shapes=loading.input_shapes(args) or {},
        partition=partition,
        output_dir=args.output if partition else None,
        save_as=loading.save_config(args) if partition else None,
        show=say_report,
        code=code,
    )


@command(
    Group(
        "data",
        flag("path", "a .json file of saved inputs or outputs, an .npz or an .npy", file="reads"),
        flag("-a --all", "show every iteration, not only the first"),
        flag("-s --show-values", "show values"),
        flag("--histogram", "show the distribution of values"),
        flag("--statistics", "show statistics", idle="they are always shown"),
        flag("-n --num-items N", "values at the ends of each axis", usual="3", to="num_items", least=None),
        flag("--line-width N", "longest line of values; -1 for no limit", usual="75"),
    ),
    groups.JSON,
    examples=("trtops inspect data outputs.json --show-values", "trtops inspect data inputs.json --histogram --all"),
)
def data(args: Options) -> Job:
    """Show saved inputs or outputs: types, shapes, statistics, and values with --show-values."""
    names = {"show_values": "show_values", "histogram": "histogram", "all_iterations": "all", "items": "num_items"}
    shown = {name: getattr(args, dest) for name, dest in names.items()} | {"line_width": args.line_width}
    return op_job(args, "inspect_data", args.path, show=say_report, **given(**shown))


@command(
    Group("run", flag("run", "the run's id, or its first eight digits or more")),
    groups.JSON,
    groups.STORE,
    examples=("trtops inspect run 8d6e3f1a", "trtops inspect run run:8d6e3f1a --json"),
)
def run(args: Options) -> Job:
    """Show what the store holds of a run: params, numbers, tags and files. Exits with 1 if the run is incomplete."""
    return op_job(
        args, "inspect_run", args.run, store="reads", code=lambda inspection: int(not inspection.to_json()["whole"])
    )


@command(
    Group("record", flag("tactic_replay", "a file, or run:ID", file="reads")),
    groups.JSON,
    groups.STORE,
    examples=("trtops inspect tactics replay.json", "trtops inspect tactics run:8d6e3f1a"),
)
def tactics(args: Options) -> Job:
    """Show a tactic record: the tactic of each layer. Reads records of trtops, and Polygraphy's replay files."""
    source = args.tactic_replay
    store: Store = "reads" if source.startswith(RUN_PREFIX) else "none"
    return op_job(args, "inspect_tactics", source, store=store, show=say_report)


@command(
    Group(
        "builds",
        flag("records*", "runs, as --runs, or a good record and a bad one", shown="RUN|RECORD", file="reads"),
        flag("--dir FOLDER", "a folder with good/ and bad/ in it"),
        flag("--of-experiment NAME", "all evaluated builds of an experiment in the store"),
    ),
    configs.config_flags("builds", "DiffTacticsConfig", skip="experiment folder also"),
    groups.TRACKING,
    groups.JSON,
    examples=("trtops inspect diff-tactics 8d6e3f1a", "trtops debug diff-tactics good.json bad.json"),
)
def diff_tactics(args: Options) -> Job:
    """Find the tactic that makes builds bad, from good and bad tactic records, or from runs of the store."""
    sources: dict[str, Any] = {"experiment": args.of_experiment, "folder": args.dir}
    if args.records and all(map(may_be_run_id, args.records)):
        sources["runs"] = tuple(args.records)
    elif args.records:
        if (
            len(args.records) != 2
            or getattr(args, "DiffTacticsConfig.good", None)
            or getattr(args, "DiffTacticsConfig.bad", None)
        ):
            raise UsageError("two records are compared: the good one, then the bad one")
        sources |= dict(zip(("good", "bad"), args.records))
    config = configs.make(args, "DiffTacticsConfig", sources)
    return op_job(
        args,
        "diff_tactics",
        config,
        store="reads" if config.runs or config.experiment is not None else "temporary",
        show=_show_difference,
        code=no_verdict,
    )


def _show_difference(result: Any, store: str | None) -> None:
    for line in () if on_brief_terminal() else result.difference_lines():  # Polygraphy's, which scripts search for
        indented = line.replace("\n", "\n    ")
        say(f"[I] {indented}")
    say_result(result, store)


@command(
    Group(
        "engines",
        flag("a", "an engine, the inspector's JSON about one, or a run", file="reads"),
        flag("b", "the other one", file="reads"),
    ),
    configs.config_flags("engines", "InspectEnginesConfig", {"shown": "--show"}, skip="a b"),
    groups.TRACKING,
    groups.JSON,
    examples=("trtops inspect engines fp16.engine int8.engine --profile",),
)
def engines(args: Options) -> Job:
    """Compare two TensorRT engines: layers by their ONNX nodes, and reformats between them, largest differences first.

    Reads engine files, the engine inspector's JSON (trtexec's --exportLayerInfo), and runs of the store.
    """
    config = configs.make(args, "InspectEnginesConfig", a=args.a, b=args.b)
    stored = not all(Path(source).suffix for source in (args.a, args.b))

    def show(result: Any, store: str | None) -> None:
        say_result(result, store, with_page=True)

    return op_job(args, "inspect_engines", config, store="reads" if stored else "optional", show=show, code=no_verdict)


_MODES = {"none": (), "basic": ("layers",), "attrs": ("layers", "attrs"), "full": ("layers", "attrs", "weights")}

SHOWING = Group(
    "showing",
    flag("--display-as --convert-to {trt}", "show the TensorRT network of an ONNX model", usual="none"),
    flag("--show {layers,attrs,weights}+", "what to show of the model", usual="none"),
    flag("--mode {none,basic,attrs,full}", "as --show with nothing, layers, layers attrs, or all three", usual="none"),
    flag("--show-weights", "as --show layers weights", to="show_weights"),
    flag("--list-unbounded-dds", "list tensors whose size is unbounded and known only at run time"),
    flag("--combine-tensor-info FILE", "outputs of a run (--save-outputs), whose statistics are shown with the layers"),
    *(
        flag(f"{name} WORD?", "", shown=None, refuse="models are not drawn; use a viewer such as netron")
        for name in ("--visual", "--visual-port", "--save-visual")
    ),
)


@command(
    groups.MODEL.without("--input-shapes", "--input-dtypes"),
    SHOWING,
    groups.JSON,
    *groups.ONNX,
    groups.TRT_NETWORK,
    groups.TRT_PARSE,
    groups.TRT_LOAD,
    groups.TENSORFLOW,
    Group("TensorRT timing", flag("--save-timing-cache FILE", "timing cache to write", idle="nothing is built")),
    examples=("trtops inspect model model.onnx --show layers attrs",),
)
def model(args: Options) -> Job:
    """Show an ONNX model, an engine, or a TensorRT network of a script or of ONNX (--display-as trt)."""
    kind = loading.model_type(args) if not str(args.model_file).endswith(".ort") else "ort"
    weights = ("layers", "weights") if args.show_weights else ()
    show = tuple(dict.fromkeys((*(args.show or ()), *_MODES[args.mode or "none"], *weights)))
    source, describe = args.model_file, ""
    if kind == "engine":
        if args.display_as:
            raise UsageError(f"{args.model_file} is an engine and is shown as one; leave out --display-as")
        args.ignore(*groups.ONNX, "list_unbounded_dds")
        source, describe = loading.engine(args), "describe_engine"
    elif kind == "trt-network-script" or args.display_as == "trt":
        args.ignore(groups.TRT_LOAD, "list_unbounded_dds", *(("display_as",) if kind != "onnx" else ()))
        source, describe = loading.network(args, outputs=False), "describe_network"
    elif loading.wants_onnx_changes(args) or args.list_unbounded_dds:
        source = loading.onnx_model(args)
    if args.combine_tensor_info and (kind != "engine" or args.json):
        raise UsageError("--combine-tensor-info goes with the layers of a TensorRT engine, as text: --show layers")
    if not describe:
        args.ignore(groups.TRT_NETWORK, groups.TRT_PARSE, groups.TRT_LOAD)
    path, infer, as_json = args.model_file, bool(args.shape_inference), bool(args.json)
    tensors = args.combine_tensor_info
    unbounded = not describe and bool(args.list_unbounded_dds)

    def run() -> int:
        if not as_json:
            log_line(f"Loading model: {path}")
        loaded_model = product(source)
        if describe:
            _show_described(loaded_model, describe, show=show, as_json=as_json, tensors=tensors, path=path)
            return 0
        inspection = ops.inspect_model(loaded_model, show=show, infer_shapes=infer)
        names = list(ops.unbounded_tensors(loaded_model)) if unbounded else []
        if as_json:
            say_json({"model": inspection.to_json(), "unbounded": names} if unbounded else inspection.to_json())
            return 0
        say(f"[I] {inspection.text().rstrip()}")
        if unbounded:
            say(f"[I] Found tensors with unbounded DDS: {names}")
        return 0

    return run


def _show_described(
    model: Any, describe: str, *, show: tuple[str, ...], as_json: bool, tensors: str | None, path: str
) -> None:
    """Print an engine, or a network as its loader returns it."""
    if describe == "describe_engine":
        described: Any = trt.describe_engine(model)
    elif isinstance(model, tuple) and len(model) >= 2:
        described = trt.describe_network(model[1])
    else:
        raise ConfigError(
            f"{path} returned a {type(model).__name__}; expected a builder and a network. Of a PyTorch module, inspect "
            "the ONNX file that `trtops convert` writes (-o net.onnx --input-shapes NAME:[...])."
        )
    if as_json:
        say_json(described.to_dict())
    else:
        say(f"[I] {described.text(show)}")
    if tensors is not None:
        say(ops.tensors_text(described, tensors))
