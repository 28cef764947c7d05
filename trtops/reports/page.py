"""A run as one HTML file: nothing is fetched, and no script runs but its own."""

from __future__ import annotations

import base64
import functools
import hashlib
from pathlib import Path
from typing import Any

import jinja2
from markdown_it import MarkdownIt
from markupsafe import Markup

from trtops.reports.charts import drawn, shortened
from trtops.reports.document import Document
from trtops.reports.facts import facts_of, time_text
from trtops.reports.pictures import picture
from trtops.reports.sight import Sight, further_sections

_TEMPLATES = Path(__file__).parent / "templates"


def page(document: Document, sight: Sight) -> str:
    """The report of a run, as the text of an HTML file."""
    info = sight.info
    script = (_TEMPLATES / "report.js").read_text("utf-8")
    return _environment().get_template("report.html").render(
        document=document,
        info=info,
        facts=facts_of(info, document.verdict),
        sections=[*document.sections, *further_sections(sight)],
        pictures=list(_pictures(sight)),
        began=time_text(info.start_time),
        style=Markup((_TEMPLATES / "report.css").read_text("utf-8")),
        script=Markup(script),
        script_digest=base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii"),
    )  # fmt: skip


def _pictures(sight: Sight) -> Any:
    for number, path in enumerate(sight.pictures):
        data = sight.read(path)
        found = None if data is None else picture(data, path, f"p{number}-")
        if found is not None:
            form, content = found
            yield {
                "path": path,
                "svg": Markup(content) if form == "svg" else "",
                "png": content if form == "png" else "",
            }


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"markdown": _html_of_markdown, "drawn": drawn, "shortened": shortened, "cell": _cell_text}
    return environment


def _html_of_markdown(text: str) -> Markup:
    return Markup(_markdown().render(text))


@functools.cache
def _markdown() -> MarkdownIt:
    # Names of tensors stand in these texts: HTML in them is shown, and no picture is fetched.
    return MarkdownIt("commonmark", {"html": False}).enable("table").disable(["image", "autolink"])


def _cell_text(cell: object) -> str:
    if cell is None:
        return "–"
    return f"{cell:.6g}" if isinstance(cell, float) else str(cell)
