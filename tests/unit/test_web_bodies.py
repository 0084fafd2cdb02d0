"""Tests of the limits on request bodies (bytes, time, total memory), without a server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse

from scorer.release.web_settings import WebSettings
from scorer.web.bodies import BodyLimit
from scorer.web.counters import WebCounters
from scorer.web.sources import source

KIB = 1 << 10


class Reader:
    """An application that reads a body and keeps it until the test releases it."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.read = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        more = True
        while more:
            message = await receive()
            self.read += len(message.get("body", b""))
            more = message.get("more_body", False)
        await self.go.wait()


def limit(app: Any, **settings: Any) -> tuple[BodyLimit, WebCounters]:
    counters = WebCounters()
    body_limit = BodyLimit(
        app,
        settings=WebSettings(**settings),
        upload_bytes=10 << 20,
        counters=counters,
        answer=lambda _, status, words: PlainTextResponse(words, status),
    )
    return body_limit, counters


async def request(
    app: Any, size: int, *, path: str = "/x", client: str = "192.0.2.1", pause: float = 0
) -> None:
    """Send a body in parts of 64 KiB."""
    left = [size]

    async def receive() -> Any:
        await asyncio.sleep(pause)
        part = min(left[0], 64 * KIB)
        left[0] -= part
        return {"type": "http.request", "body": b"x" * part, "more_body": left[0] > 0}

    async def send(_: Any) -> None:
        pass

    scope = {"type": "http", "method": "POST", "path": path, "headers": [], "client": (client, 1)}
    await app(scope, receive, send)


def test_the_memory_of_all_bodies_is_bounded_and_released() -> None:
    async def main() -> None:
        reader = Reader()
        app, counters = limit(reader, bodies_mb=4)
        holding = [
            asyncio.create_task(request(app, 1000 * KIB, client=f"192.0.2.{number}")) for number in range(4)
        ]
        while reader.read < 4000 * KIB:
            await asyncio.sleep(0)
        with pytest.raises(HTTPException) as refused:
            await request(app, 1000 * KIB, client="192.0.2.9")
        assert refused.value.status_code == 503
        assert counters.value("requests_refused", "body_memory") == 1
        reader.go.set()
        await asyncio.gather(*holding)
        await request(app, 1000 * KIB, client="192.0.2.9")

    asyncio.run(main())


def test_one_address_gets_at_most_a_quarter_of_the_memory() -> None:
    async def main() -> None:
        reader = Reader()
        app, _ = limit(reader, bodies_mb=8)
        holding = [asyncio.create_task(request(app, 1000 * KIB)) for _ in range(2)]
        while reader.read < 2000 * KIB:
            await asyncio.sleep(0)
        with pytest.raises(HTTPException):
            await request(app, 1000 * KIB)
        reader.go.set()
        await request(app, 1000 * KIB, client="192.0.2.2")
        await asyncio.gather(*holding)

    asyncio.run(main())


def test_an_upload_is_written_to_disk_and_uses_no_memory() -> None:
    async def main() -> None:
        reader = Reader()
        reader.go.set()
        app, _ = limit(reader, bodies_mb=1)
        await request(app, 5000 * KIB, path="/models")
        with pytest.raises(HTTPException) as refused:
            await request(app, 12_000 * KIB, path="/models")
        assert refused.value.status_code == 413

    asyncio.run(main())


@pytest.mark.parametrize(("path", "most"), [("/login", 16 * KIB), ("/logout", 16 * KIB), ("/x", 1024 * KIB)])
def test_a_body_without_a_length_is_counted_as_it_arrives(path: str, most: int) -> None:
    async def main() -> None:
        reader = Reader()
        reader.go.set()
        app, counters = limit(reader)
        await request(app, most, path=path)
        with pytest.raises(HTTPException) as refused:
            await request(app, most + 1, path=path)
        assert refused.value.status_code == 413
        assert counters.value("requests_refused", "body_bytes") == 1

    asyncio.run(main())


def test_a_stalled_body_is_abandoned_and_a_slow_large_one_is_not() -> None:
    async def main() -> None:
        reader = Reader()
        reader.go.set()
        app, _ = limit(reader, body_seconds=0.2)
        with pytest.raises(HTTPException) as refused:
            await request(app, 10, pause=60)
        assert refused.value.status_code == 408
        # Each 64 KiB extend the time limit by one second.
        await request(app, 1024 * KIB, pause=0.05)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("address", "one"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("x" * 1000, "x" * 64),
    ],
)
def test_addresses_are_grouped_to_sources(address: str, one: str) -> None:
    assert source(address) == one
