//! Admission control, connected with the server's clock and threads.
//!
//! A request is checked twice: on arrival, by the work in flight and the unread requests; and when checkpoint, bundle
//! and rows are known, by its cost, its predicted wait and its tier. The rules are those of [`scorer_admission`].

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::{Duration, Instant};

use scorer_admission::{
    Admission, Ask, CheckpointSettings, Mode as CoreMode, Nanos, Permit as CorePermit, Pressure, Settings,
    SettingsError, Shed, Snapshot, Then, Verdict,
};

use crate::arrival::Arrival;
use crate::bundles::Loaded;
use crate::config::{CheckpointConfig, Mode};
use crate::rejection::Rejection;

/// Time limit of a batch without a deadline, because the SLA applies to single rows.
pub(crate) const BATCH_WITHIN: Duration = Duration::from_secs(5);
/// Part of the tightest SLA that is reserved for the reply, or [`Settings::reply_margin`] if that is less.
const MARGIN: f64 = 0.25;
/// Interval at which entities are rehashed, so that no entity is always shed first.
const COHORT: Duration = Duration::from_secs(3600);

/// Right to evaluate: holds the request's cost until it is finished or dropped.
pub(crate) type AdmissionPermit = CorePermit<Arc<Admission>>;

/// The admission controller.
pub struct Gate {
    core: Arc<Admission>,
    started: Instant,
    inflight: AtomicUsize,
    limit: usize,
    /// Whether every checkpoint enforces its SLA, so that requests may be shed before their checkpoint is known.
    unread: AtomicBool,
    keys: RandomState,
}

/// A request in flight. Dropping the guard frees its place.
pub struct InflightGuard(Arc<Gate>);

fn settings_of(config: &CheckpointConfig) -> CheckpointSettings {
    CheckpointSettings {
        batch_p99: Some(config.sla().max(BATCH_WITHIN).into()),
        tier: config.tier,
        mode: match config.mode {
            Mode::Off => CoreMode::Off,
            Mode::Observe => CoreMode::Observe,
            Mode::Enforce => CoreMode::Enforce,
        },
        fallback: config.fallback.is_some(),
        ..CheckpointSettings::new(config.sla().into())
    }
}

// === impl Gate ===

impl Gate {
    /// Creates the controller for these checkpoints, `threads` evaluating threads and at most `limit` requests in
    /// flight.
    pub(crate) fn new(
        checkpoints: &BTreeMap<String, CheckpointConfig>,
        threads: usize,
        limit: usize,
        started: Instant,
    ) -> Result<Arc<Gate>, SettingsError> {
        let keys = RandomState::new();
        let settings: Vec<_> = checkpoints.values().map(settings_of).collect();
        let unread = AtomicBool::new(checkpoints.values().all(|config| config.mode == Mode::Enforce));
        let mut settings = Settings::new(threads, settings);
        let tightest = checkpoints.values().map(|config| config.sla().mul_f64(MARGIN)).min();
        settings.reply_margin =
            tightest.map_or(settings.reply_margin, Nanos::from).min(settings.reply_margin);
        settings.seed = keys.hash_one(0_u8);
        let core = Arc::new(Admission::new(settings)?);
        Ok(Arc::new(Gate { core, started, inflight: AtomicUsize::new(0), limit, unread, keys }))
    }

    /// Adds a checkpoint after the others and returns its index.
    ///
    /// # Errors
    /// Fails if its SLA leaves no time for the reply, or if there are too many checkpoints.
    pub(crate) fn add(&self, config: &CheckpointConfig) -> Result<usize, SettingsError> {
        let index = self.core.add(settings_of(config))?;
        if config.mode != Mode::Enforce {
            self.unread.store(false, Relaxed);
        }
        Ok(index)
    }

    /// Admits a request that has not been read yet. `infers` states that it asks for a bundle's answer; it then counts
    /// as waiting until [`Gate::left`] or the request for an evaluation.
    ///
    /// # Errors
    /// Fails if too many requests are in flight, or so many are waiting unread that this one would be late.
    pub fn enter(self: &Arc<Gate>, arrival: &Arrival, infers: bool) -> Result<InflightGuard, Rejection> {
        // The guard exists before the check, so a rejection decrements the count too.
        let before = self.inflight.fetch_add(1, AcqRel);
        let guard = InflightGuard(Arc::clone(self));
        if before >= self.limit {
            return Err(Rejection::Overloaded { limit: self.limit });
        }
        if infers {
            match self.core.enter() {
                Ok(()) => _ = arrival.set_waiting(true),
                Err(shed) if self.unread.load(Relaxed) => return Err(Rejection::shed(&shed)),
                Err(_) => {}
            }
        }
        Ok(guard)
    }

    /// Records that the request is no longer waiting unread.
    pub fn left(&self, arrival: &Arrival) {
        if arrival.set_waiting(false) {
            self.core.left();
        }
    }

