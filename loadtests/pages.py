"""`make bench-pages`: measure the answer times of a checkpoint's metrics and the rate of counting logs.

The command generates the rollups that the platform would have made of half a year at 1,000 decisions per
second: three servers, two lanes, a new version each month. A platform with these rollups answers over HTTP,
through REST and as a page. Then millions of encoded log records are decoded and counted, as in the platform's
background thread. The time to read them from disk is not included.
"""

from __future__ import annotations

import argparse
import re
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final

import httpx
import numpy as np
import uvicorn

from loadtests.figures import Figures
from loadtests.runs import add_run_options, open_run
from scorer.bundle.statistics import distribution
from scorer.errors import RegistryError
from scorer.log.scanning import entry_of
from scorer.release.open import PlatformServices, open_service
from scorer.release.readout import rows
from scorer.release.settings import PlatformFile
from scorer.release.store import micros, utcnow
from scorer.release.timeseries import cells
from scorer.release.timeseries.adding import add_days
from scorer.release.timeseries.batch import ANSWER, OUTCOME, OutcomeRule, SeriesName
from scorer.release.timeseries.expiry import HOUR, MINUTE, MINUTES_KEPT
from scorer.release.timeseries.ledger import Ledger
from scorer.release.timeseries.names import Names, References
from scorer.release.timeseries.windows import WINDOWS
from scorer.stats.arrays import Floats
from scorer.v1.log_pb2 import DecisionRecord, LogRecord
from scorer.web.app import create_app

