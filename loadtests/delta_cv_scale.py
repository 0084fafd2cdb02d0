"""Measure Delta CV on 10 million customers by 24 months.

::

    python -m loadtests.delta_cv_scale                        # generates 240 million rows, some 2 GB
    python -m loadtests.delta_cv_scale --customers 1000000
    python -m loadtests.delta_cv_scale --keep FOLDER          # keeps the tables, and reuses them
    python -m loadtests.delta_cv_scale --all-controls         # no draw of controls

DuckDB generates the tables. The analysis is `scorer causal delta-cv` in a process of its own; its time from
start to end and its peak memory are measured, with the progress that it shows. Targets: at most 5 minutes and
4 GiB on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import duckdb

MOST_SECONDS: Final = 300.0
MOST_GIB: Final = 4.0
MONTHS: Final = 24
_SHARE: Final = 0.02
_EFFECT: Final = 1.0


def generate(folder: Path, customers: int) -> None:
    """Write `values/` and `adoptions.parquet`: 2 % of customers adopt from the 13th month on."""
    values = folder / "values"
    if (folder / "adoptions.parquet").exists():
        return
    values.mkdir(parents=True, exist_ok=True)
    with duckdb.connect(str(folder / "made.duckdb"), config={"memory_limit": "2GB"}) as connection:
        connection.execute("select setseed(0.5)")
        # The level is lognormal, by the sum of uniform variables; adopters have higher ones.
        connection.execute(
            "create table customers as select id, level, "
            f"case when random() < {_SHARE} * level / 3.5 then 12 + floor(random() * 10)::int end as month "
            "from (select range as id, 3.0 * exp(0.6 * 1.4 * (random() + random() + random() + random() "
            "- 2)) "
            f"as level from range({customers}))"
        )
        parts = max(customers // 1_000_000, 1)
        for part in range(parts):
            connection.execute(
                "copy (select id as customer, (date '2024-01-01' + to_months(m::int))::date as month, "
                "round(level * (1 + 0.3 * sin(m * 0.5236)) * (0.5 + random()) "
                f"+ case when c.month is not null and m >= c.month then {_EFFECT} else 0 end, 2) as margin "
                f"from customers c, range({MONTHS}) t(m) where id % {parts} = {part}) "
                f"to '{values}/part-{part:03d}.parquet' (format parquet)"
            )
            sys.stdout.write(f"\r   generated {part + 1} of {parts} parts")
            sys.stdout.flush()
        sys.stdout.write("\n")
        connection.execute(
            "copy (select id as customer, 'product' as product, "
            "(date '2024-01-01' + to_months(month))::date as adopted from customers where month is not null) "
            f"to '{folder}/adoptions.parquet' (format parquet)"
        )
    (folder / "made.duckdb").unlink()


def main() -> int:
    """Generate, measure, and return 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--customers", type=int, default=10_000_000)
    parser.add_argument("--keep", type=Path, help="Folder of the tables.")
    parser.add_argument("--all-controls", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.keep or Path(temporary)
        generate(folder, chosen.customers)
        task = folder / "task.toml"
        most = "most_controls = 0\n" if chosen.all_controls else ""
        task.write_text(
            f'[causal]\nadoptions = "adoptions.parquet"\ncurrency = "USD"\n{most}'
            '[causal.columns]\nunit = "customer"\nperiod = "month"\nvalue = "margin"\n'
        )
        report = folder / "report.html"
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "scorer.cli", "causal", "delta-cv", str(folder / "values"),
             "--task", str(task), "-o", str(report), "--json"],
            stdout=subprocess.PIPE, check=True, env=os.environ | {"OMP_NUM_THREADS": "2"},
        )  # fmt: skip
        seconds = time.monotonic() - began
        gib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / (1 << 20)
        found = json.loads(done.stdout)
    sys.stdout.write(f"{chosen.customers:,} customers, {chosen.customers * MONTHS:,} rows\n")
    for one in found["effects"]:
        if not one["cohort"]:
            mean = one["mean"]
            sys.stdout.write(
                f"   {one['horizon']:>2} months: {mean['value']:+.3f} ({mean['low']:+.3f} to "
                f"{mean['high']:+.3f}), "
                f"true {one['horizon'] * _EFFECT:+.1f}, {one['matched']:,} of {one['adopters']:,} adopters\n"
            )
    sys.stdout.write(f"   {found['verdict']}, {found['controls']:,} controls in memory\n")
    sys.stdout.write(
        f"   {seconds:.1f} s (target {MOST_SECONDS:.0f} s), {gib:.2f} GiB (target {MOST_GIB:g} GiB)\n"
    )
    return 0 if seconds <= MOST_SECONDS and gib <= MOST_GIB else 1


if __name__ == "__main__":
    sys.exit(main())
