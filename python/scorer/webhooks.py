"""For who receives the platform's webhooks: is this really from it, and from now?

Copy this file, or call `verify`; it needs nothing but the standard library::

    from scorer import webhooks

    webhooks.verify(secret, request.headers["Scorer-Signature"], request.body)

The header is ``t=<unix seconds>,v1=<hex>``, where hex is the HMAC-SHA256 of ``<t>.<body>`` under the
channel's secret. A message may come twice (a reply was lost, say): ``Scorer-Delivery`` is then the same.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable

from scorer.errors import ScorerError

SIGNATURE = "Scorer-Signature"
DELIVERY = "Scorer-Delivery"


class SignatureError(ScorerError):
    """A message that is not from who has the secret, or is from another time."""


def sign(secret: str, body: bytes, at: int) -> str:
    """The header for a body sent at `at`, unix seconds."""
    return f"t={at},v1={_code(secret, body, at)}"


def verify(
    secret: str,
    header: str,
    body: bytes,
    tolerance: float = 300,
    *,
    clock: Callable[[], float] = time.time,
) -> None:
    """Returns where the header fits the body, as received, byte for byte.

    Args:
        secret: What the channel was given.
        header: `Scorer-Signature`.
        body: The body before anything has parsed it.
        tolerance: Seconds that the clocks may differ and the message may have travelled: an older one may be
            somebody's replay.
        clock: Unix seconds.

    Raises:
        SignatureError: It does not, or is too old or too new.
    """
    at, codes = _parse(header)
    # Every code is compared: a header may carry two while a secret is changed.
    right = _code(secret, body, at)
    if sum(hmac.compare_digest(code, right) for code in codes) == 0:
        raise SignatureError(
            f"{SIGNATURE} does not fit the body; compare secrets, and sign the body unparsed"
        )
    age = clock() - at
    if abs(age) > tolerance:
        raise SignatureError(
            f"{SIGNATURE} is {abs(age):.0f} s {'old' if age > 0 else 'ahead'}, more than {tolerance:g} s; "
            "set both clocks by NTP, and take nothing that is replayed"
        )


def _parse(header: str) -> tuple[int, list[str]]:
    parts = [part.strip().partition("=") for part in header.split(",")]
    times = [value for key, _, value in parts if key == "t"]
    codes = [value for key, _, value in parts if key == "v1" and value.isascii()]
    if (
        len(times) != 1
        or not (times[0].isascii() and times[0].isdigit() and len(times[0]) <= 12)
        or not codes
    ):
        raise SignatureError(f'{SIGNATURE} is not "t=<unix seconds>,v1=<hex>"; pass the header as it came')
    return int(times[0]), codes


def _code(secret: str, body: bytes, at: int) -> str:
    return hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
