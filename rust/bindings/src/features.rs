//! `_scorer.FeatureStore`: a store of computed features, for replays of events offline.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use scorer_features::{Event, EventError, FeatureSet, Plan, Recorded, Store, StoreOptions};
use serde_json::json;

use crate::error::Failure;
use crate::hex::hex;

/// A column of texts, one per row.
pub(crate) type Texts = Vec<Option<String>>;

#[pyclass(frozen, module = "scorer._scorer")]
pub(crate) struct FeatureStore {
    store: Store,
}

#[pymethods]
impl FeatureStore {
    /// Opens a store of one feature set and rebuilds its state from `directory`, as of `now_us`.
    #[new]
    #[pyo3(signature = (definition, directory=None, memory_bytes=1 << 30, now_us=0))]
    fn new(
        py: Python<'_>,
        definition: &[u8],
        directory: Option<PathBuf>,
        memory_bytes: u64,
        now_us: i64,
    ) -> PyResult<Self> {
        let opened = py.detach(|| {
            let set = FeatureSet::parse(definition).map_err(|error| error.to_string())?;
            let options = StoreOptions { directory, now_us, ..StoreOptions::in_memory(memory_bytes) };
            Store::open(vec![set], options).map_err(|error| error.to_string())
        });
        Ok(Self { store: opened.map_err(Failure::features)? })
    }

    /// Records one event per row, in their order. Returns `new`, `duplicate` or the reason of the refusal for each.
    /// All columns have the same length; a value of `None` is absent.
    #[allow(clippy::too_many_arguments, reason = "one argument per part of an event")]
    fn record_batch(
        &self,
        py: Python<'_>,
        kinds: Vec<String>,
        ids: Vec<String>,
        occurred_at_us: Vec<i64>,
        received_at_us: Vec<i64>,
        keys: BTreeMap<String, Texts>,
        numbers: BTreeMap<String, Vec<Option<f64>>>,
        texts: BTreeMap<String, Texts>,
    ) -> PyResult<Vec<&'static str>> {
        let rows = kinds.len();
        let lengths = [ids.len(), occurred_at_us.len(), received_at_us.len()].into_iter();
        let lengths = lengths.chain(keys.values().chain(texts.values()).map(Vec::len));
        same_length(rows, lengths.chain(numbers.values().map(Vec::len)))?;
        Ok(py.detach(|| {
            let times = occurred_at_us.iter().zip(&received_at_us);
            let rows = kinds.iter().zip(&ids).zip(times).enumerate();
            rows.map(|(row, ((kind, id), (occurred_at_us, received_at_us)))| {
                let numbers: Vec<(&str, f64)> = numbers
                    .iter()
                    .filter_map(|(field, column)| Some((field.as_str(), (*column.get(row)?)?)))
                    .collect();
                let event = Event {
                    kind,
                    id,
                    occurred_at_us: *occurred_at_us,
                    keys: &of_row(&keys, row),
                    numbers: &numbers,
                    texts: &of_row(&texts, row),
                };
                self.record(&event, *received_at_us)
            })
            .collect()
        }))
    }

    /// Reads features by name. `keys` has a column for each entity; row `i` is read as of `now_us[i]`. Returns the values
    /// as float32 in row order.
    fn read_batch<'py>(
        &self,
        py: Python<'py>,
        features: Vec<String>,
        keys: BTreeMap<String, Texts>,
        now_us: Vec<i64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        same_length(now_us.len(), keys.values().map(Vec::len))?;
        let read = py.detach(|| {
            let wanted = wanted(self.store.sets(), &features)?;
            let plan = self.store.plan(&pairs(&wanted)).map_err(|error| error.to_string())?;
            read_rows(&plan, &keys, &now_us, |keys, now_us, values| {
                self.store.read(&plan, keys, now_us, values);
                Ok(())
            })
        });
        Ok(PyBytes::new(py, &read.map_err(Failure::features)?))
    }

    /// Removes the state of an entity. Returns whether there was any.
    fn forget(&self, py: Python<'_>, entity: &str, key: &str) -> PyResult<bool> {
        let forgotten = py.detach(|| self.store.forget(entity, key));
        Ok(forgotten.map_err(|error| Failure::features(error.to_string()))?)
    }

    /// Counts and sizes, as JSON.
    fn stats(&self, py: Python<'_>) -> String {
        let (stats, recovery) = py.detach(|| (self.store.stats(), self.store.recovery().clone()));
        json!({
            "entities": stats.entities,
            "bytes": stats.bytes,
            "recorded": stats.recorded,
            "duplicates": stats.duplicates,
            "refused": stats.refused,
            "evicted": stats.evicted,
            "forgotten": stats.forgotten,
            "journal_bytes": stats.journal_bytes,
            "journal_error": stats.journal_error,
            "recovered": recovery.events,
            "snapshots": stats.snapshot.written,
            "erasures": stats.snapshot.erasures,
        })
        .to_string()
    }

    /// Writes the journal and the snapshot, and syncs them. Later events are refused.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.store.close()).map_err(Failure::features)?)
    }
}

