"""Tests of the tables in docs/scaling.md: they are those of the measured costs, and follow their formulas."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadtests.sizing import (
    COSTS,
    FORMULAS,
    PAGE,
    RATES,
    Costs,
    Plan,
    control_table,
    limits_table,
    read_costs,
    render,
    sizing_table,
)

ROUND = Costs(
    server_us=100.0,
    nginx_us=50.0,
    haproxy_us=25.0,
    request_bytes=250.0,
    reply_bytes=125.0,
    log_bytes=500.0,
    ship_us=20.0,
    table_bytes=100.0,
    join_us=36.0,
    train_ns=20.0,
    status_bytes=1_000,
    status_us=500.0,
    tick_seconds=0.5,
)


def test_the_page_has_the_tables_of_the_measured_costs() -> None:
    page = PAGE.read_text()
    assert render(page, read_costs()) == page, "run `python -m loadtests.sizing --write`"
    assert read_costs().server_us > 0, COSTS


def test_a_page_without_a_place_for_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match='no place "costs"'):
        render("# Scaling\n", ROUND)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("cores of the servers", [2, 20, 200]),
        ("servers", [2, 3, 25]),
        ("cores of nginx", [1, 10, 100]),
        ("or of HAProxy", [1, 5, 50]),
        ("network to the servers, Mbit/s", [2, 200, 2_000]),
        ("network from the servers, Mbit/s", [1, 100, 1_000]),
        ("decision logs, GB a day", [43.2, 4_320, 43_200]),
        ("cores of the shippers", [1, 4, 40]),
        ("Kafka partitions", [1, 10, 100]),
        ("table, GB a day", [8.64, 864, 8_640]),
        ("table, commits a minute", [2, 3, 25]),
        ("table, files a day after maintenance", [34, 3_375, 33_750]),
        (
            "share of the decisions that a generation learns from",
            [20e6 / 86.4e6, 20e6 / 8.64e9, 20e6 / 86.4e9],
        ),
        # 20 million × (36 µs + 2,500 × 20 ns) = 1,720 s
        ("core hours of a generation", [1_720 / 3_600] * 3),
    ],
)
def test_each_row_follows_its_formula(row: str, expected: list[float]) -> None:
    _, compute = FORMULAS[row]
    assert [compute(ROUND, Plan(), rate) for rate in RATES] == pytest.approx(expected)


def test_the_tables_show_the_formula_with_its_values() -> None:
    table = sizing_table(ROUND)
    assert "| cores of the servers | 2 | 20 | 200 | rate × 100 µs / 50%, at least 2 |" in table
    control = control_table(ROUND)
    assert "| status calls per second | 6 | 200 | 2,000 | servers / 0.5 s |" in control
    assert "| statuses, MB/s | 0.006 | 0.2 | 2 | calls × 1000 bytes |" in control
    assert "| processor time of the platform, cores | 0.003 | 0.1 | 1 | calls × 500 µs |" in control
    limits = limits_table(ROUND)
    assert "| decisions per second of one nginx worker | 10,000 | 50% / 50 µs |" in limits
    assert "| decisions per second of one shipper, and so of one server | 50,000 | 1 / 20 µs |" in limits
    # 8 h × 1,000,000 / 36 / 86,400 s = 9,259
    assert "ends within 8 hours on one core | 9,300 | 8 h / (36 µs × 86,400 s) |" in limits
    assert "| servers whose statuses use one core of the platform | 1,000 | 0.5 s / 500 µs |" in limits
    assert sizing_table(replace(ROUND, server_us=200.0)) != table
