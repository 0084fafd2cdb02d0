"""Sensitive features of a log, which are masked (never stored) or encrypted to a reader's public key.

A server encrypts with HPKE (RFC 9180) and has no key that decrypts the stored values. A reader has the
private key in a file on another machine. Without the key the values are missing and their positions are in
`withheld`.
"""

from __future__ import annotations

import hashlib
import hmac
import stat
import struct
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scorer.durable import write_atomically
from scorer.errors import LogError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    from scorer.v1.log_pb2 import DecisionRecord

INFO = b"scorer decision log: sensitive features"
_KEM = b"KEM\x00\x20"
_SUITE = b"HPKE\x00\x20\x00\x01\x00\x02"
_KEY_BYTES, _NONCE_BYTES = 32, 12
_CONTEXTS = 1024


@dataclass
class SealedCounts:
    """Counts of records with sensitive features in a pass over a log. Each record is counted once."""

    masked: int = 0
    """Records with masked values and without encrypted ones."""
    locked: int = 0
    """Records with encrypted values that were not decrypted, because there is no key or another key."""
    opened: int = 0
    """Records whose encrypted values were decrypted."""
    altered: int = 0
    """Records whose encrypted values fail authentication: they were altered, or moved from another record."""

    def note(self) -> str:
        """Return one line about missing values, or "" if none is missing."""
        said = []
        if self.locked:
            said.append(f"{self.locked} records have encrypted features: name their key with --reader-key")
        if self.masked:
            said.append(f"{self.masked} records have masked features")
        if self.altered:
            said.append(f"{self.altered} records have encrypted features that were altered")
        return f"{'; '.join(said)}; these values are missing" if said else ""


class ReaderKey:
    """The private key that decrypts sensitive features.

    Args:
        private: An X25519 key.

    Attributes:
        id: Id of the key, which records contain: the first 8 bytes of the public key's SHA-256, as a
            big-endian integer.
    """

    def __init__(self, private: X25519PrivateKey) -> None:
        self._private = private
        self._public = private.public_key().public_bytes_raw()
        self.id = int.from_bytes(hashlib.sha256(self._public).digest()[:8], "big")
        self._context = lru_cache(_CONTEXTS)(self._schedule)

    @classmethod
    def from_file(cls, path: Path) -> ReaderKey:
        """Read a PEM `PRIVATE KEY` from a file that only its owner and its group can access.

        Raises:
            LogError: The file cannot be read, other users can read it, or it holds another kind of key.
        """
        primitives = _cryptography()
        try:
            if path.stat().st_mode & stat.S_IRWXO:
                raise LogError(f'reader key "{path}": other users can access it; run chmod o= on it')
            key = primitives.serialization.load_pem_private_key(path.read_bytes(), None)
        except OSError as error:
            raise LogError(f'reader key "{path}" cannot be read: {error.strerror}') from None
        except (ValueError, TypeError):
            key = None
        if not isinstance(key, primitives.x25519.X25519PrivateKey):
            raise LogError(
                f'reader key "{path}" holds no X25519 key as PRIVATE KEY in PEM without a password; '
                "`scorer log keygen` makes one"
            )
        return cls(key)

    def open(self, record: DecisionRecord) -> bool:
        """Decrypt the values of a record into its features, and remove their positions from `withheld`.

        Returns:
            Whether the values are authentic for this decision. If not, the record is not changed.
        """
        sealed = record.sealed
        try:
            key, base = self._context(sealed.encapsulated_key)
            nonce = (int.from_bytes(base, "big") ^ sealed.number).to_bytes(_NONCE_BYTES, "big")
            plain = key.decrypt(nonce, sealed.ciphertext, _bound(record))
            values = struct.unpack(f"<{len(sealed.positions)}f", plain)
        except (_cryptography().InvalidTag, ValueError, struct.error):
            return False
        if any(at >= len(record.features) for at in sealed.positions):
            return False
        for at, value in zip(sealed.positions, values, strict=True):
            record.features[at] = value
        opened = set(sealed.positions)
        left = [at for at in record.withheld if at not in opened]
        del record.withheld[:]
        record.withheld.extend(left)
        record.ClearField("sealed")
        return True

    def _schedule(self, encapsulated: bytes) -> tuple[Any, bytes]:
        """Return the key and the base nonce for one encapsulated key: RFC 9180, sections 4.1 and 5.1."""
        primitives = _cryptography()
        sender = primitives.x25519.X25519PublicKey.from_public_bytes(encapsulated)
        shared = _extract(b"", _KEM, b"eae_prk", self._private.exchange(sender))
        secret = _expand(shared, _KEM, b"shared_secret", encapsulated + self._public, _KEY_BYTES)
        context = (
            b"\0" + _extract(b"", _SUITE, b"psk_id_hash", b"") + _extract(b"", _SUITE, b"info_hash", INFO)
        )
        drawn = _extract(secret, _SUITE, b"secret", b"")
        key = primitives.aead.AESGCM(_expand(drawn, _SUITE, b"key", context, _KEY_BYTES))
        return key, _expand(drawn, _SUITE, b"base_nonce", context, _NONCE_BYTES)


