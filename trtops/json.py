"""Saved formats: the field's JSON, both ways, and a fast one beside it.

**JSON.** Objects of known types are JSON objects with a member ``polygraphy_class`` that names the type; arrays are the
base64 text of a ``.npy`` file. This is Polygraphy's format: its files are read, also those of old releases (a member
``__polygraphy_encoded_<Type>`` instead, arrays as latin-1 text or as an archive), and it reads ours. ``NaN`` and
``Infinity`` are written bare, as it writes them.

**npz.** A path that ends in ``.npz`` gets an uncompressed ZIP archive with the same content: ``index.json``, in which
``{"array": <member's name>}`` stands for an array, and one ``.npy`` member per array. ``numpy.load`` opens it too.

Both are written block by block to a temporary file beside the target, which they replace when complete: nothing
half-written ever bears the name. Nothing read from a file is executed: there is no pickle in either format, arrays of
objects are refused, and a file that is cut short, foreign or claims more than it holds raises ``FormatError``.

Types say how they are saved through :class:`Encoder` and :class:`Decoder`.
"""

from __future__ import annotations

import binascii
import contextlib
import functools
import importlib
import io
import json
import os
import secrets
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, TypeVar

from trtops import errors

if TYPE_CHECKING:
    import numpy as np

    Array: TypeAlias = "np.ndarray[Any, Any]"

__all__ = ["Decoder", "Encoder", "add_json_methods", "from_json", "load_json", "save_json", "to_json"]

MARKER = "polygraphy_class"
LEGACY_MARKER = "__polygraphy_encoded_"
LEGACY_VALUE = "polygraphy_serialized_json_type"
ARCHIVE_FORMAT = "trtops.npz"
ARCHIVE_VERSION = 1

T = TypeVar("T")
Source: TypeAlias = "str | os.PathLike[str] | IO[str] | IO[bytes]"

_BLOCK = 3 << 18
_LONG_STRING = 1 << 12
_HEADER_LIMIT = 1 << 16

# Who defines the types that files may name, imported when one is met; the rooms above may add theirs.
HOMES: dict[str, str] = {
    **dict.fromkeys(
        ("RunResults", "IterationResult", "LazyArray", "LazyNumpyArray", "AccuracyResult", "AccuracyResults"),
        "trtops.comparator.results",
    ),
    **dict.fromkeys(
        (
            "OutputCompareResult",
            "L2Result",
            "CosineSimilarityResult",
            "PsnrResult",
            "SnrResult",
            "PerceptualMetricsResult",
            "DistanceMetricsResult",
            "QualityMetricsResult",
            "SimpleThreshold",
            "DistanceThreshold",
            "QualityThreshold",
            "L2Threshold",
            "CosineSimilarityThreshold",
            "PsnrThreshold",
            "SnrThreshold",
            "LpipsThreshold",
        ),
        "trtops.comparator.judgements",
    ),
    "FormattedArray": "trtops.common",
}


class Encoder:
    """How objects of each type are saved."""

    registered: ClassVar[dict[type, tuple[str, Callable[[Any], dict[str, Any]]]]] = {}

    @classmethod
    def register(cls, kind: type[T], alias: str | None = None) -> Callable[[Callable[[T], dict[str, Any]]], Any]:
        """Decorate the function that turns an object of a type into a dict of its parts.

        Args:
            kind: The type; its ``__name__`` marks the object in the file.
            alias: Accepted, and ignored, so that both decorators of a type can read alike.
        """

        def decorate(function: Callable[[T], dict[str, Any]]) -> Callable[[T], dict[str, Any]]:
            cls.registered[kind] = (kind.__name__, function)
            return function

        return decorate


class Decoder:
    """How objects of each type are read."""

    registered: ClassVar[dict[str, Callable[[dict[str, Any]], Any]]] = {}

    @classmethod
    def register(cls, kind: type[T], alias: str | None = None) -> Callable[[Callable[[dict[str, Any]], T]], Any]:
        """Decorate the function that makes an object of a type from a dict of its parts.

        Args:
            kind: The type, whose ``__name__`` marks its objects.
            alias: A second name that is read as the type.
        """

        def decorate(function: Callable[[dict[str, Any]], T]) -> Callable[[dict[str, Any]], T]:
            for name in filter(None, (kind.__name__, alias)):
                cls.registered[name] = function
            return function

        return decorate


