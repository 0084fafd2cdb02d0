"""Packing of a bundle's directory as a tar, and safe unpacking of untrusted archives.

A bundle consists of a few plain files. Everything else is rejected: links, devices, paths outside the
directory, duplicate names, and more files or bytes than the limits. The standard library parses the headers,
one block at a time. Extended headers (pax records of times and owners) are skipped and never interpreted.
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from scorer.release.errors import InvalidError

MAX_FILES = 128
_MAX_HEADERS = 4 * MAX_FILES
_MAX_EXTENSION = 64 * 1024
_BLOCK = 512
_CHUNK = 1 << 20
_EXTENSIONS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)


def pack(directory: Path, into: BinaryIO) -> None:
    """Write a bundle's files as a tar.gz, with the manifest first. Equal files give equal bytes."""
    names = sorted(path.name for path in directory.iterdir() if path.is_file())
    names.sort(key=lambda name: name != "manifest.json")
    # Forests hardly compress: a higher level takes seconds longer and saves a few per cent.
    with (
        gzip.GzipFile(filename="", fileobj=into, mode="wb", compresslevel=1, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for name in names:
            path = directory / name
            info = tarfile.TarInfo(name)
            info.size = path.stat().st_size
            info.mode = 0o644
            with path.open("rb") as file:
                archive.addfile(info, file)


def unpack(archive: BinaryIO, into: Path, *, limit: int) -> list[str]:
    """Unpack a tar or tar.gz into an empty directory, and return the names of its files.

    All files must be at the top level, or all in one directory there (`tar cz fraud/`).

    Args:
        archive: The archive, which is read from its present position to its end.
        into: An empty directory that no one else writes to.
        limit: Limit on the unpacked bytes.

    Raises:
        InvalidError: The archive is damaged, truncated or too large, or contains other entries than files.
    """
    reader = _Reader(archive, limit)
    names: list[str] = []
    roots: set[str] = set()
    try:
        for info in reader.members():
            root, name = _split(info)
            roots.add(root)
            if info.isdir():
                continue
            if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
                raise InvalidError(f'the archive\'s "{_shown(info.name)}" is a {_kind(info)}; {_RULE}')
            if not name:
                raise InvalidError(f'the archive\'s "{_shown(info.name)}" has no file name; {_RULE}')
            if name in names:
                raise InvalidError(f'the archive contains "{_shown(name)}" twice; {_RULE}')
            if len(names) == MAX_FILES:
                raise InvalidError(f"the archive contains more than {MAX_FILES} files; {_RULE}")
            names.append(name)
            with (into / name).open("xb") as file:
                reader.copy(info.size, file)
    except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.HeaderError, UnicodeDecodeError) as error:
        why = "is truncated" if isinstance(error, EOFError) else f"is damaged ({error})"
        raise InvalidError(f"the archive {why}; send a complete tar or tar.gz") from None
    if len(roots) > 1:
        raise InvalidError(f"the archive's files are in {len(roots)} directories; {_RULE}")
    return names


_REMEDY = "build a bundle with `scorer bundle build` and send a tar or tar.gz of its directory"
_TAR_MAGIC = slice(257, 262)
_FORMATS = (
    (b"PK", "a zip archive"),
    (b"\xfd7zXZ", "an xz archive"),
    (b"BZh", "a bzip2 archive"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard archive"),
    (b"PAR1", "a Parquet file"),
    (b"{L\x00", "an XGBoost model (UBJSON)"),
    (b"{", "JSON"),
    (b"tree\nversion=", "a LightGBM model"),
    (b"CBM1", "a CatBoost model"),
    (b"\x80\x04", "a Python pickle"),
    (b"\x80\x05", "a Python pickle"),
)


def _other(head: bytes) -> str:
    """Name the format of a file that is no tar, by its first block; empty: it may be one."""
    if head[_TAR_MAGIC] == b"ustar":
        return ""
    for start, what in _FORMATS:
        if head.startswith(start):
            return what
    if not head:
        return "empty"
    is_text = all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in head)
    return "a text file" if is_text else ""


_RULE = "pack only the plain files of the directory that `scorer bundle build` wrote"


def _split(info: tarfile.TarInfo) -> tuple[str, str]:
    """Return an entry's top-level directory, or "", and its file name in it."""
    path = info.name.removeprefix("./").rstrip("/") if info.name not in (".", "./") else ""
    parts = path.split("/") if path else []
    if info.isdir() and len(parts) < 2:
        parts = [*parts, ""]
    unsafe = info.name.startswith("/") or any(part in ("..", ".") or "\\" in part for part in parts)
    if unsafe or "" in parts[:-1] or len(parts) > 2 or any("\0" in part for part in parts):
        raise InvalidError(f'the archive\'s path "{_shown(info.name)}" is outside its directory; {_RULE}')
    if not parts:
        return "", ""
    return ("", parts[0]) if len(parts) == 1 else (parts[0], parts[1])


def _kind(info: tarfile.TarInfo) -> str:
    if info.issym() or info.islnk():
        return "link"
    if info.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK):
        return "name of more than 100 characters"
    return "device or pipe" if info.isdev() else "special file"


