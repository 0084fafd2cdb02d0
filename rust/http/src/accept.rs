//! The accept loop. It limits the number of connections, in total and per peer, and the rate at which a peer opens
//! them, and continues after every error of `accept`.

use std::future::{Future, poll_fn};
use std::io;
use std::net;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use scorer_os::tcp::TcpListener;
use scorer_os::unix::UnixStream;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixListener};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use crate::arrivals::{Arrivals, Origin};
use crate::connection::{self, ConnectionEnd, Context};
use crate::slots::Slots;
use crate::tls::Tls;
use crate::{ConnectionEvents, Handler, Peer, Settings};

/// Pause after an error that persists for a while (out of descriptors or memory).
const PAUSE: Duration = Duration::from_millis(20);
/// Number of connections that are accepted, or closed at accept, before other tasks run.
const ACCEPTS_PER_TURN: u32 = 4;
/// Number of connections that are opened within [`OPENING`]. Opening a connection takes as long as several requests, so
/// many connections opened together would delay the requests that wait behind them.
const OPENED_AT_ONCE: u32 = 2;
/// As [`OPENED_AT_ONCE`], with TLS, whose handshakes take longer.
const HANDSHAKES_AT_ONCE: u32 = 1;
/// Interval of [`OPENED_AT_ONCE`], which is the timer's resolution.
const OPENING: Duration = Duration::from_millis(1);

/// A listening socket.
pub trait Listener: Send + 'static {
    /// An accepted connection of the operating system. Dropping it closes the connection.
    type Accepted: Send;
    /// A connection that is served.
    type Io: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    /// Accepts a connection and returns it with its peer.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Accepted, Peer)>> + Send;

    /// Prepares a connection for being served.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    fn open(accepted: Self::Accepted, settings: &Settings) -> io::Result<Self::Io>;

    /// Closes a connection that is not served.
    fn reject(accepted: Self::Accepted) {
        drop(accepted);
    }
}

impl Listener for TcpListener {
    type Accepted = net::TcpStream;
    type Io = TcpStream;

    async fn accept(&self) -> io::Result<(net::TcpStream, Peer)> {
        let (stream, peer) = TcpListener::accept(self).await?;
        Ok((stream, Peer::of_address(peer.ip())))
    }

    fn open(accepted: net::TcpStream, settings: &Settings) -> io::Result<TcpStream> {
        accepted.set_nonblocking(true)?;
        // Nagle's algorithm together with delayed acknowledgements would delay replies by 40 ms.
        accepted.set_nodelay(true)?;
        // A peer that vanished is detected by data that it does not acknowledge.
        SockRef::from(&accepted).set_tcp_user_timeout(Some(settings.write_timeout))?;
        TcpStream::from_std(accepted)
    }

    fn reject(accepted: net::TcpStream) {
        // A linger time of zero makes the close send a reset, after which the kernel keeps no state of the connection.
        // If setting it fails, the connection is closed without a reset.
        let _ = SockRef::from(&accepted).set_linger(Some(Duration::ZERO));
    }
}

impl Listener for UnixListener {
    type Accepted = tokio::net::UnixStream;
    type Io = UnixStream;

    async fn accept(&self) -> io::Result<(tokio::net::UnixStream, Peer)> {
        let (stream, _) = UnixListener::accept(self).await?;
        let peer = stream.peer_cred().map_or(Peer::UnknownUser, |user| Peer::User(user.uid()));
        Ok((stream, peer))
    }

