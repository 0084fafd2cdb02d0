//! The time that each node of a program takes, measured for the evaluations that a caller selects.
//!
//! An evaluation that is not timed reads no clock.

use std::time::{Duration, Instant};

/// Name and kind of a node of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeInfo {
    /// The slot that the node writes, which is unique in its program.
    pub name: String,
    /// The kind, as in the manifest.
    pub kind: &'static str,
}

/// The times of the nodes in one evaluation.
#[derive(Debug, Clone)]
pub(super) struct NodeTimes {
    timed: bool,
    /// The node that runs, and its beginning.
    running: Option<(usize, Instant)>,
    /// Time of each node, in nanoseconds.
    nanos: Box<[u64]>,
}

// === impl NodeTimes ===

impl NodeTimes {
    pub(super) fn new(nodes: usize) -> NodeTimes {
        NodeTimes { timed: false, running: None, nanos: vec![0; nodes].into() }
    }

    /// Sets whether evaluations are timed, and discards the times so far.
    pub(super) fn set(&mut self, timed: bool) {
        self.timed = timed;
        self.running = None;
        self.nanos.fill(0);
    }

    /// Ends the node that runs, and begins another one.
    pub(super) fn begin(&mut self, node: usize) {
        if self.timed {
            let now = Instant::now();
            self.finish(now);
            self.running = Some((node, now));
        }
    }

    /// Ends the node that runs.
    pub(super) fn end(&mut self) {
        if self.timed {
            self.finish(Instant::now());
        }
    }

    /// The times of the nodes; `None` if evaluations are not timed.
    pub(super) fn get(&self) -> Option<&[u64]> {
        self.timed.then_some(&*self.nanos)
    }

    fn finish(&mut self, now: Instant) {
        if let Some((node, since)) = self.running.take()
            && let Some(nanos) = self.nanos.get_mut(node)
        {
            // A node that ran takes at least a nanosecond, so that it differs from one that did not.
            *nanos += nanos_of(now.saturating_duration_since(since)).max(1);
        }
    }
}

pub(super) fn nanos_of(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
