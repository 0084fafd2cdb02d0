//! The journal: a thread writes the events of a bounded queue to files.

use std::future::Future;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use scorer_log::Fs;

use crate::error::EventError;
use crate::event::Event;
use crate::frame;
use crate::segments::{self, Segment};
use crate::sequential::Sequential;

/// Time after a write for which the thread collects events, unless a caller waits for them. Waking the thread takes longer
/// than recording an event.
const COLLECT: Duration = Duration::from_millis(5);
/// Number of bytes that wait at which it writes at once.
const ENOUGH: usize = 256 << 10;

/// The journal of a store.
pub(crate) struct Journal {
    shared: Arc<Shared>,
    writer: Arc<Mutex<Writer>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Greatest number of bytes that wait.
    queue_bytes: usize,
}

#[derive(Debug)]
struct State {
    waiting: Vec<u8>,
    /// Sequences of the last event that was queued and of the last one that is in the file.
    queued: u64,
    written: u64,
    /// Sequence of the last event that is on stable storage, in a file that is not written any more.
    synced: u64,
    /// Size of all events that were queued, and of those that the start has read, in bytes.
    appended: u64,
    /// Time of receipt of the newest event.
    newest_us: i64,
    /// The files, the one that is written last.
    files: Vec<Segment>,
    /// Whether the next file begins now.
    rotate: bool,
    /// Whether the thread sleeps until an event comes.
    sleeps: bool,
    /// Whether a caller waits for the events that wait.
    wanted: bool,
    wakers: Vec<Waker>,
    error: Option<String>,
    closed: bool,
}

/// Resolves when all events that were queued before are in the file.
#[derive(Debug)]
pub struct Written {
    until: Option<(Arc<Shared>, u64)>,
}

/// The file that is written.
struct Writer {
    fs: Arc<dyn Fs>,
    directory: PathBuf,
    file: Sequential,
    batch: Vec<u8>,
    /// Size of a file from which on the next one begins.
    segment_bytes: u64,
}

/// Where a journal begins.
pub(crate) struct Start {
    /// The files that exist.
    pub(crate) files: Vec<Segment>,
    /// Sequence of the last event.
    pub(crate) last: u64,
    /// Size of the events that the start has read, in bytes.
    pub(crate) replayed: u64,
    pub(crate) now_us: i64,
    pub(crate) queue_bytes: usize,
    pub(crate) segment_bytes: u64,
    /// Whether a thread writes. Otherwise [`Journal::write`] does.
    pub(crate) background: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Journal ===

impl Journal {
    /// Starts a new file, and the thread.
    pub(crate) fn start(fs: &Arc<dyn Fs>, directory: &Path, start: Start) -> io::Result<Journal> {
        let mut files = start.files;
        let (segment, file) = segments::create(&**fs, directory, start.last + 1, start.now_us)?;
        files.push(segment);
        let state = State {
            waiting: Vec::new(),
            queued: start.last,
            written: start.last,
            synced: start.last,
            appended: start.replayed,
            newest_us: start.now_us,
            files,
            rotate: false,
            sleeps: false,
            wanted: false,
            wakers: Vec::new(),
            error: None,
            closed: false,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            queue_bytes: start.queue_bytes,
        });
        let writer = Arc::new(Mutex::new(Writer {
            fs: Arc::clone(fs),
            directory: directory.to_owned(),
            file,
            batch: Vec::new(),
            segment_bytes: start.segment_bytes,
        }));
        let thread = if start.background {
            let (shared, writer) = (Arc::clone(&shared), Arc::clone(&writer));
            let thread = std::thread::Builder::new().name("scorer-features".to_owned());
            Some(thread.spawn(move || while shared.wait() && shared.write(&writer) {})?)
        } else {
            None
        };
        Ok(Journal { shared, writer, thread: Mutex::new(thread) })
    }

    /// Queues an event. The caller holds the locks of all places that the event changes, so that
    /// a place has every event up to [`Journal::position`] while its lock is held.
    ///
    /// # Errors
    /// The queue is full, the journal cannot be written, or it is closed.
    pub(crate) fn append(&self, event: &Event<'_>, received_at_us: i64) -> Result<(), EventError> {
        let mut state = self.shared.lock();
        if let Some(error) = &state.error {
            return Err(EventError::Journal(error.clone()));
        }
        if state.closed {
            return Err(EventError::Journal("the store is closed".to_owned()));
        }
        if state.waiting.len() >= self.shared.queue_bytes {
            return Err(EventError::Busy);
        }
        let before = state.waiting.len();
        frame::write(event, received_at_us, &mut state.waiting);
        state.appended += (state.waiting.len() - before) as u64;
        state.queued += 1;
        state.newest_us = received_at_us.max(state.newest_us);
        let wakes = std::mem::take(&mut state.sleeps) || before < ENOUGH && state.waiting.len() >= ENOUGH;
        drop(state);
        if wakes {
            self.shared.changed.notify_all();
        }
        Ok(())
    }

    pub(crate) fn written(&self) -> Written {
        let mut state = self.shared.lock();
        let queued = state.queued;
        if !state.waiting.is_empty() && !std::mem::replace(&mut state.wanted, true) {
            self.shared.changed.notify_all();
        }
        drop(state);
        Written { until: Some((Arc::clone(&self.shared), queued)) }
    }

    /// Sequence of the last event.
    pub(crate) fn position(&self) -> u64 {
        self.shared.lock().queued
    }

