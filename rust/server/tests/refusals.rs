//! Every refusal of a request: the request, the status, and that the message names the field.

#![allow(clippy::expect_used, reason = "a failure here is a failed test")]

use crate::support::*;
use scorer_proto::v1::feature::Value;
use scorer_proto::v1::{
    DenseFeatures, DescribeRequest, NamedFeatures, ScoreBatchRequest, ScoreRequest, SelectActionRequest,
    score_request, select_action_request,
};
use tonic::Code;

type Row = (&'static str, Call, Code, &'static str);

async fn check(client: &mut Client, rows: Vec<Row>) {
    for (what, call, code, words) in rows {
        let status = call.send(client).await.expect_err(what);
        assert_eq!(status.code(), code, "{what}: {}", status.message());
        assert!(status.message().contains(words), "{what}: {words:?} is not in {:?}", status.message());
        assert!(!status.message().contains('\n'), "{what}: {:?}", status.message());
    }
}

fn with_features(features: NamedFeatures) -> Call {
    Call::Score(ScoreRequest { features: Some(score_request::Features::Named(features)), ..score("", 0.0) })
}

fn amount(value: Value) -> Call {
    with_features(named(&[("amount", value)]))
}

fn with_eligible(ids: &[&str], mask: &[u8]) -> Call {
    Call::Select(SelectActionRequest { eligible: eligible(ids, mask), ..select("", 10.0) })
}

/// Fault case 36.
#[tokio::test(flavor = "multi_thread")]
async fn checkpoints_and_ids() {
    let setup = start();
    let mut client = setup.client().await;
    let at = |checkpoint: &str| checkpoint.to_owned();
    let long = "x".repeat(65);
    let id = |id: &str| Call::Score(score(id, 1.0));
    let describe = |name: &str| Call::Describe(DescribeRequest { checkpoint: name.to_owned() });
    let rows = vec![
        (
            "unknown",
            Call::Score(ScoreRequest { checkpoint: at("fraud"), ..score("", 1.0) }),
            Code::NotFound,
            "checkpoint \"fraud\" is not configured; this server has action.authorise, fraud.checkout",
        ),
        (
            "empty",
            Call::Score(ScoreRequest { checkpoint: at(""), ..score("", 1.0) }),
            Code::NotFound,
            "checkpoint \"\"",
        ),
        (
            "long",
            Call::Score(ScoreRequest { checkpoint: "y".repeat(9999), ..score("", 1.0) }),
            Code::NotFound,
            "yyyy\" is not",
        ),
        ("unknown to describe", describe("nope"), Code::NotFound, "\"nope\""),
        (
            "score an action",
            Call::Score(ScoreRequest { checkpoint: at(ACTION), ..score("", 1.0) }),
            Code::InvalidArgument,
            "of kind action; call SelectAction",
        ),
        (
            "select a score",
            Call::Select(SelectActionRequest { checkpoint: at(FRAUD), ..select("", 1.0) }),
            Code::InvalidArgument,
            "of kind score; call Score",
        ),
        (
            "batch an action",
            Call::Batch(ScoreBatchRequest { checkpoint: at(ACTION), ..batch("", 0, &[[0.0; 3]]) }),
            Code::InvalidArgument,
            "of kind action",
        ),
        ("id too long", id(&long), Code::InvalidArgument, "request_id: has 65 bytes; use 1 to 64 printable"),
        ("id with newline", id("a\nb"), Code::InvalidArgument, "request_id: byte 1 is not printable"),
        (
            "id with escape",
            Call::Select(select("\u{1b}[2J", 1.0)),
            Code::InvalidArgument,
            "request_id: byte 0",
        ),
        ("id not ASCII", id("caf\u{e9}"), Code::InvalidArgument, "request_id: byte 3"),
        (
            "entity too long",
            Call::Score(ScoreRequest { entity: "e".repeat(257), ..score("", 1.0) }),
            Code::InvalidArgument,
            "entity: 257 bytes; at most 256",
        ),
    ];
    check(&mut client, rows).await;
}

