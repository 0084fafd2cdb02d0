//! Limits the bytes that a connection reads and the work that it does per poll, and observes its socket.
//!
//! h2 reads all bytes of a socket before it returns the first request. If a client flooded one connection, h2 would
//! open thousands of streams, and reset them when their requests time out, before it processes one of them, while all
//! other connections wait. With a quota, a connection reads a limited number of bytes per poll; then its requests and
//! the other connections run. The rest stays in the kernel, whose window closes and stops the client from sending more.
//! Small frames cause more work than their bytes suggest, so frames are limited too: bytes read after the last frame of
//! a turn are held back for the next turn.
//!
//! While the socket's send buffer is full, nothing is read. Every frame may need an answer, and the answers for a peer
//! that sends without reading would accumulate.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};

use prost::bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::Settings;
use crate::conduct::Traffic;
use crate::turn::Turn;

/// The number of a connection's current turn.
#[derive(Debug, Default)]
pub(crate) struct ReadQuota(AtomicU64);

/// A socket that reads at most its quota per turn.
pub(crate) struct Limited<IO> {
    io: IO,
    quota: Arc<ReadQuota>,
    turn: Turn,
    /// Bytes that were read and must wait for another turn.
    held: BytesMut,
    traffic: Traffic,
    /// Whether a read was refused because the send buffer is full.
    holding: bool,
}

/// Drives a connection over a [`Limited`] socket: renews the quota and polls the connection.
///
/// A connection must not be polled in any other way. Without a renewal it would read nothing, wake itself and spin.
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
        self.quota.0.fetch_add(1, Relaxed);
        self.connection.as_mut().poll(context)
    }
}

// === impl Limited ===

impl<IO> Limited<IO> {
    /// Limits the reads of `io` per poll of the connection's [`Drive`].
    pub(crate) fn new(io: IO, settings: &Settings, traffic: Traffic) -> (Limited<IO>, Arc<ReadQuota>) {
        let quota = Arc::new(ReadQuota::default());
        let (turn, held) = (Turn::none(settings), BytesMut::new());
        (Limited { io, quota: Arc::clone(&quota), turn, held, traffic, holding: false }, quota)
    }

    /// Processes the result of writing `parts`.
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
                    // The refused read has not registered a waker.
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
        let Limited { io, quota, turn, held, traffic, holding } = &mut *self;
        if traffic.conduct().is_blocked() {
            *holding = true;
            return Poll::Pending;
        }
        turn.begin(quota.0.load(Relaxed));
        if turn.is_over() {
            turn.pass(context);
            return Poll::Pending;
        }
        let processed = if held.is_empty() {
            let before = buffer.filled().len();
            ready!(Pin::new(io).poll_read(context, buffer))?;
            let read = &buffer.filled()[before..];
            let processed = traffic.received(read, turn);
            held.extend_from_slice(&read[processed..]);
            buffer.set_filled(before + processed);
            processed
        } else {
            let processed = traffic.received(&held[..held.len().min(buffer.remaining())], turn);
            buffer.put_slice(&held[..processed]);
            held.advance(processed);
            if held.is_empty() {
                // The buffer is freed, so that an idle connection holds no memory for it.
                *held = BytesMut::new();
            }
            processed
        };
        turn.read(processed);
        Poll::Ready(Ok(()))
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

    /// Reads up to `bytes` bytes. Returns their number, or `None` if the quota is used up.
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
        // One frame whose payload is longer than the bytes that are read of it.
        let data = [&[0; 24][..], &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1], &vec![7; 3 * QUOTA - 33]].concat();
        let settings = Settings { read_quota: QUOTA, ..Settings::default() };
        let traffic = Traffic::new(Conduct::new(Arc::new(Ignored), 1), &settings);
        let (mut io, quota) = Limited::new(data.as_slice(), &settings, traffic);
        assert_eq!(read(&mut io, 1), None, "nothing is read outside a poll");
        // (read requested, read) per poll. A read that starts within the quota is not truncated.
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

    /// Returns the number of bytes of these frames that a connection reads in each turn, until they end.
    fn turns(frames: &[u8]) -> Vec<usize> {
        let settings = Settings { turn_work: 64, ..Settings::default() };
        let data = [&[0; 24][..], frames].concat();
        let traffic = Traffic::new(Conduct::new(Arc::new(Ignored), 1), &settings);
        let (mut io, quota) = Limited::new(data.as_slice(), &settings, traffic);
        let mut turns = Vec::new();
        let mut ended = false;
        while !ended {
            let mut bytes = 0;
            let mut connection = pin!(poll_fn(|_| {
                while let Some(read) = read(&mut io, 8 << 10) {
                    bytes += read;
                    ended = read == 0;
                    if ended {
                        break;
                    }
                }
                Poll::Ready(())
            }));
            assert!(
                pin!(quota.drive(connection.as_mut()))
                    .poll(&mut Context::from_waker(Waker::noop()))
                    .is_ready()
            );
            turns.push(bytes);
        }
        assert_eq!(turns.iter().sum::<usize>(), data.len(), "nothing is lost");
        turns
    }

    #[test]
    fn a_poll_has_a_limit_of_frames() {
        let frame = |kind: u8, stream: u32, payload: &[u8]| {
            let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
            bytes.extend_from_slice(&[kind, 0]);
            bytes.extend_from_slice(&stream.to_be_bytes());
            bytes.extend_from_slice(payload);
            bytes
        };
        // Stray DATA of nine bytes, and PING of 17: 64 frames at once.
        for (one, frames) in [(frame(0, 1, &[]), 1000), (frame(6, 0, &[0; 8]), 1000)] {
            let turns = turns(&one.repeat(frames));
            assert!(turns.iter().all(|bytes| *bytes <= 24 + 64 * one.len()), "{turns:?}");
            assert!((frames / 64..=frames / 64 + 2).contains(&turns.len()), "{turns:?}");
        }
        // Requests that are cancelled immediately: eight at once.
        let pairs: Vec<u8> = (0..100)
            .flat_map(|number| {
                [frame(1, 1 + 2 * number, &[0; 50]), frame(3, 1 + 2 * number, &[0; 4])].concat()
            })
            .collect();
        assert!((12..=15).contains(&turns(&pairs).len()), "{:?}", turns(&pairs));
        // Header blocks of the greatest permitted length: one at once.
        let blocks: Vec<u8> = (0..10).flat_map(|number| frame(1, 1 + 2 * number, &[0; 16 << 10])).collect();
        assert!(turns(&blocks).len() >= 10, "{:?}", turns(&blocks));
    }
}
