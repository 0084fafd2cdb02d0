"""Tests of signing in at a real OpenID provider, and at a malicious one."""

from __future__ import annotations

import base64
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from browser import chromium, serving
from demo_platform import SETTINGS, demo_platform
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey
from oidc_provider import SECRET, provider, sign_in

from scorer.release.model import Role
from scorer.web.app import create_app

OIDC = """
[oidc]
issuer = "{issuer}"
client_id = "scorer"
client_secret_file = "oidc.secret"
name = "Example"
scopes = ["openid", "email", "groups"]
grants = [
  {{ group = "fraud-team", project = "fraud", role = "modeler" }},
  {{ group = "fraud-approvers", project = "fraud", role = "approver" }},
  {{ group = "platform-admins", role = "admin" }},
]
"""


@dataclass
class Site:
    """A platform whose users sign in at an OpenID provider."""

    url: str
    platform: Any
    tokens: dict[str, str]
    stack: ExitStack

    def browser(self) -> httpx.Client:
        return self.stack.enter_context(httpx.Client(timeout=60))

    def actions(self, user: str) -> list[str]:
        admin = self.platform.service.access.authenticate(self.tokens["ada"])
        entries = self.platform.service.audit.entries(admin, limit=1000)
        return [entry.action for entry in entries if user in (entry.actor, entry.object)]


@contextmanager
def serve_site(directory: Path, run: Callable[[str], Any], more: str = "") -> Iterator[Site]:
    """Serve a platform on a port that is registered at its provider, which `run` starts."""
    (directory / "oidc.secret").write_text(SECRET)
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        issuer = stack.enter_context(run(url))
        text = OIDC.format(issuer=issuer) + more
        toml = SETTINGS.replace("[platform]", f'{text}[platform]\npublic_url = "{url}"', 1)
        platform, tokens = demo_platform(directory, toml=toml)
        stack.callback(platform.close)
        stack.enter_context(serving(create_app(platform, platform.settings), listener))
        yield Site(url, platform, tokens, stack)


def real(url: str) -> Any:
    return provider(redirect=f"{url}/login/oidc/callback", after_logout=f"{url}/login?why=out")


@pytest.fixture(scope="module")
def at_provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with serve_site(tmp_path_factory.mktemp("oidc"), real) as site:
        yield site


def members(site: Site) -> dict[str, Role]:
    admin = site.platform.service.access.authenticate(site.tokens["ada"])
    return {one.user: one.role for one in site.platform.service.access.members(admin, "fraud")}


def test_a_user_signs_in_with_the_roles_of_the_groups(at_provider: Site) -> None:
    browser = at_provider.browser()
    begun = browser.get(f"{at_provider.url}/login/oidc?next=/projects")
    query = parse_qs(urlsplit(begun.headers["location"]).query)
    assert (query["response_type"], query["code_challenge_method"]) == (["code"], ["S256"])
    assert {"state", "nonce", "code_challenge"} <= set(query)
    cookie = begun.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=lax" in cookie and "max-age=600" in cookie

    back = sign_in(browser, f"{at_provider.url}/login/oidc?next=/projects", "bob")
    assert back.status_code == 200, back.text
    assert 'content="0; url=/projects"' in back.text
    cookies = [line.lower() for line in back.headers.get_list("set-cookie")]
    assert any(line.startswith("scorer=") and "samesite=strict" in line for line in cookies)
    assert "bob@example.com" in browser.get(f"{at_provider.url}/projects").text
    assert members(at_provider)["bob@example.com"] is Role.APPROVER  # the higher one of two granted roles
    assert {"user.add", "user.tie", "member.set", "session.open"} <= set(
        at_provider.actions("bob@example.com")
    )


def test_an_admin_by_group_loses_the_role_with_the_group(at_provider: Site) -> None:
    browser = at_provider.browser()
    assert sign_in(browser, f"{at_provider.url}/login/oidc", "root").status_code == 200
    assert (
        browser.post(f"{at_provider.url}/audit/verify", data=_csrf(browser, at_provider)).status_code == 200
    )


def _csrf(browser: httpx.Client, site: Site) -> dict[str, str]:
    result = re.search(r'name="csrf" value="([^"]*)"', browser.get(f"{site.url}/tokens").text)
    assert result
    return {"csrf": result[1]}


