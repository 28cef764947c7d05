"""Tables in plain text and in Markdown, and sizes as text."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from trtops.terminal import escaped, one_line

Row: TypeAlias = Sequence[str | float | None]

_MIN_WIDTH = 9  # of a column that is cut; ids of runs have eight digits


def _cell_text(cell: str | float | None) -> str:
    return "-" if cell is None else f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def table(header: Sequence[str], rows: Iterable[Row], width: int | None = None) -> str:
    """Return columns aligned with spaces: text to the left, numbers to the right, a dash for None.

    Cells of the widest columns are cut in their middle until a line has at most ``width`` characters.
    """
    lines = [list(header)]
    for row in rows:
        lines.append([one_line(_cell_text(cell)) for cell in row])
    widths = [max(map(len, column)) for column in zip(*lines)]
    while width is not None and sum(widths) + 2 * len(widths) - 2 > width and max(widths) > _MIN_WIDTH:
        widths[widths.index(max(widths))] -= 1
    columns = []
    for number, (column, column_width) in enumerate(zip(zip(*lines), widths)):
        name, *cells = (_cut(cell, column_width) for cell in column)
        # The first column is text, and those where no cell starts with a digit.
        is_text = number == 0 or not any(cell[:1].isdigit() for cell in cells)
        pad = str.ljust if is_text else str.rjust
        columns.append([pad(cell, column_width) for cell in (name, "-" * column_width, *cells)])
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns))


def _cut(text: str, width: int) -> str:
    end = width // 3
    return text if len(text) <= width else f"{text[: width - end - 1]}…{text[-end:]}"


def markdown_table(header: Sequence[str], rows: Iterable[Row]) -> str:
    """Return a table in Markdown, with cells escaped, and a dash for None."""
    lines = []
    for row in (header, ["---"] * len(header), *rows):
        lines.append(f"| {' | '.join(map(_markdown_cell, row))} |")
    return "\n".join(lines)


def _markdown_cell(cell: str | float | None) -> str:
    text = escaped(_cell_text(cell)).replace("\\|", "|")  # one that is escaped already
    return text.replace("|", "\\|").replace("\n", " ")


def listed(names: Iterable[str], max_names: int = 10, separator: str = ", ") -> str:
    """Return the first names, and the number of the others: ``a, b, c and 2 more``."""
    all_names = list(names)
    return separator.join(all_names[:max_names]) + (
        f" and {len(all_names) - max_names} more" if len(all_names) > max_names else ""
    )


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, with an ``s`` in the plural: ``1 feed``, ``2 feeds``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def size(count: float) -> str:
    """Return a number of bytes as text, in binary units.

    >>> size(3 << 20)
    '3.0 MiB'
    """
    power = min(max(int(count).bit_length() - 1, 0) // 10, 8)
    if not power:
        return counted(int(count), "Byte")
    return f"{count / (1 << 10 * power):.1f} {' KMGTPEZY'[power]}iB"
