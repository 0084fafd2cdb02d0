//! Complete runs against a server with simulated faults.
//!
//! Bounds on latencies are lower bounds, which follow from a stall of the server. No test depends on the
//! speed of the machine.

#![expect(clippy::unwrap_used, reason = "the helpers of these tests are not recognised as tests")]

#[path = "../../log/tests/limit/mod.rs"]
mod limit;

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use limit::{TimeLimit, time_limit};
use prost::Message as _;
use scorer_loadgen::{Arrivals, Caller, LoadConfig, LoadError, Method, Protocol, Reply, Report, Step, run};
use scorer_proto::v1::scoring_service_server::{ScoringService, ScoringServiceServer};
use scorer_proto::v1::{
    DecideRequest, DecideResponse, DescribeRequest, DescribeResponse, ExplainRequest, ExplainResponse,
    NoopRequest, NoopResponse, RecordEventsRequest, RecordEventsResponse, ReportOutcomeRequest,
    ReportOutcomeResponse, ScoreBatchRequest, ScoreBatchResponse, ScoreRequest, ScoreResponse,
    SelectActionRequest, SelectActionResponse, Served,
};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::oneshot;
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tonic::{Request, Response, Status};

/// A server that answers at once unless it is configured otherwise.
#[derive(Default)]
struct Fake {
    requests: AtomicU64,
    ids: Mutex<Vec<String>>,
    /// Blocks the whole server once, at this request.
    stall_at: Option<u64>,
    /// Never answers `Noop`.
    mute: bool,
    /// Limit of concurrent requests per connection.
    streams: Option<u32>,
    /// Milliseconds that a request waits without occupying the server.
    linger: u64,
    /// The names of the callers of `SelectAction`.
    callers: Mutex<HashSet<String>>,
    /// Unanswered requests that were started, and those that were cancelled.
    begun: AtomicU64,
    dropped: Arc<AtomicU64>,
}

/// Counts the end of a request.
struct Begun(Arc<AtomicU64>);

