"""Tests of bundles by project: who may upload and see them, and what is rejected."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
import types
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from scorer.registry import Registry
from scorer.release.access import Access
from scorer.release.archive import pack
from scorer.release.audit import Audit
from scorer.release.bundles import Bundles
from scorer.release.errors import (
    InvalidError,
    NotAllowedError,
    NotFoundError,
    QuotaError,
    UnreachableError,
)
from scorer.release.model import PLATFORM, Actor, Quotas, Role
from scorer.release.store import Store

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
MO = Actor("mo", roles={"fraud": Role.MODELER})
VERA = Actor("vera", roles={"fraud": Role.VIEWER})
OUT = Actor("out", roles={"other": Role.OWNER})


class Shop:
    def __init__(self, directory: Path, built: dict[str, Path], *trusted_keys: Path) -> None:
        self.directory, self.built = directory, built
        self.store = Store(f"sqlite:///{directory}/state.sqlite")
        self.audit = Audit(self.store)
        self.access = Access(self.store, self.audit)
        for project in ("fraud", "other"):
            self.access.create_project(PLATFORM, project, project)
        self.registry = Registry(directory / "registry")
        self.bundles = Bundles(
            self.store,
            self.access,
            self.audit,
            self.registry,
            data_dir=directory / "data",
            upload_bytes=4 << 20,
            now=lambda: NOW,
            trusted_keys=trusted_keys,
        )

    def packed(self, name: str) -> io.BytesIO:
        buffer = io.BytesIO()
        pack(self.built[name], buffer)
        buffer.seek(0)
        return buffer

    def actions(self) -> list[tuple[str, str]]:
        return [
            (entry.action, entry.object)
            for entry in self.audit.entries(PLATFORM)
            if entry.action.startswith("bundle.")
        ]


@pytest.fixture
def shop(tmp_path: Path, built_bundles: dict[str, Path]) -> Iterator[Shop]:
    shop = Shop(tmp_path, built_bundles)
    yield shop
    shop.store.close()


def altered(directory: Path, name: str, content: bytes | None) -> io.BytesIO:
    """Return the bundle with one file that is changed, added or (None) omitted."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        files = {path.name: path.read_bytes() for path in directory.iterdir()}
        files[name] = content  # type: ignore[assignment]
        for each, data in files.items():
            if data is not None:
                info = tarfile.TarInfo(each)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    buffer.seek(0)
    return buffer


def test_an_upload_is_verified_stored_and_audited(shop: Shop) -> None:
    info = shop.bundles.upload(MO, "fraud", shop.packed("score-1"))
    manifest = json.loads((shop.built["score-1"] / "manifest.json").read_text())
    assert (info.digest, info.name, info.kind) == (manifest["digest"], "fraud-checkout", "score")
    assert (info.project, info.uploaded_by, info.uploaded_at) == ("fraud", "mo", NOW)
    assert shop.registry.resolve(info.digest).digest == info.digest
    assert shop.actions() == [("bundle.upload", info.digest)]
    assert list((shop.directory / "data" / "uploads").iterdir()) == []


def test_a_change_accepts_only_bundles_that_a_trusted_key_has_signed(
    tmp_path: Path, built_bundles: dict[str, Path]
) -> None:
    from scorer.bundle.signing import new_key, sign
    from scorer.release.changes import checks

    for name in ("a", "b"):
        new_key(tmp_path / f"{name}.key", tmp_path / f"{name}.pem")
    # An attacker with write access to the registry's disk can replace a signature, but cannot create one.
    signed = tmp_path / "signed"
    shutil.copytree(built_bundles["score-1"], signed)
    plain = Shop(tmp_path / "plain", {"score-1": signed})
    strict = Shop(tmp_path / "strict", {"score-1": signed}, tmp_path / "a.pem")

    def verified(shop: Shop, digest: str) -> checks.Checked:
        about = types.SimpleNamespace(bundles=shop.bundles, change=types.SimpleNamespace(bundle=digest))
        return checks.verify(about)  # type: ignore[arg-type]

    digest = strict.bundles.upload(MO, "fraud", strict.packed("score-1")).digest
    with pytest.raises(InvalidError, match="no signature") as refused:
        strict.bundles.signature(digest)
    assert str(tmp_path) not in str(refused.value)
    assert not verified(strict, digest).passed
    sign(signed, [tmp_path / "b.key"], release=3)
    strict.bundles.upload(MO, "fraud", strict.packed("score-1"))
    with pytest.raises(InvalidError, match="trusted"):
        strict.bundles.signature(digest)
    sign(signed, [tmp_path / "a.key"], release=3)
    strict.bundles.upload(MO, "fraud", strict.packed("score-1"))
    signature = strict.bundles.signature(digest)
    assert signature is not None and signature.release == 3
    checked = verified(strict, digest)
    assert checked.passed and f"release 3 signed by key {signature.key}" in checked.words
    plain.bundles.upload(MO, "fraud", plain.packed("score-1"))
    assert plain.bundles.signature(digest) is None
    checked = verified(plain, digest)
    assert checked.passed and "no trusted_keys" in checked.words
    for shop in (plain, strict):
        shop.store.close()