def open_features(record: DecisionRecord, key: ReaderKey | None, counts: SealedCounts) -> None:
    """Decrypt the sensitive features of a record if the key fits, and count the record.

    Args:
        record: The record, which is changed in place.
        key: The reader's key; None leaves encrypted values missing.
        counts: The counts to update.
    """
    if not record.HasField("sealed"):
        counts.masked += bool(record.withheld)
    elif key is None or key.id != record.sealed.key_id:
        counts.locked += 1
    elif key.open(record):
        counts.opened += 1
    else:
        counts.altered += 1


def generate_keys(private: Path, public: Path) -> None:
    """Write a new X25519 key pair.

    Args:
        private: File of the private key, which only its owner can read.
        public: File of the public key, for the server's settings.

    Raises:
        LogError: A file exists already, or cannot be written.
    """
    primitives = _cryptography()
    for path in (private, public):
        if path.exists():
            raise LogError(f'"{path}" exists; what was encrypted to its key could be lost: name another file')
    key = primitives.x25519.X25519PrivateKey.generate()
    pem = primitives.serialization.Encoding.PEM
    try:
        private.touch(0o600, exist_ok=False)
        secret = key.private_bytes(
            pem,
            primitives.serialization.PrivateFormat.PKCS8,
            primitives.serialization.NoEncryption(),
        )
        write_atomically(private, secret)
        private.chmod(0o600)
        spki = primitives.serialization.PublicFormat.SubjectPublicKeyInfo
        write_atomically(public, key.public_key().public_bytes(pem, spki))
        public.chmod(0o644)
    except OSError as error:
        raise LogError(f'the keys cannot be written: "{error.filename}": {error.strerror}') from None


def _bound(record: DecisionRecord) -> bytes:
    """Return the associated data of the encryption, which binds the values to their decision."""
    texts = [text.encode() for text in (record.checkpoint, record.decision_id)]
    parts = [part for text in texts for part in (struct.pack("<Q", len(text)), text)]
    positions = record.sealed.positions
    return b"".join(parts) + struct.pack(f"<Q{len(positions)}I", record.schema_fingerprint, *positions)


def _extract(salt: bytes, suite: bytes, label: bytes, ikm: bytes) -> bytes:
    return hmac.digest(salt, b"HPKE-v1" + suite + label + ikm, "sha256")


def _expand(prk: bytes, suite: bytes, label: bytes, info: bytes, length: int) -> bytes:
    labelled = length.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info
    return hmac.digest(prk, labelled + b"\x01", "sha256")[:length]


class _Primitives:
    def __init__(self) -> None:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import x25519
        from cryptography.hazmat.primitives.ciphers import aead

        self.InvalidTag, self.serialization, self.x25519, self.aead = (
            InvalidTag,
            serialization,
            x25519,
            aead,
        )


@lru_cache(1)
def _cryptography() -> _Primitives:
    try:
        return _Primitives()
    except ImportError:
        raise LogError('encrypted features need the package cryptography; install "scorer[train]"') from None