impl Drop for Begun {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

const STALL: Duration = Duration::from_millis(500);

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl ScoringService for Fake {
    async fn noop(&self, _request: Request<NoopRequest>) -> Answer<NoopResponse> {
        if self.mute {
            self.begun.fetch_add(1, Ordering::Relaxed);
            let _until_given_up = Begun(Arc::clone(&self.dropped));
            std::future::pending::<()>().await;
        }
        if self.linger > 0 {
            tokio::time::sleep(Duration::from_millis(self.linger)).await;
        }
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        if self.stall_at == Some(number) {
            // The runtime has one thread, so that all later requests wait, as behind a page fault or a lock.
            std::thread::sleep(STALL);
        }
        Ok(Response::new(NoopResponse::default()))
    }

    async fn score(&self, request: Request<ScoreRequest>) -> Answer<ScoreResponse> {
        let request = request.into_inner();
        self.ids.lock().unwrap().push(request.request_id);
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        if number.is_multiple_of(10) {
            return Err(Status::resource_exhausted("shed"));
        }
        let mut served = Served { exec_us: 40, ..Default::default() };
        if number % 10 < 3 {
            served.fallback_source = "checkpoint".into();
            served.fallback_reason = "deadline".into();
        }
        Ok(Response::new(ScoreResponse { served: Some(served), ..Default::default() }))
    }

    async fn score_batch(&self, _: Request<ScoreBatchRequest>) -> Answer<ScoreBatchResponse> {
        Err(Status::internal("no"))
    }

    async fn select_action(&self, request: Request<SelectActionRequest>) -> Answer<SelectActionResponse> {
        if let Some(name) = request.metadata().get("x-caller") {
            self.callers.lock().unwrap().insert(name.to_str().unwrap().to_owned());
        }
        self.requests.fetch_add(1, Ordering::Relaxed);
        Ok(Response::new(SelectActionResponse::default()))
    }

    async fn decide(&self, _: Request<DecideRequest>) -> Answer<DecideResponse> {
        Err(Status::unimplemented(""))
    }

    async fn report_outcome(&self, _: Request<ReportOutcomeRequest>) -> Answer<ReportOutcomeResponse> {
        Err(Status::unimplemented(""))
    }

    async fn explain(&self, _: Request<ExplainRequest>) -> Answer<ExplainResponse> {
        Err(Status::unimplemented(""))
    }

    async fn record_events(&self, _: Request<RecordEventsRequest>) -> Answer<RecordEventsResponse> {
        Err(Status::unimplemented(""))
    }

    async fn describe(&self, _: Request<DescribeRequest>) -> Answer<DescribeResponse> {
        Err(Status::unimplemented(""))
    }
}

/// A server on a separate thread with a runtime of one thread. Dropping it stops the server.
struct Server {
    target: String,
    fake: Arc<Fake>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
    _limit: TimeLimit,
}

impl Server {
    fn start(fake: Fake, socket: Option<std::path::PathBuf>) -> Server {
        let limit = time_limit();
        let fake = Arc::new(fake);
        let (stop, stopped) = oneshot::channel::<()>();
        let (sender, receiver) = std::sync::mpsc::channel();
        let service = Arc::clone(&fake);
        let streams = fake.streams;
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let server = tonic::transport::Server::builder().max_concurrent_streams(streams);
                let service = ScoringServiceServer::from_arc(service);
                // Dropping the server drops its connections, so it does not wait for `mute` requests.
                tokio::select! {
                    _ = stopped => {}
                    result = async {
                        match socket {
                            None => {
                                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                                sender.send(listener.local_addr().unwrap().to_string()).unwrap();
                                server.serve_with_incoming(service, TcpListenerStream::new(listener)).await
                            }
                            Some(path) => {
                                let listener = UnixListener::bind(&path).unwrap();
                                sender.send(format!("unix:{}", path.display())).unwrap();
                                server.serve_with_incoming(service, UnixListenerStream::new(listener)).await
                            }
                        }
                    } => result.unwrap(),
                }
            });
        });
        Server {
            target: receiver.recv().unwrap(),
            fake,
            stop: Some(stop),
            thread: Some(thread),
            _limit: limit,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

fn method(name: &str, reply: Reply) -> Method {
    Method {
        name: name.into(),
        path: format!("/scorer.v1.ScoringService/{name}"),
        weight: 1.0,
        reply,
        fresh_id: reply != Reply::Opaque,
    }
}

fn config(target: &str, rate: f64, seconds: f64) -> LoadConfig {
    LoadConfig {
        tls: None,
        target: target.into(),
        protocol: Protocol::Grpc,
        rate,
        steps: vec![],
        callers: vec![],
        arrivals: Arrivals::Uniform,
        seconds,
        warmup_seconds: 0.0,
        connections: 2,
        threads: 1,
        max_outstanding: 10_000,
        timeout_ms: 20_000.0,
        deadline_ms: None,
        cancel: 0.0,
        cancel_within_ms: 10.0,
        sla_ms: Some(100.0),
        window_seconds: 0.5,
        seed: 1,
        methods: vec![method("Noop", Reply::Opaque)],
    }
}

fn step(seconds: f64, load: f64) -> Step {
    Step { seconds, load }
}

fn caller(name: &str, load: &[f64]) -> Caller {
    Caller { name: name.into(), load: load.into(), ..Caller::default() }
}

fn load(config: &LoadConfig) -> Report {
    run(config, vec![vec![Bytes::new()]; config.methods.len()], |_| ControlFlow::Continue(())).unwrap()
}

#[test]
fn a_stall_counts_for_every_request_that_was_due_during_it() {
    let server = Server::start(Fake { stall_at: Some(100), ..Default::default() }, None);
    let report = load(&config(&server.target, 200.0, 2.0));
    // The requests were sent nevertheless, because the schedule does not wait.
    assert_eq!((report.requests, report.sent, report.answered), (400, 400, 400));
    assert_eq!(server.fake.requests.load(Ordering::Relaxed), 400);
    // 100 requests were due during the stall, one every 5 ms. The k-th of them waited for 500 - 5 k ms.
    // A closed loop would have measured one slow request per connection.
    assert!(report.misses >= 78, "{} waited for more than 100 ms", report.misses);
    let latency = &report.latency_us;
    assert!(latency.max >= 490_000, "{latency:?}");
    assert!(latency.p999 >= 480_000, "{latency:?}");
    assert!(latency.p99 >= 450_000, "{latency:?}");
    // 400 · 10 % = 40 requests are slower than the p90, which is at least 500 - 40 · 5 ms.
    assert!(latency.p90 >= 280_000, "{latency:?}");
    // The windows show the time of the stall: request 100 is due at 0.5 s.
    assert!(report.windows[1].misses >= 60, "{:?}", report.windows);
    assert_eq!(report.windows.iter().map(|window| window.intended).sum::<u64>(), 400);
}

#[test]
fn every_scheduled_request_is_accounted_for_over_threads_connections_and_arrivals() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(Fake::default(), Some(directory.path().join("s.sock")));
    for (arrivals, threads, connections) in
        [(Arrivals::Uniform, 1, 1), (Arrivals::Uniform, 2, 5), (Arrivals::Poisson, 2, 3)]
    {
        let before = server.fake.requests.load(Ordering::Relaxed);
        let settings = LoadConfig { arrivals, threads, connections, ..config(&server.target, 500.0, 1.0) };
        let report = load(&settings);
        let received = server.fake.requests.load(Ordering::Relaxed) - before;
        assert_eq!(
            (report.requests, report.answered, report.latency_us.count),
            (received, received, received)
        );
        if arrivals == Arrivals::Uniform {
            assert_eq!(received, 500);
        }
        assert_eq!(report.send_lag_us.count, received);
        assert!(report.errors.is_empty(), "{:?}", report.errors);
    }
}

