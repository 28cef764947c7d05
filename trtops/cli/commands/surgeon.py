"""The commands of ``trtops surgeon``."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from trtops import ops
from trtops.cli import groups, loading, values
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job, command, op_job
from trtops.cli.script import call, product
from trtops.metadata import DataType, TensorSpec

OBSERVING = Group(
    "shapes from running the model",
    flag("--force-fallback-shape-inference", "take all shapes from running the model; none stays dynamic"),
    groups.DATA.without("--iterations").each(needs="force_fallback_shape_inference"),
    groups.ONE_FEED,
)


def _job(args: Options, op: str, *further: Any, model: Any = None, **kwargs: Any) -> Job:
    """Return the job of an op on a model (default: the one of the options)."""
    source = loading.changed_model(args) if model is None else model
    return op_job(args, op, source, args.output, *further, save_as=loading.save_config(args), **kwargs)


def reshaped(source: Any, shapes: Any) -> Any:
    """Return a model with other input shapes."""
    return ops.sanitize(product(source), input_shapes=shapes).model


def _tensor_specs(tensors: Iterable[tuple[str, str, values.Shape | None]] | None) -> tuple[TensorSpec, ...] | None:
    specs = (TensorSpec(name, DataType.of(dtype) if dtype else None, shape) for name, dtype, shape in tensors or ())
    return tuple(specs) or None


def names_in(path: str) -> tuple[str, ...]:
    """Return the nonempty lines of a file."""
    return tuple(line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip())


@command(
    groups.ONNX_MODEL,
    Group(
        "the part",
        flag("--inputs NAME[:SHAPE[:TYPE]]*", "its inputs: x:[1,3,224,224]:float32, or x:auto:auto", to="part_inputs"),
        flag("--outputs NAME[:TYPE]+", "its outputs: y:float32, or y:auto", to="part_outputs"),
        flag("--model-inputs --model-input-shapes NAME:[DIMS]+", "shapes of the model's inputs", to="input_shapes"),
        flag("-o --output FILE", "where to write it (default: <model>.part.onnx)"),
    ),
    groups.SAVE_AS,
    OBSERVING,
    groups.ONNX_LOAD,
    groups.ONNX_SHAPE,
    examples=("trtops surgeon extract model.onnx --inputs x:[1,3,224,224]:float32 --outputs conv1:auto -o part.onnx",),
)
def extract(args: Options) -> Job:
    """Cut a part out of an ONNX model, between given tensors. Types and shapes that are not given are inferred."""
    args.output = args.output or f"{Path(args.model_file).stem}.part.onnx"
    model = loading.changed_model(args)
    if args.input_shapes:
        model = call(reshaped, model, dict(args.input_shapes))
    parts = {"inputs": _tensor_specs(args.part_inputs), "outputs": _tensor_specs(args.part_outputs)}
    return _job(args, "extract", model=model, **parts)


@command(
    groups.ONNX_MODEL,
    Group(
        "cleaning",
        flag("--fold-constants", "compute what does not depend on inputs"),
        flag("--num-passes --num-const-fold-passes N", "most passes (default: until nothing folds)"),
        flag("--partitioning {basic,recursive}", "how to fold", idle="every node that can be folded is folded"),
        flag("--no-fold-shapes", "do not fold shapes"),
        flag("--no-per-pass-shape-inference", "do not infer shapes between passes"),
        flag("--fold-size-threshold BYTES", "larger tensors are not folded"),
        flag("--cleanup", "remove nodes and weights that no output needs"),
        flag("--toposort", "sort nodes in execution order"),
        flag("--override-input-shapes --override-inputs NAME:[DIMS]+", "new input shapes", to="input_shapes"),
        flag("--set-unbounded-dds-upper-bound [TENSOR:]N+", "bounds of sizes known only at run time"),
        flag("--outputs NAME+", "tensors to use as outputs; 'mark all' for all", to="new_outputs"),
        flag("--exclude-outputs NAME+", "outputs to leave out"),
        flag("--outputs-by-type OP+", "types of nodes whose results become outputs"),
        flag("--no-shape-inference", "infer no shapes"),
        replace(groups.NO_SYMBOLIC_SHAPES, needs=""),
    ),
    OBSERVING,
    groups.ONNX_SAVE,
    groups.ONNX_LOAD,
    examples=("trtops surgeon sanitize model.onnx --fold-constants --cleanup -o clean.onnx",),
)
def sanitize(args: Options) -> Job:
    """Clean an ONNX model.

    Folds constants, removes what no output needs, sorts nodes, changes input shapes and outputs, and bounds sizes that
    are known only at run time.
    """
    return _job(
        args,
        "sanitize",
        input_shapes=dict(args.input_shapes or ()),
        fold_constants=bool(args.fold_constants),
        fold_shapes=not args.no_fold_shapes,
        infer_shapes=not (args.no_shape_inference or args.force_fallback_shape_inference),
        infer_between_passes=not args.no_per_pass_shape_inference,
        symbolic_shapes=not args.no_onnxruntime_shape_inference,
        max_passes=args.num_passes,
        max_folded_bytes=args.fold_size_threshold,
        cleanup=bool(args.cleanup),
        sort=bool(args.toposort),
        outputs=None if args.new_outputs is None else tuple(args.new_outputs),
        exclude_outputs=None if args.exclude_outputs is None else tuple(args.exclude_outputs),
        output_types=None if args.outputs_by_type is None else tuple(args.outputs_by_type),
        upper_bounds={name: int(bound) for name, bound in args.set_unbounded_dds_upper_bound or ()},
    )


@command(
    groups.ONNX_MODEL,
    Group(
        "the node",
        flag("--op OP", "its type", required=True),
        flag("--inputs TENSOR+", "the tensors that it reads", to="node_inputs", required=True),
        flag("--outputs TENSOR+", "the tensors that it makes", to="node_outputs", required=True),
        flag("--name NAME", "its name", to="node_name", default=""),
        flag("--domain DOMAIN", "its operator domain", default=""),
        flag("--attrs NAME=VALUE+", "its attributes: axis=1 perm=[0,2,1]", convert=values.attribute),
    ),
    groups.ONNX_SAVE,
    groups.ONNX_LOAD,
    groups.ONNX_SHAPE,
    examples=("trtops surgeon insert model.onnx --op Clip --inputs logits --outputs logits -o clipped.onnx",),
)
def insert(args: Options) -> Job:
    """Insert a node between tensors of an ONNX model. A tensor that is input and output passes through the node."""
    node = {"name": args.node_name, "domain": args.domain, "attributes": dict(args.attrs or ())}
    return _job(args, "insert", args.op, tuple(args.node_inputs), tuple(args.node_outputs), **node)


@command(
    groups.ONNX_MODEL,
    Group(
        "pruning",
        flag("--remove-node-types OP+", "types of nodes to remove, instead of sparsity"),
        flag("-o --output FILE", "where to write it (default: <model>.pruned.onnx)"),
    ),
    groups.SAVE_AS,
    groups.ONNX_LOAD,
    examples=("trtops surgeon prune model.onnx -o sparse.onnx",),
)
def prune(args: Options) -> Job:
    """Make weights 2:4 sparse, or remove nodes of some types from a model.

    Sparse weights show the speed of sparse kernels; accuracy is lost. A removed node passes its input on.
    """
    args.output = args.output or f"{Path(args.model_file).stem}.pruned.onnx"
    if args.remove_node_types:
        return _job(args, "remove_nodes", tuple(args.remove_node_types))
    return _job(args, "prune")


@command(
    groups.ONNX_MODEL,
    Group("weights", flag("--exclude-list FILE", "a file with the names of weights to keep, one per line")),
    groups.ONNX_SAVE,
    groups.ONNX_LOAD,
    examples=("trtops surgeon weight-strip model.onnx -o structure.onnx",),
)
def weight_strip(args: Options) -> Job:
    """Remove the weights from an ONNX model, so that its structure can be shared."""
    excluded = call(names_in, args.exclude_list) if args.exclude_list else ()
    return _job(args, "strip_weights", exclude=excluded)


@command(
    groups.ONNX_MODEL,
    Group("weights", flag("--original FILE", "the model with the weights (default: random weights)")),
    groups.ONNX_SAVE,
    groups.ONNX_LOAD,
    examples=("trtops surgeon weight-reconstruct structure.onnx -o random.onnx",),
)
def weight_reconstruct(args: Options) -> Job:
    """Put weights back into a stripped model: those of the original, or random ones of the same types and shapes."""
    return _job(args, "reconstruct_weights", original=args.original)
