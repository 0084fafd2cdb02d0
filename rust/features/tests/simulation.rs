//! The store on a simulated disk: crashes between and within all operations, short writes, errors and lost power, compared
//! with a store in memory that has the same events.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here is a failed test")]

use std::collections::BTreeSet;
use std::future::Future as _;
use std::path::PathBuf;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use scorer_features::*;
use scorer_log::sim::{Faults, Rng, SimMachine};
use serde_json::json;

const SECOND: i64 = 1_000_000;
const START: i64 = 1_800_000_000 * SECOND;
const CARDS: u64 = 6;
const TERMINALS: u64 = 4;

fn sets() -> Vec<FeatureSet> {
    let feature = |name: &str, entity: &str, aggregate: &str, of: Option<&str>| {
        let length = if aggregate.starts_with("decayed") { "half_life" } else { "window" };
        let mut feature =
            json!({"name": name, "entity": entity, "event": "payment", "aggregate": aggregate, "of": of});
        feature[length] = json!(86_400);
        feature
    };
    let definition = json!({
        "name": "cards", "version": 1,
        "events": {"payment": {"entities": ["card", "terminal"], "numbers": ["amount"], "accept_late": 3600}},
        "features": [
            feature("count", "card", "count", None),
            feature("sum", "card", "sum", Some("amount")),
            feature("decayed", "card", "decayed_sum", Some("amount")),
            feature("terminals", "card", "distinct", Some("terminal")),
            feature("most", "terminal", "max", Some("amount")),
            feature("total", "terminal", "sum", Some("amount")),
        ],
    });
    vec![FeatureSet::parse(definition.to_string().as_bytes()).unwrap()]
}

/// What was done to the store, in the order in which it was done.
#[derive(Clone, Debug)]
enum Step {
    Record { number: u64, card: u64, terminal: u64, amount: f64 },
    Forget { card: u64 },
}

/// Events are random. No two have the same amounts and order, so a lost or doubled event changes a bit.
fn step(rng: &mut Rng, number: u64) -> Step {
    if rng.chance(30) {
        return Step::Forget { card: rng.below(CARDS) };
    }
    Step::Record {
        number,
        card: rng.below(CARDS),
        terminal: rng.below(TERMINALS),
        amount: rng.below(1_000_000) as f64 / 997.0,
    }
}

fn received(number: u64) -> i64 {
    START + number as i64 * SECOND
}

fn card(number: u64) -> String {
    format!("card-of-a-person-{number}")
}

/// Returns whether the store accepted the step.
fn apply(store: &Store, step: &Step) -> Option<bool> {
    match step {
        Step::Record { number, card: of, terminal, amount } => {
            let event = Event {
                kind: "payment",
                id: &format!("p{number}"),
                occurred_at_us: received(*number),
                keys: &[("card", &card(*of)), ("terminal", &format!("t{terminal}"))],
                numbers: &[("amount", *amount)],
                texts: &[],
            };
            store.record(&event, received(*number)).ok().map(|recorded| recorded == Recorded::New)
        }
        Step::Forget { card: of } => store.forget("card", &card(*of)).ok(),
    }
}

/// The bits of all values of all entities.
fn values(store: &Store) -> Vec<u32> {
    let set = store.sets().next().unwrap();
    let digest = |feature: &Feature| (feature.name().to_owned(), set.feature_digest(feature.name()).unwrap());
    let wanted: Vec<_> = set.features().iter().map(digest).collect();
    let wanted: Vec<_> = wanted.iter().map(|(name, digest)| (name.as_str(), *digest)).collect();
    let plan = store.plan(&wanted).unwrap();
    let mut all = Vec::new();
    for of in 0..CARDS.max(TERMINALS) {
        let (card, terminal) = (card(of), format!("t{of}"));
        let entities = plan.entities().iter();
        let key = |entity: &String| Some(if entity == "card" { card.as_str() } else { terminal.as_str() });
        let mut out = vec![0.0; wanted.len()];
        store.read(&plan, &entities.map(key).collect::<Vec<_>>(), received(10_000), &mut out);
        all.extend(out.iter().map(|value| value.to_bits()));
    }
    all
}

