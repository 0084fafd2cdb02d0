"""Agents with access tokens of a real OpenID provider, which the official client finds and signs in at."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import httpx2
import pytest
from agent_world import FRAUD, AgentWorld, agent_world
from browser import serving
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey
from mcp import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from oidc_provider import SECRET, provider, redirect_of, sign_in
from pydantic import AnyUrl
from waiting import wait_until

from scorer.release.model import Role
from scorer.web.oidc_provider import OidcProvider

REDIRECT = "http://127.0.0.1:1/agent"
OIDC = """
[oidc]
issuer = "{issuer}"
client_id = "scorer"
client_secret_file = "oidc.secret"
scopes = ["openid", "email", "groups"]
grants = [{{{{ group = "fraud-team", project = "fraud", role = "modeler" }}}}]
agent_audience = "{url}/api/mcp"
"""


@dataclass
class Site:
    """A platform that accepts access tokens of a provider."""

    url: str
    issuer: str
    world: AgentWorld


@contextmanager
def serve_site(directory: Path, built_bundles: dict[str, Path]) -> Iterator[Site]:
    (directory / "oidc.secret").write_text(SECRET)
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        issuer = stack.enter_context(provider(redirect=f"{url}/login/oidc/callback"))
        more = OIDC.format(issuer=issuer, url=url)
        world = stack.enter_context(agent_world(directory, built_bundles, public_url=url, more=more))
        stack.enter_context(serving(world.app(), listener))
        # Access tokens act for users who have signed in on the pages.
        with httpx.Client(timeout=60) as browser:
            assert sign_in(browser, f"{url}/login/oidc?next=/", "alice").status_code == 200
        yield Site(url, issuer, world)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, built_bundles: dict[str, Path]) -> Iterator[Site]:
    with serve_site(tmp_path_factory.mktemp("oauth"), built_bundles) as site:
        yield site


class Kept:
    """Keeps the tokens of one client in memory."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = OAuthClientInformationFull(
            client_id="agent", redirect_uris=[AnyUrl(REDIRECT)], token_endpoint_auth_method="none"
        )

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


def at_the_provider(begin: str, user: str) -> dict[str, list[str]]:
    """Sign in as a user does in a browser, and return the parameters of the redirect to the client."""
    with httpx.Client(timeout=60) as browser:
        return parse_qs(urlsplit(redirect_of(browser, begin, user, to=REDIRECT)).query)


async def obtained(site: Site, user: str, kept: Kept, work: Any) -> Any:
    """Connect the official client, which asks the provider for a token when the platform refuses it."""
    answers: list[dict[str, list[str]]] = []

    async def redirect(address: str) -> None:
        answers.append(await asyncio.to_thread(at_the_provider, address, user))

    async def callback() -> AuthorizationCodeResult:
        found = answers.pop()
        return AuthorizationCodeResult(
            code=found["code"][0], state=found["state"][0], iss=found.get("iss", [None])[0]
        )

    metadata = OAuthClientMetadata(
        client_name="agent",
        redirect_uris=[AnyUrl(REDIRECT)],
        token_endpoint_auth_method="none",
        scope="openid",
    )
    auth = OAuthClientProvider(f"{site.url}/api/mcp", metadata, kept, redirect, callback)
    async with (
        asyncio.timeout(90),
        httpx2.AsyncClient(auth=auth, timeout=60) as http,
        Client(streamable_http_client(f"{site.url}/api/mcp", http_client=http)) as client,
    ):
        return await work(client)


@pytest.fixture(scope="module")
def token(site: Site) -> str:
    """An access token for alice, who is a modeler."""
    kept = Kept()

    async def work(client: Client) -> Any:
        return (await client.call_tool("list_checkpoints", {})).structured_content

    found = asyncio.run(obtained(site, "alice", kept, work))
    assert FRAUD in str(found)
    assert kept.tokens is not None
    return kept.tokens.access_token


def called(site: Site, token: str, tool: str = "list_checkpoints") -> httpx.Response:
    body = {
        "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": {}},
    }  # fmt: skip
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/json, text/event-stream"}
    return httpx.post(f"{site.url}/api/mcp", json=body, headers=headers, timeout=60)


def test_the_official_client_finds_the_provider_and_calls_a_tool(site: Site, token: str) -> None:
    refused = httpx.post(f"{site.url}/api/mcp", json={}, timeout=60)
    assert refused.status_code == 401
    address = f"{site.url}/.well-known/oauth-protected-resource/api/mcp"
    assert f'resource_metadata="{address}"' in refused.headers["www-authenticate"]
    found = httpx.get(address, timeout=60).json()
    assert found["resource"] == f"{site.url}/api/mcp"
    assert found["authorization_servers"] == [site.issuer]
    assert called(site, token).status_code == 200


def test_a_call_is_recorded_with_user_and_client_and_has_at_most_the_role_agent(
    site: Site, token: str
) -> None:
    assert called(site, token).status_code == 200
    admin = site.world.actor("admin")
    entries = [
        one for one in site.world.service.audit.entries(admin, limit=1000) if one.action.startswith("agent.")
    ]
    mine = [one for one in entries if one.actor == "alice@example.com"]
    assert mine
    assert "oauth:agent:alice@example.com" in str(mine[0])
    actor = site.world.service.access.by_subject(f"{site.issuer}#alice", "agent")
    assert actor.is_agent
    assert actor.roles == {"fraud": Role.AGENT}


