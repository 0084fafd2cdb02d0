//! Operation of a server: health, reflection, metrics, drain, restarts.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod support;

use std::sync::{Arc, Barrier};
use std::time::Duration;

use scorer_core::bundle::testing;
use scorer_proto::v1::NoopRequest;
use scorer_server::{Fault, LaneTable, LoadError, Server, ServerConfig, SwapError};
use serde_json::json;
use support::*;
use tokio_stream::StreamExt as _;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

fn check(service: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: service.to_owned() }
}

fn idle() -> (Server, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let config = ServerConfig::from_json(&config(directory.path()).to_string()).unwrap();
    (Server::start(config).unwrap(), directory)
}

#[tokio::test(flavor = "multi_thread")]
async fn health_follows_the_lane_table() {
    let (server, directory) = idle();
    let mut health = HealthClient::new(channel(&server).await);
    let metrics = server.addresses().metrics.clone().unwrap();
    let services = ["", "scorer.v1.ScoringService", FRAUD, ACTION];
    let mut expect = async |expected: [bool; 4]| {
        for (service, serving) in services.into_iter().zip(expected) {
            let status = health.check(check(service)).await.unwrap().into_inner().status();
            assert_eq!(status == ServingStatus::Serving, serving, "{service:?}");
        }
        let (ready, _) = get(&metrics, "/ready").await;
        assert_eq!(ready == 200, expected[0]);
        assert_eq!(get(&metrics, "/live").await.0, 200);
    };
    expect([false; 4]).await;
    assert_eq!((server.status().state, server.status().ready_after_ms), ("NOT_SERVING", 0.0));
    let fraud = load(&server, directory.path(), &testing::score_files("fraud", 0.0));
    let action = load(&server, directory.path(), &testing::action_files("action", 0.0));
    let mut half = table(1, &fraud, &action);
    half.checkpoints.insert(ACTION.to_owned(), None);
    server.swap(&half).unwrap();
    expect([false, false, true, false]).await;
    server.swap(&table(2, &fraud, &action)).unwrap();
    expect([true; 4]).await;
    assert_eq!(server.status().state, "SERVING");
    assert!(server.status().ready_after_ms > 0.0);
    let status = HealthClient::new(channel(&server).await).check(check("nope")).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_health_watch_reports_every_change_and_does_not_delay_the_drain() {
    let (server, directory) = idle();
    let mut health = HealthClient::new(channel(&server).await);
    let mut watch = health.watch(check("")).await.unwrap().into_inner();
    let mut next = async || watch.next().await.map(|status| status.unwrap().status());
    assert_eq!(next().await, Some(ServingStatus::NotServing));
    let fraud = load(&server, directory.path(), &testing::score_files("fraud", 0.0));
    let action = load(&server, directory.path(), &testing::action_files("action", 0.0));
    server.swap(&table(1, &fraud, &action)).unwrap();
    assert_eq!(next().await, Some(ServingStatus::Serving));
    let server = Arc::new(server);
    let drained = tokio::task::spawn_blocking({
        let server = Arc::clone(&server);
        move || server.drain(Duration::from_secs(30))
    });
    assert_eq!(next().await, Some(ServingStatus::NotServing));
    assert_eq!(next().await, None);
    drained.await.unwrap();
    let stopped = server.events().into_iter().find(|line| line.contains("\"stopped\"")).unwrap();
    assert!(stopped.contains("\"complete\":true"), "{stopped}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reflection_lists_the_services_in_both_versions() {
    use tonic_reflection::pb::{v1, v1alpha};
    let (server, _directory) = idle();
    let channel = channel(&server).await;

    let request = v1::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(v1::server_reflection_request::MessageRequest::ListServices(String::new())),
    };
    let mut client = v1::server_reflection_client::ServerReflectionClient::new(channel.clone());
    let mut replies = client.server_reflection_info(tokio_stream::once(request)).await.unwrap().into_inner();
    let reply = replies.next().await.unwrap().unwrap().message_response.unwrap();
    let v1::server_reflection_response::MessageResponse::ListServicesResponse(list) = reply else { panic!() };
    let mut names: Vec<_> = list.service.into_iter().map(|service| service.name).collect();
    names.sort();
    assert_eq!(
        names,
        [
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "inference.GRPCInferenceService",
            "scorer.v1.ScoringService",
        ]
    );

    let symbol = "scorer.v1.ScoringService".to_owned();
    let request = v1alpha::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(v1alpha::server_reflection_request::MessageRequest::FileContainingSymbol(
            symbol,
        )),
    };
    let mut client = v1alpha::server_reflection_client::ServerReflectionClient::new(channel);
    let mut replies = client.server_reflection_info(tokio_stream::once(request)).await.unwrap().into_inner();
    let reply = replies.next().await.unwrap().unwrap().message_response.unwrap();
    let v1alpha::server_reflection_response::MessageResponse::FileDescriptorResponse(file) = reply else {
        panic!()
    };
    assert!(!file.file_descriptor_proto.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_requests_and_contain_no_ids() {
    let setup = start();
    let mut client = setup.client().await;
    for number in 0..5 {
        client.score(score(&format!("secret-{number}"), 1.0)).await.unwrap();
    }
    client.select_action(select("secret", 1.0)).await.unwrap();
    client.select_action(select("secret", 1.0)).await.unwrap();
    client.score(score("", -1.0)).await.unwrap_err();
    let mut unknown = score("", 1.0);
    unknown.checkpoint = "secret-checkpoint".to_owned();
    client.score(unknown).await.unwrap_err();
    // A request is counted when its reply has been sent, which the client may detect slightly earlier.
    eventually("no request is in flight", || setup.server.status().inflight == 0).await;
    let page = setup.metrics().await;
    assert!(!page.contains("secret"), "{page}");
    assert!(page.ends_with("# EOF\n"));
    let mut values = std::collections::HashMap::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        let value: f64 = value.parse().unwrap();
        assert!(values.insert(name, value).is_none(), "{name} twice");
    }
    let of = |name: &str| *values.get(name).unwrap_or_else(|| panic!("{name} is not in {page}"));
    let requests = |method: &str, checkpoint: &str, code: &str| {
        of(&format!(
            "scorer_requests_total{{method=\"{method}\",checkpoint=\"{checkpoint}\",code=\"{code}\"}}"
        ))
    };
    assert_eq!(requests("Score", FRAUD, "OK"), 5.0);
    assert_eq!(requests("Score", FRAUD, "INVALID_ARGUMENT"), 1.0);
    assert_eq!(requests("Score", "", "NOT_FOUND"), 1.0);
    assert_eq!(requests("SelectAction", ACTION, "OK"), 2.0);
    let latency = |suffix: &str, le: &str| {
        of(&format!("scorer_request_seconds{suffix}{{{le}method=\"Score\",checkpoint=\"{FRAUD}\"}}"))
    };
    assert_eq!(latency("_count", ""), 6.0);
    assert_eq!(latency("_bucket", "le=\"+Inf\","), 6.0);
    assert!(latency("_bucket", "le=\"10.0\",") <= 6.0, "the SLA is an edge");
    assert!(latency("_bucket", "le=\"15.0\",") <= 6.0, "1.5 times the SLA is an edge");
    let delays =
        |checkpoint: &str| of(&format!("scorer_queue_delay_seconds_count{{checkpoint=\"{checkpoint}\"}}"));
    assert_eq!([FRAUD, ACTION, ""].map(delays), [6.0, 2.0, 1.0]);
    let answers =
        |by: &str| of(&format!("scorer_answer_seconds_count{{checkpoint=\"{FRAUD}\",by=\"{by}\"}}"));
    assert_eq!(["model", "fallback", "refused"].map(answers), [5.0, 0.0, 1.0]);
    let under_sla = of(&format!("scorer_sla_requests_total{{checkpoint=\"{FRAUD}\"}}"));
    assert_eq!(under_sla, 5.0, "invalid requests are not under the SLA");
    assert_eq!(of("scorer_requests_arrived_total"), 9.0);
    assert_eq!((of("scorer_requests_replied_total"), of("scorer_requests_cancelled_total")), (9.0, 0.0));
    assert_eq!(of(&format!("scorer_decisions_total{{checkpoint=\"{ACTION}\"}}")), 1.0);
    assert_eq!(
        (of("scorer_replays_total"), of("scorer_swaps_total"), of("scorer_loads_total")),
        (1.0, 1.0, 2.0)
    );
    assert_eq!((of("scorer_inflight"), of("scorer_ready"), of("scorer_lane_table")), (0.0, 1.0, 1.0));
    assert_eq!(of("scorer_log_available"), 1.0);
    let (status, _) = get(setup.server.addresses().metrics.as_deref().unwrap(), "/nope").await;
    assert_eq!(status, 404);
}

/// Status and metrics report the windows of the last tick of the watchdog's thread.
#[tokio::test(flavor = "multi_thread")]
async fn the_burn_rate_is_updated_by_the_clock_of_the_server() {
    let setup = start_with(|config| {
        config["checkpoints"][FRAUD].as_object_mut().unwrap().remove("fallback");
    });
    setup.server.inject("defect", Fault::Panic);
    setup.client().await.score(score("defect", 1.0)).await.unwrap_err();
    let burn_rate = || setup.server.status().promises[FRAUD].burn_rate_1h;
    eventually("the failed request to be in the windows", || burn_rate() > 0.0).await;
}

/// `docs/metrics.md` lists exactly the metrics of `/metrics`, with their types.
#[tokio::test(flavor = "multi_thread")]
async fn every_metric_is_documented_and_every_documented_metric_exists() {
    // There is neither a pool nor a collector, but the metrics of the connections to them exist.
    let setup = start_with(|config| {
        config["shadow_pool"] = json!({"address": "127.0.0.1:1"});
        config["tracing"] = json!({"endpoint": "127.0.0.1:1"});
    });
    let lanes = vec![observer("aa", &setup.fraud, 1.0)];
    setup.server.swap(&observed(&setup, 2, FRAUD, lanes)).unwrap();
    setup.client().await.score(score("s", 1.0)).await.unwrap();
    let page = setup.metrics().await;
    let found: std::collections::BTreeMap<&str, &str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .map(|line| line.split_once(' ').unwrap())
        .collect();
    let documented: std::collections::BTreeMap<&str, &str> = include_str!("../../../docs/metrics.md")
        .lines()
        .filter_map(|line| line.strip_prefix("| `scorer_"))
        .map(|line| {
            let mut cells = line.split('|').map(str::trim);
            (cells.next().unwrap().trim_end_matches('`'), cells.next().unwrap())
        })
        .collect();
    let mut prefixed: std::collections::BTreeMap<String, &str> =
        documented.iter().map(|(name, kind)| (format!("scorer_{name}"), *kind)).collect();
    let found: std::collections::BTreeMap<String, &str> =
        found.into_iter().map(|(name, kind)| (name.to_owned(), kind)).collect();
    // Only a server of the shadow pool has this one: tests/shadow.rs.
    assert!(prefixed.remove("scorer_shadow_received").is_some());
    // Only servers with TLS or identity have these: tests/identity.rs.
    for name in [
        "calls_refused",
        "handshakes_failed",
        "identity_files_outdated",
        "identity_files_read",
        "jwt_keys_age_seconds",
        "jwt_keys_usable",
        "jwt_verified",
        "tls_certificate_expires_timestamp_seconds",
    ] {
        assert!(prefixed.remove(&format!("scorer_{name}")).is_some(), "{name} is not documented");
    }
    // Log shipping and the feed of events are processes of their own, and only servers that read features from Redis have
    // the metrics of these reads: tests/unit/test_ship_shipper.py, tests/integration/test_feed_kafka.py and
    // tests/integration/test_feature_redis.py.
    for elsewhere in ["scorer_ship_", "scorer_feed_", "scorer_feature_redis_"] {
        let all = prefixed.len();
        prefixed.retain(|name, _| !name.starts_with(elsewhere));
        assert!(prefixed.len() < all, "the metrics {elsewhere}* are not documented");
    }
    assert_eq!(found, prefixed);
    // The labels of every sample equal those on the page.
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, rest)) = line.split_once('{') else { continue };
        let base = ["_total", "_bucket", "_count", "_sum"]
            .iter()
            .find_map(|end| name.strip_suffix(end))
            .unwrap_or(name);
        let row = include_str!("../../../docs/metrics.md")
            .lines()
            .find(|row| row.starts_with(&format!("| `{base}` |")))
            .unwrap_or_else(|| panic!("{base} has no row"));
        let labels = row.split('|').nth(3).unwrap();
        for label in rest.split('}').next().unwrap().split("\",").map(|pair| pair.split('=').next().unwrap())
        {
            assert!(
                label == "le" || labels.contains(&format!("`{label}`")),
                "{base}: label {label} is not documented"
            );
        }
    }
}

