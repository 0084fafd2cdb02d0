//! Reads configured files again when they change, on a separate thread, because file access may be slow.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A check for changed files of one part of the server.
pub(crate) struct Followed {
    interval: Duration,
    next: Instant,
    look: Box<dyn FnMut() + Send>,
}

// === impl Followed ===

impl Followed {
    /// Calls `look` every `interval`.
    pub(crate) fn every(interval: Duration, look: impl FnMut() + Send + 'static) -> Followed {
        Followed { interval, next: Instant::now() + interval, look: Box::new(look) }
    }
}

/// Starts the thread that checks the files until the other end of `stop` is dropped. Without files it starts no thread.
pub(crate) fn follow(files: Vec<Followed>, stop: Receiver<()>) -> io::Result<Option<JoinHandle<()>>> {
    if files.is_empty() {
        return Ok(None);
    }
    thread::Builder::new().name("scorer-files".to_owned()).spawn(move || run(files, &stop)).map(Some)
}

fn run(mut files: Vec<Followed>, stop: &Receiver<()>) {
    while let Some(next) = files.iter().map(|file| file.next).min() {
        match stop.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
        }
        for file in files.iter_mut().filter(|file| file.next <= Instant::now()) {
            (file.look)();
            file.next = Instant::now() + file.interval;
        }
    }
}
