//! The configured checkpoints.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::config::{CheckpointConfig, DurabilityClass, FallbackConfig, Kind, Mode};
use crate::exposure::Exposure;
use crate::rejection::Rejection;
use scorer_core::quotable;

/// A configured checkpoint.
pub struct Checkpoint {
    /// Its place among the sorted names.
    pub index: usize,
    /// Its name.
    pub name: String,
    /// Four bytes of the SHA-256 of its name, as decision tokens hold them.
    pub(crate) fingerprint: [u8; 4],
    /// What it answers.
    pub kind: Kind,
    /// Most rows of one batch.
    pub max_batch_rows: u32,
    /// Its settings.
    pub config: CheckpointConfig,
    pub(crate) durability: DurabilityClass,
    pub(crate) fallback: Option<FallbackConfig>,
    pub(crate) exposure: Option<Exposure>,
    /// Its SLA.
    pub sla: Duration,
    /// The longest wait for a decision's record, from the arrival of the request.
    pub(crate) record_within: Duration,
}

/// The longest wait for a record where the SLA is not enforced: by then the log reports a stalled disk itself.
const UNENFORCED_RECORD: Duration = Duration::from_millis(100);

/// All checkpoints, sorted by name.
pub struct Checkpoints {
    all: Box<[Checkpoint]>,
    by_name: HashMap<String, usize>,
}

// === impl Checkpoints ===

impl Checkpoints {
    pub(crate) fn new(config: &BTreeMap<String, CheckpointConfig>) -> Checkpoints {
        let all: Box<[_]> = config
            .iter()
            .enumerate()
            .map(|(index, (name, config))| Checkpoint {
                index,
                name: name.clone(),
                fingerprint: scorer_token::fingerprint(name.as_bytes()),
                kind: config.kind,
                max_batch_rows: config.max_batch_rows,
                config: config.clone(),
                durability: config.durability(),
                fallback: config.fallback.clone(),
                exposure: config.caps.as_ref().map(Exposure::new),
                sla: config.sla(),
                record_within: record_within(config.mode, config.sla()),
            })
            .collect();
        let by_name = all.iter().map(|checkpoint| (checkpoint.name.clone(), checkpoint.index)).collect();
        Checkpoints { all, by_name }
    }

    /// The checkpoint of this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Checkpoint> {
        self.by_name.get(name).map(|&index| &self.all[index])
    }

    /// The checkpoint of this name.
    ///
    /// # Errors
    /// No such checkpoint is configured.
    pub fn get(&self, name: &str) -> Result<&Checkpoint, Rejection> {
        self.find(name).ok_or_else(|| {
            let known: Vec<_> = self.iter().map(|checkpoint| checkpoint.name.as_str()).collect();
            Rejection::UnknownCheckpoint { name: quotable(name), known: known.join(", ") }
        })
    }

    /// The checkpoint at a place.
    #[must_use]
    pub fn at(&self, index: usize) -> &Checkpoint {
        &self.all[index]
    }

    /// Every checkpoint, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &Checkpoint> {
        self.all.iter()
    }
}

fn record_within(mode: Mode, sla: Duration) -> Duration {
    match mode {
        Mode::Enforce => sla,
        Mode::Observe | Mode::Off => sla.max(UNENFORCED_RECORD),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_enforced_sla_bounds_the_wait_for_a_record() {
        let sla = Duration::from_millis(10);
        let waits = [Mode::Enforce, Mode::Observe, Mode::Off].map(|mode| record_within(mode, sla));
        assert_eq!(waits, [sla, UNENFORCED_RECORD, UNENFORCED_RECORD]);
        assert_eq!(record_within(Mode::Off, Duration::from_secs(1)), Duration::from_secs(1));
    }
}
