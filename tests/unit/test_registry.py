"""Tests of the embedded registry: stored bundles, aliases, and the message of every error."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fakes import fake_bundle, fake_verify, similar_contents
from typer.testing import CliRunner

from scorer.cli import app
from scorer.errors import (
    AmbiguousReferenceError,
    BundleError,
    InvalidReferenceError,
    RegistryError,
    RegistryUnavailableError,
    ScorerError,
    UnknownReferenceError,
)
from scorer.registry import Registry
from scorer.registry.database import Database


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    ticks = iter(range(1_000, 100_000))
    return Registry(tmp_path / "registry", verify=fake_verify, clock_ms=lambda: next(ticks))


@pytest.fixture
def push(tmp_path: Path, registry: Registry) -> Callable[..., str]:
    def push(content: str = "1", **kwargs: Any) -> str:
        source = tmp_path / f"built-{content}-{len(list(tmp_path.iterdir()))}"
        fake_bundle(source, content=content, **kwargs)
        return registry.push(source, by="ann")

    return push


Push = Callable[..., str]


def test_push_stores_the_bundle_under_its_digest(registry: Registry, tmp_path: Path) -> None:
    digest = fake_bundle(tmp_path / "built")
    (tmp_path / "built" / "notes.txt").write_text("not listed")
    assert registry.push(tmp_path / "built", by="ann") == digest
    stored = registry.path / "bundles" / digest.removeprefix("sha256:")
    assert sorted(p.name for p in stored.iterdir()) == ["forest.bin", "manifest.json"]
    assert (stored / "forest.bin").read_bytes() == (tmp_path / "built" / "forest.bin").read_bytes()
    assert (stored / "forest.bin").stat().st_mode & 0o777 == 0o444
    (record,) = registry.list()
    assert (record.digest, record.name, record.kind, record.pushed_by) == (
        digest,
        "fraud-checkout",
        "score",
        "ann",
    )
    assert record.bytes == sum(p.stat().st_size for p in stored.iterdir())
    assert list((registry.path / "staging").iterdir()) == []


def test_a_repeated_push_changes_nothing(registry: Registry, push: Push) -> None:
    digest = push("1")
    stored = registry.resolve(digest).path
    inode, record = stored.stat().st_ino, registry.list()
    assert push("1") == digest
    assert stored.stat().st_ino == inode
    assert registry.list() == record


def test_a_repeated_push_repairs_a_damaged_copy(registry: Registry, push: Push) -> None:
    digest = push("1")
    file = registry.resolve(digest).path / "forest.bin"
    file.chmod(0o644)
    file.write_bytes(b"garbage!")
    before = registry.fingerprint(digest)
    assert push("1") == digest
    assert fake_verify(registry.resolve(digest).path) == digest
    assert registry.fingerprint(digest) != before


def _symlink(bundle: Path) -> None:
    (bundle / "forest.bin").unlink()
    (bundle / "forest.bin").symlink_to("/etc/hostname")


def _fifo(bundle: Path) -> None:
    (bundle / "forest.bin").unlink()
    os.mkfifo(bundle / "forest.bin")


def _directory(bundle: Path) -> None:
    (bundle / "forest.bin").unlink()
    (bundle / "forest.bin").mkdir()


def _rewrite(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def damage(bundle: Path) -> None:
        manifest = json.loads((bundle / "manifest.json").read_text())
        change(manifest)
        (bundle / "manifest.json").write_text(json.dumps(manifest))

    return damage


BAD_BUNDLES: dict[str, tuple[Callable[[Path], Any], type[ScorerError], str]] = {
    "no directory": (shutil.rmtree, BundleError, "holds no manifest.json"),
    "no manifest": (lambda b: (b / "manifest.json").unlink(), BundleError, "holds no manifest.json"),
    "empty manifest": (lambda b: (b / "manifest.json").write_text(""), BundleError, "is not valid JSON"),
    "manifest not JSON": (
        lambda b: (b / "manifest.json").write_bytes(b"\xff{"),
        BundleError,
        "is not valid JSON",
    ),
    "deep manifest": (
        lambda b: (b / "manifest.json").write_text("[" * 100_000),
        BundleError,
        "is not valid JSON",
    ),
    "manifest a list": (lambda b: (b / "manifest.json").write_text("[]"), BundleError, "lists no files"),
    "no files": (_rewrite(lambda m: m.pop("files")), BundleError, "lists no files"),
    "path leads out": (_rewrite(lambda m: m["files"].update({"../x": {}})), BundleError, "only plain names"),
    "absolute path": (
        _rewrite(lambda m: m["files"].update({"/etc/passwd": {}})),
        BundleError,
        "only plain names",
    ),
    "manifest lists itself": (
        _rewrite(lambda m: m["files"].update({"manifest.json": {}})),
        BundleError,
        "plain names",
    ),
    "name with capitals": (
        _rewrite(lambda m: m.update(name="Fraud")),
        InvalidReferenceError,
        'bundle name "Fraud"',
    ),
    "no name": (_rewrite(lambda m: m.pop("name")), InvalidReferenceError, 'bundle name ""'),
    "file missing": (
        lambda b: (b / "forest.bin").unlink(),
        BundleError,
        "is listed in the manifest but missing",
    ),
    "file altered": (lambda b: (b / "forest.bin").write_bytes(b"x"), BundleError, "was altered"),
    "symbolic link": (_symlink, BundleError, "is a symbolic link"),
    "fifo": (_fifo, BundleError, "is not a regular file"),
    "directory for a file": (_directory, BundleError, "is not a regular file"),
}


@pytest.mark.parametrize("name", BAD_BUNDLES)
def test_bad_bundles_are_refused_and_leave_no_files(
    registry: Registry, push: Push, tmp_path: Path, name: str
) -> None:
    kept = push("good")
    damage, error, message = BAD_BUNDLES[name]
    fake_bundle(tmp_path / "bad", content="bad")
    damage(tmp_path / "bad")
    with pytest.raises(error, match=message):
        registry.push(tmp_path / "bad")
    assert [record.digest for record in registry.list()] == [kept]
    assert len(list((registry.path / "bundles").iterdir())) == 1
    assert list((registry.path / "staging").iterdir()) == []


def test_aliases_have_a_history(registry: Registry, push: Push) -> None:
    a, b = push("a"), push("b")
    change = registry.alias("fraud-checkout", "live", a, by="ann", reason="first")
    assert change is not None
    assert (change.previous, change.digest, change.action) == (None, a, "alias")
    assert registry.alias("fraud-checkout", "live", a) is None, "an unchanged alias adds no entry"
    registry.alias("fraud-checkout", "live", b[7:15], by="bob", reason="better")
    registry.alias("fraud-checkout", "test", "fraud-checkout@live")
    assert registry.aliases() == {"fraud-checkout@live": b, "fraud-checkout@test": b}
    assert registry.resolve("fraud-checkout@live").digest == b
    rows = [(c.alias, c.previous, c.digest, c.by, c.reason) for c in registry.history("fraud-checkout@live")]
    assert rows == [
        ("fraud-checkout@live", None, a, "ann", "first"),
        ("fraud-checkout@live", a, b, "bob", "better"),
    ]
    details = registry.show(a)
    assert details.manifest["lineage"]["run_id"] == "run-a"
    assert [c.digest for c in details.history] == [a, b]
    assert details.record.aliases == ()
    assert registry.show("fraud-checkout@test").record.aliases == (
        "fraud-checkout@live",
        "fraud-checkout@test",
    )


def test_rollback_undoes_step_by_step(registry: Registry, push: Push) -> None:
    a, b, c, d = push("a"), push("b"), push("c"), push("d")
    for digest in (a, b, c):
        registry.alias("fraud-checkout", "live", digest)
    expected = []
    for target in (b, a):
        change = registry.rollback("fraud-checkout", "live", by="ann", reason="alarm")
        assert (change.digest, change.action, change.reason) == (target, "rollback", "alarm")
        expected.append(registry.resolve("fraud-checkout@live").digest)
    assert expected == [b, a]
    with pytest.raises(RegistryError, match="no earlier value"):
        registry.rollback("fraud-checkout", "live")
    registry.alias("fraud-checkout", "live", d)
    assert registry.rollback("fraud-checkout", "live").digest == a, "the result is not c, which was undone"
    assert len(registry.history("fraud-checkout@live")) == 7


def test_the_history_cannot_be_rewritten(registry: Registry, push: Push) -> None:
    registry.alias("fraud-checkout", "live", push("a"))
    connection = sqlite3.connect(registry.path / "registry.sqlite")
    for statement in ("DELETE FROM alias_history", "UPDATE alias_history SET by = 'nobody'"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            connection.execute(statement)
    connection.close()


BAD_REFERENCES = [
    ("", InvalidReferenceError, "names no bundle"),
    ("hello", InvalidReferenceError, "names no bundle"),
    ("sha256:", InvalidReferenceError, "names no bundle"),
    ("sha256:XYZ0", InvalidReferenceError, "names no bundle"),
    ("sha1:abcd", InvalidReferenceError, "names no bundle"),
    ("abc", InvalidReferenceError, "too short a prefix"),
    ("0" * 65, InvalidReferenceError, "names no bundle"),
    ("0000", UnknownReferenceError, "no bundle sha256:0000 in"),
    ("fraud-checkout@lvie", UnknownReferenceError, 'did you mean "fraud-checkout@live"?'),
    ("zzz@qqq", UnknownReferenceError, "there are: fraud-checkout@live"),
    ("@live", InvalidReferenceError, 'bundle name ""'),
    ("fraud-checkout@", InvalidReferenceError, 'alias ""'),
    ("fraud-checkout@a b", InvalidReferenceError, 'alias "a b"'),
    ("fraud-checkout@../x", InvalidReferenceError, "is not allowed"),
    ("Fraud@live", InvalidReferenceError, 'bundle name "Fraud"'),
    ("a@b@c", InvalidReferenceError, 'alias "b@c"'),
    ("fraud-checkout@" + "x" * 65, InvalidReferenceError, "at most 64"),
]


@pytest.mark.parametrize(("reference", "error", "message"), BAD_REFERENCES)
def test_bad_references_are_refused(
    registry: Registry, push: Push, reference: str, error: type[ScorerError], message: str
) -> None:
    registry.alias("fraud-checkout", "live", push("a"))
    with pytest.raises(error) as caught:
        registry.resolve(reference)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_error_of_an_ambiguous_prefix_lists_the_candidates(registry: Registry, push: Push) -> None:
    first, second = (push(content) for content in similar_contents(4))
    with pytest.raises(AmbiguousReferenceError, match="fits 2 bundles") as caught:
        registry.resolve(first[7:11])
    for digest in (first, second):
        assert digest[7:15] in str(caught.value)
        assert registry.resolve(digest[7:40]).digest == digest


def test_a_list_by_prefix_has_those_that_begin_with_it(registry: Registry, push: Push) -> None:
    first, second = (push(content) for content in similar_contents(4))
    other = push("other")
    for prefix in (first[7:11], first[:11]):
        assert {one.digest for one in registry.list(prefix=prefix)} == {first, second}
    assert [one.digest for one in registry.list(prefix=first)] == [first]
    assert [one.digest for one in registry.list("fraud-checkout", prefix=other)] == [other]
    assert registry.list("action-authorise", prefix=other) == []
    assert {one.digest for one in registry.list()} == {first, second, other}


def test_an_alias_names_only_bundles_of_its_name(registry: Registry, push: Push) -> None:
    other = push("x", name="action-authorise", kind="action")
    with pytest.raises(RegistryError, match=r'is called "action-authorise".* use "action-authorise@live"'):
        registry.alias("fraud-checkout", "live", other)
    with pytest.raises(UnknownReferenceError, match="there are no aliases yet"):
        registry.rollback("fraud-checkout", "live")


def test_concurrent_pushes_succeed(registry: Registry, tmp_path: Path) -> None:
    sources = [tmp_path / f"b{number}" for number in range(12)]
    digests = {fake_bundle(source, content=str(number % 4)) for number, source in enumerate(sources)}
    separate = [Registry(registry.path, verify=fake_verify) for _ in sources]
    with ThreadPoolExecutor(12) as pool:
        pushed = set(pool.map(lambda pair: pair[0].push(pair[1]), zip(separate, sources, strict=True)))
    assert pushed == digests == {record.digest for record in registry.list()}
    assert len(list((registry.path / "bundles").iterdir())) == 4
    assert list((registry.path / "staging").iterdir()) == []


def test_concurrent_moves_of_aliases_keep_one_history(registry: Registry, push: Push) -> None:
    digests = [push(str(number)) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda d: Registry(registry.path).alias("fraud-checkout", "live", d), digests))
    history = registry.history("fraud-checkout@live")
    assert {change.digest for change in history} == set(digests)
    assert [change.previous for change in history[1:]] == [change.digest for change in history[:-1]]


def test_the_version_changes_with_changes_of_other_processes(registry: Registry, push: Push) -> None:
    a, b = push("a"), push("b")
    watching = Registry(registry.path)
    seen = watching.version()
    assert watching.version() == seen
    registry.alias("fraud-checkout", "live", a)
    assert watching.version() != seen
    seen = watching.version()
    registry.list()
    assert watching.version() == seen, "reading does not change the version"
    # A restored backup replaces the file, which changes the version although no process wrote to the file.
    backup = registry.path / "backup"
    registry.alias("fraud-checkout", "live", b)
    seen = watching.version()
    with sqlite3.connect(registry.path / "registry.sqlite") as source, sqlite3.connect(backup) as target:
        source.backup(target)
    source.close()
    target.close()
    backup.rename(registry.path / "registry.sqlite")
    assert watching.version() != seen
    shutil.rmtree(registry.path)
    with pytest.raises(RegistryUnavailableError, match="does not exist"):
        watching.version()
    watching.close()


def test_missing_and_damaged_files_are_reported(registry: Registry, push: Push) -> None:
    with pytest.raises(RegistryUnavailableError, match="does not exist"):
        registry.list()
    a = push("a")
    registry.alias("fraud-checkout", "live", a)
    file = registry.path / "registry.sqlite"
    for leftover in ("-wal", "-shm"):
        file.with_name(file.name + leftover).unlink(missing_ok=True)
    saved = file.read_bytes()
    damaged = {
        "text": b"this is no database at all, whatever its name says" * 100,
        "torn": saved[:100] + b"\xff" * (len(saved) - 100),
        "empty": b"",
    }
    for content in damaged.values():
        file.write_bytes(content)
        for action in (registry.list, lambda: registry.resolve("fraud-checkout@live"), registry.version):
            with pytest.raises(RegistryUnavailableError):
                action()
        registry.close()
    file.unlink()
    with pytest.raises(RegistryUnavailableError, match="scorer registry reindex"):
        registry.list()
    with pytest.raises(RegistryUnavailableError, match="scorer registry reindex"):
        registry.alias("fraud-checkout", "live", a)
    assert registry.reindex() == [a]
    assert registry.reindex() == []
    assert [record.digest for record in registry.list()] == [a]
    assert registry.aliases() == {}
    shutil.rmtree(registry.resolve(a).path)
    with pytest.raises(RegistryUnavailableError, match="its directory is gone; push it again"):
        registry.resolve(a)


def test_a_newer_schema_is_refused(registry: Registry, push: Push) -> None:
    push("a")
    connection = sqlite3.connect(registry.path / "registry.sqlite")
    connection.execute("PRAGMA user_version = 9")
    connection.close()
    for action in (registry.list, lambda: push("b")):
        with pytest.raises(RegistryUnavailableError, match="schema version 9, this scorer reads 1"):
            action()


def test_a_locked_file_is_reported(registry: Registry, push: Push, monkeypatch: pytest.MonkeyPatch) -> None:
    push("a")
    monkeypatch.setattr("scorer.registry.database._BUSY_SECONDS", 0.01)
    holder = sqlite3.connect(registry.path / "registry.sqlite", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    assert len(registry.list()) == 1, "readers must not wait for a writer"
    with pytest.raises(RegistryUnavailableError, match="was locked by another process"):
        push("b")
    holder.close()


@contextmanager
def without_root() -> Iterator[None]:
    """Run as the user `nobody` within the context, because root can write everywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_read_only_directory_is_reported(registry: Registry, push: Push, tmp_path: Path) -> None:
    a, b = push("a"), push("b")
    registry.alias("fraud-checkout", "live", a)
    source = tmp_path / "new"
    fake_bundle(source, content="new")
    for path in (registry.path, *registry.path.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    for parent in (tmp_path, *tmp_path.parents):
        if os.geteuid() == 0 and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)
    with without_root():
        assert registry.resolve("fraud-checkout@live").digest == a
        assert len(registry.list()) == 2
        registry.version()
        for action in (
            lambda: registry.alias("fraud-checkout", "live", b),
            lambda: registry.push(source),
            lambda: registry.rollback("fraud-checkout", "live"),
        ):
            with pytest.raises(
                RegistryUnavailableError, match="is read-only; change it where it may be written"
            ):
                action()
    registry.close()