fn options() -> StoreOptions {
    StoreOptions {
        directory: Some(PathBuf::from("/features")),
        now_us: START,
        segment_bytes: 2000,
        snapshots: SnapshotRule { bytes: 3000, interval: Duration::from_secs(60) },
        background: false,
        ..StoreOptions::in_memory(4 << 20)
    }
}

fn is_written(store: &Store) -> bool {
    matches!(pin!(store.written()).poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(())))
}

/// The most steps from the beginning after which a store in memory has these values, and the later erasures: an erasure is on
/// the disk at once, also if events before it are not.
fn kept(steps: &[Step], got: &[u32]) -> Option<Vec<Step>> {
    let memory = || Store::open(sets(), StoreOptions::in_memory(4 << 20)).unwrap();
    let counts = (0..=steps.len()).rev().flat_map(|count| [(count, usize::MAX), (count, 1), (count, 0)]);
    counts.into_iter().find_map(|(count, without)| {
        let (first, later) = steps.split_at(count);
        let mut erasures: Vec<_> = later.iter().filter(|step| matches!(step, Step::Forget { .. })).collect();
        // The last one may have failed.
        erasures.truncate(if without == 1 { erasures.len().saturating_sub(1) } else { without });
        let kept: Vec<Step> = first.iter().chain(erasures).cloned().collect();
        let store = memory();
        kept.iter().for_each(|step| {
            apply(&store, step);
        });
        (values(&store) == got).then_some(kept)
    })
}

/// One life of a machine: processes that end in all ways, and the steps that they acknowledged.
fn live(seed: u64, power: bool) {
    let machine = SimMachine::new(seed);
    let mut rng = Rng::new(seed ^ 0xFEED);
    // The steps whose effect the disk must have, then those that it may have, in order.
    let mut steps: Vec<Step> = Vec::new();
    let (mut number, mut unacknowledged) = (0, 0);
    for life in 0..6 {
        machine.fs.set_faults(Faults::default());
        let env = machine.start();
        let store =
            Store::open_in(&env, &sets(), options()).unwrap_or_else(|error| panic!("{seed}: {error}"));
        // The disk has the acknowledged steps, and a part of the others.
        let before = steps.len();
        steps = kept(&steps, &values(&store))
            .unwrap_or_else(|| panic!("seed {seed}, life {life}: no number of steps has these values"));
        let lost = before - steps.len();
        assert!(power || lost <= unacknowledged, "seed {seed}, life {life}: {lost} of {unacknowledged} lost");
        let mut durable = steps.len();
        for step in &steps {
            if let Step::Record { .. } = step {
                assert_eq!(
                    apply(&store, step),
                    Some(false),
                    "seed {seed}, life {life}: a known id counts again"
                );
            }
        }
        if rng.chance(600) {
            machine.fs.set_faults(Faults { short_write: 300, short_read: 300, ..Faults::default() });
        }
        if rng.chance(300) {
            machine.fs.set_faults(Faults {
                write: 20,
                sync: 20,
                create: 20,
                rename: 20,
                sync_dir: 20,
                short_write: 100,
                ..Faults::default()
            });
        }
        machine.fs.crash_in(rng.below(120));
        for _ in 0..rng.below(200) {
            number += 1;
            let step = step(&mut rng, number);
            let accepted = apply(&store, &step);
            let forgets = matches!(step, Step::Forget { .. });
            // An erasure that failed has changed the memory, and may be on the disk.
            if accepted.is_some() || forgets {
                steps.push(step);
            }
            if rng.chance(400) {
                store.work();
            }
            if machine.fs.is_dead() || forgets && accepted.is_none() {
                break;
            }
            if is_written(&store) {
                durable = steps.len();
            }
            if rng.chance(50) {
                machine.clock.advance(Duration::from_secs(40));
            }
        }
        if !machine.fs.is_dead() && rng.chance(300) && store.close().is_ok() {
            durable = steps.len();
        }
        unacknowledged = steps.len() - durable;
        // The process ends before its destructors: they find no disk any more.
        if power && rng.chance(500) {
            machine.fs.power_loss();
        } else {
            machine.fs.kill();
        }
        drop(store);
    }
}

