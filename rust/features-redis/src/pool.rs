//! Connections for reads: each is opened again when it ends, and a slow read is repeated on another one.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI64, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use scorer_outbound::Backoff;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::config::RedisConfig;
use crate::connection::{Connection, Replies};
use crate::counters::{ReadFailure, RedisCounters};
use crate::dial::dial;
use crate::resp::{Reply, command};

/// The price of a repeated read. Each read earns its share of it.
const HEDGE: i64 = 1000;
/// Greatest number of repeated reads that may follow one another.
const BURST: i64 = 10;
/// Interval at which the server is asked for the number of evicted keys.
const PROBE: Duration = Duration::from_secs(5);

/// Connections to one server.
#[derive(Debug)]
pub struct Pool {
    config: RedisConfig,
    slots: Box<[Slot]>,
    next: AtomicUsize,
    permits: Arc<Semaphore>,
    budget: AtomicI64,
    counters: RedisCounters,
}

/// A connection, or none while it is opened again.
#[derive(Debug, Default)]
struct Slot {
    connection: ArcSwapOption<Connection>,
    /// Why there is no connection.
    error: Mutex<String>,
}

/// A read that was sent.
#[derive(Debug)]
pub struct Read {
    pool: Arc<Pool>,
    frame: Bytes,
    slot: usize,
    first: Replies,
}

// === impl Pool ===

impl Pool {
    /// Connections that are not opened yet; see [`Pool::start`].
    #[must_use]
    pub fn new(config: RedisConfig) -> Arc<Pool> {
        Arc::new(Pool {
            slots: (0..config.connections.max(1)).map(|_| Slot::default()).collect(),
            next: AtomicUsize::new(0),
            permits: Arc::new(Semaphore::new(config.max_in_flight)),
            budget: AtomicI64::new(0),
            counters: RedisCounters::default(),
            config,
        })
    }

    /// Opens the connections on a runtime, and keeps them open as long as it runs. `report` receives a message when the
    /// first connection opens, when there is none any more, and when the server evicts keys.
    pub fn start(self: &Arc<Pool>, runtime: &Handle, report: Arc<dyn Fn(Message<'_>) + Send + Sync>) {
        for slot in 0..self.slots.len() {
            runtime.spawn(Arc::clone(self).keep(slot, Arc::clone(&report)));
        }
        runtime.spawn(Arc::clone(self).probe(report));
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &RedisConfig {
        &self.config
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> &RedisCounters {
        &self.counters
    }

    /// Number of open connections.
    #[must_use]
    pub fn connected(&self) -> usize {
        self.slots.iter().filter(|slot| slot.connection.load().is_some()).count()
    }

    /// Number of reads without a reply.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.config.max_in_flight.saturating_sub(self.permits.available_permits())
    }

    /// Why there is no connection; `None` if there is one.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        if self.connected() > 0 {
            return None;
        }
        let error = self.slots.first()?.error.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Some(if error.is_empty() { "not connected yet".to_owned() } else { error })
    }

    async fn keep(self: Arc<Pool>, slot: usize, report: Arc<dyn Fn(Message<'_>) + Send + Sync>) {
        let Some(place) = self.slots.get(slot) else { return };
        let mut backoff = Backoff::new();
        let mut reported = String::new();
        loop {
            let why = match dial(&self.config).await {
                Ok((connection, work)) => {
                    self.counters.connects.fetch_add(1, Relaxed);
                    let first = self.connected() == 0;
                    place.connection.store(Some(Arc::new(connection)));
                    if first {
                        report(Message::Connected);
                    }
                    reported.clear();
                    let opened = std::time::Instant::now();
                    let why = work.await;
                    place.connection.store(None);
                    // A connection that ends at once, as of a server that is starting, does not end the backoff.
                    if opened.elapsed() > Duration::from_secs(1) {
                        backoff.reset();
                    }
                    why
                }
                Err(why) => why,
            };
            self.counters.disconnects.fetch_add(1, Relaxed);
            place.error.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&why);
            if self.connected() == 0 && reported != why {
                report(Message::Away(&why));
                reported = why;
            }
            tokio::time::sleep(backoff.next_delay()).await;
        }
    }

