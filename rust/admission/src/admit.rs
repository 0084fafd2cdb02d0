//! The request path of admission control: ask, start, progress, finish. It takes no lock and does not allocate.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU64};
use std::sync::{Mutex, PoisonError};

use super::callers::Callers;
use super::cost::{CostBook, Estimate};
use super::cutoff::{self, CEILINGS, Cutoff};
use super::histogram::Histogram;
use super::load::{Load, rounded};
use super::pressure::Pressure;
use super::settings::{CheckpointSettings, MAX_CHECKPOINTS, Mode, Settings, SettingsError, TIERS};
use super::tick::Ticker;
use super::ticket::{Second, Ticket};
use super::time::Nanos;
use super::verdict::{
    Ask, Instead, Outcome, Place, Queue, SHED_REASONS, Served, Shed, ShedReason, Start, Verdict,
};

/// Limit on waiting requests of the last queue, regardless of their cost.
const MOST_LAST: u64 = 256;
/// Maximum number of rows between two readings of the clock.
const CHUNK_ROWS: u64 = 64;
/// A chunk may take at most the tightest SLA divided by this number.
const CHUNKS: u64 = 20;

/// Admits or sheds requests, and accounts for the admitted ones. All threads share it; the caller passes in the time.
///
/// All atomics are relaxed. Each word is a sum, a threshold or an estimate that is valid by itself, and no other memory
/// is published through it, so no order between them is required. A check and the addition after it are two steps:
/// concurrent requests may together exceed a limit, which is itself an estimate. Each cost must be returned exactly
/// once; ownership of the [`Ticket`] guarantees that, not the order of memory accesses.
#[derive(Debug)]
pub struct Admission {
    pub(super) settings: Settings,
    pub(super) checkpoints: boxcar::Vec<Point>,
    pub(super) callers: Callers,
    pub(super) cutoff: Cutoff,
    /// Work admitted and waiting, by queue. Long work in progress keeps its remaining cost here, without a count.
    pub(super) queued: [Load; 3],
    /// Work started and not finished; of long work only the chunk that cannot be interrupted.
    pub(super) running: Load,
    /// Number of requests that have arrived and have not called `ask` yet; see [`Admission::enter`].
    pub(super) waiting: AtomicU64,
    /// Work of this window for tiers 0 to 2 without bulk requests, including shed requests.
    pub(super) demand: Load,
    pub(super) window: Window,
    /// Rules in force until the next tick.
    pub(super) rules: Rules,
    pub(super) ticker: Mutex<Ticker>,
    /// Work between two readings of the clock, in nanoseconds.
    chunk: AtomicU64,
}

/// State of one checkpoint.
#[derive(Debug)]
pub(super) struct Point {
    pub(super) settings: CheckpointSettings,
    pub(super) costs: CostBook,
    /// Number of requests in this window.
    pub(super) asked: AtomicU64,
    pub(super) counters: PointCounters,
}

/// Counters since the start.
#[derive(Debug, Default)]
pub(super) struct PointCounters {
    pub(super) shed: [AtomicU64; SHED_REASONS.len()],
    pub(super) would_shed: [AtomicU64; SHED_REASONS.len()],
    pub(super) too_late: AtomicU64,
    pub(super) missed: AtomicU64,
}

/// Measurements of the current window.
#[derive(Debug)]
pub(super) struct Window {
    /// Time from arrival to start, in the first queue.
    pub(super) delays: Histogram,
    pub(super) shortest: AtomicU64,
    pub(super) answered: AtomicU64,
    pub(super) missed: AtomicU64,
    /// Time spent on evaluations, in nanoseconds.
    pub(super) worked: AtomicU64,
    /// Peak of the work in flight.
    pub(super) peak: AtomicU64,
    /// Time from answer to reply, of single rows.
    pub(super) replies: Histogram,
    /// Requests that were shed and answered by the fallback.
    pub(super) fallbacks: AtomicU64,
    /// By tier: number of requests, and number of those that were shed or too late.
    pub(super) tiers: [[AtomicU64; 2]; TIERS],
}

