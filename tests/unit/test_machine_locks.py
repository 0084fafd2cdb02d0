"""Tests of the locks between tests that need the machine alone and tests that share it."""

from __future__ import annotations

import threading
from pathlib import Path

from machine_locks import holding
from waiting import PATIENCE


def test_tests_that_share_the_machine_run_together(tmp_path: Path) -> None:
    both = threading.Barrier(2)

    def share() -> None:
        with holding(tmp_path, alone=False):
            both.wait(PATIENCE)

    other = threading.Thread(target=share)
    other.start()
    share()
    other.join(PATIENCE)
    assert not both.broken


def test_an_exclusive_test_waits_for_the_others_and_they_wait_for_it(tmp_path: Path) -> None:
    order: list[str] = []
    waiting = threading.Event()

    def alone() -> None:
        waiting.set()
        with holding(tmp_path, alone=True):
            order.append("alone")

    def late() -> None:
        with holding(tmp_path, alone=False):
            order.append("late")

    threads = [threading.Thread(target=alone), threading.Thread(target=late)]
    with holding(tmp_path, alone=False):
        for thread in threads:
            thread.start()
            assert waiting.wait(PATIENCE)
        order.append("early")
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(order) == ["alone", "early", "late"]
    assert order.index("early") < order.index("alone")


def test_tests_that_share_the_lock_do_not_starve_an_exclusive_test(tmp_path: Path) -> None:
    ended = threading.Event()
    turns = [0, 0]

    def share(index: int) -> None:
        while not ended.is_set():
            with holding(tmp_path, alone=False):
                turns[index] += 1

    threads = [threading.Thread(target=share, args=(index,)) for index in (0, 1)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        with holding(tmp_path, alone=True):
            before = list(turns)
            assert turns == before
    ended.set()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
