"""Encryption of a record's sensitive features as a server does it, for tests of readers."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from scorer.log import ReaderKey
from scorer.log import sealing as module
from scorer.v1.log_pb2 import DecisionRecord, SealedFeatures


def seal(record: DecisionRecord, positions: Sequence[int], key: ReaderKey, number: int = 0) -> None:
    """Replace features of a record by their encrypted values.

    `tests/integration/test_sensitive_features.py` reads the records of a server.
    """
    values = [record.features[at] for at in positions]
    for at in positions:
        record.features[at] = math.nan
    del record.withheld[:]
    record.withheld.extend(positions)
    # The sender and the reader derive the same key.
    encapsulated = X25519PrivateKey.generate().public_key().public_bytes_raw()
    cipher, base = key._context(encapsulated)
    record.sealed.CopyFrom(
        SealedFeatures(positions=positions, key_id=key.id, encapsulated_key=encapsulated, number=number)
    )
    nonce = (int.from_bytes(base, "big") ^ number).to_bytes(12, "big")
    plain = struct.pack(f"<{len(positions)}f", *values)
    record.sealed.ciphertext = cipher.encrypt(nonce, plain, module._bound(record))
