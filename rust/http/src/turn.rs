//! What a connection may do in one poll.

use std::future::Future as _;
use std::pin::pin;
use std::task::Context;

use crate::Settings;

/// What is left of a connection's turn.
#[derive(Debug)]
pub(crate) struct Turn {
    /// Of a whole turn.
    most_bytes: usize,
    most_work: u32,
    /// The number of the turn.
    number: u64,
    bytes: usize,
    work: u32,
    /// Work that carried no request.
    idle: u32,
}

// === impl Turn ===

impl Turn {
    /// Before the first turn: nothing may be done.
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

    /// Begins the turn of this number, if it has not begun yet.
    pub(crate) fn begin(&mut self, number: u64) {
        if self.number != number {
            let Turn { most_bytes, most_work, .. } = *self;
            *self = Turn { number, bytes: most_bytes, work: most_work, idle: 0, most_bytes, most_work };
        }
    }

    /// Whether the rest has to wait for the next turn.
    pub(crate) fn is_over(&self) -> bool {
        self.bytes == 0 || self.work == 0
    }

    /// Bytes were read.
    pub(crate) fn read(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// A frame has made so much work, and carried a request or a part of one, or not.
    pub(crate) fn work(&mut self, work: u32, progress: bool) {
        self.work = self.work.saturating_sub(work);
        if !progress {
            self.idle += work;
        }
    }

    /// Has the connection polled again: after the tasks that are ready now, or, if half of the turn or more was spent on
    /// frames that carry no request, when no other task is ready.
    pub(crate) fn pass(&self, context: &mut Context<'_>) {
        if self.idle * 2 >= self.most_work {
            // Its first poll hands the waker to the runtime.
            let _ = pin!(tokio::task::yield_now()).poll(context);
        } else {
            context.waker().wake_by_ref();
        }
    }
}
