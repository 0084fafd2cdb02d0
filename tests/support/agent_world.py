"""A platform whose projects allow tools, with a decision log, for tests of agents.

`robot` is an agent of project `fraud`, whose owners allow every tool; `stranger` is an agent of project
`other`, which may change only `action.authorise`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from bundles import ACTIONS, FEATURES, rows, tiny_score_bundle
from logs import write_segment
from platforms import SETTINGS, World

from scorer.bundle import Bundle
from scorer.bundle.rules import BundleRules
from scorer.release.agents.catalogue import TOOLS
from scorer.release.model import Role
from scorer.v1.log_pb2 import DecisionRecord, LogRecord, OutcomeRecord

FRAUD, ACTION = "fraud.checkout", "action.authorise"
DECISIONS = 300
"""Recorded decisions of each checkpoint, one a minute up to now."""
RULES = """name = "checkout"
decisions = ["decline", "review", "approve"]

[[rules]]
id = "large"
when = "amount > 150.0"
decision = "review"
reason = "LARGE"
"""
STRICTER = RULES.replace("150.0", "80.0")
AGENTS = """
[agents]
enabled = true
calls_per_minute = {calls}
seconds = {seconds}
"""
LOG = 'control = "127.0.0.1:1"\n'


class AgentWorld(World):
    """A platform with agents; see the module."""

    def __init__(
        self,
        directory: Path,
        bundles: dict[str, Path],
        *,
        calls: int = 10_000,
        seconds: float = 20.0,
        public_url: str = "",
        more: str = "",
    ) -> None:
        ruled = directory / "ruled"
        tiny_score_bundle(ruled, rules=BundleRules(RULES))
        text = SETTINGS.replace(LOG, f'{LOG}log = "log"\n', 1)
        if public_url:
            text = text.replace("[platform]", f'[platform]\npublic_url = "{public_url}"', 1)
        text += AGENTS.format(calls=calls, seconds=seconds) + more
        super().__init__(directory, {**bundles, "score-1": ruled}, settings=text)
        self._write_log(directory / "log")
        root, access = self.actor("admin"), self.service.access
        access.update_project(root, "other", checkpoints=[ACTION])
        for project in ("fraud", "other"):
            access.set_agent_tools(root, project, [*TOOLS])
        for user, project in (("robot", "fraud"), ("stranger", "other")):
            access.set_member(root, project, user, Role.AGENT)
            self.tokens[user] = access.create_token(root, user=user, label="agent", role=Role.AGENT)[1]

    def _write_log(self, log: Path) -> None:
        contexts = rows(DECISIONS, seed=7)
        score = Bundle.load(self.bundles["score-1"])
        action = Bundle.load(self.bundles["action-1"])
        scores = score.score(contexts)
        pmf, rewards = action.evaluate(contexts)
        begin = datetime.now(UTC) - timedelta(minutes=DECISIONS)
        payloads = []
        for at in range(DECISIONS):
            moment = int((begin + timedelta(minutes=at)).timestamp() * 1e6)
            shared: dict[str, Any] = {
                "lane": "live",
                "decided_at_us": moment,
                "features": contexts[at].tolist(),
            }
            label = "review" if contexts[at][0] > 150 else score.labels[int(scores.bands[at])]
            payloads.append(
                DecisionRecord(
                    **shared, decision_id=f"f-{at}", checkpoint=FRAUD, bundle=bytes.fromhex(self.live[7:]),
                    score=scores.scores[at], margin=scores.margins[at], decision=label,
                )
            )  # fmt: skip
            chosen = int(np.argmax(pmf[at]))
            payloads.append(
                DecisionRecord(
                    **shared, decision_id=f"a-{at}", checkpoint=ACTION,
                    bundle=bytes.fromhex(action.digest[7:]),
                    action=ACTIONS[chosen], action_index=chosen, pmf=pmf[at].tolist(),
                    propensity=pmf[at][chosen], expected_reward=rewards[at][chosen],
                )
            )  # fmt: skip
        # Payments at the hour 3 are authorised at first, and declined in the second half.
        outcomes = [
            OutcomeRecord(
                checkpoint=ACTION, decision_id=f"a-{at}", kind="authorised",
                value=float(not (contexts[at][1] < 6 and at >= DECISIONS // 2)),
                received_at_us=int((begin + timedelta(minutes=at, seconds=30)).timestamp() * 1e6),
            )
            for at in range(DECISIONS)
        ]  # fmt: skip
        records = [LogRecord(decision=one).SerializeToString() for one in payloads]
        records += [LogRecord(outcome=one).SerializeToString() for one in outcomes]
        write_segment(log, 1, 1, records)


@contextmanager
def agent_world(directory: Path, bundles: dict[str, Path], **settings: Any) -> Iterator[AgentWorld]:
    """Open a platform with agents, and close it."""
    world = AgentWorld(directory, bundles, **settings)
    try:
        world.tick(2)
        yield world
    finally:
        world.close()


__all__ = ["ACTION", "DECISIONS", "FEATURES", "FRAUD", "RULES", "STRICTER", "AgentWorld", "agent_world"]
