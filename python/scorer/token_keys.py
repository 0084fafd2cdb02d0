"""The key file of decision tokens: the first key signs, all of them verify.

`{"keys": [{"id": "<8 hexadecimal digits>", "secret": "<64>"}, ...]}`. A file is replaced as a whole, so a
server never reads half of one; it puts a changed file in force within a second.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from scorer.durable import write_atomically
from scorer.errors import ScorerError

Key = dict[str, str]
"""Its `id` and its `secret`."""


class TokenKeyError(ScorerError):
    """A key file cannot be used, or holds no such key."""


def read_keys(path: Path) -> list[Key]:
    """Return the keys of a file, the signing one first; [] if there is no file.

    Raises:
        TokenKeyError: The file cannot be read, or is no key file.
    """
    from scorer import bridge

    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise TokenKeyError(f"token keys {path}: cannot be read ({error.strerror or error})") from error
    try:
        bridge.token_keys(text)
    except ValueError as error:
        raise TokenKeyError(f"token keys {path}: {error}") from None
    keys: list[Key] = json.loads(text)["keys"]
    return keys


def add_key(path: Path) -> str:
    """Add a new key and return its id: it signs if the file is new, and otherwise only verifies."""
    keys = read_keys(path)
    known = {key["id"] for key in keys}
    name = secrets.token_hex(4)
    while name in known:
        name = secrets.token_hex(4)
    _write(path, [*keys, {"id": name, "secret": secrets.token_hex(32)}])
    return name


def sign_with(path: Path, name: str) -> None:
    """Make a key of the file the one that signs.

    Raises:
        TokenKeyError: The file has no such key.
    """
    keys = read_keys(path)
    chosen = [key for key in keys if key["id"] == name]
    if not chosen:
        raise _unknown(path, name)
    _write(path, [*chosen, *(key for key in keys if key["id"] != name)])


def remove_key(path: Path, name: str) -> None:
    """Remove a key: tokens that it signed are refused from then on.

    Raises:
        TokenKeyError: The file has no such key, or no other.
    """
    keys = read_keys(path)
    left = [key for key in keys if key["id"] != name]
    if len(left) == len(keys):
        raise _unknown(path, name)
    if not left:
        raise TokenKeyError(f"token keys {path}: {name} is the only key; add another before you remove it")
    _write(path, left)


def _write(path: Path, keys: list[Key]) -> None:
    try:
        write_atomically(path, json.dumps({"keys": keys}, indent=1).encode() + b"\n", mode=0o600)
    except OSError as error:
        raise TokenKeyError(f"token keys {path}: cannot be written ({error.strerror or error})") from error


def _unknown(path: Path, name: str) -> TokenKeyError:
    return TokenKeyError(f"token keys {path}: there is no key {name}; `scorer token keys {path}` lists them")
