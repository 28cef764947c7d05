"""Results as people read them: plain-text tables for a terminal, Markdown for Prefect and MLflow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trtops.ops.compare import CompareResult
from trtops.ops.convert import ConvertResult


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns aligned with spaces: text to the left, the rest to the right."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    left = [i == 0 or not any(line[i][:1].isdigit() for line in lines[1:]) for i in range(len(header))]

    def put(line: Sequence[str]) -> str:
        cells = (cell.ljust(w) if to_left else cell.rjust(w) for cell, w, to_left in zip(line, widths, left))
        return "  ".join(cells).rstrip()

    return "\n".join([put(lines[0]), "  ".join("-" * w for w in widths), *(put(line) for line in lines[1:])])


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


def markdown(title: str, result: ConvertResult | CompareResult) -> str:
    """A result as a Markdown page: verdict and reasons, a table of the outputs, the way to the run."""
    lines = [f"# {title}: {result.verdict}", ""]
    lines += [f"- {reason}" for reason in result.reasons]
    if isinstance(result, ConvertResult):
        made = (
            f"reused from run `{result.reused_from}`"
            if result.reused_from
            else f"built in {result.build_seconds:.2f} s"
        )
        lines += ["", f"{result.precision.upper()} engine, {size(result.engine_bytes)}, {made}."]
    judgement = result.judgement
    lines += [
        "",
        "| output | verdict | max abs | mean abs | max rel | cosine | top-1 |",
        "|---|---|---|---|---|---|---|",
    ]
    for output in judgement.report.outputs:
        s = output.statistics
        numbers = (None,) * 5 if s is None else (s.max_abs, s.mean_abs, s.max_rel, s.cosine, s.top1_agreement)
        cells = ("-" if number is None else f"{number:.4g}" for number in numbers)
        lines.append(f"| `{output.name}` | {output.verdict} | {' | '.join(cells)} |")
    if judgement.latency is not None:
        lines += ["", f"Latency: p50 {judgement.latency.p50_ms:.3f} ms, p99 {judgement.latency.p99_ms:.3f} ms."]
    if judgement.accuracy is not None:
        a = judgement.accuracy
        lines += ["", f"Accuracy on {a.samples} samples: {a.actual:.2%}; of the golden outputs {a.golden:.2%}."]
    run = f"[{result.run_id}]({result.url})" if result.url.startswith("http") else f"`{result.run_id}`"
    return "\n".join([*lines, "", f"MLflow run {run} in experiment `{result.experiment}`."])


def size(count: int) -> str:
    """Bytes for people, in binary units."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"
