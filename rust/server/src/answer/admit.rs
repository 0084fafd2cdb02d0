//! Stage 2: whether the server works on a request, where, and until when.
//!
//! Twice: before anything is read of it, against what is in flight and what waits unread; and as soon as
//! checkpoint, bundle and rows are known, by its cost, the wait it would meet and how much it matters. The
//! rules are [`scorer_admission`]; here they get the clock and the threads.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::time::{Duration, Instant};

use scorer_admission::{
    Admission, Ask, CheckpointSettings, Mode as CoreMode, Nanos, Permit as CorePermit, Pressure, Settings,
    Shed, Snapshot, Verdict,
};

use super::arrive::Arrival;
use super::evaluate::Failed;
use super::{Turn, route};
use crate::bundles::Loaded;
use crate::config::{Mode, ServerConfig};
use crate::error::ServerError;
use crate::metrics::Reason;
use crate::refusal::Refusal;

/// What a batch may take where its caller sets no deadline: it has no promise to keep.
pub(crate) const BATCH_WITHIN: Duration = Duration::from_secs(5);
/// A margin of so much of the promise is kept for the reply, or of [`Settings::reply_margin`] if that is less.
const MARGIN: f64 = 0.25;
/// Whom a request is about counts anew each hour, so that nobody is shed first for ever.
const COHORT: Duration = Duration::from_secs(3600);

/// Right to be worked on: holds the request's cost until it is finished or dropped.
pub(crate) type Ticket = CorePermit<Arc<Admission>>;

/// The way in.
pub(crate) struct Door {
    core: Arc<Admission>,
    started: Instant,
    inflight: AtomicUsize,
    limit: usize,
    /// Every checkpoint enforces its limits, so a request may be shed before it is known whose it is.
    unread: bool,
    keys: RandomState,
}

/// One request in flight; gives its place back when dropped, however the request ends.
pub(crate) struct Permit(Arc<Door>);

// === impl Door ===

impl Door {
    pub(crate) fn new(config: &ServerConfig, started: Instant) -> Result<Arc<Door>, ServerError> {
        let keys = RandomState::new();
        let checkpoints: Vec<_> = config
            .checkpoints
            .values()
            .map(|it| CheckpointSettings {
                batch_p99: Some(it.budget().max(BATCH_WITHIN).into()),
                tier: it.tier,
                mode: match it.mode {
                    Mode::Off => CoreMode::Off,
                    Mode::Observe => CoreMode::Observe,
                    Mode::Enforce => CoreMode::Enforce,
                },
                fallback: it.fallback.is_some(),
                ..CheckpointSettings::new(it.budget().into())
            })
            .collect();
        let unread = config.checkpoints.values().all(|it| it.mode == Mode::Enforce);
        let mut settings = Settings::new(config.threads, checkpoints);
        let tightest = config.checkpoints.values().map(|it| it.budget().mul_f64(MARGIN)).min();
        settings.reply_margin =
            tightest.map_or(settings.reply_margin, Nanos::from).min(settings.reply_margin);
        settings.seed = keys.hash_one(0_u8);
        let core = Admission::new(settings).map_err(|error| ServerError::Config(error.to_string()))?;
        let inflight = AtomicUsize::new(0);
        Ok(Arc::new(Door {
            core: Arc::new(core),
            started,
            inflight,
            limit: config.max_inflight,
            unread,
            keys,
        }))
    }

    /// Takes the request on, unread. It has to leave by [`Door::left`], which asking does as well.
    pub(crate) fn admit(self: &Arc<Door>, arrival: &Arrival) -> Result<Permit, Refusal> {
        // The permit exists before the check, so that a refusal gives its place back as well.
        let before = self.inflight.fetch_add(1, AcqRel);
        let permit = Permit(Arc::clone(self));
        if before >= self.limit {
            return Err(Refusal::Overloaded { limit: self.limit });
        }
        if arrival.method.infers() {
            match self.core.enter() {
                Ok(()) => _ = arrival.entered(true),
                Err(shed) if self.unread => return Err(Refusal::shed(&shed)),
                Err(_) => {}
            }
        }
        Ok(permit)
    }

    /// The request waits no more to be asked about.
    pub(crate) fn left(&self, arrival: &Arrival) {
        if arrival.entered(false) {
            self.core.left();
        }
    }

    fn ask(
        &self,
        now: Instant,
        Turn { arrival, checkpoint, id, entity, .. }: Turn<'_>,
        loaded: &Loaded,
        rows: u32,
    ) -> Result<Ticket, Shed> {
        self.left(arrival);
        let hour = self.nanos(now).0 / Nanos::from(COHORT).0;
        let ask = Ask {
            checkpoint: checkpoint.index,
            bundle: serial(loaded),
            rows,
            arrived: self.nanos(arrival.at),
            timeout: arrival.timeout().map(Nanos::from),
            caller: arrival.caller,
            cohort: self.keys.hash_one((route::about(entity, id), hour)),
        };
        match self.core.ask(self.nanos(now), &ask) {
            Verdict::Admit(ticket) => Ok(Ticket::new(Arc::clone(&self.core), ticket)),
            Verdict::Shed(shed) => Err(shed),
        }
    }

