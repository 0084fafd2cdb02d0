//! Ensures that a request gets exactly one reply: the first claim of a [`ReplyCell`] succeeds.

use std::sync::atomic::Ordering::{AcqRel, Acquire};

use super::sync::AtomicU8;

/// The source of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Reply {
    /// Not yet claimed.
    Pending = 0,
    /// The model.
    Model = 1,
    /// The fallback, because the model was late or has failed.
    Fallback = 2,
    /// No reply, because the caller has cancelled the request.
    Cancelled = 3,
}

/// Decides whether model, fallback or cancellation answers a request. The first one to call [`ReplyCell::claim`]
/// encodes, logs and replies. The others learn which one it was and discard their results.
#[derive(Debug)]
pub struct ReplyCell(AtomicU8);

// === impl Reply ===

impl Reply {
    fn from_byte(byte: u8) -> Reply {
        match byte {
            0 => Reply::Pending,
            1 => Reply::Model,
            2 => Reply::Fallback,
            _ => Reply::Cancelled,
        }
    }
}

// === impl ReplyCell ===

impl ReplyCell {
    /// Creates the cell of a request that is not answered yet.
    #[must_use]
    pub fn new() -> ReplyCell {
        ReplyCell(AtomicU8::new(Reply::Pending as u8))
    }

    /// Acquires the right to answer, which succeeds for exactly one call per cell. Claiming [`Reply::Pending`] has no
    /// effect.
    ///
    /// # Errors
    /// Another source has already claimed the cell. Returns that source.
    pub fn claim(&self, who: Reply) -> Result<(), Reply> {
        if who == Reply::Pending {
            return Err(self.state());
        }
        // Release: a thread that reads the winner from the cell also sees the winner's earlier writes. Acquire on
        // failure: the loser may read these writes.
        let claimed = self.0.compare_exchange(Reply::Pending as u8, who as u8, AcqRel, Acquire);
        claimed.map(drop).map_err(Reply::from_byte)
    }

    /// Returns the source that has claimed the cell so far.
    #[must_use]
    pub fn state(&self) -> Reply {
        Reply::from_byte(self.0.load(Acquire))
    }
}

impl Default for ReplyCell {
    fn default() -> Self {
        ReplyCell::new()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    const ALL: [Reply; 3] = [Reply::Model, Reply::Fallback, Reply::Cancelled];

    #[test]
    fn the_first_answers_and_the_others_are_told_who_did() {
        for first in ALL {
            let cell = ReplyCell::new();
            assert_eq!(cell.state(), Reply::Pending);
            assert_eq!(cell.claim(Reply::Pending), Err(Reply::Pending));
            assert_eq!(cell.claim(first), Ok(()));
            for late in ALL {
                assert_eq!(cell.claim(late), Err(first));
            }
            assert_eq!(cell.claim(Reply::Pending), Err(first));
            assert_eq!(cell.state(), first);
        }
    }

    #[test]
    fn threads_race_and_one_wins() {
        for _ in 0..2_000 {
            let cell = ReplyCell::new();
            let won = Mutex::new(Vec::new());
            std::thread::scope(|scope| {
                for who in ALL {
                    let (cell, won) = (&cell, &won);
                    scope.spawn(move || {
                        if cell.claim(who).is_ok() {
                            won.lock().unwrap().push(who);
                        }
                    });
                }
            });
            assert_eq!(*won.lock().unwrap(), [cell.state()]);
        }
    }
}
