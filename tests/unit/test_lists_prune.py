"""Tests of removing old versions of a list: which stay, which are removed, and interrupted removals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from servers import scorer_in_process as scorer

from scorer.errors import RegistryError, RegistryUnavailableError, UnknownReferenceError
from scorer.registry import Registry, files, lists
from scorer.registry.listprune import ListPruning, plan_pruning, prune


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "registry")


@pytest.fixture
def digests(registry: Registry, tmp_path: Path) -> dict[int, str]:
    """Digests of five published versions of the list `cards`, by number."""
    file = tmp_path / "cards.txt"
    found = {}
    for number in range(1, 6):
        file.write_text(f"a\nb{number}\n")
        version, _ = lists.put(registry, "cards", file)
        found[version.version] = version.digest
    return found


def numbers(pruning: ListPruning) -> tuple[list[int], list[int]]:
    """Return the numbers of the versions that stay and of those that are removed."""
    kept = [one.version.version for one in pruning.kept]
    return kept, [one.version for one in pruning.removed]


def directory(registry: Registry, digest: str) -> Path:
    return registry.path / "bundles" / digest.removeprefix("sha256:")


def test_versions_in_use_of_aliases_and_the_newest_stay(registry: Registry, digests: dict[int, str]) -> None:
    registry.alias("cards", "audited", digests[2])
    found = plan_pruning(registry, "cards", 2, {digests[1]: ["one:7701"], "sha256:other": ["two:7701"]})
    assert numbers(found) == ([5, 4, 2, 1], [3])
    reasons = {one.version.version: one.reasons for one in found.kept}
    assert reasons == {
        5: ("newest",),
        4: ("newest",),
        2: ("alias cards@audited",),
        1: ("in use at one:7701",),
    }
    assert found.bytes == len("a\nb3\n")
    assert len(lists.published(registry, "cards")) == 5, "a plan changes nothing"
    prune(registry, found)
    assert [one.version for one in lists.published(registry, "cards")] == [5, 4, 2, 1]
    assert not directory(registry, digests[3]).exists()
    assert not list((registry.path / "staging").iterdir())
    with pytest.raises(UnknownReferenceError, match=r"no version 3 of list \"cards\"; it has 5, 4, 2, 1"):
        lists.find_version(registry, "cards", 3)
    with pytest.raises(UnknownReferenceError):
        registry.resolve(digests[3])
    assert digests[3] not in {one.digest for one in registry.list("cards")}
    # The history still has it, and nothing can go back to it.
    assert digests[3] in {one.digest for one in registry.history("cards@list")}
    assert registry.rollback("cards", "list").digest == digests[4]
    with pytest.raises(RegistryError, match="was removed; publish its content again"):
        registry.rollback("cards", "list")
    assert registry.resolve("cards@list").digest == digests[4]


def test_the_alias_counts_and_not_the_number(registry: Registry, digests: dict[int, str]) -> None:
    registry.alias("cards", "list", digests[2])
    assert numbers(plan_pruning(registry, "cards", 1, {})) == ([5, 2], [4, 3, 1])
    with pytest.raises(RegistryError, match="use 1 or more"):
        plan_pruning(registry, "cards", 0, {})
    with pytest.raises(UnknownReferenceError):
        plan_pruning(registry, "others", 1, {})


def test_only_unused_versions_of_lists_are_removed(registry: Registry, digests: dict[int, str]) -> None:
    with pytest.raises(RegistryError, match="is in use by cards@list"):
        registry.remove_list(digests[5])
    found = plan_pruning(registry, "cards", 1, {})
    registry.alias("cards", "audited", digests[2])
    with pytest.raises(RegistryError, match="is in use by cards@audited"):
        prune(registry, found)
    assert directory(registry, digests[2]).is_dir()
    with pytest.raises(UnknownReferenceError):
        registry.remove_list(digests[1])
    prune(registry, plan_pruning(registry, "cards", 1, {}))
    assert [one.version for one in lists.published(registry, "cards")] == [5, 2]


def test_a_bundle_is_not_removed(tmp_path: Path, built_bundles: dict[str, Path]) -> None:
    registry = Registry(tmp_path / "bundles")
    digest = registry.push(built_bundles["score-1"])
    with pytest.raises(RegistryError, match="only versions of lists are removed"):
        registry.remove_list(digest)
    assert registry.resolve(digest).digest == digest


def test_a_removed_version_can_be_pushed_again(
    registry: Registry, digests: dict[int, str], tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(directory(registry, digests[1]), copy)
    prune(registry, plan_pruning(registry, "cards", 1, {}))
    assert registry.push(copy) == digests[1]
    assert [one.version for one in lists.published(registry, "cards")] == [5, 1]
    assert next(one for one in registry.list("cards") if one.digest == digests[1]).bytes > 0


def test_an_interrupted_removal_is_completed_by_the_next(
    registry: Registry, digests: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(files, "remove", fails)
        with pytest.raises(RegistryUnavailableError, match="Input/output error"):
            prune(registry, plan_pruning(registry, "cards", 3, {}))
    assert directory(registry, digests[1]).is_dir(), "the version is not listed any longer"
    assert [one.version for one in lists.published(registry, "cards")] == [5, 4, 3, 2]
    prune(registry, plan_pruning(registry, "cards", 3, {}))
    assert not directory(registry, digests[1]).exists() and not directory(registry, digests[2]).exists()


def test_a_publication_that_has_not_ended_stays_for_an_hour(
    registry: Registry, digests: dict[int, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cards.txt").write_text("a\nunfinished\n")
    with monkeypatch.context() as killed:
        killed.setattr(registry, "alias", lambda *_, **__: None)
        lists.put(registry, "cards", tmp_path / "cards.txt")
    young = plan_pruning(registry, "cards", 5, {})
    assert numbers(young) == ([6, 5, 4, 3, 2, 1], [])
    assert young.kept[0].reasons == ("published within the last hour and not in use yet",)
    pushed = max(one.pushed_at_ms for one in registry.list("cards"))
    old = plan_pruning(registry, "cards", 5, {}, now_ms=lambda: pushed + 3_600_000)
    assert numbers(old) == ([5, 4, 3, 2, 1], [6])
    assert set(digests.values()) == {one.version.digest for one in old.kept}


def test_the_command_lists_first_and_needs_the_servers(registry: Registry, digests: dict[int, str]) -> None:
    def run(*arguments: str) -> Any:
        return scorer("lists", "prune", "cards", *arguments, "--registry", str(registry.path))

    refused = run("--keep", "2")
    assert refused.returncode == 2 and "--no-servers" in refused.stderr
    away = run("--keep", "2", "--server", "127.0.0.1:1", "--apply")
    assert away.returncode != 0 and "no control service responds at 127.0.0.1:1" in away.stderr
    dry = run("--keep", "2", "--no-servers")
    assert dry.returncode == 0, dry.stderr
    assert "3 versions, 15 B would be removed; --apply removes them" in dry.stdout
    assert len(lists.published(registry, "cards")) == 5
    done = json.loads(run("--keep", "2", "--no-servers", "--apply", "--json").stdout)
    assert [one["version"] for one in done["removed"]] == [3, 2, 1] and done["applied"]
    assert [one.version for one in lists.published(registry, "cards")] == [5, 4]
    assert "no version to remove" in run("--keep", "2", "--no-servers", "--apply").stdout
    assert set(digests) == {1, 2, 3, 4, 5}
