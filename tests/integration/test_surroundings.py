"""Tests of permissions, memory, clocks and processors of the machine that a server runs on."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import components
import pytest
from servers import ACTION, SCORE, settings, start_server
from waiting import wait_until

from scorer.client import Client
from scorer.log import LogReader
from scorer.registry import Registry

CONTEXT = {"amount": 25.0, "hour": 13.0, "count_24h": 1.0, "distance": 2.0}
NOBODY = 65_534


@pytest.fixture
def shared_directory(tmp_path: Path, registry: Registry) -> Iterator[Path]:
    """A directory of an unprivileged user, outside of pytest's private directory, with the registry in it."""
    directory = Path(tempfile.mkdtemp(prefix="scorer-rights-"))
    try:
        shutil.copytree(tmp_path / "registry", directory / "registry")
        (directory / "scorer.toml").write_text(settings(SCORE + ACTION))
        for path in [directory, *directory.rglob("*")]:
            os.chown(path, NOBODY, NOBODY)
        yield directory
    finally:
        shutil.rmtree(directory)


def _readable_python(directory: Path) -> str:
    """Return shell commands that make the interpreter readable for all users, in a separate mount namespace.

    A developer's interpreter may lie below /root, which other users cannot enter.
    """
    base = Path(sys.base_prefix).resolve()
    if not base.is_relative_to("/root"):
        return ""
    copy = directory / "python"
    return (
        f"mkdir -p {copy} && mount --bind {base} {copy} && mount -t tmpfs -o mode=755 none /root && "
        f"mkdir -p {base} && mount --bind {copy} {base} && "
    )


@pytest.mark.fault_case(89)
def test_an_unprivileged_user_without_capabilities_serves_from_a_read_only_root(
    shared_directory: Path,
) -> None:
    components.require("unshare and setpriv as root")
    program = _readable_python(shared_directory) + (
        f"mount --bind {shared_directory} {shared_directory} && mount -o remount,bind,ro / && "
        f"! touch /written 2>/dev/null && cd {shared_directory} && "
        f"exec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups --no-new-privs --bounding-set=-all "
        "--inh-caps=-all prlimit --memlock=0:0 "
        f"{sys.executable} -B -m scorer.cli serve --config scorer.toml"
    )
    command = ["unshare", "--mount", "sh", "-c", program]
    with (
        start_server(shared_directory, command=command) as server,
        Client(server.address, timeout=30) as client,
    ):
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert fields["Uid"].split() == [str(NOBODY)] * 4
        assert int(fields["CapEff"], 16) == 0 and fields["NoNewPrivs"] == "1"
        assert client.select_action("action.authorise", CONTEXT, request_id="d").logged
        assert not client.report_outcome("action.authorise", "d", "authorised", 1.0).duplicate
        assert server.stop() == 0, server.transcript()


@pytest.mark.fault_case(17)
@pytest.mark.usefixtures("registry")
def test_steps_of_the_wall_clock_change_neither_deadlines_nor_ids(tmp_path: Path) -> None:
    library = components.faketime_library()
    clock = tmp_path / "clock"
    clock.write_text("+0s\n")
    fake = {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    ids: list[str] = []
    with (
        start_server(tmp_path, settings(SCORE + ACTION), env=fake) as server,
        Client(server.address, timeout=30) as client,
    ):
        for step in ("+0s", "+1h", "-1h", "+0s"):
            clock.write_text(step + "\n")
            if step != "+0s" or ids:
                server.event("clock_stepped")
            for _ in range(50):
                action = client.select_action("action.authorise", CONTEXT, timeout=20)
                assert action.logged and action.served.fallback_reason == ""
                ids.append(action.decision_id)
        assert len(set(ids)) == len(ids)
        assert server.stop() == 0, server.transcript()
    reader = LogReader(tmp_path / "decisions")
    logged = [record.decision for _, record in reader.records() if record.HasField("decision")]
    assert [decision.decision_id for decision in logged] == ids and not reader.findings
    now = time.time() * 1e6
    hours = {round((decision.decided_at_us - now) / 3.6e9) for decision in logged}
    assert hours == {-1, 0, 1}, "the records have the time of the wall clock, including its steps"


@pytest.mark.fault_case(90)
@pytest.mark.usefixtures("registry")
def test_a_smaller_cpuset_causes_a_warning_and_answers_continue(tmp_path: Path) -> None:
    all_cpus = os.sched_getaffinity(0)
    if len(all_cpus) < 2:
        pytest.skip("needs two processors")
    with (
        start_server(tmp_path, settings(SCORE, server="threads = 2")) as server,
        Client(server.address, timeout=30) as client,
    ):

        def pin(cpus: set[int]) -> None:
            for task in Path(f"/proc/{server.process.pid}/task").iterdir():
                os.sched_setaffinity(int(task.name), cpus)

        pin({min(all_cpus)})
        warned = server.event("too_few_cpus")
        assert (warned["threads"], warned["cpus"]) == (2, 1) and "remedy" in warned
        for _ in range(100):
            assert client.score("fraud.checkout", CONTEXT).decision
        pin(all_cpus)
        server.event("enough_cpus")
        assert server.stop() == 0, server.transcript()


@pytest.fixture
def memory_group() -> Iterator[Path]:
    components.require("a memory cgroup")
    group = Path(f"/sys/fs/cgroup/memory/scorer-test-{os.getpid()}")
    group.mkdir()
    yield group
    wait_until(lambda: not (group / "cgroup.procs").read_text(), "the memory group to be empty")
    group.rmdir()


@pytest.mark.fault_case(88)
@pytest.mark.usefixtures("registry")
def test_memory_of_the_working_set_plus_a_fifth_suffices(tmp_path: Path, memory_group: Path) -> None:
    serve = f"exec {sys.executable} -m scorer.cli serve --config scorer.toml"
    program = f"echo $$ > {memory_group}/cgroup.procs && {serve}"
    (tmp_path / "scorer.toml").write_text(settings(SCORE + ACTION))

    def working_set() -> int:
        """Serve under load, and return the memory of the process at the end."""
        with (
            start_server(tmp_path, command=["sh", "-c", program]) as server,
            Client(server.address, timeout=30) as client,
        ):
            threads = [threading.Thread(target=_load, args=(client, 250)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
            assert server.stop() == 0, server.transcript()
        return pages * os.sysconf("SC_PAGE_SIZE")

    limit = int(working_set() * 1.2)
    (memory_group / "memory.limit_in_bytes").write_text(str(limit))
    assert working_set() <= limit
    assert "oom_kill 0" in (memory_group / "memory.oom_control").read_text()


def _load(client: Client, count: int) -> None:
    for _ in range(count):
        client.score("fraud.checkout", CONTEXT)
        client.select_action("action.authorise", CONTEXT)