#[test]
fn a_kill_at_any_operation_loses_no_acknowledged_event_and_no_erasure() {
    for seed in 0..150 {
        live(seed, false);
    }
}

#[test]
fn lost_power_loses_at_most_the_newest_events() {
    for seed in 0..150 {
        live(seed, true);
    }
}

#[test]
fn a_snapshot_is_never_ahead_of_the_journal() {
    let machine = SimMachine::new(1);
    let store = Store::open_in(&machine.start(), &sets(), options()).unwrap();
    let mut rng = Rng::new(4);
    while store.stats().snapshot.written == 0 {
        let (number, amount) = (store.stats().recorded, rng.below(1000) as f64);
        let step = Step::Record { number, card: rng.below(CARDS), terminal: rng.below(TERMINALS), amount };
        assert_eq!(apply(&store, &step), Some(true));
        store.work();
    }
    let (recorded, last) = (store.stats().recorded, values(&store));
    machine.fs.power_loss();
    drop(store);
    machine.fs.vanish(&PathBuf::from("/features/snapshot"));
    let store = Store::open_in(&machine.start(), &sets(), options()).unwrap();
    assert_eq!((store.recovery().events, values(&store)), (recorded, last));
}

#[test]
fn an_event_after_an_erasure_counts_also_if_the_events_before_it_were_lost() {
    let machine = SimMachine::new(1);
    let event = |number, amount| Step::Record { number, card: 2, terminal: 1, amount };
    let store = Store::open_in(&machine.start(), &sets(), options()).unwrap();
    (0..5).for_each(|number| assert_eq!(apply(&store, &event(number, 1.5)), Some(true)));
    assert_eq!(store.forget("card", &card(2)), Ok(true));
    machine.fs.kill();
    drop(store);
    let store =
        Store::open_in(&machine.start(), &sets(), StoreOptions { background: false, ..options() }).unwrap();
    assert_eq!(apply(&store, &event(9, 2.5)), Some(true));
    assert!(matches!(store.forget("device", "x"), Err(ForgetError::UnknownEntity { .. })));
    let last = values(&store);
    pin!(store.written());
    store.work();
    machine.fs.kill();
    drop(store);
    let store = Store::open_in(&machine.start(), &sets(), options()).unwrap();
    assert_eq!(values(&store), last);
    assert_eq!(last[12], 1_f32.to_bits());
}

/// Whether a file has a text.
fn has(machine: &SimMachine, text: &str) -> bool {
    let env = machine.start();
    machine.fs.files().iter().any(|(path, length)| {
        let mut bytes = vec![0; usize::try_from(*length).unwrap()];
        let file = env.fs.open(path, false).unwrap();
        let mut at = 0;
        while at < bytes.len() {
            at += file.read_at(&mut bytes[at..], at as u64).unwrap();
        }
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    })
}

