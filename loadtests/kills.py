"""Change requests through real processes that are killed all the time; then the ledger is checked.

A live server with its traffic, a shadow pool, the platform: each is killed with SIGKILL at random moments
and started again, while people draft, submit, approve, waive, withdraw and roll back over REST. At the end
nothing may be lost, nothing released without its gates, and no server may ever have had a table that is not
recorded.

    python -m loadtests.kills --changes 200 --seed 1
"""

from __future__ import annotations

import argparse
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx

from examples.demo.process import environment
from loadtests import conserved, ledger
from scorer.client import Client, ClientError, RetryPolicy
from scorer.errors import ScorerError
from scorer.release.fleet import Fleet, Member
from scorer.release.model import ChangeKind, ChangeRequest, ChangeState, Role

CHECKPOINT = "fraud.checkout"
FEATURES = ("amount", "hour", "count_24h", "distance")
SLOTS = 12
MINUTES = 0.6
PROGRESS_SECONDS = 30.0
_STATUS_EVERY = 0.05

SERVER = """
[server]
listen = "127.0.0.1:{listen}"
control_listen = "127.0.0.1:{control}"
metrics_listen = "off"
{server}
[registry]
path = "{registry}"
poll_ms = 50
[checkpoints."{checkpoint}"]
kind = "score"
{alias}
p99_ms = 1000.0
mode = "observe"
"""

PLATFORM = """
[platform]
listen = "127.0.0.1:{listen}"
registry = "{registry}"
tick_ms = 50
[[fleet]]
name = "live"
control = "127.0.0.1:{live}"
log = "{directory}/live/decisions"
[[fleet]]
name = "pool"
control = "127.0.0.1:{pool}"
role = "shadow"
log = "{directory}/pool/decisions"
[checkpoints."{checkpoint}"]
alias = "fraud-checkout@live"
p99_ms = 1000.0
sample = 1.0
slots = {slots}
patience_minutes = 0.5
stages = [{{ share = 0.3, minutes = 0.03 }}, {{ share = 0.7, minutes = 0.03 }}]
gates = [
  {{ metric = "error_rate", success = "== 0", min_rows = 5 }},
  {{ metric = "approve_rate_delta", success = "abs <= 0.6 upper95", against = "live", min_rows = 5 }},
]
"""
# A run with fewer kills than one in so many changes does not count.
CHANGES_PER_KILL = 4


