"""Tables in plain text, and sizes in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns aligned with spaces: text to the left, the rest to the right."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    left = [i == 0 or not any(line[i][:1].isdigit() for line in lines[1:]) for i in range(len(header))]

    def put(line: Sequence[str]) -> str:
        cells = (cell.ljust(w) if to_left else cell.rjust(w) for cell, w, to_left in zip(line, widths, left))
        return "  ".join(cells).rstrip()

    return "\n".join([put(lines[0]), "  ".join("-" * w for w in widths), *(put(line) for line in lines[1:])])


def size(count: int) -> str:
    """Bytes for people, in binary units."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"