def to_json(obj: object) -> str:
    """The JSON text of an object: of JSON values, arrays, and objects of registered types, nested at will.

    Raises:
        FormatError: If something in it has no saved form.
    """
    out = io.BytesIO()
    _JSONWriter(out).write(obj)
    return out.getvalue().decode("ascii")


def from_json(src: str | bytes) -> Any:
    """What :func:`to_json` was given.

    Raises:
        FormatError: If the text is not JSON, or something in it is damaged, unknown or refused.
    """
    data = src.encode("utf-8", "surrogatepass") if isinstance(src, str) else src
    return _load_json_stream(io.BytesIO(data), "the text")


def save_json(obj: object, dest: Source, description: str | None = None) -> None:
    """Save an object to a file.

    Args:
        obj: JSON values, arrays, and objects of registered types, nested at will. Arrays are read as they are written:
            less than 64 MB of memory is used beside them.
        dest: A path, replaced when the file is complete: an archive if it ends in ``.npz``, else JSON. Or an open file,
            which gets JSON.
        description: What it is, for the log.

    Raises:
        FormatError: If something in it has no saved form; the path is left as it was.
    """
    if not isinstance(dest, (str, os.PathLike)):
        _write_open_file(obj, dest)
        return
    _log(f"Saving {description or 'an object'} to {os.fspath(dest)}")
    with _replacing(Path(dest)) as file:
        if Path(dest).suffix == ".npz":
            _ArchiveWriter(file).write(obj)
        else:
            _JSONWriter(file).write(obj)


def load_json(src: Source, description: str | None = None) -> Any:
    """Load what :func:`save_json`, or the field's tool, saved.

    Args:
        src: A path, or an open file at its beginning. Which of the two formats it is shows in its first bytes.
        description: What it is, for the log and for errors.

    Returns:
        The object. Its arrays are new ones in host memory and may be changed.

    Raises:
        FormatError: If the file is cut short, not one of the two formats, of a newer version, or holds something
            unknown or refused.
        FileNotFoundError: If there is no such file.
    """
    if isinstance(src, (str, os.PathLike)):
        name = f"{description + ' ' if description else ''}{os.fspath(src)}"
        _log(f"Loading {name}")
        with open(src, "rb") as file:
            return _load(file, name)
    if isinstance(src, io.TextIOBase):
        return from_json(src.read())
    return _load(io.BytesIO(src.read()), description or "the file")  # type: ignore[arg-type]


def add_json_methods(description: str | None = None) -> Callable[[type[T]], type[T]]:
    """Decorate a registered type so that it has ``to_json``, ``from_json``, ``save`` and ``load``.

    Args:
        description: What its objects are, for the log and for errors.
    """

    def decorate(cls: type[T]) -> type[T]:
        def from_text(src: str) -> T:
            """Read what ``to_json`` wrote; FormatError if it is something else."""
            return _expect(cls, from_json(src), "the text")

        def save(self: T, dest: Source) -> None:
            """Save to a path (``.npz``: the fast format) or an open file."""
            save_json(self, dest, description)

        def load(src: Source) -> T:
            """Load what ``save`` wrote; FormatError if it is something else."""
            return _expect(cls, load_json(src, description), str(src))

        for name, function in [
            ("to_json", to_json),
            ("from_json", staticmethod(from_text)),
            ("save", save),
            ("load", staticmethod(load)),
        ]:
            setattr(cls, name, function)
        return cls

    return decorate


def _expect(kind: type[T], obj: object, name: str) -> T:
    if not isinstance(obj, kind):
        raise errors.FormatError(f"{name} holds a {type(obj).__name__}; expected {kind.__name__}.")
    return obj


def _log(message: str) -> None:
    import logging

    logging.getLogger(__name__).debug(message)


