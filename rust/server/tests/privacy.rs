//! Card numbers and entities: values in the wrong field reach no file, metric, event or error.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here is a failed test")]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::support::*;
use scorer_core::bundle::testing;
use scorer_proto::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use scorer_proto::inference::infer_parameter::ParameterChoice;
use scorer_proto::inference::{InferParameter, ModelInferRequest};
use scorer_proto::v1::feature::Value;
use scorer_proto::v1::{OutcomeSourceKind, ScoreRequest, SelectActionRequest, log_record, score_request};
use serde_json::json;
use tonic::{Code, Request, Status};

/// The prefix of every card number in these tests. No other sent value contains it.
const MARK: &str = "411177";
/// Consecutive card numbers, as in the ranges of issuers.
const CARDS: u64 = 10_000;

/// Returns the card number of a serial number.
fn card(serial: u64) -> String {
    let mut digits = format!("{MARK}{serial:09}");
    let sum: u32 = digits
        .bytes()
        .rev()
        .enumerate()
        .map(|(place, digit)| {
            let digit = u32::from(digit - b'0') * if place % 2 == 0 { 2 } else { 1 };
            if digit > 9 { digit - 9 } else { digit }
        })
        .sum();
    digits.push(char::from(b'0' + ((10 - sum % 10) % 10) as u8));
    digits
}

/// Sets one field of one method to a text with a card number.
type Send = fn(&str, u64) -> Call;

/// Every text field of a request, and the value of an outcome.
const FIELDS: [(&str, Send); 14] = [
    ("request_id", |text, _| Call::Score(score(text, 10.0))),
    ("select's request_id", |text, _| Call::Select(select(text, 10.0))),
    ("batch's request_id", |text, print| Call::Batch(batch(text, print, &[[10.0, 0.0, 0.0]]))),
    ("entity", |text, _| Call::Score(ScoreRequest { entity: text.to_owned(), ..score("", 10.0) })),
    ("select's entity", |text, _| {
        Call::Select(SelectActionRequest { entity: text.to_owned(), ..select("", 10.0) })
    }),
    ("batch's entity", |text, print| {
        let mut request = batch("", print, &[[10.0, 0.0, 0.0]]);
        request.entity = text.to_owned();
        Call::Batch(request)
    }),
    ("a category", |text, _| features(&[("amount", Value::Number(1.0)), ("country", category(text))])),
    ("a feature's name", |text, _| features(&[("amount", Value::Number(1.0)), (text, Value::Number(1.0))])),
    ("decision_id", |text, _| Call::Outcome(outcome(text, "fraud", 1.0, 0))),
    ("kind", |text, _| Call::Outcome(outcome("d", text, 1.0, 0))),
    ("a source's id", |text, _| {
        Call::Outcome(outcome_of(OutcomeSourceKind::Merchant, text, outcome("d", "fraud", 1.0, 0)))
    }),
    ("value", |text, _| Call::Outcome(outcome("d", "amount", digits(text), 0))),
    ("checkpoint", |text, _| Call::Score(ScoreRequest { checkpoint: text.to_owned(), ..score("", 1.0) })),
    ("an action's id", |text, _| {
        Call::Select(SelectActionRequest { eligible: eligible(&[text], &[]), ..select("", 1.0) })
    }),
];

fn category(text: &str) -> Value {
    Value::Category(text.to_owned())
}

fn features(values: &[(&str, Value)]) -> Call {
    let features = Some(score_request::Features::Named(named(values)));
    Call::Score(ScoreRequest { features, ..score("", 1.0) })
}

fn digits(text: &str) -> f64 {
    text.chars().filter(char::is_ascii_digit).collect::<String>().parse().unwrap()
}

/// Returns the written forms of a card number.
fn written(serial: u64) -> String {
    let card = card(serial);
    let grouped = |separator: &str| {
        let groups: Vec<&str> = [0, 4, 8, 12].map(|at| &card[at..at + 4]).to_vec();
        groups.join(separator)
    };
    match serial % 4 {
        0 => card,
        1 => grouped(" "),
        2 => grouped("-"),
        _ => format!("pan {card}"),
    }
}

