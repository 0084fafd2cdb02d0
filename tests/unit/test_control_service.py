"""Tests of the control service over gRPC: every error has a status, internal errors an id."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from fakes import FakeDataPlane, RecordedEvents, fake_bundle, fake_verify

from scorer import config, errors
from scorer.control import service as control
from scorer.control.controller import Controller
from scorer.control.state import StateDirectory
from scorer.control.watcher import Watcher
from scorer.events import EventLog
from scorer.registry import Registry
from scorer.v1 import control_pb2 as pb
from scorer.v1 import control_pb2_grpc

SETTINGS = '[checkpoints."fraud.checkout"]\nkind = "score"\nalias = "fraud-checkout@live"\n'

CODES = {
    "UnknownCheckpointError": "NOT_FOUND",
    "UnknownReferenceError": "NOT_FOUND",
    "CheckpointExistsError": "ALREADY_EXISTS",
    "ConfigError": "INVALID_ARGUMENT",
    "InvalidLanesError": "INVALID_ARGUMENT",
    "InvalidReferenceError": "INVALID_ARGUMENT",
    "AmbiguousReferenceError": "INVALID_ARGUMENT",
    "RegistryUnavailableError": "UNAVAILABLE",
    "ControlUnavailableError": "UNAVAILABLE",
    "ServerError": "UNAVAILABLE",
    "NothingToRestoreError": "FAILED_PRECONDITION",
    "ManagedCheckpointError": "FAILED_PRECONDITION",
    "StaleLaneTableError": "ABORTED",
    "RegistryError": "FAILED_PRECONDITION",
    "BundleError": "FAILED_PRECONDITION",
    "LoadError": "FAILED_PRECONDITION",
    "SignatureError": "FAILED_PRECONDITION",
    "SwapError": "FAILED_PRECONDITION",
}


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_has_its_grpc_code(name: str) -> None:
    code = control.status_of(getattr(errors, name)("text"))
    assert code is grpc.StatusCode[CODES.get(name, "INTERNAL")]


Scenario = Callable[[Any, Controller, FakeDataPlane], Awaitable[None]]


class Setting:
    def __init__(self, base: Path) -> None:
        self.base = base
        self.events = RecordedEvents()
        self.registry = Registry(base / "registry", verify=fake_verify)
        self.digests = [self.registry.push(self._bundle(content)) for content in ("a", "b")]
        self.registry.alias("fraud-checkout", "live", self.digests[0])

    def _bundle(self, content: str) -> Path:
        fake_bundle(self.base / content, content=content)
        return self.base / content

    def run(self, scenario: Scenario) -> None:
        asyncio.run(self._run(scenario))

    async def _run(self, scenario: Scenario) -> None:
        settings = config.parse(SETTINGS, base=self.base, environment={})
        state = StateDirectory(settings.server.state_dir)
        state.prepare()
        plane = FakeDataPlane()
        controller = Controller(settings, plane, self.registry, state, EventLog(self.events))
        watcher = Watcher(controller)
        await watcher.poll()
        service = control.ControlService(
            controller, watcher, version="1.2.3", build_profile="debug", started_at_ms=5
        )
        server, address = await control.start(service, "127.0.0.1:0")
        try:
            async with grpc.aio.insecure_channel(address) as channel:
                await scenario(control_pb2_grpc.ControlServiceStub(channel), controller, plane)
        finally:
            await server.stop(None)
            state.release()
            self.registry.close()


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


def test_every_method_works(setting: Setting) -> None:
    first, second = setting.digests

    async def scenario(stub: Any, controller: Controller, _: FakeDataPlane) -> None:
        status = await stub.GetStatus(pb.GetStatusRequest())
        assert (status.version, status.state, status.lane_table, status.started_at_ms) == (
            "1.2.3",
            "SERVING",
            1,
            5,
        )
        (bundle,) = status.bundles
        assert (bundle.digest, bundle.live, bundle.decisions, bundle.load_ms) == (first, True, 3, 1.5)
        assert status.registry.reachable
        assert status.resident_bytes > 1 << 20
        done = await stub.Swap(pb.SwapRequest(checkpoint="fraud.checkout", bundle=second))
        assert (done.lane_table, done.bundle, done.previous_bundle) == (2, second, first)
        again = await stub.Swap(pb.SwapRequest(checkpoint="fraud.checkout", bundle=second))
        assert (again.lane_table, again.bundle, again.previous_bundle) == (2, second, second)
        listed = await stub.ListLanes(pb.ListLanesRequest())
        (checkpoint,) = listed.checkpoints
        assert (checkpoint.kind, checkpoint.following, checkpoint.lanes[0].bundle) == ("score", "", second)
        lanes = [pb.Lane(name="a", bundle=first, share=0.25), pb.Lane(name="b", bundle=second, share=0.75)]
        assert (
            await stub.SetLanes(pb.SetLanesRequest(checkpoint="fraud.checkout", lanes=lanes))
        ).lane_table == 3
        assert (await stub.Rollback(pb.RollbackRequest())).lane_table == 4
        (checkpoint,) = (await stub.ListLanes(pb.ListLanesRequest())).checkpoints
        assert [lane.bundle for lane in checkpoint.lanes] == [second]
        controller.drain()
        assert (await stub.GetStatus(pb.GetStatusRequest())).state == "DRAINING"

    setting.run(scenario)


def test_the_service_sets_observe_lanes(setting: Setting) -> None:
    first, second = setting.digests
    text = '[{"feature":  "amount", "op": "present"}]'

    async def scenario(stub: Any, controller: Controller, plane: FakeDataPlane) -> None:
        lanes = [
            pb.Lane(name="cr-000001", bundle=second[7:19], sample=0.25, filter=text),
            pb.Lane(name="aa", bundle="fraud-checkout@live", sample=0.25, pool=True),
        ]
        wanted = pb.SetObserversRequest(checkpoint="fraud.checkout", lanes=lanes, reason="cr-000001 table 1")
        assert (await stub.SetObservers(wanted)).lane_table == 2
        assert (await stub.SetObservers(wanted)).lane_table == 2
        (checkpoint,) = (await stub.ListLanes(pb.ListLanesRequest())).checkpoints
        assert [(lane.name, lane.bundle, lane.share) for lane in checkpoint.lanes] == [("live", first, 1)]
        assert list(checkpoint.observers) == [
            pb.Lane(name="cr-000001", bundle=second, sample=0.25, filter=text),
            pb.Lane(name="aa", bundle=first, sample=0.25, pool=True),
        ]
        assert checkpoint.following == "fraud-checkout@live", "observe lanes pin no bundle"
        (event,) = setting.events.named("observing")
        assert event["reason"] == "cr-000001 table 1"

        status = await stub.GetStatus(pb.GetStatusRequest())
        assert list(status.checkpoints[0].observers) == list(checkpoint.observers)
        assert (list(status.observers), status.role, status.HasField("pool")) == ([], "live", False)
        assert {b.digest: b.live for b in status.bundles} == {first: True, second: False}
        plane.extra_status = {
            "observers": [
                {"checkpoint": "fraud.checkout", "lane": "cr-000001", "bundle": second, "pool": False,
                 "seen": 2**40, "left_out": 3, "taken": 4, "dropped": 1, "shed": 2, "evaluated": 3,
                 "failed": {"panic": 1}, "unlogged": 0, "waiting": 5, "stuck": True, "exec_p50_us": 12.5,
                 "exec_p99_us": 40, "exec_p999_us": 80.25, "cpu_seconds": 0.5, "of a later version": [1]},
            ],
            "pool": {"address": "127.0.0.1:7710", "connected": False, "error": "refused", "sent": 7,
                     "dropped": 2, "accepted": 5, "refused": 1},
        }  # fmt: skip
        status = await stub.GetStatus(pb.GetStatusRequest())
        (observer,) = status.observers
        assert (observer.lane, observer.seen, observer.stuck) == ("cr-000001", 2**40, True)
        assert (dict(observer.failed), observer.exec_p99_us) == ({"panic": 1}, 40.0)
        assert (status.pool.address, status.pool.error, status.pool.refused) == (
            "127.0.0.1:7710",
            "refused",
            1,
        )

        for bad, code in (
            (pb.Lane(name="a", bundle=second), grpc.StatusCode.INVALID_ARGUMENT),
            (pb.Lane(name="a", bundle="sha256:" + "0" * 64, sample=1), grpc.StatusCode.NOT_FOUND),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.SetObservers(pb.SetObserversRequest(checkpoint="fraud.checkout", lanes=[bad]))
            assert caught.value.code() is code
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.SetLanes(
                pb.SetLanesRequest(
                    checkpoint="fraud.checkout", lanes=[pb.Lane(name="a", bundle=first, share=1, sample=1)]
                )
            )
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (await stub.SetObservers(pb.SetObserversRequest(checkpoint="fraud.checkout"))).lane_table == 3
        assert controller.table.observe == {}

    setting.run(scenario)


@pytest.mark.fault_case(85)
def test_an_internal_error_returns_an_id_and_logs_a_traceback(setting: Setting) -> None:
    async def scenario(stub: Any, controller: Controller, plane: FakeDataPlane) -> None:
        def broken(*_: object) -> None:
            raise ZeroDivisionError("secret internals")

        plane.load = broken  # type: ignore[assignment,method-assign]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Swap(pb.SwapRequest(checkpoint="fraud.checkout", bundle=setting.digests[1]))
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        details = caught.value.details() or ""
        assert "secret" not in details
        (event,) = setting.events.named("control_failed")
        assert event["id"] in details
        assert "secret internals" in event["traceback"]
        assert controller.table.version == 1

    setting.run(scenario)


def test_a_port_in_use_is_an_error_and_not_shared(setting: Setting) -> None:
    async def scenario(stub: Any, controller: Controller, _: FakeDataPlane) -> None:
        second = control.ControlService(
            controller, Watcher(controller), version="", build_profile="", started_at_ms=0
        )
        server, address = await control.start(second, "127.0.0.1:0")
        try:
            with pytest.raises(
                errors.ServerError, match=r"control_listen 127.0.0.1:\d+: the address is in use"
            ):
                await control.start(second, address)
        finally:
            await server.stop(None)

    setting.run(scenario)
