//! The journal: a thread writes the events of a bounded queue to files.

use std::fs::File;
use std::future::Future;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;

use crate::SECOND;
use crate::error::EventError;
use crate::event::Event;
use crate::frame;
use crate::segments::{self, Segment};

/// Size of a file from which on the next one begins.
const SEGMENT_BYTES: u64 = 64 << 20;

/// The journal of a store.
#[derive(Debug)]
pub(crate) struct Journal {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Greatest number of bytes that wait.
    queue_bytes: usize,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<u8>,
    /// Numbers of events that were queued and that are in the file.
    queued: u64,
    written: u64,
    /// Time of receipt of the newest event.
    newest_us: i64,
    /// Size of all files, and the number of the last.
    bytes: u64,
    segment: u64,
    wakers: Vec<Waker>,
    error: Option<String>,
    closed: bool,
}

/// Resolves when all events that were queued before are in the file.
#[derive(Debug)]
pub struct Written {
    until: Option<(Arc<Shared>, u64)>,
}

/// The thread's files.
struct Files {
    directory: PathBuf,
    segments: Vec<Segment>,
    file: File,
    /// Time in microseconds after which events have no effect.
    keep_us: i64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Journal ===

impl Journal {
    /// Starts the thread, with a new file after `segments` and after the number `covered`.
    pub(crate) fn start(
        directory: PathBuf,
        mut segments: Vec<Segment>,
        covered: u64,
        now_us: i64,
        keep_seconds: i64,
        queue_bytes: usize,
    ) -> io::Result<Journal> {
        let number = segments.last().map_or(0, |last| last.number).max(covered) + 1;
        let (segment, file) = segments::create(&directory, number, now_us)?;
        segments.push(segment);
        let keep_us = keep_seconds.saturating_mul(SECOND);
        segments::prune(&mut segments, now_us.saturating_sub(keep_us))?;
        let bytes = segments.iter().map(|segment| segment.bytes).sum();
        let state = State { bytes, segment: number, newest_us: now_us, ..State::default() };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new(), queue_bytes });
        let files = Files { directory, segments, file, keep_us };
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("scorer-features".to_owned())
            .spawn(move || write(&of_thread, files))?;
        Ok(Journal { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Queues an event.
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
        let is_first = state.waiting.is_empty();
        frame::write(event, received_at_us, &mut state.waiting);
        state.queued += 1;
        state.newest_us = received_at_us.max(state.newest_us);
        drop(state);
        if is_first {
            self.shared.changed.notify_one();
        }
        Ok(())
    }

    pub(crate) fn written(&self) -> Written {
        let queued = self.shared.lock().queued;
        Written { until: Some((Arc::clone(&self.shared), queued)) }
    }

    /// Number of the file that is written.
    pub(crate) fn segment(&self) -> u64 {
        self.shared.lock().segment
    }

    /// Size of all files in bytes, and the error that stopped the journal.
    pub(crate) fn status(&self) -> (u64, Option<String>) {
        let state = self.shared.lock();
        (state.bytes, state.error.clone())
    }

    /// Writes all queued events and syncs the file.
    pub(crate) fn close(&self) -> Result<(), String> {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
        self.shared.lock().error.clone().map_or(Ok(()), Err)
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        let _ = self.close();
    }
}

/// Writes queued events until the journal is closed.
fn write(shared: &Shared, mut files: Files) {
    let mut batch = Vec::new();
    loop {
        let mut state = shared.lock();
        while state.waiting.is_empty() && !state.closed {
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.waiting.is_empty() {
            drop(state);
            if let Err(error) = files.file.sync_data() {
                shared.lock().error.get_or_insert(error.to_string());
            }
            return;
        }
        std::mem::swap(&mut batch, &mut state.waiting);
        let (queued, newest_us) = (state.queued, state.newest_us);
        drop(state);
        let result = files.append(&batch, newest_us);
        batch.clear();
        let mut state = shared.lock();
        state.bytes = files.segments.iter().map(|segment| segment.bytes).sum();
        state.segment = files.segments.last().map_or(state.segment, |last| last.number);
        match result {
            Ok(()) => state.written = queued,
            Err(error) => state.error = Some(error.to_string()),
        }
        let wakers = std::mem::take(&mut state.wakers);
        let failed = state.error.is_some();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        if failed {
            return;
        }
    }
}

// === impl Files ===

impl Files {
    fn append(&mut self, bytes: &[u8], newest_us: i64) -> io::Result<()> {
        self.file.write_all(bytes)?;
        let Some(segment) = self.segments.last_mut() else { return Ok(()) };
        segment.bytes += bytes.len() as u64;
        if segment.bytes >= SEGMENT_BYTES {
            let number = segment.number + 1;
            self.file.sync_data()?;
            let (next, file) = segments::create(&self.directory, number, newest_us)?;
            self.file = file;
            self.segments.push(next);
            segments::prune(&mut self.segments, newest_us.saturating_sub(self.keep_us))?;
        }
        Ok(())
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
