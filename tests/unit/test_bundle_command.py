"""Tests of ``scorer bundle``, from a specification file to an inspected bundle."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from trained import ACTIONS, CONTEXT, SALT, Trained, contexts, labels_of

from scorer.bundle import verify
from scorer.cli import main
from scorer.sdk import credentials

FEATURES = """
[[features]]
name = "amount"
missing = "refuse"
minimum = 0
maximum = 50000

[[features]]
name = "hour"

[[features]]
name = "country"
type = "category"
categories = ["NL", "DE", "FR"]

[[features]]
name = "night"
type = "flag"
"""

SCORE = f"""
[bundle]
name = "fraud-checkout"
kind = "score"
model = "model.ubj"

[data]
training = "training.parquet"
validation = "validation.parquet"

[calibration]
label = "fraud"

[lineage]
code_version = "v7"
metrics = {{ auc = 0.91 }}
{FEATURES}
[[thresholds]]
from = 0.0
label = "approve"

[[thresholds]]
from = 0.6
label = "decline"
"""

ACTION = f"""
actions = "actions.json"

[bundle]
name = "authorise"
kind = "action"
model = "model.ubj"

[data]
training = "training.parquet"
validation = "validation.parquet"

[calibration]
method = "sigmoid"
label = "fraud"
action = "action"

[policy]
rule = "fastcb"
gamma = 50
floor = 0.05
salt = "{SALT}"
caps = [{{ attribute = "three_ds", lambda = 0.01, limit = 0.3 }}]
{FEATURES}
[[action_features]]
name = "three_ds"
type = "flag"

