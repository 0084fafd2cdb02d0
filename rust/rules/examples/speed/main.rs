//! Measures rules and list look-ups on one thread: `cargo run --release -p scorer-rules --example speed`.
#![expect(
    clippy::print_stdout,
    clippy::expect_used,
    clippy::panic,
    reason = "a program that prints figures and stops at errors"
)]
#![allow(dead_code, reason = "the comparison with peers uses the rest of the workload")]

mod workload;

use std::hint::black_box;
use std::time::Instant;

use scorer_rules::{KeySet, ListKey};
use workload::{Ours, Random, measure, rows, rules};

const KEYS: usize = 10_000_000;
const LOOKUPS: usize = 2_000_000;

fn main() {
    println!("300 rules of 5 conditions, one request, one thread (values set, all rules evaluated)");
    let rows = rows(64);
    for (name, probability) in
        [("every rule fires", 1.0), ("conditions true at 80 %", 0.8), ("at 50 %", 0.5), ("at 1 %", 0.01)]
    {
        let mut ours = Ours::new(&rules(probability));
        let (median, high) = measure(100_000, |call| {
            black_box(ours.run(&rows[call % rows.len()]));
        });
        let (block, _) = measure(5_000, |_| {
            black_box(ours.run_rows(&rows));
        });
        let each = block / rows.len() as f64;
        println!(
            "  {name:<24} p50 {median:6.2} µs  p99 {high:6.2} µs; of {} requests together {each:.2} µs each",
            rows.len()
        );
    }
    let key = ListKey::new([5; 16]);
    let hashes: Vec<u64> = (0..KEYS as i64).map(|id| key.int(id * 7)).collect();
    let start = Instant::now();
    let set = KeySet::new(1, &hashes).expect("fewer keys than the limit");
    let built = start.elapsed().as_secs_f64();
    drop(hashes);
    println!("list of {KEYS} ids: built in {built:.2} s, at most {} places per look-up", set.longest());
    let mut random = Random(3);
    let ids: Vec<i64> = (0..LOOKUPS).map(|_| random.below(KEYS * 14) as i64).collect();
    let start = Instant::now();
    let found = ids.iter().filter(|id| set.contains(key.int(**id))).count();
    let each = start.elapsed().as_secs_f64() * 1e9 / LOOKUPS as f64;
    println!("  hash and look-up: {each:.0} ns on average of {LOOKUPS}, {found} found");
    let texts: Vec<String> = ids.iter().take(LOOKUPS / 4).map(|id| format!("card-{id:012}")).collect();
    let start = Instant::now();
    let found = texts.iter().filter(|text| set.contains(key.text(text))).count();
    let each = start.elapsed().as_secs_f64() * 1e9 / texts.len() as f64;
    println!("  of strings: {each:.0} ns, {found} found");
}
