"""A whole platform for tests: real database, real registry, a fleet without servers, people with tokens.

::

    world = World(tmp_path, built_bundles)
    with world.served() as url:
        world.api(url, "modeler").get("/me")
    world.platform.tick()
    world.close()
"""

from __future__ import annotations

import io
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from fleet import FakeFleet

from scorer.events import EventLog
from scorer.registry import Registry
from scorer.release.archive import pack
from scorer.release.fleet import Member
from scorer.release.model import Actor, Role
from scorer.release.open import PlatformServices, open_service
from scorer.release.settings import PlatformFile

CHECKPOINTS = {"fraud.checkout": "score", "action.authorise": "action"}
SETTINGS = """
[platform]
database = "{database}"
notification_networks = ["127.0.0.0/8"]

[[fleet]]
name = "live-1"
control = "127.0.0.1:1"

[[fleet]]
name = "live-2"
control = "127.0.0.1:2"

[[fleet]]
name = "pool-1"
control = "127.0.0.1:3"
role = "shadow"

[checkpoints."fraud.checkout"]
alias = "fraud-checkout@live"
minutes = 10.0
stages = [{{ share = 0.1, minutes = 1.0 }}]

[checkpoints."fraud.checkout".review]
project = "fraud"

[checkpoints."action.authorise"]
alias = "action-authorise@live"
"""
PEOPLE = {
    "viewer": Role.VIEWER,
    "modeler": Role.MODELER,
    "approver": Role.APPROVER,
    "owner": Role.OWNER,
}
"""The members of project `fraud`. `outsider` owns project `other`; `admin` is an administrator."""


