//! The checkpoints: those of the configuration, and those that were added while the server ran.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;

use crate::budgets::{BudgetUse, Budgets};
use crate::bundles::Loaded;
use crate::config::{CheckpointConfig, DurabilityClass, FallbackConfig, Kind, Mode};
use crate::exposure::Exposure;
use crate::rejection::Rejection;
use scorer_core::quotable;

/// A checkpoint.
pub struct Checkpoint {
    /// Its index. Configured checkpoints are sorted by name; added checkpoints follow in the order of their addition.
    pub index: usize,
    /// Name of the checkpoint.
    pub name: String,
    /// The first four bytes of the SHA-256 of its name, as in decision tokens.
    pub(crate) fingerprint: [u8; 4],
    /// The kind of its answers.
    pub kind: Kind,
    /// Greatest number of rows of one batch.
    pub max_batch_rows: u32,
    /// Settings of the checkpoint.
    pub config: CheckpointConfig,
    pub(crate) durability: DurabilityClass,
    pub(crate) fallback: Option<FallbackConfig>,
    pub(crate) exposure: Option<Exposure>,
    /// The daily budgets of the rules of bundles that answer.
    pub(crate) budgets: Budgets,
    /// The SLA.
    pub sla: Duration,
    /// Time, from the arrival of the request, within which the decision's record must be in the log.
    pub(crate) record_within: Duration,
}

/// Time limit for a record if the SLA is not enforced. After that time the log itself reports a stalled disk.
const UNENFORCED_RECORD: Duration = Duration::from_millis(100);

/// All checkpoints. Readers take no lock; a checkpoint is never removed.
pub struct Checkpoints {
    all: boxcar::Vec<Checkpoint>,
    by_name: ArcSwap<HashMap<String, usize>>,
    adding: Mutex<()>,
}

/// The reason why a checkpoint cannot be added.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    /// Its settings are not valid.
    #[error("{0}")]
    Settings(String),
    /// A checkpoint of this name has other settings.
    #[error(
        "checkpoint \"{0}\" exists with other settings; choose another name, or change its settings in the server's \
         configuration and restart the server"
    )]
    Exists(String),
}

// === impl Checkpoints ===

impl Checkpoints {
    pub(crate) fn new(config: &BTreeMap<String, CheckpointConfig>) -> Checkpoints {
        let all: boxcar::Vec<_> = config
            .iter()
            .enumerate()
            .map(|(index, (name, config))| Checkpoint::new(index, name, config))
            .collect();
        let by_name = all.iter().map(|(index, checkpoint)| (checkpoint.name.clone(), index)).collect();
        Checkpoints { all, by_name: ArcSwap::from_pointee(by_name), adding: Mutex::new(()) }
    }

    /// Adds a checkpoint. `prepare` extends everything that is stored by checkpoint index, before requests can find the
    /// checkpoint. Returns whether it is new; a checkpoint with the same settings is left unchanged.
    ///
    /// # Errors
    /// Returns an [`AddError`]. Nothing has then changed, except for changes by `prepare`.
    pub(crate) fn add(
        &self,
        name: &str,
        config: &CheckpointConfig,
        prepare: impl FnOnce(usize) -> Result<(), AddError>,
    ) -> Result<bool, AddError> {
        let _adding = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = self.find(name) {
            return if known.config == *config { Ok(false) } else { Err(AddError::Exists(name.to_owned())) };
        }
        let mut wrong = Vec::new();
        config.check(name, &mut wrong);
        if !wrong.is_empty() {
            return Err(AddError::Settings(wrong.join("; ")));
        }
        let index = self.all.count();
        prepare(index)?;
        self.all.push(Checkpoint::new(index, name, config));
        let mut by_name = HashMap::clone(&self.by_name.load());
        by_name.insert(name.to_owned(), index);
        self.by_name.store(Arc::new(by_name));
        Ok(true)
    }

    /// The checkpoint of this name, if there is one.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Checkpoint> {
        let index = *self.by_name.load().get(name)?;
        self.all.get(index)
    }

    /// The checkpoint of this name.
    ///
    /// # Errors
    /// Fails if there is no such checkpoint.
    pub fn get(&self, name: &str) -> Result<&Checkpoint, Rejection> {
        self.find(name).ok_or_else(|| {
            let known: Vec<_> = self.iter().map(|checkpoint| checkpoint.name.as_str()).collect();
            Rejection::UnknownCheckpoint { name: quotable(name), known: known.join(", ") }
        })
    }

    /// The checkpoint at an index.
    #[must_use]
    pub fn at(&self, index: usize) -> &Checkpoint {
        &self.all[index]
    }

    /// Every checkpoint, by index.
    pub fn iter(&self) -> impl Iterator<Item = &Checkpoint> {
        self.all.iter().map(|(_, checkpoint)| checkpoint)
    }
}

// === impl Checkpoint ===

impl Checkpoint {
    fn new(index: usize, name: &str, config: &CheckpointConfig) -> Checkpoint {
        Checkpoint {
            index,
            name: name.to_owned(),
            fingerprint: scorer_token::fingerprint(name.as_bytes()),
            kind: config.kind,
            max_batch_rows: config.max_batch_rows,
            config: config.clone(),
            durability: config.durability(),
            fallback: config.fallback.clone(),
            exposure: config.caps.as_ref().map(Exposure::new),
            budgets: Budgets::default(),
            sla: config.sla(),
            record_within: record_within(config.mode, config.sla()),
        }
    }

    /// What has been used of the daily budgets of a bundle's rules on the day of a time in seconds since 1970.
    #[must_use]
    pub fn budgets<'a>(&self, loaded: &'a Loaded, seconds: i64) -> Vec<BudgetUse<'a>> {
        loaded.bundle.rules().map_or_else(Vec::new, |rules| self.budgets.uses(rules.set(), seconds))
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
