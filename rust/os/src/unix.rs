//! A Unix stream socket that wakes its task when there is data to read, and not when the peer has read.
//!
//! Linux signals writability of a Unix socket after every read of the peer, even if the socket was writable before; of a
//! TCP socket it does so only after a write had found no room. tokio's own stream registers for both directions and is
//! therefore woken twice per request, the second time for nothing. This type registers for writability only while a
//! write has found no room.

use std::io::{self, IoSlice, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream as StdStream;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

/// A connected socket.
#[derive(Debug)]
pub struct UnixStream {
    io: AsyncFd<StdStream>,
    /// The same socket, registered for writability, from a write that found no room until the next successful one.
    room: Option<AsyncFd<StdStream>>,
}

fn register(stream: StdStream, interest: Interest) -> io::Result<AsyncFd<StdStream>> {
    #[expect(unsafe_code, reason = "the caller of AsyncFd guarantees that the descriptor stays the same")]
    // SAFETY: a stream owns its descriptor until it is dropped and always returns the same one, and no code takes the
    // stream out of the AsyncFd.
    let registered = unsafe { AsyncFd::register_with_interest(stream, interest) };
    Ok(registered?)
}

// === impl UnixStream ===

impl UnixStream {
    /// Wraps a connected socket.
    ///
    /// # Errors
    /// The socket cannot be registered with the runtime.
    pub fn new(stream: tokio::net::UnixStream) -> io::Result<UnixStream> {
        Ok(UnixStream { io: register(stream.into_std()?, Interest::READABLE)?, room: None })
    }

    /// Writes as soon as there is room.
    fn poll_room(
        &mut self,
        context: &mut Context<'_>,
        write: impl Fn(&StdStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            let guard = match &self.room {
                Some(room) => Some(ready!(room.poll_write_ready(context))?),
                None => None,
            };
            match (write(self.io.get_ref()), guard) {
                (Err(error), Some(mut guard)) if error.kind() == io::ErrorKind::WouldBlock => {
                    guard.clear_ready();
                }
                (Err(error), None) if error.kind() == io::ErrorKind::WouldBlock => {
                    let same = self.io.get_ref().try_clone()?;
                    self.room = Some(register(same, Interest::WRITABLE)?);
                }
                (Err(error), _) if error.kind() == io::ErrorKind::Interrupted => {}
                (result, _) => {
                    self.room = None;
                    return Poll::Ready(result);
                }
            }
        }
    }
}

impl AsyncRead for UnixStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.io.poll_read_ready(context))?;
            #[expect(unsafe_code, reason = "reads into uninitialised memory")]
            // SAFETY: only the system call below writes to it, and it does not make a byte uninitialised.
            let room = unsafe { buffer.unfilled_mut() };
            let wanted = room.len();
            match rustix::io::read(self.io.get_ref(), room) {
                Ok((read, _)) => {
                    let read = read.len();
                    if 0 < read && read < wanted {
                        // The socket is empty: another read would be a system call for nothing.
                        guard.clear_ready();
                    }
                    #[expect(unsafe_code, reason = "as above")]
                    // SAFETY: the system call has written this many bytes.
                    unsafe {
                        buffer.assume_init(read);
                    }
                    buffer.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Err(rustix::io::Errno::AGAIN) => guard.clear_ready(),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }
}

impl AsyncWrite for UnixStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_room(context, |mut io| io.write(data))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_room(context, |mut io| io.write_vectored(parts))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.io.get_ref().shutdown(Shutdown::Write))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn pair() -> (UnixStream, tokio::net::UnixStream) {
        let (ours, theirs) = tokio::net::UnixStream::pair().unwrap();
        (UnixStream::new(ours).unwrap(), theirs)
    }

    /// Far more than a socket holds, so that writing finds no room again and again.
    fn flood() -> Vec<u8> {
        (0..4_000_000_u32).map(|at| (at % 251) as u8).collect()
    }

    #[tokio::test]
    async fn bytes_arrive_once_and_in_order_in_both_directions() {
        let sent = flood();
        let (mut ours, mut theirs) = pair();
        let (expected, copy) = (sent.clone(), sent.clone());
        let peer = tokio::spawn(async move {
            let mut seen = vec![0; expected.len()];
            theirs.read_exact(&mut seen).await.unwrap();
            assert!(seen == expected);
            theirs.write_all(&seen).await.unwrap();
            theirs.shutdown().await.unwrap();
            assert_eq!(theirs.read(&mut seen).await.unwrap(), 0, "the end of what we write");
        });
        let mut left = &sent[..];
        while !left.is_empty() {
            let (head, tail) = left.split_at(left.len().min(1000));
            let parts = [IoSlice::new(head), IoSlice::new(tail)];
            let written = poll_fn(|cx| Pin::new(&mut ours).poll_write_vectored(cx, &parts)).await.unwrap();
            left = &left[written..];
        }
        let mut back = Vec::new();
        ours.read_to_end(&mut back).await.unwrap();
        assert!(back == copy);
        ours.shutdown().await.unwrap();
        peer.await.unwrap();
    }

    #[tokio::test]
    async fn writability_is_registered_only_while_there_is_no_room() {
        let (mut ours, mut theirs) = pair();
        ours.write_all(b"small").await.unwrap();
        assert!(ours.room.is_none());
        let sent = flood();
        let mut filling = Box::pin(ours.write_all(&sent));
        assert!(futures_poll(filling.as_mut()).is_pending());
        drop(filling);
        assert!(ours.room.is_some(), "a full socket waits for room");
        let mut seen = vec![0; 1 << 20];
        // Until there is room again.
        while ours.room.is_some() {
            let _ = theirs.read(&mut seen).await.unwrap();
            let _ = tokio::time::timeout(std::time::Duration::from_millis(1), ours.write(b"x")).await;
        }
    }

    #[tokio::test]
    async fn a_closed_peer_ends_reads_and_fails_writes() {
        let (mut ours, theirs) = pair();
        drop(theirs);
        assert_eq!(ours.read(&mut [0; 8]).await.unwrap(), 0);
        assert_eq!(ours.write(b"x").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    fn futures_poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(std::task::Waker::noop()))
    }
}
