//! Loading and swapping bundles: refusals and their reasons, the effect on the live bundle, and the memory.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here is a failed test")]

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::*;
use scorer_core::budget::Unlimited;
use scorer_core::bundle::{EvalScratch, testing};
use scorer_core::policy::Mask;
use scorer_server::{LaneTable, LoadError, LoadFor};
use serde_json::{Value, json};

fn for_fraud() -> LoadFor {
    LoadFor { checkpoint: Some(FRAUD.to_owned()), ..LoadFor::default() }
}

/// Returns the current answer at the fraud checkpoint: bundle and score.
async fn answered(setup: &Setup) -> (String, f64) {
    let response = setup.client().await.score(score("", 250.0)).await.unwrap().into_inner();
    (response.served.unwrap().bundle, response.score)
}

fn next(setup: &Setup) -> (std::path::PathBuf, String) {
    write(setup.directory.path(), &testing::score_files("next", 0.5))
}

async fn refused_for(setup: &Setup, reason: &str) -> f64 {
    let page = setup.metrics().await;
    let name = format!("scorer_loads_refused_total{{reason=\"{reason}\"}} ");
    page.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
}

fn event(setup: &Setup, name: &str) -> Value {
    setup.events().into_iter().find(|event| event["event"] == name).unwrap()
}

