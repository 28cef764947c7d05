"""Tables in plain text and in Markdown, and sizes as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return columns aligned with spaces: text to the left, numbers to the right."""
    body = [list(row) for row in rows]
    lines = [list(header), *body]
    widths = column_widths(lines)
    left = text_columns(header, body)

    def put(line: Sequence[str]) -> str:
        cells = (cell.ljust(w) if to_left else cell.rjust(w) for cell, w, to_left in zip(line, widths, left))
        return "  ".join(cells).rstrip()

    return "\n".join([put(lines[0]), "  ".join("-" * w for w in widths), *(put(line) for line in lines[1:])])


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], *, aligned: bool = False) -> str:
    """Return a table in Markdown, with cells escaped; ``aligned`` pads the columns with spaces."""
    lines = [[_cell_text(cell) for cell in line] for line in (header, *rows)]
    widths = column_widths(lines) if aligned else [0] * len(header)
    ruler = ["-" * max(3, width) if not aligned else "-" * width for width in widths]
    return "\n".join(
        f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths))} |"
        for line in (lines[0], ruler, *lines[1:])
    )


def text_columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[bool]:
    """Return which columns hold text: the first, and those where no cell starts with a digit."""
    return [i == 0 or not any(row[i][:1].isdigit() for row in rows) for i in range(len(header))]


def column_widths(lines: Sequence[Sequence[str]]) -> list[int]:
    """Return the length of the longest cell of each column."""
    return [max(map(len, column)) for column in zip(*lines)]


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
