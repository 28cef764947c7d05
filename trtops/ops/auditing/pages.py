"""An audit as one HTML file that needs nothing else: no script, no style sheet, nothing fetched."""

from __future__ import annotations

import html
from collections.abc import Iterable

from trtops.ops.auditing.result import AuditResult, RunAudit

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #1c1c1c; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #ddd; vertical-align: top; }
code { font-size: .92em; }
.good { color: #17692b; } .bad { color: #a11d1d; font-weight: 600; }
details { margin: .6rem 0; } li { overflow-wrap: anywhere; }
"""


def html_page(result: AuditResult) -> str:
    """The audit as a page: what came of it, a table of the runs, and the details of each behind its name."""
    rows = "\n".join(_table_row(run, result) for run in result.runs)
    grades = "".join(f"<li>{html.escape(grade)}: {count}</li>" for grade, count in result.grades.items())
    return f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>Audit: {html.escape(result.headline)}</title><style>{_STYLE}</style></head>
<body>
<h1>Audit: <span class="{result.verdict}">{html.escape(result.headline)}</span></h1>
<p>Every run had to be free of contradictions and, where it is a build, at least: {html.escape(result.at_least)}.
{f"It is run <code>{html.escape(result.run_id)}</code>." if result.run_id else ""}</p>
<ul>{grades}</ul>
<table>
<thead><tr><th>run</th><th>name</th><th>kind</th><th>passes</th><th>grade</th><th>found</th></tr></thead>
<tbody>
{rows}
</tbody>
</table>
{"".join(_run_details(run) for run in result.runs)}
</body>
</html>
"""


def _table_row(run: RunAudit, result: AuditResult) -> str:
    passes = run.passes(result.at_least)
    cells: Iterable[str] = (
        f'<a href="#{html.escape(run.id)}"><code>{html.escape(run.id[:8])}</code></a>',
        html.escape(run.name),
        html.escape(run.kind),
        f'<span class="{"good" if passes else "bad"}">{"yes" if passes else "no"}</span>',
        html.escape(run.grade or "-"),
        html.escape(run.headline()),
    )
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _run_details(run: RunAudit) -> str:
    lines = "".join(f"<li>{html.escape(line.strip())}</li>" for line in run.details())
    title = f"{html.escape(run.name)} <code>{html.escape(run.id)}</code>"
    body = f"<ul>{lines}</ul>" if lines else "<p>Nothing to say beyond the table.</p>"
    return f'<details id="{html.escape(run.id)}"><summary>{title}</summary>{body}</details>\n'
