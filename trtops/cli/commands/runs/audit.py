"""Check runs for consistency, rebuild them from the store alone, and grade each. Exits with 1 if one does not pass."""

from __future__ import annotations

from typing import Any

from trtops import ops
from trtops.backend.common import save_bytes
from trtops.cli import choosing, configs, groups
from trtops.cli.flags import Group, Options, UsageError, flag
from trtops.cli.jobs import Job, tracker
from trtops.cli.logs import say, say_ending, say_json
from trtops.terminal import progress

GROUPS = (
    Group(
        "runs",
        (
            flag("runs*", "ids of runs, or their first characters"),
            *(choosing.EXPERIMENT, choosing.KIND, choosing.VERDICT, choosing.TAGS),
        ),
    ),
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
        "rebuilding", "AuditConfig", {"keys": "--key"}, skip="runs experiment kind verdict tags ways resume"
    ),
    Group(
        "report",
        (
            flag("--restart --anew", "start again, also if such an audit was stopped", to="restart"),
            flag("--html FILE", "write the report as one HTML file"),
            flag("--markdown FILE", "write the report as Markdown"),
        ),
    ),
    groups.STORE,
    groups.JSON,
)
EXAMPLES = (
    "trtops runs audit 8d6e3f",
    "trtops runs audit --experiment resnet50 --no-rebuild",
    "trtops runs audit --accepted --sample 10 --at-least tactics --html audit.html",
)


def plan(args: Options) -> Job:
    """Return the job."""
    config = configs.make(
        args,
        "AuditConfig",
        runs=tuple(args.runs or ()),
        experiment=args.experiment,
        kind=args.kind,
        verdict=args.verdict,
        tags=tuple(args.tag or ()),
        ways=tuple(way.replace("-", " ") for way in args.by) if args.by else None,
        resume=not args.restart,
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
