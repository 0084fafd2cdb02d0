//! Frees what requests may still be reading, on a thread of its own.
//!
//! The last holder of an `Arc` pays for freeing what is in it, and freeing a forest takes long. The
//! reaper therefore keeps one reference to everything that goes out of use until it is the only one.

use std::any::Any;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use scorer_os::memory::release_free_memory;
use scorer_os::sched::lower_priority;

use super::store::Loaded;

/// The reaper's thread, as debuggers and events show it.
pub(crate) const THREAD: &str = "scorer-reaper";
/// How often it looks again at what is still in use.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

type Retired = Arc<dyn Any + Send + Sync>;

/// The way to the reaper.
#[derive(Debug)]
pub(crate) struct Reaper {
    way: Mutex<Option<Sender<Retired>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

// === impl Reaper ===

impl Reaper {
    pub(crate) fn start() -> io::Result<Reaper> {
        let (way, retired) = channel();
        let thread = thread::Builder::new().name(THREAD.to_owned()).spawn(move || run(&retired))?;
        Ok(Reaper { way: Mutex::new(Some(way)), thread: Mutex::new(Some(thread)) })
    }

    /// Frees `it` when nobody else uses it any more.
    pub(crate) fn retire<T: Send + Sync + 'static>(&self, it: Arc<T>) {
        let way = self.way.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(way) = way.as_ref() {
            // It only ends when the way is closed, so there is a receiver.
            let _ = way.send(it);
        }
    }

    /// Ends the thread; what is still in use then is freed by its last user.
    pub(crate) fn stop(&self) {
        drop(self.way.lock().unwrap_or_else(PoisonError::into_inner).take());
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

fn run(retired: &Receiver<Retired>) {
    lower_priority();
    let mut waiting: Vec<Retired> = Vec::new();
    loop {
        let next = if waiting.is_empty() {
            retired.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            retired.recv_timeout(LOOK_AGAIN)
        };
        match next {
            // Given twice, it would be waiting for itself.
            Ok(it) => {
                if !waiting.iter().any(|known| Arc::ptr_eq(known, &it)) {
                    waiting.push(it);
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let bundles = |waiting: &[Retired]| waiting.iter().filter(|it| it.is::<Loaded>()).count();
        let held = bundles(&waiting);
        // Freeing one may release another: a table holds its bundles.
        let mut before = usize::MAX;
        while waiting.len() < before {
            before = waiting.len();
            waiting.retain(|it| Arc::strong_count(it) > 1);
        }
        if bundles(&waiting) < held {
            release_free_memory();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Sender;

    use super::*;

    struct Tells(Sender<Option<String>>);

    impl Drop for Tells {
        fn drop(&mut self) {
            self.0.send(thread::current().name().map(str::to_owned)).unwrap();
        }
    }

    #[test]
    fn frees_on_its_own_thread_and_only_what_is_out_of_use() {
        let reaper = Reaper::start().unwrap();
        let (tell, told) = channel();
        let in_use = Arc::new(Tells(tell.clone()));
        let inner = Arc::new(Tells(tell));
        let outer = Arc::new((Arc::clone(&inner), 0));
        // The inner one first: it is freed only after the outer one.
        reaper.retire(inner);
        reaper.retire(Arc::clone(&in_use));
        reaper.retire(Arc::clone(&outer));
        reaper.retire(outer);
        assert_eq!(told.recv().unwrap().as_deref(), Some(THREAD));
        assert_eq!(Arc::strong_count(&in_use), 2, "freed while in use");
        drop(in_use);
        assert_eq!(told.recv().unwrap().as_deref(), Some(THREAD));
        reaper.stop();
    }
}
