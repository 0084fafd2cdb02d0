"""Tests of the native data plane in a Python process: forks, abrupt exits, repeated starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from servers import environment, settings

PREFIX = """
import os, sys
from pathlib import Path
from scorer import config
from scorer.control.dataplane import NativeDataPlane
settings = config.load(sys.argv[1])
plane = NativeDataPlane(settings)
"""


def run(tmp_path: Path, script: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "scorer.toml").write_text(settings())
    return subprocess.run(
        [sys.executable, "-c", PREFIX + script, str(tmp_path / "scorer.toml")],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.fault_case(86)
def test_a_forked_child_gets_an_error_and_the_parent_continues(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
from scorer.errors import ForkedProcessError
pid = os.fork()
if pid == 0:
    calls = (plane.status, plane.events, plane.addresses, lambda: plane.unload("x"), lambda: plane.drain(0))
    for method in calls:
        try:
            method()
        except ForkedProcessError as error:
            assert "spawn" in str(error)
        else:
            os._exit(7)
    sys.exit(0)  # with everything that runs at exit
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
print(plane.status()["state"])
""",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "NOT_SERVING\n", "")


@pytest.mark.fault_case(87)
def test_an_exit_without_stopping_the_server_is_clean(tmp_path: Path) -> None:
    done = run(tmp_path, "print('leaving')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "leaving\n", "")
    done = run(tmp_path, "raise SystemExit(3)")
    assert (done.returncode, done.stderr) == (3, "")


@pytest.mark.fault_case(87)
def test_servers_start_and_stop_repeatedly_in_one_process(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
threads = set()
for life in range(30):
    plane.drain(1.0)
    plane.drain(1.0)
    threads.add(len(os.listdir("/proc/self/task")))
    plane = NativeDataPlane(settings)
assert len(threads) == 1, f"threads are left behind: {threads}"
""",
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_calls_after_the_stop_raise_errors(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
from scorer.control.lanes import LaneTable
from scorer.errors import ServerError
plane.drain(1.0)
for call in (lambda: plane.load(Path("x"), "sha256:" + "0" * 64), lambda: plane.swap(LaneTable(1, {}))):
    try:
        call()
    except ServerError as error:
        print(error)
""",
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2
