//! Traces: the spans that a collector receives over OTLP, sampling, and collectors that fail.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here is a failed test")]

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::net::SocketAddr;
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::support::*;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use scorer_core::bundle::testing::action_recipe;
use scorer_identity::authority::{Authority, Request as CertificateRequest};
use scorer_proto::otlp::any_value::Value as Any;
use scorer_proto::otlp::span::SpanKind;
use scorer_proto::otlp::status::StatusCode;
use scorer_proto::otlp::trace_service_server::{TraceService, TraceServiceServer};
use scorer_proto::otlp::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse, KeyValue, Span,
};
use scorer_proto::v1::{DescribeRequest, NodeDescription};
use scorer_server::Fault;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;
use tokio_stream::StreamExt as _;
use tonic::{Code, Request, Response, Status};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

/// What the collector does with a call.
#[derive(Clone, Copy, Debug)]
enum Does {
    Accept,
    /// Rejects one span of each call.
    RejectOne,
    Fail(Code),
    Hang,
}

#[derive(Clone)]
struct Collector(Arc<Mutex<State>>);

struct State {
    does: Does,
    /// Number of calls, also of those that failed.
    calls: usize,
    received: Vec<ExportTraceServiceRequest>,
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let does = {
            let mut state = self.0.lock().unwrap();
            state.calls += 1;
            if matches!(state.does, Does::Accept | Does::RejectOne) {
                state.received.push(request.into_inner());
            }
            state.does
        };
        let partial = |rejected_spans| ExportTracePartialSuccess {
            rejected_spans,
            error_message: "one span was not liked".to_owned(),
        };
        match does {
            Does::Accept => Ok(Response::new(ExportTraceServiceResponse::default())),
            Does::RejectOne => {
                Ok(Response::new(ExportTraceServiceResponse { partial_success: Some(partial(1)) }))
            }
            Does::Fail(code) => Err(Status::new(code, "told to")),
            Does::Hang => std::future::pending().await,
        }
    }
}

/// A collector that listens. It is stopped when this is dropped.
struct Listening {
    collector: Collector,
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Listening {
    async fn start(does: Does) -> Listening {
        Listening::start_with(does, None).await
    }

    async fn start_with(does: Does, tls: Option<TlsAcceptor>) -> Listening {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let collector = Collector(Arc::new(Mutex::new(State { does, calls: 0, received: Vec::new() })));
        let service = TowerToHyperService::new(TraceServiceServer::new(collector.clone()));
        let task = tokio::spawn(async move {
            let http2 = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (http2, service, tls) = (http2.clone(), service.clone(), tls.clone());
                connections.spawn(async move {
                    match tls {
                        None => _ = http2.serve_connection(TokioIo::new(stream), service).await,
                        Some(tls) => {
                            let Ok(stream) = tls.accept(stream).await else { return };
                            let _ = http2.serve_connection(TokioIo::new(stream), service).await;
                        }
                    }
                });
            }
        });
        Listening { collector, address, task }
    }

    /// Returns the tracing settings for this collector, which trace every request.
    fn settings(&self) -> Value {
        settings(&self.address.to_string())
    }

    fn set(&self, does: Does) {
        self.collector.0.lock().unwrap().does = does;
    }

    fn calls(&self) -> usize {
        self.collector.0.lock().unwrap().calls
    }

    fn spans(&self) -> Vec<Span> {
        let state = self.collector.0.lock().unwrap();
        let resources = state.received.iter().flat_map(|request| &request.resource_spans);
        resources.flat_map(|resource| &resource.scope_spans).flat_map(|scope| scope.spans.clone()).collect()
    }

    /// Waits for so many spans of kind server.
    async fn requests(&self, number: usize) -> Vec<Vec<Span>> {
        eventually("the spans are exported", || servers(&self.spans()).len() >= number).await;
        let spans = self.spans();
        let of = |server: &Span| {
            let children = spans.iter().filter(|span| span.parent_span_id == server.span_id);
            std::iter::once(server).chain(children).cloned().collect()
        };
        let requests: Vec<Vec<Span>> = servers(&spans).into_iter().map(of).collect();
        assert_eq!(requests.iter().map(Vec::len).sum::<usize>(), spans.len(), "every span has a parent");
        requests
    }
}

