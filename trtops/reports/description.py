"""A run's description in MLflow: Markdown with the outcome first, since the page shows three lines."""

import re
from collections.abc import Iterable

from trtops.reports.document import Document, Section
from trtops.reports.sections import engine_place, facts_of, next_commands
from trtops.tables import markdown_table
from trtops.tracking import schema
from trtops.tracking.base import RunInfo

# Maximum rows of a table; the report shows all.
_ROWS = 40


def description(document: Document, info: RunInfo, further: Iterable[Section] = ()) -> str:
    """The verdict, the reasons, the deciding numbers, size and speed, machine, next steps, links and digests.

    Folded sections are left out, and the text is cut at whole lines to the size of a tag.
    """
    facts = {
        title: ["", f"**{title}**", "", *(f"- {name}: {code(value)}" for name, value in group)] if group else []
        for title, group in facts_of(info).items()
    }
    repeated = not document.verdict or document.headline in ("", document.verdict)
    headline = "" if repeated else f": {_plain(document.headline)}"
    title = " · ".join(filter(None, (_plain(document.title), engine_place(info))))
    lines = [f"**{document.verdict or document.headline or 'done'}**{headline} · {title}"]
    lines += ["", *(f"- {reason}" for reason in document.reasons)] if document.reasons else []
    for section in (*document.sections, *further):
        lines += [] if section.folded else ["", *_section_lines(section)]
    commands = [f"{command}  # {comment}" for command, comment in next_commands(document, info.id)]
    lines += [*facts["Size and speed"], *facts["Machine"], "", "**Next**", "", "```sh", *commands, "```"]
    flow_page = info.fact(schema.Tag.PREFECT_URL)
    if re.fullmatch(r"https?://[\w.:/-]+", flow_page):  # a link, so nothing that the note could be forged by
        facts["Links"].append(f"- page in Prefect: [{flow_page}]({flow_page})")
    text = "\n".join([*lines, *facts["Links"], *facts["Digests"]])
    if len(text) <= schema.MAX_TAG:
        return text
    note = "\n\nThe rest is in the report (artifact report/report.html)."
    return text[: schema.MAX_TAG - len(note)].rpartition("\n")[0] + note


def _section_lines(section: Section) -> list[str]:
    lines = [f"**{section.title}**", ""] if section.title else []
    lines += [section.text, ""] if section.text else []
    if (table := section.table) is None:
        return lines
    rows = ((_plain(cell) if isinstance(cell, str) else cell for cell in row) for row in table.rows[:_ROWS])
    lines.append(markdown_table(tuple(map(_plain, table.columns)), map(tuple, rows)))
    left = len(table.rows) - _ROWS
    return lines if left <= 0 else [*lines, "", f"{left} more in the report."]


def _plain(text: str) -> str:
    """Text without meaning in Markdown, also in a table."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(text.split()))


def code(text: str) -> str:
    """Any text as code in Markdown."""
    text = " ".join(text.split()) or " "
    # Code ends at as many backticks as it began with, so there must be more than in the text.
    ticks = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    edge = " " if text[0] == "`" or text[-1] == "`" else ""
    return f"{ticks}{edge}{text}{edge}{ticks}"


def without_links(markdown: str, own: str = "") -> str:
    """Markdown without links, apart from those to the address ``own``: names of models could make others."""
    return re.sub(rf"\]\((?!{re.escape(own)}\))" if own else r"\]\(", r"]\\(", markdown)
