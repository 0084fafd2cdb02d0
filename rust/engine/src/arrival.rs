//! When a request arrived, how long its caller waits, and how far it has come.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use scorer_token::Tenant;

use crate::rejection::Rejection;

/// No checkpoint known yet.
const NONE: u32 = u32::MAX;
/// Stands for no time limit: five hundred years.
const UNLIMITED: u64 = u64::MAX;

/// One request's times. Shared by the task that answers it and the counters that are updated at its end.
#[derive(Debug)]
pub struct Arrival {
    /// When the request arrived; waiting for a thread counts.
    pub at: Instant,
    /// The caller, hashed: shares of the capacity are per caller.
    pub caller: u64,
    /// Whose request ids these are: two principals may use the same id. 0 where callers are not known.
    pub(crate) principal: u64,
    /// On whose behalf it was sent: decision tokens are valid for one tenant.
    pub tenant: Tenant,
    /// Admission control counts it as waiting and unread.
    waits: AtomicBool,
    /// What the caller allows, nanoseconds; [`UNLIMITED`] if it set no limit.
    allowed: AtomicU64,
    /// Set once the checkpoint is known.
    checkpoint: AtomicU32,
    /// Arrival to first poll, nanoseconds; [`UNLIMITED`] before it.
    queued: AtomicU64,
    /// The answer is a fallback's.
    fallback: AtomicBool,
    /// Arrival to the answer of one row, nanoseconds; [`UNLIMITED`] before it.
    ready: AtomicU64,
    /// The decision that it was answered with, if that is in the log.
    decision: OnceLock<DecisionMade>,
}

/// The longest id of a request, bytes.
const ID: usize = 64;

/// A recorded decision, as a delivery record names it. Its id is kept in place: no request allocates for it.
#[derive(Debug)]
pub(crate) struct DecisionMade {
    id: [u8; ID],
    len: usize,
    pub(crate) decided_at_us: i64,
    /// The answer was given before, and is repeated.
    pub(crate) replayed: bool,
}

// === impl DecisionMade ===

impl DecisionMade {
    pub(crate) fn id(&self) -> &str {
        std::str::from_utf8(&self.id[..self.len]).unwrap_or_default()
    }
}

// === impl Arrival ===

impl Arrival {
    /// A request that arrived at `at` and whose caller waits for `timeout`, if it set one.
    #[must_use]
    pub fn new(at: Instant, timeout: Option<Duration>, caller: u64) -> Arrival {
        Arrival {
            at,
            caller,
            principal: 0,
            tenant: Tenant::UNNAMED,
            waits: AtomicBool::new(false),
            allowed: AtomicU64::new(timeout.map_or(UNLIMITED, nanos)),
            checkpoint: AtomicU32::new(NONE),
            queued: AtomicU64::new(UNLIMITED),
            fallback: AtomicBool::new(false),
            ready: AtomicU64::new(UNLIMITED),
            decision: OnceLock::new(),
        }
    }

    /// The same request, sent by a known principal: its ids are its own.
    #[must_use]
    pub fn of_principal(mut self, principal: u64) -> Arrival {
        self.principal = principal;
        self
    }

    /// Notes the recorded decision that answers it.
    pub(crate) fn decided(&self, id: &str, decided_at_us: i64, replayed: bool) {
        let mut made = DecisionMade { id: [0; ID], len: id.len(), decided_at_us, replayed };
        if let Some(to) = made.id.get_mut(..id.len()) {
            to.copy_from_slice(id.as_bytes());
            // A stream's message is a request of its own; only the first decision would be kept.
            let _ = self.decision.set(made);
        }
    }

    /// The recorded decision that answers it.
    pub(crate) fn decision(&self) -> Option<&DecisionMade> {
        self.decision.get()
    }

    /// What the caller allows, counted from the arrival, if it set a limit.
    pub fn timeout(&self) -> Option<Duration> {
        let allowed = self.allowed.load(Relaxed);
        (allowed != UNLIMITED).then(|| Duration::from_nanos(allowed))
    }

    /// Sets a limit that the message itself carries; the shorter one holds.
    pub fn tighten(&self, timeout: Duration) {
        self.allowed.fetch_min(nanos(timeout), Relaxed);
    }

    /// Notes that the request is polled for the first time.
    pub fn started(&self) {
        self.queued.store(nanos(self.at.elapsed()), Relaxed);
    }

    /// Arrival to first poll; `None` if it was never polled.
    pub fn queue_delay(&self) -> Option<Duration> {
        let queued = self.queued.load(Relaxed);
        (queued != UNLIMITED).then(|| Duration::from_nanos(queued))
    }

    /// Notes that the answer of one row has been known since `at`: only the reply is left.
    pub(crate) fn ready(&self, at: Instant) {
        self.ready.store(nanos(at.saturating_duration_since(self.at)), Relaxed);
    }

    /// How long ago that was.
    pub(crate) fn ready_for(&self) -> Option<Duration> {
        let ready = self.ready.load(Relaxed);
        (ready != UNLIMITED).then(|| self.at.elapsed().saturating_sub(Duration::from_nanos(ready)))
    }

    /// Notes that the answer is not the model's own, in whole or in part.
    pub(crate) fn fell_back(&self) {
        self.fallback.store(true, Relaxed);
    }

    /// Whether the answer is a fallback's, in whole or in part.
    pub fn has_fallen_back(&self) -> bool {
        self.fallback.load(Relaxed)
    }

    /// Rejects a request whose caller has given up.
    ///
    /// # Errors
    /// [`Rejection::Deadline`].
    pub fn check_deadline(&self) -> Result<(), Rejection> {
        match self.timeout() {
            Some(timeout) if self.at.elapsed() >= timeout => Err(Rejection::Deadline),
            _ => Ok(()),
        }
    }

    /// Notes whether it waits unread; returns what was noted before.
    pub(crate) fn set_waiting(&self, waits: bool) -> bool {
        self.waits.swap(waits, Relaxed)
    }

    /// Notes the checkpoint, by its index.
    pub(crate) fn set_checkpoint(&self, index: usize) {
        self.checkpoint.store(index as u32, Relaxed);
    }

    /// The index of the checkpoint, once it is known.
    pub fn checkpoint(&self) -> Option<usize> {
        let index = self.checkpoint.load(Relaxed);
        (index != NONE).then_some(index as usize)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(UNLIMITED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shorter_limit_holds() {
        let arrival = Arrival::new(Instant::now(), None, 0);
        assert_eq!(arrival.timeout(), None);
        arrival.tighten(Duration::from_secs(2));
        assert_eq!(arrival.timeout(), Some(Duration::from_secs(2)));
        let arrival = Arrival::new(Instant::now(), Some(Duration::from_secs(1)), 0);
        arrival.tighten(Duration::from_secs(2));
        assert_eq!(arrival.timeout(), Some(Duration::from_secs(1)));
        arrival.tighten(Duration::from_nanos(1));
        assert_eq!(arrival.check_deadline(), Err(Rejection::Deadline));
    }

    #[test]
    fn a_limit_of_nothing_has_passed_at_once() {
        let arrival = Arrival::new(Instant::now(), Some(Duration::ZERO), 0);
        assert_eq!(arrival.check_deadline(), Err(Rejection::Deadline));
    }
}