#[test]
fn the_warm_up_is_sent_but_not_counted() {
    let server = Server::start(Fake::default(), None);
    let report = load(&LoadConfig { warmup_seconds: 0.5, ..config(&server.target, 200.0, 1.0) });
    assert_eq!(server.fake.requests.load(Ordering::Relaxed), 300);
    assert_eq!((report.requests, report.latency_us.count, report.send_lag_us.count), (200, 200, 200));
}

#[test]
fn requests_beyond_the_limit_are_errors_and_do_not_pause_the_schedule() {
    let server = Server::start(Fake { mute: true, ..Default::default() }, None);
    let settings =
        LoadConfig { max_outstanding: 10, timeout_ms: 30_000.0, ..config(&server.target, 200.0, 0.5) };
    let mut overflowed = false;
    // No call is ever answered. The run ends when all requests beyond the limit were counted as errors.
    let report = run(&settings, vec![vec![Bytes::new()]], |progress| {
        overflowed |= progress.is_some_and(|progress| progress.errors == 90);
        if overflowed { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .unwrap();
    assert_eq!(report.errors["overflow"], 90);
    assert_eq!((report.misses, report.answered, report.interrupted), (90, 0, true));
}

#[test]
fn an_unanswered_request_is_cancelled_and_counts_as_a_miss() {
    let server = Server::start(Fake { mute: true, ..Default::default() }, None);
    let report = load(&LoadConfig { timeout_ms: 150.0, ..config(&server.target, 100.0, 0.5) });
    assert_eq!((report.requests, report.answered, report.misses), (50, 0, 50));
    // Either side may end the call first, because the server also has the deadline.
    assert_eq!(report.errors.values().sum::<u64>(), 50, "{:?}", report.errors);
}

#[test]
fn results_are_counted_by_status_and_reason_and_ids_are_unique() {
    let server = Server::start(Fake::default(), None);
    let settings =
        LoadConfig { methods: vec![method("Score", Reply::Score)], ..config(&server.target, 500.0, 1.0) };
    let template = ScoreRequest { checkpoint: "c".into(), ..Default::default() }.encode_to_vec();
    for _ in 0..2 {
        let report =
            run(&settings, vec![vec![Bytes::from(template.clone())]], |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(report.errors["RESOURCE_EXHAUSTED"], 50);
        assert_eq!(report.fallbacks["deadline"], 100);
        assert_eq!(
            (report.answered, report.latency_us.count, report.model_latency_us.count),
            (450, 450, 350)
        );
        assert_eq!((report.server_exec_us.count, report.server_exec_us.max), (350, 40));
        assert_eq!((report.methods[0].requests, report.methods[0].errors), (500, 50));
    }
    let ids = server.fake.ids.lock().unwrap();
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 1000);
    assert!(ids.iter().all(|id| id.len() == 32));
}

#[test]
fn a_mix_keeps_its_shares() {
    let server = Server::start(Fake::default(), None);
    let mut methods = vec![method("Noop", Reply::Opaque), method("SelectAction", Reply::Action)];
    methods[1].weight = 3.0;
    let report = load(&LoadConfig { methods, ..config(&server.target, 2000.0, 1.0) });
    let (noop, action) = (&report.methods[0], &report.methods[1]);
    assert_eq!(noop.requests + action.requests, 2000);
    // A binomial share of 1/4 of 2,000 has a standard deviation of 19.
    assert!(noop.requests.abs_diff(500) < 100, "{} of 2000", noop.requests);
}

#[test]
fn callers_use_their_steps_methods_and_metadata() {
    let server = Server::start(Fake::default(), None);
    let quiet = Caller { methods: vec!["Noop".into()], ..caller("quiet", &[1.0]) };
    let metadata = [("x-caller".to_owned(), "loud".to_owned())].into();
    let loud = Caller { methods: vec!["SelectAction".into()], metadata, ..caller("loud", &[0.0, 10.0]) };
    let settings = LoadConfig {
        methods: vec![method("Noop", Reply::Opaque), method("SelectAction", Reply::Action)],
        steps: vec![step(1.0, 1.0), step(0.5, 2.0)],
        callers: vec![quiet, loud],
        ..config(&server.target, 100.0, 1.5)
    };
    let report = load(&settings);
    assert_eq!((report.requests, report.answered), (1200, 1200));
    let of = |caller: usize| -> Vec<_> {
        report.callers[caller].steps.iter().map(|step| (step.start, step.rate, step.requests)).collect()
    };
    assert_eq!(of(0), [(0.0, 100.0, 100), (1.0, 200.0, 100)]);
    assert_eq!(of(1), [(0.0, 0.0, 0), (1.0, 2000.0, 1000)]);
    assert_eq!((report.methods[0].requests, report.methods[1].requests), (200, 1000));
    assert_eq!(*server.fake.callers.lock().unwrap(), HashSet::from([String::from("loud")]));
}

#[test]
fn some_requests_are_cancelled_and_the_server_is_notified() {
    let server = Server::start(Fake { mute: true, ..Default::default() }, None);
    let report = load(&LoadConfig { cancel: 1.0, ..config(&server.target, 1000.0, 0.5) });
    assert_eq!((report.requests, report.cancelled), (500, 500));
    assert_eq!((report.misses, report.answered, report.errors.len()), (0, 0, 0));
    // The server has dropped every cancelled request that it had started.
    let begun = || server.fake.begun.load(Ordering::Relaxed);
    while server.fake.dropped.load(Ordering::Relaxed) < begun() {
        std::thread::yield_now();
    }
    assert!(begun() > 0);

    let lingering = Server::start(Fake { linger: 5, ..Default::default() }, None);
    let settings =
        LoadConfig { cancel: 0.5, cancel_within_ms: 0.1, ..config(&lingering.target, 1000.0, 1.0) };
    let report = load(&settings);
    // A binomial share of a half of 1,000 has a standard deviation of 16.
    assert!(report.cancelled.abs_diff(500) < 90, "{}", report.cancelled);
    assert_eq!(report.answered + report.cancelled, 1000);
}

#[test]
fn the_deadline_that_the_server_gets_can_be_shorter_than_the_timeout() {
    let server = Server::start(Fake { mute: true, ..Default::default() }, None);
    let report = load(&LoadConfig { deadline_ms: Some(50.0), ..config(&server.target, 100.0, 0.5) });
    // The server ends the requests, and each of them gets its reply.
    assert_eq!(report.errors.values().sum::<u64>(), 50);
    assert!(!report.errors.contains_key("client_timeout"), "{:?}", report.errors);
    assert!(report.windows.iter().all(|window| window.errors == window.intended));
}

/// Answers HTTP/1.1 requests one after the other on each connection, and every fifth request with 503.
fn http_server() -> (String, Arc<AtomicU64>) {
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let served = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&served);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let counter = Arc::clone(&counter);
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut stream = stream;
                loop {
                    let mut length = 0;
                    let mut line = String::new();
                    while reader.read_line(&mut line).unwrap_or(0) > 2 {
                        let lower = line.to_ascii_lowercase();
                        if let Some(value) = lower.strip_prefix("content-length:") {
                            length = value.trim().parse().unwrap();
                        }
                        line.clear();
                    }
                    let mut body = vec![0; length];
                    if length == 0 || reader.read_exact(&mut body).is_err() {
                        return;
                    }
                    assert_eq!(body, b"{}");
                    let status = match counter.fetch_add(1, Ordering::Relaxed) % 5 {
                        4 => "503 Service Unavailable",
                        _ => "200 OK",
                    };
                    let reply = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\nok");
                    stream.write_all(reply.as_bytes()).unwrap();
                }
            });
        }
    });
    (address, served)
}

