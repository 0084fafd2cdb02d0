//! The store of computed features in this process, as the source of the answer path.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use scorer_core::bundle::ComputedFeatures;
use scorer_engine::{Events, FeatureReader, FeatureSource, Found, Level, Loading, ReadColumn, SourceRefusal};
use scorer_features::{FeatureSet, OpenError, Plan, Store, StoreOptions};
use serde::Serialize;
use serde_json::json;

use super::prepare::{parse_sets, plan, unknown_entity};
use super::record::PRIVACY;
use crate::config::FeatureConfig;
use crate::error::ServerError;

/// Greatest size of the events that wait for the journal, in bytes.
const QUEUE_BYTES: usize = 8 << 20;

/// The store, and the counter of events that break a privacy rule.
pub(crate) struct FeatureStore {
    pub(crate) store: Arc<Store>,
    refused_for_privacy: AtomicU64,
}

/// The reads of one bundle.
struct Reader {
    store: Arc<Store>,
    plan: Plan,
    columns: Vec<ReadColumn>,
}

/// The status of the store.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StoreStatus {
    /// The feature sets, as `name@version`.
    pub sets: Vec<String>,
    /// `ok`, or the error of the journal or of the connection to Redis.
    pub state: String,
    /// Directory of the journal, or `redis` and its address; empty if the state is only in memory.
    pub directory: String,
    /// Number of entities with state.
    pub entities: u64,
    /// Memory of the state in bytes.
    pub bytes: u64,
    /// The limit of the memory in bytes.
    pub max_bytes: u64,
    /// Number of recorded events since the start.
    pub recorded: u64,
    /// Number of duplicates since the start.
    pub duplicates: u64,
    /// Numbers of refused events since the start, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// Number of entities that were removed to keep the limit.
    pub evicted: u64,
    /// Size of the journal in bytes.
    pub journal_bytes: u64,
    /// Size of the events that a start would read after the snapshot, in bytes.
    pub replay_bytes: u64,
    /// Time of the latest snapshot of this process in milliseconds since the Unix epoch; 0 if there is none.
    pub snapshot_at_ms: i64,
    /// Its size in bytes.
    pub snapshot_bytes: u64,
    /// Why the latest snapshot or erasure failed; empty if it did not.
    pub snapshot_error: String,
    /// Number of erased entities whose keys are still in files.
    pub erasures: u64,
    /// Time of the oldest such erasure in milliseconds since the Unix epoch; 0 if there is none.
    pub oldest_erasure_ms: i64,
}

// === impl FeatureStore ===

impl FeatureStore {
    /// Opens the store, and rebuilds its state from the journal.
    pub(crate) fn open(
        config: &FeatureConfig,
        now_us: i64,
        events: &Events,
    ) -> Result<Arc<FeatureStore>, ServerError> {
        let fail = |error: String| ServerError::Config(format!("features: {error}"));
        let sets = parse_sets(config)?;
        let options = StoreOptions {
            directory: config.directory.clone(),
            memory_bytes: config.memory_bytes,
            queue_bytes: QUEUE_BYTES,
            now_us,
            ..StoreOptions::in_memory(config.memory_bytes)
        };
        let store = Store::open(sets, options).map_err(|error: OpenError| fail(error.to_string()))?;
        let recovery = store.recovery();
        let intact = recovery.damaged.is_empty() && recovery.snapshot_unused.is_none();
        let level = if intact { Level::Info } else { Level::Warning };
        let damaged: BTreeMap<String, u64> =
            recovery.damaged.iter().map(|(path, bytes)| (path.display().to_string(), *bytes)).collect();
        let stats = store.stats();
        let fields = json!({
            "sets": store.sets().map(FeatureSet::label).collect::<Vec<_>>(),
            "events": recovery.events,
            "skipped": recovery.skipped,
            "damaged": damaged,
            "snapshot_entities": recovery.snapshot_entities,
            "snapshot_unused": recovery.snapshot_unused,
            "entities": stats.entities,
            "bytes": stats.bytes,
        });
        events.push(level, "feature_store_opened", fields);
        Ok(Arc::new(FeatureStore { store: Arc::new(store), refused_for_privacy: AtomicU64::new(0) }))
    }

    /// Counts an event that breaks a privacy rule.
    pub(crate) fn refused_for_privacy(&self) {
        self.refused_for_privacy.fetch_add(1, Relaxed);
    }

    /// The current status.
    pub(crate) fn status(&self) -> StoreStatus {
        let stats = self.store.stats();
        let mut refused = stats.refused;
        refused.insert(PRIVACY, self.refused_for_privacy.load(Relaxed));
        StoreStatus {
            sets: self.store.sets().map(FeatureSet::label).collect(),
            state: stats.journal_error.unwrap_or_else(|| "ok".to_owned()),
            directory: self.store.directory().map(|path| path.display().to_string()).unwrap_or_default(),
            entities: stats.entities,
            bytes: stats.bytes,
            max_bytes: self.store.memory_bytes(),
            recorded: stats.recorded,
            duplicates: stats.duplicates,
            refused,
            evicted: stats.evicted,
            journal_bytes: stats.journal_bytes,
            replay_bytes: stats.snapshot.journal_bytes,
            snapshot_at_ms: stats.snapshot.at_us / 1000,
            snapshot_bytes: stats.snapshot.bytes,
            snapshot_error: stats.snapshot.error.unwrap_or_default(),
            erasures: stats.snapshot.erasures,
            oldest_erasure_ms: stats.snapshot.oldest_erasure_us / 1000,
        }
    }
}

impl FeatureSource for FeatureStore {
    fn prepare(&self, features: &ComputedFeatures) -> Result<Arc<dyn FeatureReader>, SourceRefusal> {
        let plan = plan(features, |wanted| self.store.plan(wanted))?;
        let columns = plan.features().map(|(digest, entities)| ReadColumn { digest, entities }).collect();
        Ok(Arc::new(Reader { store: Arc::clone(&self.store), plan, columns }))
    }
}

impl FeatureReader for Reader {
    fn entities(&self) -> &[String] {
        self.plan.entities()
    }

    fn columns(&self) -> &[ReadColumn] {
        &self.columns
    }

    fn read(&self, keys: &[Option<&str>], at_us: i64, out: &mut [f32]) -> Loading {
        let known = self.store.read(&self.plan, keys, at_us, out);
        let unknown_entity = unknown_entity(&self.columns, keys, |at| known.has(at));
        Loading::Ready(Found { unknown_entity, unusable: 0 })
    }
}
