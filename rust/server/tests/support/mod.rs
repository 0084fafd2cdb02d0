//! Helpers of the server's tests: bundles on disk, a server on free ports, clients.
#![allow(dead_code, unreachable_pub, reason = "every test binary uses its own part of this")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here is a failed test")]

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use scorer_core::bundle::MANIFEST;
use scorer_core::bundle::testing::{self, Files};
use scorer_log::{Env, Reader};
use scorer_proto::v1::scoring_service_client::ScoringServiceClient;
use scorer_proto::v1::{
    DecisionRecord, DenseFeatures, DescribeRequest, EligibleActions, ExplainRequest, Feature, LogRecord,
    NamedFeatures, ObservationRecord, OutcomeSource, OutcomeSourceKind, ReportOutcomeRequest,
    ScoreBatchRequest, ScoreRequest, SelectActionRequest, explain_request, feature, log_record,
    score_request, select_action_request,
};
use scorer_server::{Condition, Lane, LaneTable, ObserveLane, ObserverStatus, Op, Server, ServerConfig};
use serde_json::{Value, json};
use tempfile::TempDir;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

pub const FRAUD: &str = "fraud.checkout";
pub const ACTION: &str = "action.authorise";

pub type Client = ScoringServiceClient<Channel>;

/// A server with its directories.
pub struct Setup {
    pub server: Server,
    pub directory: TempDir,
    pub fraud: String,
    pub action: String,
}

/// The time limit of a test that waits for a state.
const PATIENCE: Duration = Duration::from_secs(60);

/// Called in a loop, fails the test when the loop has run for longer than the limit. libtest has no time
/// limit, so a state that is never reached would hang the run.
pub fn patience(what: &str) -> impl Fn() {
    let end = Instant::now() + PATIENCE;
    move || assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}")
}

/// Yields until a condition holds.
pub async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let wait = patience(what);
    while !holds() {
        wait();
        tokio::task::yield_now().await;
    }
}

/// Returns the usual configuration, which a test may change before the start.
pub fn config(directory: &Path) -> Value {
    json!({
        "listen": "127.0.0.1:0",
        "metrics_listen": "127.0.0.1:0",
        "threads": 2,
        "log": {"dir": directory.join("log")},
        "checkpoints": {
            FRAUD: {"kind": "score", "p99_ms": 10_000.0, "max_batch_rows": 1000,
                    "fallback": {"decision": "review", "score": 0.5}},
            ACTION: {"kind": "action", "p99_ms": 10_000.0, "fallback": {"action": "3ds=none|exemption=none"}},
        },
    })
}

/// Starts a server that serves one score bundle and one action bundle.
pub fn start() -> Setup {
    start_with(|_| ())
}

/// Starts such a server with a changed configuration.
pub fn start_with(change: impl FnOnce(&mut Value)) -> Setup {
    start_in(Env::real(), change)
}

/// Starts such a server in a given environment.
pub fn start_in(env: Env, change: impl FnOnce(&mut Value)) -> Setup {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    change(&mut config);
    let config = ServerConfig::from_json(&config.to_string()).unwrap();
    let server = Server::start_in(config, env).unwrap();
    serve(server, directory, &testing::score_files("fraud", 0.0), &testing::action_files("action", 0.0))
}

/// Starts such a server whose bundles have covers, so that they can be explained.
pub fn start_explained(change: impl FnOnce(&mut Value)) -> Setup {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    change(&mut config);
    let server =
        Server::start_in(ServerConfig::from_json(&config.to_string()).unwrap(), Env::real()).unwrap();
    let mut fraud = testing::score_recipe("fraud", 0.0);
    fraud.covers = true;
    fraud.reasons = Some(json!({"features": {"amount": {"code": "R01"}}}));
    let rule = json!({"rule": "squarecb", "gamma": 20.0, "floor": 0.05});
    let mut action = testing::action_recipe("action", 0.0, rule);
    action.covers = true;
    serve(server, directory, &fraud.build().unwrap(), &action.build().unwrap())
}

