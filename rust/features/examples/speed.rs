//! Time of reads and updates of 30 features of 3 entities, and the memory of the state. Prints one JSON line.
//!
//! `cargo run --release -p scorer-features --example speed -- 10000000`
//!
//! The argument is the number of entities. Every entity has one event, and a million random events of three entities follow.
//! `updates_per_s` counts by the clock, and `updates_per_core_s` by the time that the thread had a processor: they differ on a
//! machine that other programs use.

use std::error::Error;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Instant;

use scorer_features::{Event, EventError, FeatureSet, Plan, Store, StoreOptions};
use serde_json::{Value, json};

const SECOND: i64 = 1_000_000;
const START: i64 = 1_800_000_000 * SECOND;
const ENTITIES: [&str; 3] = ["card", "customer", "terminal"];
const UPDATES: u64 = 1_000_000;
const READS: u64 = 200_000;

/// Events per second, and per second that the thread had a processor.
type Rates = (f64, f64);

/// A small generator of the same numbers in every run.
struct Random(u64);

fn main() -> Result<(), Box<dyn Error>> {
    let entities: u64 = std::env::args().nth(1).map_or(Ok(10_000_000), |text| text.parse())?;
    let each = entities / 3;
    let set = FeatureSet::parse(definition().to_string().as_bytes())?;
    let store = Store::open(vec![set.clone()], StoreOptions::in_memory(64 << 30))?;
    let mut random = Random(1);
    let before = resident()?;
    let filling = Instant::now();
    for number in 0..each {
        record(&store, number, [number; 3], &mut random)?;
    }
    let fill_s = filling.elapsed().as_secs_f64();
    let updates = updates(&store, each, each, &mut random)?;
    let stats = store.stats();
    let resident = resident()?.saturating_sub(before);
    let reads = reads(&store, &plan(&store, &set)?, each, &mut random);
    drop(store);

    let directory = std::env::temp_dir().join(format!("scorer-features-speed-{}", std::process::id()));
    let journal = with_journal(set, directory.clone(), &mut random);
    std::fs::remove_dir_all(directory)?;
    let (with_journal, close_s, open_s) = journal?;
    writeln!(
        std::io::stdout().lock(),
        "{{\"entities\": {}, \"stated_bytes\": {}, \"resident_bytes\": {resident}, \"fill_events_per_s\": {:.0}, \
         \"updates_per_s\": {:.0}, \"updates_per_core_s\": {:.0}, \"updates_with_journal_per_s\": {:.0}, \
         \"updates_with_journal_per_core_s\": {:.0}, \"read_p50_us\": {:.1}, \"read_p99_us\": {:.1}, \
         \"close_s\": {close_s:.2}, \"open_s\": {open_s:.2}}}",
        stats.entities,
        stats.bytes,
        each as f64 / fill_s,
        updates.0,
        updates.1,
        with_journal.0,
        with_journal.1,
        reads.0,
        reads.1,
    )?;
    Ok(())
}

/// Ten features of each of three entities.
fn definition() -> Value {
    let feature = |entity: &str, number: usize| {
        let (aggregate, of, window) = [
            ("count", None, 86_400),
            ("count", None, 604_800),
            ("sum", Some("amount"), 86_400),
            ("mean", Some("amount"), 604_800),
            ("max", Some("amount"), 604_800),
            ("min", Some("amount"), 86_400),
            ("seconds_since_last", None, 604_800),
            ("distinct", Some("country"), 604_800),
            ("count", None, 2_592_000),
            ("sum", Some("amount"), 2_592_000),
        ][number];
        json!({"name": format!("{entity}_{number}"), "entity": entity, "event": "payment", "aggregate": aggregate,
               "of": of, "window": window})
    };
    let features: Vec<Value> =
        ENTITIES.iter().flat_map(|entity| (0..10).map(move |number| feature(entity, number))).collect();
    let payment =
        json!({"entities": ENTITIES, "numbers": ["amount"], "texts": ["country"], "accept_late": 86_400});
    json!({"name": "speed", "version": 1, "events": {"payment": payment}, "features": features})
}

