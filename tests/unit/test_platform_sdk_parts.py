"""Tests of parts of the SDK: its imports, the storage of tokens, and which requests are repeated."""

from __future__ import annotations

import io
import json
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from scorer.commands.following import Progress
from scorer.release import errors
from scorer.release.errors import (
    ConflictError,
    FrozenError,
    InvalidError,
    NotAuthenticatedError,
    PlatformError,
    UnreachableError,
)
from scorer.release.problems import KINDS, error_of, kind_of
from scorer.sdk import PlatformClient, credentials
from scorer.sdk.transport import Transport


def test_importing_the_sdk_imports_no_database_and_no_server() -> None:
    code = (
        "import sys, scorer.sdk; "
        "print([m for m in ('sqlalchemy', 'alembic', 'fastapi', 'uvicorn', 'plotly', 'grpc', 'apprise') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- refusals ---


def test_every_platform_error_has_its_own_type_and_is_raised_again() -> None:
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PlatformError)
    ]
    assert len(kinds) > 8
    for kind in kinds:
        result = kind_of(kind("x"))
        assert result.error is kind and result.status >= 400
        assert error_of(result.type, result.status) is kind
    own = [kind for kind in KINDS if issubclass(kind.error, PlatformError)]
    assert len({kind.name for kind in own}) == len(own)


@pytest.mark.parametrize(
    ("status", "body", "raised"),
    [
        (423, {"type": "urn:scorer:problem:frozen", "detail": "closed"}, FrozenError),
        (409, {"type": "urn:scorer:problem:conflict", "detail": "taken"}, ConflictError),
        (502, "<html>bad gateway</html>", UnreachableError),
        (401, "go away", NotAuthenticatedError),
        (418, {"no": "problem"}, PlatformError),
    ],
)
def test_error_responses_raise_errors(status: int, body: object, raised: type[Exception]) -> None:
    content = body if isinstance(body, str) else json.dumps(body)
    transport, requests = _transport(lambda _: httpx.Response(status, text=content))
    with pytest.raises(raised) as caught:
        transport.send("POST", "/x")
    assert type(caught.value) is raised
    assert len(requests) == 1


# --- retries ---


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scorer.sdk.transport.time.sleep", lambda _: None)


def _transport(
    answer: Callable[[httpx.Request], httpx.Response],
) -> tuple[Transport, list[httpx.Request]]:
    requests: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        request.read()
        requests.append(request)
        return answer(request)

    client = httpx.Client(transport=httpx.MockTransport(handle), base_url="http://platform")
    return Transport("http://platform", "secret", client=client), requests


def _then_succeed(*first: Exception | int) -> Callable[[httpx.Request], httpx.Response]:
    waiting = list(first)

    def answer(_: httpx.Request) -> httpx.Response:
        if waiting:
            one = waiting.pop(0)
            if isinstance(one, Exception):
                raise one
            return httpx.Response(one)
        return httpx.Response(200, json={})

    return answer


CUT = httpx.ReadError("cut")
REFUSED = httpx.ConnectError("refused")


@pytest.mark.parametrize(
    ("method", "repeatable", "mishaps", "sent"),
    [
        ("GET", None, [503, CUT], 3),
        ("PUT", None, [502], 2),
        ("DELETE", None, [CUT], 2),
        ("POST", True, [CUT, 504], 3),
        ("POST", None, [REFUSED, REFUSED], 3),
    ],
)
def test_idempotent_requests_are_retried(
    method: str, repeatable: bool | None, mishaps: list[Exception | int], sent: int
) -> None:
    transport, requests = _transport(_then_succeed(*mishaps))
    transport.send(method, "/x", repeatable=repeatable)
    assert len(requests) == sent


@pytest.mark.parametrize("mishap", [CUT, 503, 500])
def test_requests_that_may_have_taken_effect_are_not_retried(mishap: Exception | int) -> None:
    transport, requests = _transport(_then_succeed(mishap))
    with pytest.raises(PlatformError):
        transport.send("POST", "/changes/cr-000001/approve", json={})
    assert len(requests) == 1


