//! The accept loop: limits the number of connections, in all and of each peer, and survives every error of `accept`.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use scorer_os::unix::UnixStream;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};

use crate::connection::{self, ConnectionEnd, Context};
use crate::slots::Slots;
use crate::tls::Tls;
use crate::{ConnectionEvents, Handler, Peer, Settings};

/// Pause after an error that persists for a while (out of descriptors or memory).
const PAUSE: Duration = Duration::from_millis(20);

/// A listening socket.
pub trait Listener: Send + 'static {
    /// A connection.
    type Io: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    /// Accepts a connection. Returns it with its peer.
    fn accept(&self, settings: &Settings) -> impl Future<Output = io::Result<(Self::Io, Peer)>> + Send;
}

impl Listener for TcpListener {
    type Io = TcpStream;

    async fn accept(&self, settings: &Settings) -> io::Result<(TcpStream, Peer)> {
        let (stream, peer) = TcpListener::accept(self).await?;
        // Nagle's algorithm against delayed acknowledgements costs 40 ms.
        stream.set_nodelay(true)?;
        // A peer that is gone without a word is noticed by what it does not acknowledge.
        SockRef::from(&stream).set_tcp_user_timeout(Some(settings.write_timeout))?;
        Ok((stream, Peer::of_address(peer.ip())))
    }
}

impl Listener for UnixListener {
    type Io = UnixStream;

    async fn accept(&self, _: &Settings) -> io::Result<(UnixStream, Peer)> {
        let (stream, _) = UnixListener::accept(self).await?;
        let peer = stream.peer_cred().map_or(Peer::UnknownUser, |user| Peer::User(user.uid()));
        Ok((UnixStream::new(stream)?, peer))
    }
}

/// Serves the connections of listeners.
pub struct Acceptor<H, E> {
    handler: H,
    events: Arc<E>,
    settings: Arc<Settings>,
    draining: watch::Receiver<bool>,
    tls: Option<Tls>,
}

impl<H: Clone, E> Clone for Acceptor<H, E> {
    fn clone(&self) -> Self {
        Acceptor {
            handler: self.handler.clone(),
            events: Arc::clone(&self.events),
            settings: Arc::clone(&self.settings),
            draining: self.draining.clone(),
            tls: self.tls.clone(),
        }
    }
}

// === impl Acceptor ===

impl<H: Handler, E: ConnectionEvents> Acceptor<H, E> {
    /// Serves with `handler`. Once `draining` holds true, no more connections are accepted and those that are open end
    /// gracefully.
    pub fn new(handler: H, events: Arc<E>, settings: Settings, draining: watch::Receiver<bool>) -> Self {
        Acceptor { handler, events, settings: Arc::new(settings), draining, tls: None }
    }

    /// The same acceptor, whose connections begin with a TLS handshake if `tls` is given.
    #[must_use]
    pub fn with_tls(mut self, tls: Option<Tls>) -> Self {
        self.tls = tls;
        self
    }

    /// Accepts until the drain begins, then closes the listener and waits for the connections that it accepted. Each
    /// listener has [`Settings::max_connections`] of its own.
    pub async fn run<L: Listener>(self, listener: L) {
        let slots = Arc::new(Slots::new(&self.settings));
        let mut draining = self.draining.clone();
        let mut connections = JoinSet::new();
        let mut accepted: u64 = 0;
        let mut exhausted = false;
        loop {
            let next = tokio::select! {
                next = listener.accept(&self.settings) => next,
                Some(ended) = connections.join_next(), if !connections.is_empty() => {
                    self.check(ended);
                    continue;
                }
                _ = draining.wait_for(|draining| *draining) => break,
            };
            let (io, peer) = match next {
                Ok(connection) => {
                    exhausted = false;
                    connection
                }
                Err(error) => {
                    let persists = is_exhausted(&error);
                    let first = persists && !std::mem::replace(&mut exhausted, true);
                    self.events.accept_failed(&error, first);
                    if persists {
                        tokio::time::sleep(PAUSE).await;
                    }
                    continue;
                }
            };
            let slot = match slots.take(peer) {
                Ok(slot) => slot,
                Err(limit) => {
                    // Closing tells the client at once; a connection left in the backlog would wait without an answer.
                    self.events.limited(limit);
                    continue;
                }
            };
            accepted += 1;
            // Multiples of the golden ratio are spread evenly over [0, 1), so connections that are opened together
            // do not reach their maximal age together.
            let jitter = (accepted as f64 * 0.618_033_988_749_895).fract();
            let handler = self.handler.for_peer(peer);
            let (events, tls) = (Arc::clone(&self.events), self.tls.clone());
            let context = Context {
                settings: Arc::clone(&self.settings),
                events: Arc::clone(&self.events) as _,
                slots: Arc::clone(&slots),
                draining: self.draining.clone(),
                jitter,
            };
            events.opened();
            connections.spawn(async move {
                let end = match tls {
                    None => connection::serve(io, handler, context).await,
                    Some(tls) => serve_tls(&tls, io, handler, context).await,
                };
                events.closed(end);
                drop(slot);
            });
        }
        drop(listener);
        while let Some(ended) = connections.join_next().await {
            self.check(ended);
        }
    }

    /// Reports a connection whose task panicked; every other end was reported by the task itself.
    fn check(&self, ended: Result<(), JoinError>) {
        if let Err(error) = ended {
            // A task that was aborted instead is a connection that outlived the drain's limit.
            self.events.closed(error.try_into_panic().map_or(ConnectionEnd::Failed, ConnectionEnd::Panicked));
        }
    }
}

/// Serves `io` once its TLS handshake has succeeded.
async fn serve_tls<IO, H>(tls: &Tls, io: IO, handler: H, mut context: Context) -> ConnectionEnd
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    H: Handler,
{
    let accepted = tokio::select! {
        accepted = tls.accept(io) => accepted,
        _ = context.draining.wait_for(|draining| *draining) => return ConnectionEnd::Closed,
    };
    match accepted {
        Ok((io, certificates)) => {
            let handler = handler.for_certificates(&certificates);
            connection::serve(io, handler, context).await
        }
        Err(failure) => ConnectionEnd::NoHandshake(failure),
    }
}

/// Returns whether `accept` failed for want of descriptors or memory, where trying again at once would spin.
fn is_exhausted(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS))
}

#[cfg(test)]
mod tests;
