"""Standing permissions: what a learning loop may submit without a person."""

from __future__ import annotations

from urllib.parse import quote

from scorer.release.model import ChangeKind, StandingPermission
from scorer.sdk.base import Operations


class PermissionCalls(Operations):
    """Operations on standing permissions."""

    def permissions(self, project: str) -> list[StandingPermission]:
        """All standing permissions of a project, newest first, expired and revoked ones too."""
        path = f"/projects/{quote(project, safe='')}/permissions"
        return self._call(list[StandingPermission], "GET", path)

    def grant_permission(
        self,
        project: str,
        *,
        kind: ChangeKind | str,
        checkpoint: str,
        user: str,
        days: float,
        reason: str,
        per_hour: int = 12,
        max_shift: float = 1.0,
    ) -> StandingPermission:
        """Let a user submit changes of one kind at one checkpoint, for a time and within bounds.

        Args:
            project: Of which the caller is an owner.
            kind: `overlay`, `test` or `release`.
            checkpoint: Where.
            user: A modeler of the project, usually the loop's own user.
            days: Until it expires; above 0, at most 366.
            reason: Kept in the audit log.
            per_hour: Changes that may be submitted within an hour; 1 to 60.
            max_shift: Of an overlay: the largest offset that it may give an action, in log-odds.

        Returns:
            The permission with its id.

        Raises:
            NotAllowedError: The caller is no owner.
            InvalidError: A bound is out of range, or the user is no modeler of the project.
        """
        body = {
            "kind": str(kind),
            "checkpoint": checkpoint,
            "user": user,
            "days": days,
            "reason": reason,
            "per_hour": per_hour,
            "max_shift": max_shift,
        }
        path = f"/projects/{quote(project, safe='')}/permissions"
        return self._call(StandingPermission, "POST", path, json=body)

    def revoke_permission(self, permission: str, *, reason: str) -> StandingPermission:
        """End a standing permission now; what was submitted under it and not published is rejected."""
        path = f"/permissions/{quote(permission, safe='')}/revoke"
        return self._call(StandingPermission, "POST", path, json={"reason": reason})
