//! The store: applies events to the state of entities and reads features.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::definition::FeatureSet;
use crate::error::{EventError, OpenError, PlanError, Refusal};
use crate::event::Event;
use crate::frame::OwnedEvent;
use crate::ids::{Ids, Place};
use crate::journal::Journal;
pub use crate::journal::Written;
use crate::kinds::{self, EventKind};
use crate::plan::{Known, Plan};
use crate::segments;
use crate::snapshot;
use crate::state::SetState;

/// Greatest size of the events that wait for the journal, in bytes.
const QUEUE_BYTES: usize = 8 << 20;
/// Size of the replayed files from which on a start writes a snapshot, in bytes.
const SNAPSHOT_AFTER: u64 = 64 << 20;
/// Part of the memory that ids may use.
const IDS_PART: u64 = 4;

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
}

/// Features of entities, computed from events.
#[derive(Debug)]
pub struct Store {
    sets: Vec<SetState>,
    kinds: BTreeMap<String, EventKind>,
    journal: Option<Journal>,
    directory: Option<PathBuf>,
    /// Held as long as the store uses the directory.
    _lock: Option<File>,
    memory_bytes: u64,
    recovery: Recovery,
    recorded: AtomicU64,
    duplicates: AtomicU64,
    evicted: AtomicU64,
    forgotten: AtomicU64,
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

/// What was read from the journal at the start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Number of events after the snapshot.
    pub events: u64,
    /// Number of entities of the snapshot.
    pub snapshot_entities: u64,
    /// Why the snapshot was not used. All files of the journal were then read.
    pub snapshot_unused: Option<String>,
    /// Number of events of kinds that no set declares any more.
    pub skipped: u64,
    /// Files with bytes at their end that are not a complete event, with the number of these bytes.
    pub damaged: Vec<(PathBuf, u64)>,
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
}

// === impl StoreOptions ===

impl StoreOptions {
    /// A store in memory with this limit.
    #[must_use]
    pub fn in_memory(memory_bytes: u64) -> StoreOptions {
        StoreOptions { directory: None, memory_bytes, queue_bytes: QUEUE_BYTES, now_us: 0 }
    }
}

// === impl Store ===

impl Store {
    /// Opens a store and rebuilds its state from the journal.
    ///
    /// # Errors
    /// The sets contradict each other, or the directory cannot be used.
    pub fn open(sets: Vec<FeatureSet>, options: StoreOptions) -> Result<Store, OpenError> {
        let mut labels = BTreeSet::new();
        if let Some(set) = sets.iter().find(|set| !labels.insert(set.label())) {
            return Err(OpenError::Sets(format!("{} is given twice; keep one", set.label())));
        }
        let fresh = || -> Vec<SetState> { sets.iter().cloned().map(SetState::new).collect() };
        let sets = fresh();
        let kinds = kinds::all(&sets, Ids::random());
        let mut store = Store {
            sets,
            kinds,
            journal: None,
            directory: options.directory.clone(),
            _lock: None,
            memory_bytes: options.memory_bytes,
            recovery: Recovery::default(),
            recorded: AtomicU64::new(0),
            duplicates: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
            refused: Default::default(),
        };
        if let Some(directory) = options.directory {
            let fail = |source| OpenError::Io { path: directory.clone(), source };
            fs::create_dir_all(&directory).map_err(fail)?;
            store._lock = Some(lock(&directory)?);
            let mut recovery = Recovery::default();
            let mut covered = 0;
            match snapshot::read(&directory, fresh()) {
                Ok(None) => {}
                Ok(Some(loaded)) => {
                    (store.sets, store.kinds, covered) = (loaded.sets, loaded.kinds, loaded.segment);
                    recovery.snapshot_entities = store.sets.iter().map(|set| set.size().0).sum();
                }
                Err(reason) => recovery.snapshot_unused = Some(reason),
            }
            let mut segments = segments::list(&directory).map_err(fail)?;
            let (mut replayed, last) = (0, segments.last().map(|last| last.number));
            for segment in segments.iter_mut().filter(|segment| segment.number > covered) {
                let fail = |source| OpenError::Io { path: segment.path.clone(), source };
                let damaged = segments::replay(segment, &mut |event| store.replay(event, &mut recovery));
                let damaged = damaged.map_err(fail)?;
                if damaged > 0 {
                    recovery.damaged.push((segment.path.clone(), damaged));
                }
                if damaged > 0 && Some(segment.number) == last {
                    let path = segment.path.clone();
                    segments::cut(segment, damaged).map_err(|source| OpenError::Io { path, source })?;
                }
                replayed += segment.bytes;
            }
            store.recovery = recovery;
            if let Some(last) = last
                && replayed >= SNAPSHOT_AFTER
            {
                snapshot::write(&directory, &store.sets, &store.kinds, last).map_err(fail)?;
            }
            let keep = store.sets.iter().map(SetState::horizon).max().unwrap_or(0);
            let journal = Journal::start(
                directory.clone(),
                segments,
                covered,
                options.now_us,
                keep,
                options.queue_bytes,
            );
            store.journal = Some(journal.map_err(fail)?);
        }
        Ok(store)
    }

