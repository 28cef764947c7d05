"""The commands of ``trtops runs``."""

import textwrap
import time
from dataclasses import replace
from typing import Any

from trtops import ops
from trtops.backend.common import save_bytes
from trtops.cli import configs, groups
from trtops.cli.commands import inspect
from trtops.cli.flags import Group, Options, UsageError, flag
from trtops.cli.jobs import Job, command, direct_command, no_verdict, op_job, tracker
from trtops.cli.logs import is_detailed, say, say_json, say_result, say_table
from trtops.terminal import one_line
from trtops.tracking.records import RUN_PREFIX, EngineQuery
from trtops.tracking.schema import KINDS, Tag


def tag(text: str) -> tuple[str, str]:
    """Return name and value of ``NAME=VALUE``. The value stays text: ``007`` is not a number."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise ValueError(f"{text!r} is not a tag with its value; expected NAME=VALUE")
    return name, value


def limit(text: str) -> tuple[str, float]:
    """Return metric and value of ``METRIC=VALUE``."""
    name, value = tag(text)
    return name, float(value)


_FILTERS = Group(
    "which",
    flag("--experiment NAME", "only runs of this experiment", to="of_experiment"),
    flag("--kind KIND", "only of this kind: build, compare, debug_build, reduce, ...", choices=KINDS, usual="any"),
    flag("--verdict {good,bad,error,unproven}", "only with this verdict", usual="any"),
    flag("--tag NAME=VALUE+", "only with all of these tags", convert=tag),
)
_READ = (groups.STORE, groups.JSON)
_WIDTH_OF_VALUES = 56  # characters for the values of runs side by side; longer ones are below the table
_BRIEF_ROWS = 8  # of a comparison without -v, so that it is one screen
_RECENT = 300 * 86400.0  # seconds within which lists name no year


@command(
    Group(
        "which",
        _FILTERS,
        flag("--status {running,finished,failed,killed}", "only with this status", usual="any"),
        flag("--parent RUN", "only below this run"),
        flag("-n --limit N", "maximum number of runs", default=50),
        flag("--csv", "print CSV, with a column for each param and metric"),
    ),
    Group(
        "engines (runs that built one)",
        flag("--best METRIC", "good ones only, with the lowest value first, such as latency/p50_ms"),
        flag("--data NAME[@DIGEST]", "evaluated on this data, as in the params evidence.source and evidence.data"),
        flag("--device NAME", "built on this device, as in the param env.device"),
        flag("--kernel NAME", "with this kernel, as trtops inspect tactics names it"),
        flag(
            "--above METRIC=VALUE+",
            "with larger values than these, such as error/max_abs=0.01",
            convert=limit,
            least=None,
        ),
        flag("--accepted", "that an alias of the registry points to"),
    ),
    *_READ,
    examples=(
        "trtops runs list --experiment resnet50 --verdict bad",
        "trtops runs list --best latency/p50_ms --data 'random data (seed 1)' --device 'NVIDIA L4'",
        "trtops runs list --accepted --kernel sm80_xmma_gemm_f16 --above error/max_abs=0.01",
    ),
)
def list_(args: Options) -> Job:
    """List runs of the store, newest first, or runs that built certain engines."""
    filters = args.pick("kind", "verdict", "status", "parent", "limit")
    filters |= {"experiment": args.of_experiment, "tags": dict(args.tag or ())}
    if args.csv:
        return op_job(args, "runs_csv", store="reads", show=lambda text, store: say(text.rstrip()), **filters)
    query = EngineQuery(
        best=args.best or "",
        data=args.data or "",
        device=args.device or "",
        kernel=args.kernel or "",
        above=tuple(args.above or ()),
        accepted=bool(args.accepted),
    )

    def show(rows: list[Any], store: str | None) -> None:
        _show_list(rows, query.best)

    return op_job(
        args, "list_runs", store="reads", show=show, engines=query if query != EngineQuery() else None, **filters
    )


def _show_list(rows: list[Any], best: str) -> None:
    if not rows:
        say("No such runs.")
        return
    cells = []
    for row in rows:
        form = "%m-%d %H:%M" if time.time() - row.start_time < _RECENT else "%Y-%m-%d"
        started = time.strftime(form, time.localtime(row.start_time))
        value = () if row.value is None else (f"{row.value:.6g}",)
        cells.append((row.id[:8], row.experiment, row.kind, row.verdict or row.status, *value, started, row.name))
    measured = (best,) if best else ()
    columns = ("run", "experiment", "kind", "verdict", *measured, "started", "name")
    say_table(columns, cells, expendable=("kind", "experiment", "started"))


show = replace(inspect.run, examples=("trtops runs show 8d6e3f1a",))


@command(
    Group(
        "board",
        flag("--nights N", "number of nights to show, for each list and machine", default=14),
        flag("-o --output FILE", "also write the board as a page of HTML"),
    ),
    *_READ,
    examples=("trtops runs board -o board.html",),
)
def board(args: Options) -> Job:
    """Show the last verdict, error and latency of every listed model, on each device and in each precision.

    Models that are not good come first. Exits with 1 if there is one.
    """

    def show(result: Any, store: str | None) -> None:
        expendable = ("last", "machine", "change", "device", "back end", "nights")
        say_table(result.table().columns, result.table().rows, expendable)
        say_result(result, store)

    return op_job(args, "board", nights=args.nights, output=args.output, store="reads", show=show)


@command(Group("runs", flag("runs+", "ids of runs")), *_READ, examples=("trtops runs compare 8d6e3f1a 1a2b3c4d",))
def compare(args: Options) -> Job:
    """Show verdicts, and params and numbers of runs that differ, side by side; all of them with -v."""
    ids = [run.removeprefix(RUN_PREFIX)[:8] for run in args.runs]

    def show(lines: Any, store: str | None) -> None:
        if not lines:
            say("Nothing differs.")
            return
        longest = max(_WIDTH_OF_VALUES // len(ids) - 2, 8)
        sentences = [line for line in lines if max(map(len, line.values)) > longest]
        rows = [(line.name, *(value or "-" for value in line.values)) for line in lines if line not in sentences]
        most = len(rows) if is_detailed() else _BRIEF_ROWS
        say_table(("", *ids), rows[:most])
        if not is_detailed():
            hidden = [name for name, *_ in rows[most:]] + [line.name for line in sentences]
            if hidden:
                say(textwrap.shorten(f"Also differ: {', '.join(hidden)}", 74, placeholder=" ...") + " (-v)")
            return
        for line in sentences:
            say(f"\n{line.name}")
            for run_id, value in zip(ids, line.values):
                say(
                    textwrap.fill(
                        one_line(value or "-"), 80, initial_indent=f"  {run_id}  ", subsequent_indent=" " * 12
                    )
                )

    return op_job(args, "side_by_side", tuple(args.runs), store="reads", show=show)


@command(
    Group("runs", flag("runs+", "ids of runs with a comparison")),
    groups.STATISTICS,
    *_READ,
    examples=("trtops runs evaluate 8d6e3f1a --check-error-stat max --atol 1e-3 --rtol 1e-2",),
)
def evaluate(args: Options) -> Job:
    """Re-evaluate stored runs with other tolerances.

    Nothing runs and the store does not change. Exits with 1 if one is bad or unproven.
    """
    tolerances = configs.tolerances(args)
    if tolerances is None:
        raise UsageError("give tolerances, such as --atol 1e-3 --rtol 1e-2")

    def show(evaluated: Any, store: str | None) -> None:
        for reevaluated in evaluated:
            reasons = (f"\n    {reason}" for reason in reevaluated.reasons)
            name = one_line(reevaluated.name)
            say(f"{reevaluated.id} {name}: {reevaluated.verdict} (was {reevaluated.before or '-'}){''.join(reasons)}")

    return op_job(
        args,
        "reevaluate",
        tuple(args.runs),
        tolerances,
        store="reads",
        show=show,
        code=lambda evaluated: int(any(run.verdict != "good" for run in evaluated)),
    )


@command(
    Group("runs", flag("runs*", "ids of runs"), _FILTERS),
    Group("rebuilding", flag("--by {replay,timing-cache,plain}+", "how runs are rebuilt (default: every way)")),
    configs.config_flags("rebuilding", "AuditConfig", {"keys": "--key"}, skip="runs experiment tags ways"),
    *_READ,
    examples=("trtops runs audit 8d6e3f1a", "trtops runs audit --sample 20 --log head.txt --no-rebuild"),
)
def audit(args: Options) -> Job:
    """Check runs for consistency, rebuild them from the store alone, and grade each.

    Runs are also compared with the store's append-only log, which shows deleted, moved and changed runs. Each audit
    prints the head of the log. Keep it in another place: --log compares it with the log of a later day; alone, it
    checks the log and that every logged run exists. `trtops report` writes the result as a page. Exits with 1 if one
    does not pass.
    """
    named = ((Tag.KIND, args.kind), (Tag.VERDICT, args.verdict))
    config = configs.make(
        args,
        "AuditConfig",
        runs=tuple(args.runs or ()),
        experiment=args.of_experiment,
        tags=(*(args.tag or ()), *(tag_filter for tag_filter in named if tag_filter[1])),
        ways=tuple(way.replace("-", " ") for way in args.by) if args.by else None,
    )
    if not (config.runs or config.has_filter or config.log or config.certificates):
        raise UsageError("give ids of runs, or --experiment NAME, --accepted, --sample N, --log HEAD or --certificates")
    return op_job(args, "audit", config, store="reads", progress=("Auditing", "runs"))


@command(
    Group(
        "which",
        flag("--older-than DAYS", "only if the run ended at least this long ago", convert=float, default=30.0),
        flag("--apply", "delete the engines"),
    ),
    *_READ,
    examples=("trtops runs prune --older-than 90 --apply",),
)
def prune(args: Options) -> Job:
    """Delete engines of old runs that are not accepted; the rest of a run stays. Without --apply it only lists them."""
    return op_job(args, "prune_runs", older_than_days=args.older_than, apply=bool(args.apply), store="reads")


@command(
    Group("run", flag("run", "a build's run, or an iteration's")),
    configs.config_flags("bundle", "BundleConfig", {"output": "-o --output", "timeout_seconds": "--script-timeout"}),
    *_READ,
    examples=("trtops runs bundle 8d6e3f1a -o fault.zip",),
)
def bundle(args: Options) -> Job:
    """Pack a run into one zip file that reproduces its verdict without trtops, with `python reproduce.py`.

    The zip file contains model, inputs, golden outputs, tactics, caches, environment, the releases to install, and a
    bug report. The script is run before the zip file is written: exit code 3 if it does not reproduce the verdict.
    """
    return op_job(args, "bundle", args.run, configs.make(args, "BundleConfig"), store="writes", code=no_verdict)


@command(
    Group("run", flag("run", "a good build's run, or a good iteration's")),
    configs.config_flags("promotion", "PromoteConfig"),
    *_READ,
    examples=("trtops runs promote 8d6e3f1a",),
)
def promote(args: Options) -> Job:
    """Accept a good run's engine for all users: rebuilt from its tactics on this machine, verified, and registered."""
    return op_job(args, "promote", args.run, configs.make(args, "PromoteConfig"), store="reads")


