//! The store against a naive reference that knows all events, and its rules for duplicates, restarts and memory.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here is a failed test")]

use std::collections::BTreeSet;
use std::future::Future as _;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use scorer_features::*;
use serde_json::{Value, json};

const SECOND: i64 = 1_000_000;
const HOUR: i64 = 3600 * SECOND;
const START: i64 = 1_800_000_000 * SECOND;

fn definition() -> Value {
    let window = |name: &str, aggregate: &str, more: Value| {
        let mut feature = json!({"name": name, "entity": "card", "event": "payment", "aggregate": aggregate});
        let decayed = aggregate.starts_with("decayed");
        feature[if decayed { "half_life" } else { "window" }] = json!(86_400);
        for (key, value) in more.as_object().unwrap() {
            feature[key] = value.clone();
        }
        feature
    };
    json!({
        "name": "cards", "version": 1,
        "events": {
            "payment": {"entities": ["card", "terminal"], "numbers": ["amount"], "texts": ["country"],
                        "accept_late": 172_800},
        },
        "features": [
            window("count", "count", json!({})),
            window("sum", "sum", json!({"of": "amount"})),
            window("mean", "mean", json!({"of": "amount", "default": -1})),
            window("least", "min", json!({"of": "amount"})),
            window("most", "max", json!({"of": "amount"})),
            window("terminals", "distinct", json!({"of": "terminal"})),
            window("last", "seconds_since_last", json!({})),
            window("first", "seconds_since_first", json!({})),
            window("decayed", "decayed_count", json!({})),
            window("decayed_sum", "decayed_sum", json!({"of": "amount"})),
            window("delayed", "count", json!({"delay": 86_400})),
            window("abroad", "count", json!({"where": {"country": ["DE", "FR"]}})),
            window("short", "mean", json!({"of": "amount", "window": 21_600, "tile": 3600})),
            {"name": "share", "ratio": ["abroad", "count"], "default": 9},
        ],
    })
}

fn set() -> FeatureSet {
    FeatureSet::parse(definition().to_string().as_bytes()).unwrap()
}

/// A payment of the test.
#[derive(Clone)]
struct Payment {
    id: String,
    at: i64,
    received: i64,
    card: String,
    terminal: String,
    amount: Option<f64>,
    country: Option<&'static str>,
}

impl Payment {
    fn record(&self, store: &Store) -> Result<Recorded, EventError> {
        let numbers: Vec<_> = self.amount.iter().map(|amount| ("amount", *amount)).collect();
        let texts: Vec<_> = self.country.iter().map(|country| ("country", *country)).collect();
        let event = Event {
            kind: "payment",
            id: &self.id,
            occurred_at_us: self.at,
            keys: &[("card", &self.card), ("terminal", &self.terminal)],
            numbers: &numbers,
            texts: &texts,
        };
        store.record(&event, self.received)
    }
}

/// A small generator of the same numbers in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

fn payments(count: usize) -> Vec<Payment> {
    let mut random = Random(7);
    let mut received = START;
    (0..count)
        .map(|number| {
            received += random.below(600) as i64 * SECOND + random.below(1_000_000) as i64;
            let late = if random.below(4) == 0 { random.below(40) as i64 * HOUR } else { 0 };
            Payment {
                id: format!("p{number}"),
                at: received - late - random.below(30) as i64 * SECOND,
                received,
                card: format!("c{}", random.below(5)),
                terminal: format!("t{}", random.below(40)),
                amount: (random.below(10) > 0).then(|| random.below(10_000) as f64 / 100.0),
                country: [Some("NL"), Some("DE"), Some("FR"), None][random.below(4) as usize],
            }
        })
        .collect()
}

fn plan_of(store: &Store, set: &FeatureSet) -> Plan {
    let wanted: Vec<(&str, [u8; 32])> = set
        .features()
        .iter()
        .map(|feature| (feature.name(), set.feature_digest(feature.name()).unwrap()))
        .collect();
    store.plan(&wanted).unwrap()
}

fn values(store: &Store, plan: &Plan, card: Option<&str>, now: i64) -> (Vec<f32>, Known) {
    let mut out = vec![0.0; plan.features().len()];
    let known = store.read(plan, &[card], now, &mut out);
    (out, known)
}

