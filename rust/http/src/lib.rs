//! gRPC over HTTP/2: binds addresses, accepts connections and calls a [`Handler`] for each request.
//!
//! The crate contains sockets, the life of a connection, HTTP/2 settings and the unary codec. It does not depend on the
//! contents of requests: a [`Handler`] answers them, and [`ConnectionEvents`] reports the events of connections.
//!
//! tonic's own `Server` is not used. It polls a request's future before it calls the layers, so arrival cannot be
//! distinguished from queueing. Its limits apply only per connection, and its shutdown waits without a time limit.

#![forbid(unsafe_code)]

mod accept;
mod arrivals;
pub mod bind;
mod bucket;
mod conduct;
mod connection;
mod frames;
mod handler;
mod limit;
pub mod message_status;
mod network;
pub mod not_grpc;
mod peer;
mod preface;
mod read_quota;
mod settings;
mod slots;
mod streams;
mod tls;
mod turn;
pub mod unary;

pub use accept::{Acceptor, Listener};
pub use connection::ConnectionEnd;
pub use handler::{ConnectionEvents, Handler};
pub use limit::Limit;
pub use network::{InvalidNetwork, Network};
pub use peer::Peer;
pub use settings::{Rate, Settings};
pub use tls::{HandshakeFailure, Tls, TlsSource};
