//! One request, one reply, whoever is first.

use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

/// Who answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Reply {
    /// Nobody yet.
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
    /// Replaces 0 by `value`, or tells what is there instead.
    ///
    /// # Errors
    /// The value found.
    fn claim(&self, value: u8) -> Result<(), u8>;
}

/// Decides which of model, fallback and cancellation answers a request. Whoever [`ReplyCell::claim`]s first
/// encodes, logs and replies; all others are told who it was, and discard what they have.
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
    /// A request that nobody has answered.
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
        // Release: what the winner wrote before is seen by whoever reads its name. Acquire on failure: the
        // loser may look at what the winner left.
        self.compare_exchange(0, value, AcqRel, Acquire).map(drop)
    }
}
