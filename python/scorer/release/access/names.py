"""Validation of the names of users, projects and checkpoints, of labels and of quotas."""

from __future__ import annotations

import re
from collections.abc import Sequence

from scorer.release.errors import InvalidError
from scorer.release.model import PLATFORM, Quotas

_USER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}")
_PROJECT = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")


def check_user(name: str) -> str:
    """Validate and return a user's name, which may come from a proxy. Names are case-sensitive."""
    if _USER.fullmatch(name) is None:
        raise InvalidError(
            f'user "{name[:100]}": write letters, digits and . _ @ + - (at most 100, a letter or digit first)'
        )
    if name == PLATFORM.user:
        raise InvalidError(f'user "{name}": this name is reserved for the platform; choose another name')
    return name


def check_project(name: str) -> str:
    """Validate and return a project's name, which is part of URLs."""
    if _PROJECT.fullmatch(name) is None:
        raise InvalidError(
            f'project "{name[:100]}": write lower-case letters, digits and - (at most 40, no - first)'
        )
    return name


def check_line(what: str, text: str, most: int = 200) -> str:
    """Validate and return a title or label of one line, without surrounding spaces.

    Args:
        what: Name of the field in the error.
        text: Its value.
        most: Limit on its length in characters.
    """
    cleaned = text.strip()
    if not cleaned or len(cleaned) > most or not cleaned.isprintable():
        raise InvalidError(f"{what}: write one line of 1 to {most} characters")
    return cleaned


def check_checkpoints(names: Sequence[str]) -> list[str]:
    """Validate and return names of checkpoints, sorted and without duplicates."""
    if isinstance(names, str) or len(names) > 1000:
        raise InvalidError("checkpoints: give a list of at most 1000 names")
    for name in names:
        check_line("checkpoint", name, 100)
    return sorted(set(names))


def check_quotas(quotas: Quotas) -> Quotas:
    """Validate and return quotas, which must be whole numbers from 0 to 1,000,000,000."""
    for name in ("open_changes", "slot_minutes_per_week", "bundles"):
        value = getattr(quotas, name)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1_000_000_000:
            raise InvalidError(f"quota {name} is {value!r}; give a whole number from 0 to 1000000000")
    return quotas