@pytest.mark.parametrize("path", ["/api/v1/projects", "/api/v1/changes"])
def test_rest_takes_no_access_tokens(site: Site, token: str, path: str) -> None:
    answer = httpx.get(f"{site.url}{path}", headers={"Authorization": f"Bearer {token}"}, timeout=60)
    assert answer.status_code == 401


def test_a_user_who_has_not_signed_in_on_the_pages_is_refused(site: Site) -> None:
    kept = Kept()

    async def work(client: Client) -> Any:
        return await client.list_tools()

    with pytest.raises(BaseExceptionGroup):
        asyncio.run(obtained(site, "bob", kept, work))
    assert kept.tokens is not None
    answer = called(site, kept.tokens.access_token)
    assert answer.status_code == 401
    assert "sign in there once" in answer.text


def test_a_removed_user_is_refused_at_the_next_call(site: Site) -> None:
    with httpx.Client(timeout=60) as browser:
        assert sign_in(browser, f"{site.url}/login/oidc?next=/", "bob").status_code == 200
    kept = Kept()

    async def work(client: Client) -> Any:
        return await client.list_tools()

    asyncio.run(obtained(site, "bob", kept, work))
    assert kept.tokens is not None
    site.world.service.access.remove_user(site.world.actor("admin"), "bob@example.com")
    assert called(site, kept.tokens.access_token).status_code == 401


FORGED: dict[str, dict[str, Any]] = {
    "another audience": {"aud": "https://elsewhere.example.com"},
    "no audience": {"aud": None},
    "another issuer": {"iss": "https://elsewhere.example.com"},
    "expired": {"exp": 1_600_000_000},
    "no expiry": {"exp": None},
    "not yet valid": {"nbf": 4_000_000_000},
    "no subject": {"sub": None},
    "a subject that is no text": {"sub": 5},
    "no client": {"client_id": None},
    "an ID token": {"typ": "JWT"},
    "a key of somebody else": {"kid": "unknown"},
    "valid": {},
}


@pytest.mark.fault_case(108)
@pytest.mark.parametrize("name", FORGED)
def test_each_rule_of_an_access_token(
    site: Site, name: str, monkeypatch: pytest.MonkeyPatch, own_key: RSAKey
) -> None:
    """Tokens of a key that the platform takes for the provider's: each breaks one rule."""
    monkeypatch.setattr(OidcProvider, "_key_set", lambda *_, **__: KeySet([own_key]))
    now = int(time.time())
    claims: dict[str, Any] = {
        "iss": site.issuer, "aud": f"{site.url}/api/mcp", "sub": "alice", "client_id": "agent",
        "iat": now, "exp": now + 300,
    }  # fmt: skip
    header = {"alg": "RS256", "typ": "at+jwt", "kid": own_key.kid}
    for field, value in FORGED[name].items():
        target = header if field in header else claims
        target[field] = value
    claims = {key: value for key, value in claims.items() if value is not None}
    key = own_key if name != "a key of somebody else" else RSAKey.generate_key(2048)
    answer = called(site, jwt.encode(header, claims, key))
    assert answer.status_code == (200 if name == "valid" else 401), answer.text


@pytest.fixture(scope="module")
def own_key() -> RSAKey:
    return RSAKey.generate_key(2048, parameters={"kid": "own"})


@pytest.mark.fault_case(108)
def test_bad_tokens_do_not_lock_out_the_good_ones_of_others(site: Site, token: str) -> None:
    for _ in range(30):
        assert called(site, "eyJhbGciOiJSUzI1NiJ9.e30.AAAA").status_code == 401
    assert called(site, token).status_code == 200


@pytest.mark.fault_case(108)
def test_pages_and_other_tokens_go_on_while_the_provider_stalls(
    tmp_path: Path, built_bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch, own_key: RSAKey
) -> None:
    go, waiting = threading.Event(), []

    def stalled(*_: object, **__: object) -> KeySet:
        waiting.append(1)
        assert go.wait(60)
        return KeySet([own_key])

    # Failures are counted by address, so the other tests have another platform.
    with serve_site(tmp_path, built_bundles) as site, ThreadPoolExecutor(60) as pool:
        monkeypatch.setattr(OidcProvider, "_key_set", stalled)
        try:
            answers = [pool.submit(called, site, "eyJhbGciOiJSUzI1NiJ9.e30.AAAA") for _ in range(60)]
            wait_until(lambda: len(waiting) >= 4, "checks that wait for the provider")
            assert called(site, site.world.tokens["robot"]).status_code == 200
            assert httpx.get(f"{site.url}/login", timeout=60).status_code == 200
            assert len(waiting) == 4
        finally:
            go.set()
        assert {answer.result(60).status_code for answer in answers} == {401}


def test_a_damaged_token_is_refused_in_one_line(site: Site, token: str) -> None:
    for damaged in (token[:-4] + "AAAA", token.replace(".", "", 1), "eyJ", "x" * 4000):
        answer = called(site, damaged)
        assert answer.status_code == 401
        assert "\n" not in answer.json()["error"]["message"]