@direct_command(
    Group(
        "engine",
        flag("model_file", "the ONNX model"),
        flag("--name NAME", "the registered model (default: the model file's name)"),
        flag("--key FILE+", "public keys that the engine must be signed with"),
        flag("-o --output FILE", "where to write the engine"),
    ),
    Group("back end (default: ONNX Runtime)", configs.BACKEND.only("backend", "providers")),
    *_READ,
    examples=("trtops runs resolve model.onnx --trt -o model.engine",),
)
def resolve(args: Options) -> int:
    """Find the accepted engine for a model on this machine; -o writes it to a file. Exits with 1 without one."""
    store = tracker("reads", args.store)
    backend = args.backend or "onnxruntime"
    keys, providers = tuple(args.key or ()), tuple(args.providers or ())
    resolution = ops.resolve(
        args.model_file, backend=backend, providers=providers, name=args.name, keys=keys, tracker=store
    )
    if resolution.run_id and resolution.path and args.output:
        save_bytes(resolution.engine(store).plan, args.output)
    if args.json:
        say_json(resolution.to_dict())
    elif resolution.run_id:
        by = f", accepted by {resolution.accepted_by}" if resolution.accepted_by else ""
        say(f"Version {resolution.version} of {resolution.name!r}: run {resolution.run_id}, {resolution.path}{by}")
    else:
        say(resolution.reason)
    return 0 if resolution.run_id else 1