    async fn probe(self: Arc<Pool>, report: Arc<dyn Fn(Message<'_>) + Send + Sync>) {
        let frame = Bytes::from(command([&b"INFO"[..], b"stats"]));
        loop {
            tokio::time::sleep(PROBE).await;
            let Some(replies) = self.slots.iter().find_map(|slot| {
                slot.connection.load().as_ref().and_then(|connection| connection.send(frame.clone(), 1, None))
            }) else {
                continue;
            };
            // A user without the right to this command is answered by an error: the number is then unknown.
            let Ok(replies) = replies.await else { continue };
            let evicted = replies.first().and_then(Reply::value).and_then(|text| {
                let text = str::from_utf8(text).ok()?;
                text.lines().find_map(|line| line.strip_prefix("evicted_keys:"))?.trim().parse::<u64>().ok()
            });
            if let Some(evicted) = evicted
                && self.counters.evicted_keys.swap(evicted, Relaxed) < evicted
            {
                report(Message::Evicting(evicted));
            }
        }
    }

    /// Sends the read of values, one for each key of `frame`, a command with one reply. It does not wait.
    ///
    /// # Errors
    /// There is no connection, or too many reads wait for a reply. The failure is counted.
    pub fn read(self: &Arc<Pool>, frame: Bytes) -> Result<Read, ReadFailure> {
        let share = (self.config.hedge_share * HEDGE as f64) as i64;
        if self.budget.load(Relaxed) < BURST * HEDGE {
            self.budget.fetch_add(share, Relaxed);
        }
        let start = self.next.fetch_add(1, Relaxed);
        match self.send(start, &frame) {
            Ok((slot, first)) => Ok(Read { pool: Arc::clone(self), frame, slot, first }),
            Err(failure) => {
                self.counters.failed(failure);
                Err(failure)
            }
        }
    }

    /// Sends a read on the first open connection from a slot on.
    fn send(&self, start: usize, frame: &Bytes) -> Result<(usize, Replies), ReadFailure> {
        let count = self.slots.len();
        for slot in (0..count).map(|step| (start.wrapping_add(step)) % count) {
            let Some(place) = self.slots.get(slot) else { continue };
            let connection = place.connection.load();
            let Some(connection) = connection.as_ref() else { continue };
            let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
                return Err(ReadFailure::Busy);
            };
            if let Some(replies) = connection.send(frame.clone(), 1, Some(permit)) {
                return Ok((slot, replies));
            }
        }
        Err(ReadFailure::Away)
    }

    /// Pays for the repetition of a read, if the limit of their share allows it.
    fn may_hedge(&self) -> bool {
        let paid =
            self.budget.fetch_update(Relaxed, Relaxed, |budget| (budget >= HEDGE).then(|| budget - HEDGE));
        if paid.is_err() {
            self.counters.hedges_refused.fetch_add(1, Relaxed);
        }
        paid.is_ok()
    }
}

/// What a pool reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message<'a> {
    /// The first connection is open.
    Connected,
    /// There is no connection, for this reason.
    Away(&'a str),
    /// The server has evicted this number of keys since its start.
    Evicting(u64),
}

// === impl Read ===

impl Read {
    /// Waits for the values. After the delay of hedges, or when the connection ends, the read is repeated on another
    /// connection, and the first replies are used. The caller bounds the time.
    ///
    /// # Errors
    /// There are no replies. The failure is counted.
    pub async fn values(self) -> Result<Vec<Reply>, ReadFailure> {
        let pool = Arc::clone(&self.pool);
        let result = self.either().await;
        let result = result.and_then(|mut replies| match replies.pop() {
            Some(Reply::Array(values)) => Ok(values),
            _ => Err(ReadFailure::Refused),
        });
        match &result {
            Ok(_) => {
                pool.counters.reads.fetch_add(1, Relaxed);
            }
            Err(failure) => pool.counters.failed(*failure),
        }
        result
    }

    async fn either(self) -> Result<Vec<Reply>, ReadFailure> {
        let Read { pool, frame, slot, mut first } = self;
        let delay = Duration::from_millis(pool.config.hedge_ms);
        let mut is_lost = false;
        tokio::select! {
            biased;
            replies = &mut first => match replies {
                Ok(replies) => return Ok(replies),
                Err(_) => is_lost = true,
            },
            () = tokio::time::sleep(delay), if !delay.is_zero() => {}
        }
        let lost = |_| ReadFailure::Away;
        let is_useful = is_lost || pool.slots.len() > 1;
        let second = if is_useful && pool.may_hedge() { pool.send(slot + 1, &frame).ok() } else { None };
        let Some((_, second)) = second else {
            return if is_lost { Err(ReadFailure::Away) } else { first.await.map_err(lost) };
        };
        pool.counters.hedges.fetch_add(1, Relaxed);
        let won = |replies| {
            pool.counters.hedges_won.fetch_add(1, Relaxed);
            replies
        };
        if is_lost {
            return second.await.map(won).map_err(lost);
        }
        let mut second = second;
        tokio::select! {
            biased;
            replies = &mut first => match replies {
                Ok(replies) => Ok(replies),
                Err(_) => second.await.map(won).map_err(lost),
            },
            replies = &mut second => match replies {
                Ok(replies) => Ok(won(replies)),
                Err(_) => first.await.map_err(lost),
            },
        }
    }
}
