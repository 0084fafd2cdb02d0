"""Tests of the learning loop and its commands over the logs of several servers: the same as over one log."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from logs import write_segment
from loops import AS_OF, POINT, make_loop
from servers import scorer_in_process

from scorer.learn import settings as learn_settings
from scorer.learn.schedule.generation import run_generation
from scorer.learn.schedule.overlay import run_overlay
from scorer.learn.schedule.workspace import Workspace
from scorer.log import LogReader, scanning
from scorer.registry import Registry

LOGS = ("replica-1", "replica-2", "replica-3")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A loop whose log is there twice: whole in `decisions`, and spread at random over three logs."""
    base = make_loop(tmp_path_factory.mktemp("loop"))
    random = np.random.default_rng(4)
    spread: list[list[bytes]] = [[], [], []]
    for _, payload in LogReader(base / "decisions").payloads():
        spread[int(random.integers(3))].append(payload)
    with pytest.MonkeyPatch.context() as patched:
        for place, payloads in enumerate(spread):
            patched.setattr("logs.LOG", bytes([place + 1]) * 16)
            write_segment(base / LOGS[place], 1, 1, payloads)
    return base


@pytest.fixture
def base(template: Path, tmp_path: Path) -> Path:
    return shutil.copytree(template, tmp_path / "base")


def configure(base: Path, *, several: bool) -> Any:
    text = (base / "learn.toml").read_text()
    if several:
        logs = ", ".join(f'"{one}"' for one in LOGS)
        text = text.replace("[schedule]\n", f"[schedule]\nlogs = [{logs}]\n")
    (base / "several.toml").write_text(text)
    return learn_settings.load(base / "several.toml")


def test_a_generation_from_three_logs_is_that_from_one(template: Path, tmp_path: Path) -> None:
    said = []
    for several in (False, True):
        base = shutil.copytree(template, tmp_path / f"base-{several}")
        ran = run_generation(Workspace(base / "work"), configure(base, several=several), base, as_of_ms=AS_OF)
        said.append({step.step: dict(step.says) for step in ran.steps})
    assert said[1] == said[0]
    assert said[0]["gate"]["decision"] == "promote"
    assert said[0]["train"]["candidate"].startswith("sha256:")


def learn(*arguments: str) -> Any:
    done = scorer_in_process("learn", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_commands_read_several_logs(base: Path, delivered: list[int]) -> None:
    """`overlay` and `gate` without a file give what they give with the file of a join of one log."""
    config = ("--config", str(base / "learn.toml"))
    places = ("--bundles", str(base / "registry"))
    logs = [word for one in LOGS for word in ("--log", str(base / one))]
    file, out = str(base / "experience.parquet"), str(base / "overlay.json")
    live = str(Registry(base / "registry").resolve("small@live").path)
    learn("join", "--log", str(base / "decisions"), "--output", file, *places, *config)
    since = ("--since", "2026-01-01")
    alone = learn("overlay", file, "--bundle", live, "--output", out, *since, *config)
    written = Path(out).read_bytes()
    question = ("--bundle", live, "--output", out, *since, *config, *places, *logs)
    assert learn("overlay", *question) == alone and Path(out).read_bytes() == written
    # With a cache, the second run reads one record of each log: the last one, to see that it is the same.
    stored = ("--cache", str(base / "cache"), "--checkpoint", POINT)
    assert learn("overlay", *question, *stored) == alone
    delivered.clear()
    assert learn("overlay", *question, *stored) == alone
    assert len(delivered) == len(LOGS)

    gate = ("--candidate", live, "--live", live, *config)
    judged = learn("gate", file, *gate, "--output", str(base / "verdict-1"))
    again = learn("gate", *gate, *logs, *places, "--output", str(base / "verdict-3"))
    assert again == judged

    refused = scorer_in_process("learn", "overlay", file, *question)
    assert refused.returncode == 2 and "give one of the two" in refused.stderr
    refused = scorer_in_process("learn", "overlay", *question, "--cache", str(base / "cache"))
    assert refused.returncode == 2 and "--cache requires --checkpoint" in refused.stderr


@pytest.fixture
def delivered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sequences of the records that readers have read."""
    read: list[int] = []

    class Counting(scanning.LogReader):
        def payloads(self, advance: Any = None) -> Iterator[tuple[int, bytes]]:
            for sequence, payload in super().payloads(advance):
                read.append(sequence)
                yield sequence, payload

    monkeypatch.setattr(scanning, "LogReader", Counting)
    return read


def test_the_overlay_job_reads_only_what_each_log_gained(base: Path, delivered: list[int]) -> None:
    work, chosen = Workspace(base / "work"), configure(base, several=True)
    run_generation(work, chosen, base, as_of_ms=AS_OF)
    assert len(delivered) > 1000
    delivered.clear()
    first, *_ = run_overlay(work, chosen, base, as_of_ms=AS_OF + 1000).steps
    assert (first.step, first.state) == ("fit", "done")
    assert len(delivered) == len(LOGS)
    # One server is gone: the overlay goes on with what was read of its log, and says so.
    shutil.rmtree(base / LOGS[1])
    after, *_ = run_overlay(work, chosen, base, as_of_ms=AS_OF + 2000).steps
    assert after.says["decisions"] == first.says["decisions"]
    assert after.says["findings"]["unreadable log"] == 1
