//! Reads the HTTP/2 connection preface before hyper does, because hyper waits for it without a limit. A peer that
//! connects and sends nothing, or speaks HTTP/1.1 or TLS, is disconnected and counted.
//!
//! The bytes that such a peer has sent are read before its connection is closed. Closing a socket with unread bytes
//! resets the connection, which clients report as a broken network and not as a connection that the server closed.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};

const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Number of bytes that are read from a peer that speaks another protocol.
const FOREIGN_LIMIT: u64 = 16 << 10;

/// A connection whose preface has been read. Reading from it returns the preface again first.
pub(crate) struct Prefaced<IO> {
    io: IO,
    returned: usize,
}

/// Reads the preface.
///
/// # Errors
/// Returns `InvalidData` if the peer speaks another protocol, or the error of the socket.
pub(crate) async fn read<IO: AsyncRead + AsyncWrite + Unpin>(mut io: IO) -> io::Result<Prefaced<IO>> {
    let mut head = [0_u8; PREFACE.len()];
    let mut filled = 0;
    while filled < head.len() {
        let read = io.read(&mut head[filled..]).await?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        filled += read;
        if head[..filled] != PREFACE[..filled] {
            close(io).await;
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not HTTP/2 with prior knowledge"));
        }
    }
    Ok(Prefaced { io, returned: 0 })
}

/// Ends the server's side of a connection, then reads until the peer ends its side or the limit is reached.
async fn close<IO: AsyncRead + AsyncWrite + Unpin>(mut io: IO) {
    if io.shutdown().await.is_ok() {
        // The connection is closed also if reading fails.
        let _ = tokio::io::copy(&mut io.take(FOREIGN_LIMIT), &mut tokio::io::sink()).await;
    }
}

// === impl Prefaced ===

impl<IO: AsyncRead + Unpin> AsyncRead for Prefaced<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.returned < PREFACE.len() {
            let rest = &PREFACE[self.returned..];
            let take = rest.len().min(buffer.remaining());
            buffer.put_slice(&rest[..take]);
            self.returned += take;
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Prefaced<IO> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, parts)
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
    use tokio::io::Join;

    use super::*;

    /// A connection whose peer has sent some bytes and then ended its side.
    type Peer<'a> = Join<&'a [u8], tokio::io::Sink>;

    fn peer(sent: &[u8]) -> Peer<'_> {
        tokio::io::join(sent, tokio::io::sink())
    }

    #[tokio::test]
    async fn every_byte_is_returned_once() {
        let mut sent = PREFACE.to_vec();
        sent.extend_from_slice(b"frames");
        let mut prefaced = read(peer(&sent)).await.unwrap();
        let mut seen = Vec::new();
        let mut small = [0_u8; 5];
        loop {
            let count = prefaced.read(&mut small).await.unwrap();
            if count == 0 {
                break;
            }
            seen.extend_from_slice(&small[..count]);
        }
        assert_eq!(seen, sent);
    }

    #[tokio::test]
    async fn other_protocols_are_rejected() {
        for head in [
            &b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"[..],
            b"\x16\x03\x01\x02\x00\x01",
            b"PRI * HTTP/2.0\r\n\r\nXX",
        ] {
            assert_eq!(read(peer(head)).await.err().unwrap().kind(), io::ErrorKind::InvalidData);
        }
        assert_eq!(read(peer(b"PRI *")).await.err().unwrap().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[tokio::test]
    async fn another_protocol_is_read_before_the_connection_is_closed() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut peer = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        peer.write_all(&[b'G'; 8 << 10]).await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        let server = tokio::spawn(async move { read(accepted).await.err().unwrap().kind() });
        // A reset would be an error here.
        assert_eq!(peer.read(&mut [0_u8; 8]).await.unwrap(), 0);
        drop(peer);
        assert_eq!(server.await.unwrap(), io::ErrorKind::InvalidData);
    }
}
