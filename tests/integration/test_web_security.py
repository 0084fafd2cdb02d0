"""Tests over plain HTTP of the pages' security headers, cookies and access rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from browser import serving
from demo_platform import SETTINGS, demo_platform

from scorer.release.access import Attempts
from scorer.release.errors import NotFoundError
from scorer.release.store import utcnow
from scorer.web import sign_ins
from scorer.web.app import create_app
from scorer.web.assets import Assets
from scorer.web.identity import inside
from scorer.web.pages.readout import csv_text
from scorer.web.rendering import island


class Clock:
    def __init__(self) -> None:
        self.ahead = timedelta()

    def __call__(self) -> Any:
        return utcnow() + self.ahead


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def world(tmp_path: Path, clock: Clock) -> Iterator[tuple[Any, dict[str, str]]]:
    platform, tokens = demo_platform(tmp_path, now=clock)
    yield platform, tokens
    platform.close()


Client = Callable[[Any], httpx.Client]


@pytest.fixture
def client() -> Iterator[Client]:
    """Return a function that creates clients of one application, each with separate cookies."""
    with ExitStack() as stack:
        addresses: dict[int, str] = {}

        def visit(platform: Any) -> httpx.Client:
            if id(platform) not in addresses:
                app = create_app(platform, platform.settings)
                addresses[id(platform)] = stack.enter_context(serving(app))
            return stack.enter_context(httpx.Client(base_url=addresses[id(platform)]))

        yield visit


def field(text: str, name: str = "csrf") -> str:
    result = re.search(rf'name="{name}" value="([^"]*)"', text)
    assert result
    return result[1]


def sign_in(site: httpx.Client, token: str, following: str = "/") -> Any:
    form = field(site.get("/login").text)
    return site.post("/login", data={"token": token, "csrf": form, "next": following})


def test_every_response_has_the_security_headers(world: Any, client: Client) -> None:
    site = client(world[0])
    for path in ("/login", "/nowhere", "/static/nothing.css", Assets().url("style.css"), "/api/v1/projects"):
        headers = site.get(path).headers
        policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == "'self'"
        assert policy["frame-ancestors"] == "'none'"
        assert "unsafe" not in policy["style-src"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert headers["x-request-id"]


def test_the_session_cookie_is_restricted_to_this_site(world: Any, client: Client) -> None:
    platform, tokens = world
    answer = sign_in(client(platform), tokens["mia"])
    cookie = answer.headers["set-cookie"].lower()
    assert answer.status_code == 303
    assert cookie.startswith("scorer=")
    assert "httponly" in cookie and "samesite=strict" in cookie and "path=/" in cookie
    assert "domain" not in cookie and "; secure" not in cookie


def test_over_https_the_cookie_is_secure_and_bound_to_the_host(tmp_path: Path, client: Client) -> None:
    toml = SETTINGS.replace("[platform]", '[platform]\npublic_url = "https://scorer.example.com"', 1)
    platform, tokens = demo_platform(tmp_path, toml=toml)
    site = client(platform)
    site.headers["Host"] = "scorer.example.com"
    form = site.get("/login")
    # There is no https proxy here, so the client does not send these cookies.
    site.headers["Cookie"] = form.headers["set-cookie"].split(";")[0]
    answer = site.post("/login", data={"token": tokens["mia"], "csrf": field(form.text)})
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("__Host-scorer=")
    assert "; secure" in cookie.lower() and "path=/;" in f"{cookie.lower()};"
    assert "max-age" in answer.headers["strict-transport-security"]
    site.headers["Cookie"] = cookie.split(";")[0]
    assert site.get("/").status_code == 200
    platform.close()


@pytest.mark.parametrize("form", [{}, {"csrf": ""}, {"csrf": "0" * 64}, {"csrf": "ümläut"}])
def test_a_form_without_its_csrf_token_is_refused(world: Any, form: dict[str, str], client: Client) -> None:
    platform, tokens = world
    site = client(platform)
    sign_in(site, tokens["ada"])
    before = len(platform.service.access.projects(platform.service.access.authenticate(tokens["ada"])))
    for path in ("/projects", "/tokens", "/logout", "/changes/cr-000018/withdraw", "/audit/verify"):
        answer = site.post(
            path, data={**form, "name": "mine", "reason": "none", "label": "x", "role": "admin"}
        )
        assert answer.status_code == 403, path
        assert "csrf" in answer.text
    assert site.get("/").status_code == 200
    after = platform.service.access.projects(platform.service.access.authenticate(tokens["ada"]))
    assert len(after) == before


def test_the_csrf_token_of_another_user_is_refused(world: Any, client: Client) -> None:
    platform, tokens = world
    mia, otto = client(platform), client(platform)
    sign_in(mia, tokens["mia"])
    sign_in(otto, tokens["otto"])
    form = field(mia.get("/tokens").text)
    assert otto.post("/logout", data={"csrf": form}).status_code == 403
    assert otto.post("/logout", data={"csrf": field(otto.get("/").text)}).status_code == 303


def test_a_form_from_another_origin_is_refused(world: Any, client: Client) -> None:
    platform, tokens = world
    site = client(platform)
    sign_in(site, tokens["mia"])
    form = {"csrf": field(site.get("/").text)}
    assert site.post("/logout", data=form, headers={"Origin": "http://evil.example"}).status_code == 403
    assert site.post("/logout", data=form, headers={"Origin": "null"}).status_code == 403
    assert (
        site.post("/logout", data=form, headers={"Origin": str(site.base_url).rstrip("/")}).status_code == 303
    )


def test_signing_in_redirects_only_within_the_site(world: Any, client: Client) -> None:
    platform, tokens = world
    for following in (
        "https://evil.example/",
        "//evil.example",
        "/\\evil.example",
        "javascript:alert(1)",
        "/\t/evil",
    ):
        assert inside(following) == "/"
        assert sign_in(client(platform), tokens["mia"], following).headers["location"] == "/"
    deep = "/changes?state=booked&project=fraud"
    assert sign_in(client(platform), tokens["mia"], deep).headers["location"] == deep


def test_an_unauthenticated_user_is_redirected_to_sign_in_and_back(world: Any, client: Client) -> None:
    platform, tokens = world
    site = client(platform)
    answer = site.get("/audit?action=change.approve")
    assert answer.status_code == 303
    form = site.get(answer.headers["location"])
    assert "Sign in to see this page" in form.text
    following = field(form.text, "next").replace("&amp;", "&")
    done = site.post("/login", data={"token": tokens["ada"], "csrf": field(form.text), "next": following})
    assert done.headers["location"] == "/audit?action=change.approve"


def test_an_expired_session_is_reported(world: Any, clock: Clock, client: Client) -> None:
    platform, tokens = world
    site = client(platform)
    sign_in(site, tokens["mia"])
    form = {"csrf": field(site.get("/").text)}
    clock.ahead = timedelta(days=2)
    answer = site.get("/calendar")
    assert answer.status_code == 303
    assert "Your session has ended" in site.get(answer.headers["location"]).text
    posted = site.post("/changes/cr-000018/withdraw", data={**form, "reason": "late"})
    assert posted.status_code == 303
    assert "/login" in posted.headers["location"]


def test_a_revoked_token_ends_its_sessions(world: Any, client: Client) -> None:
    platform, tokens = world
    site, access = client(platform), platform.service.access
    sign_in(site, tokens["mia"])
    ada = access.authenticate(tokens["ada"])
    mias = next(one for one in access.tokens(ada) if one.user == "mia")
    access.revoke_token(ada, mias.id)
    assert site.get("/").status_code == 303


def test_a_link_in_a_message_is_followed_again_from_this_site(world: Any, client: Client) -> None:
    # With SameSite=Strict, the browser sends no cookie with the first request from another site.
    answer = client(world[0]).get("/changes/cr-000018?a=1&b=2", headers={"Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 200
    assert 'content="0; url=/changes/cr-000018?a=1&amp;b=2"' in answer.text


@pytest.mark.usefixtures("frozen")
def test_repeated_failed_sign_ins_are_throttled(world: Any, client: Client) -> None:
    platform, tokens = world
    site = client(platform)
    wrong = tokens["mia"][:20] + "0" * 27
    statuses = [sign_in(site, wrong).status_code for _ in range(11)]
    assert statuses == [401] * 10 + [429]
    right = sign_in(site, tokens["mia"])
    assert right.status_code == 429  # the same prefix
    assert int(right.headers["retry-after"]) >= 1
    assert "too many failed sign-ins with this token" in right.text.lower()
    # Programs with that token prefix are refused too, but users of other tokens are not.
    program = site.get("/api/v1/me", headers={"Authorization": f"Bearer {wrong}"})
    assert (program.status_code, program.json()["type"]) == (429, "urn:scorer:problem:throttled")
    assert int(program.headers["retry-after"]) >= 1
    assert sign_in(site, tokens["otto"]).status_code == 303
    ada = platform.service.access.authenticate(tokens["ada"])
    entries = platform.service.audit.entries(ada, action="sign_in.")
    assert [entry.action for entry in entries] == ["sign_in.lock"] + ["sign_in.fail"] * 9
    assert {entry.object for entry in entries} == {wrong[:12]}
    assert entries[0].details["way"] == "page" and entries[0].details["address"] == "127.0.0.1"


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the clock, so that failed sign-ins do not expire on a slow machine."""
    monkeypatch.setattr(sign_ins, "Attempts", partial(Attempts, clock=lambda: 0.0))


