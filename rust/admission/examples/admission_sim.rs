//! Drives admission through seeded scenarios and prints one JSON line per case.
//!
//! ```text
//! cargo run --release -p scorer-admission --example admission_sim                       # 10,000 seeds
//! cargo run --release -p scorer-admission --example admission_sim -- --seeds 1000 --from 500
//! cargo run --release -p scorer-admission --example admission_sim -- --seed 42 --trace   # one, step by step
//! ```
//!
//! Exits with 1 if any seed breaks an invariant, and names it.

#[path = "../tests/admission/mod.rs"]
mod sim;

use std::error::Error;
use std::io::Write as _;
use std::process::ExitCode;

use sim::check::{Figures, judge};
use sim::scenario::{CASES, Case, Scenario};

struct Options {
    from: u64,
    seeds: u64,
    trace: bool,
    case: Option<String>,
}

/// What one case's seeds showed.
#[derive(Default)]
struct Sum {
    seeds: u64,
    requests: usize,
    failed: u64,
    worst_p99: f64,
    goodput: Vec<f64>,
    ratio: Vec<f64>,
    /// By how much less the highest tier was shed than the lowest.
    tiers: Vec<f64>,
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let options = options()?;
    let mut out = std::io::stdout().lock();
    let mut sums: Vec<Sum> = CASES.iter().map(|_| Sum::default()).collect();
    let mut failed = 0;
    for seed in options.from..options.from + options.seeds {
        let scenario = Scenario::new(seed);
        if options.case.as_ref().is_some_and(|case| *case != format!("{:?}", scenario.case)) {
            continue;
        }
        let (figures, violations, trace) = judge(&scenario, options.trace);
        for line in trace {
            writeln!(out, "{line}")?;
        }
        for what in &violations {
            writeln!(out, "seed {seed} ({:?}): {what}", scenario.case)?;
        }
        if options.seeds == 1 {
            writeln!(out, "{scenario:#?}\n{figures:#?}")?;
        }
        failed += u64::from(!violations.is_empty());
        sums[case_index(scenario.case)].add(&figures, !violations.is_empty());
    }
    for (case, sum) in CASES.iter().zip(&mut sums).filter(|pair| pair.1.seeds > 0) {
        sum.goodput.sort_by(f64::total_cmp);
        sum.ratio.sort_by(f64::total_cmp);
        sum.tiers.sort_by(f64::total_cmp);
        writeln!(
            out,
            "{{\"case\": \"{case:?}\", \"seeds\": {}, \"requests\": {}, \"failed\": {}, \"worst_p99_of_sla\": {:.3}, \
             \"goodput_min\": {:.3}, \"goodput_median\": {:.3}, \"p99_beside_median\": {:.3}, \"p99_beside_p95\": {:.3}, \"tier_gap_p05\": {:.3}, \"tier_gap_median\": {:.3}}}",
            sum.seeds,
            sum.requests,
            sum.failed,
            sum.worst_p99,
            part(&sum.goodput, 0.0),
            part(&sum.goodput, 0.5),
            part(&sum.ratio, 0.5),
            part(&sum.ratio, 0.95),
            part(&sum.tiers, 0.05),
            part(&sum.tiers, 0.5),
        )?;
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn case_index(case: Case) -> usize {
    CASES.iter().position(|known| *known == case).unwrap_or(0)
}

fn part(sorted: &[f64], part: f64) -> f64 {
    sorted.get((sorted.len() as f64 * part) as usize).copied().unwrap_or(0.0)
}

fn options() -> Result<Options, Box<dyn Error>> {
    let mut options = Options { from: 0, seeds: 10_000, trace: false, case: None };
    let mut given = std::env::args().skip(1);
    while let Some(option) = given.next() {
        let mut value = || given.next().ok_or(format!("{option} needs a value"));
        match option.as_str() {
            "--seed" => (options.from, options.seeds) = (value()?.parse()?, 1),
            "--seeds" => options.seeds = value()?.parse()?,
            "--from" => options.from = value()?.parse()?,
            "--case" => options.case = Some(value()?),
            "--trace" => options.trace = true,
            _ => return Err(format!("{option} is not an option; see the top of this file").into()),
        }
    }
    Ok(options)
}

// === impl Sum ===

impl Sum {
    fn add(&mut self, figures: &Figures, failed: bool) {
        self.seeds += 1;
        self.requests += figures.requests;
        self.failed += u64::from(failed);
        self.worst_p99 = self.worst_p99.max(figures.p99);
        if figures.goodput > 0.0 {
            self.goodput.push(figures.goodput);
        }
        if let Some((top, bottom)) = figures.tiers {
            self.tiers.push(bottom - top);
        }
        if let Some((with, without)) = figures.beside {
            self.ratio.push(with / without.max(1e-9));
        }
    }
}
