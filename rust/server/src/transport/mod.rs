//! Sockets and HTTP/2: from a bound address to one call of [`Dispatch`] per request.
//!
//! tonic's own `Server` is not used, and its codec only for streams and the small services: it polls a request's future before
//! it calls the layers (so arrival could not be told from queueing), its limits hold per connection,
//! and its shutdown waits for ever.

/// Writing to the socket inside, unchanged, vectored writes included; these types are about reading.
macro_rules! writes_through {
    ($io:ident) => {
        impl<IO: tokio::io::AsyncWrite + Unpin> tokio::io::AsyncWrite for $io<IO> {
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
use writes_through;

pub(crate) mod accept;
pub(crate) mod bind;
pub(crate) mod connection;
pub(crate) mod dispatch;
pub(crate) mod preface;
pub(crate) mod turns;
pub(crate) mod unary;
pub(crate) mod unix;

pub(crate) use dispatch::{Dispatch, Peer, Probe};
