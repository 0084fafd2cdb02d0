"""Tests of the tables that the measurement of the overlay generates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from loadtests.overlay import DAY_MS, POINT, SERVERS, Payments, Plan, Tables, fit_once, ids
from scorer.learn.experience import State
from scorer.learn.join.joining import join
from scorer.log import BundleShelf
from scorer.log.source.addresses import decision_source


@pytest.mark.timeout(300)
def test_the_generated_tables_are_those_of_servers_and_the_overlay_learns_from_them(tmp_path: Path) -> None:
    plan = Plan(decisions=3_000, days=5)
    payments = Payments(tmp_path)
    end = payments.learned_ms // DAY_MS * DAY_MS
    tables = Tables(tmp_path, payments, end - plan.days * DAY_MS, plan.per_hour)
    count = tables.write(end)
    assert abs(count - plan.decisions) < 150
    source = decision_source([f"delta:{tmp_path / 'lake'}"])
    assert [one.name for one in source.logs] == list(SERVERS)
    found = join(source, BundleShelf([tmp_path / "live"]), as_of_ms=end, checkpoint=POINT)
    assert len(found.experience) == count
    faults = {one.name for one in found.findings if one.effect in {"excluded", "kept"}}
    assert not faults - {"one action in a week"}
    settled = (found.experience.state == State.SETTLED).mean()
    assert 0.9 < settled < 0.99
    untaught = end - 4 * DAY_MS
    first = fit_once(tmp_path, end, untaught)
    assert first["rebuilt"] and first["kept"] == int((found.experience.state == State.SETTLED).sum())
    assert first["outcomes"] > 1_000
    tables.write(end + 300_000)
    later = fit_once(tmp_path, end + 300_000, untaught)
    assert not later["rebuilt"] and later["joined"] < 100


def test_ids_are_as_long_as_those_of_servers() -> None:
    assert ids(np.array([7, 123])).to_pylist() == ["d" + "0" * 30 + "7", "d" + "0" * 28 + "123"]
