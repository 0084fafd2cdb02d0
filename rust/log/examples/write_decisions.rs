//! Writes a log of random scores with outcomes, for measurements of what reads logs.
//!
//! `cargo run --release -p scorer-log --example write_decisions -- DIR DECISIONS FINGERPRINT NUMBERS CATEGORIES`
//!
//! A decision has `NUMBERS` features of 0 to 100 and `CATEGORIES` ones of eight categories, and is labelled approve
//! below a score of 0.5, review below 0.9, else decline. One in five has an outcome `fraud`.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it prints what it wrote, or how it is called"
)]

use std::process::ExitCode;

use prost::Message;
use scorer_log::{Durability, Env, Log, LogConfig, LogError};
use scorer_proto::v1::log_record::Record;
use scorer_proto::v1::{DecisionRecord, LogRecord, OutcomeProof, OutcomeRecord};

const CATEGORIES: u64 = 8;
/// Time of the first decision, in microseconds since 1970. The others follow it at 5,000 per second.
const BEGIN: i64 = 1_790_000_000_000_000;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to 1.
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / 9_007_199_254_740_992.0
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments.get(at).and_then(|text| text.parse::<u64>().ok());
    let (Some(dir), Some(decisions), Some(fingerprint), Some(numbers), Some(categories)) =
        (arguments.first(), number(1), number(2), number(3), number(4))
    else {
        eprintln!("usage: write_decisions DIR DECISIONS FINGERPRINT NUMBERS CATEGORIES");
        return ExitCode::from(2);
    };
    match write(dir, decisions, fingerprint, numbers, categories) {
        Ok(()) => {
            println!("{decisions} decisions");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write(dir: &str, decisions: u64, fingerprint: u64, numbers: u64, categories: u64) -> Result<(), LogError> {
    let (log, _) = Log::open(Env::real(), LogConfig { background: false, ..LogConfig::new(dir) })?;
    let mut random = Random(1);
    for at in 0..decisions {
        let score = random.share() * random.share();
        let mut features: Vec<f32> =
            (0..numbers).map(|_| (random.share() * 10_000.0).round() as f32 / 100.0).collect();
        features.extend((0..categories).map(|_| (random.next() % CATEGORIES) as f32));
        let id = format!("payment-{at:012}");
        let decided_at_us = BEGIN + at as i64 * 200;
        let label = if score < 0.5 {
            "approve"
        } else if score < 0.9 {
            "review"
        } else {
            "decline"
        };
        let decision = DecisionRecord {
            decision_id: id.clone(),
            checkpoint: "fraud.checkout".to_owned(),
            lane: "live".to_owned(),
            lane_table: 1,
            bundle: vec![7; 32],
            decided_at_us,
            entity: format!("customer-{:08}", random.next() % 1_000_000),
            features,
            schema_fingerprint: fingerprint,
            margin: (score / (1.0 - score)).ln(),
            score,
            decision: label.to_owned(),
            data_load_us: 12,
            exec_us: 9,
            ..DecisionRecord::default()
        };
        log.append(&encoded(Record::Decision(decision)), Durability::Written)?;
        if random.next().is_multiple_of(5) {
            let outcome = OutcomeRecord {
                decision_id: id,
                checkpoint: "fraud.checkout".to_owned(),
                kind: "fraud".to_owned(),
                value: f64::from(random.share() < score),
                received_at_us: decided_at_us + 1_000_000,
                proof: OutcomeProof::Known.into(),
                ..OutcomeRecord::default()
            };
            log.append(&encoded(Record::Outcome(outcome)), Durability::Written)?;
        }
        if at.is_multiple_of(50_000) {
            log.sync()?;
        }
    }
    log.seal()
}

fn encoded(record: Record) -> Vec<u8> {
    LogRecord { record: Some(record) }.encode_to_vec()
}
