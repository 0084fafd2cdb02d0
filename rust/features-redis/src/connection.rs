//! One connection: commands are sent in order, and replies belong to them in order.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use crate::resp::{self, Reply};

/// Size from which on waiting commands are sent by another write, in bytes.
const WRITE: usize = 64 << 10;
/// Number of commands that wait to be written. The permits of callers limit them further.
const QUEUE: usize = 1 << 17;

/// Sends commands. Clones share the connection.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    calls: mpsc::Sender<Call>,
}

/// The replies of commands that were sent together.
pub(crate) type Replies = oneshot::Receiver<Vec<Reply>>;

/// Commands that are sent together.
#[derive(Debug)]
struct Call {
    frame: Bytes,
    replies: usize,
    to: oneshot::Sender<Vec<Reply>>,
    /// Released when the replies have arrived or the connection has ended.
    permit: Option<OwnedSemaphorePermit>,
}

/// A call that waits for its replies.
#[derive(Debug)]
struct Waiting {
    since: Instant,
    missing: usize,
    replies: Vec<Reply>,
    to: oneshot::Sender<Vec<Reply>>,
    _permit: Option<OwnedSemaphorePermit>,
}

type Queue = Arc<Mutex<VecDeque<Waiting>>>;

// === impl Connection ===

impl Connection {
    /// Starts to use a stream. The future does the work of the connection, and returns why it ended: the stream failed,
    /// a reply took longer than `timeout`, or all senders are gone.
    pub(crate) fn new<S>(stream: S, timeout: Duration) -> (Connection, impl Future<Output = String> + Send)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (calls, received) = mpsc::channel(QUEUE);
        let work = async move {
            let queue = Queue::default();
            let (reader, writer) = tokio::io::split(stream);
            tokio::select! {
                why = write(writer, received, &queue) => why,
                why = read(reader, &queue) => why,
                why = watch(&queue, timeout) => why,
            }
        };
        (Connection { calls }, work)
    }

    /// Sends commands with this number of replies, without waiting. `None` if the connection has ended.
    pub(crate) fn send(
        &self,
        frame: Bytes,
        replies: usize,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Option<Replies> {
        let (to, received) = oneshot::channel();
        self.calls.try_send(Call { frame, replies, to, permit }).ok()?;
        Some(received)
    }
}

fn lock(queue: &Queue) -> MutexGuard<'_, VecDeque<Waiting>> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn write(
    mut stream: impl AsyncWrite + Unpin,
    mut calls: mpsc::Receiver<Call>,
    queue: &Queue,
) -> String {
    let mut buffer = Vec::new();
    loop {
        let Some(first) = calls.recv().await else { return "it is no longer used".to_owned() };
        buffer.clear();
        let mut next = Some(first);
        while let Some(call) = next {
            buffer.extend_from_slice(&call.frame);
            lock(queue).push_back(Waiting {
                since: Instant::now(),
                missing: call.replies,
                replies: Vec::with_capacity(call.replies),
                to: call.to,
                _permit: call.permit,
            });
            next = if buffer.len() < WRITE { calls.try_recv().ok() } else { None };
        }
        if let Err(error) = stream.write_all(&buffer).await {
            return error.to_string();
        }
        if let Err(error) = stream.flush().await {
            return error.to_string();
        }
    }
}

async fn read(mut stream: impl AsyncRead + Unpin, queue: &Queue) -> String {
    let mut buffer = BytesMut::with_capacity(WRITE);
    loop {
        match stream.read_buf(&mut buffer).await {
            Ok(0) => return "the server closed the connection".to_owned(),
            Ok(_) => {}
            Err(error) => return error.to_string(),
        }
        loop {
            let reply = match resp::take(&mut buffer) {
                Ok(Some(reply)) => reply,
                Ok(None) => break,
                Err(error) => return error.to_string(),
            };
            let mut queue = lock(queue);
            let Some(front) = queue.front_mut() else {
                return "the server sent a reply without a command".to_owned();
            };
            front.replies.push(reply);
            front.missing = front.missing.saturating_sub(1);
            if front.missing == 0
                && let Some(done) = queue.pop_front()
            {
                drop(queue);
                // The caller may have stopped waiting.
                let _ = done.to.send(done.replies);
            }
        }
    }
}

/// Returns when the oldest call waits longer than the limit. A call that nobody waits for counts as well, because a
/// server that does not reply to it will not reply to the next.
async fn watch(queue: &Queue, timeout: Duration) -> String {
    loop {
        tokio::time::sleep(timeout / 4).await;
        if lock(queue).front().is_some_and(|call| call.since.elapsed() > timeout) {
            return format!("no reply within {} ms", timeout.as_millis());
        }
    }
}