/// Rules that a tick sets and requests read.
#[derive(Debug)]
pub(super) struct Rules {
    /// Limit on work in flight, in nanoseconds.
    pub(super) limit: AtomicU64,
    /// Average cost of a request, in nanoseconds.
    pub(super) unit: AtomicU64,
    /// Work in flight that causes a negligible delay, in nanoseconds.
    pub(super) harmless: AtomicU64,
    pub(super) pressure: AtomicU8,
    /// The highest tier in use. No capacity is reserved for tiers above it.
    pub(super) top: AtomicU8,
    /// Factor, times 256, by which the wait of each queue is longer, because the queues before it are served first.
    pub(super) stretch: [AtomicU64; 3],
    /// Number of workers available for evaluations, net of their other work, times 256.
    pub(super) workers: AtomicU64,
    /// Limit on requests that wait for a thread.
    pub(super) door: AtomicU64,
    /// Time reserved for the reply, in nanoseconds.
    pub(super) margin: AtomicU64,
}

/// The work between two readings of the clock that the tightest SLA allows, in nanoseconds.
fn chunk_of(tightest: u64) -> u64 {
    (tightest / CHUNKS).clamp(20_000, 1_000_000)
}

// === impl Admission ===

impl Admission {
    /// Creates admission control without load.
    ///
    /// # Errors
    /// [`SettingsError`] names the setting, the rule and the remedy.
    pub fn new(settings: Settings) -> Result<Admission, SettingsError> {
        settings.check()?;
        let tightest = settings.checkpoints.iter().map(|checkpoint| checkpoint.p99.0).min().unwrap_or(0);
        let checkpoints = settings.checkpoints.iter().cloned().map(Point::new).collect();
        let callers = Callers::new(settings.callers, settings.seed);
        let ticker = Mutex::new(Ticker::new(&settings, &callers));
        let rules = Rules {
            limit: AtomicU64::new(u64::MAX),
            unit: AtomicU64::new(1),
            harmless: AtomicU64::new(0),
            pressure: AtomicU8::new(Pressure::Normal as u8),
            top: AtomicU8::new(0),
            stretch: std::array::from_fn(|_| AtomicU64::new(256)),
            workers: AtomicU64::new(settings.workers as u64 * 256),
            door: AtomicU64::new(u64::MAX),
            margin: AtomicU64::new(settings.reply_margin.0),
        };
        Ok(Admission {
            checkpoints,
            callers,
            cutoff: Cutoff::new(),
            queued: Default::default(),
            running: Load::default(),
            waiting: AtomicU64::new(0),
            demand: Load::default(),
            window: Window::new(),
            rules,
            ticker,
            chunk: AtomicU64::new(chunk_of(tightest)),
            settings,
        })
    }

    /// Adds a checkpoint and returns its index, which follows those of the others.
    ///
    /// # Errors
    /// [`SettingsError`] names the setting, the rule and the remedy.
    pub fn add(&self, settings: CheckpointSettings) -> Result<usize, SettingsError> {
        // The ticker's lock keeps its lists as long as the checkpoints.
        let mut ticker = self.ticker.lock().unwrap_or_else(PoisonError::into_inner);
        let index = self.checkpoints.count();
        if index >= MAX_CHECKPOINTS {
            return Err(SettingsError::Checkpoints(index + 1));
        }
        settings.check(index, self.settings.reply_margin)?;
        self.chunk.fetch_min(chunk_of(settings.p99.0), Relaxed);
        ticker.add();
        Ok(self.checkpoints.push(Point::new(settings)))
    }

    /// The checkpoints by index.
    pub(super) fn points(&self) -> impl Iterator<Item = &Point> {
        self.checkpoints.iter().map(|(_, point)| point)
    }

