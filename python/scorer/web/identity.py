"""Authentication of page requests by session cookie or trusted proxy, and CSRF protection of forms."""

from __future__ import annotations

import hmac
import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from scorer.release.errors import NotAllowedError, NotAuthenticatedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from scorer.release.access import Access, Session
    from scorer.release.model import Actor
    from scorer.release.store.keys import SharedKeys

    ProxiedUser = Callable[[Request], str | None]

FIELD = "csrf"
_PATH = re.compile(r"/(?![/\\])[^\x00-\x20\\]*")


class Identity:
    """Reads the user of a request.

    Args:
        access: Looks up sessions and users.
        keys: Signs forms. All processes behind one address share the keys, so that each accepts the forms of
            the others.
        secure: Whether browsers use https.
        proxied: Returns the user that a trusted proxy names in a request, if any.
    """

    def __init__(
        self, access: Access, *, keys: SharedKeys, secure: bool, proxied: ProxiedUser | None = None
    ) -> None:
        self._access, self._keys, self._proxied, self.secure = access, keys, proxied, secure
        # With this prefix, browsers accept the cookie only over https and for this host with all its paths.
        self.cookie = "__Host-scorer" if secure else "scorer"

    def of(self, request: Request) -> tuple[Actor, str]:
        """Return the user and the CSRF value of the user's forms. Raises NotAuthenticatedError."""
        user = self._proxied(request) if self._proxied else None
        if user is not None:
            sent, text = request.headers.get("x-csrf-token", ""), f"proxy:{user}"
            return self._access.by_proxy(user), sent if self.has_signed(text, sent) else self.sign(text)
        cookie = request.cookies.get(self.cookie)
        if not cookie:
            raise NotAuthenticatedError("you are not signed in; sign in")
        session: Session = self._access.session(cookie)
        return session.actor, session.csrf

    def sign(self, text: str) -> str:
        """Return the HMAC-SHA256 of a text in hexadecimal, with a key of the platform's processes."""
        return self._keys.sign(text)

    def has_signed(self, text: str, signature: str) -> bool:
        """Whether a platform process made the signature of a text."""
        return bool(signature) and self._keys.has_signed(text, signature)

    def accepts(self, actor: Actor, csrf: str, sent: str) -> bool:
        """Whether a form contains its user's CSRF token, for a proxy's user also one of the previous key."""
        if sent and hmac.compare_digest(sent.encode("utf-8", "replace"), csrf.encode()):
            return True
        return actor.via == "proxy" and self.has_signed(f"proxy:{actor.user}", sent)


def check_form(request: Request, *, is_known: bool) -> None:
    """Reject a form that was not sent from a page of the platform.

    Args:
        request: The request.
        is_known: Whether its CSRF token is valid.

    Raises:
        NotAllowedError: The token is not valid, or the browser names another origin.
    """
    theirs = request.headers.get("origin") is not None and not is_same_origin(request)
    if theirs or not is_known:
        raise NotAllowedError(
            "the form is not of this session (its csrf field is missing or wrong), so nothing was changed; "
            "open the page again and repeat"
        )


def is_same_origin(request: Request) -> bool:
    """Whether the browser names a page of the platform as the origin of the request."""
    origin = request.headers.get("origin", "")
    return urlsplit(origin).netloc.lower() == request.headers.get("host", "").lower() != ""


def inside(address: str | None) -> str:
    """Return a path on the platform to redirect to, or "/" for an address of another site."""
    return address if address and _PATH.fullmatch(address) and not urlsplit(address).netloc else "/"