fn serve(server: Server, directory: TempDir, fraud: &Files, action: &Files) -> Setup {
    let fraud = load(&server, directory.path(), fraud);
    let action = load(&server, directory.path(), action);
    server.swap(&table(1, &fraud, &action)).unwrap();
    Setup { server, directory, fraud, action }
}

/// Writes a bundle as the registry does and loads it; returns its digest.
pub fn load(server: &Server, directory: &Path, files: &Files) -> String {
    let (path, digest) = write(directory, files);
    let report = server.load(&path, &digest).unwrap();
    assert_eq!(report.digest, digest);
    digest
}

/// Writes a bundle into a directory named by its digest.
pub fn write(directory: &Path, files: &Files) -> (PathBuf, String) {
    let manifest: Value = serde_json::from_slice(&files[MANIFEST]).unwrap();
    let digest = manifest["digest"].as_str().unwrap().to_owned();
    let path = directory.join("bundles").join(digest.trim_start_matches("sha256:"));
    fs::create_dir_all(&path).unwrap();
    for (name, bytes) in files {
        fs::write(path.join(name), bytes).unwrap();
    }
    (path, digest)
}

pub fn lane(name: &str, bundle: &str, share: f64) -> Lane {
    Lane { name: name.to_owned(), bundle: bundle.to_owned(), share }
}

/// Returns a table with one live lane at each checkpoint.
pub fn table(version: u64, fraud: &str, action: &str) -> LaneTable {
    let checkpoints = BTreeMap::from([
        (FRAUD.to_owned(), Some(vec![lane("live", fraud, 1.0)])),
        (ACTION.to_owned(), Some(vec![lane("live", action, 1.0)])),
    ]);
    LaneTable { version, checkpoints, previous: BTreeMap::new(), observe: BTreeMap::new() }
}

impl Setup {
    pub async fn channel(&self) -> Channel {
        channel(&self.server).await
    }

    pub async fn client(&self) -> Client {
        ScoringServiceClient::new(self.channel().await)
    }

    /// Stops the server and reads the records of its log.
    pub fn records(&self) -> Vec<log_record::Record> {
        self.server.drain(Duration::from_secs(5));
        let mut reader = Reader::open(Env::real().fs, &self.directory.path().join("log")).unwrap();
        let mut records = Vec::new();
        while let Some(record) = reader.next_record().unwrap() {
            let record: LogRecord = prost::Message::decode(record.payload).unwrap();
            records.push(record.record.unwrap());
        }
        assert!(reader.findings().is_empty(), "{:?}", reader.findings());
        records
    }

    /// Stops the server and reads its decisions.
    pub fn decisions(&self) -> Vec<DecisionRecord> {
        let records = self.records();
        let decisions = records.into_iter().filter_map(|record| match record {
            log_record::Record::Decision(decision) => Some(decision),
            _ => None,
        });
        decisions.collect()
    }

    pub async fn metrics(&self) -> String {
        get(self.server.addresses().metrics.as_deref().unwrap(), "/metrics").await.1
    }