class World:
    """A platform with projects `fraud` and `other`, a user of each role, and the bundles score-1 and score-2.

    `score-1` is live at `fraud.checkout`; `score-2` belongs to project `fraud`.
    """

    def __init__(
        self,
        directory: Path,
        bundles: dict[str, Path],
        *,
        database: str = "platform.sqlite",
        now: Callable[[], datetime] | None = None,
        settings: str = SETTINGS,
        events: EventLog | None = None,
    ) -> None:
        self.directory = directory
        self.bundles = bundles
        self.settings = PlatformFile.parse(settings.format(database=database), base=directory)
        registry = Registry(self.settings.platform.registry)
        self.live = registry.push(bundles["score-1"])
        registry.alias("fraud-checkout", "live", self.live)
        action = registry.push(bundles["action-1"])
        registry.alias("action-authorise", "live", action)
        members = [Member(one.name, one.control, one.role, one.log) for one in self.settings.fleet]
        self.fleet = FakeFleet(
            members,
            checkpoints=CHECKPOINTS,
            answer={"fraud.checkout": self.live, "action.authorise": action},
        )
        extra: dict[str, Any] = {} if now is None else {"now": now}
        extra |= {} if events is None else {"events": events}
        self.platform: PlatformServices = open_service(self.settings, fleet=self.fleet, **extra)
        self.tokens = self._people()
        self.tick()
        self.candidate = self.upload("score-2")

    def _people(self) -> dict[str, str]:
        access = self.service.access
        _, admin = access.bootstrap("admin")
        root = access.authenticate(admin)
        for project in ("fraud", "other"):
            access.create_project(root, project, project.title())
        tokens = {"admin": admin}
        for user, role in PEOPLE.items():
            access.set_member(root, "fraud", user, role)
        access.set_member(root, "other", "outsider", Role.OWNER)
        access.add_user(root, "second", admin=True)
        for user in (*PEOPLE, "outsider", "second"):
            role = Role.ADMIN if user == "second" else PEOPLE.get(user, Role.OWNER)
            _, tokens[user] = access.create_token(root, user=user, label="tests", role=role)
        return tokens

    @property
    def service(self) -> Any:
        return self.platform.service

    def actor(self, user: str) -> Actor:
        return self.service.access.authenticate(self.tokens[user])

    def upload(self, name: str) -> str:
        """Upload a bundle for project fraud; return its digest."""
        with io.BytesIO(self.archive(name)) as archive:
            return str(self.service.bundles.upload(self.actor("modeler"), "fraud", archive).digest)

    def archive(self, name: str) -> bytes:
        buffer = io.BytesIO()
        pack(self.bundles[name], buffer)
        return buffer.getvalue()

    def app(self) -> Any:
        from scorer.web.app import create_app

        return create_app(self.platform, self.settings)

    @contextmanager
    def served(self) -> Iterator[str]:
        """Serve the real application by a real server in this process; yield its URL."""
        import uvicorn

        with socket.create_server(("127.0.0.1", 0)) as listener:
            config = uvicorn.Config(
                self.app(), log_config=None, lifespan="off", proxy_headers=False, timeout_graceful_shutdown=2
            )
            server = uvicorn.Server(config)
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
            thread.start()
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            finally:
                self.platform.stopping = True
                server.should_exit = True
                thread.join(20)
                self.platform.stopping = False

    def api(self, url: str, user: str | None) -> httpx.Client:
        """Return a client of the API with a user's token; None: without a token."""
        return httpx.Client(base_url=f"{url}/api/v1", headers=self.headers(user), timeout=60)

    def headers(self, user: str | None) -> dict[str, str]:
        return {} if user is None else {"Authorization": f"Bearer {self.tokens[user]}"}

    def draft(self, user: str = "modeler", **fields: Any) -> Any:
        """Draft a TEST of score-2."""
        from scorer.release.changes import Draft
        from scorer.release.model import ChangeKind

        values = {
            "project": "fraud",
            "kind": ChangeKind.TEST,
            "checkpoint": "fraud.checkout",
            "bundle": self.candidate,
            "title": "Deeper trees",
            **fields,
        }
        return self.service.changes.draft(self.actor(user), Draft(**values))

    def observed(self, user: str = "modeler", **fields: Any) -> Any:
        """Return a TEST of score-2 that was submitted, checked and deployed, in state OBSERVING."""
        from scorer.release.model import ChangeState

        change = self.service.changes.submit(self.actor(user), self.draft(user, **fields).id)
        return self.until(change.id, ChangeState.OBSERVING)

    def awaiting_approval(self, user: str = "modeler") -> Any:
        """Return a RELEASE of score-2 whose gates have passed and that waits for approval."""
        from scorer.release.changes import rows
        from scorer.release.model import ChangeKind, ChangeState, GateResult, Outcome
        from scorer.release.store import tables as t
        from scorer.release.store import utcnow

        change = self.draft(user, kind=ChangeKind.RELEASE).id
        passed = GateResult("error_rate", Outcome.PASS, 0.0, None, None, 0.0, 1000, "== 0", "none failed")
        reported = {"state": ChangeState.REPORT, "step": "approval", "verdict": Outcome.PASS}
        with self.platform.store.write() as connection:
            connection.execute(
                t.changes.update().where(t.changes.c.id == change).values(**reported, submitted_by=user)
            )
            rows.keep_gates(connection, change, "report", [passed], utcnow())
        return self.service.changes.summary(self.actor(user), change)

    def until(self, change: str, *states: Any, most: int = 60) -> Any:
        """Tick until a change request is in one of the states; return it."""
        for _ in range(most):
            summary = self.service.changes.summary(self.actor("admin"), change)
            if summary.state in states:
                return summary
            self.tick()
        raise AssertionError(f"{change} is {summary.state} ({summary.step}): {summary.note}")

    def review(self) -> int:
        """Add an open case of the review queue; return its number."""
        from scorer.log.scanning import Entry
        from scorer.release.requests import CaseFilter
        from scorer.release.reviews.intake import CaseIntake
        from scorer.release.store import micros, utcnow
        from scorer.v1.log_pb2 import DecisionRecord

        now, name = utcnow(), f"review-{uuid.uuid4().hex[:12]}"
        record = DecisionRecord(
            decision_id=name,
            checkpoint="fraud.checkout",
            lane="live",
            bundle=bytes.fromhex(self.live.removeprefix("sha256:")),
            decided_at_us=micros(now),
            score=0.5,
            decision="review",
        )
        intake = CaseIntake(self.settings, self.platform.store, lambda _: None, now=lambda: now)
        intake.take("live-1", [Entry(1, "decision", record)])
        (case,), _ = self.service.reviews.list(self.actor("admin"), CaseFilter(decision_id=name))
        return int(case.id)

    def build(self, user: str = "modeler") -> Any:
        """Queue a build of files that are not a model, and cancel earlier builds."""
        from scorer.release.builds.receiving import Sent
        from scorer.release.requests import NewBuild

        self.cancel_builds()
        wanted = NewBuild(name="fraud-checkout", version="1", bands="0 approve")
        files = {"model": Sent("m.json", io.BytesIO(b"{}")), "table": Sent("t.csv", io.BytesIO(b"a\n1\n"))}
        return self.service.builds.start(self.actor(user), "fraud", wanted, files)

    def cancel_builds(self) -> None:
        admin = self.actor("admin")
        for build in self.service.builds.list(admin, limit=100):
            if not build.state.is_final:
                self.service.builds.cancel(admin, build.id)

    def tick(self, times: int = 1) -> None:
        for _ in range(times):
            self.platform.tick()

    def close(self) -> None:
        self.platform.close()


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[misc]
