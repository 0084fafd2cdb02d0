"""Notifications, the audit log, and whether the platform is well."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import quote

from scorer.release.model import AuditEntry, Severity
from scorer.sdk.base import Operations
from scorer.sdk.paging import Page
from scorer.sdk.results import Channel, Delivery, PlatformHealth, Verified


class NotificationCalls(Operations):
    """Its operations."""

    def channels(self, project: str) -> list[Channel]:
        """Where a project is told; secrets blanked."""
        return self._call(list[Channel], "GET", f"/projects/{quote(project, safe='')}/channels")

    def add_channel(
        self,
        project: str,
        url: str,
        *,
        severity: Severity | str = Severity.INFO,
        checkpoints: Sequence[str] = (),
        secret: str | None = None,
    ) -> Channel:
        """Owners: an apprise URL, or `https://...` of a webhook, signed with `secret`."""
        body = {"url": url, "severity": str(severity), "checkpoints": list(checkpoints), "secret": secret}
        return self._call(Channel, "POST", f"/projects/{quote(project, safe='')}/channels", json=body)

    def remove_channel(self, channel: int) -> None:
        """Owners."""
        self._send("DELETE", f"/channels/{channel}")

    def test_channel(self, channel: int) -> Delivery:
        """Sends one message now and says what came of it."""
        return self._call(Delivery, "POST", f"/channels/{channel}/test", timeout=90.0)

    def deliveries(self, project: str, *, limit: int = 100) -> list[Delivery]:
        """What was sent, newest first."""
        path = f"/projects/{quote(project, safe='')}/deliveries"
        return self._call(list[Delivery], "GET", path, query={"limit": limit})

    def audit(
        self,
        *,
        project: str | None = None,
        action: str | None = None,
        user: str | None = None,
        object: str | None = None,  # noqa: A002 - as the entry has it
    ) -> Iterator[AuditEntry]:
        """Newest first: the entries of the projects that one may see."""
        query = {"project": project, "action": action, "user": user, "object": object}
        cursor: str | None = None
        while True:
            page = self._call(Page[AuditEntry], "GET", "/audit", query={**query, "cursor": cursor})
            yield from page.items
            cursor = page.next
            if cursor is None:
                return

    def verify_audit(self, *, expect: tuple[int, str] | None = None) -> Verified:
        """Admins: checks every hash, and that it still holds what was written down elsewhere."""
        query = {"sequence": expect[0], "hash": expect[1]} if expect else None
        return self._call(Verified, "GET", "/audit/verify", query=query, timeout=300.0)

    def health(self) -> PlatformHealth:
        """Raises UnreachableError where its database does not answer."""
        return self._call(PlatformHealth, "GET", "/health")