fn settings(endpoint: &str) -> Value {
    json!({"endpoint": endpoint, "ratio": 1.0, "timeout_ms": 500, "instance": "here"})
}

fn servers(spans: &[Span]) -> Vec<&Span> {
    spans.iter().filter(|span| span.kind() == SpanKind::Server).collect()
}

fn start_traced(tracing: Value) -> Setup {
    start_with(|config| config["tracing"] = tracing)
}

fn with_parent<M>(message: M, flags: &str) -> Request<M> {
    let mut request = Request::new(message);
    let parent = format!("00-{TRACE}-{CALLER}-{flags}");
    request.metadata_mut().insert("traceparent", parent.parse().unwrap());
    request
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn names(spans: &[Span]) -> Vec<&str> {
    spans.iter().map(|span| span.name.as_str()).collect()
}

fn attributes(all: &[KeyValue]) -> BTreeMap<&str, String> {
    let text = |value: &Any| match value {
        Any::StringValue(text) => text.clone(),
        Any::BoolValue(value) => value.to_string(),
        Any::IntValue(value) => value.to_string(),
        Any::DoubleValue(value) => value.to_string(),
    };
    let value = |one: &KeyValue| text(one.value.as_ref().unwrap().value.as_ref().unwrap());
    let found: BTreeMap<_, _> = all.iter().map(|one| (one.key.as_str(), value(one))).collect();
    assert_eq!(found.len(), all.len(), "no key is given twice");
    found
}

/// Returns the value of a metric without labels, or with the given ones.
async fn metric(setup: &Setup, name: &str) -> u64 {
    let page = setup.metrics().await;
    let line = page.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("{name} is not in {page}")).parse().unwrap()
}

async fn spans_of(setup: &Setup, outcome: &str) -> u64 {
    metric(setup, &format!("scorer_trace_spans_total{{outcome=\"{outcome}\"}}")).await
}