/// Fault case 53.
#[tokio::test(flavor = "multi_thread")]
async fn a_drain_answers_requests_in_flight_and_accepts_no_new_ones() {
    let setup = start();
    let address = setup.server.addresses().grpc[0].clone();
    let mut client = setup.client().await;
    let barrier = Arc::new(Barrier::new(2));
    setup.server.inject("slow", Fault::Meet(Arc::clone(&barrier)));
    let meet = |barrier: &Arc<Barrier>| {
        let barrier = Arc::clone(barrier);
        tokio::task::spawn_blocking(move || barrier.wait())
    };
    let slow = tokio::spawn(async move { client.select_action(select("slow", 250.0)).await });
    meet(&barrier).await.unwrap();
    let setup = Arc::new(setup);
    let draining = tokio::task::spawn_blocking({
        let setup = Arc::clone(&setup);
        move || setup.server.drain(Duration::from_secs(30))
    });
    // The listener is closed while the request is still being answered.
    let wait = patience("the listener is closed");
    while tokio::net::TcpStream::connect(&address).await.is_ok() {
        wait();
        tokio::task::yield_now().await;
    }
    assert_eq!(setup.server.status().state, "DRAINING");
    assert!(!draining.is_finished() && !slow.is_finished());
    meet(&barrier).await.unwrap();
    let answered = slow.await.unwrap().unwrap().into_inner();
    assert!(answered.logged);
    draining.await.unwrap();

    let table = LaneTable {
        version: 9,
        checkpoints: Default::default(),
        previous: Default::default(),
        observe: Default::default(),
    };
    assert_eq!(setup.server.swap(&table), Err(SwapError::Stopped));
    let error = setup.server.load(setup.directory.path(), &setup.fraud).unwrap_err();
    assert!(matches!(error, LoadError::Stopped));
    setup.server.drain(Duration::from_secs(1));
    let decisions = setup.decisions();
    assert_eq!(decisions.len(), 1);
    assert_eq!(decisions[0].propensity, answered.propensity);
}

