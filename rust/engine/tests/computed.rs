//! Computed features: a source that is ready, late, failing, panicking or absent, and the flags of answers and records.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here is a failed test")]

mod support;

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use scorer_core::bundle::ComputedFeatures;
use scorer_core::bundle::testing::{Files, action_recipe, computed_recipe};
use scorer_core::schema::Value as FeatureValue;
use scorer_engine::*;
use serde_json::{Value, json};
use support::*;

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Ready,
    /// The values follow at the second poll.
    Slow,
    /// The values never come.
    Never,
    /// The future fails.
    FailsLater,
    Fails,
    Panics,
}

/// A source that has the features of every set whose version is 1.
struct Fake {
    mode: Mutex<Mode>,
    reads: Arc<AtomicUsize>,
}

struct Reader {
    mode: Mode,
    reads: Arc<AtomicUsize>,
    entities: Vec<String>,
    columns: Vec<ReadColumn>,
}

/// A dense row with keys.
struct Keyed(Dense, HashMap<String, String>);

struct KeyedRows(DenseRows, Vec<HashMap<String, String>>);

impl Fake {
    fn new(mode: Mode) -> Arc<Fake> {
        Arc::new(Fake { mode: Mutex::new(mode), reads: Arc::default() })
    }
}

impl FeatureSource for Fake {
    fn prepare(&self, features: &ComputedFeatures) -> Result<Arc<dyn FeatureReader>, SourceRefusal> {
        let set: Value = serde_json::from_slice(&features.set).unwrap();
        if set["version"] != 1 {
            return Err(SourceRefusal("set cards@2 is not one of this server; add it".to_owned()));
        }
        let column = |name: &str| {
            let mut digest = [0; 32];
            digest[..name.len()].copy_from_slice(name.as_bytes());
            ReadColumn { digest, entities: 1 }
        };
        Ok(Arc::new(Reader {
            mode: *self.mode.lock().unwrap(),
            reads: Arc::clone(&self.reads),
            entities: vec!["card".to_owned()],
            columns: features.columns.iter().map(|it| column(&it.feature)).collect(),
        }))
    }
}

impl FeatureReader for Reader {
    fn entities(&self) -> &[String] {
        &self.entities
    }

    fn columns(&self) -> &[ReadColumn] {
        &self.columns
    }

    /// The value of every column is the number of reads before, plus the number in the key.
    fn read(&self, keys: &[Option<&str>], at_us: i64, out: &mut [f32]) -> Loading {
        assert!(at_us > 0);
        let before = self.reads.fetch_add(1, Relaxed) as f32;
        let value = keys[0].map_or(7.0, |key| before + key.parse::<f32>().unwrap());
        out.fill(value);
        let found = Found { unknown_entity: keys[0] == Some("0"), unusable: u16::from(keys[0] == Some("9")) };
        let values = out.to_vec();
        match self.mode {
            Mode::Ready => Loading::Ready(found),
            Mode::Fails => Loading::Failed,
            Mode::Panics => panic!("as the test demands"),
            Mode::Never => Loading::Waiting(Box::pin(std::future::pending())),
            Mode::FailsLater => Loading::Waiting(Box::pin(async { Err(SourceError("down".to_owned())) })),
            Mode::Slow => Loading::Waiting(Box::pin(async move {
                tokio::task::yield_now().await;
                Ok((values, found))
            })),
        }
    }
}

impl Features for Keyed {
    type Error = Rejection;

    fn encode(&self, lane: &ActiveLane, row: &mut Vec<f32>) -> Result<(), Rejection> {
        self.0.encode(lane, row)
    }

