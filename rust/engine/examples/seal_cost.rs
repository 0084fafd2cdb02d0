//! What encrypting the sensitive features of a record costs, by the number of features. Prints microseconds per record
//! and megabytes (10^6 bytes) of feature values per second, on one thread.
//!
//! `cargo run --release -p scorer-engine --example seal_cost -- [records]`

#![expect(clippy::print_stdout, reason = "it prints what it measured")]

use std::error::Error;
use std::time::Instant;

use scorer_core::schema::FeatureSpec;
use scorer_engine::{FeatureRule, FeatureRules, Sensitive};
use scorer_privacy::{PublicKey, Sealer};
use scorer_proto::v1::DecisionRecord;
use serde_json::json;

/// A key whose private part nothing uses.
const READER: &str = "-----BEGIN PUBLIC KEY-----\n\
    MCowBQYDK2VuAyEAj0DFrbaPJWJK5bIU6nZ6bslNgp09e14a0bpvPiE4KF8=\n-----END PUBLIC KEY-----\n";
/// Features of a record.
const FEATURES: usize = 256;
/// Every figure is the median of so many runs.
const RUNS: usize = 9;

fn main() -> Result<(), Box<dyn Error>> {
    let records: usize = std::env::args().nth(1).map_or(Ok(100_000), |text| text.parse())?;
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), READER)?;
    let reader = PublicKey::from_file(file.path())?;
    let names: Vec<String> = (0..FEATURES).map(|at| format!("feature_{at}")).collect();
    let features: Vec<FeatureSpec> =
        serde_json::from_value(names.iter().map(|name| json!({"name": name, "type": "number"})).collect())?;
    let values: Vec<f32> = (0..FEATURES).map(|at| at as f32).collect();
    let mut record = DecisionRecord {
        checkpoint: "fraud.checkout".to_owned(),
        decision_id: "01934567-89ab-7cde-8f01-23456789abcd".to_owned(),
        features: values.clone(),
        ..DecisionRecord::default()
    };
    let mut scratch = Vec::new();
    println!("{records} records of {FEATURES} features, median of {RUNS} runs");
    println!("{:>9}  {:>13}  {:>8}", "encrypted", "us per record", "MB/s");
    for sealed in [0, 1, 4, 16, 64, FEATURES] {
        let rules: FeatureRules =
            names.iter().take(sealed).map(|name| (name.clone(), FeatureRule::Encrypt)).collect();
        let sensitive = Sensitive::of(&features, &rules);
        let sealer = Sealer::new(&reader, b"seal_cost")?;
        let mut seconds = Vec::with_capacity(RUNS);
        for _ in 0..RUNS {
            let began = Instant::now();
            for _ in 0..records {
                record.features.copy_from_slice(&values);
                sensitive.withhold(&mut record, Some(&sealer), &mut scratch)?;
            }
            seconds.push(began.elapsed().as_secs_f64() / records as f64);
        }
        seconds.sort_by(f64::total_cmp);
        let each = seconds.get(RUNS / 2).copied().unwrap_or_default();
        let bytes = (sealed * size_of::<f32>()) as f64;
        println!("{sealed:9}  {:13.3}  {:8.1}", each * 1e6, bytes / each / 1e6);
    }
    let began = Instant::now();
    for _ in 0..1000 {
        Sealer::new(&reader, b"seal_cost")?;
    }
    println!("new data key: {:.1} us", began.elapsed().as_secs_f64() * 1e3);
    Ok(())
}
