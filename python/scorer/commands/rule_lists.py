"""The versions of external lists with which a backtest of rules evaluates."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from scorer.commands.registry import open_at
from scorer.commands.rule_options import given_lists
from scorer.errors import BundleError, UnknownReferenceError

if TYPE_CHECKING:
    from scorer.bundle.rules import CompiledRules
    from scorer.log.rule_backtest import RecordedList, StoredLists
    from scorer.registry import RegistryBackend


@dataclass(frozen=True)
class EvaluatedLists:
    """Rules with the versions of their external lists, and where versions of single decisions come from."""

    rules: CompiledRules
    stored: StoredLists | None = None
    described: Mapping[str, str] = field(default_factory=dict)
    """What each list that the rules read is evaluated with, in words."""


@contextmanager
def evaluated_lists(
    how: str, rules: CompiledRules, registry: str | None, given: Sequence[str] | None
) -> Iterator[EvaluatedLists]:
    """Prepare the versions of external lists for a backtest. Downloaded ones are deleted at the end.

    Args:
        how: ``given``, ``newest`` or ``recorded``.
        rules: The rules.
        registry: The registry, as in the command line.
        given: The lists, as in the command line.

    Raises:
        BundleError: `how` is another word.
        UnknownReferenceError: A list has no version in the registry.
        RegistryUnavailableError: The registry cannot be read.
    """
    names = [one.name for one in rules.external_lists]
    files = {name: _described(one) for name, one in given_lists(given).items()}
    if how == "given":
        yield EvaluatedLists(rules, None, files)
        return
    if how not in ("newest", "recorded"):
        raise BundleError(f'lists "{how}": use given, newest or recorded')
    with tempfile.TemporaryDirectory(prefix="scorer-lists-") as made:
        place = Path(made)
        if how == "newest":
            from scorer.registry import lists

            store = open_at(registry)
            versions = {name: lists.published(store, name)[0] for name in names}
            directories = {name: _directory(store, one.digest, place) for name, one in versions.items()}
            words = {name: f"version {one.version}, the newest" for name, one in versions.items()}
            yield EvaluatedLists(rules.with_versions(directories), None, {**files, **words})
            return

        def stored(needed: Sequence[RecordedList]) -> Mapping[str, Path]:
            return _stored(open_at(registry), needed, place) if needed else {}

        words = dict.fromkeys(names, "the version that each decision recorded")
        yield EvaluatedLists(rules, stored, {**files, **words})


def _stored(store: RegistryBackend, needed: Sequence[RecordedList], place: Path) -> dict[str, Path]:
    """Return the directories of those versions that the registry has, by digest."""
    found = {}
    for digest in dict.fromkeys(one.digest for one in needed):
        try:
            found[digest] = _directory(store, digest, place)
        except UnknownReferenceError:
            continue
    return found


def _directory(store: RegistryBackend, digest: str, place: Path) -> Path:
    """Return the directory of a version in the registry, or of a copy if the registry is a server."""
    target = store.resolve(digest)
    if target.path is not None:
        return target.path
    copy = place / digest.removeprefix("sha256:")
    if not copy.exists():
        copy.mkdir()
        store.copy(target, copy)
    return copy


def _described(given: object) -> str:
    from scorer.bundle.rules import ListFile

    file = given.file if isinstance(given, ListFile) else None
    return f"file {file}" if file is not None else "no version (--lists newest or recorded reads one)"