@pytest.mark.usefixtures("frozen")
def test_wrong_tokens_behind_a_proxy_lock_out_only_the_address_of_their_client(
    tmp_path: Path, client: Client
) -> None:
    """One client of a trusted proxy fails 100 times.

    The platform reads X-Forwarded-For from its right end.
    """
    platform, tokens = demo_platform(tmp_path)
    site = client(platform)
    site.headers["X-Forwarded-For"] = "203.0.113.9"
    form = field(site.get("/login").text)
    for number in range(100):
        site.headers["X-Forwarded-For"] = (
            f"198.51.100.{number}, 203.0.113.9"  # a client may forge the entries on the left
        )
        assert site.post("/login", data={"token": f"scr_{number:08}", "csrf": form}).status_code == 401
    assert sign_in(site, tokens["mia"]).status_code == 429
    for other in ("203.0.113.10", "203.0.113.9, 203.0.113.10", "2001:db8::1"):
        site.headers["X-Forwarded-For"] = other
        assert sign_in(site, tokens["mia"]).status_code == 303
    # An IPv6 client is identified by its /64 prefix.
    for number in range(100):
        site.headers["X-Forwarded-For"] = f"2001:db8:1::{number:x}"
        site.post("/login", data={"token": f"scr_{number:08}", "csrf": form})
    site.headers["X-Forwarded-For"] = "2001:db8:1::ffff"
    assert sign_in(site, tokens["mia"]).status_code == 429
    ada = platform.service.access.authenticate(tokens["ada"])
    assert len(platform.service.audit.entries(ada, action="sign_in.", limit=1000)) >= 60
    assert not platform.service.audit.verify().problems
    platform.close()