[[action_features]]
name = "exemption"
type = "category"
categories = ["none", "tra", "low"]
"""


def table(count: int, seed: int) -> pa.Table:
    rows = contexts(count, seed)
    names = np.array(["NL", "DE", "FR"], dtype=object)
    country = [None if np.isnan(code) else names[int(code)] for code in rows[:, 2]]
    taken = np.random.default_rng(seed).integers(0, len(ACTIONS), count)
    return pa.table(
        {
            "amount": rows[:, 0],
            "hour": rows[:, 1],
            "country": country,
            "night": rows[:, 3],
            "fraud": labels_of(rows, seed),
            "action": [ACTIONS[index].id for index in taken],
        }
    )


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    parquet.write_table(table(400, 1), tmp_path / "training.parquet")
    parquet.write_table(table(400, 2), tmp_path / "validation.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["scorer", "bundle", *arguments])
    try:
        code = main()
    except SystemExit as stopped:
        code = stopped.code
    return int(code or 0)


def test_the_command_builds_a_score_bundle(
    here: Path,
    score_bundle: Trained,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    score_bundle.model.save_model(here / "model.ubj")
    (here / "fraud.toml").write_text(SCORE)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(here / "config"))
    monkeypatch.delenv("SCORER_PLATFORM_URL", raising=False)
    assert run(monkeypatch, "build", "fraud.toml", "--output", "out/fraud") == 0
    digest = verify(here / "out" / "fraud").digest
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [digest, "next: scorer registry push out/fraud"]
    assert "in the clear for 4 features (amount, hour, country, night)" in printed.err
    # The last line names the next command of a user who is signed in to a platform.
    credentials.keep(credentials.Credentials("https://platform.example", "token"))
    assert run(monkeypatch, "build", "fraud.toml", "--output", "out/again") == 0
    assert "next: scorer change test out/again --checkpoint CHECKPOINT" in capsys.readouterr().out

    assert run(monkeypatch, "verify", "out/fraud", "--digest", digest) == 0
    assert capsys.readouterr().out.strip() == f"ok fraud-checkout (score) {digest}"
    assert run(monkeypatch, "verify", "out/fraud", "--json") == 0
    assert json.loads(capsys.readouterr().out)["digest"] == digest

    assert run(monkeypatch, "inspect", "out/fraud") == 0
    shown = capsys.readouterr().out
    for text in (
        digest,
        "forest > link > calibrate > threshold",
        "0 .. 50000",
        "decline",
        "v7",
        "metric auc",
    ):
        assert text in shown
    assert run(monkeypatch, "inspect", "out/fraud", "--json") == 0
    inspected = json.loads(capsys.readouterr().out)
    assert [feature["name"] for feature in inspected["data"]["features"]] == [f.name for f in CONTEXT]
    assert inspected["manifest"]["program"][-1]["bands"][1] == {"from": 0.6, "label": "decline"}


def test_the_command_builds_an_action_bundle(
    here: Path,
    action_bundle: Trained,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    action_bundle.model.save_model(here / "model.ubj")
    (here / "actions.json").write_text(json.dumps([action.model_dump() for action in ACTIONS]))
    (here / "authorise.toml").write_text(ACTION)
    assert run(monkeypatch, "build", "authorise.toml", "-o", "authorise") == 0
    capsys.readouterr()
    assert run(monkeypatch, "inspect", "authorise") == 0
    shown = capsys.readouterr().out
    for text in ("fastcb", "gamma", "3ds=none|exemption=none", "action (6)", "forest > calibrate > policy"):
        assert text in shown


def test_a_build_names_the_features_whose_golden_cases_are_in_the_clear(
    here: Path, score_bundle: Trained, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    score_bundle.model.save_model(here / "model.ubj")
    for number, (sensitive, expected) in enumerate(
        [('["amount", "country"]', "in the clear for 2 features (hour, night)"), ('["*"]', "")]
    ):
        named = SCORE.replace("[bundle]", f"[bundle]\nsensitive = {sensitive}")
        (here / "fraud.toml").write_text(named)
        assert run(monkeypatch, "build", "fraud.toml", "-o", f"out/{number}") == 0
        printed = capsys.readouterr().err
        assert expected in printed and bool(printed) == bool(expected)


def test_a_build_with_reasons_and_one_without_covers(
    here: Path, score_bundle: Trained, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(bytes(score_bundle.model.save_raw("json")))
    (here / "model.json").write_text(json.dumps(document))
    (here / "codes.json").write_text('{"features": {"amount": {"code": "R01"}}}')
    named = SCORE.replace('model = "model.ubj"', 'model = "model.json"\nreasons = "codes.json"')
    (here / "fraud.toml").write_text(named)
    assert run(monkeypatch, "build", "fraud.toml", "-o", "out/with") == 0
    assert "covers" not in capsys.readouterr().err
    assert verify(here / "out" / "with").reason_codes == ["R01", "hour", "country", "night"]

    tree = document["learner"]["gradient_booster"]["model"]["trees"][0]
    tree["sum_hessian"] = [-1.0 for _ in tree["sum_hessian"]]
    (here / "model.json").write_text(json.dumps(document))
    (here / "fraud.toml").write_text(SCORE.replace("model.ubj", "model.json"))
    assert run(monkeypatch, "build", "fraud.toml", "-o", "out/without") == 0
    line = "the model states no usable weights of its nodes (covers), so the bundle gives no reasons"
    assert line in capsys.readouterr().err
    assert not verify(here / "out" / "without").explains

    (here / "codes.json").write_text('{"features": {"amount": {}}}')
    (here / "fraud.toml").write_text(named)
    assert run(monkeypatch, "build", "fraud.toml", "-o", "out/bad") == 1
    assert 'codes.json": features.amount.code: Field required' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('kind = "score"', 'kind = "scores"', "bundle.kind: Input should be 'score' or 'action'"),
        ('label = "fraud"', "", "calibration.label: Field required"),
        ("maximum = 50000", "maximun = 50000", "features.0.maximun: Extra inputs are not permitted"),
        ('type = "flag"', 'type = "bool"', "features.3.type: Input should be 'number', 'category' or 'flag'"),
        ("[bundle]", "[bundle", "is not valid TOML"),
        ('model = "model.ubj"', 'model = "gone.ubj"', 'gone.ubj" is missing; give the path of a .ubj'),
        ('model = "model.ubj"', 'model = "m.pkl"', 'm.pkl" is missing'),
        ('"training.parquet"', '"gone.parquet"', 'gone.parquet" is missing; give the path of a Parquet file'),
        ('"training.parquet"', '"fraud.toml"', "cannot be read as Parquet"),
        ('label = "fraud"', 'label = "chargeback"', 'the held-out data has no column "chargeback"'),
        ('name = "hour"', 'name = "minute"', 'column 1 is "hour", the schema has "minute"'),
        ('"NL", "DE", "FR"', '"NL", "DE"', 'feature "country": category "FR" is not in its dictionary'),
        ("from = 0.6", "from = 0.0", "put the bands in ascending order"),
    ],
)
def test_invalid_specifications_are_refused(
    here: Path,
    score_bundle: Trained,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    old: str,
    new: str,
    message: str,
) -> None:
    score_bundle.model.save_model(here / "model.ubj")
    assert old in SCORE
    (here / "fraud.toml").write_text(SCORE.replace(old, new, 1))
    assert run(monkeypatch, "build", "fraud.toml", "-o", "out") == 1
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.startswith("error: ")
    assert not (here / "out").exists()


def test_all_mistakes_are_listed(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "bad.toml").write_text(SCORE.replace('"score"', '"x"').replace("from = 0.6", 'from = "high"'))
    assert run(monkeypatch, "build", "bad.toml", "-o", "out") == 1
    assert len(capsys.readouterr().err.strip().splitlines()) == 2
    contradiction = ACTION.replace("[policy]", "[[thresholds]]\nfrom = 0.0\nlabel = 'a'\n[policy]").replace(
        'action = "action"', ""
    )
    (here / "bad.toml").write_text(contradiction)
    assert run(monkeypatch, "build", "bad.toml", "-o", "out") == 1
    errors = capsys.readouterr().err
    assert "thresholds are for score bundles" in errors
    assert "calibration.action: name the column" in errors


def test_a_broken_bundle_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "verify", str(tmp_path)) == 1
    assert (
        capsys.readouterr().err
        == "error: manifest.json: the file is missing; restore or rebuild the bundle\n"
    )