def test_the_next_push_repairs_a_kill_between_copy_and_entry(
    registry: Registry, push: Push, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Database, "writing", killed)
        with pytest.raises(Killed):
            push("a")
    digest = push("a")
    assert [record.digest for record in registry.list()] == [digest]


def test_the_registry_commands_work(
    registry: Registry, push: Push, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scorer.registry.pushing.verified", fake_verify)
    source = tmp_path / "new"
    digest = fake_bundle(source, content="new")
    runner = CliRunner()

    def run(*arguments: str) -> str:
        result = runner.invoke(app, ["registry", *arguments, "--registry", str(registry.path)])
        assert result.exit_code == 0, (result.output, result.exception)
        return result.output

    assert digest in run("push", str(source))
    assert json.loads(run("push", str(source), "--alias", "live", "--json")) == {
        "digest": digest,
        "name": "fraud-checkout",
        "alias": "fraud-checkout@live",
    }
    other = push("other")
    assert f"-> {other[7:19]} (was {digest[7:19]})" in run(
        "alias", "fraud-checkout@live", other, "-m", "because"
    )
    assert "already points to" in run("alias", "fraud-checkout@live", other)
    listed = run("list")
    assert digest[7:19] in listed
    assert "fraud-checkout@live" in next(line for line in listed.splitlines() if other[7:19] in line)
    assert {entry["digest"] for entry in json.loads(run("list", "--json"))} == {digest, other}
    shown = run("show", "fraud-checkout@live")
    assert "run-other" in shown
    assert "because" in shown
    assert json.loads(run("show", digest, "--json"))["manifest"]["lineage"]["run_id"] == "run-new"
    assert json.loads(run("rollback", "fraud-checkout@live", "--json"))["digest"] == digest
    assert [c["action"] for c in json.loads(run("history", "--json"))] == ["alias", "alias", "rollback"]
    assert "nothing to add" in run("reindex")
