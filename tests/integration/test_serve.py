"""Tests of the process ``scorer serve``: its ports, events and exit codes."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from bundles import rows
from grpc_health.v1 import health_pb2, health_pb2_grpc
from servers import ACTION, SCORE, RunningServer, open_channel, scorer, settings, start_server
from waiting import wait_until

from scorer.registry import Registry
from scorer.v1 import scoring_pb2 as pb
from scorer.v1 import scoring_pb2_grpc

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def health(channel: grpc.Channel, service: str = "") -> int:
    request = health_pb2.HealthCheckRequest(service=service)
    answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=10, wait_for_ready=True)
    return int(answer.status)


class Caller:
    """Scores one row after the other, as a checkout does."""

    def __init__(self, channel: grpc.Channel, checkpoint: str = "fraud.checkout") -> None:
        self._checkpoint = checkpoint
        self._stub = scoring_pb2_grpc.ScoringServiceStub(channel)
        self._rows = rows(50, seed=7).tolist()
        self._sent = 0

    def score(self) -> pb.ScoreResponse:
        row = self._rows[self._sent % len(self._rows)]
        self._sent += 1
        named = pb.NamedFeatures(
            features=[
                pb.Feature(name=name, number=value)
                for name, value in zip(("amount", "hour", "count_24h", "distance"), row, strict=True)
            ]
        )
        request = pb.ScoreRequest(checkpoint=self._checkpoint, named=named)
        return self._stub.Score(request, timeout=10, wait_for_ready=True)

    def bundle(self) -> str:
        return str(self.score().served.bundle)


def digest_of(registry: Registry, reference: str) -> str:
    return registry.resolve(reference).digest


def variant(registry: Registry, built: dict[str, Path], name: str) -> str:
    return registry.push(built[name])


@pytest.fixture
def server(tmp_path: Path, registry: Registry) -> Iterator[RunningServer]:
    with start_server(tmp_path) as running:
        yield running
        assert running.noise == [], "stderr contains only events"


def test_a_server_serves_both_checkpoints(server: RunningServer, registry: Registry) -> None:
    line = server.serving
    assert line["ready_after_ms"] > 0
    assert line["resident_mb"] > 0
    channel = server.channel()
    assert [health(channel, name) for name in ("", "fraud.checkout", "action.authorise")] == [SERVING] * 3
    assert Caller(channel).bundle() == digest_of(registry, "fraud-checkout@live")
    with urllib.request.urlopen(f"http://{line['metrics']}/metrics", timeout=10) as answer:
        assert b"scorer_" in answer.read()
    status = server.status()
    assert status["state"] == "SERVING"
    assert status["log"]["state"] == "ok"
    assert status["registry"]["reachable"] is True
    assert {c["checkpoint"]: c["following"] for c in status["checkpoints"]} == {
        "fraud.checkout": "fraud-checkout@live",
        "action.authorise": "action-authorise@live",
    }
    assert {bundle["digest"] for bundle in status["bundles"] if bundle["live"]} == set(
        registry.aliases().values()
    )


def test_a_moved_alias_is_followed_without_an_error(
    server: RunningServer, registry: Registry, built_bundles: dict[str, Path]
) -> None:
    caller = Caller(server.channel())
    digests = [registry.push(built_bundles[name]) for name in ("score-2", "score-3", "score-1")]
    expected = caller.bundle()
    for digest in digests * 3:
        registry.alias("fraud-checkout", "live", digest)
        # Requests at every moment of the swap are answered by one of the two bundles.
        seen = {expected}
        while digest not in seen:
            seen.add(caller.bundle())
        assert seen == {expected, digest}
        server.event("swapped", checkpoints={"fraud.checkout": digest})
        assert {caller.bundle() for _ in range(20)} == {digest}, (
            "after the swap no request is answered by the old bundle"
        )
        expected = digest


def test_a_bad_candidate_changes_nothing_and_is_reported_with_its_reason(
    server: RunningServer, registry: Registry, built_bundles: dict[str, Path]
) -> None:
    caller = Caller(server.channel())
    live = caller.bundle()
    bad = registry.push(built_bundles["score-3"])
    file = registry.resolve(bad).path / "forest.bin"
    file.chmod(0o644)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x10
    file.write_bytes(bytes(content))
    registry.alias("fraud-checkout", "live", bad)
    refused = server.event("candidate_refused")
    assert (refused["checkpoint"], refused["bundle"], refused["live"]) == ("fraud.checkout", bad, [live])
    assert "forest.bin" in refused["reason"]
    (rejection,) = server.status()["rejections"]
    assert (rejection["bundle"], rejection["reason"]) == (bad, refused["reason"])
    assert "REFUSED" in server.cli("status").stdout
    assert caller.bundle() == live
    registry.push(built_bundles["score-3"])
    server.event("swapped", checkpoints={"fraud.checkout": bad})
    assert caller.bundle() == bad, "another push repairs the bundle"
    assert server.status()["rejections"] == []


@pytest.mark.fault_case(66)
def test_a_server_waits_for_an_empty_registry(tmp_path: Path, built_bundles: dict[str, Path]) -> None:
    with start_server(tmp_path, settings(SCORE), ready=False) as server:
        waiting = server.event("not_serving")
        assert waiting["missing"] == ["fraud.checkout"]
        assert "does not exist" in waiting["registry"]
        registry = Registry(tmp_path / "registry")
        digest = registry.push(built_bundles["score-1"])
        refused = server.event("candidate_refused")
        assert 'no alias "fraud-checkout@live"' in refused["reason"]
        registry.alias("fraud-checkout", "live", digest)
        server.event("serving")
        assert health(server.channel()) == SERVING
        assert server.stop() == 0


@pytest.mark.fault_case(66, 94)
def test_a_server_is_not_serving_until_every_checkpoint_has_a_bundle(
    tmp_path: Path, built_bundles: dict[str, Path]
) -> None:
    registry = Registry(tmp_path / "registry")
    registry.alias("fraud-checkout", "live", registry.push(built_bundles["score-1"]))
    with start_server(tmp_path, settings(), ready=False) as server:
        assert server.event("not_serving")["missing"] == ["action.authorise"]
        address = server.event("started")["addresses"]["grpc"][0]
        with grpc.insecure_channel(address) as channel:
            assert health(channel) == NOT_SERVING
            assert health(channel, "fraud.checkout") == SERVING
            assert Caller(channel).bundle() == digest_of(registry, "fraud-checkout@live")
            registry.alias("action-authorise", "live", registry.push(built_bundles["action-1"]))
            server.event("serving")
            assert health(channel) == SERVING


@pytest.mark.fault_case(65)
@pytest.mark.parametrize("end", ["SIGTERM", "SIGKILL"])
def test_a_server_boots_from_the_last_known_good_table_without_the_registry(
    tmp_path: Path, registry: Registry, built_bundles: dict[str, Path], end: str
) -> None:
    with start_server(tmp_path) as server:
        moved = registry.push(built_bundles["score-2"])
        registry.alias("fraud-checkout", "live", moved)
        version = server.event(
            "swapped", cause="alias fraud-checkout@live", checkpoints={"fraud.checkout": moved}
        )["lane_table"]
        if end == "SIGKILL":
            server.kill()
        else:
            assert server.stop() == 0
    shutil.rmtree(tmp_path / "registry")
    with start_server(tmp_path) as server:
        assert server.named("restored")[0]["lane_table"] == version
        caller = Caller(server.channel())
        assert caller.bundle() == moved
        assert server.status()["registry"]["reachable"] is False
        assert "registry" in server.event("registry_unavailable")["error"]
        # The registry is reachable again, and its alias has moved.
        fresh = Registry(tmp_path / "registry")
        fresh.alias("action-authorise", "live", fresh.push(built_bundles["action-1"]))
        newest = fresh.push(built_bundles["score-3"])
        fresh.alias("fraud-checkout", "live", newest)
        server.event("swapped", checkpoints={"fraud.checkout": newest})
        assert caller.bundle() == newest
        assert server.stop() == 0


def test_a_damaged_state_directory_falls_back_to_the_registry(tmp_path: Path, registry: Registry) -> None:
    live = digest_of(registry, "fraud-checkout@live")
    with start_server(tmp_path) as server:
        assert server.stop() == 0
    copy = tmp_path / "state" / "bundles" / live.removeprefix("sha256:") / "forest.bin"
    copy.chmod(0o644)
    copy.write_bytes(copy.read_bytes()[:-20])
    with start_server(tmp_path) as server:
        (refused,) = server.named("last_known_good_refused")
        assert refused["checkpoint"] == "fraud.checkout" and "forest.bin" in refused["error"]
        assert Caller(server.channel()).bundle() == live
        assert server.stop() == 0
    (tmp_path / "state" / "last-known-good.json").write_text("{}")
    with start_server(tmp_path) as server:
        assert "is damaged" in server.named("state_unreadable")[0]["error"]
        assert Caller(server.channel()).bundle() == live


def test_swap_lanes_and_rollback_from_the_command_line(
    server: RunningServer, registry: Registry, built_bundles: dict[str, Path]
) -> None:
    caller = Caller(server.channel())
    first, second = caller.bundle(), registry.push(built_bundles["score-2"])
    done = server.cli("swap", "fraud.checkout", second[7:19], "--reason", "try it", "--json")
    assert done.returncode == 0, done.stderr
    assert (json.loads(done.stdout)["bundle"], json.loads(done.stdout)["previous_bundle"]) == (second, first)
    assert caller.bundle() == second
    assert server.event("swapped", cause="swap")["reason"] == "try it"
    assert "pinned" in server.cli("lanes").stdout
    done = server.cli("rollback", "fraud.checkout")
    assert done.returncode == 0, done.stderr
    assert caller.bundle() == first
    split = server.cli("lanes", "fraud.checkout", f"a={first[7:19]}:0.5", f"b={second}:0.5")
    assert split.returncode == 0, split.stderr
    assert {caller.bundle() for _ in range(200)} == {first, second}
    # A move of the alias ends the pin.
    third = registry.push(built_bundles["score-3"])
    registry.alias("fraud-checkout", "live", third)
    server.event("swapped", checkpoints={"fraud.checkout": third})
    assert caller.bundle() == third
    assert "follows fraud-checkout@live" in server.cli("lanes", "fraud.checkout").stdout


def test_a_checkpoint_is_added_without_a_restart_and_kept(
    tmp_path: Path, registry: Registry, built_bundles: dict[str, Path]
) -> None:
    refund = "fraud.refund"
    registry.alias("fraud-checkout", "refund", registry.push(built_bundles["score-2"]))
    with start_server(tmp_path) as first:
        channel = first.channel()
        caller = Caller(channel)
        with pytest.raises(grpc.RpcError) as unknown:
            Caller(channel, refund).score()
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
        add = ("add-checkpoint", refund, "--kind", "score", "--alias", "fraud-checkout@refund")
        done = first.cli(*add, "--reason", "refunds are scored too")
        assert done.returncode == 0, done.stderr
        assert first.event("checkpoint_added")["reason"] == "refunds are scored too"
        wait_until(lambda: health(channel, refund) == SERVING)
        assert Caller(channel, refund).bundle() == digest_of(registry, "fraud-checkout@refund")
        assert caller.bundle() == digest_of(registry, "fraud-checkout@live")
        assert "nothing was changed" in first.cli(*add).stdout
        refused = first.cli(*add, "--p99-ms", "20")
        assert refused.returncode == 1 and "(ALREADY_EXISTS)" in refused.stderr
        (line,) = first.cli("add-checkpoint", "a.b", "--kind", "score").stderr.splitlines()
        assert line.startswith("error: ") and "alias: required" in line and "(INVALID_ARGUMENT)" in line
    with start_server(tmp_path) as second:
        assert Caller(second.channel(), refund).bundle() == digest_of(registry, "fraud-checkout@refund")
        done = second.cli("remove-checkpoint", refund)
        assert done.returncode == 0, done.stderr
        with pytest.raises(grpc.RpcError) as gone:
            Caller(second.channel(), refund).score()
        assert gone.value.code() is grpc.StatusCode.UNAVAILABLE
    with start_server(tmp_path) as third:
        shown = {one["checkpoint"] for one in third.status()["checkpoints"]}
        assert shown == {"fraud.checkout", "action.authorise"}


CONTROL_MISTAKES: list[tuple[list[str], str]] = [
    (["swap", "fraud.chekout", "fraud-checkout@live"], 'did you mean "fraud.checkout"? (NOT_FOUND)'),
    (["swap", "fraud.checkout", "fraud-checkout@liv"], 'did you mean "fraud-checkout@live"? (NOT_FOUND)'),
    (["swap", "fraud.checkout", "00000000"], "(NOT_FOUND)"),
    (["swap", "fraud.checkout", "Hello"], "(INVALID_ARGUMENT)"),
    (["swap", "fraud.checkout", "action-authorise@live"], "(FAILED_PRECONDITION)"),
    (
        ["lanes", "fraud.checkout", "a=fraud-checkout@live:0.4"],
        "the shares add up to 0.4; they must add up to 1 (INVALID_ARGUMENT)",
    ),
    (["lanes", "fraud.checkout", "a"], "write NAME=BUNDLE:SHARE"),
    (["rollback"], "no earlier lanes"),
    (["rollback", "nothing"], "(NOT_FOUND)"),
    (["remove-checkpoint", "fraud.checkout"], "is set in scorer.toml"),
]


def test_an_error_of_a_control_command_is_one_line_and_changes_nothing(server: RunningServer) -> None:
    wait_until(lambda: server.status()["lane_table"] == "2")
    for arguments, message in CONTROL_MISTAKES:
        done = server.cli(*arguments)
        assert done.returncode == 1, arguments
        (line,) = done.stderr.splitlines()
        assert line.startswith("error: ")
        assert message in line, line
    assert server.status()["lane_table"] == "2"


def test_control_commands_fail_without_a_control_service(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        done = scorer("status", "--address", f"127.0.0.1:{unused.getsockname()[1]}", cwd=tmp_path)
    assert done.returncode == 1
    assert "check that `scorer serve` runs there" in done.stderr


@pytest.mark.parametrize("key", ["listen", "metrics_listen", "control_listen"])
def test_a_port_in_use_ends_the_start(tmp_path: Path, registry: Registry, key: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        text = settings().replace(f'\n{key} = "127.0.0.1:0"', f'\n{key} = "{address}"')
        with start_server(tmp_path, text, ready=False) as server:
            assert server.wait() == 1
            failed = server.event("start_failed")
            assert address in failed["error"]
            assert "in use" in failed["error"]
            assert server.noise == []


@pytest.mark.fault_case(76)
def test_a_second_server_on_the_same_decision_log_is_refused(tmp_path: Path, server: RunningServer) -> None:
    other = tmp_path / "other"
    other.mkdir()
    text = settings(log=f'dir = "{tmp_path / "decisions"}"', registry=f'path = "{tmp_path / "registry"}"')
    with start_server(other, text, ready=False) as second:
        assert second.wait() == 1
        assert str(tmp_path / "decisions") in second.event("start_failed")["error"]
    assert server.status()["state"] == "SERVING"


def test_a_state_directory_that_cannot_be_created_ends_the_start(tmp_path: Path, registry: Registry) -> None:
    (tmp_path / "file").write_text("")
    with start_server(tmp_path, settings(server='state_dir = "file/state"'), ready=False) as server:
        assert server.wait() == 1
        assert "state_dir" in server.event("start_failed")["error"]


@pytest.mark.fault_case(91)
def test_bad_settings_exit_with_64_before_any_port_is_bound(tmp_path: Path) -> None:
    text = settings(server="threads = 0\nlisen = 1")
    with start_server(tmp_path, text, ready=False, env={"SCORER_LOG__SYNC_MS": "never"}) as server:
        assert server.wait() == 64
        errors = [event["error"] for event in server.named("config_invalid")]
        assert len(errors) == 3
        assert any("scorer.toml:5: server.threads" in error for error in errors)
        assert any("SCORER_LOG__SYNC_MS" in error for error in errors)
        assert {event["event"] for event in server.events} == {"config_invalid"}
    done = scorer("config", "check", "scorer.toml", cwd=tmp_path)
    assert done.returncode == 64
    assert [line.startswith("error: scorer.toml:") for line in done.stderr.splitlines()] == [True, True]
    assert scorer("serve", "--config", "nothing.toml", cwd=tmp_path).returncode == 64


@pytest.mark.fault_case(87)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_cleanly(tmp_path: Path, registry: Registry, number: signal.Signals) -> None:
    with start_server(tmp_path) as server:
        Caller(server.channel()).score()
        assert server.stop(number) == 0
        names = [event["event"] for event in server.events]
        assert (
            names.index("stopping") < names.index("draining") < names.index("stopped") < names.index("exited")
        )
        assert server.named("stopped")[0]["complete"] is True
        assert server.noise == []


@pytest.mark.fault_case(87)
def test_a_signal_ends_a_server_that_waits_for_bundles(tmp_path: Path) -> None:
    with start_server(tmp_path, settings(), ready=False) as server:
        server.event("not_serving")
        assert server.stop() == 0


def test_a_second_signal_ends_the_server_at_once(tmp_path: Path, registry: Registry) -> None:
    with start_server(tmp_path, settings(server="drain_seconds = 300.0")) as server:
        release = threading.Event()

        def stuck() -> Iterator[bytes]:
            release.wait()
            yield b""

        # The drain waits for a request whose body never arrives.
        channel = server.channel()
        call = channel.stream_unary("/scorer.v1.ScoringService/Score").future(stuck())
        Caller(channel).score()
        server.process.send_signal(signal.SIGTERM)
        server.event("draining")
        assert server.process.poll() is None
        assert server.stop() == 1
        assert server.named("killed")[0]["signal"] == "SIGTERM"
        release.set()
        call.cancel()


def test_a_server_can_listen_on_a_unix_socket_only(tmp_path: Path, registry: Registry) -> None:
    text = settings(SCORE, server='uds = "s.sock"').replace('\nlisten = "127.0.0.1:0"', '\nlisten = "off"')
    with start_server(tmp_path, text) as server:
        assert server.serving["grpc"] == [f"unix:{tmp_path / 's.sock'}"]
        with open_channel(server.serving["grpc"][0]) as channel:
            assert Caller(channel).bundle() == digest_of(registry, "fraud-checkout@live")
        assert server.stop() == 0
        assert not (tmp_path / "s.sock").exists()


def test_a_bundle_of_the_wrong_kind_is_refused(tmp_path: Path, registry: Registry) -> None:
    text = settings(SCORE + ACTION.replace("action-authorise", "fraud-checkout"))
    with start_server(tmp_path, text, ready=False) as server:
        refused = server.event("candidate_refused")
        assert refused["checkpoint"] == "action.authorise"
        assert "kind" in refused["reason"]
        assert server.event("not_serving")["missing"] == ["action.authorise"]
