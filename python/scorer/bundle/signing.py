"""Signatures of bundles: creating keys, signing, and verifying as a server does."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from scorer import bridge
from scorer.bundle.check import SIGNATURE, read_manifest
from scorer.durable import write_atomically
from scorer.errors import SignatureError

KEYS_VARIABLE = "SCORER_SIGNING_KEYS"
"""Environment variable with paths of private keys, separated as in PATH. If it is set, every bundle that is
written is signed with these keys."""
_MAX_KEY_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class Signature:
    """The content of a signature."""

    name: str
    """The bundle's name."""
    release: int
    """Number of the release of that name."""
    key: str
    """Id of the key, or ids separated by commas."""
    signed_at: str
    """Time of signing; empty for a signature that was just created."""


def new_key(private: Path, public: Path, *, not_after: str | None = None) -> str:
    """Write a new Ed25519 key pair and return the id of the key.

    Args:
        private: File of the private key, which only its owner can read.
        public: File of the public key, for the setting `bundles.trusted_keys`.
        not_after: Time after which signatures of the key are no longer accepted, such as
            2027-01-01T00:00:00Z.

    Raises:
        SignatureError: A file exists, or cannot be written.
    """
    text = bridge.generate_key()
    key, public_text = bridge.public_key(text, not_after)
    for path, content, mode in ((private, text, 0o600), (public, public_text, 0o644)):
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        except FileExistsError:
            raise SignatureError(f'"{path}" exists; keys are not overwritten, choose another name') from None
        except OSError as error:
            raise SignatureError(f'"{path}" cannot be written: {error.strerror}') from None
        with os.fdopen(descriptor, "w") as file:
            file.write(content)
    return key


def sign(
    directory: str | PathLike[str],
    keys: Sequence[str | PathLike[str]],
    *,
    release: int | None = None,
) -> Signature:
    """Sign a bundle and replace its present signature, if any.

    Args:
        directory: The bundle's directory. The manifest's digest is signed; the files are not verified.
        keys: Files of private keys, Ed25519 or P-256. Every key signs, so that a new key can be introduced
            while servers still trust only the old one.
        release: Number of this release of the bundle's name. A server rejects a lower number than it has
            served. Default: the Unix time in seconds.

    Raises:
        SignatureError: No key is given, a key cannot be used, or the signature cannot be written.
        BundleError: The directory does not hold a bundle.
    """
    place = Path(directory)
    manifest = read_manifest(place)
    return sign_digest(place, manifest.name, manifest.digest, keys, release=release)


def sign_digest(
    directory: Path,
    name: str,
    digest: str,
    keys: Sequence[str | PathLike[str]],
    *,
    release: int | None = None,
) -> Signature:
    """Sign a bundle whose name and digest are known; see `sign`."""
    if not keys:
        raise SignatureError(f"no signing key is given; name one with --key, or in {KEYS_VARIABLE}")
    number = int(time.time()) if release is None else release
    if not 0 < number < 1 << 63:
        raise SignatureError(f"release {number} is not a release number; use a number above 0")
    private = [_read_key(Path(key)) for key in keys]
    text = bridge.sign_bundle(name, digest, number, private)
    try:
        write_atomically(directory / SIGNATURE, text.encode())
    except OSError as error:
        raise SignatureError(f'"{directory / SIGNATURE}" cannot be written: {error.strerror}') from None
    identifiers = [bridge.public_key(key)[0] for key in private]
    return Signature(name, number, ", ".join(identifiers), "")


def configured_keys() -> list[str]:
    """Return the paths of private keys in the variable SCORER_SIGNING_KEYS."""
    return [key for key in os.environ.get(KEYS_VARIABLE, "").split(os.pathsep) if key]


def verify_signature(
    directory: str | PathLike[str], trusted_keys: Sequence[str | PathLike[str]]
) -> Signature | None:
    """Verify the signature of a bundle as a server with these trusted keys does.

    Only the signature of the manifest's digest is checked; `verify` checks the files against the manifest.

    Args:
        directory: The bundle's directory.
        trusted_keys: Files of public keys, as in the setting `bundles.trusted_keys`.

    Returns:
        The signature, or None if the bundle is not signed and no key is trusted.

    Raises:
        SignatureError: A server with these keys would reject the bundle.
    """
    place = Path(directory)
    try:
        envelope = (place / SIGNATURE).read_bytes()
    except FileNotFoundError:
        envelope = None
    except OSError as error:
        raise SignatureError(f'"{place / SIGNATURE}" cannot be read: {error.strerror}') from None
    trust = {"trusted_keys": [str(key) for key in trusted_keys]}
    try:
        found = bridge.verify_signature(envelope, read_manifest(place).digest, json.dumps(trust))
    except SignatureError as error:
        raise SignatureError(f'bundle "{place}": {error}') from None
    return None if found is None else Signature(**json.loads(found))


def _read_key(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_KEY_BYTES)
        text = content.decode()
        bridge.public_key(text)
    except OSError as error:
        raise SignatureError(f'signing key "{path}" cannot be read: {error.strerror}') from None
    except (UnicodeDecodeError, SignatureError):
        raise SignatureError(
            f'signing key "{path}" is no Ed25519 or P-256 key in PEM; make one with `scorer bundle keygen`'
        ) from None
    return text