fn holds_mark(bytes: &[u8]) -> bool {
    // The check ignores separators between groups of digits.
    let plain: Vec<u8> = bytes.iter().copied().filter(|byte| !b" -".contains(byte)).collect();
    plain.windows(MARK.len()).any(|window| window == MARK.as_bytes())
}

fn files(directory: &Path) -> Vec<std::path::PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { all.extend(files(&path)) } else { all.push(path) }
    }
    all
}

/// Sends every card number in some field; returns the fields that were answered.
async fn send_all(setup: &Setup) -> BTreeSet<&'static str> {
    let mut client = setup.client().await;
    let mut oip = GrpcInferenceServiceClient::new(setup.channel().await);
    let print = fingerprint(&mut client, FRAUD).await;
    let mut answered = BTreeSet::new();
    let check = |field: &str, status: &Status| {
        assert!(!holds_mark(status.message().as_bytes()), "{field}: {}", status.message());
        let code = status.code();
        assert!(matches!(code, Code::InvalidArgument | Code::NotFound), "{field}: {status}");
    };
    for serial in 0..CARDS {
        let text = written(serial);
        let (field, call) = FIELDS[(serial / 4) as usize % FIELDS.len()];
        match call(&text, print).send(&mut client).await {
            Ok(()) => _ = answered.insert(field),
            Err(status) => check(field, &status),
        }
        if serial % 50 == 0 {
            let parameter =
                InferParameter { parameter_choice: Some(ParameterChoice::StringParam(text.clone())) };
            let mut request =
                ModelInferRequest { model_name: FRAUD.to_owned(), ..ModelInferRequest::default() };
            match serial % 3 {
                0 => request.id = text.clone(),
                1 => _ = request.parameters.insert("entity".to_owned(), parameter),
                _ => request.model_version = text.clone(),
            }
            check("ModelInfer", &oip.model_infer(request).await.unwrap_err());
            // Metadata is not content. The request is answered, and the metadata is not stored.
            let mut request = Request::new(score("", 10.0));
            request.metadata_mut().insert("x-caller", text.parse().unwrap());
            request.metadata_mut().insert("x-note", text.parse().unwrap());
            client.score(request).await.unwrap();
        }
    }
    client.score(score("last", 10.0)).await.unwrap();
    answered
}

async fn check_nothing_leaked(setup: &mut Setup) {
    let metrics = setup.metrics().await;
    assert!(!holds_mark(metrics.as_bytes()), "metrics");
    let events = serde_json::to_vec(&setup.events()).unwrap();
    assert!(!holds_mark(&events), "events");
    let status = serde_json::to_vec(&setup.server.status()).unwrap();
    assert!(!holds_mark(&status), "status");
    setup.server.drain(std::time::Duration::from_secs(60));
    let mut read = 0;
    for path in files(setup.directory.path()) {
        let bytes = fs::read(&path).unwrap();
        read += bytes.len();
        assert!(!holds_mark(&bytes), "{}", path.display());
    }
    assert!(read > 0);
}

/// Fault case 35.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_card_numbers_are_refused_and_none_is_stored() {
    let mut setup = start();
    assert_eq!(send_all(&setup).await, BTreeSet::new());
    let metrics = setup.metrics().await;
    let line = metrics.lines().find(|line| line.starts_with("scorer_card_numbers_refused_total ")).unwrap();
    let refused: u64 = line.split_once(' ').unwrap().1.parse().unwrap();
    // All fields except checkpoints and actions, which are names of the operator and are looked up first.
    assert!(refused > CARDS * 10 / 13, "{line}");
    check_nothing_leaked(&mut setup).await;
}