    /// Requests admission for the evaluation of `rows` rows, and of one row by the bundle of another checkpoint `then`.
    /// `about` is the subject of the decision.
    #[expect(clippy::too_many_arguments, reason = "the properties of a request")]
    pub(crate) fn ask(
        &self,
        now: Instant,
        arrival: &Arrival,
        checkpoint: usize,
        about: &str,
        loaded: &Loaded,
        rows: u32,
        then: Option<(usize, &Loaded)>,
    ) -> Result<AdmissionPermit, Shed> {
        self.left(arrival);
        let hour = self.nanos(now).0 / Nanos::from(COHORT).0;
        let ask = Ask {
            checkpoint,
            bundle: serial(loaded),
            rows,
            arrived: self.nanos(arrival.at),
            timeout: arrival.timeout().map(Nanos::from),
            caller: arrival.caller,
            cohort: self.keys.hash_one((about, hour)),
            then: then.map(|(checkpoint, loaded)| Then { checkpoint, bundle: serial(loaded) }),
        };
        match self.core.ask(self.nanos(now), &ask) {
            Verdict::Admit(ticket) => Ok(AdmissionPermit::new(Arc::clone(&self.core), ticket)),
            Verdict::Shed(shed) => Err(shed),
        }
    }

    /// Returns a permit for one row at the first checkpoint.
    #[cfg(test)]
    pub(crate) fn permit(&self, now: Instant) -> Option<AdmissionPermit> {
        self.core.expect(0, 1, Nanos(1));
        let ask = Ask {
            checkpoint: 0,
            bundle: 1,
            rows: 1,
            arrived: self.nanos(now),
            timeout: None,
            caller: 0,
            cohort: 0,
            then: None,
        };
        match self.core.ask(self.nanos(now), &ask) {
            Verdict::Admit(ticket) => Some(AdmissionPermit::new(Arc::clone(&self.core), ticket)),
            Verdict::Shed(_) => None,
        }
    }

    /// Returns the key of a caller's name.
    #[must_use]
    pub fn caller(&self, name: &[u8]) -> u64 {
        self.keys.hash_one(name)
    }

    /// Returns the key of a caller's name at a peer.
    #[must_use]
    pub fn caller_at(&self, peer: u64, name: u64) -> u64 {
        self.keys.hash_one((peer, name))
    }

    /// Sets the initial cost of a bundle, measured at warm-up, before it answers at a checkpoint.
    pub(crate) fn expect(&self, checkpoint: usize, loaded: &Loaded) {
        self.core.expect(checkpoint, serial(loaded), loaded.warmup.p50.into());
    }

    /// Sets the cost of one row of a bundle, in place of the one measured at warm-up.
    #[cfg(feature = "fault-injection")]
    pub(crate) fn assume(&self, checkpoint: usize, loaded: &Loaded, row: Duration) {
        self.core.forget(checkpoint, serial(loaded));
        self.core.expect(checkpoint, serial(loaded), row.into());
    }

    /// Removes the costs of a bundle that no longer answers at a checkpoint.
    pub(crate) fn forget(&self, checkpoint: usize, loaded: &Loaded) {
        self.core.forget(checkpoint, serial(loaded));
    }

    /// Records that the reply has been given to the transport.
    pub fn replied(&self, arrival: &Arrival) {
        if let Some(after) = arrival.ready_for() {
            self.core.replied(after.into());
        }
    }

    /// The current step of the pressure ladder.
    #[must_use]
    pub fn pressure(&self) -> Pressure {
        self.core.pressure()
    }

    /// Ends a measurement window.
    pub fn tick(&self) {
        self.core.tick(self.nanos(Instant::now()));
    }

    /// Converts a point in time to admission control's nanoseconds since the start.
    #[must_use]
    pub fn nanos(&self, at: Instant) -> Nanos {
        at.saturating_duration_since(self.started).into()
    }

    /// The inverse of [`Gate::nanos`]; `None` for "never".
    pub(crate) fn instant(&self, at: Nanos) -> Option<Instant> {
        if at == Nanos::MAX { None } else { self.started.checked_add(at.duration()) }
    }

    /// Number of requests in flight.
    #[must_use]
    pub fn inflight(&self) -> usize {
        self.inflight.load(Relaxed)
    }

    /// The current state of admission control.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.core.snapshot()
    }
}

/// Returns the serial number of a bundle for admission, never 0.
fn serial(loaded: &Loaded) -> u64 {
    loaded.serial + 1
}

impl Drop for InflightGuard {
    fn drop(&mut self) {
        self.0.inflight.fetch_sub(1, AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_exact_and_every_place_comes_back() {
        let checkpoints = serde_json::from_str(r#"{"c":{"kind":"score"}}"#).unwrap();
        let gate = Gate::new(&checkpoints, 1, 2, Instant::now()).unwrap();
        let arrivals: Vec<_> = (0..3).map(|_| Arrival::new(Instant::now(), None, 0)).collect();
        let first = gate.enter(&arrivals[0], true).unwrap();
        let _second = gate.enter(&arrivals[1], true).unwrap();
        assert_eq!(gate.enter(&arrivals[2], true).err(), Some(Rejection::Overloaded { limit: 2 }));
        assert_eq!(gate.inflight(), 2);
        assert_eq!(gate.snapshot().waiting, 2);
        drop(first);
        gate.left(&arrivals[0]);
        gate.left(&arrivals[0]);
        assert_eq!((gate.inflight(), gate.snapshot().waiting), (1, 1), "leaving twice is leaving once");
        assert!(gate.enter(&arrivals[2], true).is_ok());
    }
}
