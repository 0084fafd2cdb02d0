"""Run change requests while processes are killed, then check the platform's database.

A live server with traffic, a shadow pool and the platform are killed with SIGKILL at random times and
restarted, while users draft, submit, approve, waive, withdraw and roll back change requests over REST. At the
end no change request may be lost, none may be released without its gates, and no server may have had a lane
table that was not recorded.

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
from scorer.release.errors import ConflictError, InvalidError
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
# A run with fewer than one kill per this number of change requests is not valid.
CHANGES_PER_KILL = 4


class Process:
    """A process that is killed and restarted with the same addresses."""

    def __init__(self, name: str, directory: Path, *words: str) -> None:
        self.name = name
        self._directory = directory
        self._command = [sys.executable, "-m", "scorer.cli", *words]
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process. Its events are written to a file."""
        with self._lock, (self._directory / f"{self.name}.events").open("ab") as events:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._directory,
                env=environment(),
                stdout=subprocess.DEVNULL,
                stderr=events,
            )

    def kill(self) -> None:
        """End the process with SIGKILL."""
        with self._lock:
            if self._process is not None:
                self._process.send_signal(signal.SIGKILL)
                self._process.wait()
                self._process = None

    @property
    def running(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None


class Run:
    """One run with its processes, users and counts."""

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

    # --- set-up ---

    def _build(self) -> None:
        from scorer.registry import Registry
        from scorer.release.open import open_service
        from scorer.release.settings import PlatformFile

        listen, control, pool_listen, pool_control, rest = self.ports
        directory, registry = self.directory, self.directory / "registry"
        store = Registry(registry)
        for number in range(8):
            # The last two reverse all decisions, so the gates must fail them.
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

    # --- threads ---

    def traffic(self) -> None:
        """Send payments until the end. They are not answered while the server is down."""
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
        """Record every lane table that a server reports."""
        while not self.stop.wait(_STATUS_EVERY):
            for member in self.fleet.members:
                status = self.fleet.status(member)
                mine = (status.checkpoints or {}).get(CHECKPOINT)
                if mine and (mine.answer or member.role != "live"):
                    self.seen.add((member.name, mine.answer, mine.observe, member.role))

    @property
    def kills(self) -> int:
        """Number of kills."""
        return sum(count for what, count in self.counted.items() if what.startswith("killed "))

    def killer(self) -> None:
        """Kill random processes one after another, one in five of them while it starts."""
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
        """Wait until a process responds, at most one minute."""
        deadline = time.monotonic() + 60
        while not self.stop.wait(0.05) and time.monotonic() < deadline:
            if name == "platform":
                with suppress(httpx.HTTPError):
                    httpx.get(f"{self.url}/api/v1/me", timeout=2)
                    return
            elif any(m.name == name and self.fleet.status(m).reachable for m in self.fleet.members):
                return

    # --- users ---

    def people(self, seconds: float) -> None:
        """Submit change requests until there are enough, and operate them until all are final."""
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
        raise TimeoutError(f"not all change requests are final after {seconds:g} s: {self._open()}")

    def _act(self, people: dict[str, Any]) -> bool:
        """Perform one operation of a user, and return whether all change requests are final."""
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
                self.counted["approvals by the submitter"] += 1
            else:
                ari.approve(change.id)
            return False
        if drafts:
            draft = self.random.choice(drafts).id
            try:
                dana.submit(draft)
            except (InvalidError, ConflictError) as error:
                # What is refused now may be refused for ever: a bundle that answers is not released again.
                self.counted[f"drafts refused, {type(error).__name__}"] += 1
                sys.stderr.write(f"{draft} is deleted: {error}\n")
                self.known.pop(draft, None)
                dana.delete(draft)
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

    # --- run and checks ---

    def run(self, seconds: float) -> list[str]:
        """Run everything, and return the violated rules."""
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
        """Wait until all processes are in sync again, and return the violated rules."""
        from scorer.release.lanes import recorded
        from scorer.release.store import Store

        for process in self.processes.values():
            if not process.running:
                process.kill()
                process.start()
        store = Store(self.settings.platform.database)
        try:
            deadline = time.monotonic() + 60
            behind = ["no server was checked"]
            while behind and time.monotonic() < deadline:
                time.sleep(0.1)
                with store.read() as connection:
                    newest = recorded.newest(connection, CHECKPOINT)
                behind = [
                    f"{member.name} is out of sync at the end"
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
        """Compare the counts of the reports with the logs, and return the violated rules."""
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
        self.counted["reports compared with the logs"] = sum(one is not None for one in reports.values())
        self.counted["observations in them"] = sum(
            sum(one.rows.values()) for one in reports.values() if one is not None
        )
        return conserved.check(reports, logged)


def _bundle(directory: Path, variant: int, *, turned: bool) -> Path:
    """Build the bundle of a small model. With `turned`, it declines what others approve."""
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
    """Run the command line, and return 0 if no rule is violated."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--changes", type=int, default=200, help="number of change requests")
    parser.add_argument("--seed", type=int, default=1, help="seed of the run")
    parser.add_argument("--seconds", type=float, default=3600.0, help="time limit of the run in seconds")
    parser.add_argument("--directory", type=Path, help="directory that is kept; default: a temporary one")
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        directory = options.directory or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        directory.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        run = Run(directory.resolve(), changes=options.changes, seed=options.seed)
        problems = run.run(options.seconds)
        if run.kills < options.changes / CHANGES_PER_KILL:
            problems.append(
                f"{run.kills} kills are too few for {options.changes} change requests: the run is not valid"
            )
        print(f"seed {options.seed}: {len(run.known)} change requests in {time.monotonic() - began:.0f} s")
        for what, count in sorted(run.counted.items()):
            print(f"  {what}: {count}")
        print(f"  answered: {run.answered}, lane tables seen: {len(run.seen)}")
        for problem in problems:
            print(f"VIOLATED: {problem}")
        print("no rule is violated" if not problems else f"{len(problems)} rules are violated")
    return 1 if problems else 0


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
