//! The store: applies events to the state of entities and reads features.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use scorer_log::{DirLock, Env};

use crate::definition::FeatureSet;
use crate::error::{EventError, ForgetError, OpenError, PlanError, Refusal};
use crate::event::Event;
use crate::ids::Ids;
pub use crate::journal::Written;
use crate::journal::{Journal, Start};
use crate::kinds::MAX_KEY;
use crate::plan::{Known, Plan};
pub use crate::recovery::Recovery;
use crate::recovery::recover;
use crate::tables::Tables;
use crate::upkeep::Upkeep;
pub use crate::upkeep::{SnapshotRule, SnapshotStatus};

/// Greatest size of the events that wait for the journal, in bytes.
const QUEUE_BYTES: usize = 8 << 20;
/// Size of a file of the journal from which on the next one begins.
const SEGMENT_BYTES: u64 = 64 << 20;

/// The settings of a store.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Directory of the journal. Without it, the state is lost when the store is dropped.
    pub directory: Option<PathBuf>,
    /// Greatest memory of the state in bytes. A quarter of it is for the ids of recent events.
    pub memory_bytes: u64,
    /// Greatest size of the events that wait for the journal, in bytes.
    pub queue_bytes: usize,
    /// The current time in microseconds since the Unix epoch.
    pub now_us: i64,
    /// When snapshots are written while the store runs.
    pub snapshots: SnapshotRule,
    /// Size of a file of the journal from which on the next one begins, in bytes.
    pub segment_bytes: u64,
    /// Whether threads of the store write files. Otherwise [`Store::work`] does, for tests.
    pub background: bool,
}

/// Features of entities, computed from events.
pub struct Store {
    tables: Arc<Tables>,
    files: Option<Arc<Upkeep>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Held as long as the store uses the directory.
    _lock: Option<Box<dyn DirLock>>,
    memory_bytes: u64,
    recovery: Recovery,
    recorded: AtomicU64,
    duplicates: AtomicU64,
    refused: [AtomicU64; Refusal::ALL.len()],
}

/// The result of an accepted event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// It was applied.
    New,
    /// An event with the id was recorded before. Nothing was changed.
    Duplicate,
}

/// Counts and sizes of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stats {
    /// Number of entities with state.
    pub entities: u64,
    /// Memory of the state in bytes.
    pub bytes: u64,
    /// Number of recorded events since the start.
    pub recorded: u64,
    /// Number of duplicates since the start.
    pub duplicates: u64,
    /// Numbers of refused events since the start, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// Number of entities that were removed to keep the memory limit.
    pub evicted: u64,
    /// Number of ids that were forgotten early to keep the memory limit.
    pub forgotten: u64,
    /// Size of the journal in bytes.
    pub journal_bytes: u64,
    /// Why the journal cannot be written.
    pub journal_error: Option<String>,
    /// The latest snapshot, and erasures that are not complete.
    pub snapshot: SnapshotStatus,
}

// === impl StoreOptions ===

impl StoreOptions {
    /// A store in memory with this limit.
    #[must_use]
    pub fn in_memory(memory_bytes: u64) -> StoreOptions {
        StoreOptions {
            directory: None,
            memory_bytes,
            queue_bytes: QUEUE_BYTES,
            now_us: 0,
            snapshots: SnapshotRule::default(),
            segment_bytes: SEGMENT_BYTES,
            background: true,
        }
    }
}

// === impl Store ===

impl Store {
    /// Opens a store and rebuilds its state from the snapshot and the journal.
    ///
    /// # Errors
    /// The sets contradict each other, or the directory cannot be used.
    pub fn open(sets: Vec<FeatureSet>, options: StoreOptions) -> Result<Store, OpenError> {
        Store::open_in(&Env::real(), &sets, options)
    }

    /// Opens a store on a file system and with clocks of the caller.
    ///
    /// # Errors
    /// The sets contradict each other, or the directory cannot be used.
    pub fn open_in(env: &Env, sets: &[FeatureSet], options: StoreOptions) -> Result<Store, OpenError> {
        let mut labels = BTreeSet::new();
        if let Some(set) = sets.iter().find(|set| !labels.insert(set.label())) {
            return Err(OpenError::Sets(format!("{} is given twice; keep one", set.label())));
        }
        let memory_bytes = options.memory_bytes;
        let empty = |salt| Tables::new(sets, memory_bytes, salt);
        let store = |tables, recovery| Store {
            tables,
            files: None,
            thread: Mutex::new(None),
            _lock: None,
            memory_bytes,
            recovery,
            recorded: AtomicU64::new(0),
            duplicates: AtomicU64::new(0),
            refused: Default::default(),
        };
        let Some(directory) = options.directory.clone() else {
            return Ok(store(Arc::new(empty(Ids::random())), Recovery::default()));
        };
        let fs = &env.fs;
        let fail = |source| OpenError::Io { path: directory.clone(), source };
        fs.create_dir_all(&directory).map_err(fail)?;
        let lock = fs.lock(&directory.join("lock")).map_err(fail)?;
        let lock = lock.ok_or_else(|| OpenError::Locked { path: directory.clone() })?;
        let recovered = recover(&**fs, &directory, &empty, Ids::random())
            .map_err(|(path, source)| OpenError::Io { path, source })?;
        let start = Start {
            files: recovered.files,
            last: recovered.last,
            replayed: recovered.replayed,
            now_us: options.now_us,
            queue_bytes: options.queue_bytes,
            segment_bytes: options.segment_bytes,
            background: options.background,
        };
        let journal = Journal::start(fs, &directory, start).map_err(fail)?;
        let tables = Arc::new(recovered.tables);
        let mut store = store(Arc::clone(&tables), recovered.report);
        store._lock = Some(lock);
        let upkeep = Upkeep::new(
            env.clone(),
            directory.clone(),
            tables,
            journal,
            recovered.erasures,
            options.snapshots,
        );
        let upkeep = Arc::new(upkeep);
        if options.background {
            let upkeep = Arc::clone(&upkeep);
            let thread = std::thread::Builder::new().name("scorer-feat-keep".to_owned());
            let thread = thread.spawn(move || upkeep.run()).map_err(fail)?;
            store.thread = Mutex::new(Some(thread));
        }
        store.files = Some(upkeep);
        Ok(store)
    }