/// Fault case 61.
#[tokio::test(flavor = "multi_thread")]
async fn a_candidate_slower_than_the_live_bundle_allows_is_refused_by_its_figures() {
    // An SLA of a thousandth of a millisecond is below every evaluation. No candidate is a thousand times
    // faster.
    let setup = start_with(|config| {
        config["checkpoints"][FRAUD]["warmup_max_ratio"] = 0.001.into();
        config["checkpoints"][FRAUD]["p99_ms"] = 0.00001.into();
    });
    let (path, digest) = next(&setup);
    let before = answered(&setup).await;
    let error = setup.server.load_for(&path, &digest, &for_fraud()).unwrap_err();
    assert!(
        matches!(error, LoadError::Slower { max_ratio: 0.001, p99_us, live_us, ratio, .. }
            if ratio > 0.001 && p99_us > 0.0 && live_us > 0.0),
        "{error}"
    );
    assert!(
        error.to_string().contains("times the live bundle's") && error.to_string().contains("--allow-slower")
    );
    assert_eq!(answered(&setup).await, before);
    assert_eq!(setup.server.status().bundles.len(), 2);
    assert_eq!(refused_for(&setup, "warm_up").await, 1.0);
    let reported = event(&setup, "bundle_refused");
    assert_eq!((&reported["reason"], &reported["bundle"]), (&"warm_up".into(), &digest.as_str().into()));

    // For a deliberate release, the comparison is waived, but the SLA is not.
    let allowed = LoadFor { allow_slower: true, ..for_fraud() };
    let error = setup.server.load_for(&path, &digest, &allowed).unwrap_err();
    assert!(matches!(error, LoadError::TooSlow { sla_ms: 0.00001, .. }), "{error}");
    // Without a checkpoint there is no SLA, so that the last known good table boots on a busy machine too.
    setup.server.load(&path, &digest).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slower_bundle_with_a_negligible_cost_is_accepted() {
    let setup = start_with(|config| {
        config["checkpoints"][FRAUD]["warmup_max_ratio"] = 0.001.into();
        config["checkpoints"][FRAUD]["p99_ms"] = 60000.into();
    });
    let (path, digest) = next(&setup);
    let report = setup.server.load_for(&path, &digest, &for_fraud()).unwrap();
    assert_eq!(report.warm_up.rows, 1000);
    assert!(0.0 < report.warm_up.p50_us && report.warm_up.p50_us <= report.warm_up.p99_us);
    let stages = report.stages;
    let sum = stages.read_ms + stages.verify_ms + stages.assemble_ms + stages.golden_ms + stages.warm_up_ms;
    assert!(0.0 < stages.golden_ms && sum <= report.load_ms, "{report:?}");
}

/// Fault case 61.
#[tokio::test(flavor = "multi_thread")]
async fn a_candidate_is_refused_before_it_is_read_if_memory_does_not_suffice() {
    let setup = start_with(|config| config["memory_budget_bytes"] = (1_u64 << 40).into());
    let before = answered(&setup).await;
    let (path, digest) = next(&setup);
    setup.server.load(&path, &digest).unwrap();

    // Every process uses more than one byte.
    let config = {
        let mut config = config(setup.directory.path());
        config["memory_budget_bytes"] = 1.into();
        config["log"] = Value::Null;
        scorer_server::ServerConfig::from_json(&config.to_string()).unwrap()
    };
    let server = scorer_server::Server::start(config).unwrap();
    let error = server.load(&path, &digest).unwrap_err();
    let LoadError::Memory { needed_mib, resident_mib, budget_mib, ref source_of_budget, .. } = error else {
        panic!("{error}")
    };
    assert!(needed_mib >= 1 && resident_mib >= 1 && budget_mib == 0);
    assert_eq!(source_of_budget, "memory_budget_mb");
    assert!(error.to_string().contains("MiB"), "{error}");
    assert!(server.status().bundles.is_empty());
    assert_eq!(answered(&setup).await, before);
}

/// Fault case 60.
#[tokio::test(flavor = "multi_thread")]
async fn a_different_golden_case_is_distinguished_from_a_damaged_file() {
    let setup = start();
    let before = answered(&setup).await;
    let mut files = testing::score_files("next", 0.5);
    let other = testing::score_files("other", 1.0);
    files.insert("golden.bin".to_owned(), other["golden.bin"].clone());
    testing::reseal(&mut files).unwrap();
    let (path, digest) = write(setup.directory.path(), &files);
    let error = setup.server.load_for(&path, &digest, &for_fraud()).unwrap_err().to_string();
    assert!(error.contains("golden"), "{error}");
    assert_eq!(refused_for(&setup, "golden").await, 1.0);
    let (path, digest) = next(&setup);
    let forest = path.join("forest.bin");
    let mut bytes = std::fs::read(&forest).unwrap();
    bytes[20] ^= 1;
    std::fs::write(&forest, bytes).unwrap();
    let error = setup.server.load_for(&path, &digest, &for_fraud()).unwrap_err().to_string();
    assert!(error.contains("forest.bin"), "{error}");
    assert_eq!((refused_for(&setup, "golden").await, refused_for(&setup, "verification").await), (1.0, 1.0));
    assert_eq!(answered(&setup).await, before);
    let unknown = LoadFor { checkpoint: Some("nowhere".to_owned()), ..LoadFor::default() };
    let error = setup.server.load_for(&path, &digest, &unknown).unwrap_err();
    assert!(matches!(error, LoadError::UnknownCheckpoint { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_from_the_alias_to_the_first_answer_is_reported_once() {
    let setup = start();
    answered(&setup).await;
    setup.events();
    let (path, digest) = next(&setup);
    let wanted = LoadFor {
        changed_at_us: Some(1_000_000),
        noticed_at_us: Some(1_400_000),
        fetch_us: 2_000,
        ..for_fraud()
    };
    setup.server.load_for(&path, &digest, &wanted).unwrap();
    setup.server.swap(&table(2, &digest, &setup.action)).unwrap();
    assert!(
        setup.events().iter().all(|event| event["event"] != "first_answer"),
        "no request was answered yet"
    );
    assert_eq!(answered(&setup).await.0, digest);
    answered(&setup).await;
    let reported: Vec<Value> =
        setup.events().into_iter().filter(|event| event["event"] == "first_answer").collect();
    assert_eq!(reported.len(), 1, "{reported:?}");
    let reported = &reported[0];
    assert_eq!((&reported["checkpoint"], &reported["bundle"]), (&FRAUD.into(), &digest.as_str().into()));
    assert_eq!((&reported["notice_ms"], &reported["fetch_ms"]), (&400.0.into(), &2.0.into()));
    assert!(reported["total_ms"].as_f64() > reported["golden_ms"].as_f64());
    let page = setup.metrics().await;
    let notice = format!("scorer_data_load_stage_seconds{{checkpoint=\"{FRAUD}\",stage=\"notice\"}} 0.4");
    assert!(page.lines().any(|line| line == notice), "{page}");
    // The histogram has one value for each table, including the first one.
    let count = format!("scorer_data_load_seconds_count{{checkpoint=\"{FRAUD}\"}} 2");
    assert!(page.lines().any(|line| line == count), "{page}");
    // A return to the previous bundle, which is in memory, is another event with another first answer.
    setup.server.swap(&table(3, &setup.fraud, &setup.action)).unwrap();
    answered(&setup).await;
    assert_eq!(event(&setup, "first_answer")["bundle"], setup.fraud.as_str());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_previous_bundle_is_offered_until_memory_is_short_or_it_is_unloaded() {
    let setup = start();
    let (path, digest) = next(&setup);
    setup.server.load_for(&path, &digest, &for_fraud()).unwrap();
    let with_previous = |version: u64, previous: &str| -> LaneTable {
        let mut table = table(version, &digest, &setup.action);
        table.previous.insert(FRAUD.to_owned(), previous.to_owned());
        table
    };
    setup.server.swap(&with_previous(2, &setup.fraud)).unwrap();
    assert_eq!(setup.server.status().previous.get(FRAUD), Some(&setup.fraud));
    // A previous bundle that is of another kind or not in memory is ignored, and the swap succeeds.
    setup.server.swap(&with_previous(3, &setup.action)).unwrap();
    assert!(setup.server.status().previous.is_empty());
    setup.server.swap(&with_previous(4, &setup.fraud)).unwrap();
    assert!(setup.server.status().previous.contains_key(FRAUD));
    setup.server.unload(&setup.fraud).unwrap();
    assert!(setup.server.status().previous.is_empty());
    assert_eq!(setup.server.status().lane_table, 4, "the table is the same");
    assert_eq!(answered(&setup).await.0, digest);
}

/// Fault case 62.
#[tokio::test(flavor = "multi_thread")]
async fn a_revision_under_load_never_fails_never_mixes_and_shares_its_forests() {
    let setup = start();
    let policy = || json!({"rule": "squarecb", "gamma": 20.0, "floor": 0.05});
    let overlay = |offset: f64| {
        json!({"segment": "country", "limit": 2.0, "everywhere": {"three_ds": {"challenge": offset}},
            "segments": {"NL": {"exemption": {"tra": -offset}}}})
    };
    let files: Vec<_> = [0.75, -1.25]
        .into_iter()
        .map(|offset| {
            testing::action_recipe("action", 0.0, policy()).with_overlay(overlay(offset)).build().unwrap()
        })
        .collect();
    let plain = testing::assemble(&testing::action_files("action", 0.0)).unwrap();
    let mut bundles = vec![(setup.action.clone(), plain)];
    let wanted = LoadFor { checkpoint: Some(ACTION.to_owned()), ..LoadFor::default() };
    let before = setup.server.status().bundles.iter().map(|bundle| bundle.bytes).sum::<u64>();
    let mut own = 0;
    for files in &files {
        let (path, digest) = write(setup.directory.path(), files);
        let report = setup.server.load_for(&path, &digest, &wanted).unwrap();
        assert_eq!(report.shared_bytes, files["forest.bin"].len() as u64);
        own += report.bytes - report.shared_bytes;
        bundles.push((digest, testing::assemble(files).unwrap()));
    }
    let page = setup.metrics().await;
    let line = format!("scorer_bundle_bytes {}", before + own);
    assert!(page.lines().any(|each| each == line), "{page}");
    let status = setup.server.status();
    assert_eq!(
        status.bundles.iter().map(|bundle| bundle.bytes - bundle.shared_bytes).sum::<u64>(),
        before + own
    );

    let done = Arc::new(AtomicBool::new(false));
    let mut callers = Vec::new();
    for caller in 0..3 {
        let (mut client, done) = (setup.client().await, Arc::clone(&done));
        callers.push(tokio::spawn(async move {
            let mut answers = Vec::new();
            while !done.load(Ordering::Relaxed) {
                let id = format!("{caller}-{}", answers.len());
                answers
                    .push((id.clone(), client.select_action(select(&id, 250.0)).await.unwrap().into_inner()));
            }
            answers
        }));
    }
    for version in 2..40 {
        let (digest, _) = &bundles[version as usize % bundles.len()];
        setup.server.swap(&table(version, &setup.fraud, digest)).unwrap();
        // A hundred decisions with each table.
        let decided = || setup.server.status().bundles.iter().map(|bundle| bundle.decisions).sum::<u64>();
        let enough = decided() + 100;
        eventually("a hundred decisions are made", || decided() >= enough).await;
    }
    done.store(true, Ordering::Relaxed);
    let mut by_bundle = vec![0; bundles.len()];
    let mut pmfs = HashMap::new();
    for caller in callers {
        for (id, answer) in caller.await.unwrap() {
            let served = answer.served.unwrap();
            let at = bundles.iter().position(|(digest, _)| *digest == served.bundle).unwrap();
            // Each answer has the bits of the bundle that it names.
            let (_, bundle) = &bundles[at];
            let mut scratch = EvalScratch::new(bundle);
            let everyone = Mask::all(bundle.catalogue().len());
            let out =
                bundle.select(&[250.0, 0.0, 0.0], &everyone, ACTION, &id, &Unlimited, &mut scratch).unwrap();
            assert_eq!(answer.action_index as usize, out.index);
            assert_eq!(answer.propensity.to_bits(), out.propensity.to_bits());
            assert_eq!(answer.expected_reward.to_bits(), out.expected_reward.to_bits());
            by_bundle[at] += 1;
            pmfs.insert(id, scratch.pmf().to_vec());
        }
    }
    assert!(by_bundle.iter().all(|&answers| answers >= 100), "{by_bundle:?}");
    // The forest remains in memory after the bundle that loaded it.
    setup.server.swap(&table(40, &setup.fraud, &bundles[1].0)).unwrap();
    setup.server.unload(&setup.action).unwrap();
    let answer = setup.client().await.select_action(select("last", 250.0)).await.unwrap().into_inner();
    assert_eq!(answer.served.unwrap().bundle, bundles[1].0);
    let status = setup.server.status();
    let shared: Vec<u64> = status.bundles.iter().map(|bundle| bundle.shared_bytes).collect();
    assert_eq!(shared, [0, 0, files[0]["forest.bin"].len() as u64]);
    // The logged propensities are those of the draw.
    for decision in setup.decisions() {
        if let Some(pmf) = pmfs.remove(&decision.decision_id) {
            assert_eq!(decision.pmf, pmf);
        }
    }
    assert!(pmfs.is_empty(), "{} decisions were not logged", pmfs.len());
}