/// Fault cases 19, 20, 22, 23, 25.
#[tokio::test(flavor = "multi_thread")]
async fn features() {
    let setup = start();
    let mut client = setup.client().await;
    let fingerprint = fingerprint(&mut client, FRAUD).await;
    let dense = |values: &[f32]| Call::Score(score_dense("", fingerprint, values));
    let number = |name: &'static str, value: f64| with_features(named(&[(name, Value::Number(value))]));
    let both = |values: &[(&str, Value)]| with_features(named(values));
    let category = |text: &str| Value::Category(text.to_owned());
    let rows = vec![
        (
            "none",
            Call::Score(ScoreRequest { features: None, ..score("", 1.0) }),
            Code::InvalidArgument,
            "neither \"named\" nor \"dense\"",
        ),
        (
            "none to select",
            Call::Select(SelectActionRequest { features: None, ..select("", 1.0) }),
            Code::InvalidArgument,
            "neither",
        ),
        ("unknown", number("amuont", 1.0), Code::InvalidArgument, "feature \"amuont\": not in the schema"),
        ("missing", both(&[]), Code::InvalidArgument, "feature \"amount\": missing"),
        (
            "NaN where refused",
            amount(Value::Number(f64::NAN)),
            Code::InvalidArgument,
            "feature \"amount\": missing",
        ),
        ("wrong type", amount(category("ten")), Code::InvalidArgument, "a category was sent"),
        ("flag for number", amount(Value::Flag(true)), Code::InvalidArgument, "a flag was sent"),
        (
            "infinite",
            amount(Value::Number(f64::INFINITY)),
            Code::InvalidArgument,
            "feature \"amount\": the value is infinite",
        ),
        ("beyond float32", amount(Value::Number(1e300)), Code::InvalidArgument, "beyond float32"),
        ("above", amount(Value::Number(50_001.0)), Code::InvalidArgument, "above the allowed maximum 50000"),
        ("below", amount(Value::Number(-1.0)), Code::InvalidArgument, "below the allowed minimum 0"),
        (
            "twice",
            both(&[("amount", Value::Number(1.0)), ("amount", Value::Number(1.0))]),
            Code::InvalidArgument,
            "given twice",
        ),
        (
            "text for flag",
            both(&[("amount", Value::Number(1.0)), ("night", category("yes"))]),
            Code::InvalidArgument,
            "feature \"night\"",
        ),
        ("too few", dense(&[1.0, 0.0]), Code::InvalidArgument, "2 values, the schema has 3"),
        ("too many", dense(&[1.0; 4]), Code::InvalidArgument, "4 values, the schema has 3"),
        ("dense NaN", dense(&[f32::NAN, 0.0, 0.0]), Code::InvalidArgument, "feature \"amount\": missing"),
        (
            "dense infinite",
            dense(&[f32::NEG_INFINITY, 0.0, 0.0]),
            Code::InvalidArgument,
            "feature \"amount\"",
        ),
        (
            "fractional code",
            dense(&[1.0, 0.5, 0.0]),
            Code::InvalidArgument,
            "the value is not a category code",
        ),
        (
            "code out of range",
            dense(&[1.0, 3.0, 0.0]),
            Code::InvalidArgument,
            "the value is not a category code",
        ),
        ("no flag", dense(&[1.0, 0.0, 2.0]), Code::InvalidArgument, "the value is not a flag"),
        (
            "other schema",
            Call::Score(score_dense("", fingerprint ^ 1, &[1.0, 0.0, 0.0])),
            Code::FailedPrecondition,
            "call Describe",
        ),
        (
            "other schema to select",
            Call::Select(SelectActionRequest {
                features: Some(select_action_request::Features::Dense(DenseFeatures {
                    schema_fingerprint: 0,
                    values: vec![1.0; 3],
                })),
                ..select("", 1.0)
            }),
            Code::FailedPrecondition,
            "schema_fingerprint 0x0000000000000000",
        ),
    ];
    check(&mut client, rows).await;
    // Unknown categories count as missing if the schema allows it, as does NaN.
    let mut fine = score("", 1.0);
    fine.features = Some(score_request::Features::Named(named(&[
        ("amount", Value::Number(1.0)),
        ("country", category("XX")),
    ])));
    client.score(fine).await.unwrap();
    client.score(score_dense("", fingerprint, &[1.0, f32::NAN, f32::NAN])).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn batches() {
    let setup = start();
    let mut client = setup.client().await;
    let fingerprint = fingerprint(&mut client, FRAUD).await;
    let good = [[1.0, 0.0, 0.0]; 3];
    let bad = [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 9.0, 0.0]];
    let batch = |rows: &[[f32; 3]]| batch("", fingerprint, rows);
    let rows = vec![
        ("no rows", Call::Batch(batch(&[])), Code::InvalidArgument, "rows is 0"),
        (
            "too many rows",
            Call::Batch(batch(&[[1.0, 0.0, 0.0]; 1001])),
            Code::InvalidArgument,
            "rows is 1001, the checkpoint takes at most 1000",
        ),
        (
            "too few values",
            Call::Batch(ScoreBatchRequest { rows: 4, ..batch(&good) }),
            Code::InvalidArgument,
            "9 values for 4 rows of 3 features",
        ),
        (
            "too many values",
            Call::Batch(ScoreBatchRequest { rows: 2, ..batch(&good) }),
            Code::InvalidArgument,
            "9 values for 2 rows",
        ),
        ("bad row", Call::Batch(batch(&bad)), Code::InvalidArgument, "row 2: feature \"country\""),
        (
            "other schema",
            Call::Batch(ScoreBatchRequest { schema_fingerprint: 1, ..batch(&good) }),
            Code::FailedPrecondition,
            "call Describe",
        ),
    ];
    check(&mut client, rows).await;
    assert!(setup.decisions().is_empty(), "a refused batch must leave no rows in the log");
}

