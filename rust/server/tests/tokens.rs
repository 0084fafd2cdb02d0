//! Decision tokens over the wire: the tokens of answers, the outcomes that they prove, and changes of keys
//! while requests are answered.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here is a failed test")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::support::*;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use scorer_proto::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use scorer_proto::inference::infer_parameter::ParameterChoice;
use scorer_proto::inference::model_infer_request::InferInputTensor;
use scorer_proto::inference::{InferParameter, InferTensorContents, ModelInferRequest};
use scorer_proto::v1::{
    OutcomeProof, OutcomeRecord, ReportOutcomeRequest, ScoreBatchRequest, ScoreRequest, SelectActionResponse,
    log_record,
};
use scorer_server::{Server, ServerConfig};
use serde_json::json;
use tonic::{Code, Request, Status};

/// Writes a key file as an operator does: as a new file that then replaces the old one.
fn write_keys(path: &Path, keys: &[u32]) {
    let keys: Vec<_> = keys
        .iter()
        .map(|id| json!({"id": format!("{id:08x}"), "secret": format!("{id:08x}").repeat(8)}))
        .collect();
    replace(path, json!({"keys": keys}).to_string().as_bytes());
}

fn replace(path: &Path, bytes: &[u8]) {
    let beside = path.with_extension("new");
    fs::write(&beside, bytes).unwrap();
    fs::set_permissions(&beside, fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(&beside, path).unwrap();
}

/// A directory with a key file in it.
struct Keys {
    directory: tempfile::TempDir,
}

impl Keys {
    fn new(keys: &[u32]) -> Keys {
        let own = Keys { directory: tempfile::tempdir().unwrap() };
        write_keys(&own.path(), keys);
        own
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("keys.json")
    }

    fn start(&self) -> Setup {
        self.start_with(|_| ())
    }

    fn start_with(&self, change: impl FnOnce(&mut serde_json::Value)) -> Setup {
        start_with(|config| {
            config["outcomes"] = json!({"token_keys": self.path()});
            change(config);
        })
    }
}

fn with_token(id: &str, value: f64, token: &[u8]) -> ReportOutcomeRequest {
    ReportOutcomeRequest { decision_token: token.to_vec(), ..outcome(id, "authorised", value, 0) }
}

async fn selected(setup: &Setup, id: &str) -> SelectActionResponse {
    setup.client().await.select_action(select(id, 10.0)).await.unwrap().into_inner()
}

async fn report(setup: &Setup, request: ReportOutcomeRequest) -> Result<bool, Status> {
    setup.client().await.report_outcome(request).await.map(|reply| reply.into_inner().proven)
}

fn named<M>(tenant: &'static str, message: M) -> Request<M> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("x-caller", tenant.parse().unwrap());
    request
}

fn outcomes(setup: &Setup) -> Vec<OutcomeRecord> {
    let outcomes = setup.records().into_iter().filter_map(|record| match record {
        log_record::Record::Outcome(outcome) => Some(outcome),
        _ => None,
    });
    outcomes.collect()
}

fn metric(text: &str, name: &str) -> f64 {
    text.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().parse().unwrap()
}

#[track_caller]
fn denied(result: Result<bool, Status>, words: &str) {
    let status = result.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
    assert!(status.message().contains(words) && !status.message().contains('\n'), "{}", status.message());
}

/// Fault case 77.
#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_with_its_token_is_proven_at_any_replica_and_its_record_has_the_claims() {
    let keys = Keys::new(&[1, 2]);
    let (first, second) = (keys.start(), keys.start());
    let answer = selected(&first, "order-1").await;
    assert!((1..=120).contains(&answer.decision_token.len()));
    // The second replica does not know the decision, and the first one has stopped.
    let decided = first.decisions().remove(0);
    drop(first);
    assert!(report(&second, with_token("order-1", 1.0, &answer.decision_token)).await.unwrap());
    assert!(!report(&second, outcome("order-1", "authorised", 0.0, 0)).await.unwrap(), "no token");
    let reply = second
        .client()
        .await
        .report_outcome(with_token("order-1", 1.0, &answer.decision_token))
        .await
        .unwrap()
        .into_inner();
    assert_eq!((reply.duplicate, reply.decision_known, reply.proven), (true, false, true));

    let recorded = outcomes(&second);
    let claims = recorded[0].token.clone().unwrap();
    assert_eq!(recorded.len(), 2);
    assert_eq!((recorded[0].proof(), recorded[0].value), (OutcomeProof::Token, 1.0));
    assert_eq!((recorded[1].proof(), recorded[1].value), (OutcomeProof::Unproven, 0.0));
    assert_eq!(recorded[1].token, None);
    assert_eq!(claims.bundle, decided.bundle[..8]);
    assert_eq!((claims.action, claims.index, claims.fallback), (true, decided.action_index, false));
    assert_eq!(claims.propensity.to_bits(), decided.propensity.to_bits());
    assert_eq!((claims.decided_at_ms, claims.key_id), (decided.decided_at_us / 1000, 1));
}