    /// What was read from the journal at the start.
    #[must_use]
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// Applies an event and queues it for the journal, in this order for every id.
    ///
    /// # Errors
    /// The event is not valid, or the journal does not accept it. Nothing has then changed.
    pub fn record(&self, event: &Event<'_>, received_at_us: i64) -> Result<Recorded, EventError> {
        let kind = match self.check(event, received_at_us) {
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
        // The place is locked until the event is applied, so that a duplicate waits for it.
        let Some(mut place) = kind.ids.place(event.id) else { return Ok(Recorded::Duplicate) };
        if place.is_known(received_at_us) {
            self.duplicates.fetch_add(1, Relaxed);
            return Ok(Recorded::Duplicate);
        }
        if let Some(journal) = &self.journal {
            journal.append(event, received_at_us)?;
        }
        self.remember(&mut place, received_at_us);
        self.apply(kind, event, received_at_us);
        self.recorded.fetch_add(1, Relaxed);
        Ok(Recorded::New)
    }

    fn check(&self, event: &Event<'_>, received_at_us: i64) -> Result<&EventKind, EventError> {
        let kind = kinds::declared(&self.kinds, event)?;
        kind.check(event, received_at_us)?;
        Ok(kind)
    }

    fn remember(&self, place: &mut Place<'_>, received_at_us: i64) {
        let bytes = usize::try_from(self.memory_bytes / IDS_PART).unwrap_or(usize::MAX);
        let forgotten = place.insert(received_at_us, Place::limit(bytes, self.kinds.len()));
        self.forgotten.fetch_add(forgotten, Relaxed);
    }

    fn apply(&self, kind: &EventKind, event: &Event<'_>, received_at_us: i64) {
        let bytes = self.memory_bytes - self.memory_bytes / IDS_PART;
        let shards = (SetState::shards() * self.sets.len().max(1)) as u64;
        let limit = usize::try_from(bytes / shards).unwrap_or(usize::MAX);
        for set in kind.sets.iter().filter_map(|at| self.sets.get(*at)) {
            let removed = set.apply(event, received_at_us, limit);
            self.evicted.fetch_add(removed, Relaxed);
        }
    }

    /// Applies an event of the journal, as it was applied when it was recorded.
    fn replay(&self, event: OwnedEvent, recovery: &mut Recovery) {
        let keys = pairs(&event.keys);
        let texts = pairs(&event.texts);
        let numbers: Vec<(&str, f64)> = event.numbers.iter().map(|(name, value)| (&**name, *value)).collect();
        let read = Event {
            kind: &event.kind,
            id: &event.id,
            occurred_at_us: event.occurred_at_us,
            keys: &keys,
            numbers: &numbers,
            texts: &texts,
        };
        let Some(kind) = self.kinds.get(&event.kind) else {
            recovery.skipped += 1;
            return;
        };
        let Some(mut place) = kind.ids.place(&event.id) else { return };
        if place.is_known(event.received_at_us) {
            return;
        }
        self.remember(&mut place, event.received_at_us);
        self.apply(kind, &read, event.received_at_us);
        recovery.events += 1;
    }

    /// Resolves when all events that were recorded before the call are in the journal's file.
    pub fn written(&self) -> Written {
        self.journal.as_ref().map_or(Written::AT_ONCE, Journal::written)
    }

    /// Prepares a read of features, by name and digest.
    ///
    /// # Errors
    /// No set has a feature with this definition.
    pub fn plan(&self, features: &[(&str, [u8; 32])]) -> Result<Plan, PlanError> {
        Plan::new(&self.sets, features)
    }

    /// Reads features as of `now_us`. `keys` are in the order of [`Plan::entities`]; `out` has one place per feature. The
    /// call takes the lock of one shard for each entity, and does not allocate.
    pub fn read(&self, plan: &Plan, keys: &[Option<&str>], now_us: i64, out: &mut [f32]) -> Known {
        plan.read(&self.sets, keys, now_us, out)
    }

    /// The sets of the store.
    pub fn sets(&self) -> impl Iterator<Item = &FeatureSet> {
        self.sets.iter().map(|state| &state.set)
    }

    /// The limit of the memory in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// Directory of the journal.
    #[must_use]
    pub fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    /// Counts and sizes.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let (entities, bytes) =
            self.sets.iter().map(SetState::size).fold((0, 0), |sum, size| (sum.0 + size.0, sum.1 + size.1));
        let ids: u64 = self.kinds.values().map(|kind| kind.ids.bytes()).sum();
        let (journal_bytes, journal_error) = self.journal.as_ref().map_or((0, None), Journal::status);
        let refused = Refusal::ALL.iter().zip(&self.refused);
        Stats {
            entities,
            bytes: bytes + ids,
            recorded: self.recorded.load(Relaxed),
            duplicates: self.duplicates.load(Relaxed),
            refused: refused.map(|(refusal, count)| (refusal.as_str(), count.load(Relaxed))).collect(),
            evicted: self.evicted.load(Relaxed),
            forgotten: self.forgotten.load(Relaxed),
            journal_bytes,
            journal_error,
        }
    }

    /// Writes and syncs the journal and a snapshot of the state. Later events are refused.
    ///
    /// # Errors
    /// Some events may not be in the journal, or the snapshot cannot be written: the next start then reads the journal.
    pub fn close(&self) -> Result<(), String> {
        let (Some(journal), Some(directory)) = (&self.journal, &self.directory) else { return Ok(()) };
        journal.close()?;
        if self.recorded.load(Relaxed) == 0 && self.recovery.events == 0 {
            return Ok(());
        }
        // The journal accepts no event any more. An event that it accepted before is applied while its id is locked, and
        // the snapshot takes these locks before it reads the entities.
        let written = snapshot::write(directory, &self.sets, &self.kinds, journal.segment());
        written.map_err(|error| format!("{}: snapshot: {error}", directory.display()))
    }
}

fn pairs(list: &[(String, String)]) -> Vec<(&str, &str)> {
    list.iter().map(|(name, value)| (&**name, &**value)).collect()
}

/// Takes the lock of a directory.
fn lock(directory: &Path) -> Result<File, OpenError> {
    let path = directory.join("lock");
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(|source| OpenError::Io { path: path.clone(), source })?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::Locked { path: directory.to_owned() }),
        Err(TryLockError::Error(source)) => Err(OpenError::Io { path, source }),
    }
}
