//! The traits that users of this crate implement.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::io;
use std::time::Instant;

use http::{Request, Response};
use hyper::body::{Body, Bytes, Incoming};
use tokio_rustls::rustls::pki_types::CertificateDer;

use crate::{ConnectionEnd, Limit, Peer};

/// Answers requests. It is cloned for each connection, so a clone must be cheap.
pub trait Handler: Clone + Send + Sync + 'static {
    /// The body of a reply.
    type Body: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + Unpin + 'static;
    /// The future of a reply. It is dropped when the request is cancelled.
    type Future: Future<Output = Result<Response<Self::Body>, Infallible>> + Send + 'static;

    /// Returns the handler for one connection of `peer`.
    #[must_use]
    fn for_peer(&self, peer: Peer) -> Self;

    /// Returns the handler for a connection whose TLS handshake has succeeded.
    ///
    /// # Arguments
    /// `certificates` is the peer's verified chain, its own certificate first; empty if it sent none.
    #[must_use]
    fn for_certificates(&self, certificates: &[CertificateDer<'static>]) -> Self {
        let _ = certificates;
        self.clone()
    }

    /// Returns a key of the principal that has authenticated on the connection. Connections are then counted by it
    /// instead of by the peer's address, which many clients may share.
    fn principal(&self) -> Option<u64> {
        None
    }

    /// Starts a request. It is called on the connection's task as soon as the HEADERS are decoded, before the request
    /// has its own task. `arrived` is therefore the arrival of the request, and includes the time of waiting for a
    /// thread.
    fn handle(&self, request: Request<Incoming>, arrived: Instant) -> Self::Future;
}

/// Receives the events of connections. Its methods are called on the runtime's threads and must not block.
pub trait ConnectionEvents: Send + Sync + 'static {
    /// Called when `accept` fails. `exhausted` is set for the first of consecutive errors that are caused by missing
    /// descriptors or memory.
    fn accept_failed(&self, error: &io::Error, exhausted: bool);

    /// Called when a limit is applied. Connections that are closed at accept are reported only here.
    fn limited(&self, limit: Limit);

    /// Called when a connection of `peer` was closed because it broke the rule `limit`. The peer may open no
    /// connections for some time.
    fn misused(&self, peer: Peer, limit: Limit) {
        let _ = (peer, limit);
    }

    /// Called when a connection was opened.
    fn opened(&self);

    /// Called when an opened connection has ended.
    fn closed(&self, end: ConnectionEnd);
}
