//! From an alias that moves to the first answer by the new bundle: where the time went.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::metrics::Histogram;

/// For whom and since when a bundle is loaded, as the control plane gives it in JSON.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LoadFor {
    /// The checkpoint that it will answer at: its promise, and its live bundle, are what the warm-up is
    /// compared with. Without one nothing is.
    #[serde(default)]
    pub checkpoint: Option<String>,
    /// When the alias was moved, microseconds since the Unix epoch.
    #[serde(default)]
    pub changed_at_us: Option<i64>,
    /// When the control plane saw it.
    #[serde(default)]
    pub noticed_at_us: Option<i64>,
    /// How long fetching its files took, microseconds.
    #[serde(default)]
    pub fetch_us: u64,
    /// Take it even if it is slower than `warmup_max_ratio` allows: a deliberate release of a larger model.
    #[serde(default)]
    pub allow_slower: bool,
}

/// The steps of loading, milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Stages {
    /// Reading the files.
    pub read_ms: f64,
    /// Their SHA-256.
    pub verify_ms: f64,
    /// Validating and compiling.
    pub assemble_ms: f64,
    /// Scoring the golden cases.
    pub golden_ms: f64,
    /// Touching every page and measuring.
    pub warm_up_ms: f64,
}

/// One bundle's way to one checkpoint.
#[derive(Clone, Debug)]
pub(crate) struct Journey {
    pub(crate) checkpoint: String,
    pub(crate) lane_table: u64,
    pub(crate) wanted: LoadFor,
    pub(crate) stages: Stages,
    /// When loading began; when the table was put in force. Microseconds since the Unix epoch.
    pub(crate) began_us: i64,
    pub(crate) swapped_us: i64,
}

/// What is known of all of them, by checkpoint.
#[derive(Debug, Default)]
pub(crate) struct Journeys(Mutex<BTreeMap<String, Known>>);

#[derive(Debug)]
pub(crate) struct Known {
    /// Alias change to first answer.
    pub(crate) total: Histogram,
    /// Of the newest: seconds by stage.
    pub(crate) stages: Vec<(&'static str, f64)>,
}

// === impl Journey ===

impl Journey {
    /// Seconds by stage, in the order in which they happen, the whole last.
    pub(crate) fn finish(&self, first_answer_us: i64) -> Vec<(&'static str, f64)> {
        let seconds = |from: i64, to: i64| (to - from).max(0) as f64 / 1e6;
        let noticed = self.wanted.noticed_at_us.unwrap_or(self.began_us);
        // Clocks of two machines may differ: an alias is never seen before it was moved.
        let changed = self.wanted.changed_at_us.unwrap_or(noticed).min(noticed);
        let Stages { read_ms, verify_ms, assemble_ms, golden_ms, warm_up_ms } = self.stages;
        let loading = (read_ms + verify_ms + assemble_ms + golden_ms + warm_up_ms) / 1e3;
        let fetch = self.wanted.fetch_us as f64 / 1e6;
        let swap = (seconds(noticed, self.swapped_us) - fetch - loading).max(0.0);
        vec![
            ("notice", seconds(changed, noticed)),
            ("fetch", fetch),
            ("read", read_ms / 1e3),
            ("verify", verify_ms / 1e3),
            ("assemble", assemble_ms / 1e3),
            ("golden", golden_ms / 1e3),
            ("warm_up", warm_up_ms / 1e3),
            ("swap", swap),
            ("first_answer", seconds(self.swapped_us, first_answer_us)),
            ("total", seconds(changed, first_answer_us)),
        ]
    }
}

/// Stages as an event shows them.
pub(crate) fn shown(stages: &[(&'static str, f64)]) -> Value {
    let millis = |seconds: f64| (seconds * 1e6).round() / 1e3;
    stages.iter().map(|&(stage, seconds)| (format!("{stage}_ms"), json!(millis(seconds)))).collect()
}

// === impl Journeys ===

impl Journeys {
    pub(crate) fn add(&self, checkpoint: &str, stages: Vec<(&'static str, f64)>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known
            .entry(checkpoint.to_owned())
            .or_insert_with(|| Known { total: Histogram::of_loads(), stages: Vec::new() });
        if let Some(&(_, total)) = stages.last() {
            known.total.record(Duration::from_secs_f64(total));
        }
        known.stages = stages;
    }

    pub(crate) fn read<T>(&self, read: impl FnOnce(&BTreeMap<String, Known>) -> T) -> T {
        read(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stages_add_up_to_the_whole() {
        let stages =
            Stages { read_ms: 1.0, verify_ms: 2.0, assemble_ms: 3.0, golden_ms: 4.0, warm_up_ms: 5.0 };
        let wanted = LoadFor {
            changed_at_us: Some(1_000_000),
            noticed_at_us: Some(1_250_000),
            fetch_us: 10_000,
            ..LoadFor::default()
        };
        let journey = Journey {
            checkpoint: "c".to_owned(),
            lane_table: 2,
            wanted,
            stages,
            began_us: 1_262_000,
            swapped_us: 1_300_000,
        };
        let found = journey.finish(1_304_000);
        let of = |name: &str| found.iter().find(|(stage, _)| *stage == name).unwrap().1;
        assert_eq!((of("notice"), of("fetch"), of("first_answer"), of("total")), (0.25, 0.01, 0.004, 0.304));
        assert!((of("swap") - 0.025).abs() < 1e-9);
        let sum: f64 = found[..found.len() - 1].iter().map(|(_, seconds)| seconds).sum();
        assert!((sum - of("total")).abs() < 1e-9, "{found:?}");
        // A registry whose clock is ahead.
        let ahead = LoadFor { changed_at_us: Some(9_000_000), ..journey.wanted.clone() };
        assert_eq!(Journey { wanted: ahead, ..journey }.finish(1_304_000)[0], ("notice", 0.0));
    }
}