@pytest.mark.usefixtures("frozen")
def test_a_client_that_is_not_a_trusted_proxy_cannot_set_its_address(tmp_path: Path, client: Client) -> None:
    toml = SETTINGS.replace("[platform]", "[web]\ntrusted_proxies = []\nsign_in_attempts = 1\n[platform]", 1)
    platform, tokens = demo_platform(tmp_path, toml=toml)
    site = client(platform)
    form = field(site.get("/login").text)
    for number in range(10):
        site.headers["X-Forwarded-For"] = f"203.0.113.{number}"
        assert site.post("/login", data={"token": f"scr_{number:08}", "csrf": form}).status_code == 401
    site.headers["X-Forwarded-For"] = "203.0.113.99"
    assert sign_in(site, tokens["mia"]).status_code == 429
    platform.close()


def test_a_sign_in_form_of_another_session_is_refused(world: Any, client: Client) -> None:
    platform, tokens = world
    form = field(client(platform).get("/login").text)
    site = client(platform)
    site.get("/login")
    assert site.post("/login", data={"token": tokens["mia"], "csrf": form}).status_code == 403


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "localhost.evil"]
)
def test_an_unknown_host_name_is_refused(world: Any, host: str, client: Client) -> None:
    assert client(world[0]).get("/login", headers={"Host": host}).status_code == 400


@pytest.mark.parametrize("host", ["localhost:7710", "127.0.0.1:7710", "[::1]:7710", "10.1.2.3"])
def test_localhost_and_ip_addresses_are_accepted_as_hosts(world: Any, host: str, client: Client) -> None:
    assert client(world[0]).get("/login", headers={"Host": host}).status_code == 200