    fn open(accepted: tokio::net::UnixStream, _: &Settings) -> io::Result<UnixStream> {
        UnixStream::new(accepted)
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
    /// Creates an acceptor that serves with `handler`. When `draining` becomes true, it accepts no more connections,
    /// and open connections end gracefully.
    pub fn new(handler: H, events: Arc<E>, settings: Settings, draining: watch::Receiver<bool>) -> Self {
        Acceptor { handler, events, settings: Arc::new(settings), draining, tls: None }
    }

    /// Returns the acceptor with TLS: if `tls` is given, every connection starts with a handshake.
    #[must_use]
    pub fn with_tls(mut self, tls: Option<Tls>) -> Self {
        self.tls = tls;
        self
    }

    /// Accepts connections until the drain starts, then closes the listener and waits for its connections. Each
    /// listener has its own [`Settings::max_connections`].
    pub async fn run<L: Listener>(self, listener: L) {
        let slots = Arc::new(Slots::new(&self.settings));
        let arrivals = Arc::new(Arrivals::new(&self.settings));
        let mut draining = self.draining.clone();
        let mut connections = JoinSet::new();
        let mut accepted: u64 = 0;
        let mut exhausted = false;
        let mut in_turn = 0;
        let mut opened = Opened::new(if self.tls.is_some() { HANDSHAKES_AT_ONCE } else { OPENED_AT_ONCE });
        loop {
            if in_turn == ACCEPTS_PER_TURN {
                in_turn = 0;
                pass().await;
            }
            if let Some(pause) = opened.pause() {
                tokio::time::sleep(pause).await;
            }
            let next = tokio::select! {
                next = listener.accept() => next,
                Some(ended) = connections.join_next(), if !connections.is_empty() => {
                    self.check(ended);
                    continue;
                }
                _ = draining.wait_for(|draining| *draining) => break,
            };
            in_turn += 1;
            let (raw, peer) = match next {
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
            let origin = arrivals.origin(peer);
            let slot = match arrivals.open(origin).and_then(|()| slots.take(peer)) {
                Ok(slot) => slot,
                Err(limit) => {
                    // The connection is counted first, so that the counter includes each connection whose client has
                    // detected the close. The client detects it at once. In the backlog, the connection would wait
                    // without an answer.
                    self.events.limited(limit);
                    L::reject(raw);
                    continue;
                }
            };
            let io = match L::open(raw, &self.settings) {
                Ok(io) => io,
                Err(error) => {
                    self.events.accept_failed(&error, false);
                    continue;
                }
            };
            accepted += 1;
            // Connections that are closed at accept are not counted: they cost little, and a pause would delay others.
            opened.one_more();
            // Fractional parts of multiples of the golden ratio are spread evenly over [0, 1), so connections that are
            // opened together do not reach their maximal age together.
            let jitter = (accepted as f64 * 0.618_033_988_749_895).fract();
            let context = Context {
                settings: Arc::clone(&self.settings),
                events: Arc::clone(&self.events) as _,
                slots: Arc::clone(&slots),
                draining: self.draining.clone(),
                jitter,
            };
            self.events.opened();
            let handler = self.handler.for_peer(peer);
            let (events, tls, arrivals) = (Arc::clone(&self.events), self.tls.clone(), Arc::clone(&arrivals));
            connections.spawn(async move {
                let (end, origin) = match tls {
                    None => (connection::serve(io, handler, context).await, origin),
                    Some(tls) => serve_tls(&tls, io, handler, context, (&arrivals, origin)).await,
                };
                if let ConnectionEnd::Limited(limit) = end
                    && limit.is_misuse()
                    && arrivals.misused(origin)
                {
                    events.misused(peer, limit);
                }
                events.closed(end);
                drop(slot);
            });
        }
        drop(listener);
        while let Some(ended) = connections.join_next().await {
            self.check(ended);
        }
    }

    /// Reports a connection whose task panicked. Every other end is reported by the task itself.
    fn check(&self, ended: Result<(), JoinError>) {
        if let Err(error) = ended {
            // A task that was aborted belongs to a connection that did not end within the drain's limit.
            self.events.closed(error.try_into_panic().map_or(ConnectionEnd::Failed, ConnectionEnd::Panicked));
        }
    }
}

/// Serves `io` after its TLS handshake. Also returns the origin of the connection: that of the authenticated principal,
/// if there is one, otherwise that of the peer's address.
async fn serve_tls<IO, H>(
    tls: &Tls,
    io: IO,
    handler: H,
    mut context: Context,
    (arrivals, address): (&Arrivals, Origin),
) -> (ConnectionEnd, Origin)
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    H: Handler,
{
    let accepted = tokio::select! {
        accepted = tls.accept(io) => accepted,
        _ = context.draining.wait_for(|draining| *draining) => return (ConnectionEnd::Closed, address),
    };
    let (io, certificates) = match accepted {
        Ok(accepted) => accepted,
        Err(failure) => return (ConnectionEnd::NoHandshake(failure), address),
    };
    let handler = handler.for_certificates(&certificates);
    let origin = match handler.principal() {
        None => address,
        Some(key) => {
            let principal = arrivals.principal(key);
            if let Err(limit) = arrivals.open(principal) {
                context.events.limited(limit);
                return (ConnectionEnd::Limited(limit), address);
            }
            // Many principals may share one address, so the connection counts for the principal only.
            arrivals.give_back(address);
            principal
        }
    };
    (connection::serve(io, handler, context).await, origin)
}

/// Lets all other ready tasks run.
async fn pass() {
    let mut passed = false;
    poll_fn(|context| {
        if std::mem::replace(&mut passed, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// The number of connections that were opened recently.
struct Opened {
    at_once: u32,
    since: Instant,
    count: u32,
}

impl Opened {
    fn new(at_once: u32) -> Opened {
        Opened { at_once, since: Instant::now(), count: 0 }
    }

    fn one_more(&mut self) {
        if self.count == 0 || self.since.elapsed() >= OPENING {
            *self = Opened::new(self.at_once);
        }
        self.count += 1;
    }

    /// Returns the time to wait before the next connection is opened.
    fn pause(&self) -> Option<Duration> {
        let used_up = self.count >= self.at_once;
        used_up.then(|| OPENING.saturating_sub(self.since.elapsed())).filter(|pause| !pause.is_zero())
    }
}

/// Returns whether `accept` failed because of missing descriptors or memory. Trying again at once would then fail too.
fn is_exhausted(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS))
}

#[cfg(test)]
mod tests;
