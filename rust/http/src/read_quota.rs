//! Limits how much a connection reads per poll, and watches what goes over its socket.
//!
//! h2 reads everything that a socket holds before it returns the first request. A client that floods one connection
//! would have thousands of streams opened, and reset again as its requests time out, before one of them is processed,
//! while every other connection waits. With a quota, a connection reads so much per poll, then its requests and the
//! other connections run. The rest stays in the kernel, whose window closes and stops the client from sending more.
//!
//! While the socket has no room for what the peer is owed, nothing is read at all: every frame that is read may need an
//! answer, and a peer that sends and does not read would have the server collect them.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::conduct::Traffic;

/// What a connection may still read in this poll, in bytes.
#[derive(Debug)]
pub(crate) struct ReadQuota {
    per_poll: usize,
    left: AtomicUsize,
}

/// A socket that reads no more than its quota.
pub(crate) struct Limited<IO> {
    io: IO,
    quota: Arc<ReadQuota>,
    traffic: Traffic,
    /// A read was refused because the socket has no room for writing.
    holding: bool,
}

/// Drives a connection over a [`Limited`] socket: renews the quota and polls the connection.
///
/// A connection must be polled in no other way. Without a renewal it would read nothing, wake itself and spin.
pub(crate) struct Drive<'a, C> {
    connection: Pin<&'a mut C>,
    quota: &'a ReadQuota,
}

// === impl ReadQuota ===

impl ReadQuota {
    /// Polls `connection` until it ends, with `self` renewed before each poll.
    pub(crate) fn drive<'a, C: Future>(&'a self, connection: Pin<&'a mut C>) -> Drive<'a, C> {
        Drive { connection, quota: self }
    }
}

// === impl Drive ===

impl<C: Future> Future for Drive<'_, C> {
    type Output = C::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<C::Output> {
        self.quota.left.store(self.quota.per_poll, Relaxed);
        self.connection.as_mut().poll(context)
    }
}

// === impl Limited ===

impl<IO> Limited<IO> {
    /// Limits `io` to `per_poll` bytes per poll of the connection's [`Drive`].
    pub(crate) fn new(io: IO, per_poll: usize, traffic: Traffic) -> (Limited<IO>, Arc<ReadQuota>) {
        let quota = Arc::new(ReadQuota { per_poll, left: AtomicUsize::new(0) });
        (Limited { io, quota: Arc::clone(&quota), traffic, holding: false }, quota)
    }

    /// Notes how a write of `parts` went.
    fn wrote<'p>(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<usize>>,
        parts: impl Iterator<Item = &'p [u8]>,
    ) -> Poll<io::Result<usize>> {
        match &result {
            Poll::Pending => self.traffic.set_blocked(true),
            Poll::Ready(Ok(written)) => {
                self.traffic.set_blocked(false);
                let mut left = *written;
                for part in parts {
                    let take = left.min(part.len());
                    self.traffic.sent(&part[..take]);
                    left -= take;
                }
                if std::mem::take(&mut self.holding) {
                    // The read that was refused left no waker behind.
                    context.waker().wake_by_ref();
                }
            }
            Poll::Ready(Err(_)) => {}
        }
        result
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Limited<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.traffic.conduct().is_blocked() {
            self.holding = true;
            return Poll::Pending;
        }
        let left = self.quota.left.load(Relaxed);
        if left == 0 {
            // The connection is polled again after every task that is ready now.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.io).poll_read(context, buffer);
        let read = &buffer.filled()[before..];
        self.quota.left.store(left.saturating_sub(read.len()), Relaxed);
        self.traffic.received(read);
        result
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Limited<IO> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.io).poll_write(context, data);
        self.wrote(context, result, std::iter::once(data))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.io).poll_write_vectored(context, parts);
        self.wrote(context, result, parts.iter().map(|part| &**part))
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Waker;

    use super::*;
    use crate::Settings;
    use crate::conduct::Conduct;
    use crate::conduct::tests::Ignored;

    const QUOTA: usize = 1000;

    /// Reads up to `bytes` bytes; returns how many, or `None` if the quota is used up.
    fn read(io: &mut Limited<&[u8]>, bytes: usize) -> Option<usize> {
        let mut memory = vec![0; bytes];
        let mut buffer = ReadBuf::new(&mut memory);
        match Pin::new(io).poll_read(&mut Context::from_waker(Waker::noop()), &mut buffer) {
            Poll::Ready(result) => {
                result.unwrap();
                Some(buffer.filled().len())
            }
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_poll_reads_its_quota_and_the_next_poll_continues() {
        let data = vec![7; 3 * QUOTA];
        let traffic = Traffic::new(Conduct::new(Arc::new(Ignored), 1), &Settings::default());
        let (mut io, quota) = Limited::new(data.as_slice(), QUOTA, traffic);
        assert_eq!(read(&mut io, 1), None, "nothing is read outside a poll");
        // (read requested, read) per poll: a read that begins within the quota is not cut.
        let polls: [&[(usize, Option<usize>)]; 3] = [
            &[(QUOTA - 1, Some(QUOTA - 1)), (QUOTA, Some(QUOTA)), (1, None)],
            &[(2 * QUOTA, Some(QUOTA + 1))],
            &[(1, Some(0))],
        ];
        for (number, reads) in polls.into_iter().enumerate() {
            let mut connection = pin!(poll_fn(|_| {
                for (bytes, expected) in reads {
                    assert_eq!(read(&mut io, *bytes), *expected, "poll {number}");
                }
                Poll::Ready(())
            }));
            let driven = pin!(quota.drive(connection.as_mut()));
            assert!(driven.poll(&mut Context::from_waker(Waker::noop())).is_ready());
        }
    }
}