/// Fault case 53.
#[tokio::test(flavor = "multi_thread")]
async fn a_drain_ends_in_time_despite_a_stuck_request() {
    let setup = start();
    let mut client = setup.client().await;
    let barrier = Arc::new(Barrier::new(2));
    setup.server.inject("stuck", Fault::Meet(Arc::clone(&barrier)));
    let stuck = tokio::spawn(async move { client.score(score("stuck", 1.0)).await });
    let met = Arc::clone(&barrier);
    tokio::task::spawn_blocking(move || met.wait()).await.unwrap();
    let setup = Arc::new(setup);
    let drained = Arc::clone(&setup);
    tokio::task::spawn_blocking(move || drained.server.drain(Duration::from_millis(50))).await.unwrap();
    let stopped = setup.events().into_iter().find(|event| event["event"] == "stopped").unwrap();
    assert_eq!((&stopped["complete"], &stopped["level"]), (&false.into(), &"warning".into()));
    assert!(stuck.await.unwrap().is_err());
    // Releases the stuck thread.
    tokio::task::spawn_blocking(move || barrier.wait()).await.unwrap();
}

/// Fault case 87.
#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_starts_and_stops_leak_no_resources() {
    let directory = tempfile::tempdir().unwrap();
    let config = ServerConfig::from_json(&config(directory.path()).to_string()).unwrap();
    let (path, digest) = write(directory.path(), &testing::score_files("fraud", 0.0));
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mut before = None;
    for round in 0..200 {
        let server = Server::start(config.clone()).unwrap();
        if round % 20 == 0 {
            server.load(&path, &digest).unwrap();
            Client::new(channel(&server).await).noop(NoopRequest::default()).await.unwrap();
        }
        match round % 3 {
            0 => server.drain(Duration::from_secs(5)),
            1 => drop(server),
            _ => {
                server.drain(Duration::ZERO);
                drop(server);
            }
        }
        if round == 20 {
            before = Some((threads(), files()));
        }
    }
    let (threads_before, files_before) = before.unwrap();
    // The connections of the client and the threads of the test vary by a few.
    assert!(threads() <= threads_before + 8, "{} threads, {threads_before} before", threads());
    assert!(files() <= files_before + 16, "{} files, {files_before} before", files());
}
