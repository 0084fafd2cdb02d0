"""A platform whose checkpoint has a history: a bundle of no project is live, one was tested, one is a canary.

::

    history = History(tmp_path, built_bundles)
    history.world.service.versions.list(history.world.actor("viewer"), "fraud.checkout")
    history.close()
"""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from bundles import tiny_score_bundle
from platforms import SETTINGS, World
from readouts import retrained
from sqlalchemy import update

from scorer.release.archive import pack
from scorer.release.gates.defaults import default_gates
from scorer.release.gates.evaluate import evaluate
from scorer.release.gates.evidence import ShadowEvidence
from scorer.release.lanes import recorded
from scorer.release.lanes.recorded import LaneDecision
from scorer.release.model import ChangeState, LaneSpec, Outcome
from scorer.release.readout import keep
from scorer.release.readout.build import ReportSubject, build
from scorer.release.store import instant
from scorer.release.store import tables as t
from scorer.release.store.rows import upsert

CHECKPOINT = "fraud.checkout"
MLFLOW = "https://mlflow.example.com"
DATA = ("sha256:" + "1d" * 32, "sha256:" + "2e" * 32)


class History:
    """Versions with metrics. `first` and `second` belong to project fraud, `other` to project other."""

    def __init__(self, directory: Path, bundles: dict[str, Path], *, settings: str = SETTINGS) -> None:
        own = directory / "own"
        paths = {}
        for name, variant, depth, auc, data in (
            ("first", 21, 3, 0.91, DATA[0]),
            ("second", 22, 4, 0.94, DATA[1]),
            ("other", 23, 3, 0.89, DATA[1]),
        ):
            tiny_score_bundle(
                own / name,
                variant=variant,
                depth=depth,
                lineage={
                    "data_digest": data,
                    "run_id": f"{variant:032x}",
                    "metrics": {"auc": auc, "average_precision": auc / 2, "log_loss": 1 - auc},
                    "parameters": {"algorithm": "xgboost", "max_depth": depth},
                },
            )
            paths[name] = own / name
        settings = settings.replace("[platform]", f'[platform]\nmlflow_url = "{MLFLOW}"', 1)
        self.world = World(directory, {**bundles, **paths}, settings=settings)
        self.live = self.world.live
        self.first, self.second, self.other = (
            self._upload(name, user, project)
            for name, user, project in (
                ("first", "modeler", "fraud"),
                ("second", "modeler", "fraud"),
                ("other", "outsider", "other"),
            )
        )
        self.base = retrained(3_000)
        stricter = self.base.shadow
        labels = stricter.labels()
        # The second bundle reviews every tenth decision that the first one approves.
        moved = np.where(
            (np.arange(len(stricter)) % 10 == 0) & (stricter.label == labels.index("approve")),
            labels.index("review"),
            stricter.label,
        )
        self.stricter = replace(self.base, shadow=replace(stricter, label=moved))
        self.tested = self._tested(self.first, self.base, "First")
        self.passed = self._tested(self.second, self.stricter, "Second")
        self.foreign = self.world.draft("outsider", project="other", bundle=self.other, title="Other").id
        self.answer = (LaneSpec("canary", self.second, share=0.1), LaneSpec("live", self.live, share=0.9))
        self.lanes(self.answer)

    def _upload(self, name: str, user: str, project: str) -> str:
        buffer = io.BytesIO()
        pack(self.world.bundles[name], buffer)
        buffer.seek(0)
        return str(self.world.service.bundles.upload(self.world.actor(user), project, buffer).digest)

    def _tested(self, bundle: str, evidence: ShadowEvidence, title: str) -> str:
        change = self.world.draft(bundle=bundle, title=title).id
        self.report(change, bundle, evidence)
        return str(change)

    def report(
        self,
        change: str,
        bundle: str,
        evidence: ShadowEvidence,
        live: str = "",
        *,
        verdict: Outcome = Outcome.PASS,
    ) -> None:
        """End a change request with a final report and a verdict."""
        evidence = replace(evidence, live_bundle=live or self.live, bands=("approve", "review", "decline"))
        at = evidence.shadow.at
        subject = ReportSubject(
            change, CHECKPOINT, bundle, live or self.live, instant(int(at.min())), instant(int(at.max()))
        )
        gates = evaluate(default_gates("score"), evidence)
        result = build(subject, evidence, gates, verdict=verdict, is_final=True)
        keep.save(self.world.settings.platform.data_dir / "readouts" / change, evidence)
        values: dict[str, Any] = {"at": self.now, "verdict": verdict, "document": keep.document(result)}
        with self.world.platform.store.write() as connection:
            upsert(connection, t.readouts, {"change": change}, **values)
            connection.execute(
                update(t.changes)
                .where(t.changes.c.id == change)
                .values(
                    state=ChangeState.REJECTED if verdict is Outcome.FAIL else ChangeState.DONE,
                    verdict=verdict,
                )
            )

    @property
    def now(self) -> Any:
        from scorer.release.store import utcnow

        return utcnow()

    def lanes(self, answer: tuple[LaneSpec, ...], *, minutes: float = 0) -> None:
        """Record answer lanes at a time that is the given number of minutes from now."""
        with self.world.platform.store.write() as connection:
            recorded.record(
                connection,
                self.world.settings,
                CHECKPOINT,
                LaneDecision(recorded.STAGE, answer),
                at=self.now + timedelta(minutes=minutes),
                actor="modeler",
            )

    def close(self) -> None:
        self.world.close()
