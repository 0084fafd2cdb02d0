"""What a page links to: our style and scripts, and Plotly's from its installed wheel.

Every file has its digest in its address and may be kept for ever. Read once; compressed when first asked for.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import re
import threading
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

STATIC = Path(__file__).with_name("static")
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FOR_EVER = {"Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}


@dataclass
class Asset:
    """One static file of the pages."""

    path: Path
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _bytes: bytes | None = None
    _packed: bytes | None = None

    @property
    def content(self) -> bytes:
        """As on disk when first read."""
        with self._lock:
            if self._bytes is None:
                self._bytes = self.path.read_bytes()
            return self._bytes

    @property
    def address(self) -> str:
        """Its name with the digest of its content."""
        digest = hashlib.sha256(self.content).hexdigest()[:16]
        return f"{self.path.stem}-{digest}{self.path.suffix}"

    @property
    def packed(self) -> bytes:
        """Content of the file, compressed by gzip."""
        content = self.content
        with self._lock:
            if self._packed is None:
                self._packed = gzip.compress(content, 6, mtime=0)
            return self._packed


class Assets:
    """All of them, by name and by address."""

    def __init__(self) -> None:
        found = [path for path in sorted(STATIC.iterdir()) if path.suffix in _TYPES]
        self._assets = {path.name: Asset(path) for path in [*found, _plotly()]}
        self._addresses: dict[str, str] = {}

    def url(self, name: str) -> str:
        """What a page links to."""
        if name not in self._addresses:
            self._addresses[name] = self._assets[name].address
        return f"/static/{self._addresses[name]}"

    @cached_property
    def unwanted(self) -> str:
        """Id of the style for maps, which Plotly adds unless an element has this id; nothing here draws maps.

        Style that is text, unlike the rest of Plotly's, would have to be allowed by the pages' policy.
        """
        found = re.search(rb'getElementById\("([0-9a-f]{64})"\)', self._assets["plotly.min.js"].content)
        return found[1].decode() if found else ""

    def answer(self, request: Request, address: str) -> Response:
        """The file, compressed where the browser takes it so."""
        name = next((name for name in self._assets if self.url(name) == f"/static/{address}"), None)
        if name is None:
            return PlainTextResponse("There is no such file; load the page again.", 404)
        asset = self._assets[name]
        headers, media = dict(_FOR_EVER), _TYPES[asset.path.suffix]
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(asset.packed, media_type=media, headers=headers | {"Content-Encoding": "gzip"})
        return Response(asset.content, media_type=media, headers=headers)


def _plotly() -> Path:
    """Found without importing it, which takes a second."""
    spec = importlib.util.find_spec("plotly")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    if not folders:
        raise ModuleNotFoundError('the pages draw with plotly: pip install "scorer[platform]"', name="plotly")
    return Path(folders[0]) / "package_data" / "plotly.min.js"
