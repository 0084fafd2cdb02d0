"""Rate limit and audit entries of failed sign-ins.

Failures are counted by credential and by client address. The limit of an address is ten times that of a
credential, so a wrong credential does not lock out the other users of its address.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from math import ceil
from typing import TYPE_CHECKING

from scorer.release.access import Attempts
from scorer.release.access.secrets import PREFIX
from scorer.release.errors import ThrottledError, UnreachableError

if TYPE_CHECKING:
    from scorer.release.access import Access
    from scorer.web.counters import WebCounters

_SECONDS = 300.0
_PER_ADDRESS = 10
_ENTRIES_PER_MINUTE = 60
"""Limit on audit entries of one process, so that failed attempts cannot fill the audit log."""
_SHOWN = len(PREFIX) + 8


class SignIns:
    """Counts failed sign-ins of this process, and records them in the audit log.

    Args:
        access: Writes the audit entries.
        counters: Counts failures and rejections.
        attempts: Limit on failures of one credential within 5 minutes.
    """

    def __init__(self, access: Access, counters: WebCounters, *, attempts: int) -> None:
        self._access, self._counters = access, counters
        self._credentials = Attempts(limit=attempts, seconds=_SECONDS)
        self._addresses = Attempts(limit=attempts * _PER_ADDRESS, seconds=_SECONDS)
        self._lock = threading.Lock()
        self._minute = 0.0
        self._entries = 0
        self._omitted = 0

    def check(self, credential: str, address: str) -> None:
        """Reject a credential or an address with too many failures.

        Raises:
            ThrottledError: There were too many failures. The error has the seconds to wait.
        """
        for by, attempts, key in (
            ("credential", self._credentials, shown(credential) if credential else ""),
            ("address", self._addresses, address),
        ):
            if key and (wait := attempts.wait(key)):
                self._counters.count("sign_ins_locked", by)
                what = "this token" if by == "credential" else "this address"
                raise ThrottledError(
                    f"too many failed sign-ins with {what}; try again in {ceil(wait / 60)} min",
                    retry_after=ceil(wait),
                )

    def failed(self, way: str, credential: str, address: str, reason: str) -> None:
        """Count and record a failure.

        Args:
            way: Method of the sign-in: `page`, `bearer`, `proxy` or `oidc`.
            credential: The token; empty: there is none.
            address: Address of the client.
            reason: Reason of the failure.
        """
        name = shown(credential)
        if credential:
            self._credentials.failed(name)
        self._addresses.failed(address)
        self._counters.count("sign_in_failures", way)
        is_locked = bool((credential and self._credentials.wait(name)) or self._addresses.wait(address))
        with self._lock:
            now = time.monotonic()
            if now - self._minute >= 60:
                self._minute, self._entries = now, 0
            self._entries += 1
            if self._entries > _ENTRIES_PER_MINUTE:
                self._omitted += 1
                return
            omitted, self._omitted = self._omitted, 0
        details = {"way": way, "address": address, "reason": reason[:300]}
        if omitted:
            details["omitted_before"] = str(omitted)
        with suppress(UnreachableError):  # the failure has been counted in any case
            self._access.record_failed_sign_in(name, locked=is_locked, details=details)


def shown(credential: str) -> str:
    """Return the part of a credential that is stored: the first characters of a token.

    Other text may be a password that was entered by mistake and is not stored.
    """
    return credential[:_SHOWN] if credential.startswith(PREFIX) else "unknown"