    /// Registers a request that has arrived and waits for a thread. Call [`Admission::left`] exactly once afterwards,
    /// when the request calls `ask` or is cancelled.
    ///
    /// # Errors
    /// So many requests wait that this one would be late or above the limit when it is read. The request has not
    /// entered; shed it unread. This happens only if every checkpoint enforces its SLA.
    pub fn enter(&self) -> Result<(), Shed> {
        if self.waiting.load(Relaxed) >= self.rules.door.load(Relaxed) {
            return Err(Shed { reason: ShedReason::Wait, instead: Instead::Refuse, retry_after: None });
        }
        self.waiting.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Removes a request that entered from the count of waiting requests.
    pub fn left(&self) {
        self.waiting.fetch_sub(1, Relaxed);
    }

    /// Admits or sheds one request. Call it when the checkpoint, the bundle and the number of rows are known, before
    /// any work is done for the request.
    pub fn ask(&self, now: Nanos, ask: &Ask) -> Verdict {
        debug_assert!(ask.checkpoint < self.checkpoints.count() && ask.bundle != 0 && ask.rows != 0);
        let at = ask.checkpoint.min(self.checkpoints.count() - 1);
        let point = &self.checkpoints[at];
        let settings = &point.settings;
        point.asked.fetch_add(1, Relaxed);
        let estimate = point.costs.estimate(ask.bundle, ask.rows);
        let then = ask.then.map(|then| self.second(then.checkpoint, then.bundle));
        // What holds for a request with two evaluations: it is admitted once, for their work and their SLAs together.
        let both = |of: fn(&CheckpointSettings) -> bool| {
            of(settings) && then.as_ref().is_none_or(|then| of(&self.checkpoints[then.at].settings))
        };
        let enforced = both(|settings| settings.mode == Mode::Enforce);
        let measured = both(|settings| settings.mode != Mode::Off);
        let tier = then
            .as_ref()
            .map_or(settings.tier, |then| settings.tier.min(self.checkpoints[then.at].settings.tier));
        let budget = settings
            .budget(ask.rows)
            .plus(then.as_ref().map_or(Nanos::ZERO, |then| self.checkpoints[then.at].settings.budget(1)));
        let then_cost = then.as_ref().map_or(0, |then| rounded(then.estimate.mean));
        let cautious =
            estimate.cautious.saturating_add(then.as_ref().map_or(0, |then| then.estimate.cautious));
        let chunk = (self.chunk.load(Relaxed) / estimate.row.max(1)).clamp(1, CHUNK_ROWS);
        let short = tier < 3 && u64::from(ask.rows) <= chunk;
        let first_cost = rounded(estimate.mean);
        let cost = first_cost + then_cost;
        let span = if u64::from(ask.rows) <= chunk { first_cost } else { rounded(estimate.row * chunk) };
        let level = cutoff::level(tier, ask.cohort);

        let mut queue = Queue::Last;
        if short {
            self.cutoff.arrive(level, cost);
            self.demand.add(1, cost);
            queue = self.callers.ask(now, ask.caller, tier, cost);
            if !enforced {
                queue = Queue::First;
            }
        }
        self.window.tiers[usize::from(tier)][0].fetch_add(1, Relaxed);

        let request = Request { tier, short, queue, level, cost, cautious, budget };
        let caller_waits_until = ask.timeout.map_or(Nanos::MAX, |timeout| ask.arrived.plus(timeout));
        let due = ask.arrived.plus(budget).min(caller_waits_until);
        let mut would_shed = None;
        if now >= caller_waits_until {
            return self.shed(now, ask, (at, estimate), then, ShedReason::Deadline, &request);
        }
        if measured {
            let finish_by = due.minus(self.margin());
            if let Some(reason) = self.gates(now, &request, finish_by) {
                if enforced {
                    return self.shed(now, ask, (at, estimate), then, reason, &request);
                }
                point.counters.would_shed[reason as usize].fetch_add(1, Relaxed);
                if let Some(then) = &then {
                    self.checkpoints[then.at].counters.would_shed[reason as usize].fetch_add(1, Relaxed);
                }
                would_shed = Some(reason);
            }
        }
        self.queued[queue as usize].add(1, cost);
        let inline = short && queue == Queue::First && cautious <= self.settings.inline_max.0;
        let deadline = if enforced { due } else { caller_waits_until };
        Verdict::Admit(Ticket {
            checkpoint: at as u32,
            rows: ask.rows.max(1),
            slot: estimate.slot,
            bundle: ask.bundle,
            queue,
            place: if inline { Place::Inline } else { Place::Pool },
            enforced,
            held: Hold::Queued,
            would_shed,
            chunk: chunk as u32,
            row: first_cost / u64::from(ask.rows.max(1)),
            cost,
            span: span.min(first_cost),
            cautious: estimate.cautious,
            arrived: ask.arrived,
            due,
            deadline,
            finish_by: if deadline == Nanos::MAX { deadline } else { deadline.minus(self.margin()) },
            then: then.zip(ask.then).map(|(then, asked)| Second {
                checkpoint: then.at as u32,
                slot: then.estimate.slot,
                bundle: asked.bundle,
                cost: then_cost,
                cautious: then.estimate.cautious,
            }),
        })
    }

    /// Counts the second evaluation of a request at its checkpoint, and estimates it.
    fn second(&self, checkpoint: usize, bundle: u64) -> SecondAsked {
        let at = checkpoint.min(self.checkpoints.count() - 1);
        let point = &self.checkpoints[at];
        point.asked.fetch_add(1, Relaxed);
        SecondAsked { at, estimate: point.costs.estimate(bundle, 1) }
    }

    /// Takes the second evaluation of a request that has two out of its ticket, before it starts. Both tickets have the
    /// terms of the request; each holds its own cost and must be finished or cancelled. `None` if the request has no
    /// second evaluation, or has started.
    pub fn split(&self, ticket: &mut Ticket) -> Option<Ticket> {
        if ticket.held != Hold::Queued {
            return None;
        }
        let Second { checkpoint, slot, bundle, cost, cautious } = ticket.then.take()?;
        ticket.cost -= cost;
        self.queued[ticket.queue as usize].add(1, 0);
        Some(Ticket {
            checkpoint,
            rows: 1,
            slot,
            bundle,
            chunk: 1,
            row: cost,
            cost,
            span: cost,
            cautious,
            then: None,
            ..*ticket
        })
    }

    /// Returns the reason to shed the request, if any.
    fn gates(&self, now: Nanos, request: &Request, finish_by: Nanos) -> Option<ShedReason> {
        let Request { tier, short, queue, level, cost, cautious, .. } = *request;
        if now.0.saturating_add(cautious) > finish_by.0 {
            return Some(ShedReason::Deadline);
        }
        let workers = self.settings.workers as u64;
        let running = self.running.read();
        let queued = [self.queued[0].read(), self.queued[1].read(), self.queued[2].read()];
        let waiting = self.waiting.load(Relaxed);
        let ahead = queued[..=queue as usize]
            .iter()
            .fold((0, 0), |(n, ns), waiting| (n + waiting.count, ns + waiting.nanos));
        // Rules about the order of requests do not apply while a worker is idle.
        if running.count < workers && ahead.0 == 0 && waiting == 0 {
            return None;
        }
        if short {
            if queue != Queue::Last && !self.cutoff.admits(level) {
                return Some(ShedReason::Tier);
            }
            let unread = waiting.saturating_mul(self.rules.unit.load(Relaxed));
            let admitted = queued[0].nanos + queued[1].nanos + running.nanos;
            let inflight = admitted.saturating_add(unread).saturating_add(cost);
            let limit = self.limit(cost);
            let ceiling = if limit == u64::MAX { limit } else { (limit as f64 * self.ceiling(tier)) as u64 };
            if inflight > ceiling {
                return Some(ShedReason::Limit);
            }
        } else if self.pressure() >= Pressure::NoBulk {
            return Some(ShedReason::Bulk);
        }
        if queue == Queue::Last && queued[2].count >= MOST_LAST {
            return Some(ShedReason::Limit);
        }
        let stretch = u128::from(self.rules.stretch[queue as usize].load(Relaxed));
        // Both factors are times 256.
        let effective = u128::from(self.rules.workers.load(Relaxed));
        let wait = (u128::from(ahead.1 + running.nanos) * stretch / effective) as u64;
        let done = now.0.saturating_add(wait).saturating_add(cautious);
        (done > finish_by.0).then_some(ShedReason::Wait)
    }

    /// Returns the limit on work in flight for a request of this cost. The limit is a number of requests of average
    /// cost. As many more expensive requests, such as those of a bundle that was just activated, are allowed as long as
    /// their work does not delay other requests.
    fn limit(&self, cost: u64) -> u64 {
        let (limit, unit) = (self.rules.limit.load(Relaxed), self.rules.unit.load(Relaxed));
        if cost <= unit {
            return limit;
        }
        (limit / unit).saturating_mul(cost).min(self.rules.harmless.load(Relaxed)).max(limit)
    }

    /// Returns the part of the limit that a tier may use, given the tiers in use.
    fn ceiling(&self, tier: u8) -> f64 {
        let below = tier.saturating_sub(self.rules.top.load(Relaxed));
        CEILINGS[usize::from(below).min(TIERS - 1)]
    }

    fn shed(
        &self,
        now: Nanos,
        ask: &Ask,
        (at, estimate): (usize, Estimate),
        then: Option<SecondAsked>,
        reason: ShedReason,
        request: &Request,
    ) -> Verdict {
        let Request { tier, queue, cautious, budget, .. } = *request;
        let point = &self.checkpoints[at];
        point.counters.shed[reason as usize].fetch_add(1, Relaxed);
        if let Some(then) = &then {
            self.checkpoints[then.at].counters.shed[reason as usize].fetch_add(1, Relaxed);
        }
        let settings = &point.settings;
        if reason == ShedReason::Deadline {
            // The request waited this long to be read. While nothing is started, these are the only known delays.
            let delay = now.since(ask.arrived).0;
            if delay > settings.p99.0 / 5 {
                self.delayed(delay);
                self.crowd();
            }
            // The request is too expensive for its SLA even without a delay. The estimate decays, so that it is
            // measured again.
            if cautious.saturating_add(self.margin().0) > budget.0 {
                point.costs.refused(estimate.slot, ask.rows);
                if let Some(then) = &then {
                    self.checkpoints[then.at].costs.refused(then.estimate.slot, 1);
                }
            }
        }
        if queue == Queue::First {
            self.window.tiers[usize::from(tier)][1].fetch_add(1, Relaxed);
        }
        let fallback =
            settings.fallback && then.is_none_or(|then| self.checkpoints[then.at].settings.fallback);
        let instead = if fallback {
            // Fallbacks are counted even while they are refused, because their number decides whether they are given
            // again.
            self.window.fallbacks.fetch_add(1, Relaxed);
            if self.pressure() < Pressure::Refuse { Instead::Fallback } else { Instead::Refuse }
        } else {
            Instead::Refuse
        };
        let retry_after = match queue {
            Queue::Second | Queue::Last if tier < 3 && ask.rows == 1 => {
                Some(self.callers.back_in(now, ask.caller)).filter(|&at| at > Nanos::ZERO)
            }
            _ => None,
        };
        Verdict::Shed(Shed { reason, instead, retry_after })
    }

    /// Updates the peak of the work in flight.
    fn crowd(&self) {
        let unread = self.waiting.load(Relaxed).saturating_mul(self.rules.unit.load(Relaxed));
        let admitted = self.queued[0].read().nanos + self.queued[1].read().nanos + self.running.read().nanos;
        let inflight = admitted.saturating_add(unread);
        if inflight > self.window.peak.load(Relaxed) {
            self.window.peak.fetch_max(inflight, Relaxed);
        }
    }

    fn delayed(&self, delay: u64) {
        self.window.delays.record(delay);
        if delay < self.window.shortest.load(Relaxed) {
            self.window.shortest.fetch_min(delay, Relaxed);
        }
    }

    /// Starts the request. Call it directly before the evaluation, and for long work before each chunk. After
    /// [`Start::TooLate`], do not evaluate: answer, and finish or cancel the ticket.
    pub fn start(&self, now: Nanos, ticket: &mut Ticket) -> Start {
        match ticket.held {
            Hold::Queued => {}
            // Long work before its next chunk.
            Hold::Running if now < ticket.finish_by => return Start::Run,
            Hold::Running | Hold::Nothing => return Start::TooLate,
        }
        let delay = now.since(ticket.arrived);
        if ticket.queue == Queue::First {
            self.delayed(delay.0);
        }
        let late = if ticket.enforced {
            now.0.saturating_add(ticket.cautious) > ticket.finish_by.0
        } else {
            now >= ticket.deadline
        };
        if late {
            let point = &self.checkpoints[ticket.checkpoint as usize];
            point.counters.too_late.fetch_add(1, Relaxed);
            if ticket.queue == Queue::First {
                self.window.tiers[usize::from(point.settings.tier)][1].fetch_add(1, Relaxed);
            }
            self.give_back(ticket);
            return Start::TooLate;
        }
        self.queued[ticket.queue as usize].remove(1, ticket.span);
        self.running.add(1, ticket.span);
        ticket.cost -= ticket.span;
        ticket.held = Hold::Running;
        self.crowd();
        Start::Run
    }

    /// Records that long work has completed `rows` more rows, which shortens the estimated wait of other requests.
    pub fn progress(&self, ticket: &mut Ticket, rows: u32) {
        if ticket.held == Hold::Running {
            let less = rounded(ticket.row.saturating_mul(u64::from(rows))).min(ticket.cost);
            self.queued[ticket.queue as usize].remove(0, less);
            ticket.cost -= less;
        }
    }

    /// Completes a request that was answered or has failed.
    pub fn finish(&self, now: Nanos, mut ticket: Ticket, served: Served) {
        let point = &self.checkpoints[ticket.checkpoint as usize];
        if ticket.held == Hold::Running {
            self.window.worked.fetch_add(served.exec.0, Relaxed);
            match served.outcome {
                Outcome::Model => point.costs.record(ticket.slot, ticket.bundle, ticket.rows, served.exec),
                // The evaluation was interrupted and would have taken at least this long. Only a time above the
                // estimate adds information.
                Outcome::Fallback if served.exec.0 > ticket.cautious => {
                    point.costs.record(ticket.slot, ticket.bundle, ticket.rows, served.exec);
                }
                Outcome::Fallback | Outcome::Failed => {}
            }
        }
        if served.outcome != Outcome::Failed {
            self.window.answered.fetch_add(1, Relaxed);
            if now > ticket.due {
                self.window.missed.fetch_add(1, Relaxed);
                point.counters.missed.fetch_add(1, Relaxed);
            }
        }
        self.give_back(&mut ticket);
    }

    /// Records the time from the answer to the reply of a single row. Admission reserves this time before deadlines.
    pub fn replied(&self, after: Nanos) {
        self.window.replies.record(after.0);
    }

    /// Returns the time reserved for the reply.
    pub(super) fn margin(&self) -> Nanos {
        Nanos(self.rules.margin.load(Relaxed))
    }

    /// Cancels a request in any stage, because the caller does not wait for it any more.
    pub fn cancel(&self, mut ticket: Ticket) {
        self.give_back(&mut ticket);
    }

    fn give_back(&self, ticket: &mut Ticket) {
        match ticket.held {
            Hold::Queued => self.queued[ticket.queue as usize].remove(1, ticket.cost),
            Hold::Running => {
                self.queued[ticket.queue as usize].remove(0, ticket.cost);
                self.running.remove(1, ticket.span);
            }
            Hold::Nothing => {}
        }
        ticket.held = Hold::Nothing;
    }

    /// Returns the current pressure level.
    #[must_use]
    pub fn pressure(&self) -> Pressure {
        Pressure::from_byte(self.rules.pressure.load(Relaxed))
    }
}

/// The properties of a request that [`Admission::gates`] checks.
#[derive(Clone, Copy)]
struct Request {
    tier: u8,
    short: bool,
    queue: Queue,
    level: usize,
    cost: u64,
    /// 95th percentile of the expected service time.
    cautious: u64,
    /// SLA of the request.
    budget: Nanos,
}

/// The second evaluation of a request, when it asks.
#[derive(Clone, Copy)]
struct SecondAsked {
    /// Index of its checkpoint.
    at: usize,
    estimate: Estimate,
}

/// The account that a ticket's cost is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    Queued,
    Running,
    Nothing,
}

// === impl Point, Window ===

impl Point {
    fn new(settings: CheckpointSettings) -> Point {
        Point {
            costs: CostBook::new(settings.row_cost),
            settings,
            asked: AtomicU64::new(0),
            counters: PointCounters::default(),
        }
    }
}

impl Window {
    fn new() -> Window {
        Window {
            delays: Histogram::new(),
            shortest: AtomicU64::new(u64::MAX),
            answered: AtomicU64::new(0),
            worked: AtomicU64::new(0),
            missed: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            replies: Histogram::new(),
            fallbacks: AtomicU64::new(0),
            tiers: Default::default(),
        }
    }
}