    /// A caller's key, from its name.
    pub(crate) fn caller(&self, name: &[u8]) -> u64 {
        self.keys.hash_one(name)
    }

    /// The bundle is about to answer at a checkpoint.
    pub(crate) fn expect(&self, checkpoint: usize, loaded: &Loaded) {
        self.core.expect(checkpoint, serial(loaded), loaded.warmup.p50.into());
    }

    /// The same, whatever its warm-up said.
    #[cfg(feature = "fault-injection")]
    pub(crate) fn assume(&self, checkpoint: usize, loaded: &Loaded, row: Duration) {
        self.core.forget(checkpoint, serial(loaded));
        self.core.expect(checkpoint, serial(loaded), row.into());
    }

    /// The bundle does not answer there any more.
    pub(crate) fn forget(&self, checkpoint: usize, loaded: &Loaded) {
        self.core.forget(checkpoint, serial(loaded));
    }

    /// The reply is handed over.
    pub(crate) fn replied(&self, arrival: &Arrival) {
        if let Some(after) = arrival.ready_for() {
            self.core.replied(after.into());
        }
    }

    /// The step of the ladder.
    pub(crate) fn pressure(&self) -> Pressure {
        self.core.pressure()
    }

    /// Ends a window.
    pub(crate) fn tick(&self) {
        self.core.tick(self.nanos(Instant::now()));
    }

    /// A point in time as admission counts it.
    pub(crate) fn nanos(&self, at: Instant) -> Nanos {
        at.saturating_duration_since(self.started).into()
    }

    /// The other way round; `None` for "never".
    pub(crate) fn instant(&self, at: Nanos) -> Option<Instant> {
        if at == Nanos::MAX { None } else { self.started.checked_add(at.duration()) }
    }

    pub(crate) fn inflight(&self) -> usize {
        self.inflight.load(Relaxed)
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.core.snapshot()
    }
}

/// Whether to work on `rows` rows with this bundle; what is shed, or would be, is counted.
pub(crate) fn ask(turn: Turn<'_>, loaded: &Loaded, rows: u32, now: Instant) -> Result<Ticket, Shed> {
    let counters = &turn.shared.metrics.checkpoint(turn.checkpoint.index).sla;
    let asked = turn.shared.admission.ask(now, turn, loaded, rows);
    match &asked {
        Ok(ticket) => {
            if let Some(reason) = ticket.ticket().and_then(|it| it.would_shed()) {
                counters.would_shed(reason);
            }
        }
        Err(shed) => counters.shed(shed.reason),
    }
    asked
}

/// The right to evaluate one row, or why the model does not answer it. `instead` is what routing found.
pub(crate) fn one(
    turn: Turn<'_>,
    loaded: &Loaded,
    instead: Option<Reason>,
    now: Instant,
) -> Result<Ticket, Failed> {
    if instead == Some(Reason::Breaker) {
        return Err(Failed::out_of_service(loaded));
    }
    ask(turn, loaded, 1, now).map_err(|shed| Failed::shed(&shed))
}

/// Admission's name of a bundle, never 0.
fn serial(loaded: &Loaded) -> u64 {
    loaded.serial + 1
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.inflight.fetch_sub(1, AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;
    use crate::metrics::Method;

    fn door(mode: &str, limit: usize) -> Arc<Door> {
        let config = format!(
            r#"{{"listen":"127.0.0.1:0","max_inflight":{limit},"checkpoints":{{"c":{{"kind":"score","mode":"{mode}"}}}}}}"#
        );
        Door::new(&ServerConfig::from_json(&config).unwrap(), Instant::now()).unwrap()
    }

    fn arrival() -> Arrival {
        Arrival::stamp(Method::Score, &HeaderMap::new(), Instant::now()).0
    }

    #[test]
    fn the_limit_is_exact_and_every_place_comes_back() {
        let door = door("enforce", 2);
        let arrivals: Vec<_> = (0..3).map(|_| arrival()).collect();
        let first = door.admit(&arrivals[0]).unwrap();
        let _second = door.admit(&arrivals[1]).unwrap();
        assert_eq!(door.admit(&arrivals[2]).err(), Some(Refusal::Overloaded { limit: 2 }));
        assert_eq!(door.inflight(), 2);
        assert_eq!(door.snapshot().waiting, 2);
        drop(first);
        door.left(&arrivals[0]);
        door.left(&arrivals[0]);
        assert_eq!((door.inflight(), door.snapshot().waiting), (1, 1), "leaving twice is leaving once");
        assert!(door.admit(&arrivals[2]).is_ok());
    }
}
