"""A campaign in one table: builds by layers and settings, the choice of each as a small integer, and each verdict.

Reading a thousand tactic records one by one takes longer than the statistics over them, so a campaign also keeps this
table and appends to it. It is plain data, independent of any store and back end.
"""

from __future__ import annotations

import io
import itertools
import json
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from trtops import errors
from trtops.json.numpy_files import damage_reported, read_member
from trtops.record import to_jsonable
from trtops.tactics.model import Bools
from trtops.tactics.record import Column, TacticOption, TacticRecord, TensorFormat
from trtops.verdict import VERDICTS, Verdict

if TYPE_CHECKING:
    from typing_extensions import Self

Codes: TypeAlias = npt.NDArray[np.int32]

By: TypeAlias = Literal["tactic", "format", "precision", "algorithm"]
"""What makes two choices differ: their tactics, tensor formats or precisions; or tactic and formats together, as in
Polygraphy, for a tactic that fails in one format only."""

ABSENT = -1
"""The code of a layer or setting that a build does not have."""

_MAX_RATIO = 1000  # builds that hardly differ compress to a few hundredths of a bit per choice
_ALWAYS_READ = 1 << 26  # bytes to which a table may unpack, however small its file is


class CampaignTable:
    """Builds, their choices and verdicts. Grows by :meth:`append`; not safe for concurrent writers.

    Args:
        names: One unique name per build: a run's id, or a file's path.
        verdicts: One per build.
        columns: Layers and settings, each once.
        choices: Tactics of layers, and as texts the values of settings. Codes are positions in it.
        codes: Integers of shape ``(builds, columns)``; -1 where a build lacks the layer or setting. Copied.
        ordered: Whether the builds are in their order of arrival. Otherwise no statistics use the order.

    Raises FormatError if shapes do not fit, a code is out of range, or a name occurs twice.
    """

    def __init__(
        self,
        *,
        names: Sequence[str] = (),
        verdicts: Sequence[Verdict] = (),
        columns: Sequence[Column] = (),
        choices: Sequence[TacticOption | str] = (),
        codes: npt.ArrayLike | None = None,
        ordered: bool = True,
    ) -> None:
        self.ordered = ordered
        self._names = dict(zip(names, itertools.count()))
        self._columns = dict(zip(columns, itertools.count()))
        self._choices = dict(zip(choices, itertools.count()))
        if (len(self._names), len(self._columns), len(self._choices)) != (len(names), len(columns), len(choices)):
            raise errors.FormatError("Campaign table: a name, a column or a choice occurs twice; each must be unique.")
        if len(verdicts) != len(names):
            raise errors.FormatError(f"Campaign table: {len(verdicts)} verdicts; expected {len(names)}.")
        self._verdicts = list(map(VERDICTS.index, verdicts))
        shape = (len(names), len(columns))
        self._matrix: Codes = np.full(shape, ABSENT, np.int32) if codes is None else np.array(codes, np.int32)
        if self._matrix.shape != shape:
            raise errors.FormatError(f"Campaign table: codes of shape {self._matrix.shape}; expected {shape}.")
        low, high = int(self._matrix.min(initial=ABSENT)), int(self._matrix.max(initial=ABSENT))
        if low < ABSENT or high >= len(choices):
            invalid_code = low if low < ABSENT else high
            raise errors.FormatError(f"Campaign table: codes hold {invalid_code}; expected -1 to {len(choices) - 1}.")
        self._rows: list[Codes] = list(self._matrix)  # joined when read: growing the matrix would copy it each time

    def append(self, name: str, verdict: Verdict, record: TacticRecord | None = None) -> None:
        """Add a build by its unique name: its run's id, or its file's path.

        A build that crashed is an ``error``: listed, but no evidence, and it needs no record.

        Raises ConfigError if the name is taken, or a build without an error has no record.
        """
        if name in self._names:
            raise errors.ConfigError(f"Build {name!r} is in the table already; each build counts once.")
        if record is None and verdict != "error":
            raise errors.ConfigError(
                f"Build {name!r} is {verdict} but has no tactic record; only an error can lack it."
            )
        cells: dict[Column, TacticOption | str] = {}
        for chosen in record.choices if record else ():
            # Layers of one name are numbered, or only the last of them would count.
            numbered = itertools.chain((chosen.layer,), (f"{chosen.layer}#{n}" for n in itertools.count(2)))
            layer = next(name for name in numbered if ("layer", name) not in cells)
            cells["layer", layer] = chosen.option
        if record:
            for name_of_setting, value in record.settings:
                cells["setting", name_of_setting] = value
            # Records of different releases or kinds of device may be in one table: a difference between them must show
            # up as the cause of others.
            cells["setting", "backend_version"] = record.backend_version
            cells["setting", "device"] = record.device_sha256
        codes = [self._choices.setdefault(choice, len(self._choices)) for choice in cells.values()]
        self._add(name, VERDICTS.index(verdict), tuple(cells), codes)

    def _add(self, name: str, verdict: int, columns: Sequence[Column], codes: npt.ArrayLike) -> None:
        positions = [self._columns.setdefault(column, len(self._columns)) for column in columns]
        row = np.full(len(self._columns), ABSENT, np.int32)
        row[positions] = codes
        self._rows.append(row)
        self._names[name] = len(self._names)
        self._verdicts.append(verdict)

    def __len__(self) -> int:
        return len(self._names)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the builds, row by row."""
        return tuple(self._names)

    @property
    def verdicts(self) -> npt.NDArray[np.uint8]:
        """Positions in :data:`VERDICTS`, of shape ``(builds,)``."""
        return np.array(self._verdicts, np.uint8)

    @property
    def columns(self) -> tuple[Column, ...]:
        """Layers and settings, in order of first occurrence."""
        return tuple(self._columns)

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers, in order of first occurrence."""
        return tuple(name for kind, name in self._columns if kind == "layer")

    @property
    def choices(self) -> tuple[TacticOption | str, ...]:
        """The meaning of the codes: tactics of layers, and as texts the values of settings."""
        return tuple(self._choices)

    @property
    def codes(self) -> Codes:
        """Positions in :attr:`choices`, of shape ``(builds, columns)``; -1 if a build lacks the column. Read-only."""
        shape = (len(self), len(self._columns))
        if self._matrix.shape != shape:
            self._matrix = np.full(shape, ABSENT, np.int32)
            for row, codes in zip(self._matrix, self._rows):
                row[: len(codes)] = codes
        view: Codes = self._matrix.view()
        view.flags.writeable = False
        return view

    def with_verdict(self, *verdicts: Verdict) -> Bools:
        """Which builds have one of these verdicts; of shape ``(builds,)``."""
        return np.isin(self._verdicts, list(map(VERDICTS.index, verdicts)))

    def is_named(self, *names: str) -> Bools:
        """Which builds have one of these names; of shape ``(builds,)``."""
        return np.isin(self.names, names)

    def named(self, *verdicts: Verdict) -> tuple[str, ...]:
        """Names of the builds with one of these verdicts, in the order of their rows."""
        return tuple(itertools.compress(self._names, self.with_verdict(*verdicts)))

    def has(self, column: Column, text: str) -> Bools:
        """Which builds have a tactic, whatever its formats, or the value of a setting; of shape ``(builds,)``."""
        if column not in self._columns:
            return np.zeros(len(self), np.bool_)
        matching_codes = [code for choice, code in self._choices.items() if getattr(choice, "tactic", choice) == text]
        return np.isin(self.codes[:, self._columns[column]], matching_codes)

    def take(self, table: CampaignTable, names: Iterable[str]) -> None:
        """Add builds of another table in the order of their names, except known and missing ones."""
        new_names = dict.fromkeys(name for name in names if name in table._names and name not in self._names)
        rows = [table._names[name] for name in new_names]
        self.ordered = self.ordered and (table.ordered or not rows)
        # Both tables number choices as they come, so codes are translated.
        codes, columns, choices = table.codes[rows], table.columns, table.choices
        translate = np.full(len(choices) + 1, ABSENT, np.int32)  # the code -1 of an absent layer picks the last entry
        for code in np.unique(codes[codes != ABSENT]).tolist():
            translate[code] = self._choices.setdefault(choices[code], len(self._choices))
        for row, code_row in zip(rows, translate[codes]):
            self._add(table.names[row], table._verdicts[row], columns, code_row)

    def to_bytes(self) -> bytes:
        """The table as one file, an ``.npz`` archive."""
        head = {
            "names": list(self._names),
            "columns": list(map(list, self._columns)),
            "choices": list(map(to_jsonable, self._choices)),
            "ordered": self.ordered,
        }
        limit = len(self._choices)
        dtype = "<i1" if limit <= 1 << 7 else "<i2" if limit <= 1 << 15 else "<i4"
        file = io.BytesIO()
        np.savez_compressed(
            file,
            head=np.frombuffer(json.dumps(head, ensure_ascii=False).encode(), np.uint8),
            verdicts=self.verdicts,
            # Column by column: a layer's choices resemble each other, and compress to a third of the size of rows.
            codes=np.asfortranarray(self.codes.astype(dtype)),
        )
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read the output of :meth:`to_bytes`. FormatError if it is damaged."""
        with damage_reported("Campaign table"), zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            if sum(member.file_size for member in members) > max(_ALWAYS_READ, _MAX_RATIO * len(data)):
                raise errors.FormatError("it unpacks to far more than its size")
            arrays = {member.filename: read_member(archive, member) for member in members}
        try:
            head = json.loads(arrays["head.npy"].tobytes())
            return cls(
                names=list(map(str, head["names"])),
                verdicts=[VERDICTS[code] for code in arrays["verdicts.npy"].tolist()],
                columns=[(kind, str(name)) for kind, name in head["columns"]],
                choices=[text if isinstance(text, str) else TacticOption.from_dict(text) for text in head["choices"]],
                codes=arrays["codes.npy"],
                ordered=bool(head["ordered"]),
            )
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as exc:
            raise errors.FormatError(f"Campaign table: its content contradicts itself ({exc}).") from None


def choice_texts(table: CampaignTable, by: By) -> tuple[tuple[str, ...], Codes]:
    """The different texts of a table's choices, and its codes as positions in them: equal texts are one choice."""
    # Several of TensorRT's tactics may have one name. Their numbers tell them apart.
    numbers: dict[str, set[tuple[int | None, int | None]]] = {}
    for choice in table.choices:
        if isinstance(choice, TacticOption):
            numbers.setdefault(choice.tactic, set()).add((choice.implementation, choice.tactic_id))
    texts: dict[str, int] = {}
    codes = []
    for choice in table.choices:
        text = choice if isinstance(choice, str) else TEXTS[by](choice)
        if isinstance(choice, TacticOption) and by in ("tactic", "algorithm") and len(numbers[choice.tactic]) > 1:
            text += f" (implementation {choice.implementation}, tactic {choice.tactic_id})"
        codes.append(texts.setdefault(text, len(texts)))
    translate = np.array([*codes, ABSENT], np.int32)
    return tuple(texts), translate[table.codes]


def _formats_text(choice: TacticOption) -> str:
    return f"{', '.join(map(_format_text, choice.inputs))} -> {', '.join(map(_format_text, choice.outputs))}"


def _format_text(tensor: TensorFormat) -> str:
    vector = "" if tensor.vectorized_dim is None else f" by {tensor.components_per_element} in {tensor.vectorized_dim}"
    return f"{tensor.dtype}{list(tensor.strides) if tensor.strides else ''}{vector}"


TEXTS: Mapping[By, Callable[[TacticOption], str]] = {
    "tactic": lambda choice: choice.tactic,
    "format": _formats_text,
    "precision": lambda c: f"{', '.join(t.dtype for t in c.inputs)} -> {', '.join(t.dtype for t in c.outputs)}",
    "algorithm": lambda choice: f"{choice.tactic}: {_formats_text(choice)}",
}
