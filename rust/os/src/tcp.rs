//! A listening TCP socket whose accepted connections are not registered with the runtime.
//!
//! tokio's own listener registers each connection with the runtime when it accepts it. A connection that is closed
//! immediately, because its peer opens too many, would be registered without need.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener, TcpStream};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A listening socket. Only the socket itself is registered with the runtime.
#[derive(Debug)]
pub struct TcpListener(AsyncFd<StdListener>);

// === impl TcpListener ===

impl TcpListener {
    /// Registers a non-blocking listening socket. Must be called within a runtime.
    ///
    /// # Errors
    /// Fails if the socket cannot be registered with the runtime.
    pub fn from_std(listener: StdListener) -> io::Result<TcpListener> {
        #[expect(unsafe_code, reason = "the caller of AsyncFd guarantees that the descriptor stays the same")]
        // SAFETY: a listener owns its descriptor until it is dropped and always returns the same one, and no code takes
        // the listener out of the AsyncFd.
        let registered = unsafe { AsyncFd::register_with_interest(listener, Interest::READABLE) };
        Ok(TcpListener(registered?))
    }

    /// Accepts the next connection. Its socket is in blocking mode.
    ///
    /// # Errors
    /// Returns the error of `accept`.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.0.async_io(Interest::READABLE, StdListener::accept).await
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    #[tokio::test]
    async fn connections_are_accepted_in_order() {
        let listener = StdListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let listener = TcpListener::from_std(listener).unwrap();
        let clients = std::thread::spawn(move || {
            for number in 0..100_u8 {
                TcpStream::connect(address).unwrap().write_all(&[number]).unwrap();
            }
        });
        for number in 0..100 {
            let (mut stream, peer) = listener.accept().await.unwrap();
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            assert_eq!(byte, [number]);
            assert!(peer.ip().is_loopback());
        }
        clients.join().unwrap();
    }
}
