"""A campaign in one table: builds by layers, the choice of each layer as small integers, and each build's verdict.

Reading a thousand tactic records one by one takes longer than the statistics over them, so a campaign also keeps this
table and appends to it. It is plain data, independent of any store and back end.
"""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from trtops import errors
from trtops.record import Record, to_jsonable
from trtops.tactics.record import TacticRecord, TensorFormat
from trtops.verdict import VERDICTS, Verdict

if TYPE_CHECKING:
    from typing_extensions import Self

Codes: TypeAlias = npt.NDArray[np.int32]

ABSENT = -1
"""The code of a layer or setting that a build does not have."""

_HEAD = b"trtops-campaign 1 "
_MAX_EXPANSION = 1100  # zlib cannot expand further than 1032 to 1


@dataclass(frozen=True, kw_only=True)
class Choice(Record):
    """A :class:`~trtops.tactics.record.TacticChoice` without the layer.

    Attributes:
        op: The layer's type.
        tactic: The choice in words.
        implementation: TensorRT's implementation number, where there is one.
        tactic_id: TensorRT's tactic number, where there is one.
        inputs: Formats of the inputs.
        outputs: Formats of the outputs.
    """

    tactic: str
    op: str = ""
    implementation: int | None = None
    tactic_id: int | None = None
    inputs: tuple[TensorFormat, ...] = ()
    outputs: tuple[TensorFormat, ...] = ()


