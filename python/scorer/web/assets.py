"""Static files of the pages: style and scripts, and Plotly's script from its installed wheel.

The address of a file contains its digest, so browsers may cache it forever. Each file is read once, and
compressed on the first request.
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
        """Content of the file when it was first read."""
        with self._lock:
            if self._bytes is None:
                self._bytes = self.path.read_bytes()
            return self._bytes

    @property
    def address(self) -> str:
        """File name with the digest of its content."""
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
    """All static files, by name and by address."""

    def __init__(self) -> None:
        found = [path for path in sorted(STATIC.iterdir()) if path.suffix in _TYPES]
        self._assets = {path.name: Asset(path) for path in [*found, _plotly()]}
        self._addresses: dict[str, str] = {}

    def url(self, name: str) -> str:
        """Return the address of a file for links."""
        if name not in self._addresses:
            self._addresses[name] = self._assets[name].address
        return f"/static/{self._addresses[name]}"

    @cached_property
    def unwanted(self) -> str:
        """Id of the style element for maps, which Plotly adds unless an element with this id exists.

        The pages draw no maps, and their content security policy forbids this style.
        """
        found = re.search(rb'getElementById\("([0-9a-f]{64})"\)', self._assets["plotly.min.js"].content)
        return found[1].decode() if found else ""

    def answer(self, request: Request, address: str) -> Response:
        """Return the response with a file, compressed if the browser accepts it."""
        name = next((name for name in self._assets if self.url(name) == f"/static/{address}"), None)
        if name is None:
            return PlainTextResponse("There is no such file; load the page again.", 404)
        asset = self._assets[name]
        headers, media = dict(_FOR_EVER), _TYPES[asset.path.suffix]
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(asset.packed, media_type=media, headers=headers | {"Content-Encoding": "gzip"})
        return Response(asset.content, media_type=media, headers=headers)


def _plotly() -> Path:
    """Return the path of Plotly's script without importing Plotly, which takes a second."""
    spec = importlib.util.find_spec("plotly")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    if not folders:
        raise ModuleNotFoundError('the pages require plotly: pip install "scorer[platform]"', name="plotly")
    return Path(folders[0]) / "package_data" / "plotly.min.js"
