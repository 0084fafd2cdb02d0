"""Measure the lists of change requests and bundles, and the search in them, in a large database.

The rows are written to the tables of the platform and of the registry directly. Each search runs like on the
pages, with the permissions of a user of one project. The page *Models* and its REST operation are requested
over HTTP. The script prints the median and the slowest of several runs, and the median of the processor time
of this process, in which SQLite runs.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import re
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/support"))

import httpx
from bundles import tiny_action_bundle, tiny_score_bundle
from platforms import World

from scorer.release.changes import texts
from scorer.release.store import tables as t

_WORDS = ("deeper", "trees", "of", "the", "model", "for", "cards", "with", "fewer", "false", "alarms")
_BATCH = 5_000


def main() -> None:
    """Run the measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--changes", type=int, default=100_000, help="Number of change requests in the database."
    )
    parser.add_argument("--bundles", type=int, default=100_000, help="Number of bundles in the database.")
    parser.add_argument("--runs", type=int, default=7, help="Number of runs of each search.")
    parser.add_argument(
        "--postgresql", action="store_true", help="Use a temporary PostgreSQL server instead of SQLite."
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        if not options.postgresql:
            _measure(Path(temporary), "platform.sqlite", options)
            return
        from postgres import Postgres

        with Postgres() as server:
            _measure(Path(temporary), server.url(server.database()), options)


def _measure(root: Path, database: str, options: argparse.Namespace) -> None:
    for variant in (1, 2):
        tiny_score_bundle(root / f"score-{variant}", variant=variant)
    tiny_action_bundle(root / "action-1")
    bundles = {name: root / name for name in ("score-1", "score-2", "action-1")}
    world = World(root / "platform", bundles, database=database)
    try:
        _fill(world, options.changes, options.bundles)
        viewer, service = world.actor("viewer"), world.service
        for text in ("", "nowhere to be found", "needle", "of the", "e"):
            search = partial(service.changes.list, viewer, text=text)
            _show(f'changes, "{text}"', options.runs, search)
        for text in ("", "nowhere to be found", "needle", "fraud", "e"):
            search = partial(service.bundles.list, viewer, text=text, limit=51)
            _show(f'bundles, "{text}"', options.runs, search)
        for kind in ("score", "action"):
            search = partial(service.bundles.list, viewer, kind=kind, limit=51)
            _show(f"bundles of kind {kind}", options.runs, search)
        found = service.bundles.list(viewer, limit=50)
        cursor = f"{found[-1].digest}:{found[-1].project}"
        _show("bundles, second page", options.runs, partial(service.bundles.list, viewer, before=cursor))
        _show_pages(world, options.runs)
    finally:
        world.close()


def _show_pages(world: World, runs: int) -> None:
    """Request the list of bundles as a page and by REST."""
    with world.served() as url, httpx.Client(base_url=url, timeout=60) as client:
        csrf = re.findall(r'name="csrf" value="([^"]*)"', client.get("/login").text)[0]
        client.post("/login", data={"csrf": csrf, "token": world.tokens["viewer"]})
        _show("page Models", runs, lambda: re.findall('<th scope="row">', _text(client, "/models")))
        api = world.api(url, "viewer")
        _show("REST /bundles", runs, lambda: api.get("/bundles").raise_for_status().json()["items"])
        api.close()


def _text(client: httpx.Client, path: str) -> str:
    return client.get(path).raise_for_status().text


def _show(name: str, runs: int, search: Callable[[], Sequence[Any]]) -> None:
    found, seconds, used = 0, [], []
    for _ in range(runs):
        began, processor = time.perf_counter(), time.process_time()
        found = len(search())
        seconds.append(time.perf_counter() - began)
        used.append(time.process_time() - processor)
    print(
        f"{name:32} {found:4} found, median {median(seconds) * 1e3:7.1f} ms, "
        f"slowest {max(seconds) * 1e3:7.1f} ms; processor time of this process {median(used) * 1e3:6.1f} ms",
        flush=True,
    )


def _fill(world: World, changes: int, bundles: int) -> None:
    began, drawn = time.perf_counter(), random.Random(1)  # noqa: S311 - not a secret
    at = datetime(2026, 1, 1, tzinfo=UTC)
    rows, stored = [], []
    for number in range(max(changes, bundles)):
        digest = f"sha256:{hashlib.sha256(str(number).encode()).hexdigest()}"
        moment = at + timedelta(minutes=number)
        text = " ".join(drawn.choices(_WORDS, k=200))
        rows.append(
            {
                "number": 1000 + number, "id": f"cr-{1000 + number:06d}", "project": "fraud", "kind": "test",
                "checkpoint": "fraud.checkout", "bundle": digest, "bundle_name": "fraud-checkout",
                "title": f"{text[:60]} {'needle' if number == 7 else ''}", "description": text,
                "state": "done", "step": "", "note": "", "minutes": 60.0, "stages": [], "gates": [],
                "created_by": "modeler", "created_at": moment, "updated_at": moment, "version": 1,
                "authors": ["modeler"],
            }
        )  # fmt: skip
        stored.append(
            {
                "project": "fraud", "digest": digest, "name": "needle" if number == 7 else "fraud-checkout",
                "kind": "score", "bytes": 10_000, "uploaded_by": "modeler", "uploaded_at": moment,
            }
        )  # fmt: skip
    for first in range(0, max(changes, bundles), _BATCH):
        with world.platform.store.write() as connection:
            if first < changes:
                part = rows[first : min(first + _BATCH, changes)]
                connection.execute(t.changes.insert(), part)
                searched = [{"number": row["number"], "text": texts.text_of(row["id"], row)} for row in part]
                connection.execute(t.change_texts.insert(), searched)
            if first < bundles:
                connection.execute(t.bundles.insert(), stored[first : min(first + _BATCH, bundles)])
    with sqlite3.connect(world.directory / "registry" / "registry.sqlite") as registry:
        registry.executemany(
            "INSERT INTO bundles (digest, name, kind, created_at, pushed_at_ms, pushed_by, bytes) "
            "VALUES (?, ?, ?, '', ?, 'modeler', 10000)",
            [
                (row["digest"][7:], row["name"], row["kind"], int(row["uploaded_at"].timestamp() * 1e3))
                for row in stored[:bundles]
            ],
        )
    registry.close()
    seconds = time.perf_counter() - began
    print(f"{changes:,} changes, {bundles:,} bundles written in {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