/// The values by definition, from all events that were applied.
fn reference(applied: &[Payment], card: &str, now: i64) -> Vec<f64> {
    let tile = 3600 * SECOND;
    let mine: Vec<&Payment> = applied.iter().filter(|payment| payment.card == card).collect();
    let within = |delay: i64| {
        let last = (now - delay * SECOND).div_euclid(tile);
        move |payment: &&&Payment| (last - 23..=last).contains(&payment.at.div_euclid(tile))
    };
    let counted: Vec<&&Payment> = mine.iter().filter(within(0)).collect();
    let amounts: Vec<f64> = counted.iter().filter_map(|payment| payment.amount).collect();
    let sum: f64 = amounts.iter().sum();
    let least = amounts.iter().copied().reduce(f64::min).unwrap_or(f64::NAN);
    let most = amounts.iter().copied().reduce(f64::max).unwrap_or(f64::NAN);
    let terminals: BTreeSet<&str> = counted.iter().map(|payment| &*payment.terminal).collect();
    let since = |at: Option<i64>| at.map_or(f64::NAN, |at| ((now - at) as f64 / 1e6).max(0.0));
    let weight = |payment: &&Payment| (-((now - payment.at) as f64) / 86_400e6).exp2();
    let tile_now = now.div_euclid(tile);
    let recent = counted.iter().filter(|payment| payment.at.div_euclid(tile) > tile_now - 6);
    let short: Vec<f64> = recent.filter_map(|payment| payment.amount).collect();
    let abroad = counted.iter().filter(|payment| matches!(payment.country, Some("DE" | "FR"))).count() as f64;
    let count = counted.len() as f64;
    vec![
        count,
        sum,
        if amounts.is_empty() { -1.0 } else { sum / amounts.len() as f64 },
        least,
        most,
        terminals.len() as f64,
        since(counted.iter().map(|payment| payment.at).max()),
        since(counted.iter().map(|payment| payment.at).min()),
        mine.iter().map(weight).sum(),
        mine.iter().filter_map(|payment| Some(payment.amount? * weight(payment))).sum(),
        mine.iter().filter(within(86_400)).count() as f64,
        abroad,
        if short.is_empty() { f64::NAN } else { short.iter().sum::<f64>() / short.len() as f64 },
        if count == 0.0 { 9.0 } else { abroad / count },
    ]
}

fn assert_near(got: &[f32], expected: &[f64], set: &FeatureSet) {
    for ((got, expected), feature) in got.iter().zip(expected).zip(set.features()) {
        let (got, name) = (f64::from(*got), feature.name());
        // The estimate of few distinct values is near their number.
        let tolerance = if name == "terminals" { 0.02 } else { 1e-6 } * expected.abs().max(1.0);
        assert!(
            got.is_nan() && expected.is_nan() || (got - expected).abs() <= tolerance,
            "{name}: {got} {expected}"
        );
    }
}

#[test]
fn values_are_those_of_the_definition_with_late_events_duplicates_and_restarts() {
    let directory = tempfile::tempdir().unwrap();
    let options = |now_us| StoreOptions {
        directory: Some(directory.path().to_owned()),
        now_us,
        ..StoreOptions::in_memory(64 << 20)
    };
    let set = set();
    let mut store = Store::open(vec![set.clone()], options(START)).unwrap();
    let mut applied: Vec<Payment> = Vec::new();
    for (number, payment) in payments(3000).into_iter().enumerate() {
        assert_eq!(payment.record(&store).unwrap(), Recorded::New);
        applied.push(payment.clone());
        if number % 7 == 0 {
            let other = Payment { amount: Some(1e6), ..payment.clone() };
            assert_eq!(other.record(&store).unwrap(), Recorded::Duplicate);
        }
        if number == 1000 || number == 2000 {
            store.close().unwrap();
            drop(store);
            if number == 2000 {
                let path = directory.path().join("snapshot");
                let mut bytes = std::fs::read(&path).unwrap();
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
                std::fs::write(&path, bytes).unwrap();
            }
            store = Store::open(vec![set.clone()], options(payment.received)).unwrap();
            let recovery = store.recovery();
            assert!(recovery.damaged.is_empty());
            let (entities, events) = if number == 2000 { (0, applied.len() as u64) } else { (5, 0) };
            assert_eq!((recovery.snapshot_entities, recovery.events), (entities, events), "{recovery:?}");
            assert_eq!(recovery.snapshot_unused.is_some(), number == 2000);
            assert_eq!(payment.record(&store).unwrap(), Recorded::Duplicate, "also after a restart");
        }
        if number % 100 == 0 {
            let plan = plan_of(&store, &set);
            for card in ["c0", "c3"] {
                let now = payment.received + 1;
                let (got, known) = values(&store, &plan, Some(card), now);
                assert_near(&got, &reference(&applied, card, now), &set);
                assert!(number < 100 || known.has(0));
            }
        }
    }
}

