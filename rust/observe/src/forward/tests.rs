//! The live side against a pool whose behaviour the test sets, over real sockets.

use std::net::SocketAddr;
use std::time::Instant;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use scorer_engine::Sensitive;
use scorer_log::RealClock;
use scorer_proto::v1::shadow_service_server::{ShadowService, ShadowServiceServer};
use tokio::task::{JoinHandle as Task, JoinSet};
use tonic::{Request, Response};

use super::*;

const PATIENCE: Duration = Duration::from_secs(20);

/// What the pool does with a call that brings requests.
#[derive(Clone, Copy, Debug)]
enum Does {
    Accept,
    DropEverySecond,
    Refuse(Code),
    Hang,
    Lie,
}

#[derive(Clone)]
struct FakePool(Arc<Mutex<State>>);

struct State {
    does: Does,
    /// A call without requests is refused as well.
    refuses_hello: bool,
    calls: Vec<ObserveRequest>,
}

#[tonic::async_trait]
impl ShadowService for FakePool {
    async fn observe(&self, request: Request<ObserveRequest>) -> Result<Response<ObserveResponse>, Status> {
        let request = request.into_inner();
        let requests = request.requests.len() as u64;
        let does = {
            let mut state = self.0.lock().unwrap();
            match requests {
                0 if state.refuses_hello => Does::Refuse(Code::FailedPrecondition),
                0 => Does::Accept,
                _ => {
                    state.calls.push(request);
                    state.does
                }
            }
        };
        let dropped = match does {
            Does::Accept => 0,
            Does::DropEverySecond => requests / 2,
            Does::Refuse(code) => return Err(Status::new(code, "told to")),
            Does::Hang => std::future::pending().await,
            Does::Lie => return Ok(Response::new(ObserveResponse { accepted: requests + 1, dropped: 0 })),
        };
        Ok(Response::new(ObserveResponse { accepted: requests - dropped, dropped }))
    }
}

impl FakePool {
    fn new(does: Does) -> FakePool {
        FakePool(Arc::new(Mutex::new(State { does, refuses_hello: false, calls: Vec::new() })))
    }

    fn now(&self, does: Does) {
        self.0.lock().unwrap().does = does;
    }

    fn ids(&self) -> Vec<String> {
        let requests = |call: &ObserveRequest| call.requests.clone();
        let id = |request: ObservedRequest| request.decision.unwrap().decision_id;
        self.0.lock().unwrap().calls.iter().flat_map(requests).map(id).collect()
    }

    /// Serves until the task is aborted, which breaks its connections as a kill does.
    async fn serve(&self, at: SocketAddr) -> (SocketAddr, Task<()>) {
        let listener = tokio::net::TcpListener::bind(at).await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = TowerToHyperService::new(ShadowServiceServer::new(self.clone()));
        let serve = async move {
            let mut connections = JoinSet::new();
            loop {
                let io = TokioIo::new(listener.accept().await.unwrap().0);
                let http2 = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                connections.spawn(http2.serve_connection(io, service.clone()));
            }
        };
        (address, tokio::spawn(serve))
    }

    async fn anywhere(&self) -> (SocketAddr, Task<()>) {
        self.serve("127.0.0.1:0".parse().unwrap()).await
    }
}

