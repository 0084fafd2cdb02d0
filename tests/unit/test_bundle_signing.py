"""Tests of keys and signatures, of the commands that create them, and of signatures in a push."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from servers import scorer_in_process

from scorer.bundle import signing, verify
from scorer.bundle.write import write_bundle
from scorer.errors import BundleError, SignatureError
from scorer.registry import Registry

SIGNATURE = "signature.json"


@pytest.fixture
def bundle(tmp_path: Path, built_bundles: dict[str, Path]) -> Path:
    return shutil.copytree(built_bundles["score-1"], tmp_path / "bundle")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    signing.new_key(tmp_path / "a.key", tmp_path / "a.pem")
    return tmp_path


def test_the_commands_create_a_key_sign_and_verify(tmp_path: Path, bundle: Path) -> None:
    created = scorer_in_process(
        "bundle", "keygen", str(tmp_path / "a"), "--not-after", "2090-01-01T00:00:00Z", "--json"
    )
    key = json.loads(created.stdout)["key"]
    assert (tmp_path / "a.key").stat().st_mode & 0o777 == 0o600
    assert "Not-After: 2090-01-01T00:00:00Z" in (tmp_path / "a.pem").read_text()
    signed = scorer_in_process(
        "bundle", "sign", str(bundle), "--key", str(tmp_path / "a.key"), "--release", "7"
    )
    assert signed.stdout == f"signed fraud-checkout release 7 by {key}\n"
    verified = scorer_in_process(
        "bundle", "verify", str(bundle), "--trusted-key", str(tmp_path / "a.pem"), "--json"
    )
    assert json.loads(verified.stdout)["release"] == 7
    assert json.loads(verified.stdout)["key"] == key
    again = scorer_in_process("bundle", "keygen", str(tmp_path / "a"))
    assert (again.returncode, len(again.stderr.splitlines())) == (1, 1)
    assert "keys are not overwritten" in again.stderr


def test_the_default_release_is_the_time(bundle: Path, keys: Path) -> None:
    first = signing.sign(bundle, [keys / "a.key"]).release
    assert 1_700_000_000 < first <= signing.sign(bundle, [keys / "a.key"]).release


@pytest.mark.fault_case(55)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file"),
        (b"", "is no Ed25519 or P-256 key"),
        (b"-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2", "is no Ed25519 or P-256 key"),
        (b"\xff\xfe", "is no Ed25519 or P-256 key"),
    ],
)
def test_a_key_that_cannot_sign_is_reported(
    bundle: Path, tmp_path: Path, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "k").write_bytes(content)
    result = scorer_in_process("bundle", "sign", str(bundle), "--key", str(tmp_path / "k"))
    assert (result.returncode, len(result.stderr.splitlines())) == (1, 1)
    assert f'signing key "{tmp_path / "k"}" {message}' in result.stderr
    assert not (bundle / SIGNATURE).exists()


@pytest.mark.fault_case(55)
def test_the_command_refuses_what_a_server_would_refuse(bundle: Path, keys: Path, tmp_path: Path) -> None:
    trusted = ["--trusted-key", str(keys / "a.pem")]
    result = scorer_in_process("bundle", "verify", str(bundle), *trusted)
    assert "it has no signature.json" in result.stderr
    signing.new_key(tmp_path / "b.key", tmp_path / "b.pem")
    signing.sign(bundle, [tmp_path / "b.key"])
    result = scorer_in_process("bundle", "verify", str(bundle), *trusted)
    assert (result.returncode, len(result.stderr.splitlines())) == (1, 1)
    assert "which is not trusted here" in result.stderr
    with pytest.raises(SignatureError, match=r"release 0 is not a release number"):
        signing.sign(bundle, [keys / "a.key"], release=0)


def test_bundles_are_signed_by_the_key_in_the_environment(
    built_bundles: dict[str, Path], keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {file.name: file.read_bytes() for file in built_bundles["score-1"].iterdir()}
    monkeypatch.setenv("SCORER_SIGNING_KEYS", str(keys / "a.key"))
    write_bundle(tmp_path / "written", files)
    assert signing.verify_signature(tmp_path / "written", [keys / "a.pem"]) is not None
    monkeypatch.setenv("SCORER_SIGNING_KEYS", str(keys / "none.key"))
    with pytest.raises(SignatureError, match=r"none\.key"):
        write_bundle(tmp_path / "unsigned", files)
    assert not (tmp_path / "unsigned").exists()


def test_a_push_stores_and_replaces_the_signature(bundle: Path, keys: Path, tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry")
    digest = registry.push(bundle)
    place = registry.resolve(digest).path
    assert place is not None
    assert not (place / SIGNATURE).exists()
    fingerprint = registry.fingerprint(digest)
    for release in (1, 2):
        signing.sign(bundle, [keys / "a.key"], release=release)
        registry.push(bundle)
        signature = signing.verify_signature(place, [keys / "a.pem"])
        assert signature is not None
        assert signature.release == release
        assert registry.fingerprint(digest) != fingerprint
        fingerprint = registry.fingerprint(digest)
    copied = tmp_path / "copied"
    copied.mkdir()
    registry.copy(registry.resolve(digest), copied)
    assert (copied / SIGNATURE).read_bytes() == (bundle / SIGNATURE).read_bytes()
    # A push of a copy without a signature does not remove the stored signature.
    (bundle / SIGNATURE).unlink()
    registry.push(bundle)
    assert (place / SIGNATURE).exists()
    assert verify(place).digest == digest


@pytest.mark.fault_case(56)
def test_a_signature_that_is_not_a_small_file_is_not_copied(bundle: Path, tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry")
    (bundle / SIGNATURE).symlink_to("/etc/hostname")
    with pytest.raises(BundleError, match="symbolic link"):
        registry.push(bundle)
    (bundle / SIGNATURE).unlink()
    (bundle / SIGNATURE).write_bytes(b"x" * (65 << 10))
    with pytest.raises(BundleError, match="at most 65536"):
        registry.push(bundle)