/// Waits until a metric has a value.
async fn until_metric(setup: &Setup, name: &str, holds: impl Fn(u64) -> bool) {
    let wait = patience(name);
    while !holds(metric(setup, name).await) {
        wait();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_one_span_below_its_caller_with_a_span_for_each_stage() {
    let collector = Listening::start(Does::Accept).await;
    let setup = start_traced(collector.settings());
    let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let mut request = with_parent(select("first", 1.0), "01");
    request.metadata_mut().insert("tracestate", "vendor=1,other=2".parse().unwrap());
    setup.client().await.select_action(request).await.unwrap();
    let requests = collector.requests(1).await;
    let [spans] = &requests[..] else { panic!("{requests:?}") };
    let (server, stages) = spans.split_first().unwrap();

    assert_eq!(server.name, "scorer.v1.ScoringService/SelectAction");
    assert_eq!((hex(&server.trace_id), hex(&server.parent_span_id)), (TRACE.to_owned(), CALLER.to_owned()));
    assert_eq!((server.flags, server.status.is_none()), (0x301, true), "sampled, of a remote parent");
    let found = attributes(&server.attributes);
    let of = |key: &str| found.get(key).map_or("absent", String::as_str);
    for (key, value) in [
        ("rpc.system.name", "grpc"),
        ("rpc.method", "scorer.v1.ScoringService/SelectAction"),
        ("rpc.response.status_code", "OK"),
        ("error.type", "absent"),
        ("scorer.checkpoint", ACTION),
        ("scorer.lane", "live"),
        ("scorer.bundle", &setup.action),
        ("scorer.decision_id", "first"),
        ("scorer.replayed", "false"),
        ("scorer.fallback", "false"),
    ] {
        assert_eq!(of(key), value, "{key}");
    }
    assert!(of("scorer.queue_delay_us").parse::<u64>().is_ok());

    assert_eq!(names(stages), ["features", "admit", "evaluate", "decide", "log"]);
    let ids: HashSet<_> = spans.iter().map(|span| &span.span_id).collect();
    assert_eq!(ids.len(), spans.len());
    let mut at = server.start_time_unix_nano;
    assert!(at >= before - 1_000_000, "{at} is before the request, which began after {before}");
    for stage in stages {
        assert_eq!(stage.kind(), SpanKind::Internal);
        assert_eq!((&stage.trace_id, stage.flags), (&server.trace_id, 0x101));
        assert_eq!((&*stage.trace_state, &*server.trace_state), ("vendor=1,other=2", "vendor=1,other=2"));
        assert!(stage.start_time_unix_nano >= at, "{} begins before the stage before it ends", stage.name);
        assert!(stage.end_time_unix_nano >= stage.start_time_unix_nano);
        at = stage.end_time_unix_nano;
    }
    assert!(at <= server.end_time_unix_nano);

    let received = collector.collector.0.lock().unwrap().received[0].clone();
    let resource = received.resource_spans[0].resource.clone().unwrap();
    let resource = attributes(&resource.attributes);
    assert_eq!((&*resource["service.name"], &*resource["service.instance.id"]), ("scorer", "here"));
}

/// Returns the nodes of the action bundle as `Describe` reports them.
async fn described(setup: &Setup) -> Vec<NodeDescription> {
    let request = DescribeRequest { checkpoint: ACTION.to_owned() };
    let mut described = setup.client().await.describe(request).await.unwrap().into_inner();
    described.checkpoints.remove(0).nodes
}

#[tokio::test(flavor = "multi_thread")]
async fn each_node_that_ran_has_its_time_in_the_span_the_description_and_the_metrics() {
    const RULES: &str = r#"
name = "exemptions"
[[rules]]
id = "limit"
when = "amount > 100.0"
keep = { exemption = ["none"] }
source = "agreement"
"#;
    let collector = Listening::start(Does::Accept).await;
    let setup = start_traced(collector.settings());
    let policy = json!({"rule": "squarecb", "gamma": 20.0, "floor": 0.05});
    let action = action_recipe("action", 0.0, policy).with_rules(RULES, &[]).build().unwrap();
    let action = load(&setup.server, setup.directory.path(), &action);
    setup.server.swap(&table(2, &setup.fraud, &action)).unwrap();

    let kinds = [("margins", "forest"), ("score", "link"), ("ruled", "rules"), ("action", "policy")];
    let nodes = described(&setup).await;
    let named: Vec<_> = nodes.iter().map(|node| (&*node.name, &*node.kind)).collect();
    assert_eq!(named, kinds);
    assert!(
        nodes.iter().all(|node| (node.mean_us, node.timed) == (0.0, 0)),
        "nothing was decided: {nodes:?}"
    );

    let mut client = setup.client().await;
    client.select_action(select("inline", 500.0)).await.unwrap();
    setup.server.assume_cost(ACTION, Duration::from_millis(5));
    client.select_action(select("pooled", 500.0)).await.unwrap();
    let mut total = BTreeMap::<String, u64>::new();
    for spans in &collector.requests(3).await[1..] {
        for span in &spans[1..] {
            let found = attributes(&span.attributes);
            if span.name != "evaluate" {
                assert!(found.is_empty(), "{found:?}");
                continue;
            }
            let keys: Vec<_> = found.keys().copied().collect();
            assert_eq!(
                keys,
                [
                    "scorer.node.action.ns",
                    "scorer.node.margins.ns",
                    "scorer.node.ruled.ns",
                    "scorer.node.score.ns"
                ]
            );
            for (name, _) in kinds {
                let nanos: u64 = found[&*format!("scorer.node.{name}.ns")].parse().unwrap();
                assert!(nanos > 0, "{name}");
                *total.entry(name.to_owned()).or_default() += nanos;
            }
        }
    }
    assert_eq!(total.len(), kinds.len(), "both requests have the span");

    let nodes = described(&setup).await;
    let metrics = setup.metrics().await;
    let short = &action[7..19];
    for (node, (name, kind)) in nodes.iter().zip(kinds) {
        assert_eq!((&*node.name, node.timed), (name, 2));
        let nanos = total[name] as f64;
        assert!((node.mean_us - nanos / 2e3).abs() < 1e-6 * node.mean_us, "{node:?}, {nanos} ns");
        let labels = format!("{{name=\"action\",bundle=\"{short}\",node=\"{name}\",kind=\"{kind}\"}}");
        let value = |metric: &str| -> f64 {
            let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("{metric}{labels} ")));
            line.unwrap_or_else(|| panic!("{metric}{labels} is not in {metrics}")).parse().unwrap()
        };
        assert_eq!(value("scorer_node_timed_total"), 2.0);
        assert!((value("scorer_node_seconds_total") * 1e9 - nanos).abs() < 1e-3 * nanos);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_way_to_answer_has_its_spans() {
    let collector = Listening::start(Does::Accept).await;
    let mut tracing = collector.settings();
    tracing["service"] = json!("fraud");
    let setup = start_with(|config| {
        config["tracing"] = tracing;
        config["checkpoints"][FRAUD]["durability"] = json!("sync");
    });
    let mut client = setup.client().await;
    let fingerprint = fingerprint(&mut client, FRAUD).await;
    // Admission expects one row to take this long, so the evaluation runs on the pool.
    setup.server.assume_cost(FRAUD, Duration::from_millis(5));
    client.score(score("pooled", 1.0)).await.unwrap();
    client.score(score("pooled", 1.0)).await.unwrap();
    client.score_batch(batch("many", fingerprint, &[[1.0, 1.0, 0.0]; 100])).await.unwrap();
    client.report_outcome(outcome("x", "authorised", 1.0, 0)).await.unwrap();
    client.score(score("", -1.0)).await.unwrap_err();
    setup.server.inject("broken", Fault::Panic);
    client.score(score("broken", 1.0)).await.unwrap();

    let requests = collector.requests(7).await;
    let all = ["features", "admit", "evaluate", "decide", "log"];
    let expected: [(&str, &str, &[&str]); 7] = [
        ("Describe", "OK", &[]),
        ("Score", "OK", &all),
        ("Score", "OK", &[]),
        ("ScoreBatch", "OK", &all),
        ("ReportOutcome", "OK", &["log"]),
        ("Score", "INVALID_ARGUMENT", &["features"]),
        ("Score", "OK", &all),
    ];
    for (spans, (method, code, stages)) in requests.iter().zip(expected) {
        let found = attributes(&spans[0].attributes);
        assert_eq!(found["rpc.method"], format!("scorer.v1.ScoringService/{method}"));
        assert_eq!(found["rpc.response.status_code"], code);
        assert_eq!(names(&spans[1..]), stages, "{method}");
        assert!(spans[0].status.is_none(), "none of these is an error of the server");
        assert!(spans[0].parent_span_id.is_empty() && spans[0].flags == 0x103, "each is a trace of its own");
    }
    let ids: HashSet<_> = requests.iter().map(|spans| &spans[0].trace_id).collect();
    assert_eq!(ids.len(), requests.len());
    let of = |request: usize, key: &str| attributes(&requests[request][0].attributes).get(key).cloned();
    assert_eq!(of(2, "scorer.replayed").as_deref(), Some("true"), "the retry was answered from the cache");
    assert_eq!(of(3, "scorer.decision_id").as_deref(), Some("many"));
    assert_eq!(of(6, "scorer.fallback").as_deref(), Some("true"));
    assert_eq!(of(5, "scorer.decision_id"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_fails_is_an_error_and_one_that_is_cancelled_keeps_its_stages() {
    let collector = Listening::start(Does::Accept).await;
    let setup = start_with(|config| {
        config["tracing"] = collector.settings();
        config["checkpoints"][FRAUD].as_object_mut().unwrap().remove("fallback");
    });
    let mut client = setup.client().await;
    setup.server.inject("broken", Fault::Panic);
    assert_eq!(client.score(score("broken", 1.0)).await.unwrap_err().code(), Code::Internal);
    let failed = collector.requests(1).await.remove(0);
    assert_eq!(failed[0].status.as_ref().unwrap().code(), StatusCode::Error);
    assert_eq!(attributes(&failed[0].attributes)["error.type"], "INTERNAL");
    assert_eq!(names(&failed[1..]), ["features", "admit", "evaluate", "decide"]);

    // The evaluation runs on the pool, where it waits for the test.
    let barrier = Arc::new(Barrier::new(2));
    setup.server.inject("stuck", Fault::Meet(Arc::clone(&barrier)));
    setup.server.assume_cost(FRAUD, Duration::from_millis(5));
    let meet = || {
        let barrier = Arc::clone(&barrier);
        tokio::task::spawn_blocking(move || barrier.wait())
    };
    let stuck = tokio::spawn(async move { client.score(score("stuck", 1.0)).await });
    meet().await.unwrap();
    stuck.abort();
    let cancelled = collector.requests(2).await.remove(1);
    meet().await.unwrap();
    assert_eq!(attributes(&cancelled[0].attributes)["rpc.response.status_code"], "CANCELLED");
    assert!(cancelled[0].status.is_none(), "the caller left, and the server did not fail");
    assert_eq!(names(&cancelled[1..]), ["features", "admit", "evaluate"]);
    assert!(cancelled[3].end_time_unix_nano <= cancelled[0].end_time_unix_nano);
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_and_the_ratio_decide_which_requests_are_traced() {
    let collector = Listening::start(Does::Accept).await;
    let mut tracing = collector.settings();
    tracing["ratio"] = json!(0.0);
    tracing["most_per_second"] = json!(1_000_000);
    let setup = start_traced(tracing);
    let mut client = setup.client().await;
    for _ in 0..20 {
        client.score(score("", 1.0)).await.unwrap();
        client.score(with_parent(score("", 1.0), "00")).await.unwrap();
    }
    let mut malformed = Request::new(score("", 1.0));
    malformed.metadata_mut().insert("traceparent", "00-1-2-01".parse().unwrap());
    client.score(malformed).await.unwrap();
    let mut state = with_parent(score("", 1.0), "01");
    state.metadata_mut().insert("tracestate", "x".repeat(600).parse().unwrap());
    client.score(state).await.unwrap();
    let requests = collector.requests(1).await;
    assert_eq!(requests.len(), 1);
    assert_eq!(
        (hex(&requests[0][0].parent_span_id), requests[0][0].trace_state.len()),
        (CALLER.to_owned(), 0)
    );
    let by = async |decision: &str| {
        metric(&setup, &format!("scorer_traced_requests_total{{decision=\"{decision}\"}}")).await
    };
    assert_eq!([by("caller").await, by("ratio").await, by("limited").await], [1, 0, 0]);
    for header in ["traceparent", "tracestate"] {
        let name = format!("scorer_trace_contexts_ignored_total{{header=\"{header}\"}}");
        assert_eq!(metric(&setup, &name).await, 1);
    }
    until_metric(&setup, "scorer_trace_spans_waiting", |waiting| waiting == 0).await;
    assert_eq!(spans_of(&setup, "exported").await, requests[0].len() as u64);
    assert_eq!(metric(&setup, "scorer_trace_collector_connected").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_inferences_has_a_span_for_each_message() {
    use scorer_proto::inference::ModelInferRequest;
    use scorer_proto::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
    let collector = Listening::start(Does::Accept).await;
    let setup = start_traced(collector.settings());
    let mut client = GrpcInferenceServiceClient::new(setup.channel().await);
    let message = || ModelInferRequest { model_name: FRAUD.to_owned(), ..ModelInferRequest::default() };
    let request = with_parent(tokio_stream::iter([message(), message()]), "01");
    let mut replies = client.model_stream_infer(request).await.unwrap().into_inner();
    while replies.next().await.is_some() {}
    let requests = collector.requests(2).await;
    for spans in &requests {
        assert_eq!(spans[0].name, "inference.GRPCInferenceService/ModelStreamInfer");
        assert_eq!(hex(&spans[0].parent_span_id), CALLER);
    }
}

/// Returns the answers of a server as a caller sees them.
async fn answers(setup: &Setup, number: u32) -> Vec<String> {
    let mut client = setup.client().await;
    let mut all = Vec::new();
    for id in 0..number {
        let mut answer =
            client.select_action(select(&format!("id-{id}"), f64::from(id))).await.unwrap().into_inner();
        let served = answer.served.as_mut().unwrap();
        (served.data_load_us, served.exec_us) = (0, 0);
        // The order of a map's entries varies.
        let factors: BTreeMap<_, _> = std::mem::take(&mut answer.factors).into_iter().collect();
        all.push(format!("{answer:?} {factors:?}"));
    }
    all
}

/// A collector that never answers, in three ways, changes no answer, holds a bounded number of requests, and does not
/// delay the stop.
#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_never_answers_changes_nothing() {
    const REQUESTS: u32 = 300;
    let expected = answers(&start(), REQUESTS).await;
    let hanging = Listening::start(Does::Hang).await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let accepts = tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((mut stream, _)) = silent.accept().await {
            // Reads what arrives and answers nothing, not even the settings of HTTP/2.
            held.push(tokio::spawn(async move { while stream.read_u8().await.is_ok() {} }));
        }
    });
    for endpoint in [hanging.address.to_string(), address, "127.0.0.1:1".to_owned()] {
        let mut tracing = settings(&endpoint);
        tracing["queue"] = json!(4);
        let setup = start_traced(tracing);
        assert_eq!(answers(&setup, REQUESTS).await, expected);
        let dropped = "scorer_trace_spans_total{outcome=\"dropped\"}";
        until_metric(&setup, dropped, |dropped| dropped > 0).await;
        // One batch is being sent, and the queue holds four requests.
        let waiting = metric(&setup, "scorer_trace_spans_waiting").await;
        assert!(waiting <= 6 * (4 + 256), "{waiting}");
        assert_eq!(spans_of(&setup, "exported").await, 0);
        let began = Instant::now();
        setup.server.drain(Duration::from_secs(30));
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        assert_eq!(setup.decisions().len(), REQUESTS as usize);
    }
    accepts.abort();
}

/// Every recorded span is exported, refused or dropped, through failures of each kind.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_sent_again_after_a_transient_failure_and_not_after_a_final_one() {
    let collector = Listening::start(Does::Fail(Code::Unavailable)).await;
    let setup = start_traced(collector.settings());
    let mut client = setup.client().await;
    client.noop(scorer_proto::v1::NoopRequest::default()).await.unwrap();
    eventually("a first attempt", || collector.calls() >= 1).await;
    assert_eq!(metric(&setup, "scorer_trace_spans_waiting").await, 1);
    collector.set(Does::Accept);
    assert_eq!(collector.requests(1).await.len(), 1);
    until_metric(&setup, "scorer_trace_spans_total{outcome=\"exported\"}", |spans| spans == 1).await;

    let calls = collector.calls();
    collector.set(Does::Fail(Code::InvalidArgument));
    client.noop(scorer_proto::v1::NoopRequest::default()).await.unwrap();
    until_metric(&setup, "scorer_trace_spans_total{outcome=\"refused\"}", |spans| spans == 1).await;
    assert_eq!(collector.calls(), calls + 1, "a refused batch is not sent again");

    collector.set(Does::RejectOne);
    client.score(score("", 1.0)).await.unwrap();
    until_metric(&setup, "scorer_trace_spans_waiting", |waiting| waiting == 0).await;
    let spans = collector.spans().len() as u64;
    assert_eq!((spans_of(&setup, "exported").await, spans_of(&setup, "refused").await), (spans - 1, 2));
    assert_eq!(spans_of(&setup, "dropped").await, 0);
    let events: Vec<String> = setup
        .events()
        .iter()
        .filter_map(|event| Some(event["event"].as_str()?.to_owned()))
        .filter(|event| event.starts_with("trace_collector"))
        .collect();
    assert_eq!(
        events,
        [
            "trace_collector_lost",
            "trace_collector_connected",
            "trace_collector_refused",
            "trace_collector_refused"
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_exports_what_still_waits() {
    let collector = Listening::start(Does::Accept).await;
    let setup = start_traced(collector.settings());
    let mut client = setup.client().await;
    for _ in 0..50 {
        client.score(score("", 1.0)).await.unwrap();
    }
    let server = Arc::new(setup);
    let draining = Arc::clone(&server);
    tokio::task::spawn_blocking(move || draining.server.drain(Duration::from_secs(30))).await.unwrap();
    assert_eq!(servers(&collector.spans()).len(), 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_collector_is_reached_over_mutual_tls() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new("test", 1).unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("ca.pem"), authority.pem()).unwrap();
    for (name, hosts) in [("collector", &["127.0.0.1"][..]), ("scorer", &[])] {
        let request = CertificateRequest::of(&format!("spiffe://example.org/{name}"), hosts, 1);
        let issued = authority.issue(&request).unwrap();
        fs::write(path(&format!("{name}.key")), issued.key).unwrap();
        fs::write(path(&format!("{name}.pem")), issued.certificate).unwrap();
    }
    let certificates = |name: &str| -> Vec<CertificateDer<'static>> {
        CertificateDer::pem_file_iter(path(name)).unwrap().map(Result::unwrap).collect()
    };
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificates("ca.pem").remove(0)).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier =
        rustls::server::WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider))
            .build()
            .unwrap();
    let key = PrivateKeyDer::from_pem_file(path("collector.key")).unwrap();
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(certificates("collector.pem"), key)
        .unwrap();
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let collector = Listening::start_with(Does::Accept, Some(Arc::new(tls).into())).await;
    let mut tracing = collector.settings();
    tracing["tls"] = json!({"ca": path("ca.pem")});
    let without = start_traced(tracing.clone());
    tracing["tls"] =
        json!({"ca": path("ca.pem"), "certificate": path("scorer.pem"), "key": path("scorer.key")});
    let with = start_traced(tracing);
    for setup in [&without, &with] {
        setup.client().await.score(score("", 1.0)).await.unwrap();
    }
    assert_eq!(collector.requests(1).await.len(), 1);
    until_metric(&without, "scorer_trace_spans_total{outcome=\"dropped\"}", |dropped| dropped > 0).await;
    assert_eq!(servers(&collector.spans()).len(), 1, "the collector requires a client certificate");
}

#[tokio::test(flavor = "multi_thread")]
async fn latency_buckets_show_a_trace_as_their_exemplar() {
    let collector = Listening::start(Does::Accept).await;
    let setup = start_traced(collector.settings());
    setup.client().await.score(with_parent(score("", 1.0), "01")).await.unwrap();
    eventually("no request is in flight", || setup.server.status().inflight == 0).await;
    let page = setup.metrics().await;
    for series in [
        format!("method=\"Score\",checkpoint=\"{FRAUD}\"}}"),
        format!("checkpoint=\"{FRAUD}\",by=\"model\"}}"),
    ] {
        let of: Vec<_> =
            page.lines().filter(|line| line.contains(&series) && line.contains(" # {")).collect();
        let [line] = &of[..] else { panic!("{of:?}") };
        assert!(line.contains("_bucket{le=\"") && line.contains(&format!("trace_id=\"{TRACE}\"")), "{line}");
        let (bucket, exemplar) = line.split_once(" # ").unwrap();
        assert!(bucket.ends_with(" 1"), "{bucket}");
        let edge: f64 = bucket.split('"').nth(1).unwrap().parse().unwrap();
        let value: f64 = exemplar.split(' ').nth(1).unwrap().parse().unwrap();
        assert!(value <= edge + 1e-6, "{value} is not in the bucket up to {edge}");
    }
}