@pytest.mark.parametrize(
    ("user", "words"), [("eve", "no group admits the account"), ("mallory", "has not verified")]
)
def test_a_user_without_an_admitted_group_is_refused(at_provider: Site, user: str, words: str) -> None:
    browser = at_provider.browser()
    refused = sign_in(browser, f"{at_provider.url}/login/oidc", user)
    assert refused.status_code == 401
    assert words in refused.text
    assert browser.get(f"{at_provider.url}/").status_code == 303
    assert f"{user}@example.com" not in members(at_provider)
    assert at_provider.actions("unknown").count("sign_in.fail") >= 1


def test_signing_out_ends_the_sessions_of_the_platform_and_of_the_provider(at_provider: Site) -> None:
    browser = at_provider.browser()
    sign_in(browser, f"{at_provider.url}/login/oidc", "alice")
    out = browser.post(f"{at_provider.url}/logout", data=_csrf(browser, at_provider))
    page = browser.get(at_provider.url + out.headers["location"])
    assert 'href="/login/oidc/out"' in page.text
    assert browser.get(f"{at_provider.url}/projects").status_code == 303
    there = browser.get(f"{at_provider.url}/login/oidc/out")
    assert "/session/end?client_id=scorer" in there.headers["location"]
    confirm = browser.get(there.headers["location"])
    assert confirm.status_code == 200 and "logout" in confirm.text.lower()


def test_a_code_is_valid_once_and_in_the_browser_that_started_the_sign_in(at_provider: Site) -> None:
    thief, owner = at_provider.browser(), at_provider.browser()
    answer = owner.get(f"{at_provider.url}/login/oidc")
    codes: list[str] = []
    owner.event_hooks["request"].append(lambda request: codes.append(str(request.url)))
    assert sign_in(owner, f"{at_provider.url}/login/oidc", "alice").status_code == 200
    used = next(url for url in codes if "callback?" in url)
    assert answer.status_code == 303
    assert "started in another browser" in thief.get(used).text  # no sign-in was started in this browser
    thief.get(f"{at_provider.url}/login/oidc")
    assert "belongs to another sign-in" in thief.get(used).text
    assert "started in another browser" in owner.get(used).text


def test_the_sign_in_page_offers_both_ways(at_provider: Site) -> None:
    page = at_provider.browser().get(f"{at_provider.url}/login?next=/calendar").text
    assert 'href="/login/oidc?next=%2Fcalendar"' in page and "Sign in with Example" in page
    assert 'name="token"' in page


def test_programs_still_use_tokens(at_provider: Site) -> None:
    browser = at_provider.browser()
    header = {"Authorization": f"Bearer {at_provider.tokens['mia']}"}
    assert browser.get(f"{at_provider.url}/api/v1/me", headers=header).json()["user"] == "mia"


def test_a_browser_sends_the_strict_cookie_after_the_redirect_back(at_provider: Site) -> None:
    """A browser does not send strict cookies after a redirect from another site."""
    with chromium() as started:
        page = started.new_page()
        page.goto(f"{at_provider.url}/changes")
        page.click("text=Sign in with Example")
        page.fill("input[name=login]", "bob")
        page.fill("input[name=password]", "any")
        page.click("button[type=submit]")
        page.click("button[type=submit]")  # consent
        page.wait_for_url("**/changes")
        assert "bob@example.com" in page.text_content("body")
        assert "Sign in" not in page.title()


# === a malicious provider ===


