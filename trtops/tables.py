"""Tables in plain text and in Markdown, and sizes as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return columns aligned with spaces: text to the left, numbers to the right."""
    body = [list(row) for row in rows]
    lines = [list(header), *body]
    widths = [max(map(len, column)) for column in zip(*lines)]
    left = text_columns(header, body)

    def put(line: Sequence[str]) -> str:
        cells = (cell.ljust(w) if to_left else cell.rjust(w) for cell, w, to_left in zip(line, widths, left))
        return "  ".join(cells).rstrip()

    return "\n".join([put(lines[0]), "  ".join("-" * w for w in widths), *(put(line) for line in lines[1:])])


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown, with cells escaped."""
    lines = [" | ".join(map(_cell_text, line)) for line in (header, *rows)]
    lines.insert(1, " | ".join(["---"] * len(header)))
    return "\n".join(f"| {line} |" for line in lines)


def text_columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[bool]:
    """Return which columns hold text: the first, and those where no cell starts with a digit."""
    return [i == 0 or not any(row[i][:1].isdigit() for row in rows) for i in range(len(header))]


def _cell_text(cell: str) -> str:
    return cell.replace("\\|", "|").replace("|", "\\|").replace("\n", " ")


def size(count: int) -> str:
    """Return a number of bytes as text, in binary units."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"
