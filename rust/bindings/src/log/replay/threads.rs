//! Work on all processors.

use std::sync::{Mutex, PoisonError};

/// Calls `work` on every item, on as many threads as there are processors, and returns the results in order.
pub(super) fn parallel<T: Send, R: Send>(items: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(items.len());
    if threads <= 1 {
        return items.into_iter().map(work).collect();
    }
    let items = Mutex::new(items.into_iter().enumerate());
    let take = || items.lock().unwrap_or_else(PoisonError::into_inner).next();
    let run = || {
        let mut found = Vec::new();
        while let Some((at, item)) = take() {
            found.push((at, work(item)));
        }
        found
    };
    let mut found: Vec<(usize, R)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        let joined = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().flat_map(joined).collect()
    });
    found.sort_unstable_by_key(|(at, _)| *at);
    found.into_iter().map(|(_, result)| result).collect()
}