COMMAND: Final = "make bench-pages"
CHECKPOINT: Final = "fraud.checkout"
SERVERS: Final = ("scorer-1", "scorer-2", "scorer-3")
LABELS: Final = ("approve", "review", "decline")
DAYS: Final = 183
RATE: Final = 1_000
MOST_SECONDS: Final = 1.0
BATCH: Final = 20_000
_MONTH: Final = 30 * 24 * HOUR
SETTINGS: Final = """
[platform]
database = "platform.sqlite"
listen = "127.0.0.1:0"
[checkpoints."fraud.checkout"]
alias = "fraud-checkout@live"
p99_ms = 5.0
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--days", type=int, default=DAYS, help="days of rollups that are generated")
    parser.add_argument("--rate", type=int, default=RATE, help="decisions a second")
    parser.add_argument("--records", type=int, default=2_000_000, help="log records that are counted")
    parser.add_argument("--rounds", type=int, default=7)
    add_run_options(parser)
    asked = parser.parse_args(arguments)
    figures = open_run(asked, group="pages")
    if asked.smoke:
        asked.days, asked.records, asked.rounds = 3, 40_000, 1
    with tempfile.TemporaryDirectory() as name:
        _answers(Path(name), figures, asked)
    with tempfile.TemporaryDirectory() as name:
        _counting(Path(name), figures, asked.records)
    _say(f"\n{figures.path}")
    return 0


def _answers(folder: Path, figures: Figures, asked: argparse.Namespace) -> None:
    (folder / "platform.toml").write_text(SETTINGS)
    platform = open_service(PlatformFile.load(folder / "platform.toml"))
    try:
        began = time.perf_counter()
        ledger, reference = platform.service.metrics.ledger, _reference(folder / "bundle")
        count, total = generate(ledger, reference, micros(utcnow()), asked.days, asked.rate, HOUR)
        generate(ledger, reference, micros(utcnow()), 2, asked.rate, MINUTE)
        added = time.perf_counter()
        with ledger.file.writing() as connection:
            add_days(connection)
        added = time.perf_counter() - added
        size = ledger.file.path.stat().st_size / 2**20
        _say(
            f"{total:,} decisions in {count:,} cells of hours, those of two days of minutes, and those of "
            f"days (added in {added:.1f} s), {size:,.0f} MiB, made in {time.perf_counter() - began:.0f} s"
        )
        _, token = platform.service.access.bootstrap("admin")
        with _serving(platform) as url, httpx.Client(base_url=url, timeout=120) as client:
            _sign_in(client, token)
            _say(f"{'window':8} {'REST first':>11} {'REST warm':>11} {'page warm':>11}  bytes of the page")
            for window in WINDOWS:
                _window(client, token, window, figures, asked.rounds)
    finally:
        platform.close()


def _window(client: httpx.Client, token: str, window: str, figures: Figures, rounds: int) -> None:
    rest, page = f"/api/v1/checkpoints/{CHECKPOINT}/metrics", f"/checkpoints/{CHECKPOINT}/metrics"
    bearer = {"Authorization": f"Bearer {token}"}
    first, _ = _timed(client, rest, window, bearer)
    warm = [_timed(client, rest, window, bearer)[0] for _ in range(rounds)]
    pages = [_timed(client, page, window, {}) for _ in range(rounds)]
    seconds = [one for one, _ in pages]
    _say(
        f"{window:8} {first * 1e3:8,.0f} ms {median(warm) * 1e3:8,.0f} ms {median(seconds) * 1e3:8,.0f} ms  "
        f"{pages[0][1]:,}"
    )
    figures.add(
        name=f"page of a checkpoint's metrics, {window}", ours=seconds, unit="s", target=MOST_SECONDS,
        command=COMMAND,
    )  # fmt: skip


def _timed(client: httpx.Client, path: str, window: str, headers: dict[str, str]) -> tuple[float, int]:
    began = time.perf_counter()
    answer = client.get(path, params={"window": window}, headers=headers)
    answer.raise_for_status()
    return time.perf_counter() - began, len(answer.content)


def _sign_in(client: httpx.Client, token: str) -> None:
    found = re.search(r'name="csrf" value="([^"]+)"', client.get("/login").text)
    form = {"csrf": found[1] if found else "", "token": token}
    answer = client.post("/login", data=form)
    if answer.status_code != 303:
        sys.exit(f"error: the sign-in was answered with {answer.status_code}")


@contextmanager
def _serving(platform: PlatformServices) -> Iterator[str]:
    config = uvicorn.Config(
        create_app(platform, platform.settings), host="127.0.0.1", port=0, log_level="warning"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        until = time.monotonic() + 60
        while not server.started:
            if time.monotonic() > until or not thread.is_alive():
                sys.exit("error: the platform does not start")
            time.sleep(0.02)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)


def generate(
    ledger: Ledger, references: References, now: int, days: int, rate: int, step: int
) -> tuple[int, int]:
    """Write the rollups of the last days. Return the numbers of cells and of decisions.

    Args:
        ledger: Ledger whose file is written.
        references: References that give the bins of scores.
        now: The current time, microseconds.
        days: Number of days.
        rate: Decisions per second of all servers together.
        step: Length of a cell (a minute or an hour), microseconds.
    """
    random = np.random.default_rng(1)
    end = now // step * step
    start = max(end - days * 24 * HOUR, end - MINUTES_KEPT if step == MINUTE else 0)
    count = total = 0
    with ledger.file.writing() as connection:
        names = Names(connection, references)
        for label in LABELS:
            names.label(CHECKPOINT, label)
        for at in range(start, end, step):
            month = at // _MONTH
            for lane, share, version in (("live", 0.9, month), ("canary", 0.1, month + 1)):
                bundle = "sha256:" + f"{version:064x}"
                names.bins(bundle)
                outcome = names.series(SeriesName(CHECKPOINT, "", "", OUTCOME, bundle, "score"), at)
                size = int(rate * step / 1e6 * share / len(SERVERS))
                for server in SERVERS:
                    own = names.series(SeriesName(CHECKPOINT, server, lane, ANSWER, bundle, "score"), at)
                    counts = _counts(size, random)
                    place = np.flatnonzero(counts)
                    cell = cells.encode(place, counts[place])
                    connection.execute("INSERT INTO cells VALUES (?, ?, ?, ?, ?)", (step, own, at, *cell))
                    count, total = count + 1, total + size
                reported = np.array([cells.REPORTED, cells.POSITIVE]), np.full(2, 3 * size // 500)
                if reported[1][0]:
                    values = step, outcome, at, *cells.encode(*reported)
                    connection.execute("INSERT INTO cells VALUES (?, ?, ?, ?, ?)", values)
    return count, total


def _counts(rows: int, random: np.random.Generator) -> np.ndarray:
    found = np.zeros(cells.WIDTH, dtype=np.int64)
    found[cells.ROWS] = rows
    found[cells.FALLBACKS] = rows // 2_000
    for base, middle, width in ((cells.EXEC, 160, 12), (cells.LOAD, 110, 15)):
        found[base : base + cells.TIME_BINS] = random.multinomial(rows, _bell(middle, width))
    found[cells.SCORE : cells.SCORE + 10] = random.multinomial(rows, [0.1] * 10)
    found[cells.LABEL : cells.LABEL + 3] = random.multinomial(rows, [0.9, 0.07, 0.03])
    return found


def _bell(middle: int, width: int) -> Floats:
    shares = np.exp(-(((np.arange(cells.TIME_BINS) - middle) / width) ** 2) / 2)
    return np.asarray(shares / shares.sum(), dtype=np.float64)


def _counting(folder: Path, figures: Figures, records: int) -> None:
    """Decode and count encoded records, one batch at a time."""
    rules = {CHECKPOINT: OutcomeRule({"fraud": ["score"]})}
    now = micros(utcnow())
    ledger = Ledger(folder / "metrics.sqlite", _no_bundle, now=lambda: now, rules=lambda: rules)
    random = np.random.default_rng(2)
    begin = now - records * 1_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rates = []
    for first in range(1, records + 1, BATCH):
        payloads = _payloads(first, min(BATCH, records + 1 - first), begin, random)
        began = time.process_time()
        batch = ledger.batch(SERVERS[0])
        for sequence, payload in enumerate(payloads, first):
            record = entry_of(sequence, payload).record
            batch.decision(record, rows.answer_row(sequence, record))
        ledger.apply("log", first, first + len(payloads) - 1, batch)
        rates.append(len(payloads) / (time.process_time() - began))
    ledger.close()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    _say(
        f"\n{records:,} records counted: median {median(rates):,.0f} a second of processor time, "
        f"first batch {rates[0]:,.0f}, last {rates[-1]:,.0f}; memory grew by {grown:,.0f} MiB, the file has "
        f"{ledger.file.path.stat().st_size / 2**20:,.0f} MiB"
    )
    figures.add(
        name="log records decoded and counted, per second of processor time", ours=rates, unit="1/s",
        target=float(10 * RATE), command=COMMAND, higher_is_better=True,
    )  # fmt: skip


def _payloads(first: int, count: int, begin: int, random: np.random.Generator) -> list[bytes]:
    times = np.exp(random.normal(6, 0.5, (2, count))).astype(int)
    scores = random.random(count)
    features = [1.0] * 20
    return [
        LogRecord(
            decision=DecisionRecord(
                decision_id=f"payment-{first + at:012}",
                checkpoint=CHECKPOINT,
                lane="live",
                bundle=b"\x01" * 32,
                decided_at_us=begin + (first + at) * 1_000,
                features=features,
                score=scores[at],
                decision=LABELS[int(scores[at] > 0.9)],
                exec_us=int(times[0][at]),
                data_load_us=int(times[1][at]),
            )
        ).SerializeToString()
        for at in range(count)
    ]


def _reference(folder: Path) -> References:
    folder.mkdir()
    own = distribution(np.random.default_rng(3).random(10_000)).model_dump_json()
    (folder / "reference.json").write_text(f'{{"training": {own}, "validation": {own}}}')
    return References(lambda _: folder)


def _no_bundle(digest: str) -> Path:
    raise RegistryError(f"there is no bundle {digest}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
