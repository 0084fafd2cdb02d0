"""Tests of the handle to the data plane: exchanged values, and the exception of each failure."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from scorer import bridge, errors
from scorer.v1 import scoring_pb2, scoring_pb2_grpc

FRAUD = "fraud.checkout"
NO_BUNDLE = "sha256:" + "0" * 64


def config(directory: Path, **changes: Any) -> str:
    settings = {
        "listen": "127.0.0.1:0",
        "metrics_listen": "127.0.0.1:0",
        "log": {"dir": str(directory / "log")},
        "checkpoints": {FRAUD: {"kind": "score"}},
    }
    return json.dumps(settings | changes)


def digest_of(bundle: Path) -> str:
    manifest = json.loads((bundle / "manifest.json").read_text())
    digest: str = manifest["digest"]
    return digest


def table(version: int, *lanes: tuple[str, str, float]) -> str:
    names = ("name", "bundle", "share")
    entries = [dict(zip(names, lane, strict=True)) for lane in lanes]
    return json.dumps({"version": version, "checkpoints": {FRAUD: entries}})


@pytest.fixture
def server(tmp_path: Path) -> Iterator[bridge.Server]:
    started = bridge.Server(config(tmp_path))
    yield started
    started.drain(5.0)


def test_a_server_starts_serves_swaps_and_drains(
    server: bridge.Server, built_bundles: dict[str, Path]
) -> None:
    addresses = json.loads(server.addresses())
    assert len(addresses["grpc"]) == 1
    assert json.loads(server.status())["state"] == "NOT_SERVING"

    bundle = built_bundles["score-1"]
    digest = digest_of(bundle)
    report = json.loads(server.load(bundle, digest))
    assert (report["digest"], report["kind"], report["already_loaded"]) == (digest, "score", False)
    assert report["bytes"] == sum(p.stat().st_size for p in bundle.iterdir() if p.name != "manifest.json")
    assert json.loads(server.load(str(bundle), digest))["already_loaded"]
    server.swap(table(1, ("live", digest, 1.0)))
    status = json.loads(server.status())
    assert (status["state"], status["lane_table"], status["log"]["state"]) == ("SERVING", 1, "ok")
    assert [(b["digest"], b["live"]) for b in status["bundles"]] == [(digest, True)]

    with grpc.insecure_channel(addresses["grpc"][0]) as channel:
        stub = scoring_pb2_grpc.ScoringServiceStub(channel)
        described = stub.Describe(scoring_pb2.DescribeRequest(), timeout=10)
        assert [c.bundle for c in described.checkpoints] == [digest]

    server.drain(5.0)
    server.drain(5.0)
    assert json.loads(server.status())["state"] == "DRAINING"
    events = [json.loads(line) for line in server.events()]
    names = [event["event"] for event in events]
    assert names[0] == "log_opened"
    assert names[1:] == ["started", "bundle_loaded", "lanes_swapped", "draining", "stopped"]
    assert all(event["ts"] > 0 and event["level"] == "info" for event in events)
    assert server.events() == []


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda s: s.load("/nonexistent", NO_BUNDLE), errors.LoadError, "manifest.json: the file is missing"),
        (lambda s: s.load("/nonexistent", "fraud@live"), errors.LoadError, '"fraud@live" is not a digest'),
        (lambda s: s.unload("fraud@live"), errors.LoadError, "is not a digest"),
        (lambda s: s.swap("{"), errors.SwapError, "lane table: EOF"),
        (lambda s: s.swap('{"version": 1, "checkpoints": {}}'), errors.SwapError, "is left out"),
        (lambda s: s.swap(table(1, ("live", NO_BUNDLE, 1.0))), errors.SwapError, "is not loaded"),
        (lambda s: s.drain(-1.0), errors.ServerError, "give 0 to 3600"),
        (lambda s: s.drain(float("nan")), errors.ServerError, "give 0 to 3600"),
    ],
)
def test_each_refusal_raises_its_exception(
    server: bridge.Server, call: Callable[[bridge.Server], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as raised:
        call(server)
    assert type(raised.value) is error
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_each_failed_start_raises_its_exception(server: bridge.Server, tmp_path: Path) -> None:
    taken = json.loads(server.addresses())["grpc"][0]
    cases: list[tuple[str, type[Exception], str]] = [
        ("{}", errors.ConfigError, "missing field `checkpoints`"),
        (config(tmp_path / "other", threads=0), errors.ConfigError, '"threads" is 0'),
        (config(tmp_path / "other", listen=taken), errors.ServerError, f"listen {taken}"),
        (config(tmp_path), errors.LogError, "another process"),
    ]
    for text, error, message in cases:
        with pytest.raises(error) as raised:
            bridge.Server(text)
        assert type(raised.value) is error
        assert message in str(raised.value)


def test_calls_of_a_stopped_server_raise_an_error(tmp_path: Path, built_bundles: dict[str, Path]) -> None:
    server = bridge.Server(config(tmp_path))
    server.drain(1.0)
    with pytest.raises(errors.ServerError, match="has been stopped"):
        server.load(built_bundles["score-1"], digest_of(built_bundles["score-1"]))
    with pytest.raises(errors.ServerError, match="has been stopped"):
        server.swap(table(1))


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.fault_case(86)
def test_a_forked_child_gets_an_error_and_the_parent_continues_to_serve(tmp_path: Path) -> None:
    finished = run(
        """
        import json, os, sys
        from scorer import bridge, errors
        server = bridge.Server(sys.argv[1])
        child = os.fork()
        if child == 0:
            try:
                server.status()
            except errors.ForkedProcessError as error:
                del server
                os._exit(7 if '"spawn"' in str(error) else 8)
            os._exit(9)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), json.loads(server.status())["state"])
        """,
        config(tmp_path),
    )
    assert finished.stdout.split() == ["7", "NOT_SERVING"], finished.stderr
    assert finished.returncode == 0


@pytest.mark.fault_case(87)
def test_an_interpreter_exits_without_stopping_the_server(tmp_path: Path) -> None:
    finished = run(
        """
        import sys
        from scorer import bridge
        server = bridge.Server(sys.argv[1])
        """,
        config(tmp_path),
    )
    assert (finished.returncode, finished.stderr) == (0, "")
