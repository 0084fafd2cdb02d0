"""How often the identity provider is asked for its metadata and keys."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey

from scorer.release.errors import NotAuthenticatedError, UnreachableError
from scorer.web import oidc_provider
from scorer.web.oidc_provider import OidcProvider

METADATA, KEYS = "/.well-known/openid-configuration", "/keys"


class Asked:
    """A provider that counts its requests, and answers those of some paths with an error."""

    def __init__(self, url: str) -> None:
        self.url, self.counts, self.failing = url, Counter[str](), set[str]()
        self.key = RSAKey.generate_key(2048, parameters={"kid": "one"})

    def document(self, path: str) -> dict[str, Any]:
        if path == KEYS:
            return {"keys": [self.key.as_dict(private=False)]}
        endpoints = dict.fromkeys(("authorization_endpoint", "token_endpoint"), self.url)
        return {"issuer": self.url, "jwks_uri": self.url + KEYS, **endpoints}

    def token(self, key: RSAKey | None = None) -> str:
        key = key or self.key
        return jwt.encode({"alg": "RS256", "kid": key.kid}, {"sub": "alice"}, key)


@contextmanager
def running() -> Iterator[Asked]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.counts[self.path] += 1
            self.send_response(503 if self.path in asked.failing else 200)
            self.end_headers()
            self.wfile.write(json.dumps(asked.document(self.path)).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        asked = Asked(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield asked
        finally:
            server.shutdown()
            thread.join(30)


@pytest.fixture
def asked() -> Iterator[Asked]:
    with running() as asked:
        yield asked


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic time, which a test changes."""
    now = [1000.0]
    monkeypatch.setattr(oidc_provider, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_keys_are_read_once_an_hour(asked: Asked, clock: list[float]) -> None:
    provider = OidcProvider(asked.url)
    for _ in range(20):
        assert provider.decoded(asked.token()).claims == {"sub": "alice"}
    assert asked.counts == {METADATA: 1, KEYS: 1}
    clock[0] += 3601
    provider.decoded(asked.token())
    assert asked.counts == {METADATA: 2, KEYS: 2}


def test_tokens_with_unknown_keys_cause_one_read_in_five_seconds(asked: Asked, clock: list[float]) -> None:
    provider = OidcProvider(asked.url)
    provider.decoded(asked.token())
    clock[0] += 6
    unknown = asked.token(RSAKey.generate_key(2048, parameters={"kid": "two"}))
    for _ in range(20):
        with pytest.raises(NotAuthenticatedError, match="is not valid"):
            provider.decoded(unknown)
    assert asked.counts == {METADATA: 1, KEYS: 2}


@pytest.mark.fault_case(108)
@pytest.mark.parametrize("path", [METADATA, KEYS])
def test_a_provider_that_fails_is_asked_once_in_five_seconds(
    asked: Asked, clock: list[float], path: str
) -> None:
    provider = OidcProvider(asked.url)
    asked.failing.add(path)
    for _ in range(20):
        with pytest.raises(UnreachableError, match="does not respond"):
            provider.decoded(asked.token())
    assert asked.counts[path] == 1
    asked.failing.clear()
    clock[0] += 6
    assert provider.decoded(asked.token()).claims == {"sub": "alice"}


def test_known_keys_serve_while_an_unknown_one_cannot_be_read(asked: Asked, clock: list[float]) -> None:
    provider = OidcProvider(asked.url)
    provider.decoded(asked.token())
    asked.failing.add(KEYS)
    clock[0] += 6
    unknown = asked.token(RSAKey.generate_key(2048, parameters={"kid": "two"}))
    for _ in range(20):
        with pytest.raises(UnreachableError):
            provider.decoded(unknown)
        assert provider.decoded(asked.token()).claims == {"sub": "alice"}
    assert asked.counts[KEYS] == 2
