//! Arrival time, time limit and progress of a request.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use scorer_token::Tenant;

use crate::bundles::NodeCounters;
use crate::lanes::Source;
use crate::rejection::Rejection;
use crate::stages::{Stage, StageTimes, Timed};

/// Index of an unknown checkpoint.
const NONE: u32 = u32::MAX;
/// Value for no time limit: five hundred years in nanoseconds.
const UNLIMITED: u64 = u64::MAX;

/// Times and state of one request, shared by the task that answers it and the counters that are updated at its end.
#[derive(Debug)]
pub struct Arrival {
    /// Arrival time of the request, before it waited for a thread.
    pub at: Instant,
    /// Hash of the caller. Shares of the capacity are per caller.
    pub caller: u64,
    /// Hash of the principal, whose request ids are separate from those of others; 0 if callers are not authenticated.
    pub(crate) principal: u64,
    /// Tenant of the request. Decision tokens are valid for one tenant.
    pub tenant: Tenant,
    /// Whether admission control counts the request as waiting and unread.
    waits: AtomicBool,
    /// Time limit of the caller, in nanoseconds; [`UNLIMITED`] if there is none.
    allowed: AtomicU64,
    /// The only decision of the request, or the first of two.
    first: RequestStep,
    /// The second decision of a request that has two.
    second: RequestStep,
    /// Whether the second decision is being made.
    at_second: AtomicBool,
    /// Time from arrival to first poll, in nanoseconds; [`UNLIMITED`] before it.
    queued: AtomicU64,
    /// Time from arrival to the answer of one row, in nanoseconds; [`UNLIMITED`] before it.
    ready: AtomicU64,
    /// The times of the stages of each decision, if the request is traced.
    stages: Option<Box<[StageTimes; 2]>>,
}

/// One decision of a request.
#[derive(Debug)]
pub struct RequestStep {
    /// Index of the checkpoint, once it is known.
    checkpoint: AtomicU32,
    /// Whether the answer comes from a fallback.
    fallback: AtomicBool,
    /// The decision that answers the request, if it is in the log.
    decision: OnceLock<DecisionMade>,
}

/// Limit on the length of a request id, in bytes.
const ID: usize = 64;

/// A recorded decision, for delivery records. Its id is stored inline, so that no request allocates for it.
#[derive(Debug)]
pub(crate) struct DecisionMade {
    id: [u8; ID],
    len: usize,
    pub(crate) decided_at_us: i64,
    /// Number of rows of a batch, whose decisions are `<id>/0` and so on; 0 for a single decision.
    pub(crate) rows: u32,
    /// Whether the answer was given before and comes from the idempotency cache.
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
    /// Creates the arrival of a request at `at`, with the caller's timeout if it set one.
    #[must_use]
    pub fn new(at: Instant, timeout: Option<Duration>, caller: u64) -> Arrival {
        Arrival {
            at,
            caller,
            principal: 0,
            tenant: Tenant::UNNAMED,
            waits: AtomicBool::new(false),
            allowed: AtomicU64::new(timeout.map_or(UNLIMITED, nanos)),
            first: RequestStep::new(),
            second: RequestStep::new(),
            at_second: AtomicBool::new(false),
            queued: AtomicU64::new(UNLIMITED),
            ready: AtomicU64::new(UNLIMITED),
            stages: None,
        }
    }

    /// Sets the principal of the request, whose request ids are separate from those of others.
    #[must_use]
    pub fn of_principal(mut self, principal: u64) -> Arrival {
        self.principal = principal;
        self
    }

    /// Makes the request measure its stages.
    #[must_use]
    pub fn traced(mut self) -> Arrival {
        self.stages = Some(Box::default());
        self
    }

    /// Returns the decisions of the request: one, or two if the checkpoint of the second is known.
    pub fn steps(&self) -> impl Iterator<Item = &RequestStep> {
        let second = self.second.checkpoint().is_some().then_some(&self.second);
        std::iter::once(&self.first).chain(second)
    }

    /// Returns the times of the stages of each decision, if the request is traced.
    pub fn stages(&self) -> impl Iterator<Item = (&RequestStep, &StageTimes)> {
        self.steps().zip(self.stages.iter().flat_map(|stages| stages.iter()))
    }

    /// Sets the checkpoint of the second decision.
    pub(crate) fn set_second_checkpoint(&self, index: usize) {
        self.second.checkpoint.store(index as u32, Relaxed);
    }

    /// Continues with the second decision.
    pub(crate) fn next_step(&self) {
        self.at_second.store(true, Relaxed);
    }

    fn current(&self) -> &RequestStep {
        if self.at_second.load(Relaxed) { &self.second } else { &self.first }
    }

    fn current_stages(&self) -> Option<&StageTimes> {
        let [first, second] = &**self.stages.as_ref()?;
        Some(if self.at_second.load(Relaxed) { second } else { first })
    }

