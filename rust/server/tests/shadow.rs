//! Live servers and their shadow pool over real sockets: observed and lost requests, and their counts.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here is a failed test")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::*;
use scorer_core::bundle::testing::{self, Files};
use scorer_log::{Env, Reader};
use scorer_proto::v1::shadow_service_client::ShadowServiceClient;
use scorer_proto::v1::{
    DecisionRecord, Feature, LogRecord, ObservationRecord, ObserveRequest, ObservedRequest, ObservedSchema,
    feature, log_record,
};
use scorer_server::{
    Condition, LaneFault, LaneTable, ObserveLane, Op, PoolStatus, Role, Server, ServerConfig, Status,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tonic::Code;

const PATIENCE: Duration = Duration::from_secs(30);

/// A server of role `shadow` with its directory.
struct Pool {
    server: Server,
    directory: Arc<TempDir>,
    port: u16,
}

/// A port of the loopback address that no server uses, because it is reserved for a service that is not run.
const CLOSED_PORT: u16 = 1;

impl Pool {
    fn start() -> Pool {
        Pool::at(0, Arc::new(tempfile::tempdir().unwrap()), |_| ())
    }

    fn at(port: u16, directory: Arc<TempDir>, change: impl FnOnce(&mut Value)) -> Pool {
        let mut config = config(directory.path());
        config["role"] = json!("shadow");
        config["listen"] = json!(format!("127.0.0.1:{port}"));
        change(&mut config);
        let server = Server::start(ServerConfig::from_json(&config.to_string()).unwrap()).unwrap();
        let port = server.addresses().grpc[0].rsplit(':').next().unwrap().parse().unwrap();
        Pool { server, directory, port }
    }

    fn load(&self, files: &Files) -> String {
        load(&self.server, self.directory.path(), files)
    }

    fn observe(&self, version: u64, lanes: &[(&str, ObserveLane)]) {
        self.server.swap(&observing(version, &[], lanes)).unwrap();
    }

    async fn client(&self) -> ShadowServiceClient<tonic::transport::Channel> {
        ShadowServiceClient::new(channel(&self.server).await)
    }

    async fn until(&self, what: &str, holds: impl Fn(&Status) -> bool) -> Status {
        until(&self.server, what, holds).await
    }

    /// Stops the pool and reads its observations by lane and id.
    fn observations(&self) -> BTreeMap<(String, String), ObservationRecord> {
        observations(&self.server, self.directory.path())
    }
}

async fn until(server: &Server, what: &str, holds: impl Fn(&Status) -> bool) -> Status {
    let began = Instant::now();
    loop {
        let status = server.status();
        if holds(&status) {
            return status;
        }
        assert!(began.elapsed() < PATIENCE, "not {what}: {status:#?}");
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
}

fn observations(
    server: &Server,
    directory: &std::path::Path,
) -> BTreeMap<(String, String), ObservationRecord> {
    server.drain(Duration::from_secs(5));
    recorded(directory)
}

/// Returns the observations in a pool's log by lane and id.
fn recorded(directory: &std::path::Path) -> BTreeMap<(String, String), ObservationRecord> {
    let mut reader = Reader::open(Env::real().fs, &directory.join("log")).unwrap();
    let mut all = BTreeMap::new();
    while let Some(record) = reader.next_record().unwrap() {
        let record: LogRecord = prost::Message::decode(record.payload).unwrap();
        if let Some(log_record::Record::Observation(observation)) = record.record {
            let decision = observation.decision.clone().unwrap();
            assert!(
                all.insert((decision.lane, decision.decision_id), observation).is_none(),
                "recorded twice"
            );
        }
    }
    all
}

fn observer(name: &str, bundle: &str, pool: bool) -> ObserveLane {
    let json = json!({"name": name, "bundle": bundle, "sample": 1.0, "pool": pool});
    serde_json::from_value(json).unwrap()
}

/// Returns a table with the answer lanes of each checkpoint, if any, and observe lanes.
fn observing(version: u64, answer: &[(&str, &str)], lanes: &[(&str, ObserveLane)]) -> LaneTable {
    let mut checkpoints = BTreeMap::from([(FRAUD.to_owned(), None), (ACTION.to_owned(), None)]);
    for (checkpoint, bundle) in answer {
        checkpoints.insert((*checkpoint).to_owned(), Some(vec![lane("live", bundle, 1.0)]));
    }
    let mut observe: BTreeMap<String, Vec<ObserveLane>> = BTreeMap::new();
    for (checkpoint, lane) in lanes {
        observe.entry((*checkpoint).to_owned()).or_default().push(lane.clone());
    }
    LaneTable { version, checkpoints, previous: BTreeMap::new(), observe }
}

/// Starts a live server that sends to a pool.
fn live(port: u16, change: impl FnOnce(&mut Value)) -> Setup {
    start_with(|config| {
        config["shadow_pool"] =
            json!({"address": format!("127.0.0.1:{port}"), "server": "live-1", "linger_ms": 2});
        change(config);
    })
}

impl Setup {
    fn observe(&self, version: u64, lanes: &[(&str, ObserveLane)]) {
        let answer = [(FRAUD, self.fraud.as_str()), (ACTION, self.action.as_str())];
        self.server.swap(&observing(version, &answer, lanes)).unwrap();
    }

    fn pool(&self) -> PoolStatus {
        self.server.status().pool.unwrap()
    }

    /// Waits until the pool has reported the result of every request. Each request has one result.
    async fn settled(&self, taken: u64) -> PoolStatus {
        let settled = |status: &Status| {
            let pool = status.pool.as_ref().unwrap();
            pool.taken == taken && pool.waiting == 0
        };
        let pool = until(&self.server, "settled", settled).await.pool.unwrap();
        assert_eq!(pool.taken, pool.accepted + pool.dropped + pool.refused, "{pool:?}");
        assert_eq!(pool.waiting_bytes, 0, "{pool:?}");
        pool
    }
}

/// Another schema for the same model: another order, a larger dictionary, and one more feature.
fn other_files(name: &str) -> Files {
    let mut recipe = testing::score_recipe(name, 0.5);
    recipe.schema = json!({"features": [
        {"name": "amount", "type": "number", "minimum": 0.0, "maximum": 50000.0},
        {"name": "country", "type": "category", "categories": ["FR", "US", "NL"], "unknown_category": "missing"},
        {"name": "velocity", "type": "number"},
    ]});
    recipe.build().unwrap()
}

/// Removes what may differ between two evaluations of one request: their times.
fn but_for_times(mut observation: ObservationRecord) -> ObservationRecord {
    let decision = observation.decision.as_mut().unwrap();
    (decision.decided_at_us, decision.data_load_us, decision.exec_us, observation.lag_us) = (0, 0, 0, 0);
    // NaN does not equal itself.
    decision.features.iter_mut().filter(|feature| feature.is_nan()).for_each(|feature| *feature = -1.0);
    observation
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pool_records_the_same_bits_as_observing_in_process() {
    let pool = Pool::start();
    let setup = live(pool.port, |_| ());
    let (score_files, other, action_files) = (
        testing::score_files("candidate", 1.0),
        other_files("other"),
        testing::action_files("candidate", 0.5),
    );
    let mut lanes = Vec::new();
    for (checkpoint, name, files) in
        [(FRAUD, "same", &score_files), (FRAUD, "other", &other), (ACTION, "action", &action_files)]
    {
        let digest = load(&setup.server, setup.directory.path(), files);
        assert_eq!(pool.load(files), digest);
        let mut lane = observer(name, &digest, false);
        if name == "same" {
            lane.sample = 0.5;
            lane.filter =
                vec![Condition { feature: "country".to_owned(), op: Op::Differs, value: Some(json!("DE")) }];
        }
        lanes.push((checkpoint, lane));
    }
    let in_pool = |(checkpoint, lane): &(&'static str, ObserveLane)| {
        (*checkpoint, ObserveLane { name: format!("{}-there", lane.name), pool: true, ..lane.clone() })
    };
    let there: Vec<_> = lanes.iter().map(in_pool).collect();
    pool.observe(1, &there);
    setup.observe(2, &[lanes, there].concat());

    let mut client = setup.client().await;
    let fingerprint = fingerprint(&mut client, FRAUD).await;
    for number in 0..60_u32 {
        let country = ["NL", "DE", "FR", "XX"][number as usize % 4];
        let mut features = context(f64::from(number * 40));
        features.features[1].value = Some(feature::Value::Category(country.to_owned()));
        if number % 3 == 0 {
            let value = Some(feature::Value::Number(f64::from(number) / 7.0));
            features.features.push(Feature { name: "velocity".to_owned(), value });
        }
        let mut request = score(&format!("s{number}"), 0.0);
        request.features = Some(scorer_proto::v1::score_request::Features::Named(features));
        request.entity = format!("shopper-{number}");
        client.score(request).await.unwrap();
        let dense = [number as f32 * 500.0, [0.0, 2.0, f32::NAN][number as usize % 3], f32::NAN];
        client.score(score_dense(&format!("d{number}"), fingerprint, &dense)).await.unwrap();
        let mut choice = select(&format!("a{number}"), f64::from(number * 10));
        if number % 2 == 0 {
            choice.eligible = eligible(&["3ds=none|exemption=none", "3ds=challenge|exemption=low"], &[]);
        }
        client.select_action(choice).await.unwrap();
    }
    client.score_batch(batch("b", fingerprint, &[[1.0, 0.0, 1.0], [2000.0, 1.0, 0.0]])).await.unwrap();

    let status = setup.settled(182).await;
    assert_eq!((status.accepted, status.error.as_str()), (182, ""));
    let counted = |status: &Status, wanted: bool| -> BTreeMap<String, (u64, u64)> {
        let observers = status.observers.iter().filter(|status| status.pool == wanted);
        observers.map(|lane| (lane.lane.replace("-there", ""), (lane.seen, lane.taken))).collect()
    };
    let of_live = setup.server.status();
    assert_eq!(counted(&of_live, true), counted(&of_live, false), "all lanes must use one draw");
    let done = |status: &Status| status.observers.iter().all(|lane| lane.evaluated == lane.taken);
    let of_pool = pool.until("evaluated", done).await;
    assert_eq!(counted(&of_pool, true), counted(&of_live, true), "samples and filters must be nested");
    let senders = &of_pool.senders["live-1"];
    assert_eq!((senders.accepted, senders.dropped), (182, 0));
    until(&setup.server, "evaluated", |status| {
        status.observers.iter().all(|lane| lane.pool || lane.evaluated == lane.taken)
    })
    .await;

    let there = pool.observations();
    let here = observations(&setup.server, setup.directory.path());
    assert!(here.len() > 150 && there.len() == here.len(), "{} {}", here.len(), there.len());
    let (mut absent, mut restricted) = (0, 0);
    for ((lane, id), observation) in here {
        let mut own = observation;
        own.decision.as_mut().unwrap().lane = format!("{lane}-there");
        absent += usize::from(!own.absent_features.is_empty());
        restricted += usize::from(!own.decision.as_ref().unwrap().eligible_mask.is_empty());
        let theirs = there[&(format!("{lane}-there"), id)].clone();
        assert!(theirs.error.is_empty() && theirs.live_exec_us == own.live_exec_us);
        assert!(theirs.answered_at_us > 0);
        assert_eq!(but_for_times(theirs), but_for_times(own));
    }
    assert!(absent > 60 && restricted == 30, "{absent} {restricted}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_feature_that_only_the_pool_reads_may_be_sent_and_arrives() {
    let pool = Pool::start();
    let digest = pool.load(&other_files("other"));
    pool.observe(1, &[(FRAUD, observer("cr-000001", &digest, true))]);
    let setup = live(pool.port, |_| ());
    let named = |id: &str| {
        let mut features = context(10.0);
        let value = Some(feature::Value::Number(2.5));
        features.features.push(Feature { name: "velocity".to_owned(), value });
        let features = Some(scorer_proto::v1::score_request::Features::Named(features));
        scorer_proto::v1::ScoreRequest { features, ..score(id, 0.0) }
    };
    let mut client = setup.client().await;
    let mut lane = observer("cr-000001", &digest, true);
    setup.observe(2, &[(FRAUD, lane.clone())]);
    let status = client.score(named("1")).await.unwrap_err();
    assert!(status.code() == Code::InvalidArgument && status.message().contains("velocity"), "{status}");
    lane.reads = ["amount", "country", "velocity"].map(str::to_owned).into();
    setup.observe(3, &[(FRAUD, lane.clone())]);
    client.score(named("2")).await.unwrap();
    assert_eq!(setup.settled(1).await.accepted, 1);
    lane.reads = vec![String::new(); 4097];
    let answer = [(FRAUD, setup.fraud.as_str()), (ACTION, setup.action.as_str())];
    let error = setup.server.swap(&observing(4, &answer, &[(FRAUD, lane)])).unwrap_err().to_string();
    assert!(error.contains("at most 4096"), "{error}");
    pool.until("evaluated", |status| status.observers[0].evaluated == 1).await;
    let observed = pool.observations();
    let observed = &observed[&("cr-000001".to_owned(), "2".to_owned())];
    assert_eq!(observed.decision.as_ref().unwrap().features, [10.0, 2.0, 2.5]);
    assert!(observed.absent_features.is_empty() && observed.error.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_do_not_depend_on_the_pool_and_every_request_is_counted() {
    let mut pool = Pool::start();
    let files = testing::score_files("candidate", 1.0);
    let digest = pool.load(&files);
    let lanes = [(FRAUD, observer("cr-000001", &digest, true))];
    pool.observe(1, &lanes);
    let setup = live(pool.port, |config| config["shadow_pool"]["timeout_ms"] = json!(500));
    // The bundle of the lane need not be on the live server.
    setup.observe(2, &lanes);
    let mut client = setup.client().await;
    let mut count = 0;
    // Sums over all pools: requests that they accepted, and accepted requests that a kill left unrecorded.
    let (mut accepted, mut lost, mut before) = (0, 0, 0);
    for round in 0..3 {
        until(&setup.server, "connected", |status| status.pool.as_ref().unwrap().connected).await;
        for _ in 0..200 {
            client.score(score(&format!("{count}"), f64::from(count))).await.unwrap();
            count += 1;
            if count % 200 == 100 {
                // The pool is killed during the load. Its log lacks only what was not written yet.
                pool.server.drain(Duration::ZERO);
            }
        }
        until(&setup.server, "lost", |status| !status.pool.as_ref().unwrap().connected).await;
        assert!(!setup.pool().error.is_empty());
        let Pool { server, directory, port } = pool;
        let status = server.status();
        drop(server);
        let records = recorded(directory.path()).len() as u64 - before;
        let received = status.observers.first().map_or(0, |lane| lane.taken);
        assert!(records <= received, "{records} records of {received} accepted requests: {status:#?}");
        (accepted, lost, before) = (accepted + received, lost + received - records, before + records);
        pool = Pool::at(port, directory, |_| ());
        assert_eq!(pool.load(&files), digest);
        pool.observe(round + 2, &lanes);
    }
    let status = setup.settled(600).await;
    assert!(status.accepted > 0 && status.sent <= 600, "{status:?}");
    let lane = setup.server.status().observers.remove(0);
    assert_eq!((lane.seen, lane.taken, lane.evaluated), (600, 600, 0));
    let done = |status: &Status| status.observers[0].evaluated == status.observers[0].taken;
    pool.until("evaluated", done).await;
    // The last pool was not killed, so it recorded all accepted requests, and none twice.
    let received = pool.server.status().observers.first().map_or(0, |lane| lane.taken);
    let records = pool.observations().len() as u64;
    assert_eq!(records, before + received, "{status:?}");
    accepted += received;
    // Every request that a pool accepted is recorded or was lost in a kill. A pool may have accepted what the live
    // server counts as dropped, since a kill also loses replies; the live server counts nothing else wrongly.
    assert_eq!(records + lost, accepted, "{status:?}");
    assert!(
        status.accepted <= accepted && accepted - status.accepted <= status.dropped,
        "{accepted} {status:?}"
    );
    assert!(lost < accepted, "all observations were lost: {status:?}");
    let decisions = setup.decisions();
    assert_eq!(decisions.len(), 600);
    assert!(decisions.iter().all(|record| record.fallback_reason.is_empty()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_cannot_keep_up_drops_requests_and_reports_it() {
    let pool = Pool::at(0, Arc::new(tempfile::tempdir().unwrap()), |config| {
        config["observe_queue"] = json!(8);
    });
    let digest = pool.load(&testing::score_files("candidate", 1.0));
    let lanes = [(FRAUD, observer("a", &digest, true)), (FRAUD, observer("b", &digest, true))];
    pool.server.inject_lane(FRAUD, "a", Some(LaneFault::Loop));
    pool.observe(1, &lanes);
    let setup = live(pool.port, |_| ());
    setup.observe(2, &lanes);
    let mut client = setup.client().await;
    for number in 0..100 {
        client.score(score(&format!("{number}"), 1.0)).await.unwrap();
    }
    let status = setup.settled(100).await;
    assert!(status.refused >= 100 - 9 && status.accepted <= 9 && status.dropped == 0, "{status:?}");
    let lanes = pool
        .until("b is done", |status| status.observers[1].evaluated + status.observers[1].dropped == 100)
        .await;
    let senders = lanes.senders["live-1"];
    assert_eq!((senders.accepted, senders.dropped), (status.accepted, status.refused));
    assert_eq!((lanes.observers[0].taken, lanes.observers[1].taken), (100, 100));
    pool.server.inject_lane(FRAUD, "a", None);
    pool.until("a is done", |status| status.observers[0].evaluated + status.observers[0].dropped == 100)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_without_a_lane_in_the_pool_are_counted_as_dropped() {
    let pool = Pool::start();
    pool.observe(1, &[]);
    let setup = live(pool.port, |_| ());
    setup.observe(2, &[(FRAUD, observer("nobody", &setup.fraud, true))]);
    let mut client = setup.client().await;
    for number in 0..10 {
        client.score(score(&format!("{number}"), 1.0)).await.unwrap();
        client.select_action(select(&format!("{number}"), 1.0)).await.unwrap();
    }
    let status = setup.settled(10).await;
    assert_eq!((status.refused, status.accepted), (10, 0), "actions must not be sent");
    let text = setup.metrics().await;
    for line in [
        "scorer_role{role=\"live\"} 1",
        "scorer_shadow_pool_requests_total{outcome=\"refused\"} 10",
        "scorer_shadow_pool_requests_total{outcome=\"accepted\"} 0",
        "scorer_shadow_pool_connected 1",
        "scorer_shadow_pool_waiting 0",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    let text = get(pool.server.addresses().metrics.as_deref().unwrap(), "/metrics").await.1;
    assert!(text.contains("scorer_role{role=\"shadow\"} 1"), "{text}");
    let line = "scorer_shadow_received_total{server=\"live-1\",outcome=\"dropped\"} 10";
    assert!(text.contains(line), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_a_live_server_drops_are_counted_by_lane_and_in_total() {
    let setup = live(CLOSED_PORT, |config| config["shadow_pool"]["queue"] = json!(5));
    let mut sparse = observer("sparse", &setup.fraud, true);
    sparse.sample = 1e-9;
    setup.observe(2, &[(FRAUD, observer("a", &setup.fraud, true)), (FRAUD, sparse)]);
    let mut client = setup.client().await;
    for number in 0..20 {
        client.score(score(&format!("{number}"), 1.0)).await.unwrap();
    }
    let status = setup.server.status();
    let pool = status.pool.unwrap();
    assert_eq!((pool.taken, pool.dropped, pool.waiting, pool.connected), (20, 15, 5, false), "{pool:?}");
    let counts: Vec<_> = status.observers.iter().map(|lane| (lane.seen, lane.taken, lane.dropped)).collect();
    assert_eq!(counts, [(20, 20, 15), (20, 0, 0)]);
    setup.server.drain(Duration::from_secs(5));
    let pool = setup.server.status().pool.unwrap();
    assert_eq!((pool.dropped, pool.waiting, pool.waiting_bytes), (20, 0, 0), "{pool:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_role_refuses_the_operations_of_the_other() {
    let pool = Pool::start();
    let mut health = tonic_health::pb::health_client::HealthClient::new(channel(&pool.server).await);
    let mut check = async |service: &str| {
        let request = tonic_health::pb::HealthCheckRequest { service: service.to_owned() };
        health.check(request).await.map(|reply| reply.into_inner().status).map_err(|status| status.code())
    };
    let (serving, not_serving) = (1, 2);
    assert_eq!(check("").await, Ok(not_serving), "no table yet");
    pool.observe(1, &[]);
    assert_eq!((check("").await, check(FRAUD).await), (Ok(serving), Ok(serving)));
    assert_eq!(check("scorer.v1.ShadowService").await, Ok(serving));
    assert_eq!(check("scorer.v1.ScoringService").await, Err(Code::NotFound));
    assert_eq!((pool.server.status().role, pool.server.status().state), ("shadow", "SERVING"));

    let mut scoring = Client::new(channel(&pool.server).await);
    let refused = "this server is a shadow pool: it observes and answers no requests; call the live server";
    for call in [
        Call::Score(score("1", 1.0)),
        Call::Select(select("1", 1.0)),
        Call::Batch(batch("1", 0, &[[1.0; 3]])),
        Call::Outcome(outcome("1", "paid", 1.0, 0)),
        Call::Describe(scorer_proto::v1::DescribeRequest::default()),
    ] {
        let status = call.send(&mut scoring).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, refused));
    }
    let mut inference =
        scorer_proto::inference::grpc_inference_service_client::GrpcInferenceServiceClient::new(
            channel(&pool.server).await,
        );
    let status = inference.server_live(scorer_proto::inference::ServerLiveRequest {}).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    let answers = observing(2, &[(FRAUD, &pool.load(&testing::score_files("fraud", 0.0)))], &[]);
    let error = pool.server.swap(&answers).unwrap_err().to_string();
    assert!(error.contains("answers no requests; give lanes that answer to a live server"), "{error}");
    let text = get(pool.server.addresses().metrics.as_deref().unwrap(), "/metrics").await.1;
    assert!(text.contains("method=\"Score\",checkpoint=\"\",code=\"FAILED_PRECONDITION\""), "{text}");

    let setup = start();
    let mut wrong = ShadowServiceClient::new(setup.channel().await);
    let status = wrong.observe(ObserveRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("send to one whose role is \"shadow\""), "{status}");
    let error =
        setup.server.swap(&observing(2, &[], &[(FRAUD, observer("a", &setup.fraud, true))])).unwrap_err();
    assert!(error.to_string().contains("this server has none; set shadow_pool"), "{error}");
    assert_eq!(setup.server.status().role, "live");
    assert!(setup.server.status().pool.is_none());

    // A live server that sends to another live server reports this and continues to answer.
    let port = setup.server.addresses().grpc[0].rsplit_once(':').unwrap().1.parse().unwrap();
    let misled = live(port, |_| ());
    let reported = |status: &Status| status.pool.as_ref().unwrap().error.contains("this server is live");
    until(&misled.server, "reported", reported).await;
    misled.client().await.score(score("1", 1.0)).await.unwrap();

    // The pool refuses a request for an answer and names the server that sends to it.
    let sender = live(pool.port, |_| ());
    until(&sender.server, "connected", |status| status.pool.as_ref().unwrap().connected).await;
    let status = scoring.score(score("2", 1.0)).await.unwrap_err();
    assert!(status.message().ends_with("call the live server, such as \"live-1\""), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_call_is_refused_by_name_and_completely() {
    let pool = Pool::start();
    let digest = pool.load(&testing::score_files("candidate", 1.0));
    pool.observe(
        1,
        &[
            (FRAUD, observer("a", &digest, true)),
            (ACTION, observer("b", &pool.load(&testing::action_files("action", 0.0)), true)),
        ],
    );
    let setup = start();
    let description = setup
        .client()
        .await
        .describe(scorer_proto::v1::DescribeRequest { checkpoint: ACTION.to_owned() })
        .await
        .unwrap()
        .into_inner()
        .checkpoints
        .remove(0);
    let schema = ObservedSchema {
        fingerprint: description.schema_fingerprint,
        features: description.features,
        actions: description.actions.into_iter().map(|action| action.id).collect(),
    };
    let good = |id: &str| ObservedRequest {
        schema: 0,
        decision: Some(DecisionRecord {
            decision_id: id.to_owned(),
            checkpoint: FRAUD.to_owned(),
            lane: "live".to_owned(),
            bundle: vec![7; 32],
            decided_at_us: 1,
            features: vec![1.0, 0.0, f32::NAN],
            schema_fingerprint: schema.fingerprint,
            ..DecisionRecord::default()
        }),
        others: Vec::new(),
    };
    let mut client = pool.client().await;
    let call = |change: &dyn Fn(&mut ObserveRequest)| {
        let (server, schemas) = ("live-1".to_owned(), vec![schema.clone()]);
        let mut request = ObserveRequest { server, schemas, requests: vec![good("1"), good("2")] };
        change(&mut request);
        request
    };
    let decision = |change: fn(&mut DecisionRecord)| {
        call(&|request| change(request.requests[1].decision.as_mut().unwrap()))
    };
    let named = |names: &'static [&'static str]| {
        let other = |name: &&str| Feature { name: (*name).to_owned(), value: None };
        call(&|request| request.requests[1].others = names.iter().map(other).collect())
    };
    for (request, words) in [
        (
            call(&|request| request.server = "a\nb".to_owned()),
            "server: server: character 1 is a control character",
        ),
        (call(&|request| request.server = "x".repeat(257)), "server has 257 bytes; at most 256"),
        (call(&|request| request.schemas[0].fingerprint ^= 1), "schemas[0]: fingerprint is"),
        (
            call(&|request| request.schemas[0].features[0].r#type = "text".to_owned()),
            "schemas[0]: feature \"amount\": type",
        ),
        (
            call(&|request| request.schemas = vec![request.schemas[0].clone(); 65]),
            "schemas: 65 of them; at most 64",
        ),
        (call(&|request| request.requests = vec![good("1"); 4097]), "requests: 4097 of them; at most 4096"),
        (call(&|request| request.requests[1].schema = 1), "requests[1]: schema is 1 and the call has 1"),
        (call(&|request| request.requests[1].decision = None), "requests[1]: decision is absent"),
        (decision(|decision| decision.decision_id.clear()), "decision_id: is empty"),
        (decision(|decision| decision.decision_id = "a\nb".to_owned()), "decision_id: byte 1"),
        (decision(|decision| decision.entity = "x".repeat(257)), "entity: 257 bytes"),
        (decision(|decision| decision.checkpoint = "x".repeat(257)), "checkpoint has 257 bytes"),
        (
            decision(|decision| decision.lane = "\u{1b}[31m".to_owned()),
            "lane: character 0 is a control character",
        ),
        (decision(|decision| decision.bundle = vec![1; 31]), "bundle has 31 bytes; a digest has 32"),
        (decision(|decision| decision.schema_fingerprint ^= 1), "schema_fingerprint"),
        (decision(|decision| _ = decision.features.pop()), "features: "),
        (decision(|decision| decision.features[1] = 3.0), "features: "),
        (decision(|decision| decision.features[0] = f32::INFINITY), "features: "),
        (decision(|decision| decision.score = f64::NAN), "score is NaN; no answer has that"),
        (decision(|decision| decision.margin = f64::INFINITY), "margin is inf"),
        (decision(|decision| decision.decided_at_us = -1), "decided_at_us is -1"),
        (decision(|decision| decision.eligible_mask = vec![1, 1]), "eligible_mask: "),
        (decision(|decision| decision.eligible_mask = vec![0xff]), "eligible_mask: "),
        (named(&["amount"]), "\"amount\" is a feature of the schema"),
        (named(&["x", "y", "x"]), "\"x\" occurs twice"),
        (named(&["x\u{0}"]), "others: a name: character 1 is a control character"),
    ] {
        let status = client.observe(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{words}: {status}");
        assert!(status.message().contains(words), "{words:?} is not in {:?}", status.message());
    }
    let large = call(&|request| request.requests[1].decision.as_mut().unwrap().entity = "x".repeat(17 << 20));
    assert_eq!(client.observe(large).await.unwrap_err().code(), Code::ResourceExhausted);
    let status = pool.server.status();
    assert!(
        status.observers.iter().all(|lane| lane.seen == 0) && status.senders.is_empty(),
        "nothing is half taken"
    );

    let mut unknown = call(&|_| ());
    unknown.requests[0].decision.as_mut().unwrap().checkpoint = "elsewhere".to_owned();
    let response = client.observe(unknown).await.unwrap().into_inner();
    assert_eq!(
        (response.accepted, response.dropped),
        (1, 1),
        "one that is not observed here does not cost the other"
    );
    let response = client.observe(ObserveRequest::default()).await.unwrap().into_inner();
    assert_eq!((response.accepted, response.dropped), (0, 0));
    pool.until("evaluated", |status| status.observers.iter().any(|lane| lane.evaluated == 1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_settings_name_the_field() {
    let directory = tempfile::tempdir().unwrap();
    for (pool, role, words) in [
        (json!({"address": "127.0.0.1"}), "live", "write host:port"),
        (json!({"address": "127.0.0.1:0"}), "live", "write host:port"),
        (json!({"address": "a:1", "queue": 0}), "live", "queue is 0"),
        (json!({"address": "a:1", "batch": 4097}), "live", "batch is 4097; use 1 to 4096"),
        (json!({"address": "a:1", "linger_ms": 0}), "live", "linger_ms is 0"),
        (json!({"address": "a:1", "adress": 1}), "live", "unknown field `adress`"),
        (json!({"address": "a:1"}), "shadow", "the server is a shadow pool itself"),
        (json!(null), "audit", "unknown variant `audit`"),
    ] {
        let mut config = config(directory.path());
        config["shadow_pool"] = pool;
        config["role"] = json!(role);
        let error = ServerConfig::from_json(&config.to_string()).unwrap_err().to_string();
        assert!(error.contains(words), "{words:?} is not in {error:?}");
    }
    let config = ServerConfig::from_json(&config(directory.path()).to_string()).unwrap();
    assert_eq!((config.role, config.shadow_pool), (Role::Live, None));
}
