"""Base64 of long arrays, decoded in half of the time of :mod:`binascii`."""

from __future__ import annotations

import binascii
import functools
import string
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

_BLOCK = 1 << 16  # pairs of letters: with the tables they fit into the processor's second cache


@functools.cache
def _tables() -> tuple[Any, Any]:
    """Return what two letters, read as one little-endian number, add to the first and to the last 12 of 24 bits.

    The last of four bytes is not zero if a letter is not of base64.
    """
    import numpy as np

    letters = f"{string.ascii_uppercase}{string.ascii_lowercase}{string.digits}+/".encode()
    values = np.full(256, 64, np.uint32)
    values[np.frombuffer(letters, np.uint8)] = np.arange(64)
    first, second = values, values[:, None]  # by letter; pairs are second * 256 + first
    invalid = ((first > 63) | (second > 63)).ravel()
    pairs = (first << 6 | second).ravel()
    return tuple(np.where(invalid, 1, pairs << shift).astype(np.uint32).byteswap() for shift in (20, 8))


def decode(text: bytes | memoryview) -> np.ndarray[Any, Any] | None:
    """Return the bytes of base64 as an array; None if other characters are in the text."""
    import numpy as np

    if sys.byteorder != "little" or len(text) % 4:
        return None
    tail = binascii.a2b_base64(text[-4:])  # may end in a padding
    pairs = np.frombuffer(text, np.uint16, len(text) // 2 - 2)
    decoded = np.empty(len(text) // 4 * 3 - 3 + len(tail), np.uint8)
    decoded[decoded.size - len(tail) :] = np.frombuffer(tail, np.uint8)
    (first_table, second_table), position = _tables(), 0
    for start in range(0, pairs.size, _BLOCK):
        block = pairs[start : start + _BLOCK]
        numbers = first_table.take(block[0::2])
        numbers |= second_table.take(block[1::2])
        parts = numbers.view(np.uint8).reshape(-1, 4)
        if parts[:, 3].any():
            return None
        target = decoded[position : position + 3 * numbers.size].reshape(-1, 3)
        for column in range(3):
            target[:, column] = parts[:, column]
        position += 3 * numbers.size
    return decoded
