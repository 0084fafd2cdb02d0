//! What evaluating a forest costs through the Rust API, as one line of JSON.
//!
//! ```text
//! cargo run --release -p scorer-core --example forest_cost -- FOREST [key=value ..]
//! ```
//! `FOREST` is a packed forest (`Forest.save`, or `forest.bin` of a bundle). Keys:
//! `work` single (one row per call, the default) or bulk; `rows` a file of little-endian float32 rows, or `seed` for
//! random ones with 5 % missing; `count` rows to use at most (4096); `isa` portable, neon, avx2 or avx512 (the
//! best there is); `repeat` passes over the rows (30); `expect` a file of float32 margins that each must equal bit for bit.
//!
//! `min_ns` and `median_ns` are per row: the least and the median over the passes.
#![expect(clippy::print_stdout, reason = "the line is what the example is for")]

use std::collections::HashMap;
use std::hint::black_box;
use std::time::Instant;

use scorer_core::forest::{Forest, Isa, Scratch};
use serde_json::json;

type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    if cfg!(debug_assertions) {
        return Err("built without --release: what it measures means nothing".into());
    }
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("give a packed forest")?;
    let mut options: HashMap<String, String> = HashMap::new();
    for argument in arguments {
        let (key, value) = argument.split_once('=').ok_or(format!("{argument:?} is not key=value"))?;
        options.insert(key.to_owned(), value.to_owned());
    }
    let mut option = |key: &str, default: &str| options.remove(key).unwrap_or_else(|| default.to_owned());
    let work = option("work", "single");
    let isa = option("isa", Isa::best().name());
    let (rows, seed) = (option("rows", ""), option("seed", "1"));
    let (count, repeat) = (option("count", "4096").parse()?, option("repeat", "30").parse::<usize>()?.max(1));
    let expect = option("expect", "");
    if let Some(key) = options.keys().next() {
        return Err(format!("{key:?} is no option").into());
    }

    let bytes = std::fs::read(&path)?;
    let began = Instant::now();
    let forest = Forest::from_bytes(&bytes)?;
    let load = began.elapsed();
    let isa =
        Isa::ALL.into_iter().find(|set| set.name() == isa).ok_or(format!("{isa:?} is no instruction set"))?;
    let forest = forest.with_isa(isa)?;
    let width = forest.num_features();
    let mut rows = if rows.is_empty() { random(seed.parse()?, count, width) } else { read(&rows)? };
    rows.truncate(count.min(rows.len() / width) * width);
    let count = rows.len() / width;
    if count == 0 {
        return Err("there are no rows".into());
    }

    let mut out = vec![0.0; count * forest.num_outputs()];
    let mut scratch = Scratch::new(&forest);
    let mut pass = || -> Result<u128, Error> {
        let began = Instant::now();
        match work.as_str() {
            "single" => {
                for (row, out) in rows.chunks_exact(width).zip(out.chunks_exact_mut(forest.num_outputs())) {
                    forest.margins(black_box(row), &mut scratch, out);
                }
            }
            "bulk" => forest.predict(black_box(&rows), count, true, &mut out)?,
            other => return Err(format!("work {other:?} is neither single nor bulk").into()),
        }
        black_box(&out);
        Ok(began.elapsed().as_nanos())
    };
    pass()?;
    let mut passes = (0..repeat).map(|_| pass()).collect::<Result<Vec<_>, _>>()?;
    passes.sort_unstable();
    let per_row = |nanoseconds: u128| nanoseconds as f64 / count as f64;
    let compared = if expect.is_empty() { 0 } else { compare(&out, &read(&expect)?)? };
    let line = json!({
        "forest": path, "work": work, "isa": isa.name(), "rows": count, "trees": forest.num_trees(),
        "depth": forest.max_depth(), "min_ns": per_row(passes[0]), "median_ns": per_row(passes[repeat / 2]),
        "load_ms": load.as_secs_f64() * 1e3, "heap_bytes": forest.heap_bytes(), "file_bytes": bytes.len(),
        "equal_margins": compared,
    });
    println!("{line}");
    Ok(())
}

fn read(path: &str) -> Result<Vec<f32>, Error> {
    let bytes = std::fs::read(path)?;
    Ok(bytes.as_chunks::<4>().0.iter().map(|&chunk| f32::from_le_bytes(chunk)).collect())
}

fn random(seed: u64, count: usize, width: usize) -> Vec<f32> {
    // xorshift64*: any spread will do.
    let mut state = seed | 1;
    let mut next = || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40) as f32 / (1_u64 << 24) as f32
    };
    (0..count * width)
        .map(|_| {
            // The sum of four uniform values is close enough to a normal one.
            let value = (next() + next() + next() + next() - 2.0) * 1.7;
            if next() < 0.05 { f32::NAN } else { value }
        })
        .collect()
}

fn compare(found: &[f64], expected: &[f32]) -> Result<usize, Error> {
    for (at, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        if found.to_bits() != f64::from(expected).to_bits() {
            return Err(format!("margin {at} is {found}, not {expected}").into());
        }
    }
    Ok(found.len().min(expected.len()))
}