#[test]
fn an_http_server_gets_the_same_schedule() {
    let (target, served) = http_server();
    let predict = Method { path: "/predict".into(), ..method("predict", Reply::Opaque) };
    let settings = LoadConfig {
        protocol: Protocol::Http,
        methods: vec![Method { fresh_id: false, ..predict }],
        ..config(&target, 500.0, 1.0)
    };
    let report =
        run(&settings, vec![vec![Bytes::from_static(b"{}")]], |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(served.load(Ordering::Relaxed), 500);
    assert_eq!((report.requests, report.answered, report.errors["HTTP_503"]), (500, 400, 100));
}

#[test]
fn the_run_continues_after_a_restart_of_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s.sock");
    let mut server = Some(Server::start(Fake::default(), Some(path.clone())));
    let target = server.as_ref().unwrap().target.clone();
    let settings = LoadConfig { timeout_ms: 2000.0, ..config(&target, 100.0, 600.0) };
    let mut stage = 0;
    let report = run(&settings, vec![vec![Bytes::new()]], |progress| {
        let Some(progress) = progress else { return ControlFlow::Continue(()) };
        match stage {
            0 if progress.finished > 0 => {
                server = None;
                std::fs::remove_file(&path).unwrap();
                stage = 1;
            }
            1 if progress.errors > 0 => {
                server = Some(Server::start(Fake::default(), Some(path.clone())));
                stage = 2;
            }
            2 if server.as_ref().is_some_and(|server| server.fake.requests.load(Ordering::Relaxed) > 0) => {
                return ControlFlow::Break(());
            }
            _ => {}
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    assert!(report.errors["not_connected"] > 0, "{:?}", report.errors);
    assert!(report.answered > 0);
}

#[test]
fn a_pending_reply_does_not_delay_the_schedule() {
    // 300 ms each at 100 per second are 30 concurrent requests on two connections.
    let server = Server::start(Fake { linger: 300, ..Default::default() }, None);
    let report = load(&config(&server.target, 100.0, 1.0));
    assert_eq!((report.requests, report.answered), (100, 100));
    assert!(report.latency_us.min >= 299_000, "{:?}", report.latency_us);
}

#[test]
fn requests_beyond_the_stream_limit_of_the_server_wait_and_the_wait_is_counted() {
    // 2 connections × 2 streams × 20 per second each are 80 per second, and 160 are due in one second.
    let server = Server::start(Fake { linger: 50, streams: Some(2), ..Default::default() }, None);
    let report = load(&config(&server.target, 160.0, 1.0));
    assert_eq!((report.requests, report.answered), (160, 160));
    assert_eq!(server.fake.requests.load(Ordering::Relaxed), 160);
    // The last request is due at 1 s and cannot be answered before 160 / 80 = 2 s.
    assert!(report.latency_us.max >= 950_000, "{:?}", report.latency_us);
    assert!(report.send_lag_us.count == 160);
}

#[test]
fn errors_of_settings_and_targets_are_one_line() {
    let good = || config("127.0.0.1:1", 10.0, 1.0);
    let cases: Vec<(LoadConfig, &str)> = vec![
        (LoadConfig { rate: 0.0, ..good() }, "rate must be above 0 and at most 1,000,000 per second, not 0"),
        (LoadConfig { rate: f64::NAN, ..good() }, "rate must be"),
        (LoadConfig { rate: 2e6, ..good() }, "rate must be"),
        (LoadConfig { seconds: -1.0, ..good() }, "seconds must be a finite number above 0, not -1"),
        (LoadConfig { seconds: f64::INFINITY, ..good() }, "seconds must be"),
        (LoadConfig { seconds: 1e9, ..good() }, "seconds is too long for its windows"),
        (LoadConfig { warmup_seconds: -0.5, ..good() }, "warmup_seconds must be"),
        (LoadConfig { connections: 0, ..good() }, "connections must be at least one per thread"),
        (LoadConfig { threads: 3, ..good() }, "connections must be at least one per thread"),
        (LoadConfig { threads: 0, ..good() }, "threads must be 1 to 64, not 0"),
        (LoadConfig { max_outstanding: 0, ..good() }, "max_outstanding must be"),
        (LoadConfig { timeout_ms: 0.0, ..good() }, "timeout_ms must be 1 to 60000, not 0"),
        (
            LoadConfig { sla_ms: Some(30_000.0), ..good() },
            "sla_ms must be above 0 and at most timeout_ms, not 30000",
        ),
        (LoadConfig { window_seconds: 0.0, ..good() }, "window_seconds must be"),
        (
            LoadConfig { deadline_ms: Some(30_000.0), ..good() },
            "deadline_ms must be above 0 and at most timeout_ms, not 30000",
        ),
        (LoadConfig { cancel: 1.5, ..good() }, "cancel must be a share from 0 to 1, not 1.5"),
        (LoadConfig { cancel_within_ms: 0.0, ..good() }, "cancel_within_ms must be"),
        (
            LoadConfig { steps: vec![step(0.5, 1.0), step(0.4, 2.0)], ..good() },
            "seconds must be the sum of the steps', not 1",
        ),
        (LoadConfig { steps: vec![step(1.0, -1.0)], ..good() }, "load of a step must be"),
        (LoadConfig { steps: vec![step(0.0, 1.0)], ..good() }, "seconds of a step must be"),
        (
            LoadConfig { callers: vec![caller("a", &[1.0, 2.0])], ..good() },
            "loads of a caller must be one, or one for each step, not 2",
        ),
        (LoadConfig { callers: vec![caller("a", &[f64::NAN])], ..good() }, "load of a caller must be"),
        (
            LoadConfig {
                callers: vec![Caller { methods: vec!["Nop".into()], ..caller("a", &[1.0]) }],
                ..good()
            },
            "methods of a caller must name methods of the run, not Nop",
        ),
        (LoadConfig { methods: vec![], ..good() }, "methods must be at least one"),
        (LoadConfig { target: "no spaces allowed:1".into(), ..good() }, "target or method path is not valid"),
        (good(), "cannot connect to 127.0.0.1:1: "),
        (
            LoadConfig { target: "unix:/nonexistent/s.sock".into(), ..good() },
            "cannot connect to unix:/nonexistent",
        ),
    ];
    for (settings, words) in cases {
        let payloads = vec![vec![Bytes::new()]; settings.methods.len()];
        let error = run(&settings, payloads, |_| ControlFlow::Continue(())).unwrap_err().to_string();
        assert!(error.starts_with(words), "{error:?} does not start with {words:?}");
        assert!(!error.contains('\n'));
    }
    let error = run(&good(), vec![vec![]], |_| ControlFlow::Continue(())).unwrap_err();
    assert!(matches!(error, LoadError::Config(_)), "{error}");
}
