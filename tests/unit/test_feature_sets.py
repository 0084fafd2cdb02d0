"""Declarations of feature sets: rules, canonical form, changes, and what training tables are refused for."""

import json
from copy import deepcopy

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from loadtests.feature_events import DOCUMENT
from scorer.commands.feature_sets import app
from scorer.features import FeatureSetError, canonical_json, feature_digest, parse_set, read_set, set_digest
from scorer.features.building import build_table, values_of
from scorer.features.events import EventTable
from scorer.features.parity import compare
from scorer.features.tables import FeatureTableError

DAY = 86_400_000_000
COUNT = {"name": "n", "entity": "card", "event": "payment", "aggregate": "count", "window": "7d"}


def declared(*features, **keys):
    return parse_set({**deepcopy(DOCUMENT), "features": list(features) or [COUNT], **keys})


def test_canonical_form_has_sorted_keys_seconds_and_defaults():
    document = json.loads(canonical_json(declared()))
    assert document["features"][0] == {
        "aggregate": "count",
        "default": None,
        "delay": 0,
        "entity": "card",
        "event": "payment",
        "half_life": None,
        "name": "n",
        "of": None,
        "text": "",
        "tile": 21_600,
        "where": {},
        "window": 604_800,
    }
    assert canonical_json(parse_set(document)) == canonical_json(declared())
    assert canonical_json(declared()) == json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def test_digest_of_a_feature_depends_on_its_meaning_alone():
    before = feature_digest(declared(), "n")
    assert feature_digest(declared({**COUNT, "name": "m", "text": "other"}), "m") == before
    assert feature_digest(declared({**COUNT, "default": 0}), "n") != before
    assert feature_digest(declared({**COUNT, "default": 0}), "n") == feature_digest(
        declared({**COUNT, "default": 0.0}), "n"
    )
    assert set_digest(declared(text="other")) != set_digest(declared())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window": "90s"}, 'feature "n": window and delay are multiples of the tile, 1m'),
        ({"delay": "5h"}, "multiples of the tile"),
        ({"window": "7 days"}, 'window: a duration is a whole number with s, m, h or d, such as "7d"'),
        ({"entity": "shop"}, 'entity: events "payment" have no entity "shop"'),
        ({"event": "login"}, 'event: "login" is not declared'),
        ({"of": "amount"}, "of: count is of no field"),
        ({"aggregate": "sum"}, "of: sum is of a number field"),
        ({"aggregate": "decayed_count"}, "decayed_count has half_life and no window"),
        ({"where": {"amount": ["1"]}}, 'no text field "amount"'),
        ({"windw": "7d"}, "windw: the key is unknown"),
        ({"ratio": ["a", "b"]}, "a ratio has only name, text, ratio and default"),
        ({"name": "a b"}, "a name is 1 to 64 of"),
        ({"default": float("inf")}, "default: Input should be a finite number"),
    ],
)
def test_mistakes_name_file_feature_and_rule(change, message):
    with pytest.raises(FeatureSetError) as caught:
        parse_set({**DOCUMENT, "features": [{**COUNT, **change}]}, "set.toml")
    assert str(caught.value).startswith("set.toml: ")
    assert message in str(caught.value)


def test_files_are_checked_shown_and_compared(tmp_path):
    old, new, broken = (tmp_path / name for name in ("old.toml", "new.json", "broken.toml"))
    old.write_text(
        'name = "s"\nversion = 1\n[events.payment]\nentities = ["card"]\naccept_late = "7d"\n'
        '[[features]]\nname = "n"\nentity = "card"\nevent = "payment"\naggregate = "count"\nwindow = "7d"\n'
    )
    document = json.loads(canonical_json(read_set(old)))
    document["features"][0]["window"] = 86_400
    document["features"][0]["tile"] = None
    new.write_text(json.dumps(document))
    broken.write_text("name =")
    run = CliRunner().invoke
    assert set_digest(read_set(old)) in run(app, ["check", str(old)]).output
    assert run(app, ["show", str(old), "--json"]).output.strip().encode() == canonical_json(read_set(old))
    assert "count of payment" in run(app, ["show", str(old)]).output
    refused = run(app, ["diff", str(old), str(new)])
    assert (refused.exit_code, "redefined" in refused.output, "raise version" in refused.output) == (
        1,
        True,
        True,
    )
    new.write_text(json.dumps(document | {"version": 2}))
    assert run(app, ["diff", str(old), str(new)]).exit_code == 0
    with pytest.raises(FeatureSetError, match=r"broken.toml: it is not TOML"):
        read_set(broken)