#[test]
fn an_erasure_is_complete_after_a_crash_at_any_of_its_operations() {
    let mut crashes = 0;
    for crash in 0..80 {
        let machine = SimMachine::new(crash);
        let mut rng = Rng::new(7);
        let store = Store::open_in(&machine.start(), &sets(), options()).unwrap();
        let steps: Vec<Step> = (0..150).map(|number| step(&mut rng, number)).collect();
        let steps: Vec<_> = steps.into_iter().filter(|step| matches!(step, Step::Record { .. })).collect();
        for step in &steps {
            apply(&store, step);
            store.work();
        }
        assert!(has(&machine, &card(2)));
        machine.fs.crash_in(crash);
        let forgotten = store.forget("card", &card(2)).is_ok();
        store.work();
        crashes += u64::from(machine.fs.is_dead());
        machine.fs.kill();
        drop(store);
        let store = Store::open_in(&machine.start(), &sets(), options()).unwrap();
        if !forgotten {
            store.forget("card", &card(2)).unwrap();
        }
        store.work();
        assert_eq!(store.stats().snapshot.erasures, 0, "crash {crash}: {:?}", store.stats());
        assert!(!has(&machine, &card(2)), "crash {crash}");
        assert!(has(&machine, &card(3)));
        // The other entities have the same values, and the erased one counts again.
        let straight = Store::open(sets(), StoreOptions::in_memory(4 << 20)).unwrap();
        steps.iter().for_each(|step| assert_eq!(apply(&straight, step), Some(true)));
        straight.forget("card", &card(2)).unwrap();
        let later = Step::Record { number: 1000, card: 2, terminal: 1, amount: 3.25 };
        assert_eq!((apply(&store, &later), apply(&straight, &later)), (Some(true), Some(true)));
        assert_eq!(values(&store), values(&straight), "crash {crash}");
        // Also after a start from the journal alone.
        store.work();
        machine.fs.kill();
        drop(store);
        machine.fs.vanish(&PathBuf::from("/features/snapshot"));
        let store = Store::open_in(&machine.start(), &sets(), options()).unwrap();
        assert_eq!(apply(&store, &steps[0]), Some(false), "an id of an erased event is known");
        let erased_counts_once = values(&store)[12..13].to_vec();
        assert_eq!(erased_counts_once, vec![1_f32.to_bits()], "crash {crash}");
    }
    assert!(crashes > 10, "{crashes}");
}

#[test]
fn events_that_are_recorded_while_a_snapshot_is_copied_count_once() {
    let directory = tempfile::tempdir().unwrap();
    let options = || StoreOptions {
        directory: Some(directory.path().to_owned()),
        now_us: START,
        snapshots: SnapshotRule { bytes: 1, interval: Duration::ZERO },
        ..StoreOptions::in_memory(64 << 20)
    };
    let store = Store::open(sets(), options()).unwrap();
    let straight = Store::open(sets(), StoreOptions::in_memory(64 << 20)).unwrap();
    let steps: Vec<Step> = {
        let mut rng = Rng::new(3);
        (0..20_000).map(|number| step(&mut rng, number)).collect()
    };
    let steps: Vec<_> = steps.into_iter().filter(|step| matches!(step, Step::Record { .. })).collect();
    // Threads have cards and terminals of their own, so that the order within an entity is that of the reference.
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (store, straight, steps) = (&store, &straight, &steps);
            scope.spawn(move || {
                for step in steps.iter().filter(|step| of_thread(step) == thread) {
                    let Step::Record { number, terminal, amount, .. } = step else { continue };
                    let step = Step::Record {
                        number: *number,
                        card: *terminal,
                        terminal: *terminal,
                        amount: *amount,
                    };
                    assert_eq!(apply(store, &step), Some(true));
                    assert_eq!(apply(straight, &step), Some(true));
                }
            });
        }
    });
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while store.stats().snapshot.written < 2 {
        assert!(std::time::Instant::now() < until, "no snapshot: {:?}", store.stats());
        std::thread::yield_now();
    }
    // A process that was killed now finds these files.
    while !is_written(&store) {
        std::thread::yield_now();
    }
    let copy = tempfile::tempdir().unwrap();
    let names: BTreeSet<_> =
        std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    for name in names {
        let _ = std::fs::copy(directory.path().join(&name), copy.path().join(&name));
    }
    let killed =
        StoreOptions { directory: Some(copy.path().to_owned()), ..StoreOptions::in_memory(64 << 20) };
    let killed = Store::open(sets(), killed).unwrap();
    assert!(killed.recovery().snapshot_entities > 0, "{:?}", killed.recovery());
    assert_eq!(values(&killed), values(&straight));
    assert_eq!(values(&store), values(&straight));
}

fn of_thread(step: &Step) -> u64 {
    match step {
        Step::Record { terminal, .. } => *terminal,
        Step::Forget { .. } => 0,
    }
}
