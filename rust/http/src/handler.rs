//! What the users of this crate implement.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::io;
use std::time::Instant;

use http::{Request, Response};
use hyper::body::{Body, Bytes, Incoming};
use tokio_rustls::rustls::pki_types::CertificateDer;

use crate::{ConnectionEnd, Limit, Peer};

/// Answers requests. Cloned per connection, so a clone has to be cheap.
pub trait Handler: Clone + Send + Sync + 'static {
    /// The body of a reply.
    type Body: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + Unpin + 'static;
    /// A reply under way. Dropped when the request is cancelled.
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

    /// A key of whoever has authenticated itself on the connection. Connections are then counted by it instead of by the
    /// peer's address, which many clients may share.
    fn principal(&self) -> Option<u64> {
        None
    }

    /// Starts a request. Called on the connection's task as soon as the HEADERS are decoded, before the request has a
    /// task of its own: `arrived` is therefore its arrival, and waiting for a thread counts.
    fn handle(&self, request: Request<Incoming>, arrived: Instant) -> Self::Future;
}

/// Receives what happens to connections. Called on the runtime's threads, so no method may block.
pub trait ConnectionEvents: Send + Sync + 'static {
    /// `accept` failed. `exhausted` is set for the first of a row of errors for want of descriptors or memory.
    fn accept_failed(&self, error: &io::Error, exhausted: bool);

    /// A limit acted. Connections that are closed at accept are reported here alone.
    fn limited(&self, limit: Limit);

    /// A connection of `peer` was closed for breaking a rule, `limit`; the peer may open no more for a while.
    fn misused(&self, peer: Peer, limit: Limit) {
        let _ = (peer, limit);
    }

    /// A connection was opened.
    fn opened(&self);

    /// A connection that was opened has ended.
    fn closed(&self, end: ConnectionEnd);
}
