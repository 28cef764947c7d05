"""A campaign in one table: builds by layers, what each layer got as small integers, and each build's verdict.

Reading a thousand tactic records one by one takes longer than the statistics over them, so a campaign keeps this table
beside them and appends to it. It is plain data: it knows no store and no back end.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import zlib
from collections.abc import Container, Hashable, Mapping, Sequence
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

_MAGIC = "trtops-campaign"
_VERSION = 1
_MAX_EXPANSION = 1100  # zlib cannot expand further than 1032 to 1


@dataclass(frozen=True, kw_only=True)
class Choice(Record):
    """What a layer can get: a :class:`~trtops.tactics.record.TacticChoice` without the layer.

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
    """Builds, what they chose, and how they were evaluated. Grows by :meth:`append`; not safe for concurrent writers.

    The rows of a table are in the builds' order of arrival, unless it is made with ``ordered=False``, as for loose files:
    then their order means nothing, and no statistics use it.

    Records of different back end releases or kinds of device may be in one table. Both are kept as settings (named
    ``backend_version`` and ``device``), so that a difference between them shows up as the cause of others.
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
        """A table from its columns.

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
            FormatError: If shapes do not fit, a code points nowhere, or a name occurs twice.
        """
        table = cls(ordered=ordered)
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
        table._names = {name: row for row, name in enumerate(names)}
        table._verdicts = bytearray(VERDICTS.index(verdict) for verdict in verdicts)
        table._choices = {choice: code for code, choice in enumerate(choices)}
        table._values = {value: code for code, value in enumerate(values)}
        if setting_codes is None:
            setting_codes = np.empty((len(names), 0), np.int32)
        table._layers = _Columns.checked(layers, codes, len(names), len(choices), "codes")
        table._settings = _Columns.checked(settings, setting_codes, len(names), len(values), "setting codes")
        return table

    def append(self, name: str, verdict: Verdict, record: TacticRecord | None = None) -> None:
        """Add a build.

        Args:
            name: The build's unique name: its run's id, or its file's path.
            verdict: How it was evaluated. A build that crashed is an ``error``: listed, but evidence for nothing.
            record: What it chose; None for a build without a record, which must be an ``error``.

        Raises:
            ConfigError: If the name is taken, or an evaluated build has no record.
        """
        if name in self._names:
            raise errors.ConfigError(f"Build {name!r} is in the table already; each build counts once.")
        if verdict not in VERDICTS:
            raise errors.ConfigError(f"Build {name!r}: verdict {verdict!r}. {errors.near(verdict, VERDICTS)}".rstrip())
        if record is None and verdict != "error":
            raise errors.ConfigError(
                f"Build {name!r} is evaluated {verdict} but has no tactic record; only an error can."
            )
        self._names[name] = len(self._names)
        self._verdicts.append(VERDICTS.index(verdict))
        self._layers.append(_layer_codes(record, self._choices) if record else {})
        self._settings.append(_setting_codes(record, self._values) if record else {})

    def __len__(self) -> int:
        return len(self._names)

    @property
    def ordered(self) -> bool:
        """Whether the builds are in their order of arrival; if not, their order means nothing."""
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
        """Names of the layers, in the order in which they were first seen."""
        return tuple(self._layers.names)

    @property
    def settings(self) -> tuple[str, ...]:
        """Names of the settings, in the order in which they were first seen."""
        return tuple(self._settings.names)

    @property
    def choices(self) -> tuple[Choice, ...]:
        """What the codes stand for."""
        return tuple(self._choices)

    @property
    def values(self) -> tuple[str, ...]:
        """What the setting codes stand for."""
        return tuple(self._values)

    @property
    def codes(self) -> Codes:
        """Positions in :attr:`choices`, of shape ``(builds, layers)``; -1 where a build lacks the layer. Read-only."""
        return self._layers.codes()

    @property
    def setting_codes(self) -> Codes:
        """Positions in :attr:`values`, of shape ``(builds, settings)``; -1 where a build lacks the setting. Read-only."""
        return self._settings.codes()

    def named(self, verdict: Verdict) -> tuple[str, ...]:
        """Names of the builds with a verdict, in the order of their rows."""
        code = VERDICTS.index(verdict)
        return tuple(name for name, found in zip(self._names, self._verdicts) if found == code)

    def to_bytes(self) -> bytes:
        """The table as one file: a line that says format, version, digest and size, then a zlib stream."""
        arrays = [
            self.codes.astype(_code_dtype(len(self._choices))),
            self.setting_codes.astype(_code_dtype(len(self._values))),
        ]
        head = {
            "names": list(self._names),
            "layers": list(self.layers),
            "settings": list(self.settings),
            "choices": [to_jsonable(choice) for choice in self._choices],
            "values": list(self._values),
            "ordered": self._ordered,
        }
        text = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
        # Column by column: a layer's choices resemble each other, and pack to a third of what rows do.
        body = b"".join(
            (len(text).to_bytes(8, "little"), text, bytes(self._verdicts), *(a.tobytes("F") for a in arrays))
        )
        line = f"{_MAGIC} {_VERSION} {hashlib.sha256(body).hexdigest()} {len(body)}\n"
        return line.encode("ascii") + zlib.compress(body, 1)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what :meth:`to_bytes` wrote.

        Raises:
            FormatError: If the bytes are something else, damaged, or of a newer version.
        """
        body = _unpack_body(data)
        end = 8 + int.from_bytes(body[:8], "little")
        try:
            head = json.loads(body[8:end])
            names, layers, settings = (tuple(map(str, head[key])) for key in ("names", "layers", "settings"))
            choices = [_read_choice(entry) for entry in head["choices"]]
            values = tuple(map(str, head["values"]))
            ordered = bool(head.get("ordered", True))  # missing in early tables, which all had an order
            verdicts = np.frombuffer(body, np.uint8, len(names), end)
            end += len(names)
            codes, end = _read_codes(body, end, (len(names), len(layers)), len(choices))
            setting_codes, end = _read_codes(body, end, (len(names), len(settings)), len(values))
            evaluated = [VERDICTS[code] for code in verdicts]
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as exc:
            raise errors.FormatError(f"Campaign table: its content contradicts itself ({exc}).") from None
        if end != len(body):
            raise errors.FormatError(f"Campaign table: {len(body)} bytes where its head announces {end}.")
        return cls.from_columns(
            names=names,
            verdicts=evaluated,
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

    Rows are kept as they come and joined when they are read: growing the matrix row by row would copy it each time.
    """

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self._matrix: Codes = np.empty((0, 0), np.int32)
        self._pending: list[Codes] = []

    @classmethod
    def checked(cls, names: Sequence[str], codes: npt.ArrayLike, rows: int, limit: int, what: str) -> _Columns:
        matrix = np.array(codes, np.int32)
        if matrix.shape != (rows, len(names)):
            raise errors.FormatError(f"Campaign table: {what} of shape {matrix.shape}; expected {(rows, len(names))}.")
        if matrix.size and not (matrix.min() >= ABSENT and matrix.max() < limit):
            found = int(matrix.min()) if matrix.min() < ABSENT else int(matrix.max())
            raise errors.FormatError(f"Campaign table: {what} hold {found}; expected -1 to {limit - 1}.")
        columns = cls()
        columns.names = {name: column for column, name in enumerate(names)}
        columns._matrix = matrix
        return columns

    def append(self, row: Mapping[str, int]) -> None:
        for name in row:
            self.names.setdefault(name, len(self.names))
        codes = np.full(len(self.names), ABSENT, np.int32)
        codes[[self.names[name] for name in row]] = list(row.values())
        self._pending.append(codes)

    def codes(self) -> Codes:
        if self._pending or self._matrix.shape[1] != len(self.names):
            known = len(self._matrix)
            matrix = np.full((known + len(self._pending), len(self.names)), ABSENT, np.int32)
            matrix[:known, : self._matrix.shape[1]] = self._matrix
            for row, codes in enumerate(self._pending, known):
                matrix[row, : len(codes)] = codes
            self._matrix, self._pending = matrix, []
        view: Codes = self._matrix.view()
        view.flags.writeable = False
        return view


def _layer_codes(record: TacticRecord, choices: dict[Choice, int]) -> dict[str, int]:
    row: dict[str, int] = {}
    for chosen in record.choices:
        choice = Choice(
            op=chosen.op,
            tactic=chosen.tactic,
            implementation=chosen.implementation,
            tactic_id=chosen.tactic_id,
            inputs=chosen.inputs,
            outputs=chosen.outputs,
        )
        row[_free_name(chosen.layer, row)] = choices.setdefault(choice, len(choices))
    return row


def _setting_codes(record: TacticRecord, values: dict[str, int]) -> dict[str, int]:
    environment = (("backend_version", record.backend_version), ("device", record.device_sha256))
    return {name: values.setdefault(value, len(values)) for name, value in (*record.settings, *environment)}


def _free_name(name: str, taken: Container[str]) -> str:
    """The name, numbered if a layer before it has the same."""
    numbered = (f"{name}#{number}" for number in itertools.count(2))
    return name if name not in taken else next(free for free in numbered if free not in taken)


def _code_dtype(limit: int) -> np.dtype[Any]:
    return np.dtype("<i1" if limit <= 1 << 7 else "<i2" if limit <= 1 << 15 else "<i4")


def _read_codes(body: bytes, start: int, shape: tuple[int, int], limit: int) -> tuple[npt.NDArray[Any], int]:
    dtype = _code_dtype(limit)
    count = shape[0] * shape[1]
    codes = np.frombuffer(body, dtype, count, start).reshape(shape, order="F")
    return codes, start + count * dtype.itemsize


def _unpack_body(data: bytes) -> bytes:
    line, newline, packed = data[:256].partition(b"\n")
    words = line.split()
    if not newline or len(words) != 4 or words[0] != _MAGIC.encode():
        raise errors.FormatError(f"Not a campaign table: expected a first line '{_MAGIC} ...', found {data[:24]!r}.")
    if words[1] != str(_VERSION).encode():
        version = words[1].decode("ascii", "replace")
        raise errors.FormatError(f"Campaign table of version {version}; this trtops reads {_VERSION}. Update trtops.")
    packed = data[len(line) + 1 :]
    size = int(words[3]) if words[3].isdigit() else -1
    if not 8 <= size <= _MAX_EXPANSION * len(packed) + 8:
        raise errors.FormatError(f"Campaign table: its first line announces {words[3]!r} bytes, which cannot be.")
    try:
        stream = zlib.decompressobj()
        body = stream.decompress(packed, size + 1)
    except zlib.error as exc:
        raise errors.FormatError(f"Campaign table: damaged ({exc}).") from None
    whole = stream.eof and not stream.unused_data and len(body) == size
    if not whole or hashlib.sha256(body).hexdigest().encode() != words[2]:
        raise errors.FormatError("Campaign table: cut short or damaged; its digest does not match.")
    return body


def _read_choice(entry: Mapping[str, Any]) -> Choice:
    def formats(key: str) -> tuple[TensorFormat, ...]:
        return tuple(TensorFormat(**{**item, "strides": tuple(item["strides"])}) for item in entry[key])

    return Choice(**{**entry, "inputs": formats("inputs"), "outputs": formats("outputs")})