@dataclass
class MaliciousProvider:
    """An OpenID provider that issues the ID tokens that a test sets."""

    key: RSAKey = field(default_factory=lambda: RSAKey.generate_key(2048, {"kid": "one"}))
    claims: dict[str, Any] = field(default_factory=dict)
    make: Callable[[dict[str, Any]], str] | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    nonce: str = ""
    requests: list[str] = field(default_factory=list)
    issuer: str = ""

    def token(self) -> str:
        now = int(time.time())
        claims = {
            "iss": self.issuer, "aud": "scorer", "sub": "1", "iat": now, "exp": now + 300,
            "nonce": self.nonce, "email": "alice@example.com", "email_verified": True,
            "groups": ["fraud-team"], **self.claims,
        }  # fmt: skip
        claims = {name: value for name, value in claims.items() if value is not None}
        return (
            self.make(claims) if self.make else jwt.encode({"alg": "RS256", "kid": "one"}, claims, self.key)
        )

    @contextmanager
    def running(self, _: str) -> Iterator[str]:
        rogue = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                rogue.requests.append(self.path)
                if self.path == "/keys":
                    self.answer({"keys": [rogue.key.as_dict(private=False)]})
                    return
                base = rogue.issuer
                self.answer(
                    {
                        "issuer": base,
                        "authorization_endpoint": f"{base}/authorize",
                        "token_endpoint": f"{base}/token",
                        "jwks_uri": f"{base}/keys",
                        **rogue.metadata,
                    }
                )

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.answer({"access_token": "a", "token_type": "Bearer", "id_token": rogue.token()})

            def answer(self, document: Any) -> None:
                body = json.dumps(document).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield self.issuer
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def attempt(site: Site, rogue: MaliciousProvider, **answer: str) -> httpx.Response:
    """Sign in at the malicious provider; return the platform's response."""
    browser = site.browser()
    begun = browser.get(f"{site.url}/login/oidc")
    query = {name: value[0] for name, value in parse_qs(urlsplit(begun.headers["location"]).query).items()}
    rogue.nonce = query["nonce"]
    given = {"code": "c", "state": query["state"], **answer}
    return browser.get(f"{site.url}/login/oidc/callback", params=given)


def unsigned(claims: dict[str, Any]) -> str:
    parts = ({"alg": "none"}, claims)
    return (
        ".".join(base64.urlsafe_b64encode(json.dumps(p).encode()).decode().rstrip("=") for p in parts) + "."
    )


FAULTS: dict[str, dict[str, Any]] = {
    "another audience": {"claims": {"aud": "somebody-else"}},
    "two audiences, authorized another": {"claims": {"aud": ["scorer", "x"], "azp": "x"}},
    "another issuer": {"claims": {"iss": "https://evil.example"}},
    "another nonce": {"claims": {"nonce": "of another sign-in"}},
    "no nonce": {"claims": {"nonce": None}},
    "expired": {"claims": {"exp": 1_000_000_000}},
    "no expiry": {"claims": {"exp": None}},
    "from the future": {"claims": {"iat": 4_000_000_000, "nbf": 4_000_000_000}},
    "no subject": {"claims": {"sub": None}},
    "a subject that is no text": {"claims": {"sub": ["1"]}},
    "no signature": {"make": unsigned},
    "nonsense": {"make": lambda _: "no.token.at-all"},
    "empty": {"make": lambda _: ""},
    "too long": {"make": lambda _: "x" * 70_000},
    "another key": {
        "make": lambda claims: jwt.encode(
            {"alg": "RS256", "kid": "two"}, claims, RSAKey.generate_key(2048, {"kid": "two"})
        )
    },
    "another key under a known name": {
        "make": lambda claims: jwt.encode(
            {"alg": "RS256", "kid": "one"}, claims, RSAKey.generate_key(2048, {"kid": "one"})
        )
    },
    "a name with a newline": {"claims": {"email": "alice\n@example.com"}},
    "the platform's own name": {"claims": {"email": "platform"}},
    "no name": {"claims": {"email": None}},
    "a name that is no text": {"claims": {"email": {"a": 1}}},
    "an address that is not verified": {"claims": {"email_verified": False}},
    "an address that is verified in words": {"claims": {"email_verified": "true"}},
}


@pytest.fixture(scope="module")
def malicious(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, MaliciousProvider]]:
    rogue = MaliciousProvider()
    web = "[web]\nsign_in_attempts = 1000\n"
    with serve_site(tmp_path_factory.mktemp("rogue"), rogue.running, web) as site:
        yield site, rogue


@pytest.mark.parametrize("fault", FAULTS)
def test_an_invalid_id_token_opens_no_session(malicious: tuple[Site, MaliciousProvider], fault: str) -> None:
    site, rogue = malicious
    rogue.claims, rogue.make = FAULTS[fault].get("claims", {}), FAULTS[fault].get("make")
    answer = attempt(site, rogue)
    assert answer.status_code == 401, answer.text
    assert not any(line.startswith("scorer=") for line in answer.headers.get_list("set-cookie"))
    assert "Traceback" not in answer.text


