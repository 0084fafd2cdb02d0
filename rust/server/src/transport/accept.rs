//! The accept loop: caps connections and outlives every error of `accept`.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::Dispatch;
use super::connection::{self, End};
use super::unix::Unix;
use crate::events::Level;
use crate::state::Shared;

/// Pause after an error that will not go away by itself at once (out of descriptors or memory).
const PAUSE: Duration = Duration::from_millis(20);

/// What the loop needs of a listening socket.
pub(crate) trait Accept: Send + 'static {
    type Io: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    /// A connection, and who is at its other end: an address without the port, or a user.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Io, String)>> + Send;
}

impl Accept for TcpListener {
    type Io = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, String)> {
        let (stream, peer) = TcpListener::accept(self).await?;
        // Nagle's algorithm against delayed acknowledgements costs 40 ms.
        stream.set_nodelay(true)?;
        Ok((stream, peer.ip().to_string()))
    }
}

impl Accept for UnixListener {
    type Io = Unix;

    async fn accept(&self) -> io::Result<(Unix, String)> {
        let (stream, _) = UnixListener::accept(self).await?;
        let peer = stream.peer_cred().map_or_else(|_| "unix".to_owned(), |it| format!("uid {}", it.uid()));
        Ok((Unix::new(stream)?, peer))
    }
}

/// Accepts until `draining`, then closes the listener and waits for the connections it took.
pub(crate) async fn run<A: Accept>(
    listener: A,
    shared: Arc<Shared>,
    dispatch: Dispatch,
    slots: Arc<Semaphore>,
    mut draining: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    let counters = &shared.metrics.connections;
    let mut taken: u64 = 0;
    let mut exhausted = false;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            _ = draining.wait_for(|draining| *draining) => break,
        };
        let (io, peer) = match accepted {
            Ok(accepted) => {
                exhausted = false;
                accepted
            }
            Err(error) => {
                counters.accept_errors.fetch_add(1, Relaxed);
                if is_exhausted(&error) {
                    // Told once, however long it lasts.
                    if !std::mem::replace(&mut exhausted, true) {
                        let remedy = "raise the limit of open files or lower max_connections";
                        let fields = json!({"error": error.to_string(), "remedy": remedy});
                        shared.events.push(Level::Error, "accept_failed", fields);
                    }
                    tokio::time::sleep(PAUSE).await;
                }
                continue;
            }
        };
        let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else {
            // Closing tells the client at once; holding it in the backlog would tell it nothing.
            counters.refused.fetch_add(1, Relaxed);
            continue;
        };
        taken += 1;
        // The golden ratio spreads consecutive numbers evenly.
        let spread = (taken as f64 * 0.618_033_988_749_895).fract();
        let (shared, dispatch, draining) =
            (Arc::clone(&shared), dispatch.clone().of_peer(&peer), draining.clone());
        connections.spawn(async move {
            let counters = &shared.metrics.connections;
            counters.open.fetch_add(1, Relaxed);
            let end = connection::serve(io, dispatch, draining, spread).await;
            counters.open.fetch_sub(1, Relaxed);
            match end {
                End::Closed => {}
                End::NoPreface => _ = counters.no_preface.fetch_add(1, Relaxed),
                End::Failed => _ = counters.failed.fetch_add(1, Relaxed),
            }
            drop(slot);
        });
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Whether `accept` failed for want of descriptors or memory, where trying again at once would spin.
fn is_exhausted(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS))
}
