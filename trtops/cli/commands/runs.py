"""The commands of ``trtops runs``."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from trtops import ops
from trtops.backend.common import save_bytes
from trtops.cli import configs, groups
from trtops.cli.commands import inspect
from trtops.cli.flags import Group, Options, UsageError, flag
from trtops.cli.jobs import Command, Job, no_verdict, op_job, tracker
from trtops.cli.logs import say, say_ending, say_json, say_table
from trtops.errors import near
from trtops.record import to_jsonable
from trtops.terminal import progress
from trtops.tracking.schema import KINDS

# --- which runs -----------------------------------------------------------------------------------------------------


def _known_kind(text: str) -> str:
    if text not in KINDS:
        raise ValueError(f"{text!r} is not a kind of run. {near(text, KINDS)}")
    return text


def tag(text: str) -> tuple[str, str]:
    """Return name and value of ``NAME=VALUE``. The value stays text: ``007`` is not a number."""
    name, found, value = text.partition("=")
    if not found or not name:
        raise ValueError(f"{text!r} is not a tag with its value; expected NAME=VALUE")
    return name, value


_EXPERIMENT = flag("--experiment NAME", "only runs of this experiment")
_FILTERS = (
    _EXPERIMENT,
    flag("--kind KIND", "only of this kind: build, compare, debug_build, reduce, ...", convert=_known_kind),
    flag("--verdict CHOICE", "only with this verdict", usual="any", choices=("good", "bad", "error")),
    flag("--tag NAME=VALUE+", "only with all of these tags", convert=tag),
)
_READ = (groups.STORE, groups.JSON)
_STATUS = ("running", "finished", "failed", "killed")

# --- looking at runs ------------------------------------------------------------------------------------------------


def _list(args: Options) -> Job:
    names = ("experiment", "kind", "verdict", "status", "parent", "limit")
    filters = {name: getattr(args, name) for name in names} | {"tags": dict(args.tag or ())}
    return op_job(args, "list_runs", store="reads", show=_show_list, **filters)


def _show_list(rows: list[Any], store: str | None) -> None:
    if not rows:
        say("No such runs.")
        return
    cells = []
    for row in rows:
        started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.start_time))
        cells.append((row.id, row.experiment, row.kind, row.status, row.verdict or "-", started, row.name))
    say_table(("run", "experiment", "kind", "status", "verdict", "started", "name"), cells)


def _compare(runs: tuple[str, ...], show_all: bool, place: str | None, as_json: bool) -> int:
    store = tracker("reads", place)
    ids = [store.whole_id(run) for run in runs]
    lines = [line for line in ops.side_by_side(ids, store) if show_all or not line.same]
    if as_json:
        say_json([line.to_dict() for line in lines])
    elif lines:
        say_table(("", *(run[:8] for run in ids)), ((line.name, *(v or "-" for v in line.values)) for line in lines))
    else:
        say("Nothing differs.")
    return 0


def _evaluate_job(args: Options) -> Job:
    tolerances = configs.tolerances(args)
    if tolerances is None:
        raise UsageError("give tolerances, such as --atol 1e-3 --rtol 1e-2")
    return Job(call=_evaluate, args=(tuple(args.runs), tolerances, args.store, bool(args.json)))


def _evaluate(runs: tuple[str, ...], tolerances: Any, place: str | None, as_json: bool) -> int:
    evaluated = ops.reevaluate(runs, tolerances, tracker("reads", place))
    if as_json:
        say_json([each.to_dict() for each in evaluated])
    for each in () if as_json else evaluated:
        say(f"{each.id} {each.name}: {each.verdict} (was {each.before or '-'})")
        for reason in each.reasons:
            say(f"    {reason}")
    return 0 if all(each.verdict == "good" for each in evaluated) else 1


def _audit_job(args: Options) -> Job:
    config = configs.make(
        args,
        "AuditConfig",
        runs=tuple(args.runs or ()),
        experiment=args.experiment,
        kind=args.kind,
        verdict=args.verdict,
        tags=tuple(args.tag or ()),
        ways=tuple(way.replace("-", " ") for way in args.by) if args.by else None,
    )
    if not (config.runs or config.filters or config.accepted):
        raise UsageError("give ids of runs, or a filter such as --experiment NAME, or --accepted")
    return Job(call=_audit, args=(config, args.html, args.markdown, args.store, bool(args.json)))


def _audit(config: Any, html: str | None, markdown: str | None, place: str | None, as_json: bool) -> int:
    store = tracker("reads", place)
    with progress("Auditing", "runs") as bar:
        result = ops.audit(config, tracker=store, progress=bar.update)
    if html:
        ops.report(result.run_id, tracker=store, output=html)
    if markdown:
        save_bytes(result.page().encode("utf-8"), markdown)
    if as_json:
        say_json(result.to_dict())
        return int(result.verdict != "good")
    for run in result.runs:
        say(f"{run.id} {run.name}: {run.headline()}")
        for line in run.details():
            say(f"    {line}")
    say(f"{result.headline}; the audit is run {result.run_id}")
    say_ending(result, place)
    return int(result.verdict != "good")


# --- changing runs --------------------------------------------------------------------------------------------------


def _prune(args: Options) -> Job:
    kinds = tuple(args.kind) if args.kind else None
    values = {"larger_than_bytes": args.larger_than, "kinds": kinds, "experiment": args.experiment}
    config = configs.make(args, "PruneConfig", values)
    return op_job(args, "prune_runs", config, store="reads", progress=("Pruning", "runs"))


def _bundle(args: Options) -> Job:
    return op_job(args, "bundle", args.run, configs.make(args, "BundleConfig"), store="writes", code=no_verdict)


def _promote(run: str, config: Any, store: str | None, as_json: bool) -> int:
    try:
        result = ops.promote(run, config, tracker=tracker("reads", store))
    finally:
        ops.close_workers()
    if as_json:
        say_json(result.to_dict())
    else:
        say(f"Version {result.version} of {result.name!r} is accepted as {result.alias}, from run {result.run_id}")
        say_ending(result, store)
    return 0


def _resolve_job(args: Options) -> Job:
    engine = {"backend": args.backend or "onnxruntime", "name": args.name, "keys": tuple(args.key or ())}
    return Job(call=_resolve, args=(args.model_file, engine, args.output, args.store, bool(args.json)))


def _resolve(model: str, engine: dict[str, Any], output: str | None, place: str | None, as_json: bool) -> int:
    store = tracker("reads", place)
    found = ops.resolve(model, tracker=store, **engine)
    if found.run_id and found.path and output:
        save_bytes(found.engine(store).plan, output)
    if as_json:
        say_json(found.to_dict())
    elif found.run_id:
        say(f"Version {found.version} of {found.name!r}: run {found.run_id}, {found.path}")
    else:
        say(found.why)
    return 0 if found.run_id else 1


def _show_denied(result: Any, store: str | None) -> None:
    say(f"Added to the deny-list by run {result.run_id}. Remove it with: trtops runs pardon {result.run_id} --why ...")
    say_ending(result, store)


def _show_pardoned(result: Any, store: str | None) -> None:
    say(f"Removed from the deny-list by run {result.run_id}")


def _close(run: str, why: str, force: bool, place: str | None, as_json: bool) -> int:
    from trtops.tracking.check import close

    closed = close(tracker("reads", place), run, why=why, force=force)
    if as_json:
        say_json(to_jsonable([{"id": info.id, "name": info.name, "status": info.status} for info in closed]))
    else:
        say("\n".join(f"{info.id} {info.status} {info.name}" for info in closed))
    return 0


COMMANDS = {
    "list": Command(
        _list,
        (
            Group(
                "which",
                (
                    *_FILTERS,
                    flag("--status CHOICE", "only with this status", usual="any", choices=_STATUS),
                    flag("--parent RUN", "only below this run"),
                    flag("-n --limit N", "maximum number of runs", to="limit", default=50),
                ),
            ),
            *_READ,
        ),
        ("trtops runs list --experiment resnet50 --verdict bad", "trtops runs list --kind debug_build --json"),
        "List runs of the store, newest first.",
    ),
    "show": replace(inspect.COMMANDS["run"], examples=("trtops runs show 8d6e3f",)),
    "compare": Command(
        lambda args: Job(call=_compare, args=(tuple(args.runs), bool(args.all), args.store, bool(args.json))),
        (
            Group(
                "runs",
                (flag("runs+", "ids of runs, or their first characters"), flag("--all", "also show what is equal")),
            ),
            *_READ,
        ),
        ("trtops runs compare 8d6e3f 1a2b3c",),
        "Show params and numbers of runs side by side; by default those that differ.",
    ),
    "evaluate": Command(
        _evaluate_job,
        (
            Group("runs", (flag("runs+", "ids of runs with a comparison, or their first characters"),)),
            groups.STATISTICS,
            *_READ,
        ),
        ("trtops runs evaluate 8d6e3f --check-error-stat max --atol 1e-3 --rtol 1e-2",),
        "Re-evaluate stored runs with other tolerances. Nothing runs and the store does not change. Exits with 1 "
        "if one is bad.",
    ),
    "audit": Command(
        _audit_job,
        (
            Group("runs", (flag("runs*", "ids of runs, or their first characters"), *_FILTERS)),
            Group(
                "rebuilding",
                (
                    flag(
                        "--by CHOICE+",
                        "how runs are rebuilt (default: every way)",
                        choices=("replay", "timing-cache", "plain"),
                    ),
                ),
            ),
            configs.config_flags(
                "rebuilding", "AuditConfig", {"keys": "--key"}, skip="runs experiment kind verdict tags ways"
            ),
            Group(
                "report",
                (
                    flag("--html FILE", "write the report as one HTML file"),
                    flag("--markdown FILE", "write the report as Markdown"),
                ),
            ),
            *_READ,
        ),
        (
            "trtops runs audit 8d6e3f",
            "trtops runs audit --experiment resnet50 --no-rebuild",
            "trtops runs audit --accepted --sample 10 --at-least tactics --html audit.html",
        ),
        "Check runs for consistency, rebuild them from the store alone, and grade each. Exits with 1 if one does "
        "not pass.",
    ),
    "prune": Command(
        _prune,
        (
            Group(
                "rule",
                (
                    flag("--kind KIND+", "only runs of these kinds", convert=_known_kind),
                    _EXPERIMENT,
                    flag("--larger-than SIZE", "only larger artifacts (default: 1M)"),
                ),
            ),
            configs.config_flags(
                "rule",
                "PruneConfig",
                {"older_than_days": "--older-than", "verdicts": "--verdict"},
                skip="larger_than_bytes kinds experiment",
            ),
            *_READ,
        ),
        ("trtops runs prune --older-than 90", "trtops runs prune --older-than 90 --larger-than 10M --apply"),
        "Delete large artifacts of old bad runs; records, statistics and accepted engines stay. Without --apply it "
        "only lists "
        "them.",
    ),
    "bundle": Command(
        _bundle,
        (
            Group("run", (flag("run", "a build's run, or an iteration's"),)),
            configs.config_flags(
                "bundle", "BundleConfig", {"output": "-o --output", "timeout_seconds": "--script-timeout"}
            ),
            *_READ,
        ),
        ("trtops runs bundle 8d6e3f -o fault.zip",),
        "Pack a run into one zip file that reproduces its verdict without trtops, with `python reproduce.py`. The "
        "zip file "
        "contains model, inputs, golden outputs, tactics, caches, environment, the releases to install, and a bug "
        "report. The "
        "script is run before the zip file is written: exit code 3 if it does not reproduce the verdict.",
    ),
    "promote": Command(
        lambda args: Job(
            call=_promote, args=(args.run, configs.make(args, "PromoteConfig"), args.store, bool(args.json))
        ),
        (
            Group("run", (flag("run", "a good build's run, or a good iteration's"),)),
            configs.config_flags("promotion", "PromoteConfig"),
            *_READ,
        ),
        ("trtops runs promote 8d6e3f",),
        "Accept a good run's engine for all users: rebuilt from its tactics on this machine, verified, and registered.",
    ),
    "resolve": Command(
        _resolve_job,
        (
            Group(
                "engine",
                (
                    flag("model_file", "the ONNX model"),
                    flag("--name NAME", "the registered model (default: the model file's name)"),
                    flag("--key FILE+", "public keys that the engine must be signed with"),
                    flag("-o --output FILE", "where to write the engine", to="output"),
                ),
            ),
            Group("back end (default: ONNX Runtime)", configs.BACKEND.only("backend").flags),
            *_READ,
        ),
        ("trtops runs resolve model.onnx --trt -o model.engine",),
        "Find the accepted engine for a model on this machine, and write it to a file with -o. Exits with 1 "
        "without one.",
    ),
    "deny": Command(
        lambda args: op_job(args, "deny", args.run, store="reads", show=_show_denied, code=no_verdict),
        (Group("run", (flag("run", "a proof of `trtops debug prove`"),)), *_READ),
        ("trtops runs deny 8d6e3f", "trtops runs list --kind deny"),
        "Put a confirmed culprit on the deny-list, which later builds on the same device and release respect.",
    ),
    "pardon": Command(
        lambda args: op_job(
            args, "pardon", args.run, why=args.why, store="reads", show=_show_pardoned, code=no_verdict
        ),
        (
            Group(
                "run",
                (
                    flag("run", "an entry of the deny-list, as `trtops runs list --kind deny` shows it"),
                    flag("--why REASON", "why it is removed", required=True),
                ),
            ),
            *_READ,
        ),
        ("trtops runs pardon 8d6e3f --why 'fixed by the new driver'",),
        "Remove an entry from the deny-list. The entry stays in the store, with the reason.",
    ),
    "close": Command(
        lambda args: Job(call=_close, args=(args.run, args.why, args.force, args.store, bool(args.json))),
        (
            Group(
                "run",
                (
                    flag("run", "a run, as `trtops runs list` shows it"),
                    flag("--why REASON", "why it is closed (default: that its process is gone)", default=""),
                    flag("--force", "also if its process may still be writing", default=False),
                ),
            ),
            *_READ,
        ),
        ("trtops runs close 8d6e3f", "trtops runs close 8d6e3f --force --why 'the machine was returned'"),
        "Close a run that is left running, and the runs below it, after its process was killed or its machine is "
        "gone. The run "
        "ends as killed, with the reason; a campaign can then be resumed anywhere. A run whose process may still "
        "be writing is "
        "closed only with --force.",
    ),
}
