//! Reads a connection in turns.
//!
//! h2 reads everything that a socket holds before it hands out the first request: a client that floods
//! one connection would have thousands of streams opened (and, as its requests time out, reset again)
//! before one of them is looked at, while every other connection waits. So a connection reads so much in
//! one turn, then its requests run and the other connections have theirs; what is left stays in the
//! kernel, whose window closes and stops the client from sending more.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};

/// Bytes of one turn: some hundred small requests, or a part of a large one.
const PER_TURN: usize = 16 << 10;

/// A socket that reads no more than a turn's share between two calls of [`Turn::begin`].
pub(crate) struct Turns<IO> {
    io: IO,
    turn: Arc<Turn>,
}

/// What is left of a connection's turn.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    left: AtomicUsize,
}

// === impl Turn ===

impl Turn {
    /// The connection's task has been polled: it may read again.
    pub(crate) fn begin(&self) {
        self.left.store(PER_TURN, Relaxed);
    }
}

// === impl Turns ===

impl<IO> Turns<IO> {
    pub(crate) fn new(io: IO) -> (Turns<IO>, Arc<Turn>) {
        let turn = Arc::new(Turn::default());
        (Turns { io, turn: Arc::clone(&turn) }, turn)
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Turns<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let left = self.turn.left.load(Relaxed);
        if left == 0 {
            // Behind everything that is ready to run now.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.io).poll_read(context, buffer);
        let read = buffer.filled().len() - before;
        self.turn.left.store(left.saturating_sub(read), Relaxed);
        result
    }
}

super::writes_through!(Turns);

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    fn read(turns: &mut Turns<&[u8]>, bytes: usize) -> Option<usize> {
        let mut memory = vec![0; bytes];
        let mut buffer = ReadBuf::new(&mut memory);
        match Pin::new(turns).poll_read(&mut Context::from_waker(Waker::noop()), &mut buffer) {
            Poll::Ready(result) => {
                result.unwrap();
                Some(buffer.filled().len())
            }
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_turn_ends_and_the_next_goes_on_where_it_ended() {
        let data = vec![7; 3 * PER_TURN];
        let (mut turns, turn) = Turns::new(data.as_slice());
        assert_eq!(read(&mut turns, 1), None, "nothing is read before the first turn");
        turn.begin();
        assert_eq!(read(&mut turns, PER_TURN - 1), Some(PER_TURN - 1));
        // A read that began within the turn is not cut.
        assert_eq!(read(&mut turns, PER_TURN), Some(PER_TURN));
        assert_eq!(read(&mut turns, 1), None);
        turn.begin();
        assert_eq!(read(&mut turns, 2 * PER_TURN), Some(PER_TURN + 1));
        turn.begin();
        assert_eq!(read(&mut turns, 1), Some(0), "the end is the end");
    }
}
