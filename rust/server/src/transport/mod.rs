//! Sockets and HTTP/2: from a bound address to one call of [`Dispatch`] per request.
//!
//! tonic's own `Server` is not used, and its codec only for streams and the small services: it polls a request's future before
//! it calls the layers (so arrival could not be told from queueing), its limits hold per connection,
//! and its shutdown waits for ever.

pub(crate) mod accept;
pub(crate) mod bind;
pub(crate) mod connection;
pub(crate) mod dispatch;
pub(crate) mod preface;
pub(crate) mod turns;
pub(crate) mod unary;

pub(crate) use dispatch::{Dispatch, Peer, Probe};