class CampaignTable:
    """Builds, their choices and verdicts. Grows by :meth:`append`; not safe for concurrent writers.

    The rows are in the builds' order of arrival, unless the table is made with ``ordered=False``, as for loose files:
    then no statistics use the order.

    Records of different back end releases or kinds of device may be in one table. Both are kept as settings
    (``backend_version`` and ``device``), so that a difference between them shows up as the cause of others.
    """

    def __init__(self, *, ordered: bool = True) -> None:
        self._ordered = ordered
        self._names: dict[str, int] = {}
        self._verdicts = bytearray()
        self._layers = _Columns()
        self._settings = _Columns()
        self._choices: dict[Choice, int] = {}
        self._values: dict[str, int] = {}

    @classmethod
    def from_columns(
        cls,
        *,
        names: Sequence[str],
        verdicts: Sequence[Verdict],
        layers: Sequence[str],
        choices: Sequence[Choice],
        codes: npt.ArrayLike,
        settings: Sequence[str] = (),
        values: Sequence[str] = (),
        setting_codes: npt.ArrayLike | None = None,
        ordered: bool = True,
    ) -> Self:
        """Make a table from its columns.

        Args:
            names: One unique name per build: a run's id, or a file's path.
            verdicts: One per build.
            layers: Unique names of the layers.
            choices: What layers can get; codes are positions in it.
            codes: Integers of shape ``(builds, layers)``; -1 where a build lacks the layer. Copied.
            settings: Unique names of choices for the whole engine.
            values: Their values; setting codes are positions in it.
            setting_codes: Integers of shape ``(builds, settings)``; -1 where a build lacks the setting. Copied.
            ordered: Whether the builds are in their order of arrival.

        Raises:
            FormatError: If shapes do not fit, a code is out of range, or a name occurs twice.
        """
        columns: dict[str, Sequence[Hashable]] = {
            "build": names,
            "layer": layers,
            "setting": settings,
            "choice": choices,
            "value": values,
        }
        for what, items in columns.items():
            if len(set(items)) != len(items):
                raise errors.FormatError(f"Campaign table: a {what} occurs twice in its list; each must be unique.")
        unknown = set(verdicts) - set(VERDICTS)
        if unknown or len(verdicts) != len(names):
            raise errors.FormatError(
                f"Campaign table: expected {len(names)} verdicts out of {', '.join(VERDICTS)}; "
                f"found {len(verdicts)}{', among them ' + repr(sorted(unknown)[0]) if unknown else ''}."
            )
        if setting_codes is None:
            setting_codes = np.empty((len(names), 0), np.int32)
        table = cls(ordered=ordered)
        table._names = {name: row for row, name in enumerate(names)}
        table._verdicts = bytearray(VERDICTS.index(verdict) for verdict in verdicts)
        table._choices = {choice: code for code, choice in enumerate(choices)}
        table._values = {value: code for code, value in enumerate(values)}
        table._layers = _Columns(layers, _checked_codes(codes, (len(names), len(layers)), len(choices)))
        table._settings = _Columns(settings, _checked_codes(setting_codes, (len(names), len(settings)), len(values)))
        return table

    def append(self, name: str, verdict: Verdict, record: TacticRecord | None = None) -> None:
        """Add a build.

        Args:
            name: The build's unique name: its run's id, or its file's path.
            verdict: Its verdict. A build that crashed is an ``error``: listed, but no evidence.
            record: Its choices; None for a build without a record, which must be an ``error``.

        Raises:
            ConfigError: If the name is taken, or a good or bad build has no record.
        """
        if name in self._names:
            raise errors.ConfigError(f"Build {name!r} is in the table already; each build counts once.")
        if verdict not in VERDICTS:
            raise errors.ConfigError(f"Build {name!r}: verdict {verdict!r}. {errors.near(verdict, VERDICTS)}".rstrip())
        if record is None and verdict != "error":
            raise errors.ConfigError(
                f"Build {name!r} is {verdict} but has no tactic record; only an error can lack it."
            )
        layers: dict[str, int] = {}
        settings: dict[str, int] = {}
        for chosen in record.choices if record else ():
            choice = Choice(
                op=chosen.op,
                tactic=chosen.tactic,
                implementation=chosen.implementation,
                tactic_id=chosen.tactic_id,
                inputs=chosen.inputs,
                outputs=chosen.outputs,
            )
            numbered = itertools.chain((chosen.layer,), (f"{chosen.layer}#{n}" for n in itertools.count(2)))
            layer = next(name for name in numbered if name not in layers)
            layers[layer] = self._choices.setdefault(choice, len(self._choices))
        if record:
            environment = (("backend_version", record.backend_version), ("device", record.device_sha256))
            for setting, value in (*record.settings, *environment):
                settings[setting] = self._values.setdefault(value, len(self._values))
        self._names[name] = len(self._names)
        self._verdicts.append(VERDICTS.index(verdict))
        self._layers.append(layers)
        self._settings.append(settings)

    def __len__(self) -> int:
        return len(self._names)

    @property
    def ordered(self) -> bool:
        """Whether the builds are in their order of arrival."""
        return self._ordered

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the builds, row by row."""
        return tuple(self._names)

    @property
    def verdicts(self) -> npt.NDArray[np.uint8]:
        """Positions in :data:`VERDICTS`, of shape ``(builds,)``."""
        return np.frombuffer(bytes(self._verdicts), np.uint8)

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers, in the order in which they first occurred."""
        return tuple(self._layers.names)

    @property
    def settings(self) -> tuple[str, ...]:
        """Names of the settings, in the order in which they first occurred."""
        return tuple(self._settings.names)

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The meaning of the codes."""
        return tuple(self._choices)

    @property
    def values(self) -> tuple[str, ...]:
        """The meaning of the setting codes."""
        return tuple(self._values)

    @property
    def codes(self) -> Codes:
        """Positions in :attr:`choices`, of shape ``(builds, layers)``; -1 where a build lacks the layer. Read-only."""
        return self._layers.codes()

    @property
    def setting_codes(self) -> Codes:
        """Positions in :attr:`values`, of shape ``(builds, settings)``; -1 if absent. Read-only."""
        return self._settings.codes()

    def named(self, verdict: Verdict) -> tuple[str, ...]:
        """Names of the builds with a verdict, in the order of their rows."""
        code = VERDICTS.index(verdict)
        return tuple(name for name, found in zip(self._names, self._verdicts) if found == code)

    def to_bytes(self) -> bytes:
        """The table as one file: a line with format, version and size, then a zlib stream."""
        head = {
            "names": list(self._names),
            "layers": list(self.layers),
            "settings": list(self.settings),
            "choices": [to_jsonable(choice) for choice in self._choices],
            "values": list(self._values),
            "ordered": self._ordered,
        }
        text = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
        # Column by column: a layer's choices resemble each other, and compress to a third of the size of rows.
        codes = self.codes.astype(_code_dtype(len(self._choices))).tobytes("F")
        setting_codes = self.setting_codes.astype(_code_dtype(len(self._values))).tobytes("F")
        body = b"".join((len(text).to_bytes(8, "little"), text, bytes(self._verdicts), codes, setting_codes))
        return _HEAD + b"%d\n" % len(body) + zlib.compress(body, 1)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read the output of :meth:`to_bytes`."""
        body = _unpack_body(data)
        end = 8 + int.from_bytes(body[:8], "little")
        try:
            head = json.loads(body[8:end])
            names, layers, settings = (tuple(map(str, head[key])) for key in ("names", "layers", "settings"))
            choices = [_read_choice(entry) for entry in head["choices"]]
            values = tuple(map(str, head["values"]))
            verdicts = [VERDICTS[code] for code in np.frombuffer(body, np.uint8, len(names), end)]
            end += len(names)
            codes, end = _read_codes(body, end, (len(names), len(layers)), len(choices))
            setting_codes, end = _read_codes(body, end, (len(names), len(settings)), len(values))
            ordered = bool(head["ordered"])
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as exc:
            raise errors.FormatError(f"Campaign table: its content contradicts itself ({exc}).") from None
        if end != len(body):
            raise errors.FormatError(f"Campaign table: {len(body)} bytes where its head announces {end}.")
        return cls.from_columns(
            names=names,
            verdicts=verdicts,
            layers=layers,
            choices=choices,
            codes=codes,
            settings=settings,
            values=values,
            setting_codes=setting_codes,
            ordered=ordered,
        )