class Process:
    """One that is killed and started again, at the same addresses."""

    def __init__(self, name: str, directory: Path, *words: str) -> None:
        self.name = name
        self._directory = directory
        self._command = [sys.executable, "-m", "scorer.cli", *words]
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it; its events go into a file."""
        with self._lock, (self._directory / f"{self.name}.events").open("ab") as events:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._directory,
                env=environment(),
                stdout=subprocess.DEVNULL,
                stderr=events,
            )

    def kill(self) -> None:
        """Kill -9."""
        with self._lock:
            if self._process is not None:
                self._process.send_signal(signal.SIGKILL)
                self._process.wait()
                self._process = None

    @property
    def running(self) -> bool:
        """Whether it has not ended by itself."""
        return self._process is not None and self._process.poll() is None


class Run:
    """All of it."""

    def __init__(self, directory: Path, *, changes: int, seed: int) -> None:
        self.directory, self.count = directory, changes
        self.at_once = min(SLOTS, max(3, changes // 4))
        self.random = random.Random(seed)
        self.counted: Counter[str] = Counter()
        self.known: dict[str, bool] = {}
        self.seen: set[ledger.Seen] = set()
        self.stop = threading.Event()
        self.ports = [_free_port() for _ in range(5)]
        self.digests: list[str] = []
        self.answered = 0
        self._build()
        self.processes = {
            "live": Process("live", directory / "live", "serve", "--config", "scorer.toml"),
            "pool": Process("pool", directory / "pool", "serve", "--config", "scorer.toml"),
            "platform": Process("platform", directory, "platform", "serve", "--config", "platform.toml"),
        }

    # --- the beginning ---

    def _build(self) -> None:
        from scorer.registry import Registry
        from scorer.release.open import open_service
        from scorer.release.settings import PlatformFile

        listen, control, pool_listen, pool_control, rest = self.ports
        directory, registry = self.directory, self.directory / "registry"
        store = Registry(registry)
        for number in range(8):
            # The last two turn everything round: gates must stop them.
            self.digests.append(
                store.push(_bundle(directory / f"bundle-{number}", number, turned=number > 5))
            )
        store.alias("fraud-checkout", "live", self.digests[0])
        store.close()
        places: dict[str, dict[str, Any]] = {
            "live": {
                "listen": listen,
                "control": control,
                "server": f'shadow_pool = "127.0.0.1:{pool_listen}"',
                "alias": 'alias = "fraud-checkout@live"',
            },
            "pool": {
                "listen": pool_listen,
                "control": pool_control,
                "server": 'role = "shadow"',
                "alias": "",
            },
        }
        for name, values in places.items():
            (directory / name).mkdir()
            text = SERVER.format(registry=registry, checkpoint=CHECKPOINT, **values)
            (directory / name / "scorer.toml").write_text(text)
        text = PLATFORM.format(
            listen=rest,
            registry=registry,
            live=control,
            pool=pool_control,
            directory=directory,
            checkpoint=CHECKPOINT,
            slots=SLOTS,
        )
        (directory / "platform.toml").write_text(text)
        self.settings = PlatformFile.load(directory / "platform.toml")
        opened = open_service(self.settings)
        access = opened.service.access
        root = access.authenticate(access.bootstrap("admin")[1])
        from scorer.release.model import Quotas

        quotas = Quotas(open_changes=10_000, slot_minutes_per_week=1_000_000)
        access.create_project(root, "fraud", "Fraud", quotas=quotas)
        self.tokens = {}
        for user, role in (("dana", Role.MODELER), ("ari", Role.APPROVER), ("olga", Role.OWNER)):
            access.set_member(root, "fraud", user, role)
            _, self.tokens[user] = access.create_token(root, user=user, label="kills", role=role)
        for digest in self.digests:
            opened.service.bundles.adopt(access.authenticate(self.tokens["dana"]), "fraud", digest)
        opened.close()
        self.url = f"http://127.0.0.1:{rest}"
        self.fleet = Fleet(
            [
                Member("live", f"127.0.0.1:{control}"),
                Member("pool", f"127.0.0.1:{pool_control}", "shadow"),
            ]
        )

    # --- what goes on at once ---

    def traffic(self) -> None:
        """Payments, all the time; nobody answers while the server is down."""
        rows = _rows(5000, seed=77)
        at = 0
        with Client(f"127.0.0.1:{self.ports[0]}", timeout=2, retry=RetryPolicy(attempts=1)) as client:
            while not self.stop.wait(0.01):
                at += 1
                try:
                    row = rows[at % len(rows)].tolist()
                    client.score(CHECKPOINT, dict(zip(FEATURES, row, strict=True)))
                    self.answered += 1
                except ClientError:
                    self.counted["unanswered"] += 1

    def watch(self) -> None:
        """Every table that a server has for at least a moment."""
        while not self.stop.wait(_STATUS_EVERY):
            for member in self.fleet.members:
                status = self.fleet.status(member)
                mine = (status.checkpoints or {}).get(CHECKPOINT)
                if mine and (mine.answer or member.role != "live"):
                    self.seen.add((member.name, mine.answer, mine.observe, member.role))

    @property
    def kills(self) -> int:
        """How many processes were killed."""
        return sum(count for what, count in self.counted.items() if what.startswith("killed "))

    def killer(self) -> None:
        """Kill processes one after another, at random; one in five while it starts."""
        chance = random.Random(self.random.random())
        while not self.stop.wait(chance.uniform(0.0, 2.0)):
            process = self.processes[chance.choice(["live", "pool", "platform", "platform"])]
            if chance.random() < 0.8:
                self._wait_for(process.name)
                self.stop.wait(chance.uniform(0.0, 8.0))
            process.kill()
            self.counted[f"killed {process.name}"] += 1
            self.stop.wait(chance.uniform(0, 0.5))
            process.start()

    def _wait_for(self, name: str) -> None:
        """Until it answers, for at most a while."""
        deadline = time.monotonic() + 60
        while not self.stop.wait(0.05) and time.monotonic() < deadline:
            if name == "platform":
                with suppress(httpx.HTTPError):
                    httpx.get(f"{self.url}/api/v1/me", timeout=2)
                    return
            elif any(m.name == name and self.fleet.status(m).reachable for m in self.fleet.members):
                return

    # --- people ---

    def people(self, seconds: float) -> None:
        """Asks for changes until there are enough, then sees them to their end."""
        from scorer.sdk import PlatformClient

        deadline = time.monotonic() + seconds
        with ExitStack() as stack:
            people = {
                user: stack.enter_context(PlatformClient(self.url, token=token))
                for user, token in self.tokens.items()
            }
            shown = time.monotonic()
            while time.monotonic() < deadline:
                if time.monotonic() - shown >= PROGRESS_SECONDS:
                    shown = time.monotonic()
                    sys.stderr.write(f"{len(self.known)} of {self.count} changes begun, {self.kills} kills\n")
                try:
                    if self._act(people):
                        return
                except (ScorerError, OSError) as error:
                    self.counted[type(error).__name__] += 1
                self.stop.wait(0.05)
        raise TimeoutError(f"not at its end within {seconds:g} s: {self._open()}")

    def _act(self, people: dict[str, Any]) -> bool:
        """One thing that somebody does; whether everything has ended."""
        dana, ari, olga = people["dana"], people["ari"], people["olga"]
        found: list[ChangeRequest] = list(dana.changes(project="fraud"))
        for change in found:
            self.known[change.id] = True
        open_ = [change for change in found if not change.state.is_final]
        waits = [c for c in open_ if c.step == "approval"]
        drafts = [c for c in open_ if c.state is ChangeState.DRAFT]
        if waits:
            change = self.random.choice(waits)
            chance = self.random.random()
            if change.verdict != "pass" and chance < 0.5:
                ari.waive(change.id, metric="error_rate", reason="trust me")
            elif change.verdict != "pass":
                ari.reject(change.id, reason="its gates")
            elif chance < 0.1:
                dana.approve(change.id)
                self.counted["approved his own"] += 1
            else:
                ari.approve(change.id)
            return False
        if drafts:
            dana.submit(self.random.choice(drafts).id)
            return False
        if len(found) < self.count:
            if len(open_) < self.at_once:
                self._draft(dana, found)
            return False
        released = [c for c in open_ if c.state is ChangeState.RELEASED]
        if released and self.random.random() < 0.02:
            olga.rollback(self.random.choice(released).id, reason="to see")
        elif open_ and self.random.random() < 0.005:
            dana.withdraw(self.random.choice(open_).id, reason="no more")
        return not open_

    def _draft(self, dana: Any, found: list[ChangeRequest]) -> None:
        passed = {
            c.bundle
            for c in found
            if c.kind is ChangeKind.TEST and c.state is ChangeState.DONE and c.verdict == "pass"
        }
        is_release = bool(passed) and self.random.random() < 0.5
        bundle = self.random.choice(sorted(passed) if is_release else self.digests[1:])
        made = dana.draft(
            project="fraud",
            kind=ChangeKind.RELEASE if is_release else ChangeKind.TEST,
            checkpoint=CHECKPOINT,
            bundle=bundle,
            title=f"number {len(found) + 1}",
            minutes=MINUTES,
            pool=self.random.random() < 0.4,
        )
        self.known[made.id] = True
        dana.submit(made.id)

    def _open(self) -> list[str]:
        from scorer.release.store import Store

        store = Store(self.settings.platform.database)
        try:
            return [p for p in ledger.check(store, [CHECKPOINT]) if "is still" in p]
        finally:
            store.close()

    # --- the whole ---

    def run(self, seconds: float) -> list[str]:
        """What is broken; empty: nothing."""
        threads = [
            threading.Thread(target=work, daemon=True) for work in (self.traffic, self.watch, self.killer)
        ]
        try:
            for process in self.processes.values():
                process.start()
            for thread in threads:
                thread.start()
            self.people(seconds)
            self.stop.set()
            for thread in threads:
                thread.join(60)
            return self._settled()
        finally:
            self.stop.set()
            for process in self.processes.values():
                process.kill()
            self.fleet.close()

    def _settled(self) -> list[str]:
        """Everybody is there again, and in step."""
        from scorer.release.lanes import recorded
        from scorer.release.store import Store

        for process in self.processes.values():
            if not process.running:
                process.kill()
                process.start()
        store = Store(self.settings.platform.database)
        try:
            deadline = time.monotonic() + 60
            behind = ["nobody was asked"]
            while behind and time.monotonic() < deadline:
                time.sleep(0.1)
                with store.read() as connection:
                    newest = recorded.newest(connection, CHECKPOINT)
                behind = [
                    f"{member.name} is not in step at the end"
                    for member in self.fleet.members
                    if not recorded.has(
                        newest,
                        (self.fleet.status(member).checkpoints or {}).get(CHECKPOINT),
                        member.role,
                    )
                ]
            problems = ledger.check(store, [CHECKPOINT], known=self.known)
            problems += ledger.strangers(store, CHECKPOINT, self.seen)
            with store.read() as connection:
                from sqlalchemy import func, select

                from scorer.release.store import tables as t

                states = select(t.changes.c.kind, t.changes.c.state, func.count()).group_by(
                    t.changes.c.kind, t.changes.c.state
                )
                for kind, state, count in connection.execute(states):
                    self.counted[f"{kind} {state}"] = count
            return behind + problems + self._miscounted()
        finally:
            store.close()

    def _miscounted(self) -> list[str]:
        """What the reports say of the requests, held against the logs."""
        from scorer.release.errors import ConflictError
        from scorer.release.store import micros
        from scorer.sdk import PlatformClient

        self._wait_for("platform")
        logs = {name: self.directory / name / "decisions" for name in ("live", "pool")}
        reports: dict[str, conserved.ReportOfLane | None] = {}
        with PlatformClient(self.url, token=self.tokens["dana"]) as dana:
            for change in self.known:
                try:
                    rows, newest = {}, {}
                    summary = dana.readout(change).summary
                    for server in summary["servers"]:
                        own = dana.readout(change, server=server)
                        rows[server], newest[server] = own.rows, micros(own.end)
                    reports[change] = conserved.ReportOfLane(summary, rows, newest)
                except ConflictError:
                    reports[change] = None
        logged = conserved.observations(logs, CHECKPOINT)
        self.counted["reports held against the logs"] = sum(one is not None for one in reports.values())
        self.counted["observations in them"] = sum(
            sum(one.rows.values()) for one in reports.values() if one is not None
        )
        return conserved.check(reports, logged)


def _bundle(directory: Path, variant: int, *, turned: bool) -> Path:
    """A small model of payments; `turned`: it declines what the others approve."""
    import numpy as np
    import xgboost as xgb

    from scorer.bundle import Band, Feature, Lineage, SchemaFile, build_score_bundle

    data = _rows(2000, seed=0)
    odds = data[:, 0] / 100 + data[:, 2] / 2 - 2.5
    labels = np.random.default_rng(variant).random(len(data)) < 1 / (1 + np.exp(-odds))
    matrix = xgb.DMatrix(data, labels.astype(np.float32), feature_names=[*FEATURES])
    model = xgb.train(
        {"objective": "binary:logistic", "max_depth": 3, "eta": 0.3, "nthread": 1, "seed": variant}, matrix, 8
    )
    words = ["approve", "review", "decline"]
    build_score_bundle(
        directory,
        name="fraud-checkout",
        model=model,
        schema=SchemaFile(features=[Feature(name=name) for name in FEATURES]),
        bands=[
            Band(start=start, label=label)
            for start, label in zip((0.0, 0.97, 0.99), words[::-1] if turned else words, strict=True)
        ],
        training=data[:1500],
        validation=data[1500:],
        lineage=Lineage(data_digest="sha256:" + "0" * 64, code_version="kills", run_id=str(variant)),
        golden_cases=256,
    )
    return directory


def _rows(count: int, *, seed: int) -> Any:
    import numpy as np

    chance = np.random.default_rng(seed)
    columns = [
        chance.gamma(2.0, 40.0, count),
        chance.integers(0, 24, count),
        chance.poisson(2.0, count),
        chance.exponential(10.0, count),
    ]
    return np.stack(columns, axis=1).astype(np.float32)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def main(arguments: Sequence[str] | None = None) -> int:
    """0: nothing is broken."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--changes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600.0, help="give up after")
    parser.add_argument("--directory", type=Path, help="kept; otherwise a temporary one")
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        directory = options.directory or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        directory.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        run = Run(directory.resolve(), changes=options.changes, seed=options.seed)
        problems = run.run(options.seconds)
        if run.kills < options.changes / CHANGES_PER_KILL:
            problems.append(
                f"{run.kills} kills are too few for {options.changes} changes: the run shows nothing"
            )
        print(f"seed {options.seed}: {len(run.known)} changes in {time.monotonic() - began:.0f} s")
        for what, count in sorted(run.counted.items()):
            print(f"  {what}: {count}")
        print(f"  answered: {run.answered}, tables seen: {len(run.seen)}")
        for problem in problems:
            print(f"BROKEN: {problem}")
        print("nothing is broken" if not problems else f"{len(problems)} rules are broken")
    return 1 if problems else 0


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