def test_a_signature_is_copied_from_the_upload_to_the_registry(shop: Shop, tmp_path: Path) -> None:
    from scorer.bundle.signing import new_key, sign, verify_signature

    new_key(tmp_path / "a.key", tmp_path / "a.pem")
    built = shop.built["score-1"]
    digest = shop.bundles.upload(MO, "fraud", shop.packed("score-1")).digest
    for release in (1, 2):
        signed = tmp_path / f"signed-{release}"
        shutil.copytree(built, signed)
        sign(signed, [tmp_path / "a.key"], release=release)
        buffer = io.BytesIO()
        pack(signed, buffer)
        buffer.seek(0)
        assert shop.bundles.upload(MO, "fraud", buffer).digest == digest
        signature = verify_signature(shop.bundles.local(digest), [tmp_path / "a.pem"])
        assert signature is not None
        assert signature.release == release


def test_a_repeated_upload_changes_nothing(shop: Shop) -> None:
    first = shop.bundles.upload(MO, "fraud", shop.packed("score-1"))
    assert shop.bundles.upload(MO, "fraud", shop.packed("score-1")) == first
    assert len(shop.actions()) == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("reference.json", b"{}", "reference.json"),
        ("schema.json", None, "schema.json"),
        ("manifest.json", None, "manifest.json"),
        ("manifest.json", b"[]", "manifest.json"),
        ("notes.txt", b"hello", 'contains "notes.txt", which is not in its manifest'),
    ],
)
def test_invalid_bundles_are_refused(shop: Shop, name: str, content: bytes | None, message: str) -> None:
    with pytest.raises(InvalidError) as caught:
        shop.bundles.upload(MO, "fraud", altered(shop.built["score-1"], name, content))
    assert message in str(caught.value)
    assert str(shop.directory) not in str(caught.value), "the error shows the path on the server"
    assert shop.bundles.list(MO) == []
    assert not (shop.directory / "registry" / "bundles").exists()


