"""Hold runs against themselves, build them again from the memory alone, and grade each. Exits with 1 if one does not pass."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops import ops
from trtops.backend.common import save_bytes
from trtops.cli import choosing, configs, groups, memory
from trtops.cli.flags import Asked, Flag, Group, UsageError
from trtops.cli.logs import say, say_ending, say_json

if TYPE_CHECKING:
    from trtops.ops.auditing.config import AuditConfig

log = logging.getLogger(__name__)

GROUPS = (
    Group(
        "runs",
        (
            Flag(names=("runs",), takes="any", help="ids of runs, or what they begin with"),
            *(choosing.EXPERIMENT, choosing.KIND, choosing.VERDICT, choosing.TAGS),
            Flag(names=("--accepted",), takes="switch", help="all runs that the registry points to"),
            Flag(names=("--sample",), usual="all", convert=int, shown="N", help="so many of them, drawn at random"),
            Flag(names=("--seed",), usual="0", convert=int, help="seed of the draw"),
        ),
    ),
    Group(
        "rebuilding",
        (
            Flag(names=("--no-rebuild",), takes="switch", help="only hold runs against themselves"),
            Flag(
                names=("--by",),
                takes="many",
                choices=("replay", "timing-cache", "plain"),
                help="how runs are built again; every way unless given",
            ),
            Flag(
                names=("--at-least",),
                choices=("bytes", "tactics", "outputs", "tolerance"),
                help="the grade that every run must reach (default: tactics)",
            ),
            Flag(names=("--materials",), shown="FOLDER", help="where to look, by digest, for what was not logged"),
            Flag(
                names=("--repeats",),
                usual="3",
                convert=int,
                shown="N",
                help="how often an engine is run to see its noise",
            ),
            Flag(
                names=("--build-timeout",),
                usual="1800",
                convert=float,
                shown="SECONDS",
                help="how long a build may take",
            ),
        ),
    ),
    Group(
        "report",
        (
            Flag(names=("--key",), takes="many", shown="FILE", help="public keys that runs must be signed with"),
            Flag(names=("--anew",), takes="switch", help="begin anew also where such an audit was cut short"),
            Flag(names=("--html",), shown="FILE", help="write the report as one HTML file"),
            Flag(names=("--markdown",), shown="FILE", help="write the report as Markdown"),
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


@dataclass(frozen=True)
class Plan:
    """What to audit.

    Attributes:
        config: The op's config.
        html: Where to write the report as HTML.
        markdown: Where to write it as Markdown.
        store: Where the runs are.
        json: Whether to print JSON.
    """

    config: AuditConfig
    html: str | None
    markdown: str | None
    store: str | None
    json: bool


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    asked = configs.given(
        experiment=args.experiment,
        kind=args.kind,
        verdict=args.verdict,
        sample=args.sample,
        seed=args.seed,
        at_least=args.at_least,
        materials=args.materials,
        repeats=args.repeats,
        timeout_seconds=args.build_timeout,
        ways=tuple(way.replace("-", " ") for way in args.by) if args.by else None,
    )
    config = ops.AuditConfig(
        runs=tuple(args.runs or ()),
        tags=tuple(args.tag or ()),
        accepted=bool(args.accepted),
        rebuild=not args.no_rebuild,
        keys=tuple(args.key or ()),
        resume=not args.anew,
        **asked,
    )
    if not (config.runs or config.filters or config.accepted):
        raise UsageError("give ids of runs, or a filter such as --experiment NAME, or --accepted")
    return Plan(config, args.html, args.markdown, args.store, bool(args.json))


def execute(plan: Plan) -> int:
    """Audit, and print."""
    tracker = memory.existing(plan.store)
    result = ops.audit(
        plan.config,
        tracker=tracker,
        progress=lambda done, total: log.info("%d of %d runs", done, total),
    )
    if plan.html:
        ops.report(result.run_id, tracker=tracker, output=plan.html)
    if plan.markdown:
        save_bytes(result.page().encode("utf-8"), plan.markdown)
    if plan.json:
        say_json(result.to_dict())
        return int(result.verdict != "good")
    for run in result.runs:
        say(f"{run.id} {run.name}: {run.headline()}")
        for line in run.details():
            say(f"    {line}")
    say(f"{result.headline}; the audit is run {result.run_id}")
    say_ending(result, plan.store)
    return int(result.verdict != "good")