class _Columns:
    """A matrix of codes that grows by rows, and by a column with each new name.

    Rows are joined when the matrix is read: growing it row by row would copy it each time.
    """

    def __init__(self, names: Sequence[str] = (), codes: Codes | None = None) -> None:
        self.names = {name: column for column, name in enumerate(names)}
        self._matrix = np.empty((0, 0), np.int32) if codes is None else codes
        self.pending: list[Codes] = []

    def append(self, row: Mapping[str, int]) -> None:
        for name in row:
            self.names.setdefault(name, len(self.names))
        codes = np.full(len(self.names), ABSENT, np.int32)
        codes[[self.names[name] for name in row]] = list(row.values())
        self.pending.append(codes)

    def codes(self) -> Codes:
        if self.pending or self._matrix.shape[1] != len(self.names):
            known = len(self._matrix)
            matrix = np.full((known + len(self.pending), len(self.names)), ABSENT, np.int32)
            matrix[:known, : self._matrix.shape[1]] = self._matrix
            for row, codes in enumerate(self.pending, known):
                matrix[row, : len(codes)] = codes
            self._matrix, self.pending = matrix, []
        view: Codes = self._matrix.view()
        view.flags.writeable = False
        return view


def _checked_codes(codes: npt.ArrayLike, shape: tuple[int, int], limit: int) -> Codes:
    matrix = np.array(codes, np.int32)
    if matrix.shape != shape:
        raise errors.FormatError(f"Campaign table: codes of shape {matrix.shape}; expected {shape}.")
    if matrix.size and not (matrix.min() >= ABSENT and matrix.max() < limit):
        found = int(matrix.min()) if matrix.min() < ABSENT else int(matrix.max())
        raise errors.FormatError(f"Campaign table: codes hold {found}; expected -1 to {limit - 1}.")
    return matrix


