"""Results as people read them: plain-text tables for a terminal, Markdown for Prefect and MLflow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from trtops.ops.campaign import report as report_campaign
from trtops.ops.campaign.report import CampaignReportable
from trtops.ops.engines.calibrate import CalibrateResult
from trtops.ops.engines.convert import ConvertResult
from trtops.ops.engines.sensitivity import SensitivityResult
from trtops.ops.judging.compare import CompareResult
from trtops.ops.judging.judgement import describe
from trtops.ops.tables import size, table
from trtops.tracking.base import Verdict

Reportable: TypeAlias = ConvertResult | CompareResult | CalibrateResult | SensitivityResult | CampaignReportable
"""What ops return and :func:`markdown` shows."""


def builds_table(results: Sequence[ConvertResult]) -> str:
    """One line per build: verdict, largest error, agreement, accuracy, latency, size, time to build, run."""
    header = ("build", "verdict", "largest error", "top-1 agreement", "accuracy", "p50", "engine", "build time", "run")
    return table(header, (_build_row(result) for result in results))


def _build_row(result: ConvertResult) -> tuple[str, ...]:
    judgement = result.judgement
    statistics = [output.statistics for output in judgement.report.outputs if output.statistics is not None]
    agreements = [s.top1_agreement for s in statistics if s.top1_agreement is not None]
    return (
        result.precision.upper(),
        result.verdict,
        f"{max((s.max_abs for s in statistics), default=float('nan')):.3g}",
        f"{min(agreements):.2%}" if agreements else "-",
        f"{judgement.accuracy.actual:.2%}" if judgement.accuracy else "-",
        f"{judgement.latency.p50_ms:.3f} ms" if judgement.latency else "-",
        size(result.engine_bytes),
        "reused" if result.reused_from else f"{result.build_seconds:.2f} s",
        result.run_id[:8],
    )


def verdict_of(result: Reportable) -> Verdict:
    """The verdict of a result; of a measurement whether its budget is met with what it proposes."""
    if isinstance(result, SensitivityResult):
        return "good" if result.error_kept <= result.budget else "bad"
    if isinstance(result, CampaignReportable):
        return report_campaign.verdict_of(result)
    return result.verdict


def markdown(title: str, result: Reportable) -> str:
    """A result as a Markdown page: the verdict and its reasons, tables, the way to the run."""
    if isinstance(result, CalibrateResult):
        lines = _calibrate_lines(title, result)
    elif isinstance(result, SensitivityResult):
        lines = _sensitivity_lines(title, result)
    elif isinstance(result, CampaignReportable):
        lines = report_campaign.lines(title, result)
    else:
        lines = _judgement_lines(title, result)
    run = f"[{result.run_id}]({result.url})" if result.url.startswith("http") else f"`{result.run_id}`"
    return "\n".join([*lines, "", f"MLflow run {run} in experiment `{result.experiment}`."])


def _calibrate_lines(title: str, result: CalibrateResult) -> list[str]:
    lines = [f"# {title}: {result.verdict}", "", *(f"- {reason}" for reason in result.reasons)]
    lines += [
        "",
        f"Ranges of {result.tensors} tensors by {result.algorithm}, from {result.samples} samples in "
        f"{result.seconds:.2f} s (data `{result.data_sha256[:12]}`, ranges `{result.cache_sha256[:12]}`).",
    ]
    if result.excluded:
        lines += [
            "",
            f"Without a range, since NaN or infinity occurred: {', '.join(f'`{n}`' for n in result.excluded)}.",
        ]
    lines += [
        "",
        "| precision | verdict | largest error | accuracy | p50 | engine | run |",
        "|---|---|---|---|---|---|---|",
    ]
    for engine in result.engines:
        row = _build_row(engine)
        lines.append(f"| {row[0]} | {row[1]} | {row[2]} | {row[4]} | {row[5]} | {row[6]} | `{row[8]}` |")
    return lines


def _sensitivity_lines(title: str, result: SensitivityResult, limit: int = 30) -> list[str]:
    lines = [f"# {title}: {verdict_of(result)}", ""]
    lines.append(f"Relative error with every layer in INT8: {result.error:.4g}; the budget is {result.budget:g}.")
    if result.keep:
        kept = ", ".join(f"`{name}`" for name in result.keep)
        lines += ["", f"Kept in higher precision: {kept}. Relative error then: {result.error_kept:.4g}."]
    else:
        lines += ["", "No layer need be kept in higher precision."]
    lines += ["", "| layer | op | error | share | keep |", "|---|---|---|---|---|"]
    for each in result.layers[:limit]:
        lines.append(
            f"| `{each.layer}` | {each.op} | {each.error:.4g} | {each.share:.1%} | {'yes' if each.kept else ''} |"
        )
    if len(result.layers) > limit:
        lines += ["", f"And {len(result.layers) - limit} layers with less."]
    return lines


def _judgement_lines(title: str, result: ConvertResult | CompareResult) -> list[str]:
    lines = [f"# {title}: {result.verdict}", ""]
    lines += [f"- {reason}" for reason in result.reasons]
    if isinstance(result, ConvertResult):
        made = (
            f"reused from run `{result.reused_from}`"
            if result.reused_from
            else f"built in {result.build_seconds:.2f} s"
        )
        lines += ["", f"{result.precision.upper()} engine, {size(result.engine_bytes)}, {made}."]
    return [*lines, "", *describe(result.judgement)]