/// Fault case 35.
#[tokio::test(flavor = "multi_thread")]
async fn masked_card_numbers_are_replaced_by_a_keyed_pseudonym() {
    let keys = tempfile::tempdir().unwrap();
    let key = keys.path().join("entity.key");
    fs::write(&key, "0123456789abcdef0123456789abcdef").unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let mut setup = start_with(|config| config["privacy"] = json!({"card_numbers": "mask", "key_file": key}));
    let answered = send_all(&setup).await;
    let ids = ["batch's request_id", "decision_id", "request_id", "select's request_id"];
    let entities = ["batch's entity", "entity", "select's entity"];
    assert_eq!(answered, ids.into_iter().chain(entities).collect());
    let mut client = setup.client().await;
    let id = written(1);
    let first = client.select_action(select(&id, 10.0)).await.unwrap().into_inner();
    assert!(first.decision_id.starts_with("card:"), "{}", first.decision_id);
    let again = client.select_action(select(&id, 10.0)).await.unwrap().into_inner();
    assert!(again.replayed && again.action == first.action, "one id is one decision");
    for reported in [&id, &first.decision_id] {
        let report = client.report_outcome(outcome(reported, "fraud", 1.0, 0)).await.unwrap();
        assert!(report.into_inner().decision_known, "an outcome finds its decision by either id");
    }
    check_nothing_leaked(&mut setup).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entity_is_recorded_as_its_pseudonym_and_keeps_its_lane() {
    let keys = tempfile::tempdir().unwrap();
    let key = keys.path().join("entity.key");
    fs::write(&key, "0123456789abcdef0123456789abcdef").unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let setup = start_with(|config| config["privacy"] = json!({"entities": "hash", "key_file": key}));
    let mut client = setup.client().await;
    for amount in [10.0, 20.0] {
        let request = SelectActionRequest { entity: "customer-1".to_owned(), ..select("", amount) };
        client.select_action(request).await.unwrap();
    }
    let entities: BTreeSet<String> = setup.decisions().into_iter().map(|decision| decision.entity).collect();
    // The first half of the output of `printf 'entity\0customer-1' | openssl dgst -sha256 -hmac KEY`.
    assert_eq!(entities, BTreeSet::from(["b21b96651b4e01a7d93c311e78e5e7ac".to_owned()]));
    for path in files(&setup.directory.path().join("log")) {
        let bytes = fs::read(path).unwrap();
        assert!(!bytes.windows(10).any(|window| window == b"customer-1"));
    }
}

/// The file modes of the log do not depend on the server's umask.
#[tokio::test(flavor = "multi_thread")]
async fn other_users_cannot_read_the_log() {
    let setup = start();
    setup.client().await.score(score("", 10.0)).await.unwrap();
    for path in files(&setup.directory.path().join("log")) {
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o137, 0, "{}", path.display());
    }
}

/// Sensitive features: decisions, observations and batches are recorded without them.
#[tokio::test(flavor = "multi_thread")]
async fn a_masked_feature_is_in_no_record_and_every_model_gets_it() {
    const MARKED: f32 = 8675.3125;
    let setup = start_with(|config| config["privacy"] = json!({"features": {"amount": "mask"}}));
    let other = load(&setup.server, setup.directory.path(), &testing::score_files("other", 1.0));
    setup.server.swap(&observed(&setup, 2, FRAUD, vec![observer("shadow", &other, 1.0)])).unwrap();
    let mut client = setup.client().await;
    let print = fingerprint(&mut client, FRAUD).await;
    let marked = client.score(score("marked", f64::from(MARKED))).await.unwrap().into_inner();
    let low = client.score(score("low", 1.0)).await.unwrap().into_inner();
    assert_ne!(marked.score, low.score, "the model gets the value");
    client.select_action(select("chosen", f64::from(MARKED))).await.unwrap();
    client.score_batch(batch("batch", print, &[[MARKED, 0.0, 0.0]; 3])).await.unwrap();
    status(&setup, "shadow", |lane| lane.evaluated == 5).await;
    let (mut decisions, mut scores) = (0, BTreeSet::new());
    for record in setup.records() {
        let (decision, observed) = match record {
            log_record::Record::Decision(decision) => (decision, false),
            log_record::Record::Observation(observation) => (observation.decision.unwrap(), true),
            _ => continue,
        };
        decisions += 1;
        assert_eq!(decision.withheld, [0]);
        assert!(decision.features[0].is_nan() && decision.sealed.is_none());
        if observed {
            scores.insert(decision.score.to_bits());
        }
    }
    assert_eq!(decisions, 6 + 5);
    assert!(scores.len() >= 2, "observe lanes get the values");
    for path in files(&setup.directory.path().join("log")) {
        let bytes = fs::read(&path).unwrap();
        assert!(!bytes.windows(4).any(|window| window == MARKED.to_le_bytes()), "{}", path.display());
    }
}