#[test]
fn an_entity_without_key_has_defaults_and_one_without_events_has_zeros() {
    let set = set();
    let store = Store::open(vec![set.clone()], StoreOptions::in_memory(1 << 20)).unwrap();
    let plan = plan_of(&store, &set);
    assert_eq!(plan.entities(), ["card"]);
    let (unknown, known) = values(&store, &plan, Some("never"), START);
    assert!(!known.has(0));
    assert_eq!((unknown[0], unknown[1], unknown[2]), (0.0, 0.0, -1.0));
    assert_eq!((unknown[8], unknown[13]), (0.0, 9.0));
    assert!(unknown[3].is_nan());
    let (without, _) = values(&store, &plan, None, START);
    assert!(without[0].is_nan(), "the default of a count is the declared one");
    assert_eq!((without[2], without[13]), (-1.0, 9.0));
}

#[test]
fn an_event_that_breaks_a_rule_is_refused_with_its_reason_and_changes_nothing() {
    let set = set();
    let store = Store::open(vec![set.clone()], StoreOptions::in_memory(1 << 20)).unwrap();
    let good = Event {
        kind: "payment",
        id: "a",
        occurred_at_us: START,
        keys: &[("card", "secret-card")],
        numbers: &[("amount", 1.0)],
        texts: &[],
    };
    let long = "x".repeat(200);
    for (event, refusal) in [
        (Event { kind: "refund", ..good }, Refusal::UnknownKind),
        (Event { id: "", ..good }, Refusal::Id),
        (Event { id: &long, ..good }, Refusal::Id),
        (Event { keys: &[], ..good }, Refusal::NoKey),
        (Event { keys: &[("card", &long)], ..good }, Refusal::Key),
        (Event { keys: &[("device", "d")], ..good }, Refusal::UnknownEntity),
        (Event { numbers: &[("fee", 1.0)], ..good }, Refusal::UnknownField),
        (Event { texts: &[("city", "x")], ..good }, Refusal::UnknownField),
        (Event { numbers: &[("amount", f64::NAN)], ..good }, Refusal::Number),
        (Event { texts: &[("country", &long)], ..good }, Refusal::Text),
        (Event { occurred_at_us: START + 6 * SECOND, ..good }, Refusal::Future),
        (Event { occurred_at_us: START - 49 * HOUR, ..good }, Refusal::Late),
    ] {
        let error = store.record(&event, START).unwrap_err();
        assert!(matches!(&error, EventError::Refused { refusal: got, .. } if *got == refusal), "{error:?}");
        assert!(!error.to_string().contains("secret-card"), "{error}");
    }
    let stats = store.stats();
    assert_eq!((stats.recorded, stats.entities), (0, 0));
    assert_eq!(stats.refused["future"], 1);
    assert_eq!(stats.refused["unknown_field"], 2);
    assert_eq!(store.record(&good, START).unwrap(), Recorded::New, "a refused id is not remembered");
}

#[test]
fn memory_stays_within_its_limit_and_the_oldest_entities_go_first() {
    let set = set();
    let limit = 8 << 20;
    let store = Store::open(vec![set.clone()], StoreOptions::in_memory(limit)).unwrap();
    for number in 0..60_000_i64 {
        let (id, key) = (format!("{number}"), format!("card-{number}"));
        let event = Event {
            kind: "payment",
            id: &id,
            occurred_at_us: START + number * 1000,
            keys: &[("card", &key)],
            numbers: &[],
            texts: &[],
        };
        store.record(&event, START + number * 1000).unwrap();
    }
    let stats = store.stats();
    assert!(stats.bytes <= limit && stats.evicted > 0, "{stats:?}");
    assert_eq!(stats.entities + stats.evicted, 60_000);
    let plan = plan_of(&store, &set);
    let now = START + 60_000 * 1000;
    assert_eq!(values(&store, &plan, Some("card-59999"), now).0[0], 1.0);
    let (gone, known) = values(&store, &plan, Some("card-0"), now);
    assert!(gone[0] == 0.0 && !known.has(0), "reads as never seen");
}

