//! The limits of a connection's bytes and work in one poll.

use std::future::Future as _;
use std::pin::pin;
use std::task::Context;

use crate::Settings;

/// The bytes and work that are left in a connection's turn.
#[derive(Debug)]
pub(crate) struct Turn {
    /// Limits of a whole turn.
    most_bytes: usize,
    most_work: u32,
    /// The number of the turn.
    number: u64,
    bytes: usize,
    work: u32,
    /// Work that did not belong to a request.
    idle: u32,
}

// === impl Turn ===

impl Turn {
    /// Creates the state before the first turn, in which nothing may be read.
    pub(crate) fn none(settings: &Settings) -> Turn {
        Turn {
            most_bytes: settings.read_quota,
            most_work: settings.turn_work,
            number: 0,
            bytes: 0,
            work: 0,
            idle: 0,
        }
    }

    /// Starts the turn with this number, if it has not started yet.
    pub(crate) fn begin(&mut self, number: u64) {
        if self.number != number {
            let Turn { most_bytes, most_work, .. } = *self;
            *self = Turn { number, bytes: most_bytes, work: most_work, idle: 0, most_bytes, most_work };
        }
    }

    /// Whether the rest must wait for the next turn.
    pub(crate) fn is_over(&self) -> bool {
        self.bytes == 0 || self.work == 0
    }

    /// Counts bytes that were read.
    pub(crate) fn read(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Counts the work of a frame. `progress` states whether it contained a request or a part of one.
    pub(crate) fn work(&mut self, work: u32, progress: bool) {
        self.work = self.work.saturating_sub(work);
        if !progress {
            self.idle += work;
        }
    }

    /// Schedules another poll of the connection: after the tasks that are ready now or, if at least half of the turn
    /// was spent on frames that belong to no request, when no other task is ready.
    pub(crate) fn pass(&self, context: &mut Context<'_>) {
        if self.idle * 2 >= self.most_work {
            // The first poll passes the waker to the runtime.
            let _ = pin!(tokio::task::yield_now()).poll(context);
        } else {
            context.waker().wake_by_ref();
        }
    }
}
