//! Lane tables: refusals, the split of traffic, and swaps under load.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::*;
use scorer_core::budget::Unlimited;
use scorer_core::bundle::EvalScratch;
use scorer_core::bundle::testing::{self, assemble};
use scorer_proto::v1::{ScoreRequest, log_record};
use scorer_server::{LaneTable, LoadError, SwapError, UnloadError};

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_table_changes_nothing() {
    let setup = start();
    let (fraud, action) = (setup.fraud.as_str(), setup.action.as_str());
    let missing = format!("sha256:{}", "0".repeat(64));
    let at_fraud = |lanes: Vec<scorer_server::Lane>| {
        let mut table = table(2, fraud, action);
        table.checkpoints.insert(FRAUD.to_owned(), Some(lanes));
        table
    };
    let mut unknown = table(2, fraud, action);
    unknown.checkpoints.insert("nowhere".to_owned(), None);
    let mut left_out = table(2, fraud, action);
    left_out.checkpoints.remove(ACTION);
    let other_fallback = {
        // A catalogue without the checkpoint's fallback action.
        let mut recipe = testing::action_recipe("other", 0.0, serde_json::json!({"rule": "uniform"}));
        recipe.actions.as_mut().unwrap()[0]["id"] = serde_json::json!("renamed");
        let digest = load(&setup.server, setup.directory.path(), &recipe.build().unwrap());
        table(2, fraud, &digest)
    };
    for (table, words) in [
        (at_fraud(vec![lane("live", &missing, 1.0)]), "is not loaded; load it first"),
        (at_fraud(vec![lane("live", "fraud@live", 1.0)]), "is not a digest"),
        (at_fraud(vec![lane("live", action, 1.0)]), "is of kind action, the checkpoint of kind score"),
        (at_fraud(vec![lane("a", fraud, 0.5), lane("b", fraud, 0.4)]), "add up to 0.9"),
        (at_fraud(vec![lane("a", fraud, 0.5), lane("a", fraud, 0.5)]), "the name occurs twice"),
        (at_fraud(vec![lane("a", fraud, 1.5), lane("b", fraud, -0.5)]), "share 1.5 is not between 0 and 1"),
        (at_fraud(vec![lane("a", fraud, f64::NAN)]), "share NaN"),
        (at_fraud(vec![lane("", fraud, 1.0)]), "a name is 1 to 64"),
        (unknown, "checkpoint \"nowhere\" is not configured"),
        (left_out, "checkpoint \"action.authorise\" is left out"),
        (other_fallback, "fallback action \"3ds=none|exemption=none\" is not in the catalogue"),
        (table(0, fraud, action), "version 1 is active"),
    ] {
        let error = setup.server.swap(&table).unwrap_err().to_string();
        assert!(error.contains(words), "{words:?} is not in {error:?}");
    }
    assert!(matches!(LaneTable::from_json("{\"version\": 2}"), Err(SwapError::Table(_))));
    assert_eq!(setup.server.status().lane_table, 1);
    let response = setup.client().await.score(score("s", 1.0)).await.unwrap().into_inner();
    assert_eq!(response.served.unwrap().lane_table, 1);
    let tables: Vec<_> = setup
        .records()
        .into_iter()
        .filter_map(|record| match record {
            log_record::Record::LaneTable(table) => Some(table),
            _ => None,
        })
        .collect();
    assert_eq!(tables.len(), 1, "only an activated table is recorded");
    let recorded = LaneTable::from_json(&tables[0].table).unwrap();
    assert_eq!((tables[0].version, recorded.version), (1, 1));
    assert_eq!(recorded.checkpoints[FRAUD].as_ref().unwrap()[0].bundle, setup.fraud);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_version_is_ignored_or_refused() {
    let setup = start();
    setup.server.swap(&table(1, &setup.fraud, &setup.action)).unwrap();
    let mut other = table(1, &setup.fraud, &setup.action);
    other.checkpoints.insert(FRAUD.to_owned(), None);
    let error = setup.server.swap(&other).unwrap_err();
    assert_eq!(error, SwapError::Version { version: 1, current: 1 });
}

#[tokio::test(flavor = "multi_thread")]
async fn traffic_is_split_by_share_and_a_shopper_stays_in_a_lane() {
    let setup = start();
    let other = load(&setup.server, setup.directory.path(), &testing::score_files("other", 1.0));
    let mut split = table(2, &setup.fraud, &setup.action);
    let lanes = vec![lane("live", &setup.fraud, 0.8), lane("off", &other, 0.0), lane("canary", &other, 0.2)];
    split.checkpoints.insert(FRAUD.to_owned(), Some(lanes));
    setup.server.swap(&split).unwrap();
    let mut client = setup.client().await;
    let mut lane_of = async |id: &str, entity: &str| {
        let request = ScoreRequest { entity: entity.to_owned(), ..score(id, 1.0) };
        let served = client.score(request).await.unwrap().into_inner().served.unwrap();
        let expected = if served.lane == "canary" { &other } else { &setup.fraud };
        assert_eq!(&served.bundle, expected);
        served.lane
    };
    let mut counts: HashMap<String, u32> = HashMap::new();
    for number in 0..2000 {
        *counts.entry(lane_of(&format!("d{number}"), "").await).or_default() += 1;
    }
    assert!(!counts.contains_key("off"));
    // 2000 draws at 0.2: mean 400, deviation 18; 5 deviations.
    assert!((310..=490).contains(&counts["canary"]), "{counts:?}");
    let mut lanes = HashSet::new();
    for shopper in 0..50 {
        let first = lane_of("", &format!("shopper-{shopper}")).await;
        for _ in 0..3 {
            assert_eq!(lane_of("", &format!("shopper-{shopper}")).await, first);
        }
        lanes.insert(first);
    }
    assert_eq!(lanes.len(), 2, "not all shoppers in one lane");
}

/// Fault case 62.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn swaps_under_load_lose_no_request_and_mix_no_tables() {
    let setup = start();
    let names = ["zero", "one", "two"];
    // The answer of each bundle to the one request that is sent.
    let mut expected = HashMap::new();
    let mut digests = Vec::new();
    for (number, name) in names.into_iter().enumerate() {
        let files = testing::score_files(name, number as f32 * 0.5);
        let digest = load(&setup.server, setup.directory.path(), &files);
        let bundle = assemble(&files).unwrap();
        let out = bundle.score(&[250.0, 0.0, 0.0], &Unlimited, &mut EvalScratch::new(&bundle)).unwrap();
        expected.insert(digest.clone(), out.score.to_bits());
        digests.push(digest);
    }
    assert_eq!(expected.values().collect::<HashSet<_>>().len(), 3, "the bundles must differ");
    setup.server.swap(&table(2, &digests[0], &setup.action)).unwrap();

    let stop = Arc::new(AtomicBool::new(false));
    let sent = Arc::new(AtomicU64::new(0));
    let expected = Arc::new(expected);
    // The bundle of each table version.
    let tables = Arc::new(std::sync::Mutex::new(BTreeMap::from([(2, digests[0].clone())])));
    let mut senders = Vec::new();
    for sender in 0..4 {
        let mut client = setup.client().await;
        let (stop, sent, expected, tables) = (stop.clone(), sent.clone(), expected.clone(), tables.clone());
        senders.push(tokio::spawn(async move {
            let mut last = 0;
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                number += 1;
                let response = client.score(score(&format!("{sender}-{number}"), 250.0)).await.unwrap();
                let response = response.into_inner();
                let served = response.served.unwrap();
                assert_eq!(expected[&served.bundle], response.score.to_bits(), "one bundle per answer");
                assert_eq!(tables.lock().unwrap()[&served.lane_table], served.bundle, "one table per answer");
                assert!(served.lane_table >= last, "a later request is never answered by an earlier table");
                last = served.lane_table;
                sent.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    for version in 3..=60 {
        let digest = &digests[version as usize % 3];
        tables.lock().unwrap().insert(version, digest.clone());
        setup.server.swap(&table(version, digest, &setup.action)).unwrap();
        // Every table gets traffic.
        let target = sent.load(Ordering::Relaxed) + 10;
        let wait = patience("ten requests are sent");
        while sent.load(Ordering::Relaxed) < target {
            wait();
            assert!(senders.iter().all(|sender| !sender.is_finished()), "a sender failed");
            tokio::task::yield_now().await;
        }
    }
    stop.store(true, Ordering::Relaxed);
    for sender in senders {
        sender.await.unwrap();
    }
    let decisions = setup.decisions();
    assert_eq!(decisions.len() as u64, sent.load(Ordering::Relaxed));
    let tables = tables.lock().unwrap();
    for decision in decisions {
        let digest = format!(
            "sha256:{}",
            decision.bundle.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        );
        assert_eq!(tables[&decision.lane_table], digest);
        assert_eq!(expected[&digest], decision.score.to_bits());
    }
}

/// Fault case 70.
#[tokio::test(flavor = "multi_thread")]
async fn an_unloaded_bundle_is_freed_by_the_reaper() {
    let setup = start();
    let mut client = setup.client().await;
    client.score(score("s", 1.0)).await.unwrap();
    let error = setup.server.unload(&setup.fraud).unwrap_err();
    assert!(matches!(error, UnloadError::InUse { checkpoint, .. } if checkpoint == FRAUD));
    let other = load(&setup.server, setup.directory.path(), &testing::score_files("other", 1.0));
    setup.server.swap(&table(2, &other, &setup.action)).unwrap();
    setup.server.unload(&setup.fraud).unwrap();
    setup.server.unload(&setup.fraud).expect("a second unload must succeed");
    client.score(score("t", 1.0)).await.unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    let freed = loop {
        assert!(Instant::now() < deadline, "never freed");
        if let Some(event) = setup.events().into_iter().find(|event| event["event"] == "bundle_freed") {
            break event;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!(freed["bundle"], setup.fraud.as_str());
    assert_eq!(freed["thread"], "scorer-reaper");
    assert_eq!(setup.server.status().bundles.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_bundle_is_refused_and_the_live_one_continues_to_answer() {
    let setup = start();
    let (path, digest) = write(setup.directory.path(), &testing::score_files("next", 0.25));
    let report = setup.server.load(&path, &digest).unwrap();
    assert_eq!((&*report.name, report.kind, report.already_loaded), ("next", "score", false));
    assert!(report.bytes > 0 && report.load_ms > 0.0);
    assert!(setup.server.load(&path, &digest).unwrap().already_loaded);
    setup.server.unload(&digest).unwrap();

    let error = setup.server.load(&path, &setup.fraud).err();
    assert!(error.is_none(), "a digest in memory is not read again");
    let other = format!("sha256:{}", "1".repeat(64));
    let error = setup.server.load(&path, &other).unwrap_err().to_string();
    assert!(error.contains(&digest) && error.contains(&other), "{error}");
    for name in std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()) {
        let good = std::fs::read(&name).unwrap();
        let mut bad = good.clone();
        let middle = bad.len() / 2;
        bad[middle] ^= 1;
        std::fs::write(&name, &bad).unwrap();
        let error = setup.server.load(&path, &digest).unwrap_err();
        assert!(matches!(error, LoadError::Bundle { .. }), "{}: {error}", name.display());
        std::fs::write(&name, &good[..middle]).unwrap();
        assert!(setup.server.load(&path, &digest).is_err(), "{} truncated", name.display());
        std::fs::write(&name, &good).unwrap();
    }
    let error = setup.server.load(&path, "next@live").unwrap_err();
    assert!(matches!(error, LoadError::Digest { .. }));
    setup.client().await.score(score("s", 1.0)).await.unwrap();
    setup.server.load(&path, &digest).unwrap();
}
