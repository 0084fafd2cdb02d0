"""Tests of the schedule's steps: run once each, atomic, and resumed after a kill at any boundary."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from servers import environment
from waiting import wait_until

from scorer.learn.errors import DataError
from scorer.learn.schedule.overlay import run_overlay
from scorer.learn.schedule.runner import JobStep, is_done, run
from scorer.learn.schedule.workspace import Workspace, as_of_ms, digest
from scorer.learn.settings import LearnSettings

# A loop of three steps, which a child process also runs. The second step has two outputs; one is a directory.
PROGRAM = """
import hashlib, json, os, random, signal, sys
from pathlib import Path
from scorer.learn.schedule.runner import JobStep, run

def one(there, out):
    (out / "numbers.json").write_text(json.dumps([random.Random(7).random() for _ in range(5)]))
    return {"count": 5}

def two(there, out):
    numbers = json.loads((there / "numbers.json").read_text())
    (out / "sums").mkdir()
    for at, number in enumerate(numbers):
        (out / "sums" / f"{at}.txt").write_text(str(sum(numbers[:at + 1])))
    (out / "largest.txt").write_text(str(max(numbers)))
    return {}

def three(there, out):
    # The effect outside: done again it changes nothing.
    Path(there / "alias.txt").write_text((there / "largest.txt").read_text())
    (out / "done.json").write_text("{}")
    return {}

def steps(scale=1):
    return [
        JobStep("one", (), ("numbers.json",), one, {"scale": scale}),
        JobStep("two", ("numbers.json",), ("sums", "largest.txt"), two),
        JobStep("three", ("largest.txt", "sums"), ("done.json",), three),
    ]
"""
CHILD = (
    PROGRAM
    + """