    /// Measures a stage until the result is dropped, if the request is traced.
    pub(crate) fn measure(&self, stage: Stage) -> Timed<'_> {
        self.current_stages().map_or(Timed::NONE, |times| times.measure(stage, self.at))
    }

    /// Whether the request is traced.
    pub(crate) fn is_traced(&self) -> bool {
        self.stages.is_some()
    }

    /// Stores the times of the nodes that ran, if the request is traced.
    pub(crate) fn ran(&self, nodes: &Arc<NodeCounters>, times: &[u64]) {
        if let Some(stages) = self.current_stages() {
            stages.ran(nodes, times);
        }
    }

    /// Stores the lane that answers, if the request is traced.
    pub(crate) fn answered_by(&self, source: &Arc<Source>) {
        if let Some(times) = self.current_stages() {
            times.answered_by(source);
        }
    }

    /// Stores the recorded decision that answers the request.
    pub(crate) fn decided(&self, id: &str, decided_at_us: i64, replayed: bool) {
        self.made(id, DecisionMade { id: [0; ID], len: id.len(), decided_at_us, rows: 0, replayed });
    }

    /// Stores the recorded decisions of a batch that answer the request.
    pub(crate) fn decided_batch(&self, id: &str, decided_at_us: i64, rows: u32) {
        self.made(id, DecisionMade { id: [0; ID], len: id.len(), decided_at_us, rows, replayed: false });
    }

    fn made(&self, id: &str, mut made: DecisionMade) {
        if let Some(to) = made.id.get_mut(..id.len()) {
            to.copy_from_slice(id.as_bytes());
            // Each message of a stream is a separate request, so only the first decision is stored.
            let _ = self.current().decision.set(made);
        }
    }

    /// Returns the id of the recorded decision that answers the request, and whether it was given before.
    pub fn recorded(&self) -> Option<(&str, bool)> {
        self.first.recorded()
    }

    /// Returns the caller's time limit, counted from the arrival, if it set one.
    pub fn timeout(&self) -> Option<Duration> {
        let allowed = self.allowed.load(Relaxed);
        (allowed != UNLIMITED).then(|| Duration::from_nanos(allowed))
    }

    /// Applies the time limit of the message itself. The shorter limit takes effect.
    pub fn tighten(&self, timeout: Duration) {
        self.allowed.fetch_min(nanos(timeout), Relaxed);
    }

    /// Records the first poll of the request.
    pub fn started(&self) {
        self.queued.store(nanos(self.at.elapsed()), Relaxed);
    }

    /// Returns the time from arrival to first poll; `None` if the request was never polled.
    pub fn queue_delay(&self) -> Option<Duration> {
        let queued = self.queued.load(Relaxed);
        (queued != UNLIMITED).then(|| Duration::from_nanos(queued))
    }

    /// Records that the answer of one row is ready since `at`.
    pub(crate) fn ready(&self, at: Instant) {
        self.ready.store(nanos(at.saturating_duration_since(self.at)), Relaxed);
    }

    /// Returns the time since the answer is ready.
    pub(crate) fn ready_for(&self) -> Option<Duration> {
        let ready = self.ready.load(Relaxed);
        (ready != UNLIMITED).then(|| self.at.elapsed().saturating_sub(Duration::from_nanos(ready)))
    }

    /// Records that a fallback answers at least in part.
    pub(crate) fn fell_back(&self) {
        self.current().fallback.store(true, Relaxed);
    }

    /// Returns whether a fallback answers at least in part.
    pub fn has_fallen_back(&self) -> bool {
        self.first.has_fallen_back()
    }

    /// Rejects a request whose deadline has passed.
    ///
    /// # Errors
    /// Returns [`Rejection::Deadline`] if the deadline has passed.
    pub fn check_deadline(&self) -> Result<(), Rejection> {
        match self.timeout() {
            Some(timeout) if self.at.elapsed() >= timeout => Err(Rejection::Deadline),
            _ => Ok(()),
        }
    }

    /// Sets whether the request waits unread, and returns the previous value.
    pub(crate) fn set_waiting(&self, waits: bool) -> bool {
        self.waits.swap(waits, Relaxed)
    }

    /// Stores the index of the checkpoint.
    pub(crate) fn set_checkpoint(&self, index: usize) {
        self.current().checkpoint.store(index as u32, Relaxed);
    }

    /// Returns the index of the checkpoint of the first decision, once it is known.
    pub fn checkpoint(&self) -> Option<usize> {
        self.first.checkpoint()
    }
}

// === impl RequestStep ===

impl RequestStep {
    fn new() -> RequestStep {
        RequestStep {
            checkpoint: AtomicU32::new(NONE),
            fallback: AtomicBool::new(false),
            decision: OnceLock::new(),
        }
    }

    /// Returns the index of the checkpoint, once it is known.
    pub fn checkpoint(&self) -> Option<usize> {
        let index = self.checkpoint.load(Relaxed);
        (index != NONE).then_some(index as usize)
    }

    /// Returns whether a fallback answers at least in part.
    pub fn has_fallen_back(&self) -> bool {
        self.fallback.load(Relaxed)
    }

    /// Returns the id of the recorded decision, and whether it was given before.
    pub fn recorded(&self) -> Option<(&str, bool)> {
        self.decision.get().map(|made| (made.id(), made.replayed))
    }

    /// Returns the recorded decision.
    pub(crate) fn decision(&self) -> Option<&DecisionMade> {
        self.decision.get()
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