/// The forwarder with its thread.
struct Live {
    forwarder: Arc<Forwarder>,
    events: Arc<Events>,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Live {
    fn start(address: SocketAddr, change: impl FnOnce(&mut ShadowPoolConfig)) -> Live {
        let mut config: ShadowPoolConfig =
            serde_json::from_value(json!({"address": address.to_string(), "linger_ms": 1})).unwrap();
        change(&mut config);
        let forwarder = Arc::new(Forwarder::new(&config, "live-1"));
        let events = Arc::new(Events::new(Arc::new(RealClock::default())));
        let (stop, stopped) = watch::channel(false);
        let thread = forwarder.start(Arc::clone(&events), stopped).unwrap();
        Live { forwarder, events, stop, thread }
    }

    fn offer(&self, ids: std::ops::Range<usize>) {
        let shape = shape();
        ids.for_each(|id| _ = self.forwarder.take(outgoing(&shape, id)));
    }

    async fn until(&self, what: &str, holds: impl Fn(&PoolStatus) -> bool) -> PoolStatus {
        let began = Instant::now();
        loop {
            let status = self.forwarder.status();
            assert!(status.waiting_bytes <= self.forwarder.config.queue_bytes as u64, "{status:?}");
            if holds(&status) {
                return status;
            }
            assert!(began.elapsed() < PATIENCE, "not {what}: {status:?}");
            sleep(Duration::from_millis(2)).await;
        }
    }

    async fn settled(&self) -> PoolStatus {
        let status = self.until("settled", |status| status.waiting == 0).await;
        assert_eq!(status.taken, status.accepted + status.refused + status.dropped, "{status:?}");
        status
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        let _ = self.thread.take().map(JoinHandle::join);
        let status = self.forwarder.status();
        assert_eq!((status.waiting, status.waiting_bytes, status.connected), (0, 0, false), "{status:?}");
        assert_eq!(status.taken, status.accepted + status.refused + status.dropped, "{status:?}");
    }
}

fn shape() -> Arc<Shape> {
    Arc::new(Shape {
        fingerprint: 7,
        features: Vec::new(),
        actions: Arc::default(),
        sensitive: Sensitive::default(),
        reasons: Vec::new(),
        rules: Vec::new(),
        functions: Vec::new(),
        computed: None,
    })
}

fn outgoing(shape: &Arc<Shape>, id: usize) -> Outgoing {
    let decision =
        DecisionRecord { decision_id: id.to_string(), features: vec![1.0; 40], ..DecisionRecord::default() };
    Outgoing { shape: Arc::clone(shape), decision, others: Vec::new() }
}

#[tokio::test]
async fn every_request_arrives_once_in_order_and_a_schema_once_a_call() {
    let pool = FakePool::new(Does::Accept);
    let (address, _serving) = pool.anywhere().await;
    let live = Live::start(address, |config| config.batch = 64);
    live.until("connected", |status| status.connected).await;
    live.offer(0..1000);
    let status = live.settled().await;
    assert_eq!((status.accepted, status.sent, status.dropped, status.error.as_str()), (1000, 1000, 0, ""));
    assert_eq!(pool.ids(), (0..1000).map(|id| id.to_string()).collect::<Vec<_>>());
    for call in &pool.0.lock().unwrap().calls {
        assert_eq!((call.server.as_str(), call.schemas.len()), ("live-1", 1));
        assert!((1..=64).contains(&call.requests.len()), "{}", call.requests.len());
        assert!(call.requests.iter().all(|request| request.schema == 0));
    }
}

#[test]
fn a_request_is_accounted_for_by_what_it_holds() {
    let small = outgoing(&shape(), 0);
    let message = message("live-1", std::iter::once(outgoing(&shape(), 0)));
    let mut large = outgoing(&shape(), 0);
    large.decision.features = vec![0.0; 1000];
    let value = Some(wire::Value::Category("x".repeat(500)));
    large.others = vec![Feature { name: "y".repeat(100), value }];
    let more = 960 * 4 + size_of::<Feature>() + 600;
    assert_eq!(large.bytes(), small.bytes() + more);
    assert!(small.bytes() > message.encoded_len(), "what is bounded is no less than what is sent");
}

#[tokio::test]
async fn what_the_pool_drops_or_refuses_is_counted_as_it_says() {
    let pool = FakePool::new(Does::DropEverySecond);
    let (address, _serving) = pool.anywhere().await;
    let live = Live::start(address, |config| config.batch = 100);
    live.until("connected", |status| status.connected).await;
    live.offer(0..100);
    let halves = live.settled().await;
    assert_eq!(halves.accepted + halves.refused, 100);
    assert!(halves.refused > 0 && halves.accepted >= halves.refused, "{halves:?}");
    pool.now(Does::Refuse(Code::InvalidArgument));
    live.offer(100..130);
    let refused = live.settled().await;
    assert_eq!((refused.refused - halves.refused, refused.accepted), (30, halves.accepted));
    assert_eq!((refused.connected, refused.error.as_str()), (true, "INVALID_ARGUMENT: told to"));
    pool.now(Does::Accept);
    live.offer(130..140);
    let taken = live.settled().await;
    assert_eq!((taken.accepted - halves.accepted, taken.dropped, taken.error.as_str()), (10, 0, ""));
}

/// Fault case 93.
#[tokio::test]
async fn a_pool_that_hangs_or_lies_costs_what_was_under_way() {
    let pool = FakePool::new(Does::Hang);
    let (address, _serving) = pool.anywhere().await;
    let live = Live::start(address, |config| config.timeout_ms = 100);
    live.until("connected", |status| status.connected).await;
    live.offer(0..10);
    let status = live.until("given up", |status| status.dropped > 0).await;
    assert!(status.dropped <= 10 && status.accepted == 0, "{status:?}");
    live.until("told", |status| {
        status.error == "no answer within 100 ms" || status.error.contains("Timeout")
    })
    .await;
    pool.now(Does::Lie);
    live.settled().await;
    live.offer(10..20);
    let lied = live.settled().await;
    assert_eq!((lied.accepted, lied.dropped), (0, 20), "{lied:?}");
    pool.now(Does::Accept);
    live.offer(20..30);
    assert_eq!(live.settled().await.accepted, 10);
    let said: Vec<String> = live.events.take();
    assert!(said.iter().any(|line| line.contains("and reports")), "{said:?}");
}

#[tokio::test]
async fn a_full_queue_drops_and_counts_by_requests_and_by_bytes() {
    let pool = FakePool::new(Does::Accept);
    pool.0.lock().unwrap().refuses_hello = true;
    let (address, _serving) = pool.anywhere().await;
    let live = Live::start(address, |config| config.queue = 50);
    // A server of the wrong role is detected at once, before anything is sent.
    live.until("refused", |status| status.error.starts_with("FAILED_PRECONDITION")).await;
    live.offer(0..80);
    let status = live.forwarder.status();
    assert_eq!((status.taken, status.dropped, status.waiting, status.sent), (80, 30, 50, 0));
    pool.0.lock().unwrap().refuses_hello = false;
    assert_eq!(live.settled().await.accepted, 50);

    pool.0.lock().unwrap().refuses_hello = true;
    let one = outgoing(&shape(), 0).bytes();
    let small = Live::start(address, |config| config.queue_bytes = 20 * one);
    small.until("refused", |status| !status.error.is_empty()).await;
    small.offer(0..100);
    let status = small.forwarder.status();
    assert!((90 - 20..=90).contains(&status.dropped) && status.waiting == 100 - status.dropped, "{status:?}");
    assert!(status.waiting_bytes <= (20 * one) as u64);
    // One request may be larger than a whole call.
    let mut huge = outgoing(&shape(), 0);
    huge.decision.features = vec![0.0; BATCH_BYTES];
    live.forwarder.take(huge);
    assert_eq!(live.settled().await.dropped, 31);
}

#[tokio::test]
async fn a_pool_that_dies_and_comes_back_is_found_again_and_nothing_is_counted_twice() {
    let pool = FakePool::new(Does::Accept);
    let (address, mut serving) = pool.anywhere().await;
    let live = Live::start(address, |config| config.timeout_ms = 1000);
    let mut offered = 0;
    for round in 0..4 {
        live.until("connected", |status| status.connected).await;
        let before = live.forwarder.status().accepted;
        live.offer(offered..offered + 100);
        offered += 100;
        // Killed before, while or after they are sent.
        if round % 2 == 0 {
            live.until("sent", |status| status.accepted > before).await;
        }
        serving.abort();
        let _ = serving.await;
        live.offer(offered..offered + 10);
        offered += 10;
        live.until("lost", |status| !status.connected).await;
        assert!(!live.forwarder.status().error.is_empty());
        serving = pool.serve(address).await.1;
    }
    live.offer(offered..offered + 1);
    let status = live.settled().await;
    assert_eq!(status.taken, offered as u64 + 1);
    assert!(status.accepted as usize <= pool.ids().len(), "{status:?}");
    let all: std::collections::HashSet<String> = pool.ids().into_iter().collect();
    assert_eq!(all.len(), pool.ids().len(), "nothing is sent twice");
    let lines = live.events.take();
    let count = |event: &str| lines.iter().filter(|line| line.contains(event)).count();
    assert!(count("shadow_pool_connected") >= 4, "{lines:?}");
    assert!(count("shadow_pool_lost") >= 4, "{lines:?}");
}

#[tokio::test]
async fn stopping_waits_for_nobody_and_counts_what_is_left() {
    let pool = FakePool::new(Does::Hang);
    let (address, _serving) = pool.anywhere().await;
    let live = Live::start(address, |config| (config.timeout_ms, config.batch) = (60_000, 10));
    live.until("connected", |status| status.connected).await;
    live.offer(0..100);
    live.until("under way", |status| status.sent > 0).await;
    let forwarder = Arc::clone(&live.forwarder);
    drop(live);
    assert_eq!((forwarder.status().taken, forwarder.status().dropped), (100, 100));
    forwarder.take(outgoing(&shape(), 0));
    assert_eq!(forwarder.status().dropped, 101, "after the end as well");
}
