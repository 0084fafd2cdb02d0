//! Files with random changes: they are read or refused. `rust/fuzz` searches for such files for longer.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::path::{Path, PathBuf};

use scorer_features::{Event, FeatureSet, Store, StoreOptions, fuzzing};
use scorer_log::sim::{Rng, SimMachine};

const START: i64 = 1_800_000_000_000_000;
const SET: &str = r#"{"name": "s", "version": 1,
    "events": {"e": {"entities": ["card"], "numbers": ["amount"], "texts": ["country"], "accept_late": 86400}},
    "features": [
        {"name": "n", "entity": "card", "event": "e", "aggregate": "count", "window": 86400},
        {"name": "d", "entity": "card", "event": "e", "aggregate": "distinct", "of": "country", "window": 86400},
        {"name": "h", "entity": "card", "event": "e", "aggregate": "decayed_sum", "of": "amount", "half_life": 60}]}"#;

fn set() -> FeatureSet {
    FeatureSet::parse(SET.as_bytes()).unwrap()
}

/// The files of a store, by the beginning of their names.
fn files() -> Vec<(String, Vec<u8>)> {
    let machine = SimMachine::new(1);
    let options = StoreOptions {
        directory: Some(PathBuf::from("/features")),
        now_us: START,
        background: false,
        ..StoreOptions::in_memory(1 << 20)
    };
    let store = Store::open_in(&machine.start(), &[set()], options).unwrap();
    for number in 0..40 {
        let event = Event {
            kind: "e",
            id: &format!("event-{number}"),
            occurred_at_us: START - number,
            keys: &[("card", &format!("c{}", number % 5))],
            numbers: &[("amount", number as f64)],
            texts: &[("country", ["NL", "DE"][number as usize % 2])],
        };
        store.record(&event, START + number).unwrap();
    }
    store.work();
    store.forget("card", "c1").unwrap();
    let erasures = content(&machine, Path::new("/features/erasures"));
    store.close().unwrap();
    let mut all = vec![("erasures".to_owned(), erasures)];
    for (path, _) in machine.fs.files() {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name == "snapshot" || name.starts_with("journal") {
            all.push((name, content(&machine, &path)));
        }
    }
    all
}

fn content(machine: &SimMachine, path: &Path) -> Vec<u8> {
    let file = machine.start().fs.open(path, false).unwrap();
    let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

#[test]
fn files_with_random_changes_are_read_or_refused() {
    let (set, files) = (set(), files());
    assert_eq!(files.len(), 3);
    let mut rng = Rng::new(5);
    for (name, original) in &files {
        for _ in 0..3000 {
            let mut bytes = original.clone();
            for _ in 0..1 + rng.below(4) {
                match rng.below(3) {
                    0 => bytes.truncate(rng.below(bytes.len() as u64 + 1) as usize),
                    _ if bytes.is_empty() => {}
                    1 => {
                        let at = rng.below(bytes.len() as u64) as usize;
                        bytes[at] = rng.below(256) as u8;
                    }
                    _ => {
                        let at = rng.below(bytes.len() as u64) as usize;
                        bytes.insert(at, rng.below(256) as u8);
                    }
                }
            }
            if rng.chance(900) {
                fuzzing::seal(&mut bytes);
            }
            match name.as_str() {
                "snapshot" => fuzzing::snapshot(&set, &bytes),
                "erasures" => fuzzing::erasures(&bytes),
                _ => fuzzing::journal(&bytes),
            }
        }
    }
}
