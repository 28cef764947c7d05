"""Campaigns, diffs, proofs, promotions and noise as people read them: lines of Markdown."""

from __future__ import annotations

from trtops.ops.campaign.debug_build import DebugBuildResult
from trtops.ops.campaign.diff_tactics import DiffTacticsResult
from trtops.ops.campaign.noise import NoiseResult
from trtops.ops.campaign.promote import PromoteResult
from trtops.ops.campaign.prove import ProveResult
from trtops.tactics.findings import TacticDiff
from trtops.tactics.report import markdown as diff_page
from trtops.tracking.base import Verdict

CampaignReportable = DebugBuildResult | DiffTacticsResult | ProveResult | PromoteResult | NoiseResult
"""Results that :func:`lines` shows."""


def lines(title: str, result: CampaignReportable) -> list[str]:
    """A result as lines, from its heading on."""
    if isinstance(result, DebugBuildResult):
        return _campaign(title, result)
    if isinstance(result, DiffTacticsResult):
        return _diff(title, result)
    if isinstance(result, ProveResult):
        return _proof(title, result)
    if isinstance(result, NoiseResult):
        return _noise(title, result)
    return _promotion(title, result)


def verdict_of(result: CampaignReportable) -> Verdict:
    """``good`` for a campaign without bad builds, a report, a measurement, a confirmed proof and an accepted engine; else ``bad``."""
    if isinstance(result, DebugBuildResult):
        return result.verdict
    if isinstance(result, ProveResult):
        return "good" if result.outcome == "confirmed" else "bad"
    return "good"


def _campaign(title: str, result: DebugBuildResult) -> list[str]:
    interrupted = f" {len(result.interrupted)} were interrupted and made again." if result.interrupted else ""
    return [
        f"# {title}: {result.found.conclusion}",
        "",
        f"{result.iterations} builds: {result.good} good, {result.bad} bad, {result.errors} crashed or hung.{interrupted}",
        "",
        *_page(result.found),
    ]


def _diff(title: str, result: DiffTacticsResult) -> list[str]:
    shown = [f"# {title}: {result.found.conclusion}", "", *_page(result.found)]
    for other in result.also:
        shown += ["", f"## By {other.by}: {other.conclusion}", "", other.summary]
    if result.skipped:
        shown += ["", f"{len(result.skipped)} runs or files were passed over:", ""]
        shown += [f"- `{name}`: {why}" for name, why in result.skipped[:10]]
        shown += [f"- and {len(result.skipped) - 10} more"] if len(result.skipped) > 10 else []
    return shown


def _page(found: TacticDiff) -> list[str]:
    """The diff's page without its heading."""
    return diff_page(found).splitlines()[2:]


def _proof(title: str, result: ProveResult) -> list[str]:
    shown = [f"# {title}: {result.outcome}", "", f"Suspect: {result.suspect}", "", result.summary, ""]
    shown += ["| build | verdict | swap followed | changed beside | run |", "|---|---|---|---|---|"]
    for trial in result.trials:
        beside = ", ".join(f"`{layer}`" for layer in trial.also_changed[:5])
        followed = "yes" if trial.followed else "no"
        shown.append(f"| {_SWAPS[trial.swap]} | {trial.verdict} | {followed} | {beside} | `{trial.run_id}` |")
    if result.deny_run is not None:
        shown += ["", f"It is on the deny-list now, by run `{result.deny_run}`."]
    return shown


_SWAPS = {
    "good as it was": "the good one, replayed",
    "bad as it was": "the bad one, replayed",
    "in": "the good one, suspect put in",
    "out": "the bad one, suspect taken out",
}


def _promotion(title: str, result: PromoteResult) -> list[str]:
    return [
        f"# {title}: accepted",
        "",
        f"Version {result.version} of `{result.name}`, alias `{result.alias}`.",
        "",
        f"- built from run `{result.source_run}`; every tactic that can be prescribed ({result.coverage:.0%} of layers) followed",
        f"- agrees with the golden outputs: {result.judgement.report.verdict}",
        f"- agrees with that run's engine: {result.agreement.report.verdict}",
        f"- the same bytes: {'yes' if result.same_bytes else 'no'}",
    ]


def _noise(title: str, result: NoiseResult) -> list[str]:
    noise = result.noise
    shown = [f"# {title}: {noise.cause}", "", noise.summary, ""]
    shown += ["| engine of run | mean error | least | most |", "|---|---|---|---|"]
    for run_id, row in zip(result.engines, result.errors):
        shown.append(f"| `{run_id}` | {sum(row) / len(row):.4g} | {min(row):.4g} | {max(row):.4g} |")
    return [
        *shown,
        "",
        f"`{result.statistic}` of one more run of one more build is expected to stay below {noise.limit():.4g}, three "
        f"standard deviations above the mean of {noise.mean:.4g}.",
    ]
