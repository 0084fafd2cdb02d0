//! Admission control in 10,000 seeded scenarios.

#[path = "admission/mod.rs"]
mod sim;

use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use sim::check::judge;
use sim::scenario::Scenario;

const SEEDS: u64 = 10_000;

/// Fault cases 7, 8, 11, 12.
#[test]
fn every_invariant_holds_for_ten_thousand_seeds() {
    let (next, failed) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(2, |count| count.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Relaxed);
                    if seed >= SEEDS {
                        break;
                    }
                    let scenario = Scenario::new(seed);
                    let (_, violations, _) = judge(&scenario, false);
                    if let Some(first) = violations.first() {
                        let line = format!("seed {seed} ({:?}): {first}", scenario.case);
                        failed.lock().unwrap().push((seed, line));
                    }
                }
            });
        }
    });
    let mut failed = failed.into_inner().unwrap();
    failed.sort();
    let lines: Vec<&str> = failed.iter().take(20).map(|failure| failure.1.as_str()).collect();
    assert!(
        failed.is_empty(),
        "{} of {SEEDS} seeds break an invariant; replay one with `cargo run --release -p scorer-admission --example \
         admission_sim -- --seed N --trace`:\n{}",
        failed.len(),
        lines.join("\n")
    );
}

#[test]
fn a_seed_determines_its_run() {
    for seed in 0..20 {
        let runs = [(); 2].map(|()| judge(&Scenario::new(seed), true).2);
        assert_eq!(runs[0], runs[1], "seed {seed}");
    }
}