/// Fault case 24.
#[tokio::test(flavor = "multi_thread")]
async fn eligible_actions() {
    let setup = start();
    let mut client = setup.client().await;
    let many: Vec<String> = (0..10_000).map(|number| format!("action-{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let known = "3ds=none|exemption=tra";
    let rows = vec![
        ("present and empty", with_eligible(&[], &[]), Code::InvalidArgument, "present but empty"),
        ("both forms", with_eligible(&[known], &[1]), Code::InvalidArgument, "both \"ids\" and \"mask\""),
        ("all masked", with_eligible(&[], &[0]), Code::InvalidArgument, "no action is eligible"),
        ("mask too long", with_eligible(&[], &[1, 0]), Code::InvalidArgument, "2 bytes, 6 actions take 1"),
        ("bit beyond", with_eligible(&[], &[0b0100_0001]), Code::InvalidArgument, "bit 6 is set"),
        (
            "unknown",
            with_eligible(&[known, "3ds=maybe"], &[]),
            Code::InvalidArgument,
            "action \"3ds=maybe\" is not in the catalogue",
        ),
        ("twice", with_eligible(&[known, known], &[]), Code::InvalidArgument, "is listed twice"),
        ("10,000", with_eligible(&many, &[]), Code::InvalidArgument, "10000 ids, the catalogue"),
        (
            "10,000 as a mask",
            with_eligible(&[], &[255; 1250]),
            Code::InvalidArgument,
            "1250 bytes, 6 actions take 1",
        ),
    ];
    check(&mut client, rows).await;
    assert!(setup.decisions().is_empty(), "a refused request must leave no row in the log");
}

/// Fault case 77.
#[tokio::test(flavor = "multi_thread")]
async fn outcomes() {
    let setup = start();
    let mut client = setup.client().await;
    let report = |id: &str, kind: &str, value: f64| Call::Outcome(outcome(id, kind, value, 0));
    let mut elsewhere = outcome("d", "fraud", 1.0, 0);
    elsewhere.checkpoint = "nowhere".to_owned();
    let long = "d".repeat(81);
    let rows = vec![
        ("unknown checkpoint", Call::Outcome(elsewhere), Code::NotFound, "\"nowhere\""),
        ("no id", report("", "fraud", 1.0), Code::InvalidArgument, "decision_id: is empty"),
        ("long id", report(&long, "fraud", 1.0), Code::InvalidArgument, "decision_id: has 81 bytes"),
        ("no kind", report("d", "", 1.0), Code::InvalidArgument, "kind: is empty"),
        ("odd kind", report("d", "a\tb", 1.0), Code::InvalidArgument, "kind: byte 1"),
        ("NaN", report("d", "fraud", f64::NAN), Code::InvalidArgument, "value is not finite"),
        ("infinite", report("d", "fraud", f64::INFINITY), Code::InvalidArgument, "value is not finite"),
    ];
    check(&mut client, rows).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_bundle_or_a_log() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    config["log"] = serde_json::Value::Null;
    let config = scorer_server::ServerConfig::from_json(&config.to_string()).unwrap();
    let server = scorer_server::Server::start(config).unwrap();
    let mut client = Client::new(channel(&server).await);
    let rows = vec![
        (
            "score",
            Call::Score(score("", 1.0)),
            Code::Unavailable,
            "checkpoint \"fraud.checkout\" has no bundle yet",
        ),
        ("batch", Call::Batch(batch("", 1, &[[0.0; 3]])), Code::Unavailable, "no bundle yet"),
        (
            "select",
            Call::Select(select("", 1.0)),
            Code::Unavailable,
            "checkpoint \"action.authorise\" has no bundle yet",
        ),
        (
            "outcome",
            Call::Outcome(outcome("d", "fraud", 1.0, 0)),
            Code::Unavailable,
            "no decision log is configured",
        ),
    ];
    check(&mut client, rows).await;
    let all = client.describe(DescribeRequest::default()).await.unwrap().into_inner().checkpoints;
    assert!(all.iter().all(|checkpoint| checkpoint.bundle.is_empty() && checkpoint.lanes.is_empty()));
}