def test_a_token_signed_with_the_public_key_as_a_secret_is_refused(
    malicious: tuple[Site, MaliciousProvider],
) -> None:
    site, rogue = malicious
    public = rogue.key.as_pem(private=False)
    rogue.claims = {}
    rogue.make = lambda claims: _by_hand(claims, public)
    assert attempt(site, rogue).status_code == 401


def _by_hand(claims: dict[str, Any], secret: bytes) -> str:
    return jwt.encode({"alg": "HS256", "kid": "one"}, claims, OctKey.import_key(base64.b64encode(secret)))


def test_responses_to_another_sign_in_are_refused(malicious: tuple[Site, MaliciousProvider]) -> None:
    site, rogue = malicious
    rogue.claims, rogue.make = {}, None
    assert attempt(site, rogue, state="another").status_code == 401
    assert attempt(site, rogue, iss="https://evil.example").status_code == 401
    assert attempt(site, rogue, error="access_denied").status_code == 401
    assert attempt(site, rogue, code="").status_code == 401
    assert attempt(site, rogue).status_code == 200


def test_an_account_does_not_take_over_the_name_of_another(malicious: tuple[Site, MaliciousProvider]) -> None:
    site, rogue = malicious
    rogue.make = None
    rogue.claims = {"sub": "first", "email": "carol@example.com"}
    assert attempt(site, rogue).status_code == 200
    rogue.claims = {"sub": "second", "email": "carol@example.com"}
    refused = attempt(site, rogue)
    assert refused.status_code == 401 and "belongs to another account" in refused.text
    rogue.claims = {"sub": "first", "email": "dave@example.com"}
    renamed = attempt(site, rogue)
    assert renamed.status_code == 401 and "is now named dave@example.com" in renamed.text


def test_a_role_ends_with_the_next_sign_in_without_the_group(
    malicious: tuple[Site, MaliciousProvider],
) -> None:
    site, rogue = malicious
    rogue.make = None
    rogue.claims = {"sub": "erin", "email": "erin@example.com", "groups": ["fraud-team", "platform-admins"]}
    assert attempt(site, rogue).status_code == 200
    assert members(site)["erin@example.com"] is Role.MODELER
    rogue.claims = {**rogue.claims, "groups": []}
    assert attempt(site, rogue).status_code == 200
    assert "erin@example.com" not in members(site)
    admin = site.platform.service.access.authenticate(site.tokens["ada"])
    assert {one.name: one.admin for one in site.platform.service.access.users(admin)}[
        "erin@example.com"
    ] is False


def test_keys_are_read_again_when_the_provider_rotates_them(
    malicious: tuple[Site, MaliciousProvider],
) -> None:
    site, rogue = malicious
    rogue.claims, rogue.make = {}, None
    assert attempt(site, rogue).status_code == 200
    rogue.key = RSAKey.generate_key(2048, {"kid": "rotated"})
    rogue.make = lambda claims: jwt.encode({"alg": "RS256", "kid": "rotated"}, claims, rogue.key)
    # The platform fetches the keys for an unknown key id at most every 5 s.
    deadline = time.monotonic() + 30
    while attempt(site, rogue).status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert rogue.requests.count("/keys") <= 10


def test_an_unreachable_provider_is_reported_and_tokens_still_work(tmp_path: Path) -> None:
    rogue = MaliciousProvider()

    @contextmanager
    def away(url: str) -> Iterator[str]:
        with rogue.running(url) as issuer:
            pass
        yield issuer

    with serve_site(tmp_path, away) as site:
        browser = site.browser()
        for _ in range(3):
            answer = browser.get(f"{site.url}/login/oidc")
            assert answer.status_code == 503
            assert "does not respond" in answer.text and 'name="token"' in answer.text
        header = {"Authorization": f"Bearer {site.tokens['mia']}"}
        assert browser.get(f"{site.url}/api/v1/me", headers=header).status_code == 200


@pytest.mark.parametrize(
    "metadata", [{"issuer": "https://another.example"}, {"token_endpoint": "ftp://x"}, {"jwks_uri": None}]
)
def test_metadata_that_does_not_match_is_refused(tmp_path: Path, metadata: dict[str, Any]) -> None:
    rogue = MaliciousProvider(metadata=metadata)
    with serve_site(tmp_path, rogue.running) as site:
        assert site.browser().get(f"{site.url}/login/oidc").status_code == 503
