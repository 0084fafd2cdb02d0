"""Which commit a line was measured at, and whether the measured code has changed since."""

from __future__ import annotations

import ast
import functools
import subprocess
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]

_FOREST: Final = (
    "rust/core",
    "rust/xgboost",
    *(
        f"rust/bindings/src/{name}"
        for name in ("bundle", "bundle.rs", "enter.rs", "forest", "forest.rs", "load.rs")
    ),
)
_SERVER: Final = ("rust", "protos", "python/scorer/serve.py", "python/scorer/control", "Cargo.lock")
_SEARCH: Final = (
    "python/scorer/loadtest/ratesearch.py",
    "python/scorer/loadtest/loaded.py",
    "loadtests/openloop.py",
)
_LEARNING: Final = ("python/scorer/learn", "examples/simulators", "examples/loop", "loadtests/learning")
# Paths whose content affects the figures of a group: the measured code and the code that measures it.
SOURCES: Final[dict[str, tuple[str, ...]]] = {
    "engine": (*_FOREST, "Cargo.toml", "Cargo.lock", "loadtests/engine"),
    "wire": (*_SERVER, "loadtests/wire.py", *_SEARCH, "loadtests/peers"),
    "sla": (*_SERVER, "loadtests/sla.py", *_SEARCH, "loadtests/cases/sla"),
    "footprint": (
        *_SERVER,
        "loadtests/footprint.py",
        "loadtests/processor.py",
        "loadtests/served.py",
        "loadtests/openloop.py",
    ),
    "swaps": (*_SERVER, "loadtests/swaps.py"),
    "observe": (*_SERVER, "loadtests/observe.py", *_SEARCH),
    "tracing": (*_SERVER, "loadtests/tracing.py", *_SEARCH),
    "cases": (*_SERVER, "loadtests/cases.py", "loadtests/cases"),
    "identity": (*_SERVER, "loadtests/identity.py", *_SEARCH),
    "admission": ("rust", "loadtests/admission.py"),
    "policy": ("rust", "loadtests/policy.py"),
    "gates": ("python/scorer/release", "loadtests/gates.py"),
    "pages": ("python/scorer/release/timeseries", "python/scorer/web", "loadtests/pages.py"),
    "learning": _LEARNING,
}
# Lines of comments and empty lines are not measured either: the same program is compiled from both versions.
# Lines of Rust that only declare a module or a name change nothing by themselves; what they refer to is a
# path of its own.
_COMMENTS: Final = (
    "--ignore-blank-lines",
    "-I^[[:blank:]]*(//|# )",
    r"-I^[[:blank:]]*(pub(\(crate\))? )?(mod|use) .*;$",
)
# Tests are not measured, nor is what serves only batch scoring (`make bench-batch`), fuzzing, or the
# registration of functions with Python.
_NOT_MEASURED: Final = (
    ":(exclude)*/tests/*",
    ":(exclude)*/tests.rs",
    ":(exclude)*.md",
    ":(exclude)rust/bindings/src/bundle/rows.rs",
    ":(exclude)rust/bindings/src/lib.rs",
    ":(exclude)rust/fuzz/*",
)


class DirtyTreeError(Exception):
    """The working tree has changes, so its figures belong to no commit."""


def sources(group: str) -> tuple[str, ...]:
    """Return the paths of a group. Every part of learning has all paths of learning."""
    return SOURCES[group.partition(".")[0]]


def has_history() -> bool:
    """Return whether this is a full clone. Source archives and shallow clones cannot be checked."""
    return _git("rev-parse", "--is-shallow-repository") == "false"


def head() -> str:
    """Return the commit that is checked out, or an empty string outside a repository."""
    return _git("rev-parse", "HEAD") or ""


def changed_files() -> list[str]:
    """Return the files of the working tree that differ from the commit, including untracked files."""
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
    """Return when a commit was made, or None if it is not an ancestor of the current commit."""
    if _git("merge-base", "--is-ancestor", commit, "HEAD") is None:
        return None
    found = _git("log", "-1", "--format=%aI", commit)
    return datetime.fromisoformat(found) if found else None


@functools.cache
def is_current(commit: str, group: str) -> bool:
    """Return whether what a group measures is in the working tree as it was at a commit, comments aside."""
    measured = ("--", *sources(group), *_NOT_MEASURED)
    # `--quiet` compares whole files in some versions of git, so the changes themselves are asked for.
    if _git("diff", "--unified=0", *_COMMENTS, commit, *measured, ":(exclude)*.py") != "":
        return False
    changed = _git("diff", "--name-only", commit, *measured)
    if changed is None:
        return False
    return all(
        _program(_git("show", f"{commit}:{path}")) == _program(_text(path))
        for path in changed.splitlines()
        if path.endswith(".py")
    )


def _text(path: str) -> str | None:
    """Return the text of a file of the working tree; None if there is none."""
    file = ROOT / path
    return file.read_text() if file.is_file() else None


def _program(source: str | None) -> str | None:
    """Return a Python program without its comments and docstrings; None if there is no file."""
    if source is None:
        return None
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [one for one in body if not _is_text(one)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_text(node: ast.stmt) -> bool:
    """Return whether a statement is a string alone: a docstring, or the text below a field."""
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def problem(commit: str, at: str) -> str | None:
    """Return why a line cannot be traced to the code that it measured, or None if it can.

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
    """Return the paths that exist."""
    return [path for path in paths if (ROOT / path).exists()]


def _git(*arguments: str) -> str | None:
    """Return the output of git without the final newline, or None if git fails."""
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, errors="replace", check=False
    )
    return done.stdout.rstrip("\n") if done.returncode == 0 else None
