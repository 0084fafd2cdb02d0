//! One request, one reply: the first claim wins.

use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

/// Who answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Reply {
    /// Not yet claimed.
    Pending = 0,
    /// The model.
    Model = 1,
    /// The fallback: the model was late, or could not.
    Fallback = 2,
    /// The caller has gone.
    Cancelled = 3,
}

/// The byte behind a [`ReplyCell`]. Only tests use another than [`AtomicU8`]: a model checker's.
pub trait Byte {
    /// A byte of this value.
    fn new(value: u8) -> Self;
    /// Reads it, and all that its writer wrote before.
    fn read(&self) -> u8;
    /// Replaces 0 by `value`, or returns the value that is there instead.
    ///
    /// # Errors
    /// The value found.
    fn claim(&self, value: u8) -> Result<(), u8>;
}

/// Decides which of model, fallback and cancellation answers a request. The first to
/// [`ReplyCell::claim`] encodes, logs and replies; the others get its name and discard what they have.
#[derive(Debug)]
pub struct ReplyCell<B = AtomicU8>(B);

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

impl<B: Byte> ReplyCell<B> {
    /// A request that is not answered yet.
    #[must_use]
    pub fn new() -> ReplyCell<B> {
        ReplyCell(B::new(Reply::Pending as u8))
    }

    /// Takes the right to answer. True for exactly one call per cell. Claiming [`Reply::Pending`] claims nothing.
    ///
    /// # Errors
    /// Who has answered already.
    pub fn claim(&self, who: Reply) -> Result<(), Reply> {
        if who == Reply::Pending {
            return Err(self.state());
        }
        self.0.claim(who as u8).map_err(Reply::from_byte)
    }

    /// Who has answered, so far.
    #[must_use]
    pub fn state(&self) -> Reply {
        Reply::from_byte(self.0.read())
    }
}

impl<B: Byte> Default for ReplyCell<B> {
    fn default() -> Self {
        ReplyCell::new()
    }
}

// === impl Byte ===

impl Byte for AtomicU8 {
    fn new(value: u8) -> Self {
        AtomicU8::new(value)
    }

    fn read(&self) -> u8 {
        self.load(Acquire)
    }

    fn claim(&self, value: u8) -> Result<(), u8> {
        // Release: what the winner wrote before is seen by the thread that reads its name. Acquire on failure: the
        // loser may look at what the winner left.
        self.compare_exchange(0, value, AcqRel, Acquire).map(drop)
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
            let cell: ReplyCell = ReplyCell::new();
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
            let cell: ReplyCell = ReplyCell::new();
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

    /// loom's byte: every interleaving, and every reordering that the memory model allows.
    impl Byte for loom::sync::atomic::AtomicU8 {
        fn new(value: u8) -> Self {
            loom::sync::atomic::AtomicU8::new(value)
        }

        fn read(&self) -> u8 {
            self.load(Acquire)
        }

        fn claim(&self, value: u8) -> Result<(), u8> {
            self.compare_exchange(0, value, AcqRel, Acquire).map(drop)
        }
    }

    #[test]
    fn in_every_interleaving_one_wins_and_losers_see_what_it_wrote() {
        use std::sync::atomic::Ordering::Relaxed;

        use loom::sync::Arc;

        type LoomByte = loom::sync::atomic::AtomicU8;

        /// Each contender writes its own slot before it claims the cell. The slots are relaxed, so only the order of
        /// the cell's accesses can make a slot visible: loom also returns every stale value that the model allows.
        struct Request {
            cell: ReplyCell<LoomByte>,
            written: [LoomByte; 3],
        }

        loom::model(|| {
            let request = Arc::new(Request {
                cell: ReplyCell::new(),
                written: std::array::from_fn(|_| LoomByte::new(0)),
            });
            let contend = |request: &Request, who: Reply| {
                request.written[who as usize - 1].store(1, Relaxed);
                match request.cell.claim(who) {
                    Ok(()) => 1,
                    Err(winner) => {
                        let seen = request.written[winner as usize - 1].load(Relaxed);
                        assert_eq!(seen, 1, "the winner's slot was written before it won");
                        0
                    }
                }
            };
            let threads = [Reply::Model, Reply::Fallback].map(|who| {
                let request = Arc::clone(&request);
                loom::thread::spawn(move || contend(&request, who))
            });
            let mine = contend(&request, Reply::Cancelled);
            let won: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
            assert_eq!(won + mine, 1);
        });
    }
}
