"""Bundles: sent whole, taken in once."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from scorer.release.errors import InvalidError
from scorer.sdk.base import Operations
from scorer.sdk.paging import Page
from scorer.sdk.results import BundleDetail, BundleInfo

_CHUNK = 1 << 18
_UPLOAD_SECONDS = 600.0


class BundleCalls(Operations):
    """Its operations."""

    def upload(
        self,
        bundle: str | os.PathLike[str],
        project: str,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> BundleInfo:
        """Packs a bundle's directory and sends it; the platform verifies it whole. Again: changes nothing.

        Args:
            bundle: What `scorer bundle build` wrote.
            project: Whose it is to be.
            progress: Told bytes sent and bytes to send.
        """
        from scorer.release.archive import pack

        directory = Path(bundle)
        if not (directory / "manifest.json").is_file():
            raise InvalidError(
                f'"{directory}" is no bundle; name the directory that `scorer bundle build` wrote'
            )
        with tempfile.TemporaryFile(prefix="scorer-bundle-") as file:
            pack(directory, file)
            size = file.tell()
            return self._call(
                BundleInfo,
                "POST",
                f"/projects/{quote(project, safe='')}/bundles",
                content=lambda: _chunks(file, size, progress),
                headers={"Content-Type": "application/gzip", "Content-Length": str(size)},
                repeatable=True,
                timeout=_UPLOAD_SECONDS,
            )

    def adopt(self, project: str, bundle: str) -> BundleInfo:
        """Takes in a bundle that is in the registry already: a digest, a prefix or name@alias."""
        path = f"/projects/{quote(project, safe='')}/bundles/adopt"
        return self._call(BundleInfo, "POST", path, json={"bundle": bundle}, repeatable=True)

    def bundles(self, project: str | None = None) -> Iterator[BundleInfo]:
        """Newest first."""
        cursor: str | None = None
        while True:
            page = self._call(
                Page[BundleInfo], "GET", "/bundles", query={"project": project, "cursor": cursor}
            )
            yield from page.items
            cursor = page.next
            if cursor is None:
                return

    def bundle(self, reference: str) -> BundleDetail:
        """One of them: a digest, a prefix or name@alias."""
        return self._call(BundleDetail, "GET", f"/bundles/{quote(reference, safe='@:')}")


def _chunks(file: BinaryIO, size: int, progress: Callable[[int, int], None] | None) -> Iterator[bytes]:
    file.seek(0)
    sent = 0
    while chunk := file.read(_CHUNK):
        yield chunk
        sent += len(chunk)
        if progress is not None:
            progress(sent, size)
