"""Who asks: by session cookie or by a trusted proxy; and what a form must carry to be believed."""

from __future__ import annotations

import hmac
import re
from hashlib import sha256
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from scorer.release.errors import NotAllowedError, NotAuthenticatedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from scorer.release.access import Access, Session
    from scorer.release.model import Actor

    ProxiedUser = Callable[[Request], str | None]

FIELD = "csrf"
_PATH = re.compile(r"/(?![/\\])[^\x00-\x20\\]*")


class Identity:
    """Reads who asks out of a request.

    Args:
        access: knows sessions and people.
        key: signs what forms carry; the same in every process behind one address, so that a form of one
            process is accepted by another.
        secure: whether browsers reach us by https.
        proxied: whom a trusted proxy vouches for in a request, if any.
    """

    def __init__(
        self, access: Access, *, key: bytes, secure: bool, proxied: ProxiedUser | None = None
    ) -> None:
        self._access, self._key, self._proxied, self.secure = access, key, proxied, secure
        # With the prefix a browser takes the cookie only by https, for this very host and all of its paths.
        self.cookie = "__Host-scorer" if secure else "scorer"

    def of(self, request: Request) -> tuple[Actor, str]:
        """Return the user and the CSRF value of the user's forms. Raises NotAuthenticatedError."""
        user = self._proxied(request) if self._proxied else None
        if user is not None:
            return self._access.by_proxy(user), self.sign(f"proxy:{user}")
        cookie = request.cookies.get(self.cookie)
        if not cookie:
            raise NotAuthenticatedError("you are not signed in; sign in with a token")
        session: Session = self._access.session(cookie)
        return session.actor, session.csrf

    def sign(self, text: str) -> str:
        """Return the HMAC-SHA256 of a text, in hexadecimal, which only the platform's processes can make."""
        return hmac.new(self._key, text.encode(), sha256).hexdigest()


def check_form(request: Request, sent: str, expected: str) -> None:
    """Raises NotAllowedError unless a form came from a page of ours."""
    origin = request.headers.get("origin")
    theirs = origin is not None and urlsplit(origin).netloc.lower() != request.headers.get("host", "").lower()
    if theirs or not sent or not hmac.compare_digest(sent.encode(), expected.encode()):
        raise NotAllowedError(
            "the form did not come from this session (its csrf field is missing or wrong), so nothing was "
            "done; open the page again and send it once more"
        )


def inside(address: str | None) -> str:
    """An address of our own to go to, never somebody else's: a path, or the first page."""
    return address if address and _PATH.fullmatch(address) and not urlsplit(address).netloc else "/"