def test_one_flipped_byte_is_detected(shop: Shop) -> None:
    forest = next(path for path in shop.built["score-1"].iterdir() if path.suffix != ".json")
    content = bytearray(forest.read_bytes())
    content[len(content) // 2] ^= 1
    with pytest.raises(InvalidError):
        shop.bundles.upload(MO, "fraud", altered(shop.built["score-1"], forest.name, bytes(content)))


def test_uploads_require_the_role_modeler(shop: Shop) -> None:
    with pytest.raises(NotAllowedError):
        shop.bundles.upload(VERA, "fraud", shop.packed("score-1"))
    with pytest.raises(NotFoundError):
        shop.bundles.upload(OUT, "fraud", shop.packed("score-1"))
    with pytest.raises(NotAllowedError):
        shop.bundles.adopt(VERA, "fraud", "fraud-checkout@live")


def test_a_bundle_of_another_project_is_not_revealed(shop: Shop) -> None:
    digest = shop.bundles.upload(MO, "fraud", shop.packed("score-1")).digest
    shop.registry.alias("fraud-checkout", "live", digest)
    assert shop.bundles.list(OUT) == []
    with pytest.raises(NotFoundError):
        shop.bundles.list(OUT, project="fraud")
    for reference in (digest, digest[7:15], "fraud-checkout@live"):
        with pytest.raises(NotFoundError) as seen:
            shop.bundles.detail(OUT, reference)
        with pytest.raises(NotFoundError) as adopted:
            shop.bundles.adopt(OUT, "other", reference)
        assert str(seen.value) == str(adopted.value)
    assert shop.bundles.detail(VERA, digest[7:15]).info.digest == digest


def test_a_bundle_without_a_project_is_visible_to_all_and_can_be_adopted(shop: Shop) -> None:
    digest = shop.registry.push(shop.built["score-2"])
    seen = shop.bundles.detail(OUT, digest).info
    assert (seen.digest, seen.project) == (digest, "")
    assert shop.bundles.adopt(OUT, "other", digest).project == "other"
    with pytest.raises(NotFoundError):
        shop.bundles.detail(VERA, digest)


def test_two_projects_may_have_the_same_bundle(shop: Shop) -> None:
    digest = shop.bundles.upload(MO, "fraud", shop.packed("score-1")).digest
    assert shop.bundles.upload(OUT, "other", shop.packed("score-1")).digest == digest
    assert shop.bundles.detail(OUT, digest).info.project == "other"
    assert shop.bundles.detail(MO, digest).info.project == "fraud"


def test_the_quota_counts_bundles_and_not_repeated_uploads(shop: Shop) -> None:
    shop.access.update_project(PLATFORM, "fraud", quotas=Quotas(bundles=1))
    shop.bundles.upload(MO, "fraud", shop.packed("score-1"))
    shop.bundles.upload(MO, "fraud", shop.packed("score-1"))
    with pytest.raises(QuotaError, match="has reached its limit on bundles"):
        shop.bundles.upload(MO, "fraud", shop.packed("score-2"))
    with pytest.raises(QuotaError):
        shop.bundles.adopt(MO, "fraud", shop.registry.push(shop.built["score-3"]))
    assert len(shop.bundles.list(MO)) == 1


def test_the_contents_of_a_bundle_are_shown(shop: Shop) -> None:
    digest = shop.bundles.upload(MO, "fraud", shop.packed("action-1")).digest
    detail = shop.bundles.detail(MO, digest)
    schema = json.loads((shop.built["action-1"] / "schema.json").read_text())
    names = [feature["name"] for feature in schema["features"] + schema["action_features"]]
    assert [feature["name"] for feature in detail.features] == names
    assert detail.lineage["run_id"] == "variant-1"
    assert detail.reference == json.loads((shop.built["action-1"] / "reference.json").read_text())
    assert detail.lanes == []


def test_a_list_is_paged_by_its_last_item(shop: Shop) -> None:
    wanted = {
        shop.bundles.upload(MO, "fraud", shop.packed(name)).digest
        for name in ("score-1", "score-2", "score-3", "action-1")
    }
    seen: list[str] = []
    before = None
    while page := shop.bundles.list(MO, limit=1, before=before):
        seen.append(page[0].digest)
        before = f"{page[0].digest}:{page[0].project}"
    assert set(seen) == wanted and len(seen) == len(wanted)
    with pytest.raises(InvalidError):
        shop.bundles.list(OUT, before=before)


@pytest.mark.parametrize(
    "asked",
    [{}, {"project": "fraud"}, {"kind": "action"}, {"text": "nowhere"}, {"before": "LAST"}],
    ids=["all", "project", "kind", "text", "page"],
)
def test_a_list_is_read_in_its_order_and_not_sorted(shop: Shop, asked: dict[str, str]) -> None:
    """With 100,000 bundles, sorting takes a second, and reading a page of the index a millisecond."""
    both = Actor("both", roles={"fraud": Role.VIEWER, "other": Role.VIEWER})
    info = shop.bundles.upload(MO, "fraud", shop.packed("score-1"))
    asked = {name: f"{info.digest}:fraud" if value == "LAST" else value for name, value in asked.items()}
    statements: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.startswith("SELECT bundles.project"):
            statements.append((statement, parameters))

    event.listen(shop.store._engine, "before_cursor_execute", note)
    shop.bundles.list(both, limit=51, **asked)  # type: ignore[arg-type]
    (listed,) = [one for one in statements if "ORDER BY" in one[0]]
    with shop.store.read() as connection:
        plan = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {listed[0]}", listed[1])]
    assert len(plan) == 1, plan
    assert "USING INDEX ix_bundles_newest" in plan[0]


def test_bundles_without_a_project_are_looked_up_one_by_one(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry may hold 100,000 bundles, and a page names a few."""
    digests = [shop.registry.push(shop.built[name]) for name in ("score-1", "score-2", "action-1")]
    listed: list[int] = []
    original = shop.registry.list

    def noted(name: str | None = None, *, prefix: str = "") -> Any:
        found = original(name, prefix=prefix)
        listed.append(len(found))
        return found

    monkeypatch.setattr(shop.registry, "list", noted)
    found = shop.bundles.several(MO, digests[:2])
    assert {digest: one.name for digest, one in found.items()} == dict.fromkeys(digests[:2], "fraud-checkout")
    assert listed == [1, 1]
    assert shop.bundles.info(MO, digests[2][7:19]).digest == digests[2]
    assert listed == [1, 1, 1]
    monkeypatch.setattr("scorer.release.bundles._ONE_BY_ONE", 2)
    assert shop.bundles.several(MO, digests).keys() == set(digests)
    assert listed == [1, 1, 1, 3]


def test_a_damaged_local_copy_is_refused(shop: Shop) -> None:
    digest = shop.bundles.upload(MO, "fraud", shop.packed("score-1")).digest
    path = shop.bundles.local(digest)
    assert shop.bundles.local(digest) == path
    victim = path / "reference.json"
    victim.chmod(0o644)
    victim.write_bytes(victim.read_bytes()[:-2] + b" \n")
    with pytest.raises(InvalidError):
        shop.bundles.local(digest)


@pytest.mark.parametrize(
    "reference", ["", "zz", "abc", "nobody@live", "sha256:" + "0" * 64, "0" * 8, "a@b@c"]
)
def test_unknown_references_are_refused(shop: Shop, reference: str) -> None:
    shop.bundles.upload(MO, "fraud", shop.packed("score-1"))
    with pytest.raises((NotFoundError, InvalidError)):
        shop.bundles.detail(MO, reference)


def test_an_unreachable_registry_is_reported(shop: Shop) -> None:
    digest = shop.bundles.upload(MO, "fraud", shop.packed("score-1")).digest
    (shop.directory / "registry" / "registry.sqlite").rename(shop.directory / "gone")
    with pytest.raises(UnreachableError, match="try again"):
        shop.bundles.detail(MO, digest)
