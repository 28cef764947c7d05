"""The commands of one word with one op each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtops import ops
from trtops.cli import configs, groups
from trtops.cli.flags import Group, Options, UsageError, flag
from trtops.cli.jobs import Job, command, op_job, tracker
from trtops.cli.logs import on_brief_terminal, say, say_progress
from trtops.cli.script import call
from trtops.tables import counted
from trtops.tracking.records import RUN_PREFIX

if TYPE_CHECKING:
    from trtops.ops.triaging.result import Step


@command(
    Group("list", flag("models", "the list, such as models.yaml", shown="LIST")),
    Group("checking", flag("--check", "build nothing; report what is wrong with the list")),
    configs.config_flags("building", "BuildListConfig", {"backends": "--backend"}),
    groups.TRACKING,
    groups.JSON,
    examples=("trtops build-list models.yaml", "trtops build-list models.yaml --check"),
)
def build_list(args: Options) -> Job:
    """Build every model of a list (YAML), also after a failure, and report each outcome. Exits with 1 if one failed."""
    models = args.models
    if not args.check:
        config = configs.make(args, "BuildListConfig")
        return op_job(args, "build_list", models, config, store="writes")

    def check() -> int:
        listed = ops.read_model_list(models)
        problems = listed.problems()
        good = f"{models}: entries: {len(listed.models)}, builds: {len(listed.builds())}, nothing missing."
        say("\n".join(problems) or good)
        return 1 if problems else 0

    return check


@command(
    groups.ONNX_MODEL,
    configs.config_flags("calibration", "CalibrateConfig", {"output": "-o --output"}, skip="check build"),
    configs.QUANTIZING,
    groups.TRACKING,
    groups.PROFILE,
    configs.BACKEND,
    Group("evaluation", groups.STATISTICS),
    configs.config_flags("evaluation", "CalibrateConfig", skip="build data output samples batch min_samples"),
    groups.SOURCE.without("--val-range"),
    groups.SPEC.without("--int8"),
    examples=("trtops calibrate model.onnx --calibration-data images.npz --load-inputs held_out.npz -o int8.cache",),
)
def calibrate(args: Options) -> Job:
    """Find INT8 ranges from real data, and evaluate INT8 with them.

    The calibration cache that it writes fits any build. Exits with 1 if the INT8 engine is not good enough.
    """
    args.int8 = True
    build = configs.build_config(args, args.backend or "onnxruntime")
    config = configs.make(args, "CalibrateConfig", configs.check_values(args), build=build)
    if config.calibration_data is None and config.check.data is None:
        raise UsageError("calibration needs real data: use --calibration-data, --load-inputs or --data-loader-script")
    return op_job(args, "calibrate", args.model_file, config, store="temporary", progress=("Calibrating", "samples"))


@command(
    Group("models", flag("models+", ".onnx, .pt2, script.py:function, or patterns", shown="MODEL", file="reads")),
    configs.config_flags("limits and candidates", "ChooseConfig", skip="build check"),
    Group("evaluation", groups.STATISTICS),
    configs.config_flags("evaluation", "ChooseConfig", skip="build data"),
    configs.QUANTIZING,
    groups.SOURCE,
    groups.TRACKING,
    groups.JSON,
    examples=(
        "trtops choose model.onnx --data images.npz --loss 1%",
        "trtops choose model.onnx --data images.npz --metric detection --labels coco.json --loss 0.5% --latency 2ms",
    ),
)
def choose(args: Options) -> Job:
    """Find the fastest engine within limits, among precisions, kept layers, providers and settings.

    Each candidate is a child run; what cannot win is not built, and the table says why. Exits with 1 if none is within
    the limits.
    """
    config = configs.make(args, "ChooseConfig", configs.check_values(args), build=configs.make(args, "BuildConfig"))
    return op_job(args, "choose_all", tuple(args.models), config, store="writes", progress=("Choosing", "candidates"))


@command(
    Group(
        "sides",
        flag(
            "actual",
            "the side under test: run:ID, .onnx, .engine, .plan, .ort, .pt2, script.py:function, .json or .npz",
            file="reads",
        ),
        flag("golden", "the reference", file="reads"),
        flag("more*", "further runs, for --html", file="reads"),
        flag(
            "--html FILE",
            "write a page of stored builds next to each other; the first is the baseline, and none runs",
            file="writes",
        ),
    ),
    Group(groups.STATISTICS.title, groups.STATISTICS, groups.COMPARING.only("infinities_compare_equal")),
    configs.config_flags("comparing", "CompareConfig", skip="data"),
    groups.SOURCE,
    groups.TRACKING,
    groups.JSON,
    examples=(
        "trtops compare run:8d6e3f1a model.onnx",
        "trtops compare run:8d6e3f1a run:1a2b3c4d --html page.html",
        "trtops inspect diff actual.json expected.json",
    ),
)
def compare(args: Options) -> Job:
    """Compare two sides, output by output.

    A side is a run of the store (run:ID), an ONNX file, an engine file, or a file of saved outputs. The second side
    is the reference. Exits with 1 if they differ.
    """
    sides = (args.actual, args.golden)
    if args.html:
        args.ignore("experiment", groups.STATISTICS, groups.SOURCE, "infinities_compare_equal")
        runs, output, store_address = (*sides, *(args.more or ())), args.html, args.store

        def write() -> int:
            say(ops.compare_page(runs, output=output, tracker=tracker("reads", store_address)).path)
            return 0

        return write
    if args.more:
        raise UsageError(f"{args.more[0]!r} is a third side; only --html FILE compares several, which are runs")
    stored = any(side.startswith(RUN_PREFIX) for side in sides)
    return op_job(
        args,
        "compare",
        *sides,
        configs.make(args, "CompareConfig", configs.check_values(args, prefix="")),
        store="reads" if stored else "temporary",
    )


@command(
    Group(
        "engine",
        flag("engine", "the engine (.plan, .engine, .trt, .ort, .onnx), or a folder of them", file="reads"),
        flag(
            "--model FILE",
            "its ONNX model, or a folder of models whose names begin the engines'",
            required=True,
        ),
    ),
    configs.config_flags("evaluation", "EvaluateConfig"),
    groups.STATISTICS,
    groups.SOURCE,
    groups.TRACKING,
    groups.PROFILE,
    groups.JSON,
    examples=("trtops evaluate model.plan --model model.onnx --load-inputs inputs.npz",),
)
def evaluate(args: Options) -> Job:
    """Compare an engine that another program built with its model, and record it with what is not known of it.

    Exits with 1 unless it, or each engine of a folder, is good.
    """
    config = configs.make(args, "EvaluateConfig", configs.check_values(args))
    progress = ("Evaluating", "engines") if Path(args.engine).is_dir() else None
    return op_job(args, "evaluate", args.engine, args.model, config, store="temporary", progress=progress)


@command(
    Group(
        "candidates",
        flag(
            "models*",
            "models: .onnx, .pt2, script.py:function (default: the store's accepted engines, in the newest --release)",
            shown="MODEL",
            file="reads",
        ),
        flag("--release FILE+", "constraints files of pip, one for each release (default: this environment)"),
        flag("--precisions {fp32,fp16,bf16,fp8,int8}+", "precisions to build, instead of --fp16", usual="as given"),
    ),
    Group(
        "evaluation",
        flag("--policy FILE", "what passes (YAML): limits by statistic, output and precision"),
        flag("--accepted-release FILE+", "constraints files of releases that accepted engines may need"),
        flag("--no-register", "give no alias to an accepted candidate"),
    ),
    configs.config_flags("evaluation", "GateConfig", skip="build policy release others register"),
    configs.BACKEND,
    configs.QUANTIZING,
    groups.SPEC,
    groups.SOURCE,
    groups.TRACKING,
    groups.JSON,
    examples=("trtops gate model.onnx --fp16 --trt --policy gate.yaml",),
)
def gate(args: Options) -> Job:
    """Build a candidate and compare it with the accepted engine: accuracy, latency, size, layers.

    Several models, precisions or releases make a matrix. A candidate that passes is accepted and gets the
    alias. Ends within --minutes each. Exits with 1 if one is refused, and with 4 if one is undecided.
    """
    config = configs.make(
        args,
        "GateConfig",
        configs.data_values(args, "check."),
        build=configs.build_config(args, args.backend or "onnxruntime"),
        others=tuple(args.accepted_release or ()),
        register=not args.no_register,
    )
    # Files are read when the job runs: a missing one is an error, not wrong usage.
    if args.policy is not None:
        config = call(replace, config, policy=call(ops.read_policy, args.policy))
    return op_job(
        args,
        "gate_all",
        tuple(args.models),
        config,
        store="writes",
        releases=tuple(args.release or ()),
        precisions=tuple(args.precisions or ()),
        progress=("Gating", "candidates"),
    )


@command(
    Group(
        "report",
        flag("run", "the run's id: a build, a campaign, a proof, a gate, an audit"),
        flag("-o --output FILE", "the file to write (default: report-<run>.html)"),
    ),
    groups.STORE,
    groups.JSON,
    examples=("trtops report 8d6e3f1a -o report.html",),
)
def report(args: Options) -> Job:
    """Write a report of a run as one self-contained HTML file."""

    def show(written: Any, store: str | None) -> None:
        say(written.path)

    return op_job(args, "report", args.run, output=args.output, store="writes", show=show)


@command(
    Group("run", flag("run", "a build's run, or an iteration's")),
    configs.config_flags("repository", "ExportConfig", {"triton": "--triton", "max_batch": "--max-batch"}),
    groups.STORE,
    groups.JSON,
    examples=("trtops export 8d6e3f1a --triton models --max-batch 8",),
)
def export(args: Options) -> Job:
    """Write a good engine into a Triton model repository, as the next version of a model.

    Triton batches only where the optimization profiles take the batches and the self-check holds. The folder `client`
    next to the versions has a script that repeats the verdict on a running server.
    """
    return op_job(args, "export", args.run, configs.make(args, "ExportConfig"), store="reads")


@command(
    groups.ONNX_MODEL,
    Group(
        "measuring",
        flag("--calibration-cache FILE", "the ranges: a cache of either format, or run:ID", required=True),
    ),
    configs.config_flags("measuring", "SensitivityConfig", skip="data"),
    groups.TRACKING,
    groups.SOURCE.without("--val-range"),
    examples=("trtops sensitivity model.onnx --calibration-cache int8.cache --load-inputs images.json --budget 0.01",),
)
def sensitivity(args: Options) -> Job:
    """Measure what layers cost in INT8, and propose which to keep. Exits with 1 if the error budget cannot be met."""
    return op_job(
        args,
        "sensitivity",
        args.model_file,
        args.calibration_cache,
        configs.make(args, "SensitivityConfig", configs.data_values(args)),
        store="reads" if args.calibration_cache.startswith(RUN_PREFIX) else "temporary",
        progress=("Measuring", "layers"),
    )


@command(
    groups.ONNX_MODEL,
    Group(
        "triage",
        flag("--golden --load-outputs FILE", "saved outputs to use as the reference"),
        flag("-o --output FOLDER", "where to write the smallest case and its bundle", to="folder"),
    ),
    configs.config_flags("triage", "TriageConfig", {"campaign_builds": "--max-builds"}, skip="build check replay"),
    groups.JSON,
    groups.TRACKING,
    configs.BACKEND,
    configs.QUANTIZING,
    groups.STATISTICS,
    groups.SOURCE,
    groups.SPEC,
    Group("building", groups.PRECISIONS.only("calibration_cache"), groups.TRT_TACTICS.only("load_tactics")),
    examples=("trtops triage model.onnx --fp16 --load-inputs inputs.json",),
)
def triage(args: Options) -> Job:
    """Find out why an engine is bad: one question after the other, down to the smallest case that shows the fault.

    Is the data real, is the model sound, is the engine bad, is it the precision or the builder, where, which tactic,
    which nodes to keep. Engines and evaluations of the experiment's runs are used. Each answer is stored with its
    evidence and its cost; a question without time left is printed with its command. Exits with 0 if nothing is
    wrong, and with 1 if a fault was found, or none can be ruled out on this data or in this time.
    """
    backend = args.backend or ("tensorrt" if getattr(args, "strongly_typed", None) else "onnxruntime")
    check = {"check.golden": args.golden, "check.plots": "never", "check.latency_runs": 0}
    config = configs.make(
        args,
        "TriageConfig",
        configs.check_values(args) | check,
        build=configs.build_config(args, backend),
        calibration_cache=args.calibration_cache,
        replay=args.load_tactics,
        output=args.folder,
    )
    return op_job(
        args,
        "triage",
        args.model_file,
        config,
        store="optional",
        progress=None if getattr(args, "json", None) else _say_step,
    )


def _say_step(step: Step) -> None:
    if step.answer:
        say_progress(f"{step.asks} {step.answer} ({counted(step.builds, 'build')}, {step.seconds:.1f} s)")
    elif on_brief_terminal():
        say_progress(step.asks)
