//! Frees retired values on a separate thread.
//!
//! The last holder of an `Arc` frees its contents, and freeing a forest takes long. The reaper therefore keeps a
//! reference to each retired value until it is the only holder, so that no request frees it.

use std::any::Any;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use scorer_os::{memory, sched};

use super::store::Loaded;

/// Name of the reaper's thread.
pub(crate) const THREAD: &str = "scorer-reaper";
/// Interval at which the reaper checks the retired values.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

type Retired = Arc<dyn Any + Send + Sync>;

/// A handle to the reaper's thread.
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

    /// Frees `retired` once nothing else holds it.
    pub(crate) fn retire<T: Send + Sync + 'static>(&self, retired: Arc<T>) {
        let way = self.way.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(way) = way.as_ref() {
            // The thread ends only when the channel is closed, so there is a receiver.
            let _ = way.send(retired);
        }
    }

    /// Ends the thread. Values that are still in use are freed by their last holder.
    pub(crate) fn stop(&self) {
        drop(self.way.lock().unwrap_or_else(PoisonError::into_inner).take());
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

fn run(retired: &Receiver<Retired>) {
    sched::lower_priority();
    let mut waiting: Vec<Retired> = Vec::new();
    loop {
        let next = if waiting.is_empty() {
            retired.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            retired.recv_timeout(LOOK_AGAIN)
        };
        match next {
            // Retiring the same value twice would keep it for ever.
            Ok(next) => {
                if !waiting.iter().any(|known| Arc::ptr_eq(known, &next)) {
                    waiting.push(next);
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let bundles = |waiting: &[Retired]| waiting.iter().filter(|waits| waits.is::<Loaded>()).count();
        let held = bundles(&waiting);
        // Freeing one value may release another, because a lane table holds its bundles.
        let mut before = usize::MAX;
        while waiting.len() < before {
            before = waiting.len();
            waiting.retain(|waits| Arc::strong_count(waits) > 1);
        }
        if bundles(&waiting) < held {
            memory::release_free_memory();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Sender;

    use super::*;

    struct Reports(Sender<Option<String>>);

    impl Drop for Reports {
        fn drop(&mut self) {
            self.0.send(thread::current().name().map(str::to_owned)).unwrap();
        }
    }

    /// Fault case 70.
    #[test]
    fn frees_on_its_own_thread_and_only_what_is_out_of_use() {
        let reaper = Reaper::start().unwrap();
        let (sender, receiver) = channel();
        let in_use = Arc::new(Reports(sender.clone()));
        let inner = Arc::new(Reports(sender));
        let outer = Arc::new((Arc::clone(&inner), 0));
        // The inner value is retired first; it can be freed only after the outer value.
        reaper.retire(inner);
        reaper.retire(Arc::clone(&in_use));
        reaper.retire(Arc::clone(&outer));
        reaper.retire(outer);
        assert_eq!(receiver.recv().unwrap().as_deref(), Some(THREAD));
        assert_eq!(Arc::strong_count(&in_use), 2, "freed while in use");
        drop(in_use);
        assert_eq!(receiver.recv().unwrap().as_deref(), Some(THREAD));
        reaper.stop();
    }
}