# --- writing -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """A new file beside ``path`` that takes its place on success and goes away on failure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.tmp")
    try:
        with open(new, "xb") as file:
            yield file
        os.replace(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def _write_open_file(obj: object, file: Any) -> None:
    if isinstance(file, io.TextIOBase):
        file.write(to_json(obj))
    else:
        _JSONWriter(file).write(obj)


class _JSONWriter:
    """Writes an object as JSON text, arrays in blocks."""

    def __init__(self, file: IO[bytes]) -> None:
        self.out = file.write

    def write(self, obj: Any, indent: str = "\n") -> None:
        """Write one value; ``indent`` is the line break and margin it stands at."""
        if isinstance(obj, dict):
            self._items("{", "}", ((_key(key), value) for key, value in obj.items()), indent)
        elif isinstance(obj, (list, tuple)):
            self._items("[", "]", (("", value) for value in obj), indent)
        elif obj is None or (isinstance(obj, (str, int, float)) and type(obj).__module__ == "builtins"):
            self.out(json.dumps(obj).encode("ascii"))
        elif (known := Encoder.registered.get(type(obj))) is not None:
            name, encode = known
            self.write({**encode(obj), MARKER: name}, indent)
        else:
            self._foreign(obj, indent)

    def _items(self, opening: str, closing: str, items: Iterable[tuple[str, Any]], indent: str) -> None:
        inner = indent + "    "
        if len(inner) > 1000:
            raise errors.FormatError("The object is nested more than 250 deep, or contains itself; it cannot be saved.")
        mark = opening
        for key, value in items:
            self.out((mark + inner + key).encode("ascii"))
            self.write(value, inner)
            mark = ","
        self.out((indent + closing if mark == "," else opening + closing).encode("ascii"))

    def _foreign(self, obj: Any, indent: str) -> None:
        import numpy as np

        if isinstance(obj, np.ndarray):
            self._array(obj, indent)
        elif isinstance(obj, np.generic):
            self.write(obj.item() if obj.dtype.kind in "biufU" else np.asarray(obj), indent)
        elif _is_torch(obj):
            self._tensor(obj, indent)
        else:
            raise errors.FormatError(
                f"A {type(obj).__name__} cannot be saved. Save numbers, strings, lists, dicts and numpy arrays, "
                "or register the type with trtops.json.Encoder."
            )

    def _array(self, array: Array, indent: str) -> None:
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
        for block in _npy_blocks(array):
            self.out(binascii.b2a_base64(block, newline=False))
        self.out(f'",{inner}"{MARKER}": "ndarray"{indent}}}'.encode("ascii"))

    def _tensor(self, tensor: Any, indent: str) -> None:
        import torch

        data = io.BytesIO()
        torch.save(tensor, data)
        text = binascii.b2a_base64(data.getbuffer(), newline=False).decode("ascii")
        self.write({"tensor": text, MARKER: "Tensor"}, indent)


def _key(key: object) -> str:
    if not isinstance(key, str):
        key = json.dumps(key) if key is None or isinstance(key, (bool, int, float)) else _refuse_key(key)
    return json.dumps(key) + ": "


def _refuse_key(key: object) -> str:
    raise errors.FormatError(f"{key!r} is a key, but keys of saved dicts must be strings.")


def _is_torch(obj: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(obj, torch.Tensor)


def _npy_header(array: Array) -> bytes:
    import numpy as np

    if array.dtype.hasobject:
        raise errors.FormatError(
            f"An array of Python objects (shape {array.shape}) cannot be saved. Give its values one dtype first, "
            "for example with .astype(str)."
        )
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, np.lib.format.header_data_from_array_1_0(array))
    return out.getvalue()


def _npy_blocks(array: Array) -> Iterator[bytes | memoryview]:
    """An array as a ``.npy`` file, in blocks of whole base64 groups (the last one excepted)."""
    header = _npy_header(array)
    body = _body_blocks(array)
    rest = header
    for block in body:
        joined = len(rest) and (-len(rest)) % 3
        head, tail = block[:joined], block[joined:]
        if rest:
            yield rest + bytes(head)
        whole = len(tail) - len(tail) % 3
        if whole:
            yield tail[:whole]
        rest = bytes(tail[whole:])
    if rest:
        yield rest


def _body_blocks(array: Array) -> Iterator[memoryview]:
    """The array's bytes in the order that its header announces."""
    import numpy as np

    if not array.size:
        return
    if array.flags.f_contiguous and not array.flags.c_contiguous:
        array = array.T
    if array.flags.c_contiguous:
        data = array.reshape(-1).view(np.uint8).data
        for start in range(0, len(data), _BLOCK):
            yield data[start : start + _BLOCK]
        return
    step = max(1, _BLOCK // array.itemsize)
    flat = array.flat
    for start in range(0, array.size, step):
        yield np.ascontiguousarray(flat[start : start + step]).view(np.uint8).data


class _ArchiveWriter(_JSONWriter):
    """Writes an object as an uncompressed archive of ``.npy`` files and an index."""

    def __init__(self, file: IO[bytes]) -> None:
        self.index = io.BytesIO()
        super().__init__(self.index)
        self.archive = zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True)
        self.count = 0

    def write(self, obj: Any, indent: str = "\n") -> None:
        if indent != "\n":
            super().write(obj, indent)
            return
        with self.archive:
            self.out(f'{{"format": "{ARCHIVE_FORMAT}", "version": {ARCHIVE_VERSION}, "content": '.encode("ascii"))
            super().write(obj, indent + " ")
            self.out(b"}")
            self.archive.writestr(zipfile.ZipInfo("index.json"), self.index.getvalue())

    def array(self, array: Array, indent: str) -> None:
        name = f"{self.count:06d}.npy"
        self.count += 1
        header = _npy_header(array)
        with self.archive.open(zipfile.ZipInfo(name), "w", force_zip64=array.nbytes > 1 << 30) as member:
            member.write(header)
            for block in _body_blocks(array):
                member.write(block)
        self.out(json.dumps({"array": name, MARKER: "ndarray"}).encode("ascii"))


# --- reading -----------------------------------------------------------------------------------------------------------


def _load(file: IO[bytes], name: str) -> Any:
    start = file.read(4)
    file.seek(0)
    if start[:2] == b"PK":
        return _load_archive(file, name)
    return _load_json_stream(file, name)


def _load_json_stream(file: IO[bytes], name: str) -> Any:
    long_strings = _LongStrings(file)
    try:
        text = long_strings.skeleton()
        hook = _Hook(long_strings.resolve, functools.partial(_read_json_array, long_strings))
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
        return b"".join(self._pieces()).decode("utf-8", "surrogatepass")

    def _pieces(self) -> Iterator[bytes]:
        offset = 0
        begin = -1  # where the current string's text begins in the file; -1 outside of strings
        held: list[bytes] = []  # the current string's text, as long as it is short
        escaped, odd = False, False
        while chunk := self.file.read(_BLOCK):
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
                yield self._string(begin, offset + end, held, escaped) + b'"'
                begin = -1
            offset += len(chunk)
        if begin >= 0:
            raise errors.FormatError("the text ends inside a string; the file is cut short")

    def _string(self, begin: int, end: int, held: list[bytes], escaped: bool) -> bytes:
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


class _Hook:
    """Turns JSON objects into what they stand for, innermost first."""

    def __init__(self, resolve: Callable[[object], Any], read_array: Callable[[Any], Array]) -> None:
        self.resolve = resolve
        self.read_array = read_array

    def __call__(self, pairs: list[tuple[str, Any]]) -> Any:
        content = {self.resolve(key): value for key, value in pairs}
        kind = self._kind(content)
        if kind == "ndarray":
            return self._checked(kind, lambda: self.read_array(content["array"]))
        content = {key: self.finish(value) for key, value in content.items()}
        if kind is None:
            return content
        if kind == "ExtendedArray":
            return self._checked(kind, lambda: _extended(content["bits"], content["dtype"]))
        if kind == "Tensor":
            return self._checked(kind, lambda: _read_tensor(content["tensor"]))
        decode = Decoder.registered.get(kind)
        if decode is None and kind in HOMES:
            importlib.import_module(HOMES[kind])
            decode = Decoder.registered.get(kind)
        if decode is None:
            hint = errors.near(str(kind), {*Decoder.registered, *HOMES, "ndarray", "Tensor"})
            raise errors.FormatError(f"it holds an object of the unknown type {str(kind)[:80]!r}. {hint}")
        return self._checked(kind, lambda: decode(content))

    def finish(self, value: Any) -> Any:
        """Put long strings back in their places, also inside lists."""
        if isinstance(value, list):
            return [self.finish(item) for item in value] if any(map(_may_hide_string, value)) else value
        return self.resolve(value) if isinstance(value, str) else value

    def _kind(self, content: dict[str, Any]) -> str | None:
        for key, value in content.items():
            if isinstance(value, str) and value == LEGACY_VALUE and key.startswith(LEGACY_MARKER):
                del content[key]
                return key[len(LEGACY_MARKER) :]
        kind = self.resolve(content.pop(MARKER, None))
        if kind is not None and not isinstance(kind, str):
            raise errors.FormatError(f"{MARKER} is {kind!r:.80}; expected the name of a type")
        return kind

    @staticmethod
    def _checked(kind: str, make: Callable[[], Any]) -> Any:
        try:
            return make()
        except errors.FormatError:
            raise
        except KeyError as exc:
            raise errors.FormatError(f"a {kind} lacks its member {exc}") from None
        except (TypeError, ValueError, AttributeError, IndexError, MemoryError, OverflowError) as exc:
            raise errors.FormatError(f"a {kind} in it is damaged: {exc}") from None


def _may_hide_string(value: object) -> bool:
    return isinstance(value, (str, list))


def _extended(bits: Any, dtype: object) -> Array:
    import ml_dtypes
    import numpy as np

    known = getattr(ml_dtypes, str(dtype), None)
    if not isinstance(bits, np.ndarray) or not isinstance(known, type) or bits.dtype.kind != "u":
        raise errors.FormatError(f"an array has the unknown dtype {dtype!r:.80}")
    array: Array = bits.view(np.dtype(known))
    return array


def _read_tensor(text: object) -> Any:
    if not isinstance(text, str):
        raise errors.FormatError("a Tensor is no text")
    try:
        import torch
    except ImportError:
        raise errors.FormatError("it holds a torch tensor; install torch to read it") from None
    return torch.load(io.BytesIO(binascii.a2b_base64(text)), weights_only=True)


def _read_json_array(strings: _LongStrings, text: object) -> Array:
    place = strings.place(text)
    if place is None or place[2]:
        value = strings.resolve(text)
        if not isinstance(value, str):
            raise errors.FormatError(f"an array is a {type(value).__name__} where text was expected")
        return _array_from_text(value)
    begin, end, _ = place
    strings.file.seek(begin)
    return _read_npy(_Base64Reader(strings.file, end - begin), _decoded_size(strings.file, begin, end))


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
    return _read_npy(io.BytesIO(data), len(data))


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
    return _read_npy(io.BytesIO(content), len(content))


class _Base64Reader:
    """Decodes base64 text from a file as it is read."""

    def __init__(self, file: IO[bytes], length: int) -> None:
        self.file = file
        self.left = length
        self.ready = memoryview(b"")

    def read(self, count: int) -> bytes:
        parts = []
        while count > 0:
            if not self.ready and not self._fill():
                break
            parts.append(bytes(self.ready[:count]))
            self.ready = self.ready[count:]
            count -= len(parts[-1])
        return b"".join(parts)

    def readinto(self, target: memoryview) -> int:
        done = 0
        while done < len(target) and (self.ready or self._fill()):
            count = min(len(self.ready), len(target) - done)
            target[done : done + count] = self.ready[:count]
            self.ready = self.ready[count:]
            done += count
        return done

    def _fill(self) -> bool:
        text = self.file.read(min(self.left, _BLOCK // 3 * 4))
        self.left -= len(text)
        try:
            self.ready = memoryview(binascii.a2b_base64(text))
        except binascii.Error as exc:
            raise errors.FormatError(f"an array is damaged base64: {exc}") from None
        return len(self.ready) > 0


class _ByteReader(Protocol):
    def read(self, count: int, /) -> bytes: ...
    def readinto(self, target: Any, /) -> int | None: ...


def _read_npy(file: _ByteReader, size: int) -> Array:
    """Read a ``.npy`` file of ``size`` bytes. Allocates no more than that, whatever the header claims."""
    import numpy as np

    shape, fortran, dtype, header_size = _read_npy_header(file)
    count = 1
    for dim in shape:
        count *= dim
    if header_size + count * dtype.itemsize != size:
        raise errors.FormatError(
            f"an array of shape {shape} and dtype {dtype} needs {count * dtype.itemsize} bytes; "
            f"{max(0, size - header_size)} are there"
        )
    array: Array = np.empty(shape, dtype, order="F" if fortran else "C")
    if array.nbytes:
        target = (array.T if fortran else array).reshape(-1).view(np.uint8).data
        done = 0
        while done < len(target):
            got = file.readinto(target[done : done + (1 << 24)])
            if not got:
                raise errors.FormatError(f"an array of shape {shape} and dtype {dtype} is cut short")
            done += got
    return array


def _read_npy_header(file: _ByteReader) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    import ast

    import numpy as np

    magic = file.read(8)
    if magic[:6] != b"\x93NUMPY":
        raise errors.FormatError("an array does not start like a .npy file")
    if magic[6] not in (1, 2, 3):
        raise errors.FormatError(f"an array has .npy version {magic[6]}; versions 1 to 3 are known")
    width = 2 if magic[6] == 1 else 4
    length = int.from_bytes(file.read(width), "little")
    if length > _HEADER_LIMIT:
        raise errors.FormatError(f"an array has a header of {length} bytes")
    text = file.read(length)
    try:
        header = ast.literal_eval(text.decode("latin-1" if magic[6] < 3 else "utf-8").strip())
        shape, fortran = tuple(header["shape"]), bool(header["fortran_order"])
        dtype = np.lib.format.descr_to_dtype(header["descr"])
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError) as exc:
        raise errors.FormatError(f"an array has a damaged header: {exc}") from None
    if dtype.kind == "V":
        raise errors.FormatError(f"an array has dtype {dtype}; only numbers, booleans and strings are read")
    if dtype.hasobject:
        raise errors.FormatError("an array holds Python objects; reading them could run code, so it is refused")
    if len(text) < length or not all(isinstance(d, int) and not isinstance(d, bool) and d >= 0 for d in shape):
        raise errors.FormatError("an array has a damaged header")
    if len(shape) > 32:
        raise errors.FormatError(f"an array has {len(shape)} dimensions")
    return shape, fortran, dtype, 8 + width + length


def _load_archive(file: IO[bytes], name: str) -> Any:
    size = file.seek(0, io.SEEK_END)
    try:
        with zipfile.ZipFile(file) as archive:
            index = _Index(archive, size)
            hook = _Hook(lambda text: text, index.array)
            return json.loads(index.text(), object_pairs_hook=functools.partial(_envelope, hook))["content"]
    except errors.FormatError as exc:
        raise errors.FormatError(f"{name}: {exc}") from None
    except (
        zipfile.BadZipFile,
        zlib.error,
        ValueError,
        RecursionError,
        EOFError,
        NotImplementedError,
        RuntimeError,
    ) as exc:
        raise errors.FormatError(f"{name} is damaged, cut short, or no archive of ours: {exc}.") from None


def _envelope(hook: _Hook, pairs: list[tuple[str, Any]]) -> Any:
    """The hook of an archive's index: leaves its outermost object as it is."""
    if pairs and pairs[0] == ("format", ARCHIVE_FORMAT):
        return dict(pairs)
    return hook(pairs)


class _Index:
    """An archive's members, each of which may be used once."""

    def __init__(self, archive: zipfile.ZipFile, size: int) -> None:
        self.archive = archive
        self.members = {info.filename: info for info in archive.infolist()}
        members = self.members.values()
        # What is stored without compression, and not twice, cannot be larger than the file.
        if sum(info.file_size for info in members) > size:
            raise errors.FormatError("its members claim to be larger than the whole archive")
        if any(not 0 <= info.header_offset < size for info in members):
            raise errors.FormatError("its members claim to lie outside of it")

    def text(self) -> bytes:
        """The index, after a look at its first words."""
        if "index.json" not in self.members:
            raise errors.FormatError("it has no index.json: it is an archive, but none that trtops wrote")
        text = self.archive.read(self._take("index.json"))
        head, _, version = text[:100].decode("utf-8", "replace").partition(', "version": ')
        if head != f'{{"format": "{ARCHIVE_FORMAT}"':
            raise errors.FormatError("its index.json is none that trtops wrote")
        if (version := version.split(",")[0]) != str(ARCHIVE_VERSION):
            raise errors.FormatError(
                f"it has version {version[:20]}; this release reads version {ARCHIVE_VERSION}. Update trtops"
            )
        return text

    def array(self, name: object) -> Array:
        """Read the array that the index names."""
        info = self._take(name)
        with self.archive.open(info) as member:
            return _read_npy(_ZipReader(member), info.file_size)

    def _take(self, name: object) -> zipfile.ZipInfo:
        info = self.members.pop(name, None) if isinstance(name, str) else None
        if info is None:
            raise errors.FormatError(f"its index names the array {name!r:.80}, which is not in it, or was used before")
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise errors.FormatError(f"its member {name!r:.80} is compressed or encrypted; trtops writes neither")
        return info


class _ZipReader:
    """Reads a stored member in large blocks; the archive checks its CRC at the end."""

    def __init__(self, member: IO[bytes]) -> None:
        self.member = member

    def read(self, count: int) -> bytes:
        return self.member.read(count)

    def readinto(self, target: Any) -> int:
        block = self.member.read(min(len(target), 1 << 20))
        target[: len(block)] = block
        return len(block)