def payments(count=50, lag=0):
    at = [day * DAY + DAY // 2 for day in range(count)]
    return pa.table(
        {
            "id": [f"p{number}" for number in range(count)],
            "occurred_at": at,
            "received_at": [time + lag for time in at],
            "card": ["c"] * count,
            "terminal": ["t"] * count,
            "amount": [float(number) for number in range(count)],
            "country": ["NL"] * count,
        }
    )


def test_a_feature_that_equals_a_future_label_does_not_leak():
    # The label of a decision is whether the next payment of its card is above 20. The greatest amount of the
    # card has this information only if a payment counts that occurred or was received after the decision.
    feature = {"name": "most", "entity": "card", "event": "payment", "aggregate": "max", "of": "amount"}
    table = declared({**feature, "window": "7d"})
    times = [day * DAY + DAY // 2 for day in range(50)]
    decisions = pa.table({"time": times, "card": ["c"] * 50, "next": [number > 20 for number in range(50)]})
    for lag, known in ((0, 1), (DAY // 4, 1), (DAY, 2), (DAY + DAY // 4, 2)):
        found = values_of(table, {"payment": EventTable(payments(lag=lag))}, decisions).to_pydict()
        assert found["most"] == [None] * known + [float(number - known) for number in range(known, 50)]
        assert [most is not None and most > 20 for most in found["most"]] != found["next"]


def test_labels_count_from_their_receipt(tmp_path):
    table = declared(
        {"name": "n", "entity": "terminal", "event": "fraud", "aggregate": "count", "window": "30d"}
    )
    frauds = pa.table({"id": ["a"], "occurred_at": [10 * DAY], "terminal": ["t"]})
    decisions = pa.table({"time": [day * DAY for day in (11, 17, 18, 30)], "terminal": ["t"] * 4})
    late = {"fraud": EventTable(frauds, received_after=7 * 86_400)}
    assert values_of(table, late, decisions)["n"].to_pylist() == [0, 0, 1, 1]
    assert values_of(table, {"fraud": EventTable(frauds)}, decisions)["n"].to_pylist() == [1, 1, 1, 1]


def test_events_are_counted_by_what_became_of_them_and_output_is_repeatable(tmp_path):
    import pyarrow.parquet as pq

    one = payments(6)
    one = one.set_column(0, "id", pa.array(["p0", "p1", "p1", None, "x" * 81, "p5"]))
    one = one.set_column(5, "amount", pa.array([1.0, 2.0, 3.0, 4.0, 5.0, float("nan")]))
    pq.write_table(one, tmp_path / "payments.parquet")
    table, decisions = declared(), pa.table({"time": [9 * DAY], "card": ["c"], "label": [True]})
    events = {"payment": EventTable([str(tmp_path / "*.parquet")])}
    outs = [tmp_path / "out" / name for name in ("a", "b")]
    outs[0].parent.mkdir()
    built = [build_table(table, events, decisions, out) for out in outs]
    assert built[0].events["payment"].refused == {"id": 2, "number": 1}
    assert (built[0].events["payment"].recorded, built[0].events["payment"].duplicates) == (2, 1)
    assert outs[0].read_bytes() == outs[1].read_bytes()
    assert sorted(path.name for path in outs[0].parent.iterdir()) == ["a", "b"]


def test_the_command_builds_a_table_and_reports_what_became_of_events(tmp_path):
    import pyarrow.parquet as pq

    set_file, out = tmp_path / "set.json", tmp_path / "training.parquet"
    counts = ["payment", "fraud"]
    set_file.write_bytes(
        canonical_json(
            declared(
                *({**COUNT, "name": f"of_{kind}", "event": kind, "entity": "terminal"} for kind in counts)
            )
        )
    )
    pq.write_table(payments(20), tmp_path / "payments.parquet")
    frauds = pa.table({"id": ["a", "a"], "occurred_at": [10 * DAY] * 2, "terminal": ["t"] * 2})
    pq.write_table(frauds, tmp_path / "frauds.parquet")
    times = [day * DAY for day in (11, 14)]
    pq.write_table(pa.table({"at": times, "terminal": ["t", "t"], "label": [1, 0]}), tmp_path / "d.parquet")
    command = [
        *("build", str(set_file), "--decisions", str(tmp_path / "d.parquet"), "-o", str(out)),
        *("--events", f"payment={tmp_path / 'payments.parquet'}", "--time-column", "at"),
        *("--events", f"fraud={tmp_path / 'frauds.parquet'}", "--received-after", "fraud=2d"),
    ]
    run = CliRunner().invoke
    done = run(app, command)
    assert done.exit_code == 0, done.output
    assert "events payment: 20 counted, 0 duplicates" in done.output
    assert "events fraud: 1 counted, 1 duplicates" in done.output
    assert "2 decisions, 2 features" in done.output
    built = pq.read_table(out).to_pydict()
    assert (built["of_payment"], built["of_fraud"], built["label"]) == ([7, 7], [0, 1], [1, 0])
    for wrong, message in [
        (["--received-after", "refund=2d"], "no --events of this kind"),
        (["--received-after", "fraud=2 days"], "a duration is a whole number"),
        (["--events", "payment"], "write KIND=FILES"),
    ]:
        refused = run(app, [*command, *wrong])
        assert refused.exit_code == 2
        assert message in " ".join(refused.output.replace("\u2502", " ").split())


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("id", 'events "payment": column "id" is missing'),
        ("occurred_at", 'column "occurred_at" is missing; the columns are id'),
        ("amount", 'column "amount" is missing'),
    ],
)
def test_tables_without_a_needed_column_are_refused(column, message):
    decisions = pa.table({"time": [DAY], "card": ["c"]})
    with pytest.raises(FeatureTableError, match=message):
        values_of(declared(), {"payment": EventTable(payments().drop_columns([column]))}, decisions)


def test_decisions_with_the_name_of_a_feature_or_without_time_are_refused():
    events = {"payment": EventTable(payments())}
    with pytest.raises(FeatureTableError, match="has the name of a feature"):
        values_of(declared(), events, pa.table({"time": [1], "N": [1]}))
    with pytest.raises(FeatureTableError, match='1 rows have no "time"'):
        values_of(declared(), events, pa.table({"time": pa.array([None], pa.int64())}))
    with pytest.raises(FeatureTableError, match="needs them; give their files"):
        values_of(declared(), {}, pa.table({"time": [1]}))


def test_parity_reports_each_feature_that_differs():
    table = declared(COUNT, {**COUNT, "name": "m", "aggregate": "min", "of": "amount"})
    logged = pa.table(
        {
            "id": ["a", "b", "c"],
            "time": [DAY * 3, DAY * 4, 0],
            "card": ["c"] * 3,
            "served n": pa.array([3.0, 5.0, 0.0]),
            "served m": pa.array([0.0, None, float("nan")]),
        }
    )
    report = compare(table, {"payment": EventTable(payments())}, logged)
    first, second = report.features
    assert (first.compared, first.equal, first.examples) == (
        3,
        2,
        [{"id": "b", "served": 5.0, "offline": 4.0}],
    )
    assert (second.compared, second.equal, report.passed) == (2, 2, False)
    assert report.document()["features"][0]["largest"] == pytest.approx(0.2)
