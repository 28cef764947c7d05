"""Polygraphy's JSON: arrays are base64 text in it, which neither writing nor reading holds as a whole."""

from __future__ import annotations

import binascii
import functools
import io
import json
import secrets
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, TYPE_CHECKING, Any

from trtops import errors
from trtops.json.npy import BLOCK, file_blocks, read_npy
from trtops.json.objects import MARKER, Encoder, Hook
from trtops.torch_tensors import is_torch

if TYPE_CHECKING:
    from trtops.json.npy import Array

_LONG_STRING = 1 << 12


class TextWriter:
    """Writes an object as JSON text, arrays in blocks."""

    def __init__(self, file: IO[bytes]) -> None:
        self.out = file.write

    def write(self, obj: Any, indent: str = "\n") -> None:
        """Write one value; ``indent`` is the line break and margin it stands at."""
        if isinstance(obj, dict):
            self._write_items("{", "}", ((_key_text(key), value) for key, value in obj.items()), indent)
        elif isinstance(obj, (list, tuple)):
            self._write_items("[", "]", (("", value) for value in obj), indent)
        elif obj is None or (isinstance(obj, (str, int, float)) and type(obj).__module__ == "builtins"):
            self.out(json.dumps(obj).encode("ascii"))
        elif (known := Encoder.registered.get(type(obj))) is not None:
            name, encode = known
            self.write({**encode(obj), MARKER: name}, indent)
        else:
            self._write_other(obj, indent)

    def _write_items(self, opening: str, closing: str, items: Iterable[tuple[str, Any]], indent: str) -> None:
        inner = indent + "    "
        if len(inner) > 1000:
            raise errors.FormatError("The object is nested more than 250 deep, or contains itself; it cannot be saved.")
        mark = opening
        for key, value in items:
            self.out((mark + inner + key).encode("ascii"))
            self.write(value, inner)
            mark = ","
        self.out((indent + closing if mark == "," else opening + closing).encode("ascii"))

    def _write_other(self, obj: Any, indent: str) -> None:
        import numpy as np

        if isinstance(obj, np.ndarray):
            self._write_array(obj, indent)
        elif isinstance(obj, np.generic):
            self.write(obj.item() if obj.dtype.kind in "biufU" else np.asarray(obj), indent)
        elif is_torch(obj):
            self._write_tensor(obj, indent)
        else:
            raise errors.FormatError(
                f"A {type(obj).__name__} cannot be saved. Save numbers, strings, lists, dicts and numpy arrays, "
                "or register the type with trtops.json.Encoder."
            )

    def _write_array(self, array: Array, indent: str) -> None:
        import numpy as np

        if array.dtype.isbuiltin == 2:  # bfloat16 and its like, which .npy files know nothing of
            bits = array.view(f"u{array.itemsize}")
            self.write({"bits": bits, "dtype": array.dtype.name, MARKER: "ExtendedArray"}, indent)
        elif array.dtype.kind in "OT" and all(isinstance(item, str) for item in array.flat):
            self.array(array.astype(np.str_), indent)
        else:
            self.array(array, indent)

    def array(self, array: Array, indent: str) -> None:
        """Write an array whose dtype a ``.npy`` file can name."""
        inner = indent + "    "
        self.out(f'{{{inner}"array": "'.encode("ascii"))
        for block in file_blocks(array):
            self.out(binascii.b2a_base64(block, newline=False))
        self.out(f'",{inner}"{MARKER}": "ndarray"{indent}}}'.encode("ascii"))

    def _write_tensor(self, tensor: Any, indent: str) -> None:
        import torch

        data = io.BytesIO()
        torch.save(tensor, data)
        text = binascii.b2a_base64(data.getbuffer(), newline=False).decode("ascii")
        self.write({"tensor": text, MARKER: "Tensor"}, indent)


def _key_text(key: object) -> str:
    if key is None or isinstance(key, (bool, int, float)):
        key = json.dumps(key)  # as Python's own encoder does
    if not isinstance(key, str):
        raise errors.FormatError(f"{key!r} is a key, but keys of saved dicts must be strings.")
    return json.dumps(key) + ": "


def load_text(file: IO[bytes], name: str) -> Any:
    """Read JSON; ``name`` is what errors call it."""
    long_strings = _LongStrings(file)
    try:
        text = long_strings.skeleton()
        hook = Hook(long_strings.resolve, functools.partial(_read_json_array, long_strings))
        return hook.finish(json.loads(text, object_pairs_hook=hook))
    except errors.FormatError as exc:
        raise errors.FormatError(f"{name}: {exc}") from None
    except (ValueError, RecursionError) as exc:
        raise errors.FormatError(f"{name} is not valid JSON, or is cut short: {exc}.") from None