@command(
    Group(
        "run",
        flag("run", "a proof of `trtops debug prove`"),
    ),
    *_READ,
    examples=("trtops runs deny 8d6e3f1a", "trtops runs list --kind deny"),
)
def deny(args: Options) -> Job:
    """Put a confirmed culprit on the deny-list, which later builds on the same device and release respect."""
    return op_job(args, "deny", args.run, store="reads")


@command(
    Group(
        "run",
        flag("run", "an entry of the deny-list, as `trtops runs list --kind deny` shows it"),
        flag("--why REASON", "why it is removed", required=True),
    ),
    *_READ,
    examples=("trtops runs pardon 8d6e3f1a --why 'fixed by the new driver'",),
)
def pardon(args: Options) -> Job:
    """Remove an entry from the deny-list. The entry stays in the store, with the reason."""
    return op_job(args, "pardon", args.run, why=args.why, store="reads")


@direct_command(
    Group(
        "run",
        flag("run", "a run, as `trtops runs list` shows it"),
        flag("--why REASON", "why it is closed (default: that its process is gone)", default=""),
        flag("--force", "also if its process may still be writing"),
    ),
    groups.STORE,
    examples=("trtops runs close 8d6e3f1a", "trtops runs close 8d6e3f1a --force --why 'the machine was returned'"),
)
def close(args: Options) -> int:
    """Close a run that is left running, and the runs below it, after its process was killed or its machine is gone.

    The run ends as killed, with the reason; a campaign can then be resumed anywhere. A run whose process may still be
    writing is closed only with --force.
    """
    # Imports MLflow, which help does not need.
    from trtops.tracking.check import close as close_run

    for info in close_run(tracker("reads", args.store), args.run, reason=args.why, force=bool(args.force)):
        say(f"{info.id} {info.status} {one_line(info.name)}")
    return 0