def _shown(name: str) -> str:
    return name.encode("unicode_escape", "replace").decode()[:80]


class _Reader:
    """Reads an archive, decompressed if needed, and limits the bytes read."""

    def __init__(self, archive: BinaryIO, limit: int) -> None:
        head = archive.read(_BLOCK)
        whole = _Joined(head, archive)
        packed = head.startswith(b"\x1f\x8b")
        if not packed and (what := _other(head)):
            raise InvalidError(f"the file is {what}, not an archive of a bundle; {_REMEDY}")
        self._file: Any = gzip.GzipFile(fileobj=cast("Any", whole), mode="rb") if packed else whole
        self._limit = limit
        self._left = limit

    def members(self) -> Iterator[tarfile.TarInfo]:
        """Yield the headers in order. The caller must `copy` each content before it requests the next."""
        for _ in range(_MAX_HEADERS):
            block = self._exactly(_BLOCK)
            if not any(block):
                return
            info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
            if info.size < 0:
                raise InvalidError(
                    f'the archive states {info.size} bytes for "{_shown(info.name)}"; send a valid archive'
                )
            if info.type in _EXTENSIONS:
                if info.size > _MAX_EXTENSION:
                    raise InvalidError(f"the archive has a header of {info.size} bytes; {_RULE}")
                self.copy(info.size, None)
                continue
            yield info
        raise InvalidError(f"the archive has more than {_MAX_HEADERS} entries; {_RULE}")

    def copy(self, size: int, into: BinaryIO | None) -> None:
        """Copy `size` bytes, and skip the padding of their last block."""
        left = size
        while left:
            chunk = self._some(min(left, _CHUNK))
            left -= len(chunk)
            if into is not None:
                into.write(chunk)
        self._exactly(-size % _BLOCK)

    def _exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            found += self._some(size - len(found))
        return found

    def _some(self, size: int) -> bytes:
        chunk = self._file.read(size) or b""
        if not chunk:
            raise EOFError
        self._left -= len(chunk)
        if self._left < 0:
            raise InvalidError(
                f"the archive has more than {self._limit} bytes unpacked, which is the limit (upload_mb); "
                "send a smaller bundle, or ask an operator to raise the limit"
            )
        return chunk


class _Joined(io.RawIOBase):
    """A stream of the bytes that were read already, followed by the rest of the file."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        super().__init__()
        self._head = head
        self._rest = rest

    def read(self, size: int = -1) -> bytes:
        if self._head:
            size = len(self._head) if size < 0 else size
            found, self._head = self._head[:size], self._head[size:]
            return found
        return self._rest.read(size)

    def readable(self) -> bool:
        return True


def size_of(directory: Path) -> int:
    """Return the total size of a directory's files in bytes, for a progress bar."""
    return sum(entry.stat().st_size for entry in os.scandir(directory) if entry.is_file())