    /// What was read at the start.
    #[must_use]
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// Applies an event and queues it for the journal, in this order for every id.
    ///
    /// # Errors
    /// The event is not valid, or the journal does not accept it. Nothing has then changed.
    pub fn record(&self, event: &Event<'_>, received_at_us: i64) -> Result<Recorded, EventError> {
        let kind = match self.tables.check(event, received_at_us) {
            Ok(kind) => kind,
            Err(error) => {
                if let EventError::Refused { refusal, .. } = &error
                    && let Some(count) = self.refused.get(*refusal as usize)
                {
                    count.fetch_add(1, Relaxed);
                }
                return Err(error);
            }
        };
        let is_new = self.tables.record(kind, event, received_at_us, || match &self.files {
            Some(files) => files.journal.append(event, received_at_us),
            None => Ok(()),
        })?;
        let count = if is_new { &self.recorded } else { &self.duplicates };
        count.fetch_add(1, Relaxed);
        Ok(if is_new { Recorded::New } else { Recorded::Duplicate })
    }

    /// Removes the state of an entity from memory, and durably notes that its key is to be removed from the snapshot and the
    /// journal, which follows at once. Events that are recorded later count again. The call waits for the disk. Returns
    /// whether the entity had state.
    ///
    /// # Errors
    /// No set has such entities, too many erasures are not complete, or the note cannot be written.
    pub fn forget(&self, entity: &str, key: &str) -> Result<bool, ForgetError> {
        if key.is_empty() || key.len() > MAX_KEY {
            return Err(ForgetError::Key { length: key.len(), max: MAX_KEY });
        }
        if let Some(files) = &self.files {
            return files.forget(entity, key);
        }
        let known = self.tables.remove(entity, key, || {});
        known.ok_or_else(|| ForgetError::unknown_entity(&self.tables.entities(), entity))
    }

    /// Does the work of the store's threads that is due.
    pub fn work(&self) {
        if let Some(files) = &self.files {
            files.journal.write();
            files.round();
        }
    }

    /// Resolves when all events that were recorded before the call are in the journal's file.
    pub fn written(&self) -> Written {
        self.files.as_ref().map_or(Written::AT_ONCE, |files| files.journal.written())
    }

    /// Prepares a read of features, by name and digest.
    ///
    /// # Errors
    /// No set has a feature with this definition.
    pub fn plan(&self, features: &[(&str, [u8; 32])]) -> Result<Plan, PlanError> {
        Plan::new(&self.tables.sets, features)
    }

    /// Reads features as of `now_us`. `keys` are in the order of [`Plan::entities`]; `out` has one place per feature. The
    /// call takes the lock of one shard for each entity, and does not allocate.
    pub fn read(&self, plan: &Plan, keys: &[Option<&str>], now_us: i64, out: &mut [f32]) -> Known {
        plan.read(&self.tables.sets, keys, now_us, out)
    }

    /// The sets of the store.
    pub fn sets(&self) -> impl Iterator<Item = &FeatureSet> {
        self.tables.sets.iter().map(|state| &state.set)
    }

    /// The limit of the memory in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// Directory of the journal.
    #[must_use]
    pub fn directory(&self) -> Option<&Path> {
        self.files.as_ref().map(|files| files.directory.as_path())
    }

    /// Counts and sizes.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let (entities, bytes) = self.tables.size();
        let files = self.files.as_ref();
        let (journal_bytes, journal_error) = files.map_or((0, None), |files| files.journal.status());
        let refused = Refusal::ALL.iter().zip(&self.refused);
        Stats {
            entities,
            bytes,
            recorded: self.recorded.load(Relaxed),
            duplicates: self.duplicates.load(Relaxed),
            refused: refused.map(|(refusal, count)| (refusal.as_str(), count.load(Relaxed))).collect(),
            evicted: self.tables.evicted.load(Relaxed),
            forgotten: self.tables.forgotten.load(Relaxed),
            journal_bytes,
            journal_error,
            snapshot: files.map(|files| files.status()).unwrap_or_default(),
        }
    }

    /// Writes and syncs the journal and a snapshot of the state. Later events are refused.
    ///
    /// # Errors
    /// Some events may not be in the journal, or the snapshot cannot be written: the next start then reads the journal.
    pub fn close(&self) -> Result<(), String> {
        self.end_thread();
        self.files.as_ref().map_or(Ok(()), |files| files.close())
    }

    fn end_thread(&self) {
        if let Some(files) = &self.files {
            files.stop();
        }
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.end_thread();
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
