"""The command ``trtops inspect engines``."""

from __future__ import annotations

from pathlib import Path

from trtops.cli import configs, groups
from trtops.cli.flags import Group, Options, UsageError, flag
from trtops.cli.jobs import Job, command, no_verdict, op_job


@command(
    Group(
        "engines",
        flag("a", "an engine, the inspector's JSON about one, or a run"),
        flag("b", "the other one"),
        flag(
            "--layer-times FILE+", "times of the layers of both, in this order, as trtexec's --exportProfile wrote them"
        ),
        flag("--profile", "time the layers here, which needs a GPU"),
    ),
    configs.config_flags("engines", "InspectEnginesConfig", {"shown": "--show"}, skip="a b times_a times_b profile"),
    groups.TRACKING,
    groups.JSON,
    examples=(
        "trtops inspect engines fp16.engine int8.engine --profile",
        "trtops inspect engines before.json after.json --layer-times before_times.json after_times.json",
        "trtops inspect engines 8d6e3f 41c0aa --show 50",
    ),
)
def engines(args: Options) -> Job:
    """Compare two TensorRT engines: layers by their ONNX nodes, and reformats between them, largest differences first.

    Reads engine files, the engine inspector's JSON (trtexec's --exportLayerInfo), and runs of the store.
    """
    times = args.layer_times or [None, None]
    if len(times) != 2:
        raise UsageError("--layer-times takes two files, one for each engine")
    values = {"times_a": times[0], "times_b": times[1], "profile": args.profile}
    config = configs.make(args, "InspectEnginesConfig", values, a=args.a, b=args.b)
    stored = not all(Path(source).suffix for source in (args.a, args.b))
    return op_job(
        args,
        "inspect_engines",
        config,
        store="reads" if stored else "optional",
        experiment=args.experiment,
        code=no_verdict,
    )