    /// Time of receipt of the newest event.
    pub(crate) fn newest_us(&self) -> i64 {
        self.shared.lock().newest_us
    }

    /// Size of all files in bytes, and the error that stopped the journal.
    pub(crate) fn status(&self) -> (u64, Option<String>) {
        let state = self.shared.lock();
        (state.files.iter().map(|file| file.bytes).sum(), state.error.clone())
    }

    /// The size of all events that were queued, and of those that the start has read, in bytes.
    pub(crate) fn appended(&self) -> u64 {
        self.shared.lock().appended
    }

    /// The files, the one that is written last.
    pub(crate) fn files(&self) -> Vec<Segment> {
        self.shared.lock().files.clone()
    }

    /// Changes the size of a file, or forgets a file that was removed.
    pub(crate) fn replaced(&self, path: &Path, bytes: Option<u64>) {
        let mut state = self.shared.lock();
        match bytes {
            None => state.files.retain(|file| file.path != path),
            Some(bytes) => state.files.iter_mut().filter(|file| file.path == path).for_each(|file| {
                file.bytes = bytes;
            }),
        }
    }

    /// Waits until all events up to a sequence are on stable storage, in files that are not written any more.
    pub(crate) fn settle(&self, sequence: u64) -> Result<(), String> {
        loop {
            let mut state = self.shared.lock();
            if state.synced >= sequence {
                return Ok(());
            }
            if let Some(error) = &state.error {
                return Err(error.clone());
            }
            if state.closed {
                return Err("the store is closed".to_owned());
            }
            state.rotate = true;
            self.shared.changed.notify_all();
            if self.thread.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
                drop(self.shared.changed.wait(state));
            } else {
                drop(state);
                self.shared.write(&self.writer);
            }
        }
    }

    /// Writes the events that wait, in place of the thread. Returns whether the journal goes on.
    pub(crate) fn write(&self) -> bool {
        self.shared.write(&self.writer)
    }

    /// Writes all queued events and syncs the file.
    pub(crate) fn close(&self) -> Result<(), String> {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
        while self.write() {}
        self.shared.lock().error.clone().map_or(Ok(()), Err)
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        let _ = self.close();
    }
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.shared.fmt(f)
    }
}

impl Shared {
    /// Waits for work. Returns false after a failure.
    fn wait(&self) -> bool {
        let at_once = |state: &State| state.closed || state.rotate || state.error.is_some();
        let collects = |state: &mut State| !at_once(state) && !state.wanted && state.waiting.len() < ENOUGH;
        let waited = self.changed.wait_timeout_while(self.lock(), COLLECT, collects);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        while state.waiting.is_empty() && !at_once(&state) {
            state.sleeps = true;
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.sleeps = false;
        state.error.is_none()
    }

    /// Writes the events that wait. Returns whether the journal goes on: it ends when it is closed, or after a failure.
    fn write(&self, writer: &Mutex<Writer>) -> bool {
        let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
        let writer = &mut *writer;
        let mut state = self.lock();
        if state.error.is_some() {
            return false;
        }
        std::mem::swap(&mut writer.batch, &mut state.waiting);
        state.wanted = false;
        let (queued, newest_us) = (state.queued, state.newest_us);
        let first = state.files.last().map_or(0, |file| file.first);
        let before = state.files.last().map_or(0, |file| file.bytes);
        let rotate = std::mem::take(&mut state.rotate) && queued >= first;
        let ends = state.closed && writer.batch.is_empty();
        drop(state);
        let bytes = before + writer.batch.len() as u64;
        let result = writer.append(ends, rotate || bytes >= writer.segment_bytes, queued + 1, newest_us);
        writer.batch.clear();
        let mut state = self.lock();
        match result {
            Ok(next) => {
                state.written = queued;
                if ends || next.is_some() {
                    state.synced = queued;
                }
                if let Some(file) = state.files.last_mut() {
                    file.bytes = bytes;
                }
                state.files.extend(next);
            }
            Err(error) => state.error = Some(error.to_string()),
        }
        let wakers = std::mem::take(&mut state.wakers);
        let goes_on = state.error.is_none() && !ends;
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        self.changed.notify_all();
        goes_on
    }
}

// === impl Writer ===

impl Writer {
    /// Writes the batch. Begins the next file if `rotate`, and returns it.
    fn append(&mut self, sync: bool, rotate: bool, next: u64, newest_us: i64) -> io::Result<Option<Segment>> {
        self.file.write_all(&self.batch)?;
        if sync || rotate {
            self.file.sync()?;
        }
        if !rotate {
            return Ok(None);
        }
        let (segment, file) = segments::create(&*self.fs, &self.directory, next, newest_us)?;
        self.file = file;
        Ok(Some(segment))
    }
}

// === impl Written ===

impl Written {
    /// Resolves at once, because there is no journal.
    pub(crate) const AT_ONCE: Written = Written { until: None };
}

impl Future for Written {
    type Output = Result<(), String>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some((shared, until)) = &self.until else { return Poll::Ready(Ok(())) };
        let mut state = shared.lock();
        if state.written >= *until {
            return Poll::Ready(Ok(()));
        }
        if let Some(error) = &state.error {
            return Poll::Ready(Err(error.clone()));
        }
        if !state.wakers.iter().any(|known| known.will_wake(context.waker())) {
            state.wakers.push(context.waker().clone());
        }
        Poll::Pending
    }
}
