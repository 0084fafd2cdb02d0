"""Tests of the webhook listener: which deliveries are accepted, and that they only wake the watcher."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest
from fakes import RecordedEvents

from scorer.control.webhook import Deliveries, Listener, Refused, read_secret
from scorer.errors import ServerError
from scorer.events import EventLog

SECRET = b"0123456789abcdef"
NOW = 1_790_000_000


def event(name: str = "fraud-checkout", alias: str = "live", entity: str = "model_version_alias") -> bytes:
    data = {"name": name, "alias": alias, "version": "3"}
    return json.dumps({"entity": entity, "action": "created", "data": data}).encode()


def signed(
    body: bytes, *, sent: object = NOW, identity: str = "d-1", secret: bytes = SECRET
) -> dict[str, str]:
    """Return the headers that MLflow 3.17 sends (mlflow/webhooks/delivery.py)."""
    mac = hmac.new(secret, f"{identity}.{sent}.{body.decode()}".encode(), hashlib.sha256).digest()
    return {
        "x-mlflow-signature": "v1," + base64.b64encode(mac).decode(),
        "x-mlflow-delivery-id": identity,
        "x-mlflow-timestamp": str(sent),
    }


@pytest.fixture
def deliveries() -> Deliveries:
    return Deliveries(SECRET, lambda: ["fraud-checkout@live"], now=lambda: NOW)


def test_a_valid_delivery_is_accepted_once(deliveries: Deliveries) -> None:
    headers = signed(event())
    assert deliveries.concerns_us(headers, event())
    assert not deliveries.concerns_us(headers, event()), "a repeated delivery is refused"
    assert deliveries.concerns_us(signed(event(), identity="d-2"), event())


@pytest.mark.parametrize("body", [event(alias="test"), event(name="other"), event(entity="model_version")])
def test_deliveries_for_other_models_are_ignored(deliveries: Deliveries, body: bytes) -> None:
    assert not deliveries.concerns_us(signed(body), body)


@pytest.mark.parametrize(
    ("headers", "body"),
    {
        "unsigned": ({}, event()),
        "of another secret": (signed(event(), secret=b"fedcba9876543210"), event()),
        "body altered": (signed(event()), event(alias="other")),
        "id altered": ({**signed(event()), "x-mlflow-delivery-id": "d-9"}, event()),
        "time altered": ({**signed(event()), "x-mlflow-timestamp": str(NOW + 1)}, event()),
        "old": (signed(event(), sent=NOW - 301), event()),
        "from the future": (signed(event(), sent=NOW + 301), event()),
        "no time": (signed(event(), sent="now"), event()),
        "not ASCII": ({**signed(event()), "x-mlflow-signature": "v1,\xe9"}, event()),
    }.values(),
)
def test_invalid_deliveries_are_refused(deliveries: Deliveries, headers: dict[str, str], body: bytes) -> None:
    with pytest.raises(Refused) as caught:
        deliveries.concerns_us(headers, body)
    assert caught.value.status == 401


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b"[" * 100_000, b'{"entity":"model_version_alias","data":5}']
)
def test_a_signed_body_that_is_invalid_is_refused(deliveries: Deliveries, body: bytes) -> None:
    with pytest.raises(Refused) as caught:
        deliveries.concerns_us(signed(body), body)
    assert caught.value.status == 400


def test_the_listener_responds_triggers_a_poll_and_continues_after_errors(deliveries: Deliveries) -> None:
    log, woken = RecordedEvents(), []

    async def send(address: str, text: bytes) -> str:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(text)
        answer = await reader.read()
        writer.close()
        return answer.decode().partition("\r\n")[0]

    def request(headers: dict[str, str], body: bytes, **more: Any) -> bytes:
        head = {"Content-Length": len(body), **headers, **more}
        return (
            "\r\n".join(["POST / HTTP/1.1", *(f"{k}: {v}" for k, v in head.items()), "", ""]).encode() + body
        )

    async def scenario() -> list[str]:
        listener = Listener(deliveries, lambda: woken.append(1), EventLog(log))
        at = await listener.start("127.0.0.1:0")
        body = event()
        try:
            return [
                await send(at, b"GET / HTTP/1.1\r\n\r\n"),
                await send(at, b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n"),
                await send(at, b"POST / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n"),
                await send(at, b"POST / HTTP/1.1\r\nContent-Length: " + b"9" * 5_000 + b"\r\n\r\n"),
                await send(at, b"POST / HTTP/1.1\r\n" + b"A: b\r\n" * 10_000),
                await send(at, request({}, body)),
                await send(at, request({}, body)),
                await send(at, request(signed(body), body)),
            ]
        finally:
            await listener.stop()

    answers = asyncio.run(scenario())
    assert [answer.split()[1] for answer in answers] == [
        "405",
        "400",
        "413",
        "413",
        "400",
        "401",
        "401",
        "200",
    ]
    assert woken == [1]
    messages = [json.loads(line) for line in b"".join(log.lines).splitlines()]
    assert [entry["event"] for entry in messages] == ["webhook_refused"] * 5 + ["registry_webhook"]


def test_the_secret_is_read_and_checked(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    with pytest.raises(ServerError, match="No such file"):
        read_secret(file)
    file.write_bytes(SECRET + b"\n")
    file.chmod(0o644)
    with pytest.raises(ServerError, match="chmod 600"):
        read_secret(file)
    file.chmod(0o600)
    assert read_secret(file) == SECRET
    file.write_bytes(b"short")
    with pytest.raises(ServerError, match="openssl rand"):
        read_secret(file)
