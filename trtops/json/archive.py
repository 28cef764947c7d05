"""The fast format: an uncompressed ZIP archive of ``.npy`` files, and an index in JSON that names them."""

from __future__ import annotations

import functools
import io
import json
import zipfile
import zlib
from typing import IO, TYPE_CHECKING, Any

from trtops import errors
from trtops.json.npy import body_blocks, header_of, read_npy
from trtops.json.objects import MARKER, Hook
from trtops.json.text import TextWriter

if TYPE_CHECKING:
    from trtops.json.npy import Array

ARCHIVE_FORMAT = "trtops.npz"
ARCHIVE_VERSION = 1


class ArchiveWriter(TextWriter):
    """Writes an object as an uncompressed archive of ``.npy`` files and an index."""

    def __init__(self, file: IO[bytes]) -> None:
        self.index = io.BytesIO()
        super().__init__(self.index)
        self.archive = zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True)
        self.count = 0

    def write(self, obj: Any, indent: str = "\n") -> None:
        """Write one value; of the outermost, the archive as a whole."""
        if indent != "\n":
            super().write(obj, indent)
            return
        with self.archive:
            self.out(f'{{"format": "{ARCHIVE_FORMAT}", "version": {ARCHIVE_VERSION}, "content": '.encode("ascii"))
            super().write(obj, indent + " ")
            self.out(b"}")
            self.archive.writestr(zipfile.ZipInfo("index.json"), self.index.getvalue())

    def array(self, array: Array, indent: str) -> None:
        """Write an array as a member, and its name into the index."""
        name = f"{self.count:06d}.npy"
        self.count += 1
        header = header_of(array)
        with self.archive.open(zipfile.ZipInfo(name), "w", force_zip64=array.nbytes > 1 << 30) as member:
            member.write(header)
            for block in body_blocks(array):
                member.write(block)
        self.out(json.dumps({"array": name, MARKER: "ndarray"}).encode("ascii"))


def load_archive(file: IO[bytes], name: str) -> Any:
    """Read an archive; ``name`` is what errors call it."""
    size = file.seek(0, io.SEEK_END)
    try:
        with zipfile.ZipFile(file) as archive:
            index = _Index(archive, size)
            hook = Hook(lambda text: text, index.array)
            return json.loads(index.text(), object_pairs_hook=functools.partial(_keep_envelope, hook))["content"]
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
        raise errors.FormatError(f"{name} is damaged, cut short, or not an archive that trtops wrote: {exc}.") from None


def _keep_envelope(hook: Hook, pairs: list[tuple[str, Any]]) -> Any:
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
            raise errors.FormatError("it has no index.json: it is an archive, but not one that trtops wrote")
        text = self.archive.read(self._take_member("index.json"))
        head, _, version = text[:100].decode("utf-8", "replace").partition(', "version": ')
        if head != f'{{"format": "{ARCHIVE_FORMAT}"':
            raise errors.FormatError("its index.json was not written by trtops")
        if (version := version.split(",")[0]) != str(ARCHIVE_VERSION):
            raise errors.FormatError(
                f"it has version {version[:20]}; this release reads version {ARCHIVE_VERSION}. Update trtops"
            )
        return text

    def array(self, name: object) -> Array:
        """Read the array that the index names."""
        info = self._take_member(name)
        with self.archive.open(info) as member:
            return read_npy(_ZipReader(member), info.file_size)

    def _take_member(self, name: object) -> zipfile.ZipInfo:
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
