//! gRPC over HTTP/2: from a bound address to one call of a [`Handler`] per request.
//!
//! The crate knows sockets, the life of a connection, HTTP/2 settings and the unary codec. It knows nothing of what the
//! requests are about: a [`Handler`] answers them, and [`ConnectionEvents`] reports what happens to connections.
//!
//! tonic's own `Server` is not used. It polls a request's future before it calls the layers, so arrival cannot be told
//! from queueing; its limits hold per connection only; and its shutdown waits without a limit.

#![forbid(unsafe_code)]

/// Implements writing by passing it on to the inner socket, vectored writes included: the types that use it change
/// reading only.
macro_rules! forward_writes {
    ($name:ident) => {
        impl<IO: tokio::io::AsyncWrite + Unpin> tokio::io::AsyncWrite for $name<IO> {
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
    };
}
use forward_writes;

mod accept;
pub mod bind;
mod connection;
mod handler;
pub mod not_grpc;
mod preface;
mod read_quota;
mod settings;
mod tls;
pub mod unary;

pub use accept::{Acceptor, Listener};
pub use connection::ConnectionEnd;
pub use handler::{ConnectionEvents, Handler};
pub use settings::Settings;
pub use tls::{HandshakeFailure, Tls, TlsSource};