impl FeatureStore {
    fn record(&self, event: &Event<'_>, received_at_us: i64) -> &'static str {
        loop {
            return match self.store.record(event, received_at_us) {
                Ok(Recorded::New) => "new",
                Ok(Recorded::Duplicate) => "duplicate",
                Err(EventError::Refused { refusal, .. }) => refusal.as_str(),
                // A replay waits for its own journal.
                Err(EventError::Busy) => {
                    std::thread::yield_now();
                    continue;
                }
                Err(EventError::Journal(_)) => "journal",
            };
        }
    }
}

/// Returns the digest of each feature of a definition, as hexadecimal digits.
#[pyfunction]
pub(crate) fn feature_digests(py: Python<'_>, definition: &[u8]) -> PyResult<BTreeMap<String, String>> {
    let set = py.detach(|| FeatureSet::parse(definition));
    let set = set.map_err(|error| Failure::features(error.to_string()))?;
    let digest = |name: &str| Some((name.to_owned(), hex(&set.feature_digest(name)?)));
    Ok(set.features().iter().filter_map(|feature| digest(feature.name())).collect())
}

/// Returns the canonical form of a definition.
#[pyfunction]
pub(crate) fn canonical_features<'py>(py: Python<'py>, definition: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let set = py.detach(|| FeatureSet::parse(definition));
    let set = set.map_err(|error| Failure::features(error.to_string()))?;
    Ok(PyBytes::new(py, &set.canonical()))
}

/// The features with the digests that a set gives them.
pub(crate) fn wanted<'a>(
    sets: impl Iterator<Item = &'a FeatureSet>,
    features: &[String],
) -> Result<Vec<(String, [u8; 32])>, String> {
    let sets: Vec<&FeatureSet> = sets.collect();
    let digest = |name: &String| {
        let known = sets.iter().find_map(|set| set.feature_digest(name));
        known
            .map(|digest| (name.clone(), digest))
            .ok_or_else(|| format!("feature {name:?}: the set has none of this name"))
    };
    features.iter().map(digest).collect()
}

pub(crate) fn pairs(wanted: &[(String, [u8; 32])]) -> Vec<(&str, [u8; 32])> {
    wanted.iter().map(|(name, digest)| (name.as_str(), *digest)).collect()
}

/// Reads row by row with the keys of each row. Returns the values as float32 in row order.
pub(crate) fn read_rows<E>(
    plan: &Plan,
    keys: &BTreeMap<String, Texts>,
    now_us: &[i64],
    mut read: impl FnMut(&[Option<&str>], i64, &mut [f32]) -> Result<(), E>,
) -> Result<Vec<u8>, E> {
    let columns: Vec<Option<&Texts>> = plan.entities().iter().map(|entity| keys.get(entity)).collect();
    let mut values = vec![0_f32; plan.features().len()];
    let mut out = Vec::with_capacity(now_us.len() * values.len() * 4);
    for (row, now_us) in now_us.iter().enumerate() {
        let keys: Vec<Option<&str>> =
            columns.iter().map(|column| column.and_then(|column| column.get(row)?.as_deref())).collect();
        read(&keys, *now_us, &mut values)?;
        out.extend(values.iter().flat_map(|value| value.to_ne_bytes()));
    }
    Ok(out)
}

fn of_row(columns: &BTreeMap<String, Texts>, row: usize) -> Vec<(&str, &str)> {
    columns.iter().filter_map(|(name, column)| Some((name.as_str(), column.get(row)?.as_deref()?))).collect()
}

pub(crate) fn same_length(rows: usize, lengths: impl Iterator<Item = usize>) -> PyResult<()> {
    let lengths: BTreeSet<usize> = lengths.filter(|length| *length != rows).collect();
    match lengths.first() {
        None => Ok(()),
        Some(other) => Err(Failure::features(format!(
            "columns: one has {other} rows and another {rows}; give all the same length"
        ))
        .into()),
    }
}