/// Fault case 78.
#[tokio::test(flavor = "multi_thread")]
async fn a_forged_token_is_refused_and_leaves_no_record() {
    let keys = Keys::new(&[1]);
    let setup = keys.start();
    let token = selected(&setup, "order-1").await.decision_token;
    for bit in (0..token.len() * 8).step_by(5) {
        let mut forged = token.clone();
        forged[bit / 8] ^= 1 << (bit % 8);
        denied(report(&setup, with_token("order-1", 1.0, &forged)).await, "decision_token: ");
    }
    denied(report(&setup, with_token("order-2", 1.0, &token)).await, "another decision");
    denied(report(&setup, with_token("order-1", 1.0, &token[1..])).await, "not a decision token");
    denied(report(&setup, with_token("order-1", 1.0, b"x")).await, "not a decision token");
    let elsewhere =
        ReportOutcomeRequest { checkpoint: FRAUD.to_owned(), ..with_token("order-1", 1.0, &token) };
    denied(report(&setup, elsewhere).await, "another checkpoint");
    let mut client = setup.client().await;
    let other = client.report_outcome(named("mallory", with_token("order-1", 1.0, &token))).await;
    denied(other.map(|_| true), "another caller");
    let refused = metric(&setup.metrics().await, "scorer_outcomes_refused_total{reason=\"token\"}");
    assert!(refused > 100.0, "{refused}");
    assert_eq!(outcomes(&setup), []);
}

/// Fault case 78.
#[tokio::test(flavor = "multi_thread")]
async fn the_token_of_a_tenant_is_accepted_only_from_that_tenant() {
    let keys = Keys::new(&[1]);
    let setup = keys.start();
    let mut client = setup.client().await;
    let answer = client.select_action(named("shop", select("order-1", 10.0))).await.unwrap().into_inner();
    let mut send = async |tenant: &'static str| {
        let request = with_token("order-1", 1.0, &answer.decision_token);
        client.report_outcome(named(tenant, request)).await.map(|reply| reply.into_inner().proven)
    };
    denied(send("other").await, "another caller");
    assert!(send("shop").await.unwrap());
    denied(report(&setup, with_token("order-1", 1.0, &answer.decision_token)).await, "another caller");
}