    /// Returns the parsed events so far.
    pub fn events(&self) -> Vec<Value> {
        self.server.events().iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

pub async fn channel(server: &Server) -> Channel {
    Endpoint::from_shared(format!("http://{}", server.addresses().grpc[0])).unwrap().connect().await.unwrap()
}

pub async fn unix_channel(path: &Path) -> Channel {
    let path = path.to_owned();
    let connect = tower::service_fn(move |_| {
        let path = path.clone();
        async move { tokio::net::UnixStream::connect(path).await.map(TokioIo::new) }
    });
    Endpoint::from_static("http://localhost").connect_with_connector(connect).await.unwrap()
}

/// Sends a raw HTTP/1.1 request; returns status and body.
pub async fn get(address: &str, path: &str) -> (u16, String) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: scorer\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// Sends a raw HTTP/2 request; returns HTTP status, gRPC status (from headers or trailers) and message.
pub async fn raw(address: &str, request: http::Request<Full<Bytes>>) -> (u16, Option<i32>, String) {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let response = sender.send_request(request).await.unwrap();
    let (head, body) = response.into_parts();
    let trailers = body.collect().await.unwrap().trailers().cloned().unwrap_or_default();
    connection.abort();
    let field =
        |name: &str| head.headers.get(name).or(trailers.get(name)).map(|value| value.to_str().unwrap());
    let message = field("grpc-message").unwrap_or_default().replace("%20", " ").replace("%22", "\"");
    (head.status.as_u16(), field("grpc-status").map(|code| code.parse().unwrap()), message)
}

/// Returns a raw gRPC request. `length` is the length in its frame, and `body` the bytes that follow.
pub fn framed(method: &str, length: u32, body: &[u8]) -> http::Request<Full<Bytes>> {
    let mut frame = vec![0];
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(body);
    http::Request::post(format!("http://scorer/scorer.v1.ScoringService/{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::from(frame))
        .unwrap()
}

// --- requests ---

/// A request of any method of the service.
#[derive(Clone)]
pub enum Call {
    Score(ScoreRequest),
    Batch(ScoreBatchRequest),
    Select(SelectActionRequest),
    Outcome(ReportOutcomeRequest),
    Describe(DescribeRequest),
    Explain(ExplainRequest),
}

impl Call {
    /// Sends the request and ignores the content of the answer.
    pub async fn send(self, client: &mut Client) -> Result<(), Status> {
        match self {
            Call::Score(request) => client.score(request).await.map(|_| ()),
            Call::Batch(request) => client.score_batch(request).await.map(|_| ()),
            Call::Select(request) => client.select_action(request).await.map(|_| ()),
            Call::Outcome(request) => client.report_outcome(request).await.map(|_| ()),
            Call::Describe(request) => client.describe(request).await.map(|_| ()),
            Call::Explain(request) => client.explain(request).await.map(|_| ()),
        }
    }
}

pub fn outcome(id: &str, kind: &str, value: f64, revision: u32) -> ReportOutcomeRequest {
    ReportOutcomeRequest {
        checkpoint: ACTION.to_owned(),
        decision_id: id.to_owned(),
        kind: kind.to_owned(),
        value,
        revision,
        occurred_at_ms: 0,
        decision_token: Vec::new(),
        source: None,
    }
}

/// Returns a report with a source.
pub fn outcome_of(kind: OutcomeSourceKind, id: &str, report: ReportOutcomeRequest) -> ReportOutcomeRequest {
    let source = OutcomeSource { kind: kind.into(), id: id.to_owned() };
    ReportOutcomeRequest { source: Some(source), ..report }
}

pub fn batch(id: &str, fingerprint: u64, rows: &[[f32; 3]]) -> ScoreBatchRequest {
    ScoreBatchRequest {
        keys: Default::default(),
        checkpoint: FRAUD.to_owned(),
        request_id: id.to_owned(),
        schema_fingerprint: fingerprint,
        values: rows.concat(),
        rows: rows.len() as u32,
        entity: String::new(),
        include_token: false,
    }
}

/// Returns the fingerprint of the test bundles' schema as a client gets it.
pub async fn fingerprint(client: &mut Client, checkpoint: &str) -> u64 {
    let request = DescribeRequest { checkpoint: checkpoint.to_owned() };
    client.describe(request).await.unwrap().into_inner().checkpoints[0].schema_fingerprint
}

pub fn named(values: &[(&str, feature::Value)]) -> NamedFeatures {
    let features = values
        .iter()
        .map(|(name, value)| Feature { name: (*name).to_owned(), value: Some(value.clone()) })
        .collect();
    NamedFeatures { features }
}

/// Returns a context of the test bundles.
pub fn context(amount: f64) -> NamedFeatures {
    named(&[
        ("amount", feature::Value::Number(amount)),
        ("country", feature::Value::Category("NL".to_owned())),
        ("night", feature::Value::Flag(false)),
    ])
}

pub fn score(id: &str, amount: f64) -> ScoreRequest {
    ScoreRequest {
        keys: Default::default(),
        checkpoint: FRAUD.to_owned(),
        request_id: id.to_owned(),
        features: Some(score_request::Features::Named(context(amount))),
        entity: String::new(),
        include_token: false,
        reasons: 0,
    }
}

pub fn score_dense(id: &str, fingerprint: u64, values: &[f32]) -> ScoreRequest {
    let dense = DenseFeatures { schema_fingerprint: fingerprint, values: values.to_vec() };
    ScoreRequest { features: Some(score_request::Features::Dense(dense)), ..score(id, 0.0) }
}

pub fn select(id: &str, amount: f64) -> SelectActionRequest {
    SelectActionRequest {
        checkpoint: ACTION.to_owned(),
        request_id: id.to_owned(),
        features: Some(select_action_request::Features::Named(context(amount))),
        ..SelectActionRequest::default()
    }
}

pub fn explain(amount: f64) -> ExplainRequest {
    ExplainRequest {
        checkpoint: FRAUD.to_owned(),
        features: Some(explain_request::Features::Named(context(amount))),
        ..ExplainRequest::default()
    }
}

pub fn explain_action(action: &str, against: &str) -> ExplainRequest {
    ExplainRequest {
        checkpoint: ACTION.to_owned(),
        action: action.to_owned(),
        against: against.to_owned(),
        ..explain(500.0)
    }
}

pub fn eligible(ids: &[&str], mask: &[u8]) -> Option<EligibleActions> {
    Some(EligibleActions { ids: ids.iter().map(|&id| id.to_owned()).collect(), mask: mask.to_vec() })
}

// --- observe lanes ---

pub fn observer(name: &str, bundle: &str, sample: f64) -> ObserveLane {
    ObserveLane {
        name: name.to_owned(),
        bundle: bundle.to_owned(),
        sample,
        filter: Vec::new(),
        pool: false,
        reads: Vec::new(),
    }
}

pub fn condition(feature: &str, op: Op, value: Value) -> Condition {
    Condition { feature: feature.to_owned(), op, value: (!value.is_null()).then_some(value) }
}

/// Returns a table with the usual answer lanes and these observe lanes.
pub fn observed(setup: &Setup, version: u64, checkpoint: &str, lanes: Vec<ObserveLane>) -> LaneTable {
    let mut table = table(version, &setup.fraud, &setup.action);
    table.observe.insert(checkpoint.to_owned(), lanes);
    table
}

/// Waits until `ready` holds for the status of a lane; returns the status.
pub async fn status(setup: &Setup, lane: &str, ready: impl Fn(&ObserverStatus) -> bool) -> ObserverStatus {
    // The threads of lanes run only when no other thread needs the processor, which may take long on a busy
    // machine.
    let until = Instant::now() + Duration::from_secs(300);
    loop {
        let status = setup.server.status();
        let counts = status.observers.into_iter().find(|each| each.lane == lane).unwrap();
        assert_eq!(counts.seen, counts.left_out + counts.taken, "{counts:?}");
        if ready(&counts) {
            return counts;
        }
        assert!(Instant::now() < until, "{counts:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Stops the server and reads the observations by lane and id.
pub fn observations(setup: &Setup) -> HashMap<(String, String), ObservationRecord> {
    let mut all = HashMap::new();
    for record in setup.records() {
        if let log_record::Record::Observation(observation) = record {
            let decision = observation.decision.clone().unwrap();
            assert!(
                all.insert((decision.lane, decision.decision_id), observation).is_none(),
                "recorded twice"
            );
        }
    }
    all
}