#[test]
fn a_torn_end_of_the_journal_is_reported_and_the_rest_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let options = || StoreOptions {
        directory: Some(directory.path().to_owned()),
        now_us: START,
        ..StoreOptions::in_memory(1 << 20)
    };
    let store = Store::open(vec![set()], options()).unwrap();
    for payment in payments(20) {
        payment.record(&store).unwrap();
    }
    let again = Store::open(vec![set()], options()).unwrap_err();
    assert!(matches!(again, OpenError::Locked { .. }), "{again}");
    store.close().unwrap();
    assert!(matches!(payments(1)[0].record(&store), Ok(Recorded::Duplicate)));
    let fresh = Payment { id: "fresh".to_owned(), ..payments(1)[0].clone() };
    assert!(matches!(fresh.record(&store), Err(EventError::Journal(_))), "closed");
    drop(store);
    let file = std::fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|extension| extension == "log"))
        .unwrap();
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() - 3]).unwrap();
    std::fs::remove_file(directory.path().join("snapshot")).unwrap();
    let store = Store::open(vec![set()], options()).unwrap();
    assert_eq!(store.recovery().events, 19);
    assert_eq!(store.recovery().damaged.len(), 1);
    drop(store);
    let store = Store::open(vec![set()], options()).unwrap();
    assert_eq!(store.recovery().events, 19);
    assert!(store.recovery().damaged.is_empty(), "the end was cut");
}

#[test]
fn events_after_a_snapshot_are_replayed_on_it_and_values_are_bit_for_bit_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let options = || StoreOptions {
        directory: Some(directory.path().to_owned()),
        now_us: START,
        ..StoreOptions::in_memory(64 << 20)
    };
    let set = set();
    let straight = Store::open(vec![set.clone()], StoreOptions::in_memory(64 << 20)).unwrap();
    let mut store = Store::open(vec![set.clone()], options()).unwrap();
    let all = payments(1200);
    for (number, payment) in all.iter().enumerate() {
        payment.record(&straight).unwrap();
        payment.record(&store).unwrap();
        if number == 399 {
            store.close().unwrap();
        }
        // After the snapshot, the store ends twice without a close.
        if [399, 599, 799].contains(&number) {
            drop(store);
            store = Store::open(vec![set.clone()], options()).unwrap();
            assert_eq!(store.recovery().snapshot_entities, 5);
            assert_eq!(store.recovery().events, number as u64 - 399);
            assert_eq!(all[number - 100].record(&store).unwrap(), Recorded::Duplicate, "known");
        }
    }
    let now = all[1199].received + 1;
    for card in ["c0", "c1", "c2", "c3", "c4"] {
        let bits = |store: &Store| -> Vec<u32> {
            let (values, _) = values(store, &plan_of(store, &set), Some(card), now);
            values.into_iter().map(f32::to_bits).collect()
        };
        assert_eq!(bits(&store), bits(&straight));
    }
}

#[test]
fn a_snapshot_of_another_definition_is_not_used() {
    let directory = tempfile::tempdir().unwrap();
    let options = || StoreOptions {
        directory: Some(directory.path().to_owned()),
        now_us: START,
        ..StoreOptions::in_memory(1 << 20)
    };
    let store = Store::open(vec![set()], options()).unwrap();
    payments(1)[0].record(&store).unwrap();
    store.close().unwrap();
    drop(store);
    let mut other = definition();
    other["features"][0]["window"] = json!(172_800);
    let other = FeatureSet::parse(other.to_string().as_bytes()).unwrap();
    let store = Store::open(vec![other.clone()], options()).unwrap();
    assert_eq!(store.recovery().events, 1);
    assert!(store.recovery().snapshot_unused.as_ref().unwrap().contains("other feature sets"));
    let (read, _) = values(&store, &plan_of(&store, &other), Some(&payments(1)[0].card), START + HOUR);
    assert_eq!(read[0], 1.0);
}

#[test]
fn an_event_is_written_after_it_was_recorded() {
    let directory = tempfile::tempdir().unwrap();
    let options = StoreOptions {
        directory: Some(directory.path().to_owned()),
        now_us: START,
        ..StoreOptions::in_memory(1 << 20)
    };
    let store = Store::open(vec![set()], options).unwrap();
    payments(1)[0].record(&store).unwrap();
    let mut written = pin!(store.written());
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while written.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        assert!(std::time::Instant::now() < until, "the event is never written");
        std::thread::yield_now();
    }
    assert!(store.stats().journal_bytes > 0);
    // The files as they would be if the process were killed now.
    let copy = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(directory.path()).unwrap() {
        let path = file.unwrap().path();
        std::fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
    }
    let killed = StoreOptions { directory: Some(copy.path().to_owned()), ..StoreOptions::in_memory(1 << 20) };
    assert_eq!(Store::open(vec![set()], killed).unwrap().recovery().events, 1);
    let memory = Store::open(vec![set()], StoreOptions::in_memory(1 << 20)).unwrap();
    let at_once = pin!(memory.written()).poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(at_once, Poll::Ready(Ok(()))));
}