def _code_dtype(limit: int) -> np.dtype[Any]:
    return np.dtype("<i1" if limit <= 1 << 7 else "<i2" if limit <= 1 << 15 else "<i4")


def _read_codes(body: bytes, start: int, shape: tuple[int, int], limit: int) -> tuple[npt.NDArray[Any], int]:
    dtype = _code_dtype(limit)
    count = shape[0] * shape[1]
    codes = np.frombuffer(body, dtype, count, start).reshape(shape, order="F")
    return codes, start + count * dtype.itemsize


def _unpack_body(data: bytes) -> bytes:
    line, newline, _ = data[:256].partition(b"\n")
    if not newline or not line.startswith(_HEAD) or not line[len(_HEAD) :].isdigit():
        raise errors.FormatError(
            f"Not a campaign table of version 1: expected '{_HEAD.decode()}<size>', found {data[:24]!r}. "
            "A newer version of trtops may read it."
        )
    size, packed = int(line[len(_HEAD) :]), data[len(line) + 1 :]
    if not 8 <= size <= _MAX_EXPANSION * len(packed) + 8:
        raise errors.FormatError(f"Campaign table: its first line announces {size} bytes, which is impossible.")
    stream = zlib.decompressobj()
    try:
        body = stream.decompress(packed, size + 1)
    except zlib.error as exc:
        raise errors.FormatError(f"Campaign table: damaged ({exc}).") from None
    if not stream.eof or stream.unused_data or len(body) != size:
        raise errors.FormatError("Campaign table: cut short or damaged.")
    return body


def _read_choice(entry: Mapping[str, Any]) -> Choice:
    formats = {
        key: tuple(TensorFormat(**{**item, "strides": tuple(item["strides"])}) for item in entry[key])
        for key in ("inputs", "outputs")
    }
    return Choice(**{**entry, **formats})


def merge(parts: Iterable[tuple[CampaignTable, Sequence[str] | None]]) -> CampaignTable:
    """Merge several tables' builds into one table.

    Args:
        parts: Tables, each with the names of the builds to take from it, in order; None takes all. A build of an
            earlier part is not taken again.

    Returns:
        The builds, part by part; ordered, unless one of the tables that builds were taken from is not.
    """
    names: dict[str, Verdict] = {}
    ordered = True
    choices: dict[Choice, int] = {}
    values: dict[str, int] = {}
    layers, settings = _Columns(), _Columns()
    for table, wanted in parts:
        place = {name: row for row, name in enumerate(table.names)}
        taken = [name for name in dict.fromkeys(place if wanted is None else wanted) if name in place]
        rows = [place[name] for name in taken if name not in names]
        names |= {table.names[row]: VERDICTS[table.verdicts[row]] for row in rows}
        ordered = ordered and (table.ordered or not rows)
        _append_rows(layers, table.layers, table.codes[rows], table.choices, choices)
        _append_rows(settings, table.settings, table.setting_codes[rows], table.values, values)
    return CampaignTable.from_columns(
        names=tuple(names),
        verdicts=tuple(names.values()),
        layers=tuple(layers.names),
        choices=tuple(choices),
        codes=layers.codes(),
        settings=tuple(settings.names),
        values=tuple(values),
        setting_codes=settings.codes(),
        ordered=ordered,
    )


def _append_rows(
    columns: _Columns, names: Sequence[str], codes: Codes, meanings: Sequence[Any], union: dict[Any, int]
) -> None:
    """Append rows of another matrix, its codes translated to a common list of meanings."""
    translate = np.full(len(meanings) + 1, ABSENT, np.int32)  # the code -1 of an absent layer picks the last entry
    for code in np.unique(codes[codes != ABSENT]).tolist():
        translate[code] = union.setdefault(meanings[code], len(union))
    for name in names:
        columns.names.setdefault(name, len(columns.names))
    places = [columns.names[name] for name in names]
    for row in translate[codes]:
        whole = np.full(len(columns.names), ABSENT, np.int32)
        whole[places] = row
        columns.pending.append(whole)