def test_retries_are_bounded_and_the_error_reports_them() -> None:
    transport, requests = _transport(_then_succeed(*[REFUSED] * 9))
    with pytest.raises(UnreachableError, match="is it running"):
        transport.send("GET", "/me")
    assert len(requests) == 4


def test_every_attempt_sends_the_complete_body() -> None:
    transport, requests = _transport(_then_succeed(CUT, CUT))
    transport.send("POST", "/x", content=lambda: iter([b"ab", b"cd"]), repeatable=True)
    assert [request.content for request in requests] == [b"abcd"] * 3


def test_a_retried_draft_has_the_same_idempotency_key() -> None:
    mishaps: list[Exception | int] = [CUT]
    change = {"id": "cr-000001"}

    def answer(_: httpx.Request) -> httpx.Response:
        if mishaps:
            raise CUT if mishaps.pop() is CUT else AssertionError
        return httpx.Response(201, json=change)

    transport, requests = _transport(answer)
    platform = PlatformClient("http://platform", "secret", client=transport._client)
    with pytest.raises(PlatformError, match="cannot read"):
        platform.draft(project="fraud", checkpoint="c", bundle="abcd", title="t")
    keys = [request.headers["idempotency-key"] for request in requests]
    assert len(keys) == 2 and len(set(keys)) == 1


# --- tokens ---


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def test_a_stored_token_is_readable_only_by_its_owner(home: Path) -> None:
    file = credentials.keep(credentials.Credentials("https://a.example", "t"))
    assert file == home / "scorer" / "token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert credentials.find(None, None) == ("https://a.example", "t")
    file.chmod(0o640)
    with pytest.raises(NotAuthenticatedError, match="can be read by others"):
        credentials.find(None, None)


def test_a_stored_token_is_sent_to_no_other_address(home: Path) -> None:
    credentials.keep(credentials.Credentials("https://a.example", "t"))
    with pytest.raises(NotAuthenticatedError, match=r"a token for https://b\.example is missing"):
        credentials.find("https://b.example", None)
    assert credentials.find("https://a.example", None).token == "t"


def test_the_environment_has_precedence_over_the_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    credentials.keep(credentials.Credentials("https://a.example", "t"))
    monkeypatch.setenv("SCORER_PLATFORM_URL", "https://b.example/")
    monkeypatch.setenv("SCORER_PLATFORM_TOKEN", "u")
    assert credentials.find(None, None) == ("https://b.example", "u")
    assert credentials.find("https://c.example", "v") == ("https://c.example", "v")


def test_an_empty_variable_counts_as_unset(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not credentials.known()
    credentials.keep(credentials.Credentials("https://a.example", "t"))
    monkeypatch.setenv("SCORER_PLATFORM_URL", "")
    monkeypatch.setenv("SCORER_PLATFORM_TOKEN", "")
    assert credentials.find(None, None) == ("https://a.example", "t")
    assert credentials.known()


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_of_a_step_is_one_line_on_a_terminal(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setattr("sys.stdout", stream)
    progress = Progress(quiet=False)
    progress.running("100 rows")
    progress.running("250 rows")
    progress.event("done")
    text = stream.getvalue()
    if terminal:
        assert text.count("\n") == 1 and text.endswith("\rdone\n")
    else:
        assert text == "100 rows\n250 rows\ndone\n"


@pytest.mark.parametrize("url", ["", "example.com", "ftp://x", "https://user:pw@host", "https://h/?a=b"])
def test_invalid_addresses_are_refused(home: Path, url: str) -> None:
    with pytest.raises((InvalidError, NotAuthenticatedError)):
        credentials.find(url, "t")


@pytest.mark.parametrize("content", ["", "[]", '{"url": "https://a.example"}', "\x00"])
def test_the_error_of_a_damaged_file_names_the_remedy(home: Path, content: str) -> None:
    file = credentials.keep(credentials.Credentials("https://a.example", "t"))
    file.write_text(content)
    with pytest.raises(NotAuthenticatedError, match="scorer login URL"):
        credentials.find(None, None)
