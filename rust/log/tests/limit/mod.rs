//! A time limit for tests that wait for threads or processes. libtest has none, so a wait without an end
//! would hang the run.

#![allow(unreachable_pub, missing_docs, reason = "a module of test binaries")]

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

/// Far above the duration of any test.
const LIMIT: Duration = Duration::from_secs(300);

/// The guard of a time limit. The test drops it at its end.
pub struct TimeLimit {
    _running: Sender<()>,
}

/// Ends the test binary unless the result is dropped within [`LIMIT`].
#[allow(clippy::print_stderr, reason = "the last words of a test binary")]
pub fn time_limit() -> TimeLimit {
    let test = thread::current().name().unwrap_or("a test").to_owned();
    let (running, ended) = channel();
    thread::spawn(move || {
        if ended.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
            eprintln!("{test} did not end within {LIMIT:?}");
            std::process::abort();
        }
    });
    TimeLimit { _running: running }
}
