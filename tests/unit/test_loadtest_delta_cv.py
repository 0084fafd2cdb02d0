"""The load test of Delta CV: shares with intervals, and the continuation of a file of outcomes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.simulators.adoption import LEADS, varied
from loadtests import delta_cv
from loadtests.delta_cv import Outcome, Share


def outcome(seed: int, *, low: float = -1.0, unreliable: bool = False) -> Outcome:
    return Outcome(
        effect="none", seed=seed, truth=0.0, mean=0.5, low=low, high=2.0, median=0.0, naive=9.0,
        differences=0.1, plain=0.4, unreliable=unreliable, alarm=False,
        reasons=("late growth",) if unreliable else (), lead=3,
    )  # fmt: skip


class Pool:
    """Measures in this process, and counts."""

    def __init__(self) -> None:
        self.seeds: list[int] = []

    def map(self, work: Any, given: list[tuple[str, int]], chunksize: int) -> Iterator[Outcome]:
        for _, seed in given:
            self.seeds.append(seed)
            yield outcome(seed, unreliable=seed % 2 == 0)


def test_a_share_is_settled_if_its_interval_is_on_one_side_of_the_limits() -> None:
    assert str(Share(190, 200)) == "95.0% of 200 seeds (91.0% to 97.3%)"
    assert not Share(190, 200).settles(0.93, 0.97)
    assert Share(1_900, 2_000).settles(0.93, 0.97)
    assert Share(170, 200).settles(0.93, 0.97), "it is wholly below"
    assert Share(2_000, 2_000).settles(0.93, 0.97), "it is wholly above"
    assert not Share(184, 200).settles(0.93, 0.97)


def test_a_missed_target_states_whether_it_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    def missed(covered: int, seeds: int) -> list[str]:
        found = [outcome(at, low=-1.0 if at < covered else 0.5) for at in range(seeds)]
        return delta_cv._missed("none", delta_cv.summary(found))

    assert missed(190, 200) == []
    (line,) = missed(184, 200)
    assert line.startswith("none: coverage 92.0% of 200 seeds") and line.endswith(", not settled")
    (line,) = missed(160, 200)
    assert line.endswith(", settled")


def test_a_file_of_outcomes_is_continued(tmp_path: Path) -> None:
    file = tmp_path / "seeds.jsonl"
    first, second = Pool(), Pool()
    found = list(delta_cv._outcomes(first, "none", range(10, 13), file))  # type: ignore[arg-type]
    again = list(delta_cv._outcomes(second, "none", range(10, 15), file))  # type: ignore[arg-type]
    assert first.seeds == [10, 11, 12] and second.seeds == [13, 14]
    assert [one.seed for one in again] == [10, 11, 12, 13, 14] and again[:3] == found
    assert len(file.read_text().splitlines()) == 5
    # Seeds of another simulator are others.
    other = Pool()
    list(delta_cv._outcomes(other, "constant", range(10, 11), file))  # type: ignore[arg-type]
    assert other.seeds == [10]


def test_late_worlds_have_every_lead() -> None:
    assert {varied("late", seed).lead for seed in range(60)} == set(LEADS)
