//! What explanations of one row cost beside the bare walk, through the Rust API.
//!
//! `explain_cost --forest model.bin --covers covers.bin [--rows rows.f32] [--rounds 40]` prints one JSON line with the
//! median nanoseconds per row of the bare walk, of the walk with path attributions and the selection of seven reasons,
//! and of exact contributions. The three take turns on the same rows, and `reasons_ratio` is the median over the rounds
//! of the second by the first. The exact method leaves little of the other two in the caches. `warm_` figures are those
//! of further rounds without it.

#[expect(dead_code, reason = "this program measures laps in turns and not single calls")]
mod cost;

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use cost::{Arguments, Failure};
use scorer_core::budget::Unlimited;
use scorer_core::explain::{Covers, Largest, PathAttributions, PathScratch, ShapScratch, TreeShap};
use scorer_core::forest::{Forest, Scratch};
use serde_json::{Value, json};

/// Number of rows of a round: too many for a branch predictor to learn.
const ROWS: usize = 64;
/// Number of reasons that are selected.
const REASONS: usize = 7;

fn main() -> ExitCode {
    cost::main("explain_cost", run)
}

fn run(arguments: &Arguments) -> Result<Value, Failure> {
    let forest = Arc::new(Forest::from_bytes(&std::fs::read(arguments.required("--forest")?)?)?);
    let covers = Covers::from_bytes(&forest, &std::fs::read(arguments.required("--covers")?)?)?;
    let rounds: usize = arguments.number("--rounds", Some(40))?;
    let width = forest.num_features();
    let rows = match arguments.text("--rows") {
        Some(path) => cost::floats(path)?,
        None => random(ROWS * width),
    };
    let rows: Vec<&[f32]> = rows.chunks_exact(width).take(ROWS).collect();
    if rows.is_empty() {
        return Err("there are no rows".into());
    }
    let began = Instant::now();
    let paths = PathAttributions::new(&forest, &covers, 0);
    let prepared_paths = began.elapsed();
    let began = Instant::now();
    let shap = TreeShap::new(&forest, &covers);
    let prepared_shap = began.elapsed();
    let (mut scratch, mut exact) = (Scratch::new(&forest), ShapScratch::new(&shap));
    let mut margins = vec![0.0; forest.num_outputs()];
    let (mut attributions, mut contributions) = (PathScratch::new(&paths), vec![0.0; width]);
    let mut measure = |with_exact: bool| {
        let mut laps: [Vec<f64>; 3] = Default::default();
        for round in 0..rounds + 2 {
            let mut lap = |number: usize, work: &mut dyn FnMut(&[f32])| {
                let began = Instant::now();
                rows.iter().for_each(|row| work(black_box(row)));
                // The first rounds only warm up.
                if round >= 2 {
                    laps[number].push(began.elapsed().as_nanos() as f64 / rows.len() as f64);
                }
            };
            lap(0, &mut |row| {
                forest.margins(row, &mut scratch, &mut margins);
                black_box(&margins);
            });
            lap(1, &mut |row| {
                let _ = paths.margins(row, &Unlimited, &mut scratch, &mut margins, &mut attributions);
                black_box(Largest::of(attributions.contributions(), REASONS));
            });
            if with_exact {
                lap(2, &mut |row| {
                    shap.contributions(row, 0, &mut exact, &mut contributions);
                    black_box(&contributions);
                });
            }
        }
        let ratios = laps[0].iter().zip(&laps[1]).map(|(walk, reasons)| reasons / walk).collect();
        (laps.map(median), median(ratios))
    };
    let ([walk, reasons, exact], ratio) = measure(true);
    let ([warm_walk, warm_reasons, _], warm_ratio) = measure(false);
    Ok(json!({
        "trees": forest.num_trees(), "depth": forest.max_depth(), "features": width, "rows": rows.len(),
        "walk_ns": walk, "reasons_ns": reasons, "exact_ns": exact, "reasons_ratio": ratio,
        "warm_walk_ns": warm_walk, "warm_reasons_ns": warm_reasons, "warm_reasons_ratio": warm_ratio,
        "prepare_reasons_ms": prepared_paths.as_secs_f64() * 1e3, "prepare_exact_ms": prepared_shap.as_secs_f64() * 1e3,
        "forest_bytes": forest.heap_bytes(), "reasons_bytes": paths.heap_bytes(), "exact_bytes": shap.heap_bytes(),
    }))
}

/// The median; 0 of nothing.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

fn random(count: usize) -> Vec<f32> {
    let mut state = 7_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / 4e6 - 2.0
    };
    (0..count).map(|_| next()).collect()
}
