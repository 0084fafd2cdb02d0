"""Tests of what a long process does about its memory."""

from __future__ import annotations

import gc

from scorer.memory import keep_started_objects


def test_objects_of_the_start_are_not_visited_by_collections() -> None:
    """Those that exist before the call are out of all generations; later ones are collected as ever."""
    early: list[object] = [[]]
    try:
        keep_started_objects()
        late: list[object] = [[]]
        visited = {id(one) for one in gc.get_objects()}
        assert id(early) not in visited and id(late) in visited
    finally:
        gc.unfreeze()
