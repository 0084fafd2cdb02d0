"""Access control: projects, members, roles, tokens and sessions."""

from __future__ import annotations

from scorer.release.access.access import Access
from scorer.release.access.attempts import Attempts
from scorer.release.answers import ProjectMember, Session, Token, User

__all__ = ["Access", "Attempts", "ProjectMember", "Session", "Token", "User"]
