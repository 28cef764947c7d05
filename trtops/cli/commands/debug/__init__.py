"""The commands of ``trtops debug``; ``precision`` and ``reduce`` are modules of their own."""

from __future__ import annotations

import contextlib
import select
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from trtops import ops
from trtops.backend.common import SaveBytes
from trtops.cli import configs, groups, loading
from trtops.cli.flags import Group, Options, UsageError, flag
from trtops.cli.jobs import Job, command, op_job, store_of, tracker
from trtops.cli.logs import log_line, say, say_progress, say_result
from trtops.logger import G_LOGGER
from trtops.system.allowed import split_script

if TYPE_CHECKING:
    from trtops.ops.campaign.debug_build import CampaignProgress
    from trtops.ops.search.command import CommandCheck
    from trtops.ops.search.repeat import RepeatConfig, RepeatStep


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search by checks: its place in the store, its iterations as Polygraphy logs them, and its end."""

    experiment: str | None
    file: str
    store: str | None
    exit_on_bad: bool

    @classmethod
    def of(cls, args: Options, *, exit_on_bad: bool = False) -> Search:
        """Read the options; with ``exit_on_bad``, a bad verdict is exit code 1 without an option for it, too."""
        exits = bool(exit_on_bad or args.exit_on_bad or args.experiment)
        return cls(experiment=args.experiment, file=args.model_file, store=store_of(args), exit_on_bad=exits)

    def run(self, op: Callable[..., Any], *args: Any, progress: Callable[[Any], None], **options: Any) -> Any:
        """Call the op of the search, and return its result."""
        iterations = Iterations()

        def end_iteration(step: Any) -> None:
            progress(step)
            iterations.ended(step.verdict == "pass")

        store = tracker("optional", self.store, self.experiment)
        result = op(*args, tracker=store, experiment=self.experiment, file=self.file, progress=end_iteration, **options)
        iterations.log_summary()
        return result

    def end(self, result: Any) -> int:
        """Print the result, and its run if recorded; return the exit code."""
        say_result(result, self.store)
        return 1 if self.exit_on_bad and result.verdict != "good" else 0


@command(
    groups.ONNX_MODEL,
    Group(
        "comparison",
        flag("--emulate {fp16,bf16}", "instead of an engine: 16 bit, rounded as a GPU rounds", usual="an engine"),
    ),
    configs.config_flags("comparison", "AccuracyConfig"),
    groups.JSON,
    groups.TRACKING,
    configs.BACKEND,
    configs.QUANTIZING,
    groups.STATISTICS,
    groups.SOURCE,
    groups.SPEC,
    examples=("trtops debug accuracy model.onnx --trt --fp16 --load-inputs inputs.json",),
)
def accuracy(args: Options) -> Job:
    """Find out where an engine goes wrong.

    Every tensor of the model is compared with the model itself, in the order of execution. Exits with 1 if outputs
    differ.
    """
    if args.emulate:
        args.ignore(groups.SPEC, configs.BACKEND)
    build = None if args.emulate else configs.build_config(args, args.backend or "tensorrt")
    return op_job(
        args,
        "accuracy",
        args.model_file,
        ops.Emulated(args.emulate) if build is None else build,
        configs.make(args, "AccuracyConfig", configs.check_values(args, "")),
        store="optional",
    )


@command(
    Group(
        "runs",
        flag("run", "a campaign of `trtops debug build`, or one of its good builds"),
        flag("bad?", "a bad build of the same campaign, if the first is a good build"),
    ),
    configs.config_flags("bisection", "BisectConfig"),
    groups.STORE,
    groups.JSON,
    examples=("trtops debug bisect 8d6e3f1a", "trtops debug bisect 11b2c9d4 77e0aa52 --max-builds 30"),
)
def bisect(args: Options) -> Job:
    """Find the choice that makes a build bad, by building mixtures of a good and a bad build.

    Give a campaign of `trtops debug build`, whose most similar good and bad builds are taken, or a good and a bad build
    of one. Exits with 1 if no culprit is confirmed.
    """
    config = configs.make(args, "BisectConfig")
    return op_job(args, "bisect", args.run, args.bad, config, store="reads", progress=("Bisecting", "builds"))


@command(
    Group("run", flag("run", "a campaign of `trtops debug build`")),
    configs.config_flags("proof", "ProveConfig"),
    groups.STORE,
    groups.JSON,
    examples=("trtops debug prove 8d6e3f1a", "trtops debug prove 8d6e3f1a --suspect 1 --repeats 5 --no-deny"),
)
def prove(args: Options) -> Job:
    """Test a campaign's suspect: put it into a good build, and take it out of a bad one, by replay.

    A suspect confirmed at the model's own limits goes on the deny-list, which later builds respect. Exits with 1 if it
    is refuted, or cannot be swapped alone.
    """
    config = configs.make(args, "ProveConfig")
    return op_job(args, "prove", args.run, config, store="reads", progress=("Proving", "builds"))


@command(
    groups.UNTIL,
    groups.SORTING,
    groups.ITERATING,
    groups.REPLAY,
    groups.CHECK,
    examples=(
        "trtops debug repeat --until 5 --artifacts outputs.json --check trtops run model.onnx --trt --save-outputs "
        "outputs.json",
    ),
)
def repeat(args: Options) -> Job:
    """Run a command repeatedly, and sort the files that it leaves into good/ and bad/."""
    check, config = check_of(args, "-"), repeat_config(args, args.iter_artifact)
    return repeat_job(check, config, exit_on_bad=bool(args.exit_on_bad))


def check_of(args: Options, artifact: str) -> CommandCheck | None:
    """Return the check command, if there is one; it reads the artifact."""
    if not args.check:
        return None
    check = configs.command_check(args, artifact, "{engine}")
    words = tuple(word.replace("{engine}", artifact).replace("{model}", artifact) for word in check.command)
    return replace(check, command=words, artifact=artifact)


def repeat_config(args: Options, intermediate: str | None) -> RepeatConfig:
    """Return the conditions for stopping, and the files to keep."""
    if args.until is None:
        raise UsageError("say when to stop: --until good, --until bad, or --until N")
    return ops.RepeatConfig(
        until=args.until,
        artifacts=tuple(args.artifacts or ()),
        folder=args.art_dir,
        intermediate=None if args.no_remove_intermediate else intermediate,
        info=args.iter_info,
        load_replay=args.load_debug_replay,
        save_replay=args.save_debug_replay,
        show="all" if args.show_output else "none" if args.hide_fail_output else "failing",
    )


def repeat_job(
    check: CommandCheck | None, config: RepeatConfig, make: Callable[[int], None] | None = None, *, exit_on_bad: bool
) -> Job:
    """Return the repeating job, which prints each step. Without a command, a person at the terminal is asked.

    ``make`` makes what is checked in each iteration, given its number.
    """

    def run() -> int:
        ask_user = (lambda number: ask("Did this iteration")) if check is None and sys.stdin.isatty() else None
        if check is None and ask_user is None and make is not None:
            say("Nothing checks the engines, so each that can be built is good. Check them with --check COMMAND.")
            ask_user = lambda number: True  # noqa: E731
        iterations = Iterations()

        def say_step(step: RepeatStep) -> None:
            if step.output:
                say(step.output.rstrip())
            say_progress(f"iteration {step.number}: {step.verdict}{f' ({step.detail})' if step.detail else ''}")
            iterations.ended(step.verdict == "good")

        result = ops.repeat(make or (lambda number: None), check, config, ask=ask_user, progress=say_step)
        iterations.log_summary()
        say(result.text())
        return 1 if exit_on_bad and result.verdict != "good" else 0

    return run


class Iterations:
    """Reports iterations as Polygraphy does: the verdict and time of each, and a summary."""

    def __init__(self) -> None:
        """Start the clock of the first iteration."""
        self._verdicts: list[bool] = []
        self._start = time.perf_counter()

    def ended(self, passed: bool) -> None:
        """Log the outcome of an iteration; the next starts."""
        self._verdicts.append(passed)
        end = time.perf_counter()
        # Not an error: searches expect that checks fail.
        line = (
            f"{'PASSED' if passed else 'FAILED'} | Iteration {len(self._verdicts)} | Duration {end - self._start:.3f}s"
        )
        log_line(line, G_LOGGER.FINISH)
        self._start = end

    def log_summary(self) -> None:
        """Log how many iterations there were, and how many passed; nothing if there were none."""
        total, passed = len(self._verdicts), sum(self._verdicts)
        if total:
            rate = float(passed) * 100 / float(total)
            log_line(f"Finished {total} iteration(s) | Passed: {passed}/{total} | Pass Rate: {rate}%", G_LOGGER.FINISH)


def has_piped_answers() -> bool:
    """Whether answers wait on standard input, which is a pipe or file; a silent pipe of a scheduler is not read."""
    stdin: Any = sys.stdin
    try:
        waiting = select.poll()  # `select` refuses descriptors above 1,023
        waiting.register(stdin, select.POLLIN)
        return bool(waiting.poll(200)) and bool(stdin.buffer.peek(1))
    except (OSError, ValueError, AttributeError):  # closed, or replaced
        return False


def ask(question: str) -> bool:
    """Ask the person at the terminal for the verdict."""
    prompt = f">>> {question} [p]ass or [f]ail? "
    while True:
        answer = input(prompt).strip().lower()
        if answer[:1] in ("p", "f"):
            return answer[0] == "p"
        prompt = ">>> Please choose either: 'p' or 'f': "


CAMPAIGN = Group(
    "campaign",
    flag("--resume RUN", "a campaign to resume"),
    flag("--allow-scripts", "run the scripts and commands that the resumed run names; check them first"),
)
OPTIONS = configs.config_flags(
    "campaign",
    "DebugBuildConfig",
    {"max_iterations": "--max-builds"},
    skip="build command until",
)
ARTIFACT = "trtops_debug.engine"


@command(
    groups.MODEL,
    groups.UNTIL,
    groups.SORTING,
    groups.ITERATING,
    groups.TRACKING,
    configs.BACKEND,
    CAMPAIGN,
    OPTIONS,
    *groups.TRT_BUILD,
    Group("evaluation, in a campaign", groups.STATISTICS),
    groups.DATA,
    *groups.ONNX,
    groups.TENSORFLOW,
    groups.CHECK,
    examples=(
        "trtops debug build model.onnx --fp16 --save-tactics replay.json --artifacts-dir replays --artifacts "
        "replay.json \\\n"
        "    --until=10 --check trtops run trtops_debug.engine --trt --load-outputs golden.json",
        "trtops debug build model.onnx --fp16 --until decided --experiment resnet50",
        "trtops debug build model.onnx --onnxrt --allow-approximation --random-tactics --until 20 --experiment bert",
    ),
)
def build(args: Options) -> Job:
    """Build an engine repeatedly, and check each.

    With --check a command checks, and files are sorted into good/ and bad/. With --experiment (or for ONNX Runtime) it
    is a campaign: each build runs in a child process and is compared with the model, all are recorded, until the
    culprit is known.
    """
    if args.experiment is not None or args.resume or args.backend == "onnxruntime":
        return _campaign(args)
    artifact = args.iter_artifact or ARTIFACT
    if args.until == "decided" or (args.until is None and not args.resume):
        raise UsageError("say when to stop: --until good, bad or N; or --experiment NAME, until it is decided")
    onnxruntime = configs.BACKEND.only("allow_approximation", "timing_seconds", "providers", "cpu_fallback")
    recorded = Group("", groups.STATISTICS, CAMPAIGN, OPTIONS, groups.STORE, onnxruntime)
    configs.refuse(args, recorded, "is for a campaign; add --experiment NAME")
    loader = SaveBytes(loading.engine_bytes(args), artifact)
    check = check_of(args, artifact)
    if not args.artifacts and args.save_tactics:
        args.artifacts = [args.save_tactics]  # each build writes it again
    config = repeat_config(args.but(load_debug_replay=None, save_debug_replay=None), artifact)
    exit_on_bad = bool(args.exit_on_bad)

    def run() -> int:
        # These import TensorRT and multiprocessing, which help does not need.
        from trtops.backend.trt import library
        from trtops.system.worker import Worker

        library.load()
        # A warm child process builds, so that a crash is a verdict.
        with contextlib.closing(Worker()) as worker:
            return repeat_job(check, config, lambda number: worker.run(_build_once, loader), exit_on_bad=exit_on_bad)()

    return run


def _campaign(args: Options) -> Job:
    """Return the job of a campaign, new or resumed."""
    options = {"resume": args.resume, "allow_scripts": bool(args.allow_scripts), "progress": _say_progress}
    if args.resume and args.model_file is None:
        return op_job(args, "debug_build", None, None, store="reads", **options)
    is_model = loading.model_type(args) in ("onnx", "torch") or split_script(args.model_file)[1]
    if loading.wants_onnx_changes(args) or not is_model:
        raise UsageError("a campaign builds an unchanged model; change its ONNX file first with `trtops surgeon`")
    for name in ("artifacts", "iter_info", "save_tactics"):
        if getattr(args, name):
            raise UsageError(f"--{name.replace('_', '-')}: a campaign records everything; see `trtops runs`")
    args.ignore(groups.SORTING, groups.ITERATING.without("--iter-artifact"), "show_output", "hide_fail_output")
    args.ignore(groups.TRT_TACTICS.only("load_tactics", "load_timing_cache", "save_timing_cache", "timing_cache"))
    if not args.check:
        args.ignore("iter_artifact")
    config = configs.make(
        args,
        "DebugBuildConfig",
        configs.check_values(args),
        build=configs.build_config(args, args.backend or "tensorrt"),
        command=configs.command_check(args, ARTIFACT, "{engine}") if args.check else None,
        calibration_cache=args.calibration_cache,
        until=args.until,
    )
    return op_job(
        args, "debug_build", args.model_file, config, store="reads" if args.resume else "temporary", **options
    )


def _say_progress(progress: CampaignProgress) -> None:
    if progress.last is not None:
        iteration = f"iteration {progress.last.number}: {progress.last.verdict}"
        say_progress(f"{iteration} ({progress.done} of at most {progress.limit})")
    elif progress.mixtures:
        say_progress(f"mixture {progress.mixtures} of a good and a bad build")


def _build_once(loader: SaveBytes) -> None:
    loader()  # what it returns stays in the child
