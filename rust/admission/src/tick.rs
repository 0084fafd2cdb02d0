//! The tick, which derives the rules of the next window from the measurements of the last 100 ms.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

use super::admit::Admission;
use super::callers::{Callers, Shares};
use super::capacity::Capacity;
use super::cost::CostHistory;
use super::cutoff::CutoffShare;
use super::histogram::Counts;
use super::limiter::{HARMLESS, Limiter, Signals};
use super::margin::Margin;
use super::pressure::{Ladder, Signs};
use super::settings::{Mode, Settings, TIERS};
use super::standing::Standing;
use super::time::Nanos;

/// Interval of calls of [`Admission::tick`].
pub const WINDOW: Nanos = Nanos::from_millis(100);
/// Length from which a window is ignored, because the process was stopped or the clock jumped.
const STOOD_STILL: Nanos = Nanos::from_millis(300);
/// Number of windows for which a checkpoint is in use after its last request.
const IN_USE: u32 = 10;
/// Weight of a new window in the average cost.
const SMOOTH: f64 = 0.3;
/// Upper bound of the factor by which a queue's estimated wait is extended.
const MOST_STRETCH: f64 = 4.0;

/// State that only ticks use.
#[derive(Debug)]
pub(super) struct Ticker {
    last: Option<Nanos>,
    delays: Counts,
    costs: Vec<CostHistory>,
    /// Number of windows since each checkpoint's last request.
    unused: Vec<u32>,
    limiter: Limiter,
    margin: Margin,
    standing: Standing,
    cutoff: CutoffShare,
    shares: Shares,
    ladder: Ladder,
    capacity: Capacity,
    unit: f64,
    /// Current limit, in requests of average cost.
    limit: f64,
}

impl Ticker {
    pub(super) fn new(settings: &Settings, callers: &Callers) -> Ticker {
        Ticker {
            last: None,
            delays: Counts::new(),
            costs: settings.checkpoints.iter().map(|_| CostHistory::new()).collect(),
            unused: vec![u32::MAX; settings.checkpoints.len()],
            limiter: Limiter::new(settings.workers),
            margin: Margin::new(),
            standing: Standing::default(),
            cutoff: CutoffShare::new(),
            shares: Shares::new(callers),
            ladder: Ladder::default(),
            capacity: Capacity::new(),
            unit: 0.0,
            limit: f64::INFINITY,
        }
    }

    /// Adds the state of one more checkpoint.
    pub(super) fn add(&mut self) {
        self.costs.push(CostHistory::new());
        self.unused.push(u32::MAX);
    }
}

impl Admission {
    /// Ends a window. Call it every [`WINDOW`] from one thread; a concurrent second call has no effect.
    pub fn tick(&self, now: Nanos) {
        let mut ticker = match self.ticker.try_lock() {
            Ok(ticker) => ticker,
            Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => return,
        };
        let elapsed = ticker.last.map_or(WINDOW, |last| now.since(last));
        if elapsed.0 < WINDOW.0 / 2 {
            return;
        }
        ticker.last = Some(now);
        self.end_window(&mut ticker, elapsed);
    }