    fn encode_with(
        &self,
        lane: &ActiveLane,
        row: &mut Vec<f32>,
        given: &[(&str, FeatureValue<'_>)],
    ) -> Result<(), Rejection> {
        self.0.encode_with(lane, row, given)
    }

    fn hash(&self, content: &mut Content) {
        self.0.hash(content);
    }

    fn keys(&self) -> &dyn EntityKeys {
        &self.1
    }
}

impl Rows for KeyedRows {
    type Error = Rejection;

    fn count(&self) -> u32 {
        self.0.count()
    }

    fn values(&mut self, lane: &ActiveLane) -> Result<Vec<f32>, Rejection> {
        self.0.values(lane)
    }

    fn key(&self, row: usize, entity: &str) -> Option<&str> {
        self.1[row].get(entity).map(String::as_str)
    }
}

fn set(version: u64) -> Value {
    json!({"name": "cards", "version": version, "features": [
        {"name": "payments", "default": 0},
        {"name": "mean_amount", "default": null},
    ]})
}

fn files(version: u64, mean: Option<&str>) -> Files {
    computed_recipe("computed", &set(version), mean).build().unwrap()
}

fn keys(card: &str) -> HashMap<String, String> {
    if card.is_empty() { HashMap::new() } else { [("card".to_owned(), card.to_owned())].into() }
}

fn world_from(mode: Mode, p99_ms: f64) -> (World, Arc<Fake>) {
    let fake = Fake::new(mode);
    let change = |settings: &mut Value| settings["checkpoints"][FRAUD]["p99_ms"] = json!(p99_ms);
    let mut world = empty_world_from(change, Some(Arc::clone(&fake) as Arc<dyn FeatureSource>));
    world.fraud = world.load(&files(1, Some("mean")));
    world.publish(1, &world.fraud.clone(), &world.action.clone());
    (world, fake)
}

/// A query with the amount 50, `stated` as the number of payments, and no mean.
fn query(id: &str, card: &str, stated: f32) -> Query<'static, Keyed> {
    let row = Dense { fingerprint: None, values: vec![50.0, 0.0, 0.0, stated, f32::NAN] };
    let Query { checkpoint, request_id, entity, reasons, .. } = score(id, 0.0);
    Query { checkpoint, request_id, entity, features: Keyed(row, keys(card)), reasons }
}

fn scored(world: &World, id: &str, card: &str, stated: f32) -> Answer<Scored> {
    world.run(world.engine.score(&now(), query(id, card, stated))).unwrap()
}

fn counters(world: &World) -> Arc<FeatureCounters> {
    world.engine.counters.features.all().into_iter().find(|(set, _)| set == "cards").unwrap().1
}

fn counted(world: &World) -> Vec<u64> {
    counters(world).by_reason().map(|(_, count)| count).collect()
}

#[test]
fn a_ready_source_fills_what_the_request_does_not_state() {
    let (world, fake) = world_from(Mode::Ready, 60_000.0);
    let read = scored(&world, "read", "3", f32::NAN).value;
    let stated = scored(&world, "stated", "3", 3.0).value;
    let low = scored(&world, "low", "3", 1.0).value;
    assert_eq!(read.score, stated.score, "the same values have the same score");
    assert!(low.score < read.score, "the model reads the column");
    assert_eq!([read.defaulted, stated.defaulted], [None, None]);
    assert_eq!(fake.reads.load(Relaxed), 3);
    let records = world.decisions();
    assert_eq!(records[0].features[3..], [3.0, 3.0]);
    assert_eq!(records[1].features[3..], [3.0, 4.0], "the second read is one higher");
    assert_eq!(records[0].stated_features, Vec::<u32>::new());
    assert_eq!(records[1].stated_features, [3]);
    assert!(records.iter().all(|record| record.features_defaulted.is_empty() && record.features_at_us > 0));
    let counters = counters(&world);
    assert_eq!((counters.loads.load(Relaxed), counters.stated.load(Relaxed)), (3, 2));
    assert_eq!(counters.times.read().1, 3);
}

#[test]
fn a_request_that_states_everything_reads_nothing() {
    let (world, fake) = world_from(Mode::Fails, 60_000.0);
    let mut all = query("all", "", 2.0);
    all.features.0.values[4] = 20.0;
    let answer = world.run(world.engine.score(&now(), all)).unwrap().value;
    assert_eq!((answer.defaulted, fake.reads.load(Relaxed)), (None, 0));
    let record = &world.decisions()[0];
    assert_eq!((&record.stated_features[..], record.features_at_us), (&[3, 4][..], 0));
}

#[test]
fn a_failing_source_gives_the_declared_defaults() {
    for mode in [Mode::Fails, Mode::Panics, Mode::FailsLater] {
        let (world, _) = world_from(mode, 60_000.0);
        let answer = scored(&world, "a", "3", f32::NAN).value;
        assert_eq!((answer.defaulted, answer.fallback), (Some(Defaulted::Failed), None));
        let record = &world.decisions()[0];
        assert_eq!(record.features[3], 0.0);
        assert!(record.features[4].is_nan());
        assert_eq!(record.features_defaulted, "failed");
        assert_eq!(counted(&world), [0, 0, 1]);
    }
}

#[test]
fn a_late_source_gives_the_declared_defaults_within_its_share_of_the_sla() {
    let (world, _) = world_from(Mode::Never, 100.0);
    let answer = world.watched(|| world.wait(world.engine.score(&now(), query("a", "3", f32::NAN)))).unwrap();
    assert_eq!(answer.value.defaulted, Some(Defaulted::Late));
    assert!(answer.value.timings.data_load_us >= 25_000, "{}", answer.value.timings.data_load_us);
    let record = &world.decisions()[0];
    assert_eq!((&*record.features_defaulted, record.features[3]), ("late", 0.0));
    assert!(record.data_load_us >= 25_000);
    assert_eq!(counted(&world), [0, 1, 0]);
}

#[test]
fn a_source_that_answers_later_is_awaited() {
    let (world, _) = world_from(Mode::Slow, 60_000.0);
    let answer = scored(&world, "a", "3", f32::NAN).value;
    assert_eq!(answer.defaulted, None);
    assert_eq!(world.decisions()[0].features[3..], [3.0, 3.0]);
}

#[test]
fn a_missing_key_is_flagged_and_an_unknown_entity_is_counted() {
    let (world, _) = world_from(Mode::Ready, 60_000.0);
    assert_eq!(scored(&world, "none", "", f32::NAN).value.defaulted, Some(Defaulted::NoKey));
    assert_eq!(scored(&world, "unknown", "0", f32::NAN).value.defaulted, None);
    let records = world.decisions();
    assert_eq!((&*records[0].features_defaulted, records[0].features[3]), ("no_key", 7.0));
    assert_eq!(records[1].features_defaulted, "");
    assert_eq!(counted(&world), [1, 0, 0]);
    assert_eq!(counters(&world).unknown_entities.load(Relaxed), 1);
}

/// The source returns its values, with the defaults of the entity's features among them.
#[test]
fn an_entity_whose_state_cannot_be_used_is_flagged_as_failed() {
    for mode in [Mode::Ready, Mode::Slow] {
        let (world, _) = world_from(mode, 60_000.0);
        assert_eq!(scored(&world, "damaged", "9", f32::NAN).value.defaulted, Some(Defaulted::Failed));
        let mut all = query("all", "9", 2.0);
        all.features.0.values[4] = 20.0;
        assert_eq!(
            world.run(world.engine.score(&now(), all)).unwrap().value.defaulted,
            None,
            "all are stated"
        );
        let records = world.decisions();
        assert_eq!((&*records[0].features_defaulted, records[0].features[3]), ("failed", 9.0));
        assert_eq!(counted(&world), [0, 0, 1]);
    }
}

#[test]
fn a_bundle_is_refused_without_a_source_and_for_another_definition() {
    let without = empty_world(|_| ());
    let error = without.try_load(&files(1, None)).unwrap_err();
    assert_eq!(error.reason(), LoadErrorKind::Features);
    assert!(error.to_string().contains("features.json: this server has no feature sets; add"), "{error}");
    let (world, _) = world_from(Mode::Ready, 60_000.0);
    let error = world.try_load(&files(2, None)).unwrap_err().to_string();
    assert!(error.contains("set cards@2 is not one of this server"), "{error}");
}

#[test]
fn a_retry_has_the_values_of_the_first_attempt() {
    let (world, fake) = world_from(Mode::Ready, 60_000.0);
    let first = scored(&world, "a", "3", f32::NAN);
    let again = scored(&world, "a", "3", f32::NAN);
    assert!(!first.replayed && again.replayed && first.value.score == again.value.score);
    assert_eq!(fake.reads.load(Relaxed), 1);
}

#[test]
fn every_row_of_a_batch_has_its_own_keys() {
    for mode in [Mode::Ready, Mode::Slow] {
        let (world, _) = world_from(mode, 60_000.0);
        let nan = f32::NAN;
        let values = [vec![50.0, 0.0, 0.0, nan, nan], vec![50.0, 0.0, 0.0, 9.0, nan]].concat();
        let rows = KeyedRows(DenseRows(2, values), vec![keys("3"), keys("")]);
        let query = BatchQuery { checkpoint: FRAUD, request_id: "batch".to_owned(), entity: "", rows };
        let answer = world.run(world.engine.score_batch(&now(), query)).unwrap().value;
        assert_eq!(answer.defaulted, Some(Defaulted::NoKey), "one row has no key");
        let records = world.decisions();
        assert_eq!(records[0].features[3..], [3.0, 3.0]);
        assert_eq!(records[1].features[3..], [9.0, 7.0]);
        assert_eq!([&*records[0].features_defaulted, &records[1].features_defaulted], ["", "no_key"]);
        assert_eq!(records[0].features_at_us, records[1].features_at_us);
    }
}

/// Both bundles read `payments`: the source is asked once for each, as of one time, and both have the first value.
#[test]
fn both_parts_of_a_decide_have_the_same_values() {
    for mode in [Mode::Ready, Mode::Slow] {
        let (mut world, _) = world_from(mode, 60_000.0);
        let mut recipe = action_recipe("action", 0.0, json!({"rule": "uniform"}));
        recipe.schema["features"][2] = json!({"name": "paid", "type": "number"});
        recipe.features = Some(json!({"set": set(1), "columns": {"paid": "payments"}}));
        world.action = world.load(&recipe.build().unwrap());
        world.publish(2, &world.fraud.clone(), &world.action.clone());
        let nan = f32::NAN;
        let score = query("d", "3", nan);
        let row = Dense { fingerprint: None, values: vec![50.0, nan, nan] };
        let action = SelectQuery {
            query: Query { checkpoint: ACTION, features: Keyed(row, keys("3")), ..query("", "", nan) },
            eligible: None,
            include_pmf: false,
        };
        let decide = DecideQuery { score, action, passed: PassedOn::default(), action_if_declined: true };
        let decided = world.run(world.engine.decide(&now(), decide)).unwrap();
        assert!(matches!(decided.action, ActionAnswer::Selected(_)));
        let records = world.decisions();
        let of = |checkpoint: &str| records.iter().find(|record| record.checkpoint == checkpoint).unwrap();
        assert_eq!(of(FRAUD).features[3], 3.0);
        assert_eq!(of(ACTION).features[2], 3.0, "not the value of another read");
        assert_eq!(of(FRAUD).features_at_us, of(ACTION).features_at_us);
    }
}
