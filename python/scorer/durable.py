"""Files that are on disk when a call returns, and whole after a crash."""

from __future__ import annotations

import os
import re
import secrets
from functools import lru_cache
from pathlib import Path

_ESCAPED = re.compile(r"\\([0-7]{3})")


def write_atomically(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Replaces a file in one step, synced to disk; a reader sees the old or the new one, whole.

    Who may read it is the umask's business, as of any file that a program writes, within `mode`.
    """
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Makes renames in a directory survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_NETWORK = frozenset(
    {
        "nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre", "gpfs", "beegfs", "orangefs", "coda",
        "fuse.glusterfs", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.ceph", "fuse.ceph-fuse",
        "fuse.juicefs", "fuse.moosefs", "fuse.davfs2", "fuse.rclone", "fuse.blobfuse2", "fuse.mount-s3",
    }
)  # fmt: skip


def network_filesystem(path: Path) -> str | None:
    """Return the type of the file system that holds a path if other machines share it, else None.

    Memory that is mapped from such a file is not shared between machines, which a write-ahead log of SQLite
    needs. Where the system has no list of mounts, the answer is None.
    """
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    kind = filesystem_of(path.resolve(), mounts)
    return kind if kind in _NETWORK else None


@lru_cache(maxsize=16)
def filesystem_of(path: Path, mounts: str) -> str | None:
    """Return the type of the file system of an absolute path.

    The answers for the last paths are kept, because a registry asks at each read, and mounts rarely change.

    Args:
        path: The path, without symbolic links.
        mounts: The mounts in the format of /proc/self/mountinfo; of two at one place, the later is on top.
    """
    found: tuple[int, str | None] = (-1, None)
    for line in mounts.splitlines():
        about, separator, source = line.partition(" - ")
        fields = about.split(" ")
        if not separator or len(fields) < 5:
            continue
        place = Path(_ESCAPED.sub(lambda each: chr(int(each[1], 8)), fields[4]))
        depth = len(place.parts)
        if depth >= found[0] and (path == place or place in path.parents):
            found = depth, source.split(" ")[0]
    return found[1]
