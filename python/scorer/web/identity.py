"""Who asks: by session cookie or by a trusted proxy; and what a form must carry to be believed."""

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
    """Reads who asks out of a request.

    Args:
        access: knows sessions and people.
        keys: Sign what forms carry; the same in every process behind one address, so that a form of one
            process is accepted by another.
        secure: whether browsers reach us by https.
        proxied: whom a trusted proxy vouches for in a request, if any.
    """

    def __init__(
        self, access: Access, *, keys: SharedKeys, secure: bool, proxied: ProxiedUser | None = None
    ) -> None:
        self._access, self._keys, self._proxied, self.secure = access, keys, proxied, secure
        # With the prefix a browser takes the cookie only by https, for this very host and all of its paths.
        self.cookie = "__Host-scorer" if secure else "scorer"

    def of(self, request: Request) -> tuple[Actor, str]:
        """Return the user and the CSRF value of the user's forms. Raises NotAuthenticatedError."""
        user = self._proxied(request) if self._proxied else None
        if user is not None:
            sent, text = request.headers.get("x-csrf-token", ""), f"proxy:{user}"
            return self._access.by_proxy(user), sent if self.has_signed(text, sent) else self.sign(text)
        cookie = request.cookies.get(self.cookie)
        if not cookie:
            raise NotAuthenticatedError("you are not signed in; sign in with a token")
        session: Session = self._access.session(cookie)
        return session.actor, session.csrf

    def sign(self, text: str) -> str:
        """Return the HMAC-SHA256 of a text, in hexadecimal, which only the platform's processes can make."""
        return self._keys.sign(text)

    def has_signed(self, text: str, signature: str) -> bool:
        """Whether a platform process made the signature of a text."""
        return bool(signature) and self._keys.has_signed(text, signature)

    def accepts(self, actor: Actor, csrf: str, sent: str) -> bool:
        """Whether a form carries its user's CSRF value; for a proxy's user, an older key's counts too."""
        if sent and hmac.compare_digest(sent.encode("utf-8", "replace"), csrf.encode()):
            return True
        return actor.via == "proxy" and self.has_signed(f"proxy:{actor.user}", sent)


def check_form(request: Request, *, is_known: bool) -> None:
    """Reject a form that did not come from a page of ours.

    Args:
        request: The request.
        is_known: Whether its CSRF value is the visitor's.

    Raises:
        NotAllowedError: The value is not, or the browser names another origin.
    """
    origin = request.headers.get("origin")
    theirs = origin is not None and urlsplit(origin).netloc.lower() != request.headers.get("host", "").lower()
    if theirs or not is_known:
        raise NotAllowedError(
            "the form did not come from this session (its csrf field is missing or wrong), so nothing was "
            "done; open the page again and send it once more"
        )


def inside(address: str | None) -> str:
    """An address of our own to go to, never somebody else's: a path, or the first page."""
    return address if address and _PATH.fullmatch(address) and not urlsplit(address).netloc else "/"
