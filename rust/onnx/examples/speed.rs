//! Measures one row on one thread: `cargo run --release -p scorer-onnx --example speed -- FILE COLUMNS`.
//!
//! It prints JSON: the score of the row `sin(0.37 * column)`, the median and the 99th percentile of the time of an
//! evaluation, and the median time of a load, in microseconds. A sample is the mean of 100 evaluations.

use std::io::{Error, Write as _};
use std::time::Instant;

use scorer_onnx::{Net, NetOptions, NetScratch};

const SAMPLES: usize = 2000;
const CALLS: usize = 100;

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let usage = || Error::other("give the path of an ONNX file and the number of its columns");
    let file = std::fs::read(arguments.next().ok_or_else(usage)?)?;
    let count: usize = arguments.next().and_then(|text| text.parse().ok()).ok_or_else(usage)?;
    let names: Vec<String> = (0..count).map(|at| format!("c{at}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let parse = || Net::parse(&file, &names, NetOptions::default()).map_err(Error::other);
    let net = parse()?;
    let mut loads = Vec::with_capacity(100);
    for _ in 0..100 {
        let began = Instant::now();
        std::hint::black_box(parse()?);
        loads.push(began.elapsed().as_secs_f64() * 1e6);
    }
    let row: Vec<f32> = (0..count).map(|at| (at as f32 * 0.37).sin()).collect();
    let mut scratch = NetScratch::new(&net);
    let mut run = || net.run(std::hint::black_box(&row), &mut scratch, || false).map_err(Error::other);
    let score = run()?;
    let mut times = Vec::with_capacity(SAMPLES);
    for _ in 0..SAMPLES {
        let began = Instant::now();
        for _ in 0..CALLS {
            std::hint::black_box(run()?);
        }
        times.push(began.elapsed().as_secs_f64() * 1e6 / CALLS as f64);
    }
    times.sort_by(f64::total_cmp);
    loads.sort_by(f64::total_cmp);
    let (median, tail, load) = (times[SAMPLES / 2], times[SAMPLES * 99 / 100], loads[loads.len() / 2]);
    writeln!(
        std::io::stdout(),
        "{{\"score\": {score}, \"median_us\": {median:.3}, \"p99_us\": {tail:.3}, \"load_us\": {load:.1}}}"
    )
}
