//! Observe lanes that misbehave, and their life: whatever they do changes nothing but their own counters.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here is a failed test")]

mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use scorer_core::bundle::testing;
use scorer_proto::v1::{ScoreResponse, SelectActionResponse, Served};
use scorer_server::{LaneFault, LoadError, LoadFor, UnloadError};
use serde_json::json;
use support::*;

/// What of an answer must not depend on who observes: all of it but times and the table's number.
fn steady(served: &mut Option<Served>) {
    let served = served.as_mut().unwrap();
    (served.data_load_us, served.exec_us, served.lane_table) = (0, 0, 0);
}

/// Answers to the same requests; the lanes at both checkpoints are as given.
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
    assert_eq!(setup.server.status().panics, 0, "a lane's panic is its own");
    (scores, selections)
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_the_same_to_the_bit_whoever_observes() {
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
async fn a_lane_that_loops_is_stuck_and_nobody_waits_for_it() {
    let setup = start_with(|config| config["observe_queue"] = json!(16));
    setup.server.inject_lane(FRAUD, "loops", Some(LaneFault::Loop));
    let lanes = vec![observer("loops", &setup.fraud, 1.0), observer("well", &setup.fraud, 1.0)];
    setup.server.swap(&observed(&setup, 2, FRAUD, lanes)).unwrap();
    let mut client = setup.client().await;
    let mut sent = 0;
    // Enough to fill its queue, then whatever comes until it is found out.
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
    // It comes back, and what waited is evaluated.
    setup.server.inject_lane(FRAUD, "loops", None);
    let counts = status(&setup, "loops", |lane| !lane.stuck && lane.waiting == 0).await;
    assert_eq!(counts.evaluated + counts.dropped, counts.taken, "{counts:?}");
    // Again, and now the server goes: without waiting for it, and with everything else on record.
    setup.server.inject_lane(FRAUD, "loops", Some(LaneFault::Loop));
    client.score(score("last", 1.0)).await.unwrap();
    status(&setup, "loops", |lane| lane.stuck).await;
    // A drain that waited for it would never end.
    let observations = observations(&setup);
    assert!(observations.contains_key(&("well".to_owned(), "last".to_owned())));
    assert!(!observations.contains_key(&("loops".to_owned(), "last".to_owned())));
    setup.server.inject_lane(FRAUD, "loops", None);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_lane_cannot_do_is_counted_by_reason_and_on_record() {
    let setup = start();
    let lanes = ["panics", "nan", "well"].map(|name| observer(name, &setup.fraud, 1.0)).to_vec();
    setup.server.inject_lane(FRAUD, "panics", Some(LaneFault::Panic));
    setup.server.inject_lane(FRAUD, "nan", Some(LaneFault::NotFinite));
    setup.server.swap(&observed(&setup, 2, FRAUD, lanes)).unwrap();
    let mut client = setup.client().await;
    for number in 0..40 {
        let answer = client.score(score(&format!("d{number}"), 1.0)).await.unwrap().into_inner();
        // The bundle that panics as an observer is the one that answers: its breaker hears nothing of it.
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
    let told = setup.events().iter().filter(|event| event["event"] == "observer_panicked").count();
    assert_eq!(told, 6, "the first, and then ever more seldom");
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
async fn lanes_that_stay_keep_their_counts_and_others_begin_anew() {
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
    // A swap of what answers keeps both; another sample is another lane.
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
    // Observe lanes outlive the bundle before being let go, which no lane answers with any more.
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
    // Without the lane it goes, and the reaper frees it.
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
async fn a_bundle_that_is_to_observe_is_not_compared_with_the_live_one() {
    let setup = start_with(|config| config["checkpoints"][FRAUD]["warmup_max_ratio"] = json!(1e-9));
    let (path, digest) = write(setup.directory.path(), &testing::score_files("other", 1.0));
    // No checkpoint: no SLA and no live bundle to compare with.
    setup.server.load_for(&path, &digest, &LoadFor::default()).unwrap();
    setup.server.swap(&observed(&setup, 2, FRAUD, vec![observer("shadow", &digest, 1.0)])).unwrap();
    // To answer it has to be, although it is in memory. One evaluation takes microseconds, the SLA is less.
    let (slow, sla) = (LoadFor { checkpoint: Some(FRAUD.to_owned()), ..LoadFor::default() }, 1e-6);
    let tight = start_with(|config| config["checkpoints"][FRAUD]["p99_ms"] = json!(sla));
    let (path, digest) = write(tight.directory.path(), &testing::score_files("other", 1.0));
    tight.server.load_for(&path, &digest, &LoadFor::default()).unwrap();
    let error = tight.server.load_for(&path, &digest, &slow).unwrap_err();
    assert!(matches!(error, LoadError::Slower { .. } | LoadError::TooSlow { .. }), "{error}");
    // What has answered is taken back as it is.
    tight.server.load_for(Path::new("nowhere"), &tight.fraud, &slow).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_come_and_go_under_load_and_answers_do_not_notice() {
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
    // Each row is believed to take most of a second of two threads: demand is beyond the capacity at once.
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
