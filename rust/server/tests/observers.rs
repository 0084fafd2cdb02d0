//! Failing observe lanes, and their life cycle: they change nothing except their own counters.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here is a failed test")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::*;
use scorer_core::bundle::testing;
use scorer_proto::v1::{ScoreResponse, SelectActionResponse, Served};
use scorer_server::{LaneFault, LoadError, LoadFor, UnloadError};
use serde_json::json;

/// Returns the parts of an answer that must not depend on observe lanes: all except times and the table's
/// version.
fn steady(served: &mut Option<Served>) {
    let served = served.as_mut().unwrap();
    (served.data_load_us, served.exec_us, served.lane_table) = (0, 0, 0);
}

/// Returns the answers to the same requests with the given lanes at both checkpoints.
async fn answers(faults: &[(&str, Option<LaneFault>)]) -> (Vec<ScoreResponse>, Vec<SelectActionResponse>) {
    let setup = start_with(|config| config["observe_queue"] = json!(8));
    let mut table = table(2, &setup.fraud, &setup.action);
    for (checkpoint, bundle) in [(FRAUD, &setup.fraud), (ACTION, &setup.action)] {
        for (lane, fault) in faults {
            setup.server.inject_lane(checkpoint, lane, fault.clone());
            table.observe.entry(checkpoint.to_owned()).or_default().push(observer(lane, bundle, 1.0));
        }
    }
    setup.server.swap(&table).unwrap();
    let mut client = setup.client().await;
    let (mut scores, mut selections) = (Vec::new(), Vec::new());
    for number in 0..300 {
        let mut scored =
            client.score(score(&format!("s{number}"), f64::from(number))).await.unwrap().into_inner();
        steady(&mut scored.served);
        scores.push(scored);
        let mut request = select(&format!("a{number}"), f64::from(number));
        request.include_pmf = true;
        let mut selected = client.select_action(request).await.unwrap().into_inner();
        steady(&mut selected.served);
        selections.push(selected);
    }
    for (lane, _) in faults {
        for checkpoint in [FRAUD, ACTION] {
            let status = setup.server.status();
            let counts = status
                .observers
                .iter()
                .find(|each| each.lane == *lane && each.checkpoint == checkpoint)
                .unwrap();
            assert_eq!((counts.seen, counts.taken), (300, 300), "{counts:?}");
            setup.server.inject_lane(checkpoint, lane, None);
        }
    }
    assert_eq!(setup.server.status().panics, 0, "a panic of a lane must affect only that lane");
    (scores, selections)
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_have_the_same_bits_with_any_observe_lanes() {
    let alone = answers(&[]).await;
    let faults = [
        ("well", None),
        ("loops", Some(LaneFault::Loop)),
        ("panics", Some(LaneFault::Panic)),
        ("nan", Some(LaneFault::NotFinite)),
        ("slow", Some(LaneFault::Slow(20_000))),
    ];
    let observed = answers(&faults).await;
    assert_eq!(alone, observed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_that_loops_is_stuck_and_delays_no_request() {
    let setup = start_with(|config| config["observe_queue"] = json!(16));
    setup.server.inject_lane(FRAUD, "loops", Some(LaneFault::Loop));
    let lanes = vec![observer("loops", &setup.fraud, 1.0), observer("well", &setup.fraud, 1.0)];
    setup.server.swap(&observed(&setup, 2, FRAUD, lanes)).unwrap();
    let mut client = setup.client().await;
    let mut sent = 0;
    // Enough requests to fill its queue, then more until the lane is reported as stuck.
    let until = Instant::now() + Duration::from_secs(300);
    loop {
        client.score(score("", 1.0)).await.unwrap();
        sent += 1;
        status(&setup, "well", |lane| lane.evaluated == sent).await;
        let counts = status(&setup, "loops", |_| true).await;
        if counts.stuck && sent > 100 {
            break;
        }
        assert!(Instant::now() < until, "{counts:?}");
    }
    let counts = status(&setup, "loops", |lane| lane.cpu_seconds > 0.0).await;
    assert_eq!((counts.evaluated, counts.dropped + counts.waiting + 1), (0, counts.taken), "{counts:?}");
    let well = status(&setup, "well", |lane| lane.taken == sent).await;
    assert!(!well.stuck && well.dropped == 0, "{well:?}");
    let events = setup.events();
    assert!(
        events.iter().any(|event| event["event"] == "observer_stuck" && event["lane"] == "loops"),
        "{events:?}"
    );
    let text = setup.metrics().await;
    for line in [
        r#"scorer_observe_stuck{checkpoint="fraud.checkout",lane="loops"} 1"#,
        r#"scorer_observe_stuck{checkpoint="fraud.checkout",lane="well"} 0"#,
        r#"scorer_observe_requests_total{checkpoint="fraud.checkout",lane="loops",outcome="scored"} 0"#,
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
    // The evaluation returns, and the waiting requests are evaluated.
    setup.server.inject_lane(FRAUD, "loops", None);
    let counts = status(&setup, "loops", |lane| !lane.stuck && lane.waiting == 0).await;
    assert_eq!(counts.evaluated + counts.dropped, counts.taken, "{counts:?}");
    // The lane is stuck again, and the server stops without waiting for it. All other records are in the log.
    setup.server.inject_lane(FRAUD, "loops", Some(LaneFault::Loop));
    client.score(score("last", 1.0)).await.unwrap();
    status(&setup, "loops", |lane| lane.stuck).await;
    // A drain that waits for the lane would never end.
    let observations = observations(&setup);
    assert!(observations.contains_key(&("well".to_owned(), "last".to_owned())));
    assert!(!observations.contains_key(&("loops".to_owned(), "last".to_owned())));
    setup.server.inject_lane(FRAUD, "loops", None);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_observations_are_counted_by_reason_and_recorded() {
    let setup = start();
    let lanes = ["panics", "nan", "well"].map(|name| observer(name, &setup.fraud, 1.0)).to_vec();
    setup.server.inject_lane(FRAUD, "panics", Some(LaneFault::Panic));
    setup.server.inject_lane(FRAUD, "nan", Some(LaneFault::NotFinite));
    setup.server.swap(&observed(&setup, 2, FRAUD, lanes)).unwrap();
    let mut client = setup.client().await;
    for number in 0..40 {
        let answer = client.score(score(&format!("d{number}"), 1.0)).await.unwrap().into_inner();
        // The bundle that panics in an observe lane is also the live one. Its breaker does not count these
        // panics.
        assert!(answer.served.unwrap().fallback_reason.is_empty());
    }
    for (lane, reason) in [("panics", "panic"), ("nan", "non_finite")] {
        let counts = status(&setup, lane, |lane| lane.evaluated == 40).await;
        let expected: BTreeMap<_, _> = ["panic", "non_finite", "features", "error"]
            .map(|name| (name, if name == reason { 40 } else { 0 }))
            .into();
        assert_eq!(counts.failed, expected);
    }
    status(&setup, "well", |lane| lane.evaluated == 40).await;
    let text = setup.metrics().await;
    assert!(text.contains(
        r#"scorer_observe_requests_total{checkpoint="fraud.checkout",lane="panics",outcome="panic"} 40"#
    ));
    let panics = setup.events().iter().filter(|event| event["event"] == "observer_panicked").count();
    assert_eq!(panics, 6, "the first one, and then less and less frequently");
    for ((lane, _), observation) in &observations(&setup) {
        let own = observation.decision.as_ref().unwrap();
        let (error, scored) = match lane.as_str() {
            "panics" => ("panic", false),
            "nan" => ("non_finite", false),
            _ => ("", true),
        };
        assert_eq!((observation.error.as_str(), own.score > 0.0), (error, scored));
        assert!(observation.live_score > 0.0 && own.features.len() == 3);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kept_lanes_keep_their_counts_and_new_ones_start_at_zero() {
    let setup = start();
    let other = load(&setup.server, setup.directory.path(), &testing::score_files("other", 1.0));
    let stays = observer("stays", &other, 1.0);
    let goes = observer("changes", &other, 1.0);
    setup.server.swap(&observed(&setup, 2, FRAUD, vec![stays.clone(), goes.clone()])).unwrap();
    let mut client = setup.client().await;
    let mut send = async |count: u32| {
        for _ in 0..count {
            client.score(score("", 1.0)).await.unwrap();
        }
    };
    send(10).await;
    status(&setup, "changes", |lane| lane.evaluated == 10).await;
    // A swap of answer lanes keeps both lanes. A lane with another sampling rate is a new lane.
    let mut table = observed(&setup, 3, FRAUD, vec![stays.clone(), goes.clone()]);
    table.checkpoints.insert(FRAUD.to_owned(), Some(vec![lane("live", &other, 1.0)]));
    setup.server.swap(&table).unwrap();
    send(10).await;
    status(&setup, "changes", |lane| lane.evaluated == 20).await;
    let mut changed = goes.clone();
    changed.sample = 0.999_999;
    setup.server.swap(&observed(&setup, 4, FRAUD, vec![changed, stays.clone()])).unwrap();
    send(10).await;
    status(&setup, "stays", |lane| lane.evaluated == 30 && lane.seen == 30).await;
    status(&setup, "changes", |lane| lane.seen == 10).await;
    // The previous bundle no longer answers, but it cannot be unloaded while a lane observes it.
    let mut table = observed(&setup, 5, FRAUD, vec![stays]);
    table.previous.insert(FRAUD.to_owned(), other.clone());
    setup.server.swap(&table).unwrap();
    let error = setup.server.unload(&other).unwrap_err();
    let expected = UnloadError::Observes {
        digest: other.clone(),
        checkpoint: FRAUD.to_owned(),
        lane: "stays".to_owned(),
    };
    assert_eq!(error, expected);
    assert!(error.to_string().contains("end that observe lane first"));
    send(10).await;
    status(&setup, "stays", |lane| lane.evaluated == 40).await;
    // When the lane is removed, the reaper frees the bundle.
    setup.server.swap(&observed(&setup, 6, FRAUD, Vec::new())).unwrap();
    assert!(setup.server.status().observers.is_empty());
    setup.server.unload(&other).unwrap();
    let until = Instant::now() + Duration::from_secs(300);
    let freed = loop {
        let freed = setup
            .events()
            .into_iter()
            .find(|event| event["event"] == "bundle_freed" && event["bundle"] == other);
        if let Some(freed) = freed {
            break freed;
        }
        assert!(Instant::now() < until, "the bundle was not freed");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert_eq!(freed["thread"], "scorer-reaper");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_for_an_observe_lane_is_not_compared_with_the_live_one() {
    let setup = start_with(|config| config["checkpoints"][FRAUD]["warmup_max_ratio"] = json!(1e-9));
    let (path, digest) = write(setup.directory.path(), &testing::score_files("other", 1.0));
    // Without a checkpoint, there is neither an SLA nor a live bundle to compare with.
    setup.server.load_for(&path, &digest, &LoadFor::default()).unwrap();
    setup.server.swap(&observed(&setup, 2, FRAUD, vec![observer("shadow", &digest, 1.0)])).unwrap();
    // To answer, it must be compared, although it is in memory. An evaluation takes microseconds, which
    // exceeds the SLA.
    let (slow, sla) = (LoadFor { checkpoint: Some(FRAUD.to_owned()), ..LoadFor::default() }, 1e-6);
    let tight = start_with(|config| config["checkpoints"][FRAUD]["p99_ms"] = json!(sla));
    let (path, digest) = write(tight.directory.path(), &testing::score_files("other", 1.0));
    tight.server.load_for(&path, &digest, &LoadFor::default()).unwrap();
    let error = tight.server.load_for(&path, &digest, &slow).unwrap_err();
    assert!(matches!(error, LoadError::Slower { .. } | LoadError::TooSlow { .. }), "{error}");
    // A bundle that has answered is accepted again without a comparison.
    tight.server.load_for(Path::new("nowhere"), &tight.fraud, &slow).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_change_under_load_without_an_effect_on_answers() {
    let setup = start();
    let other = load(&setup.server, setup.directory.path(), &testing::score_files("other", 1.0));
    let stop = Arc::new(AtomicBool::new(false));
    let mut senders = Vec::new();
    for _ in 0..3 {
        let (mut client, stop) = (setup.client().await, Arc::clone(&stop));
        senders.push(tokio::spawn(async move {
            let mut sent = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                let answer = client.score(score("", 250.0)).await.unwrap().into_inner();
                assert!(answer.served.unwrap().fallback_reason.is_empty());
                sent += 1;
            }
            sent
        }));
    }
    for version in 2..80 {
        let kept = observer("kept", &other, 1.0);
        let mut lanes = vec![kept];
        if version % 2 == 0 {
            lanes.push(observer(&format!("v{version}"), &setup.fraud, 0.5));
        }
        setup.server.swap(&observed(&setup, version, FRAUD, lanes)).unwrap();
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    stop.store(true, Ordering::Relaxed);
    let mut sent = 0;
    for sender in senders {
        sent += sender.await.unwrap();
    }
    let counts = status(&setup, "kept", |lane| lane.evaluated + lane.dropped + lane.shed == lane.taken).await;
    assert!(counts.seen <= sent && counts.seen > 0);
    assert_eq!(setup.server.status().observers.len(), 1);
    let observations = observations(&setup);
    let kept = observations.keys().filter(|(lane, _)| lane == "kept").count() as u64;
    assert_eq!(kept, counts.evaluated - counts.unlogged);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_log_lanes_still_run_and_count() {
    let setup = start_with(|config| config["log"] = json!(null));
    setup.server.swap(&observed(&setup, 2, FRAUD, vec![observer("shadow", &setup.fraud, 1.0)])).unwrap();
    let mut client = setup.client().await;
    for _ in 0..10 {
        client.score(score("", 1.0)).await.unwrap();
    }
    let counts = status(&setup, "shadow", |lane| lane.evaluated == 10).await;
    assert_eq!(counts.unlogged, 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn under_pressure_lanes_stop_first() {
    let setup = start();
    setup.server.swap(&observed(&setup, 2, FRAUD, vec![observer("shadow", &setup.fraud, 1.0)])).unwrap();
    let mut client = setup.client().await;
    // The predicted cost of each row is most of a second of two threads, so the demand exceeds the capacity
    // at once.
    setup.server.assume_cost(FRAUD, Duration::from_millis(700));
    let until = Instant::now() + Duration::from_secs(300);
    loop {
        client.score(score("", 1.0)).await.unwrap();
        let counts = status(&setup, "shadow", |_| true).await;
        if counts.shed > 0 {
            break;
        }
        assert!(Instant::now() < until, "{counts:?}");
    }
}
