"""Which commit a line was measured at, and whether the measured code has changed since."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]

_SERVER: Final = ("rust", "protos", "python/scorer/serve.py", "python/scorer/control", "Cargo.lock")
_SEARCH: Final = ("loadtests/ratesearch.py", "loadtests/openloop.py")
_LEARNING: Final = ("python/scorer/learn", "examples/simulators", "examples/loop", "loadtests/learning")
# Paths whose content a group measures: the code under test and the harness that measures it.
SOURCES: Final[dict[str, tuple[str, ...]]] = {
    "engine": ("rust", "Cargo.lock", "loadtests/engine"),
    "wire": (*_SERVER, "loadtests/wire.py", *_SEARCH, "loadtests/peers"),
    "sla": (*_SERVER, "loadtests/sla.py", *_SEARCH, "loadtests/cases/sla"),
    "swaps": (*_SERVER, "loadtests/swaps.py"),
    "observe": (*_SERVER, "loadtests/observe.py", *_SEARCH),
    "cases": (*_SERVER, "loadtests/cases.py", "loadtests/cases"),
    "identity": (*_SERVER, "loadtests/identity.py", *_SEARCH),
    "admission": ("rust", "loadtests/admission.py"),
    "policy": ("rust", "loadtests/policy.py"),
    "gates": ("python/scorer/release", "loadtests/gates.py"),
    "pages": ("python/scorer/release/timeseries", "python/scorer/web", "loadtests/pages.py"),
    "learning": _LEARNING,
}
# Tests are not measured.
_NOT_MEASURED: Final = (":(exclude)*/tests/*", ":(exclude)*/tests.rs", ":(exclude)*.md")


class DirtyTreeError(Exception):
    """The working tree has changes, so its figures belong to no commit."""


def sources(group: str) -> tuple[str, ...]:
    """Return the paths that a group measures; a part of learning is measured with all of learning's."""
    return SOURCES[group.partition(".")[0]]


def has_history() -> bool:
    """Return whether this is a full clone; a source archive or a shallow clone cannot be checked."""
    return _git("rev-parse", "--is-shallow-repository") == "false"


def head() -> str:
    """Return the commit that is checked out; empty outside a repository."""
    return _git("rev-parse", "HEAD") or ""


def changed_files() -> list[str]:
    """Return the files of the working tree that differ from the commit, untracked ones included."""
    return [line[3:] for line in (_git("status", "--porcelain") or "").splitlines()]


def clean_head() -> str:
    """Return the commit that is checked out.

    Raises:
        DirtyTreeError: The tree has changes, or there is no commit.
    """
    if changed := changed_files():
        raise DirtyTreeError(
            f"the working tree has {len(changed)} changed files ({', '.join(changed[:3])}, ...); commit them,"
            " or pass --allow-dirty: the lines are then marked `dirty` and `make figures` refuses them"
        )
    if not (commit := head()):
        raise DirtyTreeError("there is no commit that the figures could belong to")
    return commit


@functools.cache
def commit_time(commit: str) -> datetime | None:
    """Return when a commit was made; None where it is not an ancestor of the current one."""
    if _git("merge-base", "--is-ancestor", commit, "HEAD") is None:
        return None
    found = _git("log", "-1", "--format=%aI", commit)
    return datetime.fromisoformat(found) if found else None


@functools.cache
def is_current(commit: str, group: str) -> bool:
    """Return whether what a group measures is in the working tree as it was at a commit."""
    return _git("diff", "--quiet", commit, "--", *sources(group), *_NOT_MEASURED) is not None


def problem(commit: str, at: str) -> str | None:
    """Return why a line cannot be traced to the code that it measured; None where it can.

    Args:
        commit: The commit that the line names.
        at: The time of the measurement, ISO 8601.
    """
    made = commit_time(commit) if commit else None
    if made is None:
        return f"commit {commit[:12] or '(none)'} is not in this repository's history"
    if datetime.fromisoformat(at) < made:
        return f"it was measured at {at}, before its commit {commit[:12]} was made"
    return None


def existing(paths: Iterable[str]) -> list[str]:
    """Return those of the paths that are there."""
    return [path for path in paths if (ROOT / path).exists()]


def _git(*arguments: str) -> str | None:
    """Return what git prints, without the end of the line; None where it fails."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.rstrip("\n") if done.returncode == 0 else None
