//! Work beside the recording of events: snapshots, erasures in files, and the removal of old files.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use scorer_log::Env;

use crate::SECOND;
use crate::erasures::{self, Erasure, Erasures};
use crate::error::ForgetError;
use crate::journal::Journal;
use crate::snapshot;
use crate::tables::Tables;

/// Longest time between two looks for work.
const LOOK: Duration = Duration::from_secs(1);
/// Time after a failure until the work is tried again.
const PAUSE: Duration = Duration::from_secs(30);

/// When a snapshot is written while the store runs: as soon as there are events since the last one, and one of both holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotRule {
    /// The journal has grown by this many bytes, and by half of the snapshot's size.
    pub bytes: u64,
    /// This time has passed.
    pub interval: Duration,
}

impl Default for SnapshotRule {
    fn default() -> SnapshotRule {
        SnapshotRule { bytes: 256 << 20, interval: Duration::from_secs(3600) }
    }
}

/// The files of a store and their upkeep.
pub(crate) struct Upkeep {
    pub(crate) env: Env,
    pub(crate) directory: PathBuf,
    pub(crate) tables: Arc<Tables>,
    pub(crate) journal: Journal,
    rule: SnapshotRule,
    state: Mutex<State>,
    changed: Condvar,
    stop: AtomicBool,
    /// Held while the file of erasures is written.
    saving: Mutex<()>,
}

/// The latest snapshot, and what is to be done.
#[derive(Debug, Default)]
struct State {
    erasures: Erasures,
    /// Whether the file of erasures has all of them.
    saved: bool,
    snapshot: SnapshotStatus,
    /// Size of the journal's events that the latest snapshot has, in bytes.
    covered: u64,
    /// Monotonic time of the latest snapshot, or of the start.
    since: Duration,
    /// Time of the latest failure.
    failed: Option<Duration>,
    /// Time before which no erasure begins, so that erasures take at most a tenth of the time.
    rests_until: Duration,
}

/// The latest snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SnapshotStatus {
    /// Time at which it was written in microseconds since the Unix epoch; 0 if this process has written none.
    pub at_us: i64,
    /// Its size in bytes.
    pub bytes: u64,
    /// Number of snapshots that this process has written.
    pub written: u64,
    /// Size of the journal's events since then, which a start would read, in bytes.
    pub journal_bytes: u64,
    /// Number of erasures whose keys are still in files.
    pub erasures: u64,
    /// Time of the oldest of them in microseconds since the Unix epoch; 0 if there is none.
    pub oldest_erasure_us: i64,
    /// Why the latest snapshot or erasure failed. It is tried again after 30 s.
    pub error: Option<String>,
}

// === impl Upkeep ===

