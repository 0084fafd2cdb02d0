//! What one append costs, by durability, and how fast a log is read back.
//!
//! `cargo run --release -p scorer-log --example append_cost -- [records] [payload bytes] [directory]`

#![expect(clippy::print_stdout, reason = "it prints what it measured")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use scorer_log::{Durability, Env, Log, LogConfig, LogError, Reader, RealFs};

fn main() -> Result<(), LogError> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: usize| arguments.next().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (records, bytes) = (number(500_000), number(1000));
    let root = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let root = root.join(format!("append-cost-{}", std::process::id()));
    let payload: Vec<u8> = (0..bytes).map(|at| (at * 31) as u8).collect();
    println!("{records} records of {bytes} bytes");
    for (name, durability, count) in [
        ("written", Durability::Written, records),
        ("async", Durability::Async, records),
        ("sync", Durability::Sync, 200),
    ] {
        let dir = root.join(name);
        let (log, _) = Log::open(Env::real(), LogConfig::new(&dir))?;
        let mut times = Vec::with_capacity(count);
        let mut refused = 0_u64;
        let began = Instant::now();
        for _ in 0..count {
            let start = Instant::now();
            refused += u64::from(log.append(&payload, durability).is_err());
            times.push(start.elapsed());
        }
        let total = began.elapsed();
        log.seal()?;
        times.sort_unstable();
        let at = |share: f64| times.get((share * count as f64) as usize).copied().unwrap_or(Duration::ZERO);
        println!(
            "{name:>8}: mean {:?}, p50 {:?}, p99 {:?}, p99.9 {:?}, refused {refused}, dropped {}",
            total / count as u32,
            at(0.5),
            at(0.99),
            at(0.999),
            log.status().dropped,
        );
    }
    let began = Instant::now();
    let mut reader = Reader::open(Arc::new(RealFs), &root.join("written"))?;
    while reader.next_record()?.is_some() {}
    let (elapsed, read) = (began.elapsed(), reader.bytes_read());
    println!("    read: {:.2} GiB/s", read as f64 / (1 << 30) as f64 / elapsed.as_secs_f64());
    let began = Instant::now();
    let (log, recovery) = Log::open(Env::real(), LogConfig::new(root.join("written")))?;
    println!("    open: {:?}, {} records replayed", began.elapsed(), recovery.replayed);
    log.seal()?;
    std::fs::remove_dir_all(&root).map_err(|source| LogError::Io { path: root, op: "remove", source })
}
