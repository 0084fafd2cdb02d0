//! Observe lanes: they see what is answered, are on record in full, and change nothing.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    dead_code,
    unused_imports,
    reason = "a failure here is a failed test"
)]

mod support;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use scorer_core::budget::Unlimited;
use scorer_core::bundle::EvalScratch;
use scorer_core::bundle::testing::{self, assemble};
use scorer_core::policy::{Mask, draw, unit};
use scorer_proto::v1::{ObservationRecord, feature, log_record};
use scorer_server::{
    Condition, LaneFault, LaneTable, LoadFor, ObserveLane, ObserverStatus, Op, SwapError, UnloadError,
};
use serde_json::{Value, json};
use support::*;

fn observer(name: &str, bundle: &str, sample: f64) -> ObserveLane {
    ObserveLane { name: name.to_owned(), bundle: bundle.to_owned(), sample, filter: Vec::new(), pool: false }
}

fn condition(feature: &str, op: Op, value: Value) -> Condition {
    Condition { feature: feature.to_owned(), op, value: (!value.is_null()).then_some(value) }
}

/// The usual answer lanes, and these that observe.
fn observed(setup: &Setup, version: u64, checkpoint: &str, lanes: Vec<ObserveLane>) -> LaneTable {
    let mut table = table(version, &setup.fraud, &setup.action);
    table.observe.insert(checkpoint.to_owned(), lanes);
    table
}

/// A lane's status once `ready` says so.
async fn status(setup: &Setup, lane: &str, ready: impl Fn(&ObserverStatus) -> bool) -> ObserverStatus {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let status = setup.server.status();
        let it = status.observers.into_iter().find(|it| it.lane == lane).unwrap();
        assert_eq!(it.seen, it.left_out + it.taken, "{it:?}");
        if ready(&it) {
            return it;
        }
        assert!(Instant::now() < until, "{it:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Stops the server and reads what was observed, by lane and id.
fn observations(setup: &Setup) -> HashMap<(String, String), ObservationRecord> {
    let mut all = HashMap::new();
    for record in setup.records() {
        if let log_record::Record::Observation(it) = record {
            let decision = it.decision.clone().unwrap();
            assert!(all.insert((decision.lane, decision.decision_id), it).is_none(), "recorded twice");
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn a_score_is_observed_and_recorded_in_full() {
    let setup = start();
    let files = testing::score_files("other", 1.0);
    let other = load(&setup.server, setup.directory.path(), &files);
    setup.server.swap(&observed(&setup, 2, FRAUD, vec![observer("shadow", &other, 1.0)])).unwrap();
    let mut client = setup.client().await;
    let mut answers = HashMap::new();
    for number in 0..20 {
        let mut request = score(&format!("d{number}"), 50.0 * f64::from(number));
        request.entity = format!("shopper-{number}");
        let answer = client.score(request.clone()).await.unwrap().into_inner();
        // A retry is answered from memory and is not seen.
        assert_eq!(client.score(request).await.unwrap().into_inner(), answer);
        answers.insert(answer.decision_id.clone(), answer);
    }
    let it = status(&setup, "shadow", |it| it.evaluated == 20).await;
    assert_eq!((it.seen, it.taken, it.dropped, it.shed, it.unlogged), (20, 20, 0, 0, 0));
    assert!(it.failed.values().all(|&count| count == 0) && !it.stuck && !it.pool);
    assert!(0.0 < it.exec_p50_us && it.exec_p50_us <= it.exec_p999_us && it.cpu_seconds > 0.0, "{it:?}");
    assert_eq!((it.checkpoint.as_str(), it.bundle.as_str()), (FRAUD, other.as_str()));

    let bundle = assemble(&files).unwrap();
    let mut scratch = EvalScratch::new(&bundle);
    let records = setup.records();
    let decisions: HashMap<_, _> = records
        .iter()
        .filter_map(|record| match record {
            log_record::Record::Decision(it) => Some((it.decision_id.clone(), it.clone())),
            _ => None,
        })
        .collect();
    let mut seen = 0;
    for record in &records {
        let log_record::Record::Observation(it) = record else { continue };
        seen += 1;
        let own = it.decision.as_ref().unwrap();
        let (live, answer) = (&decisions[&own.decision_id], &answers[&own.decision_id]);
        assert_eq!(own.features, live.features);
        let expected = bundle.score(&own.features, &Unlimited, &mut scratch).unwrap();
        assert_eq!((own.score, own.margin), (expected.score, expected.margin));
        assert_eq!(own.decision, bundle.labels()[expected.band]);
        assert_eq!(
            (own.lane.as_str(), &own.checkpoint, &own.entity),
            ("shadow", &live.checkpoint, &live.entity)
        );
        assert_eq!(own.bundle, bundle.digest().0);
        assert_eq!((own.schema_fingerprint, own.lane_table), (bundle.schema().fingerprint(), 2));
        assert_eq!((it.live_lane.as_str(), &it.live_bundle), ("live", &live.bundle));
        assert_eq!(
            (it.live_score, it.live_margin, &it.live_decision),
            (answer.score, answer.margin, &answer.decision)
        );
        assert_eq!((it.live_exec_us, it.live_data_load_us), (live.exec_us, live.data_load_us));
        assert!(it.error.is_empty() && it.live_fallback_reason.is_empty() && it.absent_features.is_empty());
        assert!(own.fallback_reason.is_empty());
        assert!(live.decided_at_us <= it.answered_at_us && it.answered_at_us <= own.decided_at_us);
    }
    assert_eq!((seen, decisions.len()), (20, 20));
    assert!(records.iter().any(|record| {
        matches!(record, log_record::Record::LaneTable(table) if table.table.contains("\"observe\""))
    }));
}
