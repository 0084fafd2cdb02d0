"""What users, projects, labels and patterns may be called."""

from __future__ import annotations

import re
from collections.abc import Sequence

from scorer.release.errors import InvalidError
from scorer.release.model import PLATFORM, Quotas

_USER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}")
_PROJECT = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")


def check_user(name: str) -> str:
    """A user's name: what a proxy may say too. Names differ by case."""
    if _USER.fullmatch(name) is None:
        raise InvalidError(
            f'user "{name[:100]}": write letters, digits and . _ @ + - (at most 100, a letter or digit first)'
        )
    if name == PLATFORM.user:
        raise InvalidError(f'user "{name}" is the platform itself; take another name')
    return name


def check_project(name: str) -> str:
    """A project's name, as it stands in addresses."""
    if _PROJECT.fullmatch(name) is None:
        raise InvalidError(
            f'project "{name[:100]}": write lower-case letters, digits and - (at most 40, no - first)'
        )
    return name


def check_line(what: str, text: str, most: int = 200) -> str:
    """A title or label: one line that says something."""
    cleaned = text.strip()
    if not cleaned or len(cleaned) > most or not cleaned.isprintable():
        raise InvalidError(f"{what}: write one line of 1 to {most} characters")
    return cleaned


def check_checkpoints(names: Sequence[str]) -> list[str]:
    """Names of checkpoints, each once."""
    if isinstance(names, str) or len(names) > 1000:
        raise InvalidError("checkpoints: give a list of at most 1000 names")
    for name in names:
        check_line("checkpoint", name, 100)
    return sorted(set(names))


def check_quotas(quotas: Quotas) -> Quotas:
    """Reject quotas that are not whole numbers from 0 on."""
    for name in ("open_changes", "slot_minutes_per_week", "bundles"):
        value = getattr(quotas, name)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1_000_000_000:
            raise InvalidError(f"quota {name} is {value!r}; give a whole number from 0 to 1000000000")
    return quotas
