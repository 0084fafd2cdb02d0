"""Tests of batch scoring with rules: decisions, actions, the time of a run, refused rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from bundles import ACTIONS, FEATURES, rows, tiny_action_bundle, tiny_score_bundle
from servers import scorer_in_process

from scorer.batch import BatchColumns, BatchScorer
from scorer.batch.cluster import ClusterRun
from scorer.batch.inputs import SourceOptions
from scorer.bundle import Bundle
from scorer.bundle.rules import BundleRules, RuleList
from scorer.errors import BatchError

CHECKPOINT = "action.authorise"
COUNT = 300
CHECKOUT = """
name = "checkout"
decisions = ["decline", "review", "approve"]

[[rules]]
id = "large"
when = "amount > 150.0"
decision = "decline"
queue = "level_2"

[[rules]]
id = "night"
when = "hour < 5.0"
floor = 0.5
queue = "night"

[[rules]]
id = "later"
when = "distance > 20.0"
decision = "approve"
from = 2026-12-01

[[rules]]
id = "half"
when = "count_24h >= 1.0"
cap = 0.3
rollout = 50.0
"""
EXEMPTIONS = """
name = "exemptions"

[[rules]]
id = "tra_limit"
when = "amount > 100.0"
remove = { exemption = ["tra"] }
source = "Delegated Regulation (EU) 2018/389, article 18"