/// An unproven report never prevents a proven one, with any revision.
/// Fault case 77.
#[tokio::test(flavor = "multi_thread")]
async fn an_unproven_report_does_not_displace_a_proven_one() {
    let keys = Keys::new(&[1]);
    let setup = keys.start();
    let token = selected(&setup, "order-1").await.decision_token;
    let forged = ReportOutcomeRequest { revision: 1000, ..with_token("order-1", 0.0, b"") };
    assert!(!report(&setup, forged).await.unwrap());
    assert!(!report(&setup, with_token("order-1", 0.0, b"")).await.unwrap());
    assert!(report(&setup, with_token("order-1", 1.0, &token)).await.unwrap());
    let recorded: Vec<_> = outcomes(&setup).iter().map(|one| (one.proof(), one.value)).collect();
    let unproven = (OutcomeProof::Unproven, 0.0);
    assert_eq!(recorded, [unproven, unproven, (OutcomeProof::Token, 1.0)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn unproven_outcomes_are_refused_if_it_is_configured() {
    let keys = Keys::new(&[1]);
    let setup = keys.start_with(|config| config["outcomes"]["unproven"] = json!("refuse"));
    let token = selected(&setup, "order-1").await.decision_token;
    denied(report(&setup, outcome("order-1", "authorised", 1.0, 0)).await, "not proven");
    assert!(report(&setup, with_token("order-1", 1.0, &token)).await.unwrap());

    // By setting, a server that knows the decision may accept this as proof.
    let setup = keys.start_with(|config| config["outcomes"]["proof"] = json!("known"));
    selected(&setup, "order-1").await;
    assert!(report(&setup, outcome("order-1", "authorised", 1.0, 0)).await.unwrap());
    assert!(!report(&setup, outcome("order-2", "authorised", 1.0, 0)).await.unwrap());
}

/// Fault case 16.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_gets_the_same_token() {
    let keys = Keys::new(&[1]);
    let (setup, other) = (keys.start(), keys.start());
    let first = selected(&setup, "order-1").await;
    let again = selected(&setup, "order-1").await;
    assert!(again.replayed && !first.replayed);
    assert_eq!(first.decision_token, again.decision_token);
    // Another replica gives the same decision, except for the time.
    let elsewhere = selected(&other, "order-1").await;
    assert_eq!((elsewhere.action_index, elsewhere.propensity), (first.action_index, first.propensity));
    let timeless = |token: &[u8]| [&token[..5], &token[11..token.len() - 16]].concat();
    assert_eq!(timeless(&first.decision_token), timeless(&elsewhere.decision_token));
}

#[tokio::test(flavor = "multi_thread")]
async fn scores_and_batches_return_tokens_on_request() {
    let keys = Keys::new(&[1]);
    let setup = keys.start();
    let mut client = setup.client().await;
    assert!(client.score(score("s", 1.0)).await.unwrap().into_inner().decision_token.is_empty());
    let request = ScoreRequest { include_token: true, ..score("s2", 1.0) };
    let token = client.score(request).await.unwrap().into_inner().decision_token;
    let of_score = |id: &str, token: &[u8]| ReportOutcomeRequest {
        checkpoint: FRAUD.to_owned(),
        ..with_token(id, 1.0, token)
    };
    assert!(report(&setup, of_score("s2", &token)).await.unwrap());

    let print = fingerprint(&mut client, FRAUD).await;
    let request = ScoreBatchRequest { include_token: true, ..batch("b", print, &[[1.0, 0.0, 0.0]; 3]) };
    let token = client.score_batch(request).await.unwrap().into_inner().decision_token;
    assert!(report(&setup, of_score("b/2", &token)).await.unwrap());
    denied(report(&setup, of_score("b/3", &token)).await, "another decision");
    denied(report(&setup, of_score("c/0", &token)).await, "another decision");
}

/// Fault case 78.
#[tokio::test(flavor = "multi_thread")]
async fn keys_change_while_requests_are_answered_and_a_broken_file_changes_nothing() {
    let keys = Keys::new(&[1]);
    let setup = keys.start();
    let old = selected(&setup, "order-1").await.decision_token;
    let in_force = async |files: f64| {
        let wait = patience("the key file is read");
        while metric(&setup.metrics().await, "scorer_token_key_files_total{result=\"in_force\"}") < files {
            wait();
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    // Within the rotation the old key verifies, and the new one signs.
    write_keys(&keys.path(), &[2, 1]);
    in_force(2.0).await;
    assert_eq!(selected(&setup, "order-2").await.decision_token[1..5], [0, 0, 0, 2]);
    assert!(report(&setup, with_token("order-1", 1.0, &old)).await.unwrap());
    // An incomplete file: the previous keys remain in use.
    replace(&keys.path(), br#"{"keys":[{"id":"00000003","secr"#);
    let wait = patience("the key file is refused");
    while metric(&setup.metrics().await, "scorer_token_key_files_total{result=\"refused\"}") < 1.0 {
        wait();
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let token = selected(&setup, "order-3").await.decision_token;
    assert_eq!(token[1..5], [0, 0, 0, 2]);
    let event = setup.events().into_iter().find(|event| event["event"] == "token_keys_refused").unwrap();
    assert!(event["error"].as_str().unwrap().contains("scorer token key"), "{event}");
    // After the rotation.
    write_keys(&keys.path(), &[2]);
    in_force(3.0).await;
    denied(
        report(&setup, with_token("order-1", 1.0, &old)).await,
        "key 00000001 is not in the server's key file",
    );
    assert!(report(&setup, with_token("order-3", 1.0, &token)).await.unwrap());
}

#[test]
fn a_server_does_not_start_with_a_key_file_that_it_cannot_use() {
    let keys = Keys::new(&[1]);
    let started = |change: &dyn Fn(&Path)| {
        change(&keys.path());
        let mut config = config(keys.directory.path());
        config["outcomes"] = json!({"token_keys": keys.path()});
        Server::start(ServerConfig::from_json(&config.to_string()).unwrap()).map(drop)
    };
    started(&|path| write_keys(path, &[1])).unwrap();
    for (change, words) in [
        (&|path: &Path| replace(path, b"{") as (), "line 1, column 1"),
        (&|path: &Path| write_keys(path, &[]), "0 keys"),
        (&|path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap(), "chmod 600"),
        (&|path: &Path| fs::remove_file(path).unwrap(), "cannot be read"),
    ] as [(&dyn Fn(&Path), &str); 4]
    {
        let error = started(change).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("token keys"), "{error}");
        write_keys(&keys.path(), &[1]);
    }
}

/// Fault case 77.
#[tokio::test(flavor = "multi_thread")]
async fn revisions_values_and_rates_are_bounded() {
    let setup = start_with(|config| {
        config["checkpoints"][ACTION]["outcomes"] = json!({"authorised": {"min": 0.0, "max": 1.0}});
        config["outcomes"] = json!({"max_revision": 50, "per_decision_minute": 3});
    });
    selected(&setup, "d").await;
    let send = async |setup: &Setup, value: f64, revision: u32| {
        let sent = report(setup, outcome("d", "authorised", value, revision)).await;
        sent.map_or_else(|status| (status.code(), status.message().to_owned()), |_| (Code::Ok, String::new()))
    };
    for (value, revision, words) in [
        (1.01, 0, "outside the checkpoint's range, 0 to 1"),
        (-0.01, 0, "outside the checkpoint's range"),
        (1.0, 51, "revision 51 is above 50"),
        (1.0, u32::MAX, "is above 50"),
    ] {
        let (code, message) = send(&setup, value, revision).await;
        assert_eq!(code, Code::InvalidArgument);
        assert!(message.contains(words), "{message}");
    }
    // Three per minute. The clock may start one new minute meanwhile, but not three.
    let mut recorded = 0;
    let refused = loop {
        match send(&setup, 1.0, recorded).await {
            (Code::Ok, _) => recorded += 1,
            refused => break refused,
        }
        assert!(recorded < 10);
    };
    assert!(recorded >= 3);
    assert_eq!(refused.0, Code::ResourceExhausted);
    assert!(refused.1.contains("3 times within a minute"), "{}", refused.1);
    assert_eq!(send(&setup, 1.0, recorded - 1).await.0, Code::Ok, "a repeated report must write nothing");

    let slow = start_with(|config| config["outcomes"] = json!({"per_caller_second": 1}));
    let mut limited = 0;
    for _ in 0..20 {
        limited += u32::from(send(&slow, 1.0, 0).await.0 == Code::ResourceExhausted);
    }
    assert!(limited > 0);
    let (metrics, of_slow) = (setup.metrics().await, slow.metrics().await);
    for (text, reason) in
        [(&metrics, "range"), (&metrics, "revision"), (&metrics, "decision_rate"), (&of_slow, "caller_rate")]
    {
        let name = format!("scorer_outcomes_refused_total{{reason=\"{reason}\"}}");
        assert!(metric(text, &name) > 0.0, "{reason}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_open_protocol_returns_tokens_in_base64() {
    let (keys, without) = (Keys::new(&[1]), start());
    let setup = keys.start();
    let row = |model: &str, include: Option<bool>| {
        let input = InferInputTensor {
            name: "input__0".to_owned(),
            datatype: "FP32".to_owned(),
            shape: vec![1, 3],
            contents: Some(InferTensorContents { fp32_contents: vec![10.0, 0.0, 0.0], ..Default::default() }),
            ..Default::default()
        };
        let include = include.map(|include| {
            let choice = Some(ParameterChoice::BoolParam(include));
            ("include_token".to_owned(), InferParameter { parameter_choice: choice })
        });
        ModelInferRequest {
            model_name: model.to_owned(),
            id: format!("order-{model}"),
            parameters: include.into_iter().collect(),
            inputs: vec![input],
            ..Default::default()
        }
    };
    let mut client = GrpcInferenceServiceClient::new(setup.channel().await);
    let action = client.model_infer(row(ACTION, None)).await.unwrap().into_inner();
    let Some(ParameterChoice::StringParam(token)) = &action.parameters["decision_token"].parameter_choice
    else {
        panic!("{:?}", action.parameters)
    };
    let token = BASE64.decode(token).unwrap();
    let id = format!("order-{ACTION}");
    assert!(report(&setup, with_token(&id, 1.0, &token)).await.unwrap(), "the token must prove the outcome");
    for (include, expected) in [(None, false), (Some(false), false), (Some(true), true)] {
        let score = client.model_infer(row(FRAUD, include)).await.unwrap().into_inner();
        assert_eq!(score.parameters.contains_key("decision_token"), expected);
    }
    let mut client = GrpcInferenceServiceClient::new(without.channel().await);
    let action = client.model_infer(row(ACTION, None)).await.unwrap().into_inner();
    assert!(!action.parameters.contains_key("decision_token"), "no keys are configured");
}