class _LongStrings:
    """Keeps a JSON text's long strings in the file until they are wanted.

    The parser gets a skeleton of the text in which a short name, unguessable to whoever wrote the file, stands for
    each long string.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.prefix = f"long-{secrets.token_hex(16)}-"
        self.places: list[tuple[int, int, bool]] = []

    def skeleton(self) -> str:
        return b"".join(self._skeleton_pieces()).decode("utf-8", "surrogatepass")

    def _skeleton_pieces(self) -> Iterator[bytes]:
        offset = 0
        begin = -1  # where the current string's text begins in the file; -1 outside of strings
        held: list[bytes] = []  # the current string's text, as long as it is short
        escaped, odd = False, False
        while chunk := self.file.read(BLOCK):
            at = 0
            while at < len(chunk):
                quote = chunk.find(b'"', at)
                if begin < 0:
                    yield chunk[at:] if quote < 0 else chunk[at : quote + 1]
                    at = len(chunk) if quote < 0 else quote + 1
                    begin, held, escaped, odd = (begin if quote < 0 else offset + at), [], False, False
                    continue
                end = len(chunk) if quote < 0 else quote
                if chunk.find(b"\\", at, end) >= 0 or odd:
                    escaped = True
                    odd = _ends_in_odd_backslashes(chunk, at, end, odd)
                if offset + end - begin <= _LONG_STRING:
                    held.append(chunk[at:end])
                at = end
                if quote < 0:
                    continue
                at += 1
                if odd:  # the quote is escaped and belongs to the string
                    odd = False
                    if offset + at - begin <= _LONG_STRING:
                        held.append(b'"')
                    continue
                yield self._short_form(begin, offset + end, held, escaped) + b'"'
                begin = -1
            offset += len(chunk)
        if begin >= 0:
            raise errors.FormatError("the text ends inside a string; the file is cut short")

    def _short_form(self, begin: int, end: int, held: list[bytes], escaped: bool) -> bytes:
        if end - begin <= _LONG_STRING:
            return b"".join(held)
        self.places.append((begin, end, escaped))
        return f"{self.prefix}{len(self.places) - 1}".encode("ascii")

    def place(self, text: object) -> tuple[int, int, bool] | None:
        if isinstance(text, str) and text.startswith(self.prefix):
            return self.places[int(text[len(self.prefix) :])]
        return None

    def resolve(self, text: object) -> Any:
        """The string itself, wherever a name may stand for it."""
        place = self.place(text)
        if place is None:
            return text
        begin, end, _ = place
        self.file.seek(begin)
        return json.loads(b'"' + self.file.read(end - begin) + b'"')


def _ends_in_odd_backslashes(chunk: bytes, begin: int, end: int, odd_before: bool) -> bool:
    count = 0
    while end - count > begin and chunk[end - count - 1] == 0x5C:
        count += 1
    return (count % 2 == 1) != (odd_before and count == end - begin)


def _read_json_array(strings: _LongStrings, text: object) -> Array:
    place = strings.place(text)
    if place is None or place[2]:
        value = strings.resolve(text)
        if not isinstance(value, str):
            raise errors.FormatError(f"an array is a {type(value).__name__} where text was expected")
        return _array_from_text(value)
    begin, end, _ = place
    strings.file.seek(begin)
    return read_npy(_Base64Reader(strings.file, end - begin), _decoded_size(strings.file, begin, end))


def _decoded_size(file: IO[bytes], begin: int, end: int) -> int:
    file.seek(end - 2)
    padding = file.read(2).count(b"=")
    file.seek(begin)
    return (end - begin) // 4 * 3 - padding


def _array_from_text(text: str) -> Array:
    """An array from base64, or from the latin-1 text that old releases wrote."""
    try:
        data = binascii.a2b_base64(text.encode("ascii"))
        if data[:6] != b"\x93NUMPY" and data[:2] != b"PK":
            raise ValueError
    except ValueError:
        try:
            data = text.encode("latin-1")
        except UnicodeEncodeError:
            raise errors.FormatError("an array is neither base64 nor latin-1 text") from None
    if data[:2] == b"PK":
        return _first_of_archive(data)
    return read_npy(io.BytesIO(data), len(data))


def _first_of_archive(data: bytes) -> Array:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            if not members:
                raise errors.FormatError("an array is an archive with nothing in it")
            if members[0].file_size > 64 * len(data) + (1 << 20):
                raise errors.FormatError("an array is an archive that unpacks to far more than it holds")
            content = archive.read(members[0])
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error) as exc:
        raise errors.FormatError(f"an array is a damaged archive: {exc}") from None
    return read_npy(io.BytesIO(content), len(content))


class _Base64Reader:
    """Decodes base64 text from a file as it is read."""

    def __init__(self, file: IO[bytes], length: int) -> None:
        self.file = file
        self.left = length
        self.ready = memoryview(b"")

    def read(self, count: int) -> bytes:
        parts = []
        while count > 0:
            if not self.ready and not self._decode_more():
                break
            parts.append(bytes(self.ready[:count]))
            self.ready = self.ready[count:]
            count -= len(parts[-1])
        return b"".join(parts)

    def readinto(self, target: memoryview) -> int:
        done = 0
        while done < len(target) and (self.ready or self._decode_more()):
            count = min(len(self.ready), len(target) - done)
            target[done : done + count] = self.ready[:count]
            self.ready = self.ready[count:]
            done += count
        return done

    def _decode_more(self) -> bool:
        text = self.file.read(min(self.left, BLOCK // 3 * 4))
        self.left -= len(text)
        try:
            self.ready = memoryview(binascii.a2b_base64(text))
        except binascii.Error as exc:
            raise errors.FormatError(f"an array is damaged base64: {exc}") from None
        return len(self.ready) > 0
