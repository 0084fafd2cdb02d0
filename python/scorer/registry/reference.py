"""References to bundles: a digest, a prefix of a digest, or ``name@alias``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from scorer.errors import (
    AliasMovedError,
    AmbiguousReferenceError,
    InvalidReferenceError,
    UnknownReferenceError,
)

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_HEX = re.compile(r"[0-9a-f]{1,64}")
_SCHEME = "sha256:"
MIN_PREFIX = 4
"""Least number of digits of a prefix. A shorter one would soon be ambiguous."""


@dataclass(frozen=True, slots=True)
class AliasReference:
    """A reference by name and alias, ``name@alias``."""

    name: str
    alias: str

    def __str__(self) -> str:
        return f"{self.name}@{self.alias}"


@dataclass(frozen=True, slots=True)
class DigestReference:
    """A digest or the beginning of one, without its scheme."""

    prefix: str

    def __str__(self) -> str:
        return f"{_SCHEME}{self.prefix}"


def parse_reference(text: str) -> AliasReference | DigestReference:
    """Parse a digest, a prefix of a digest, or ``name@alias``.

    Raises:
        InvalidReferenceError: The text has none of these forms, or the prefix has fewer than 4 digits.
    """
    if "@" in text:
        return parse_alias(text)
    prefix = text.removeprefix(_SCHEME)
    if not _HEX.fullmatch(prefix):
        raise InvalidReferenceError(
            f'"{text}" names no bundle; write name@alias, sha256:<hex>, or at least {MIN_PREFIX} '
            "digits of the digest"
        )
    if len(prefix) < MIN_PREFIX:
        raise InvalidReferenceError(f'"{text}" is too short a prefix; give at least {MIN_PREFIX} hex digits')
    return DigestReference(prefix)


def parse_alias(text: str) -> AliasReference:
    """Parse a reference of the form ``name@alias``.

    Raises:
        InvalidReferenceError: The text has another form, or a part is not an allowed name.
    """
    name, separator, alias = text.partition("@")
    if not separator:
        raise InvalidReferenceError(
            f'"{text}" is not an alias; write name@alias, for example "fraud-checkout@live"'
        )
    return AliasReference(check_name(name, "bundle name"), check_name(alias, "alias"))


def check_name(name: str, what: str) -> str:
    """Return a name that is valid as a file name, a metric label and a segment of a URL.

    Args:
        name: The name to check.
        what: What the name stands for, as the beginning of the message.

    Raises:
        InvalidReferenceError: The name is not allowed.
    """
    if not _NAME.fullmatch(name):
        raise InvalidReferenceError(
            f'{what} "{name}" is not allowed; use lower-case letters, digits, ".", "_" and "-", '
            "starting with a letter or digit, at most 64 characters"
        )
    return name


def full_digest(text: str) -> str | None:
    """Return the 64 hex digits of a complete digest, with or without ``sha256:``; None for other texts."""
    hexadecimal = text.removeprefix(_SCHEME)
    return hexadecimal if len(hexadecimal) == 64 and _HEX.fullmatch(hexadecimal) else None


def pick_digest(reference: DigestReference, candidates: Iterable[str], where: str) -> str:
    """Return the only candidate that begins with the prefix.

    Args:
        reference: The digest or prefix.
        candidates: Digests as hex digits, without ``sha256:``.
        where: Location of the registry, for the message.

    Raises:
        UnknownReferenceError: No candidate begins with the prefix.
        AmbiguousReferenceError: Several candidates do.
    """
    found = sorted(candidate for candidate in candidates if candidate.startswith(reference.prefix))
    if not found:
        raise UnknownReferenceError(
            f"no bundle {reference} in {where}; `scorer registry list` shows what is there"
        )
    if len(found) > 1:
        shown = ", ".join(candidate[: len(reference.prefix) + 4] for candidate in found[:4])
        raise AmbiguousReferenceError(
            f"{reference} fits {len(found)} bundles ({shown}{', ...' if len(found) > 4 else ''}); "
            "give more digits"
        )
    return found[0]


def check_expected(reference: AliasReference, current: str | None, expected: str | None) -> None:
    """Check that an alias points to the bundle that a caller has seen.

    Args:
        reference: The alias.
        current: The digest that it points to; None: it does not exist.
        expected: The digest that the caller has seen; empty: the alias did not exist; None: any.

    Raises:
        AliasMovedError: The alias points to another bundle.
    """
    if expected is not None and (current or "") != expected:
        raise AliasMovedError(
            f'"{reference}" was moved to {(current or "nothing")[:19]} by another process; look at it and '
            "try again"
        )


def unknown_alias(reference: AliasReference, known: Iterable[str], where: str) -> UnknownReferenceError:
    """Return an error that suggests the most similar alias, or lists up to eight aliases."""
    names = sorted(known)
    close = difflib.get_close_matches(str(reference), names, n=1, cutoff=0.6)
    if close:
        hint = f'did you mean "{close[0]}"?'
    elif names:
        hint = f"there are: {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
    else:
        hint = f"there are no aliases yet; set it with `scorer registry alias {reference} DIGEST`"
    return UnknownReferenceError(f'no alias "{reference}" in {where}; {hint}')