impl Upkeep {
    pub(crate) fn new(
        env: Env,
        directory: PathBuf,
        tables: Arc<Tables>,
        journal: Journal,
        erasures: Erasures,
        rule: SnapshotRule,
    ) -> Upkeep {
        let state = State { erasures, saved: true, since: env.clock.monotonic(), ..State::default() };
        Upkeep {
            env,
            directory,
            tables,
            journal,
            rule,
            state: Mutex::new(state),
            changed: Condvar::new(),
            stop: AtomicBool::new(false),
            saving: Mutex::new(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does the work until [`Upkeep::stop`].
    pub(crate) fn run(&self) {
        scorer_os::sched::lower_priority();
        while !self.stop.load(Relaxed) {
            self.round();
            let state = self.lock();
            if !self.stop.load(Relaxed) {
                drop(self.changed.wait_timeout(state, LOOK));
            }
        }
    }

    /// Ends [`Upkeep::run`], also within a snapshot.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Relaxed);
        drop(self.lock());
        self.changed.notify_all();
    }

    /// Does what is due.
    pub(crate) fn round(&self) {
        let now = self.env.clock.monotonic();
        let (erases, due) = {
            let state = self.lock();
            if state.failed.is_some_and(|at| now.saturating_sub(at) < PAUSE) {
                return;
            }
            let grown = self.journal.appended().saturating_sub(state.covered);
            let by_size = grown >= self.rule.bytes.max(state.snapshot.bytes / 2);
            let by_time = now.saturating_sub(state.since) >= self.rule.interval;
            let erases = !state.erasures.is_empty() && now >= state.rests_until;
            (erases, grown > 0 && (by_size || by_time))
        };
        let result = if erases {
            self.erase()
        } else if due {
            self.snapshot()
        } else {
            Ok(())
        };
        let result = result.and_then(|()| self.prune());
        let mut state = self.lock();
        match result {
            Err(_) if self.stop.load(Relaxed) => {}
            Ok(()) => {
                state.failed = None;
                state.snapshot.error = None;
            }
            Err(error) => {
                state.failed = Some(now);
                state.snapshot.error = Some(error.to_string());
            }
        }
    }

    /// Writes a snapshot.
    fn snapshot(&self) -> io::Result<()> {
        let covered = self.journal.appended();
        let bytes = snapshot::write(
            &*self.env.fs,
            &self.directory,
            &self.tables,
            &|| self.journal.position(),
            &|sequence| self.journal.settle(sequence),
            &|| self.stop.load(Relaxed),
        )?;
        let mut state = self.lock();
        state.covered = covered;
        state.since = self.env.clock.monotonic();
        state.snapshot.at_us = self.env.clock.unix_us();
        state.snapshot.bytes = bytes;
        state.snapshot.written += 1;
        Ok(())
    }

    /// Removes the keys of erased entities from the snapshot and from the files of the journal.
    fn erase(&self) -> io::Result<()> {
        let began = self.env.clock.monotonic();
        let (erasures, saved) = {
            let state = self.lock();
            (state.erasures.clone(), state.saved)
        };
        if !saved {
            self.save(&Erasures::default())?;
        }
        self.snapshot()?;
        self.journal.settle(erasures.last()).map_err(io::Error::other)?;
        let files = self.journal.files();
        for file in files.iter().filter(|file| file.first <= erasures.last()) {
            if self.stop.load(Relaxed) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            if let Some(bytes) = erasures.erase(&*self.env.fs, file)? {
                self.journal.replaced(&file.path, Some(bytes));
            }
        }
        self.save(&erasures)?;
        let ended = self.env.clock.monotonic();
        self.lock().rests_until = ended + 9 * ended.saturating_sub(began);
        Ok(())
    }

    /// Writes the file of erasures without those that are complete.
    fn save(&self, complete: &Erasures) -> io::Result<()> {
        let _saving = self.saving.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rest = self.lock().erasures.clone();
        rest.remove(complete);
        rest.write(&*self.env.fs, &self.directory)?;
        let mut state = self.lock();
        state.erasures.remove(complete);
        state.saved = state.erasures == rest;
        Ok(())
    }

    /// Removes files whose events have no effect any more.
    fn prune(&self) -> io::Result<()> {
        let keep_us = self.tables.horizon().saturating_mul(SECOND);
        let before_us = self.journal.newest_us().saturating_sub(keep_us);
        let files = self.journal.files();
        for (file, next) in files.iter().zip(files.iter().skip(1)) {
            if next.since_us >= before_us {
                break;
            }
            self.env.fs.remove(&file.path)?;
            self.journal.replaced(&file.path, None);
        }
        Ok(())
    }

    /// Removes an entity from memory, and notes that its key is to be removed from files. It returns after the note is on
    /// stable storage. Returns whether the entity had state.
    pub(crate) fn forget(&self, entity: &str, key: &str) -> Result<bool, ForgetError> {
        let at_us = self.env.clock.unix_us();
        let known = {
            let mut state = self.lock();
            if state.erasures.len() >= erasures::MAX {
                return Err(ForgetError::TooMany { max: erasures::MAX });
            }
            let State { erasures, saved, .. } = &mut *state;
            let known = self.tables.remove(entity, key, || {
                let last = self.journal.position();
                erasures.add(entity, key, Erasure { last, at_us });
                *saved = false;
            });
            known.ok_or_else(|| ForgetError::unknown_entity(&self.tables.entities(), entity))?
        };
        let saved = self.save(&Erasures::default());
        saved.map_err(|error| ForgetError::Write(format!("{}: {error}", self.directory.display())))?;
        self.changed.notify_all();
        Ok(known)
    }

    pub(crate) fn status(&self) -> SnapshotStatus {
        let state = self.lock();
        SnapshotStatus {
            journal_bytes: self.journal.appended().saturating_sub(state.covered),
            erasures: state.erasures.len() as u64,
            oldest_erasure_us: state.erasures.oldest_us().unwrap_or(0),
            ..state.snapshot.clone()
        }
    }

    /// Writes and syncs the journal, and writes a snapshot if the state has changed since the latest one.
    pub(crate) fn close(&self) -> Result<(), String> {
        self.journal.close()?;
        self.stop.store(false, Relaxed);
        let state = self.lock();
        let changed = self.journal.appended() > state.covered;
        drop(state);
        if !changed {
            return Ok(());
        }
        self.snapshot().map_err(|error| format!("{}: snapshot: {error}", self.directory.display()))
    }
}

impl std::fmt::Debug for Upkeep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.lock().fmt(f)
    }
}
