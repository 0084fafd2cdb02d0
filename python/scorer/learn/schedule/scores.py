"""The steps of a generation of a score checkpoint: label, train, evaluate, gate and publish.

The steps have the names of those of an action checkpoint, so that schedules, DAGs and pages are the same:
"join" writes the labelled table. The candidate is trained without the last `fraud.test_days`, on which it is
judged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scorer.learn.schedule.places import (
    CANDIDATE,
    EVALUATION,
    LIVE,
    VERDICT,
    GenerationPaths,
    bundle_shelf,
    copy_live,
    publish_step,
)
from scorer.learn.schedule.runner import JobStep
from scorer.learn.schedule.workspace import as_of_ms as moment_of
from scorer.learn.settings import LearnSettings

if TYPE_CHECKING:
    from scorer.learn.fraud.windows import TimeSpan
    from scorer.learn.gate.publish import ChangeRequests

LABELLED = "labelled.parquet"


def score_steps(
    settings: LearnSettings,
    places: GenerationPaths,
    folder: Path,
    earlier: Sequence[Path],
    requests: ChangeRequests | None,
) -> list[JobStep]:
    """Return the steps of the generation in a folder; see `generation_steps`.

    Args:
        settings: learn.toml.
        places: Logs and registry.
        folder: Folder, whose name is the moment of the generation.
        earlier: Folders of generations, whose bundles the logs may contain.
        requests: The platform that manages the checkpoint, if any.
    """
    moment = moment_of(folder)
    fraud, gate, labels = (
        one.model_dump(mode="json") for one in (settings.fraud, settings.gate, settings.labels)
    )
    data = {
        "as_of_ms": moment,
        "checkpoint": places.schedule.checkpoint,
        "alias": places.schedule.alias,
        "logs": list(places.schedule.logs),
        "reader_key": places.schedule.reader_key,
        "labels": labels,
    }
    judged = (LABELLED, LIVE, CANDIDATE)
    return [
        JobStep("join", (), (LABELLED, LIVE), partial(_label, settings, places, moment, earlier), data),
        JobStep("train", (LABELLED, LIVE), (CANDIDATE,), partial(_train, settings, moment), {"fraud": fraud}),
        JobStep("evaluate", judged, (EVALUATION,), partial(_evaluate, settings), {"fraud": fraud}),
        JobStep("gate", judged, (VERDICT,), partial(_gate, settings), {"fraud": fraud, "gate": gate}),
        publish_step(places, requests, folder, LABELLED),
    ]


def _label(
    settings: LearnSettings,
    places: GenerationPaths,
    moment: int,
    earlier: Sequence[Path],
    _there: Path,
    out: Path,
) -> Mapping[str, Any]:
    from scorer.learn.labels.table import write_labelled

    live = copy_live(places, out)
    labelled = write_labelled(
        places.source,
        bundle_shelf(places, out / LIVE, earlier),
        settings.labels,
        out / LABELLED,
        checkpoint=places.schedule.checkpoint,
        as_of_ms=moment,
        reader_key=places.opened_reader_key,
    )
    return {"live": live, **labelled.notes["counts"], "findings": labelled.notes["findings"]}


def _train(settings: LearnSettings, moment: int, there: Path, out: Path) -> Mapping[str, Any]:
    from scorer.learn.fraud.candidate import build_fraud
    from scorer.learn.fraud.table import read_table
    from scorer.learn.fraud.task import read_score_task
    from scorer.learn.fraud.training import train_fraud

    task, data = read_score_task(there / LIVE), there / LABELLED
    table = read_table(data, task.features, settings.fraud.columns)
    model = train_fraud(table, task, settings.fraud)
    built = build_fraud(
        model,
        data,
        out / CANDIDATE,
        run_id=there.name,
        created_at=datetime.fromtimestamp(moment / 1000, UTC),
    )
    return {
        "candidate": built.digest,
        "algorithm": model.fitted.algorithm,
        "trained": model.counts["fit"]["rows"],
        "held_back": model.counts["test"]["rows"],
        "auc": model.measures.auc.value,
        "average_precision": model.measures.average_precision.value,
        "value_share": model.measures.value_share.value,
        "over_baseline": model.beats.average_precision.value,
    }


def _evaluate(settings: LearnSettings, there: Path, out: Path) -> Mapping[str, Any]:
    """Measure candidate and live bundle on the payments held back, which neither was trained on."""
    from scorer.durable import write_atomically
    from scorer.learn.fraud.compare import compare_bundles

    found = compare_bundles(
        there / LABELLED, there / CANDIDATE, there / LIVE, settings.fraud, window=_held_back(there)
    )
    text = {
        "candidate": found.challenger.as_dict(),
        "live": found.champion.as_dict(),
        "differences": found.differences.as_dict(),
        "changed": found.changed,
    }
    write_atomically(out / EVALUATION, json.dumps(text, indent=1).encode() + b"\n")
    precision, value = found.differences.average_precision, found.differences.value_share
    return {
        "rows": found.challenger.rows,
        "average_precision": precision.value,
        "average_precision_low": precision.low,
        "difference": value.value,
        "low": value.low,
        "high": value.high,
    }


def _gate(settings: LearnSettings, there: Path, out: Path) -> Mapping[str, Any]:
    from scorer.learn.fraud.gate import judge_scores
    from scorer.learn.report.write import write_verdict

    verdict = judge_scores(
        there / LABELLED,
        there / CANDIDATE,
        there / LIVE,
        settings.fraud,
        settings.gate,
        window=_held_back(there),
    )
    evidence = write_verdict(verdict, there / CANDIDATE, out / VERDICT).evidence
    return {
        "decision": evidence.decision,
        "share": evidence.share,
        "difference": evidence.difference.value,
        "low": evidence.difference.low,
        "failed": [check.name for check in evidence.checks if not check.passed],
    }


def _held_back(there: Path) -> TimeSpan:
    """Return the test window of the candidate of a generation."""
    from scorer.bundle import read_manifest
    from scorer.learn.fraud.candidate import recorded_training
    from scorer.learn.fraud.windows import TimeSpan

    return TimeSpan(**recorded_training(read_manifest(there / CANDIDATE))["windows"]["test"])
