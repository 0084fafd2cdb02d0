"""Measure a run of the overlay on shipped tables: the first one, one of five minutes, and one after midnight.

::

    make bench-overlay                                  # 10 million decisions, about 10 GB of disk
    python -m loadtests.overlay --decisions 1000000 --days 8
    python -m loadtests.overlay --keep FOLDER           # keep the tables, and do not write them again there
    python -m loadtests.overlay --join-days 10          # with a limit of `[join] days`

The program writes the Delta tables that `scorer ship` would have written for three servers: payments of the
simulator at a constant rate over some days, with outcomes that arrive within seconds to three days. The live
oracle is trained on a week before the last seven days (fewer if there are fewer), so that the overlay learns
from the outcomes of these days. Each run is a process of its own, whose time from start to end and whose peak
memory are measured. The memory includes files that are mapped.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

MOST_SECONDS: Final = 60.0
MOST_MIB: Final = 2048
POINT: Final = "action.authorise"
SERVERS: Final = ("scorer-0", "scorer-1", "scorer-2")
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
POOL_DAYS: Final = 8
_LATE: Final = 0.08
_MISSING: Final = 0.02


@dataclass(frozen=True)
class Plan:
    """What is generated.

    Attributes:
        decisions: Number of decisions.
        days: Days over which they are spread.
        join_days: `[join] days`, if it is set.
    """

    decisions: int
    days: int
    join_days: float | None = None

    @property
    def per_hour(self) -> int:
        """Decisions of an hour."""
        return max(self.decisions // (self.days * 24), 1)

    @property
    def untaught_days(self) -> float:
        """Days at the end that the oracle has not learned from."""
        return min(7.0, self.days / 2)


class Payments:
    """Simulated payments to draw from, and a bundle that was trained on them.

    Args:
        folder: Where the bundle is built.
    """

    def __init__(self, folder: Path) -> None:
        from examples.simulators.outcomes import as_of, decide
        from examples.simulators.payments import baseline_pmf
        from examples.simulators.task import authorise_task
        from examples.simulators.weeks import Market, WeeksPlan
        from scorer.bundle import inspect
        from scorer.learn import settings
        from scorer.learn.training.fitting import fit
        from scorer.learn.training.trained import build_candidate

        market = Market(WeeksPlan(per_hour=60), seed=3)
        arrivals = market.days(0, POOL_DAYS)
        self.truth = market.truth(arrivals)
        pmf = baseline_pmf(arrivals.contexts)
        log = decide(market, arrivals, pmf, "baseline", truth=self.truth)
        self.end_ms = market.plan.start_ms + POOL_DAYS * DAY_MS
        self.rows, self.eligible = arrivals.rows, arrivals.eligible
        self.pmf = np.asarray(pmf, np.float64)
        bundle = folder / "live"
        if not bundle.is_dir():
            text = "[train]\ntrees = 60\ndepth = 4\nfolds = 2\ntau = [0.0]\ncompare = false\nthreads = 1\n"
            known = as_of(log, self.end_ms)
            build_candidate(fit(authorise_task(), known, settings.parse(text).train), bundle, "bench")
        self.bundle = inspect(bundle)
        self.learned_ms = int(log.time_ms.max())


class Tables:
    """Writes the tables hour by hour, with positions as a shipper does.

    The records depend on the arguments alone. What an earlier process has written completely to the folder is
    drawn again and not written again.

    Args:
        folder: Folder of the tables.
        payments: What is drawn from.
        begin_ms: Time of the first decision.
        per_hour: Decisions of an hour.

    Raises:
        SystemExit: The folder has the tables of other arguments, or tables that are not complete.
    """

    def __init__(self, folder: Path, payments: Payments, begin_ms: int, per_hour: int) -> None:
        self._folder = folder
        self._connect(folder)
        self._payments, self._per_hour = payments, per_hour
        self._chance = payments.pmf.cumsum(axis=1) / payments.pmf.sum(axis=1, keepdims=True)
        self._random = np.random.default_rng(1)
        self._sequence = dict.fromkeys(SERVERS, 1)
        self._waiting = np.empty(0, [("at", "<i8"), ("id", "<i8"), ("value", "<f8"), ("server", "i1")])
        self._number = 0
        self.now_ms = begin_ms
        self._plan = {"begin_ms": begin_ms, "per_hour": per_hour}
        self._written = folder / "written.json"
        self._kept_until_ms = self._kept()

    def _connect(self, folder: Path) -> None:
        from scorer.ship.settings import DeltaSection
        from scorer.ship.tables import Tables as Shipped

        self._shipped = {
            server: Shipped(DeltaSection(url=str(folder / "lake")), server) for server in SERVERS
        }
        self._shipped[SERVERS[0]].prepare()
        self._loaded = {name: self._shipped[SERVERS[0]].load(name) for name in ("decisions", "outcomes")}

    def continue_in(self, folder: Path) -> None:
        """Write what follows to tables in another folder that begin as links to the files of these."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        # The files of a table are never changed, only replaced.
        shutil.copytree(self._folder / "lake", folder / "lake", copy_function=os.link)
        (folder / "live").symlink_to(self._folder / "live")
        self._connect(folder)

    def _kept(self) -> int:
        """Return the time up to which the tables are written."""
        if not self._written.is_file():
            if self._loaded["decisions"].version() > 0:
                sys.exit(f"error: the tables in {self._written.parent} are not complete; remove the folder")
            return self.now_ms
        kept = json.loads(self._written.read_bytes())
        if kept["plan"] != self._plan:
            sys.exit(f"error: the tables in {self._written.parent} are of {kept['plan']}; remove the folder")
        return int(kept["until_ms"])

    def write(self, until_ms: int) -> int:
        """Write the records up to a time, and return the number of decisions."""
        before = self._number
        while self.now_ms < until_ms:
            end = min((self.now_ms // HOUR_MS + 1) * HOUR_MS, until_ms)
            self._hour(self.now_ms, end)
            self.now_ms = end
        if until_ms > self._kept_until_ms:
            for table in self._loaded.values():
                table.create_checkpoint()
        return self._number - before

    def keep(self) -> None:
        """Record that the tables are complete up to now, for a later process."""
        self._written.write_text(json.dumps({"plan": self._plan, "until_ms": self.now_ms}))

    def _hour(self, begin: int, end: int) -> None:
        from scorer.log.shipped.position import ShipPosition, fingerprint
        from scorer.log.shipped.schema import DECISIONS, OUTCOMES

        count = max(round(self._per_hour * (end - begin) / HOUR_MS), 1)
        random = self._random
        at = np.sort(random.integers(begin, end, count))
        drawn = random.integers(0, len(self._payments.rows), count)
        last = self._chance.shape[1] - 1
        action = (random.random((count, 1)) > self._chance[drawn]).sum(axis=1).clip(0, last)
        number = np.arange(self._number, self._number + count)
        self._number += count
        works = random.random(count) < self._payments.truth[drawn, action]
        delay = random.exponential(np.where(works, 120_000, 400_000)).astype(np.int64)
        delay = np.where(random.random(count) < _LATE, random.integers(0, 72 * HOUR_MS, count), delay)
        known = random.random(count) >= _MISSING
        new = np.empty(int(known.sum()), self._waiting.dtype)
        new["at"], new["id"], new["value"] = (at + delay)[known] + 1, number[known], works[known]
        new["server"] = random.integers(0, len(SERVERS), len(new))
        waiting = np.concatenate([self._waiting, new])
        due = waiting["at"] < end
        self._waiting, reports = waiting[~due], waiting[due]
        server = random.integers(0, len(SERVERS), count)
        for place, name in enumerate(SERVERS):
            own, told = np.flatnonzero(server == place), reports[reports["server"] == place]
            order = np.argsort(np.concatenate([at[own], told["at"]]), kind="stable")
            sequences = np.empty(len(order), np.int64)
            sequences[order] = np.arange(len(order)) + self._sequence[name]
            self._sequence[name] += len(order)
            log, segment = uuid_of(place), f"{1:010}-{uuid_of(place + 100)}"
            if end <= self._kept_until_ms:
                continue
            position = ShipPosition(
                fingerprint(bytes.fromhex(log)),
                1,
                fingerprint(bytes.fromhex(segment[11:])),
                self._sequence[name],
            )
            origin = {"server": name, "log": log, "segment": segment, "checkpoint": POINT}
            rows = {}
            if len(told):
                rows[OUTCOMES] = self._outcomes(told, sequences[len(own) :], origin)
            if len(own):
                rows[DECISIONS] = self._decisions(
                    number[own], at[own], drawn[own], action[own], sequences[: len(own)], origin
                )
            for table, found in rows.items():
                self._shipped[name].append(self._loaded[table], found, position)

    def _decisions(
        self,
        number: npt.NDArray[np.int64],
        at: npt.NDArray[np.int64],
        drawn: npt.NDArray[np.int64],
        action: npt.NDArray[np.int64],
        sequences: npt.NDArray[np.int64],
        origin: dict[str, str],
    ) -> pa.Table:
        from scorer.log.shipped.schema import DECISIONS

        payments, count = self._payments, len(number)
        pmf = payments.pmf[drawn]
        names = pa.array([one.id for one in payments.bundle.actions])
        return filled(
            DECISIONS,
            count,
            origin,
            {
                "sequence": sequences,
                "hour": hours(at),
                "decided_at": times(at),
                "decision_id": ids(number),
                "kind": "action",
                "lane": "live",
                "lane_table": np.ones(count, np.int64),
                "bundle": payments.bundle.digest,
                "entity": ids(drawn),
                "schema_fingerprint": payments.bundle.schema_fingerprint,
                "action_index": action,
                "action": names.take(pa.array(action)),
                "propensity": pmf[np.arange(count), action],
                "features": lists(payments.rows[drawn].astype(np.float32)),
                "withheld": pa.array([[]] * count, pa.list_(pa.int64())),
                "eligible": lists(payments.eligible[drawn]),
                "pmf": lists(pmf),
                "reasons": pa.array([[]] * count, pa.list_(pa.string())),
            },
        )

    def _outcomes(self, told: Any, sequences: npt.NDArray[np.int64], origin: dict[str, str]) -> pa.Table:
        from scorer.log.shipped.schema import OUTCOMES

        return filled(
            OUTCOMES,
            len(told),
            origin,
            {
                "sequence": sequences,
                "hour": hours(told["at"]),
                "received_at": times(told["at"]),
                "decision_id": ids(told["id"]),
                "kind": "authorised",
                "value": told["value"].copy(),
                "revision": np.zeros(len(told), np.int64),
                "proof": "known decision",
            },
        )


def uuid_of(number: int) -> str:
    """Return 32 hexadecimal digits for a number."""
    return f"{number:032x}"


def ids(numbers: npt.NDArray[np.int64]) -> pa.Array:
    """Return ids of 32 digits, as long as those of a server."""
    return pa.array([f"d{number:031d}" for number in numbers.tolist()], pa.string())


def hours(at_ms: npt.NDArray[np.int64]) -> pa.Array:
    """Return the partition of each time."""
    found, codes = np.unique(at_ms // HOUR_MS, return_inverse=True)
    names = np.datetime_as_string(found.astype("datetime64[h]"))
    return pa.array(names.tolist(), pa.string()).take(pa.array(codes))


def times(at_ms: npt.NDArray[np.int64]) -> pa.Array:
    """Return times as the tables have them."""
    from scorer.log.shipped.schema import TIME

    return pa.array(at_ms * 1000, pa.int64()).cast(TIME)


def lists(rows: npt.NDArray[Any]) -> pa.Array:
    """Return the rows of a matrix as lists."""
    offsets = np.arange(0, rows.size + 1, rows.shape[1], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(rows.ravel()))


def filled(name: str, count: int, origin: dict[str, str], values: dict[str, Any]) -> pa.Table:
    """Return rows of a table: constants are repeated, and columns without values are null."""
    from scorer.log.shipped.schema import SCHEMAS

    columns = []
    for field in SCHEMAS[name]:
        value = (origin | values).get(field.name)
        if value is None:
            columns.append(pa.nulls(count, field.type))
        elif isinstance(value, str):
            columns.append(pa.array([value]).take(pa.array(np.zeros(count, np.int64))))
        else:
            columns.append(value if isinstance(value, pa.Array) else pa.array(value, field.type))
    return pa.Table.from_arrays(columns, schema=SCHEMAS[name])


def fit_once(folder: Path, as_of_ms: int, untaught_ms: int, join_days: float | None = None) -> dict[str, Any]:
    """Run the overlay once in this process, and return what it cost."""
    from scorer.learn.join.settings import JoinSettings
    from scorer.learn.overlay.incremental import OverlayInputs, update
    from scorer.learn.overlay.settings import OverlaySettings
    from scorer.learn.training.tasks import read_task
    from scorer.log import BundleShelf
    from scorer.log.source.addresses import decision_source

    started = time.monotonic()
    live = folder / "live"
    inputs = OverlayInputs(
        source=decision_source([f"delta:{folder / 'lake'}"]),
        shelf=BundleShelf([live]),
        live=live,
        task=read_task(live),
        join=JoinSettings(days=join_days),
        overlay=OverlaySettings(),
        checkpoint=POINT,
        untaught_ms=untaught_ms,
    )
    done = update(inputs, folder / "join", folder / "state", as_of_ms)
    return {
        "seconds": time.monotonic() - started,
        "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "rebuilt": done.rebuilt,
        "joined": done.joined,
        "replayed": done.replayed,
        "kept": done.kept,
        "outcomes": done.fitted.learner.outcomes,
        "has_overlay": done.fitted.spec is not None,
    }


def measure(folder: Path, plan: Plan) -> Iterator[tuple[str, dict[str, Any]]]:
    """Write the tables and run the overlay.

    Yields:
        A name for each run, and what it cost.
    """
    payments = Payments(folder)
    # A moment shortly before noon, so that the runs but the last are of one day.
    end = payments.learned_ms // DAY_MS * DAY_MS + 11 * HOUR_MS
    tables = Tables(folder, payments, end - plan.days * DAY_MS, plan.per_hour)
    untaught = end - round(plan.untaught_days * DAY_MS)
    started = time.monotonic()
    count = tables.write(end)
    tables.keep()
    print(f"{count:,} decisions in tables after {time.monotonic() - started:,.0f} s", flush=True)
    folder = folder / "measured"
    tables.continue_in(folder)
    yield "first run", _child(folder, end, untaught, plan.join_days)
    for name, more in (
        ("5 minutes later", 5 * 60_000),
        ("10 minutes later", 5 * 60_000),
        ("after midnight", 13 * HOUR_MS),
        ("5 minutes after that", 5 * 60_000),
    ):
        end += more
        tables.write(end)
        yield name, _child(folder, end, untaught, plan.join_days)


def _child(folder: Path, as_of_ms: int, untaught_ms: int, join_days: float | None) -> dict[str, Any]:
    words = ["--once", str(folder), str(as_of_ms), str(untaught_ms)]
    words += [] if join_days is None else ["--join-days", str(join_days)]
    done = subprocess.run(
        [sys.executable, "-m", "loadtests.overlay", *words],
        check=True,
        stdout=subprocess.PIPE,
        timeout=6 * 3600,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; the exit code is 1 if the run after five minutes misses its target."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--decisions", type=int, default=10_000_000, help="number of decisions")
    parser.add_argument("--days", type=int, default=30, help="days over which they are spread")
    parser.add_argument("--keep", type=Path, help="folder for the tables, which is not removed")
    parser.add_argument("--join-days", type=float, help="`[join] days`; not given: all days are joined")
    parser.add_argument("--once", nargs=3, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.once:
        folder, as_of, untaught = chosen.once
        print(json.dumps(fit_once(Path(folder), int(as_of), int(untaught), chosen.join_days)))
        return 0
    missed = False
    with tempfile.TemporaryDirectory(prefix="scorer-bench-overlay-") as temporary:
        folder = chosen.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name, cost in measure(folder, Plan(chosen.decisions, chosen.days, chosen.join_days)):
            is_late = cost["seconds"] > MOST_SECONDS or cost["mib"] > MOST_MIB
            missed |= is_late and name != "first run"
            print(
                f"{name:22} {cost['seconds']:8.1f} s {cost['mib']:8,.0f} MiB  {cost['joined']:,} ids joined, "
                f"{cost['replayed']:,} of {cost['outcomes']:,} outcomes replayed, {cost['kept']:,} kept"
                f"{', made anew' if cost['rebuilt'] else ''}",
                flush=True,
            )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