def test_objects_of_another_project_are_not_found(world: Any, client: Client) -> None:
    platform, tokens = world
    access = platform.service.access
    ada = access.authenticate(tokens["ada"])
    access.add_user(ada, "paul")
    secret = access.create_token(ada, user="paul", label="x", role="viewer")[1]
    site = client(platform)
    sign_in(site, secret)
    for path in ("/changes/cr-000018", "/projects/fraud", "/changes/cr-000018/edit"):
        answer = site.get(path)
        assert answer.status_code == 404, path
        assert "Card-testing" not in answer.text
    assert "cr-0000" not in site.get("/changes").text
    form = field(site.get("/").text)
    assert site.post("/changes/cr-000018/withdraw", data={"csrf": form, "reason": "x"}).status_code == 404


def test_errors_name_the_remedy_and_no_internals(
    world: Any, monkeypatch: pytest.MonkeyPatch, client: Client
) -> None:
    platform, tokens = world
    site = client(platform)
    sign_in(site, tokens["mia"])
    monkeypatch.setattr(platform.service.changes, "list", lambda *_, **__: 1 / 0)
    answer = site.get("/changes")
    assert answer.status_code == 500
    assert answer.headers["x-request-id"] in answer.text
    assert "ZeroDivision" not in answer.text and "Traceback" not in answer.text
    assert "Try again" in answer.text
    assert answer.headers["content-security-policy"]
    missing = site.get("/no/such/page")
    assert missing.status_code == 404
    assert "There is no page at this address" in missing.text


def test_text_of_users_is_escaped(world: Any, client: Client) -> None:
    platform, tokens = world
    site = client(platform)
    sign_in(site, tokens["mia"])
    nasty = "</title><script>alert(1)</script>\"'&"
    form = {
        "csrf": field(site.get("/changes/new").text),
        "title": nasty,
        "kind": "test",
        "project": "fraud",
        "checkpoint": "fraud.checkout",
        "bundle": "5a1f",
        "minutes": "10",
        "description": nasty,
        "then": "draft",
    }
    result = site.post("/changes", data=form).headers["location"]
    for path in (result, "/changes", "/"):
        assert "<script>alert" not in site.get(path).text
    assert "&lt;script&gt;alert" in site.get(result).text
    # Data for charts cannot end its element.
    assert "<" not in island({"title": "</script><!--"})
    assert island([float("nan"), float("inf"), 1.5]) == "[null,null,1.5]"


def test_a_downloaded_table_runs_no_formula_in_a_spreadsheet() -> None:
    text = csv_text(("a", "b"), [("=1+1", -2.5), ("@x", "plain"), ('say "hi", you', None)])
    assert text == 'a,b\r\n\'=1+1,-2.5\r\n\'@x,plain\r\n"say ""hi"", you",\r\n'


def test_headers_of_a_proxy_are_trusted_only_with_its_secret(tmp_path: Path, client: Client) -> None:
    (tmp_path / "secret").write_text("between the two of us\n")
    toml = SETTINGS.replace(
        "[platform]",
        '[platform]\ntrusted_proxy_header = "X-Forwarded-User"\ntrusted_proxy_secret_file = "secret"',
        1,
    )
    platform, _ = demo_platform(tmp_path, toml=toml)
    site = client(platform)
    named = {"X-Forwarded-User": "mia"}
    assert site.get("/", headers=named).status_code == 303
    assert site.get("/", headers={**named, "X-Proxy-Secret": "wrong"}).status_code == 303
    known = {**named, "X-Proxy-Secret": "between the two of us"}
    page = site.get("/tokens", headers=known)
    assert page.status_code == 200
    assert site.post("/tokens", headers=known).status_code == 403
    form = {"csrf": field(page.text), "label": "x", "role": "viewer"}
    assert site.post("/tokens", headers=known, data=form).status_code == 303
    # If a proxy adds its headers to those of the client, the platform cannot tell which are the proxy's.
    secret = ("X-Proxy-Secret", "between the two of us")
    for twice in (
        [("X-Forwarded-User", "ada"), ("X-Forwarded-User", "mia"), secret],
        [("X-Forwarded-User", "mia"), ("X-Proxy-Secret", "wrong"), secret],
    ):
        refused = site.get("/", headers=twice)
        assert refused.status_code == 403
        assert "more than once" in refused.text
    platform.close()