    /// Sets the expected cost of one row, measured by the warm-up of a bundle that is about to receive requests.
    pub fn expect(&self, checkpoint: usize, bundle: u64, row: Nanos) {
        let mut ticker = self.ticker.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(point), Some(history)) =
            (self.checkpoints.get(checkpoint), ticker.costs.get_mut(checkpoint))
        {
            point.costs.expect(history, bundle, row);
        }
    }

    /// Removes the measurements of a bundle that receives no more requests at a checkpoint.
    pub fn forget(&self, checkpoint: usize, bundle: u64) {
        let _ticker = self.ticker.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(point) = self.checkpoints.get(checkpoint) {
            point.costs.forget(bundle);
        }
    }

    fn end_window(&self, ticker: &mut Ticker, elapsed: Nanos) {
        let window = &self.window;
        for (point, history) in self.points().zip(&mut ticker.costs) {
            point.costs.tick(history);
        }
        let (budget, top) = self.in_use(&mut ticker.unused);
        let workers = self.settings.workers as f64;
        let stood_still = elapsed > STOOD_STILL;

        let demand = self.demand.take();
        if demand.count > 0 {
            let unit = demand.nanos as f64 / demand.count as f64;
            ticker.unit = if ticker.unit == 0.0 { unit } else { ticker.unit + (unit - ticker.unit) * SMOOTH };
        }
        ticker.delays.clear();
        window.delays.drain(&mut ticker.delays);
        let shortest = window.shortest.swap(u64::MAX, Relaxed);
        let answered = window.answered.swap(0, Relaxed);
        let missed = window.missed.swap(0, Relaxed);
        let peak = window.peak.swap(0, Relaxed);
        let fallbacks = window.fallbacks.swap(0, Relaxed);
        let top_lost = self.top_lost();
        let stuck = self.queued[0].read().count > 0;

        let shortest = (shortest != u64::MAX).then_some(Nanos(shortest));
        let worked = window.worked.swap(0, Relaxed) as f64;
        let emptied = shortest.map_or(!stuck, |shortest| shortest.0 <= budget.0 / 10);
        let wall = elapsed.0.min(STOOD_STILL.0) as f64;
        let part = ticker.capacity.update(worked / (workers * wall), emptied || stood_still);
        let capacity = workers * wall * part;
        // The measurements of a stopped process are not valid.
        let standing = !stood_still && ticker.standing.update(elapsed, shortest, stuck, budget);
        let delay_p99 = ticker.delays.quantile(0.99);
        let mut cut = false;
        if !stood_still {
            let signals = Signals {
                samples: f64::from(ticker.delays.count),
                delay_p99,
                miss_share: missed as f64 / answered.max(1) as f64,
                peak: peak as f64 / ticker.unit.max(1.0),
                budget,
                unit: ticker.unit,
            };
            (ticker.limit, cut) = ticker.limiter.update(&signals);
        }
        self.cutoff.tick(&mut ticker.cutoff, standing, capacity);
        self.callers.tick(&mut ticker.shares, elapsed, workers * part, ticker.unit);
        let load = demand.nanos as f64 / capacity;
        let pressure = ticker.ladder.update(&Signs {
            demand: load,
            standing,
            delay: if stood_still { 0.0 } else { delay_p99 / budget.0 as f64 },
            cut,
            top_lost,
            fallbacks: fallbacks as f64 * self.settings.fallback_cost.0 as f64 / capacity,
        });

        let margin = ticker.margin.update(&window.replies, self.settings.reply_margin, budget);

        let rules = &self.rules;
        rules.margin.store(margin.0, Relaxed);
        rules.limit.store((ticker.limit * ticker.unit.max(1.0)).min(u64::MAX as f64) as u64, Relaxed);
        rules.unit.store(ticker.unit as u64 + 1, Relaxed);
        rules.harmless.store((workers * budget.0 as f64 * HARMLESS) as u64, Relaxed);
        rules.pressure.store(pressure as u8, Relaxed);
        rules.top.store(top, Relaxed);
        let stretch = ((1.0 / (1.0 - load.min(0.999))).min(MOST_STRETCH) * 256.0) as u64;
        rules.stretch[1].store(stretch, Relaxed);
        rules.stretch[2].store(stretch, Relaxed);
        rules.workers.store((workers * part * 256.0) as u64 + 1, Relaxed);
        rules.door.store(self.door(ticker.unit / part, ticker.limit), Relaxed);
    }

    /// Returns the tightest SLA and the highest tier among the checkpoints in use.
    fn in_use(&self, unused: &mut [u32]) -> (Nanos, u8) {
        let (mut tightest, mut top) = (None, TIERS as u8 - 1);
        for (point, unused) in self.points().zip(unused) {
            let asked = point.asked.swap(0, Relaxed);
            *unused = if asked > 0 { 0 } else { unused.saturating_add(1) };
            if *unused <= IN_USE && point.settings.tier < 3 {
                tightest =
                    Some(tightest.map_or(point.settings.p99, |known: Nanos| known.min(point.settings.p99)));
                top = top.min(point.settings.tier);
            }
        }
        let any = || self.points().map(|checkpoint| checkpoint.settings.p99).min();
        (tightest.or_else(any).unwrap_or(WINDOW), top)
    }

    /// Returns the share of requests of the highest tier in use that were shed or too late.
    fn top_lost(&self) -> f64 {
        let mut lost = None;
        for tier in &self.window.tiers[..TIERS - 1] {
            let (asked, shed) = (tier[0].swap(0, Relaxed), tier[1].swap(0, Relaxed));
            if asked > 0 && lost.is_none() {
                lost = Some(shed as f64 / asked as f64);
            }
        }
        self.window.tiers[TIERS - 1][0].store(0, Relaxed);
        lost.unwrap_or(0.0)
    }

    /// Returns the limit on unread requests if every checkpoint enforces its SLA. It is below the limit on work in
    /// flight, so that unread requests do not cause read ones to be refused, and it excludes requests that would use up
    /// half of the loosest SLA before they are read.
    fn door(&self, unit: f64, limit: f64) -> u64 {
        if self.points().any(|checkpoint| checkpoint.settings.mode != Mode::Enforce) || unit == 0.0 {
            return u64::MAX;
        }
        let loosest = self.points().map(|checkpoint| checkpoint.settings.p99.0).max().unwrap_or(0) as f64;
        let workers = self.settings.workers as f64;
        (loosest / 2.0 * workers / unit + workers).min(limit * 0.9).max(workers) as u64
    }
}
