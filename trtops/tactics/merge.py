"""Merging campaign tables, or parts of them, into one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from trtops.tactics.table import ABSENT, CampaignTable
from trtops.verdict import VERDICTS


def merge(parts: Iterable[tuple[CampaignTable, Sequence[str] | None]]) -> CampaignTable:
    """Merge several tables' builds into one table.

    Args:
        parts: Tables, each with the names of the builds to take from it, in order; None takes all. A build that an
            earlier part has already is not taken again.

    Returns:
        The builds, part by part: in their order of arrival, unless one of the tables that builds were taken from has none.
    """
    names: list[str] = []
    verdicts: list[np.ndarray] = []
    layers, settings = _Union(), _Union()
    seen: set[str] = set()
    ordered = True
    for table, wanted in parts:
        rows = [row for row, name in enumerate(table.names) if name not in seen]
        if wanted is not None:
            place = {name: row for row, name in enumerate(table.names)}
            rows = [place[name] for name in dict.fromkeys(wanted) if name in place and name not in seen]
        taken = [table.names[row] for row in rows]
        seen.update(taken)
        ordered = ordered and (table.ordered or not taken)
        names += taken
        verdicts.append(table.verdicts[rows])
        layers.add(table.layers, table.choices, table.codes[rows])
        settings.add(table.settings, table.values, table.setting_codes[rows])
    return CampaignTable.from_columns(
        names=names,
        verdicts=[VERDICTS[code] for code in (np.concatenate(verdicts) if verdicts else ())],
        layers=tuple(layers.columns),
        choices=tuple(layers.values),  # type: ignore[arg-type]
        codes=layers.matrix(),
        settings=tuple(settings.columns),
        values=tuple(settings.values),  # type: ignore[arg-type]
        setting_codes=settings.matrix(),
        ordered=ordered,
    )


class _Union:
    """Matrices of codes, each with its own columns and values, translated into common ones."""

    def __init__(self) -> None:
        self.columns: dict[str, int] = {}
        self.values: dict[object, int] = {}
        self._blocks: list[tuple[list[int], np.ndarray]] = []

    def add(self, columns: Sequence[str], values: Sequence[object], codes: np.ndarray) -> None:
        places = [self.columns.setdefault(name, len(self.columns)) for name in columns]
        used = np.unique(codes[codes != ABSENT])
        translate = np.full(len(values) + 1, ABSENT, np.int32)  # the code -1 of an absent layer picks the last entry
        for code in used.tolist():
            translate[code] = self.values.setdefault(values[code], len(self.values))
        self._blocks.append((places, translate[codes]))

    def matrix(self) -> np.ndarray:
        rows = sum(len(block) for _, block in self._blocks)
        result = np.full((rows, len(self.columns)), ABSENT, np.int32)
        start = 0
        for places, block in self._blocks:
            result[start : start + len(block), places] = block
            start += len(block)
        return result