def test_static_paths_cannot_leave_their_directory(world: Any, client: Client) -> None:
    site = client(world[0])
    for path in ("/static/..%2fapp.py", "/static/style.css", "/static/%2e%2e/app.py", "/static/../app.py"):
        assert site.get(path).status_code == 404


def test_the_audit_page_finds_what_was_changed(world: Any, client: Client) -> None:
    platform, tokens = world
    site = client(platform)
    sign_in(site, tokens["ada"])
    form = {"csrf": field(site.get("/audit").text)}
    good = site.post("/audit/verify", data=form)
    head = re.search(r"Head: <code[^>]*>(\d+ [0-9a-f]+)</code>", good.text)
    assert head
    later = site.post("/audit/verify", data={**form, "expect": head[1]})
    assert "entries are unchanged" in later.text
    wrong = site.post("/audit/verify", data={**form, "expect": f"{head[1].split()[0]} {'0' * 64}"})
    assert "The log was modified" in wrong.text
    assert site.post("/audit/verify", data={**form, "expect": "yes"}).status_code == 422


def test_learning_pages_show_generations_and_their_reports_run_no_script(
    world: Any, tmp_path: Path, client: Client
) -> None:
    platform, tokens = world
    site = client(platform)
    sign_in(site, tokens["mia"])
    assert "There is no generation in" in site.get("/learning").text
    folder = tmp_path / "learning" / "generations" / "20261102T030000Z"
    (folder / "verdict").mkdir(parents=True)
    (folder / "join.step.json").write_text('{"step": "join", "seconds": 2.5, "says": {"decisions": 1200}}')
    (folder / "verdict" / "report.html").write_text("<h1>Report</h1><script>alert(1)</script>")
    (folder / "verdict" / "verdict.json").write_text(
        '{"evidence": {"decision": "wait", "reasons": ["too few"]}}'
    )
    page = site.get("/learning")
    assert "20261102T030000Z" in page.text and "too few" in page.text and "1 of 5" in page.text
    assert "1,200" in site.get("/learning/20261102T030000Z").text
    report = site.get("/learning/20261102T030000Z/report")
    assert report.text.startswith("<h1>Report")
    policy = report.headers["content-security-policy"]
    assert policy.startswith("sandbox;") and "script" not in policy
    for name in ("20991102T030000Z", "..", "%2e%2e%2f%2e%2e"):
        assert site.get(f"/learning/{name}/report").status_code == 404
    (folder / "verdict" / "verdict.json").write_text("{")
    assert "cannot be read" in site.get("/learning").text


def test_a_refusal_of_the_service_is_shown_on_the_page_of_the_form(world: Any, client: Client) -> None:
    platform, tokens = world
    site = client(platform)
    sign_in(site, tokens["ada"])
    form = {"csrf": field(site.get("/").text), "percent": "0"}
    answer = site.post("/checkpoints/fraud.checkout/sampling", data=form)
    assert answer.status_code == 422
    assert "sample: Input should be greater than 0" in answer.text and "Shadow sampling" in answer.text
    unsure = site.post("/checkpoints/fraud.checkout/rollback", data={**form, "reason": "slow"})
    assert unsure.status_code == 422
    assert "takes effect immediately" in unsure.text
    assert site.post("/changes/cr-000018/nonsense", data=form).status_code == 404
    assert site.get("/decisions?id=unknown").status_code == 404
    with pytest.raises(NotFoundError):
        platform.service.decisions.find(None, "unknown")


def test_a_body_that_is_too_large_is_not_read(tmp_path: Path, client: Client) -> None:
    toml = SETTINGS.replace("[platform]", "[platform]\nupload_mb = 1", 1)
    platform, tokens = demo_platform(tmp_path, toml=toml)
    site = client(platform)
    sign_in(site, tokens["mia"])
    form = {"csrf": field(site.get("/models").text), "project": "fraud"}
    archive = site.post("/models", data=form, files={"archive": ("b.tar", b"0" * (3 << 20))})
    assert archive.status_code == 413
    assert "upload_mb" in archive.text
    assert site.post("/changes", data={**form, "title": "x" * (2 << 20)}).status_code == 413
    endless = site.post(
        "/changes",
        content=(b"a" * (1 << 16) for _ in range(64)),
        headers={"Content-Type": "application/x-www-form-urlencoded"},
    )
    assert endless.status_code == 413
    platform.close()