#[test]
fn a_full_queue_refuses_events_without_a_change() {
    let directory = tempfile::tempdir().unwrap();
    let options = StoreOptions {
        directory: Some(directory.path().to_owned()),
        queue_bytes: 0,
        now_us: START,
        ..StoreOptions::in_memory(1 << 20)
    };
    let store = Store::open(vec![set()], options).unwrap();
    assert_eq!(payments(1)[0].record(&store), Err(EventError::Busy));
    assert_eq!(payments(1)[0].record(&store), Err(EventError::Busy), "the id is not remembered");
    assert_eq!(store.stats().entities, 0);
}

#[test]
fn a_feature_of_another_definition_is_refused() {
    let store = Store::open(vec![set()], StoreOptions::in_memory(1 << 20)).unwrap();
    let mut other = definition();
    other["features"][0]["text"] = json!("another text has the same digest");
    let same = FeatureSet::parse(other.to_string().as_bytes()).unwrap();
    assert!(store.plan(&[("count", same.feature_digest("count").unwrap())]).is_ok());
    other["features"][0]["window"] = json!(172_800);
    let changed = FeatureSet::parse(other.to_string().as_bytes()).unwrap();
    let error = store.plan(&[("count", changed.feature_digest("count").unwrap())]).unwrap_err().to_string();
    assert!(error.contains("set cards@1 of this server defines it otherwise"), "{error}");
    // A ratio depends on its parts.
    assert_ne!(changed.feature_digest("share"), same.feature_digest("share"));
    let error = store.plan(&[("none", [0; 32])]).unwrap_err().to_string();
    assert!(error.contains("no set of this server has it; add its set"), "{error}");
    let twice = Store::open(vec![set(), set()], StoreOptions::in_memory(1 << 20)).unwrap_err();
    assert!(twice.to_string().contains("cards@1 is given twice"), "{twice}");
}

#[test]
fn the_canonical_form_is_its_own_canonical_form() {
    let canonical = set().canonical();
    let again = FeatureSet::parse(&canonical).unwrap();
    assert_eq!(again.canonical(), canonical);
    assert_eq!(again.digest(), set().digest());
    let text = String::from_utf8(canonical).unwrap();
    assert!(
        text.starts_with(r#"{"events":{"payment":{"accept_late":172800,"entities":["card","terminal"],"#),
        "{text}"
    );
    let count = concat!(
        r#"{"aggregate":"count","default":null,"delay":0,"entity":"card","event":"payment","half_life":null,"#,
        r#""name":"count","of":null,"text":"","tile":3600,"where":{},"window":86400}"#
    );
    assert!(text.contains(count), "{text}");
}

#[test]
fn definitions_that_break_a_rule_are_refused() {
    type Change = fn(&mut Value);
    let changes: [(Change, &str); 12] = [
        (|set| set["name"] = json!("Cards"), "name: use 1 to 64"),
        (|set| set["features"] = json!([]), "0 features"),
        (|set| set["features"][0]["entity"] = json!("device"), "has no entity \"device\""),
        (|set| set["features"][0]["event"] = json!("refund"), "event \"refund\" is not declared"),
        (|set| set["features"][0]["of"] = json!("amount"), "count is of no field"),
        (|set| set["features"][1]["of"] = json!("country"), "sum needs a number field"),
        (|set| set["features"][5]["of"] = json!("card"), "distinct needs a text field or another entity"),
        (|set| set["features"][0]["tile"] = json!(7), "multiples of the tile, 7 s"),
        (|set| set["features"][8]["delay"] = json!(60), "no delay"),
        (|set| set["features"][0]["half_life"] = json!(60), "every other one window"),
        (
            |set| set["features"][13]["ratio"] = json!(["share", "count"]),
            "not a feature of the set that aggregates",
        ),
        (|set| set["features"][1]["name"] = json!("count"), "the name occurs twice"),
    ];
    for (change, says) in changes {
        let mut changed = definition();
        change(&mut changed);
        let error = FeatureSet::parse(changed.to_string().as_bytes()).unwrap_err().to_string();
        assert!(error.contains(says), "{says}: {error}");
    }
}