[[rules]]
id = "challenge"
when = "distance > 30.0"
keep = { "3ds" = ["frictionless"] }
source = "agreement"
rollout = 70.0
"""
BEFORE, AFTER = datetime(2026, 11, 20, tzinfo=UTC), datetime(2026, 12, 20, tzinfo=UTC)


@pytest.fixture(scope="module")
def ruled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("ruled")
    tiny_score_bundle(directory / "score", rules=BundleRules(CHECKOUT))
    tiny_action_bundle(directory / "action", rules=BundleRules(EXEMPTIONS))
    return {path.name: path for path in directory.iterdir()}


def payments(data: np.ndarray, **more: Any) -> pa.RecordBatch:
    columns = {
        name: pa.array(data[:, at].astype(np.float64), from_pandas=True) for at, name in enumerate(FEATURES)
    }
    return pa.record_batch({**columns, "id": [f"order-{at}" for at in range(len(data))], **more})


def expected_of(bundle: Bundle, data: np.ndarray, at: datetime) -> list[Mapping[str, Any]]:
    """What the rules make of each score, by the interface that evaluates rules on rows."""
    rules = bundle.rules
    assert rules is not None
    found = rules.evaluate(
        data,
        scores=bundle.score(data).scores,
        seconds=[int(at.timestamp())] * len(data),
        ids=[f"order-{number}" for number in range(len(data))],
    )
    queues = [
        next((rules.rules[number].queue for number in fired if rules.rules[number].queue), None)
        for fired in found.applied
    ]
    return [
        {
            "decision": bundle.labels[int(band)],
            "ruled_score": float(score),
            "queue": queue,
            "rules": [rules.rules[number].id for number in fired],
        }
        for band, score, queue, fired in zip(found.bands, found.scores, queues, found.applied, strict=True)
    ]


@pytest.mark.parametrize("at", [BEFORE, AFTER], ids=["before", "after"])
def test_the_rules_decide_and_do_not_change_the_score(ruled: dict[str, Path], at: datetime) -> None:
    data = rows(COUNT, seed=4)
    data[::11, 1] = np.nan
    scorer = BatchScorer.load(ruled["score"], BatchColumns(id="id", at=int(at.timestamp())))
    batch = payments(data)
    scorer.check(batch.schema, "the payments")
    result = scorer.score(batch)
    assert result.schema == scorer.output_schema(batch.schema)
    assert result.schema.names == ["margin", "score", "decision", "ruled_score", "queue", "rules"]
    got = result.to_pylist()
    plain = scorer.bundle.score(data)
    np.testing.assert_array_equal(result["score"].to_numpy(), plain.scores)
    for row, expected in zip(got, expected_of(scorer.bundle, data, at), strict=True):
        assert {name: row[name] for name in expected} == expected
    fired = {rule for row in got for rule in row["rules"]}
    assert fired == {"large", "night", "half"} | ({"later"} if at == AFTER else set())
    assert {row["queue"] for row in got} == {None, "level_2", "night"}
    changed = sum(
        row["decision"] != scorer.bundle.labels[band] for row, band in zip(got, plain.bands, strict=True)
    )
    assert changed > COUNT // 10


def test_the_policy_draws_among_the_allowed_actions(ruled: dict[str, Path]) -> None:
    data = rows(COUNT, seed=5)
    columns = BatchColumns(id="id", checkpoint=CHECKPOINT, eligible="may", pmf=True, at=0)
    may = np.random.default_rng(1).random((COUNT, len(ACTIONS))) < 0.7
    may[:, 3:] |= ~may.any(axis=1, keepdims=True)
    may[:, -1] = True
    scorer = BatchScorer.load(ruled["action"], columns)
    batch = payments(data, may=pa.array(may.tolist(), pa.list_(pa.bool_())))
    result = scorer.score(batch)
    names = ["action", "propensity", "expected_reward", "pmf", "allowed", "rules"]
    assert result.schema.names == names and result.schema == scorer.output_schema(batch.schema)
    bundle = scorer.bundle
    assert bundle.rules is not None
    ids = [f"order-{number}" for number in range(COUNT)]
    found = bundle.rules.evaluate(data, scores=[np.nan] * COUNT, seconds=[0] * COUNT, ids=ids)
    for at, row in enumerate(result.to_pylist()):
        allowed = may[at] & found.allowed[at]
        assert row["allowed"] == allowed.tolist()
        chosen = bundle.select(data[at], checkpoint=CHECKPOINT, decision_id=ids[at], eligible=allowed)
        assert (row["action"], row["propensity"]) == (chosen.action, chosen.propensity)
        assert row["pmf"] == chosen.pmf.tolist()
        assert row["rules"] == [bundle.rules.rules[number].id for number in found.applied[at]]
    assert {rule for row in result["rules"].to_pylist() for rule in row} == {"tra_limit", "challenge"}
    # Without the probabilities, the actions that are allowed are not returned.
    short = BatchScorer.load(ruled["action"], BatchColumns(id="id", checkpoint=CHECKPOINT, at=0)).score(batch)
    assert short.schema.names == ["action", "propensity", "expected_reward", "rules"]


def test_rows_to_which_the_rules_allow_nothing_are_refused(ruled: dict[str, Path]) -> None:
    data = np.asarray([[500, 1, 1, 1], [50, 1, 1, 1], [500, 1, 1, 1]], np.float32)
    tra = [action for action in ACTIONS if "tra" in action]
    batch = payments(data, may=pa.array([tra, tra, None], pa.list_(pa.string())))
    columns = BatchColumns(id="id", checkpoint=CHECKPOINT, eligible="may", pmf=True, bad_rows="null", at=0)
    result = BatchScorer.load(ruled["action"], columns).score(batch).to_pylist()
    assert "the rules of the bundle leave none of the row's eligible actions" in result[0]["problem"]
    nothing = ("action", "propensity", "expected_reward", "pmf", "allowed", "rules")
    assert [result[0][name] for name in nothing] == [None] * 6
    assert result[1]["action"] in tra and result[1]["rules"] == [] and result[1]["problem"] is None
    assert result[2]["rules"] == ["tra_limit"] and result[2]["action"] not in tra


def test_what_a_bundle_with_rules_needs(ruled: dict[str, Path], built_bundles: dict[str, Path]) -> None:
    with pytest.raises(BatchError, match=r"a rule has a rollout, which depends on the id .* give --id"):
        BatchScorer.load(ruled["score"])
    with pytest.raises(BatchError, match="it has no rules, which the time is for; remove --at"):
        BatchScorer.load(built_bundles["score-1"], BatchColumns(at=0))
    batch = payments(rows(2, seed=1))
    batch = batch.set_column(batch.schema.get_field_index("id"), "id", pa.array(["a", None]))
    with pytest.raises(BatchError, match='row 1: id "id": an id is 1 to 80 printable'):
        BatchScorer.load(ruled["score"], BatchColumns(id="id")).score(batch)


def score(output: Path, bundle: Path, file: Path, *more: str, code: int = 0) -> str:
    found = scorer_in_process(
        "score", "-o", str(output), "--bundle", str(bundle), "--id", "id", "--keep", "id", str(file), *more
    )
    assert found.returncode == code, found
    return found.stdout if code == 0 else found.stderr


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "payments.parquet"
    pq.write_table(pa.Table.from_batches([payments(rows(COUNT, seed=6))]), path, row_group_size=100)
    return path


def test_a_continued_run_has_the_time_of_the_first_one(
    tmp_path: Path, ruled: dict[str, Path], file: Path
) -> None:
    whole, output = tmp_path / "whole", tmp_path / "out"
    score(whole, ruled["score"], file, "--at", BEFORE.isoformat(), "--part-rows", "100")
    score(output, ruled["score"], file, "--part-rows", "100")
    record = json.loads((output / "_run.json").read_bytes())
    now = datetime.now(UTC).timestamp()
    assert now - 600 < record["at"] <= now
    # A run that was interrupted at an earlier time.
    record.update(at=int(BEFORE.timestamp()), complete=False, parts=[])
    for part in output.glob("part-*"):
        part.unlink()
    (output / "_run.json").write_text(json.dumps(record))
    score(output, ruled["score"], file, "--part-rows", "100")
    assert pq.read_table(output).equals(pq.read_table(whole))
    metadata = pq.read_schema(output / "part-00000.parquet").metadata
    assert metadata[b"scorer.at"].decode() == BEFORE.isoformat()
    refused = score(whole, ruled["score"], file, "--at", AFTER.isoformat(), "--part-rows", "100", code=1)
    assert "it belongs to another run (columns: at:" in refused
    # A run of a version that did not apply rules.
    del record["identity"]["rules"]
    (output / "_run.json").write_text(json.dumps(record))
    refused = score(output, ruled["score"], file, "--part-rows", "100", code=1)
    assert 'it belongs to another run (rules: null, now "applied")' in refused


def test_csv_has_the_ids_of_rules_as_one_text(tmp_path: Path, ruled: dict[str, Path], file: Path) -> None:
    at = AFTER.isoformat()
    score(tmp_path / "out.csv", ruled["score"], file, "--at", at)
    score(tmp_path / "out", ruled["score"], file, "--at", at)
    texts = pacsv.read_csv(tmp_path / "out.csv")["rules"].to_pylist()
    lists = pq.read_table(tmp_path / "out")["rules"].to_pylist()
    assert [text or "" for text in texts] == [";".join(one) for one in lists]
    assert any(";" in (text or "") for text in texts)


def test_tasks_of_a_cluster_have_the_results_of_a_local_run(
    tmp_path: Path, ruled: dict[str, Path], file: Path
) -> None:
    columns = BatchColumns(keep=("id",), id="id")
    output = tmp_path / "cluster"
    run = ClusterRun(ruled["score"], columns, SourceOptions.of_files(str(file), None), output, part_rows=100)
    run.run(lambda function, parts: [function(part) for part in parts])
    at = json.loads((output / "_run.json").read_bytes())["at"]
    local = tmp_path / "local"
    score(local, ruled["score"], file, "--at", datetime.fromtimestamp(at, UTC).isoformat())
    assert pq.read_table(output).equals(pq.read_table(local))


def test_rules_that_read_external_lists_are_refused(tmp_path: Path) -> None:
    text = CHECKOUT + '\n[[rules]]\nid = "listed"\nwhen = \'int(amount) in list("amounts")\'\nreason = "L"\n'
    external = {"amounts": RuleList(None, "int", external=True)}
    tiny_score_bundle(tmp_path / "score", rules=BundleRules(text, external))
    bundle = Bundle.load(tmp_path / "score")
    with pytest.raises(BatchError, match="does not load the external lists amounts"):
        BatchScorer(bundle, tmp_path / "score", BatchColumns())