left = int(sys.argv[2])
def at(boundary):
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
run(steps(), Path(sys.argv[1]), at=at)
"""
)
HERE: dict[str, Any] = {}
exec(PROGRAM, HERE)
steps = HERE["steps"]


def state(folder: Path) -> dict[str, bytes]:
    """Return every file with its bytes. Durations are removed from the records."""
    contents = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            content = file.read_bytes()
            if file.name.endswith(".step.json"):
                content = json.dumps({**json.loads(content), "seconds": 0}).encode()
            contents[file.relative_to(folder).as_posix()] = content
    return contents


@pytest.mark.fault_case(79)
def test_a_generation_that_is_killed_at_every_boundary_ends_in_the_same_state(tmp_path: Path) -> None:
    run(steps(), tmp_path / "whole")
    wanted = state(tmp_path / "whole")
    boundaries: list[str] = []
    run(steps(), tmp_path / "counted", at=boundaries.append)
    assert len(boundaries) == 13
    for kill_at in range(len(boundaries)):
        folder = tmp_path / f"killed-{kill_at}"
        done = subprocess.run(
            [sys.executable, "-c", CHILD, str(folder), str(kill_at)],
            env=environment(),
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
        again = run(steps(), folder)
        assert state(folder) == wanted, boundaries[kill_at]
        finished = sum(boundary.endswith("recorded") for boundary in boundaries[:kill_at])
        kept = [one.step for one in again if one.state == "kept"]
        assert len(kept) in (finished, finished + boundaries[kill_at].endswith("recorded"))


def test_completed_steps_are_kept_and_changed_steps_are_repeated(tmp_path: Path) -> None:
    assert [one.state for one in run(steps(), tmp_path)] == ["done"] * 3
    assert [one.state for one in run(steps(), tmp_path)] == ["kept"] * 3
    assert all(is_done(step, tmp_path) for step in steps())
    # Other settings give the same outputs, so later steps are not repeated.
    assert [one.state for one in run(steps(scale=2), tmp_path)] == ["done", "kept", "kept"]
    (tmp_path / "sums/2.txt").write_text("tampered")
    assert [one.state for one in run(steps(scale=2), tmp_path)] == ["kept", "done", "kept"]
    (tmp_path / "one.step.json").write_text("{")
    assert [one.state for one in run(steps(scale=2), tmp_path)] == ["done", "kept", "kept"]
    (tmp_path / "largest.txt").unlink()
    assert not is_done(steps(scale=2)[1], tmp_path)
    assert [one.state for one in run(steps(scale=2), tmp_path)] == ["kept", "done", "kept"]


def test_a_failed_step_keeps_earlier_outputs_and_writes_no_record(tmp_path: Path) -> None:
    run(steps(), tmp_path)
    before = (tmp_path / "numbers.json").read_bytes()

    def fails(there: Path, out: Path) -> Mapping[str, Any]:
        (out / "numbers.json").write_text("half")
        raise DataError("no")

    broken = [JobStep("one", (), ("numbers.json",), fails, {"scale": 3}), *steps()[1:]]
    with pytest.raises(DataError, match="no"):
        run(broken, tmp_path)
    assert (tmp_path / "numbers.json").read_bytes() == before
    assert not (tmp_path / "one.step.json").exists()


def test_a_single_step_can_be_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r'step "two" needs numbers.json'):
        run(steps(), tmp_path, only="two")
    run(steps(), tmp_path, only="one")
    assert [one.step for one in run(steps(), tmp_path, only="two")] == ["two"]
    with pytest.raises(DataError, match='no step "four"; there are one, two, three'):
        run(steps(), tmp_path, only="four")


def test_a_step_without_its_outputs_is_an_internal_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"made no x\.txt"):
        run([JobStep("one", (), ("x.txt",), lambda a, b: {})], tmp_path)


def test_concurrent_runs_are_refused_and_a_killed_run_does_not_block(tmp_path: Path) -> None:
    waited: list[str] = []

    def wait_for_the_lock() -> None:
        with Workspace(tmp_path).locked(wait_seconds=30):
            waited.append("free")

    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, pathlib, signal\n"
            "from scorer.learn.schedule.workspace import Workspace\n"
            "with Workspace(pathlib.Path(sys.argv[1])).locked():\n"
            "    print('held', flush=True)\n"
            "    signal.pause()",
            str(tmp_path),
        ],
        env=environment(),
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(DataError, match=rf"process {holder.pid}\b"), Workspace(tmp_path).locked():
            pass
        waiter = threading.Thread(target=wait_for_the_lock)
        waiter.start()
        assert not waited
        skipped = run_overlay(Workspace(tmp_path), LearnSettings(), tmp_path).steps
        assert [one.step for one in skipped] == ["overlay"]
        assert f"process {holder.pid}" in skipped[0].says["waits"]
    finally:
        holder.kill()
        holder.wait(30)
        if holder.stdout:
            holder.stdout.close()

    def free() -> bool:
        with Workspace(tmp_path).locked():
            return (tmp_path / "lock").read_text() == str(os.getpid())

    waiter.join(30)
    assert waited == ["free"], "a waiting run starts when the other one has ended"
    assert wait_until(free)


def test_generations_are_named_by_their_time(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    assert workspace.generations() == []
    folders = [workspace.generation(1_790_000_000_000 + 3_600_000 * hour) for hour in (2, 0, 1)]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "x").write_text(folder.name)
    assert [as_of_ms(folder) for folder in workspace.generations()] == [
        1_790_000_000_000 + 3_600_000 * hour for hour in range(3)
    ]
    workspace.prune(2)
    assert [as_of_ms(folder) for folder in workspace.generations()] == [1_790_003_600_000, 1_790_007_200_000]


def test_digests_depend_on_names_and_bytes(tmp_path: Path) -> None:
    for name, files in {"a": {"x": "1"}, "b": {"x": "1"}, "c": {"y": "1"}, "d": {"x": "2"}}.items():
        (tmp_path / name).mkdir()
        for file, content in files.items():
            (tmp_path / name / file).write_text(content)
    digests = [digest(tmp_path / name) for name in "abcd"]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3
    assert digest(tmp_path / "none") is None
