"""Tables in plain text and in Markdown, and sizes as text."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from trtops.terminal import one_line

Row: TypeAlias = Sequence[str | float | None]

# Widths to which the text of the first and of other columns is cut at most; ids of runs have eight digits.
_FIRST_WIDTH, _MIN_WIDTH = 24, 9


def _cell_text(cell: str | float | None) -> str:
    return "-" if cell is None else f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def table(header: Sequence[str], rows: Iterable[Row], width: int | None = None, expendable: Sequence[str] = ()) -> str:
    """Return columns aligned with spaces: text to the left, numbers to the right, a dash for None.

    Where lines would be longer than ``width``, columns are left out: the ``expendable`` ones in their order, then the
    last ones, which a line below names. Text is cut in its middle before that, numbers never are.
    """
    lines = [list(header)]
    for row in rows:
        lines.append([one_line(_cell_text(cell)) for cell in row])
    columns = list(zip(*lines))
    left_out = []
    for name in expendable:
        if width is not None and sum(max(map(len, column)) + 2 for column in columns) - 2 > width:
            columns = [column for column in columns if column[0] != name]
            left_out.append(name)
    widths = [max(map(len, column)) for column in columns]
    least = []
    for column in columns:
        numbers = [cell for cell in column if _is_number(cell)]
        least.append(max(map(len, (*numbers, column[0]))) if numbers else _MIN_WIDTH)
    least[0] = max(least[0], min(widths[0], _FIRST_WIDTH))
    while width is not None and sum(widths) + 2 * len(widths) - 2 > width:
        longest = max(range(len(widths)), key=lambda number: widths[number] - least[number])
        if widths[longest] > least[longest]:
            widths[longest] -= 1
        elif len(widths) > 2:
            widths.pop()
        else:
            break
    cells = []
    for number, (column, column_width) in enumerate(zip(columns, widths)):
        name, *texts = (_cut(text, column_width) for text in column)
        # The first column is text, and those where a cell other than a dash starts with no digit.
        starts = [text[:1] for text in texts if text != "-"]
        is_text = number == 0 or not starts or not all(map(str.isdigit, starts))
        pad = str.ljust if is_text else str.rjust
        cells.append([pad(text, column_width) for text in (name, "-" * column_width, *texts)])
    left_out += [name for name, *_ in columns[len(widths) :]]
    note = [f"Not shown here: {', '.join(left_out)}."] if left_out else []
    return "\n".join([*("  ".join(line).rstrip() for line in zip(*cells)), *note])


def _is_number(cell: str) -> bool:
    return cell.lstrip("-+")[:1].isdigit() and len(cell) <= 15


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
    return one_line(_cell_text(cell)).replace("\\|", "|").replace("|", "\\|")  # some are escaped already


def listed(names: Iterable[str], max_names: int = 10, separator: str = ", ") -> str:
    """Return the first names, and the number of the others: ``a, b, c and 2 more``."""
    all_names = list(map(one_line, names))
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