fn plan(store: &Store, set: &FeatureSet) -> Result<Plan, Box<dyn Error>> {
    let names = set.features().iter().map(|feature| feature.name());
    let wanted: Option<Vec<_>> = names.map(|name| Some((name, set.feature_digest(name)?))).collect();
    Ok(store.plan(&wanted.unwrap_or_default())?)
}

/// Records one event of three entities, and waits for the journal's queue.
fn record(store: &Store, number: u64, of: [u64; 3], random: &mut Random) -> Result<(), EventError> {
    let keys = of.map(key);
    let id = format!("payment-{number}");
    let received = START + number as i64 * 1000;
    let event = Event {
        kind: "payment",
        id: &id,
        occurred_at_us: received - (random.below(3600) as i64) * SECOND,
        keys: &[(ENTITIES[0], &keys[0]), (ENTITIES[1], &keys[1]), (ENTITIES[2], &keys[2])],
        numbers: &[("amount", random.below(10_000) as f64 / 100.0)],
        texts: &[("country", ["NL", "DE", "FR", "BE"][random.below(4) as usize])],
    };
    loop {
        match store.record(&event, received) {
            Err(EventError::Busy) => std::thread::yield_now(),
            result => return result.map(|_| ()),
        }
    }
}

/// Events per second, and per second that this thread had a processor.
fn updates(store: &Store, from: u64, each: u64, random: &mut Random) -> Result<Rates, Box<dyn Error>> {
    let (started, ran) = (Instant::now(), running_s()?);
    for number in from..from + UPDATES {
        record(store, number, [0; 3].map(|_| random.below(each)), random)?;
    }
    let (took, ran) = (started.elapsed().as_secs_f64(), running_s()? - ran);
    Ok((UPDATES as f64 / took, UPDATES as f64 / ran))
}

/// Time in seconds for which this thread had a processor.
fn running_s() -> Result<f64, Box<dyn Error>> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(text.split(' ').next().unwrap_or_default().parse::<u64>()? as f64 / 1e9)
}

/// The median and the 99th percentile of reads of all features of random entities, in microseconds.
fn reads(store: &Store, plan: &Plan, each: u64, random: &mut Random) -> (f64, f64) {
    let mut out = vec![0.0; plan.features().len()];
    let now = START + (each + UPDATES) as i64 * 1000;
    let mut times: Vec<u128> = (0..READS)
        .map(|_| {
            let keys = [0; 3].map(|_| key(random.below(each)));
            let keys = keys.each_ref().map(|key| Some(key.as_str()));
            let started = Instant::now();
            store.read(plan, &keys, now, &mut out);
            started.elapsed().as_nanos()
        })
        .collect();
    times.sort_unstable();
    let at = |share: f64| times.get((READS as f64 * share) as usize).map_or(0.0, |ns| *ns as f64 / 1000.0);
    (at(0.5), at(0.99))
}

/// Events per second with a journal, and the seconds of the close and of the open after it.
fn with_journal(
    set: FeatureSet,
    directory: PathBuf,
    random: &mut Random,
) -> Result<(Rates, f64, f64), Box<dyn Error>> {
    let options = || StoreOptions {
        directory: Some(directory.clone()),
        now_us: START,
        ..StoreOptions::in_memory(16 << 30)
    };
    let store = Store::open(vec![set.clone()], options())?;
    let rate = updates(&store, 0, 100_000, random)?;
    let closing = Instant::now();
    store.close()?;
    let close_s = closing.elapsed().as_secs_f64();
    drop(store);
    let opening = Instant::now();
    drop(Store::open(vec![set], options())?);
    Ok((rate, close_s, opening.elapsed().as_secs_f64()))
}

fn key(number: u64) -> String {
    format!("{:016x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Memory of the process in bytes.
fn resident() -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}
