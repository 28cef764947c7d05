"""How protobuf lays out a message, as far as finding and writing fields without parsing what is in them.

A message is a sequence of fields. Each begins with a varint, seven bits a byte, that holds its number and its kind; the
content of text, bytes and messages is preceded by its length (https://protobuf.dev/programming-guides/encoding).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

from trtops import errors

SIZED = 2
"""The kind of text, bytes and messages."""

_VARINT, _EIGHT_BYTES, _FOUR_BYTES = 0, 1, 5
_LONGEST_VARINT = 10


class Field(NamedTuple):
    """Where a field of a message lies in a file.

    Attributes:
        number: Which field it is; one that repeats comes with the same number again.
        kind: How its content is laid out.
        start: Where it begins, with its number.
        content: Where its content begins.
        stop: Where it ends.
    """

    number: int
    kind: int
    start: int
    content: int
    stop: int


def fields(file: BinaryIO, start: int, stop: int) -> Iterator[Field]:
    """The fields of the message that lies in a file from ``start`` to ``stop``, in order.

    Args:
        file: The file, which may be read elsewhere in between.
        start: First byte of the message.
        stop: The byte behind its last.

    Raises:
        FormatError: If a field ends behind the message, or has a kind that no field of ONNX has.
    """
    while start < stop:
        file.seek(start)
        head = file.read(min(2 * _LONGEST_VARINT, stop - start))
        tag, at = _read_varint(head, 0)
        kind = tag & 7
        length = 0
        if kind == SIZED:
            length, at = _read_varint(head, at)
            content = start + at
        else:
            content = start + at
            length = _unsized_length(kind, head[at:])
        if content + length > stop:
            raise errors.FormatError(f"Field {tag >> 3} ends {content + length - stop} bytes behind its message.")
        yield Field(tag >> 3, kind, start, content, content + length)
        start = content + length


def _unsized_length(kind: int, content: bytes) -> int:
    if kind == _VARINT:
        return _read_varint(content, 0)[1]
    if kind in (_EIGHT_BYTES, _FOUR_BYTES):
        return 8 if kind == _EIGHT_BYTES else 4
    raise errors.FormatError(f"A field of kind {kind}, which ONNX does not use.")


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A varint in some bytes, and where it ends."""
    value = 0
    for i, byte in enumerate(data[at : at + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return value, at + i + 1
    raise errors.FormatError("A number that does not end.")


def read(file: BinaryIO, start: int, stop: int) -> bytes:
    """Bytes of a file.

    Raises:
        FormatError: If it ends before.
    """
    file.seek(start)
    data = file.read(stop - start)
    if len(data) != stop - start:
        raise errors.FormatError(f"The file ends {stop - start - len(data)} bytes early.")
    return data


def number(message: Any, field: str) -> int:
    """The number of a field of a class of messages."""
    found: int = message.DESCRIPTOR.fields_by_name[field].number
    return found


def sized(number: int, length: int) -> bytes:
    """What comes before the content of text, bytes or a message of some length."""
    return varint(number << 3 | SIZED) + varint(length)


def varint(value: int) -> bytes:
    """Seven bits a byte, the low ones first; the eighth bit says that there is more."""
    result = bytearray()
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)
