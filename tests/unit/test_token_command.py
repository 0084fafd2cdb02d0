"""Tests of the commands for keys of decision tokens and for the inspection of a token."""

from __future__ import annotations

import base64
import json
import stat
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from scorer import token_keys
from scorer.cli import app
from scorer.client.tokens import DecisionTokens

SECRET = "0123456789abcdef" * 4
# A token of `order-1` at `action.authorise`, tenant "shop", signed by the secret above as key 0000002a.
TOKEN = "110000002a01a2071ff47bccf62f9f64d35a4f01020304050607080000053fd00000000000006f726465722d31"


def scorer(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["token", *map(str, arguments)])


def test_keys_are_added_activated_and_removed(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    first = scorer("key", file).stdout.split()[0]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    second = scorer("key", file).stdout.split()[0]
    assert [key["id"] for key in token_keys.read_keys(file)] == [first, second]
    assert all(len(key["secret"]) == 64 for key in token_keys.read_keys(file))
    assert scorer("key", file, "--sign", second).exit_code == 0
    listed = scorer("keys", file)
    assert listed.stdout.splitlines() == [f"{second}  signs and verifies", f"{first}  verifies"]
    assert json.loads(scorer("keys", file, "--json").stdout) == {"keys": [second, first]}
    assert scorer("key", file, "--remove", first).exit_code == 0
    assert [key["id"] for key in token_keys.read_keys(file)] == [second]
    for arguments, message in (
        (("--remove", second), "the only key"),
        (("--sign", first), f"no key {first}"),
        (("--remove", "x"), "no key x"),
    ):
        refused = scorer("key", file, *arguments)
        assert refused.exit_code == 1
        assert message in str(refused.exception)
    assert scorer("key", file, "--sign", second, "--remove", second).exit_code == 2


@pytest.mark.parametrize("content", ["", "{", '{"keys": []}', '{"keys": [{"id": "1", "secret": "2"}]}', "[]"])
def test_a_file_without_keys_is_not_changed(tmp_path: Path, content: str) -> None:
    file = tmp_path / "keys.json"
    file.write_text(content)
    refused = scorer("key", file)
    assert refused.exit_code == 1
    assert "token keys" in str(refused.exception)
    assert file.read_text() == content


@pytest.mark.fault_case(78)
def test_a_token_is_shown_and_verified(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": [{"id": "0000002a", "secret": SECRET}]}))
    token = signed(bytes.fromhex(TOKEN), "shop", "action.authorise")
    document = json.loads(scorer("show", token.hex(), "--json").stdout)
    assert document == {
        "key": "0000002a",
        "kind": "action",
        "decision_id": "order-1",
        "decided_at_ms": 0x01A2071FF47B,
        "bundle": "0102030405060708",
        "index": 5,
        "propensity": 0.25,
        "fallback": False,
        "checkpoint": fingerprint("action.authorise"),
        "tenant": fingerprint("shop"),
        "verdict": "not verified",
    }
    of = ("--keys", file, "--checkpoint", "action.authorise", "--tenant", "shop")
    for text in (
        token.hex(),
        base64.b64encode(token).decode(),
        base64.urlsafe_b64encode(token).decode().rstrip("="),
    ):
        shown = scorer("show", text, *of)
        assert shown.exit_code == 0
        assert shown.stdout.splitlines()[-1] == "verdict      valid"
    for more, message in (
        (("--keys", file, "--checkpoint", "action.authorise"), "another caller"),
        (("--keys", file, "--checkpoint", "action.retry", "--tenant", "shop"), "another checkpoint"),
    ):
        refused = scorer("show", token.hex(), *more)
        assert refused.exit_code == 1
        assert message in refused.stdout
    forged = bytes([*token[:30], token[30] ^ 1, *token[31:]])
    assert "signature does not hold" in scorer("show", forged.hex(), *of).stdout
    for text, message in (("zz!", "neither hexadecimal"), ("abcd", "not a decision token")):
        refused = scorer("show", text)
        assert refused.exit_code == 1
        assert message in str(refused.exception)


def fingerprint(name: str) -> str:
    from hashlib import sha256

    return sha256(name.encode()).hexdigest()[:8]


def signed(fields: bytes, tenant: str, checkpoint: str) -> bytes:
    """Return a token that is signed by the steps of docs/decision-token.md."""
    import hmac
    from hashlib import sha256

    fields = (
        fields[:11]
        + bytes.fromhex(fingerprint(tenant))
        + bytes.fromhex(fingerprint(checkpoint))
        + fields[19:]
    )
    message = b"scorer decision token 1\0" + len(fields).to_bytes(2, "big") + fields
    message += sha256(tenant.encode()).digest() + checkpoint.encode()
    return fields + hmac.digest(bytes.fromhex(SECRET), message, "sha256")[:16]


def test_a_client_keeps_the_tokens_of_its_latest_decisions() -> None:
    tokens = DecisionTokens(most=2)
    tokens.keep("a", "none", b"")
    for name in ("first", "second", "batch"):
        tokens.keep("a", name, name.encode())
    assert tokens.of("a", "first") == b""
    assert tokens.of("a", "second") == b"second"
    assert tokens.of("b", "second") == b""
    assert tokens.of("a", "batch/7") == b"batch"
