//! The invariants of all scenarios and of each case.

use std::hash::{DefaultHasher, Hash, Hasher};

use scorer_admission::{CapHit, Mode, Nanos};

use super::scenario::{Case, Scenario};
use super::world::{self, By, Outcomes, Record};

/// An evaluation cannot be interrupted, and one in a hundred takes this many times the average.
const LONGEST: f64 = 2.6;

/// Figures of one run, which are printed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) requests: usize,
    pub(crate) answered: usize,
    pub(crate) fallbacks: usize,
    pub(crate) refused: usize,
    pub(crate) cancelled: usize,
    /// 99th percentile of the latency of answers, as a fraction of the SLA.
    pub(crate) p99: f64,
    /// Work of the model's answers as a fraction of the workers' time, after the warm-up.
    pub(crate) goodput: f64,
    /// 99th percentiles of the compared requests with and without the disturbance, if a case compares them.
    pub(crate) beside: Option<(f64, f64)>,
    /// Share of the requests of the highest and of the lowest tier that the model did not answer.
    pub(crate) tiers: Option<(f64, f64)>,
}

/// The data by which the run of a scenario is checked.
pub(crate) struct Judge<'a> {
    scenario: &'a Scenario,
    outcomes: &'a Outcomes,
    violations: Vec<String>,
    figures: Figures,
}

/// Runs a scenario and its comparison run; returns the figures, the violations and the trace.
pub(crate) fn judge(scenario: &Scenario, tracing: bool) -> (Figures, Vec<String>, Vec<String>) {
    let mut outcomes = world::run(scenario, tracing);
    let trace = std::mem::take(&mut outcomes.trace);
    let violations = std::mem::take(&mut outcomes.violations);
    let mut judge = Judge { scenario, outcomes: &outcomes, violations, figures: Figures::default() };
    judge.always();
    match scenario.case {
        Case::Overload => judge.overload(),
        Case::Step => judge.recovers(4.5, 0.02),
        Case::Slowed => judge.recovers(4.5, 0.02),
        Case::Stolen => judge.recovers(5.0, 0.02),
        Case::Batches | Case::Noisy => judge.undisturbed(),
        Case::Observe => judge.observes(),
        Case::Jump | Case::Swaps => {}
        Case::Chaos => {}
    }
    (judge.figures, judge.violations, trace)
}

fn seconds(seconds: f64) -> Nanos {
    Nanos((seconds * 1e9) as u64)
}

fn answered(record: &Record) -> bool {
    matches!(record.by, By::Model | By::Fallback(_))
}

fn latency(record: &Record) -> u64 {
    record.replied.since(record.arrived).0
}

fn quantile(mut values: Vec<u64>, part: f64) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    values.sort_unstable();
    values[((values.len() as f64 * part) as usize).min(values.len() - 1)] as f64
}

// === impl Judge ===

impl Judge<'_> {
    fn check(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.violations.push(what());
        }
    }

    fn sla(&self, record: &Record) -> Nanos {
        let stream = &self.scenario.streams[record.stream];
        self.scenario.settings.checkpoints[stream.checkpoint].budget(stream.rows)
    }

    // --- always ---

    fn always(&mut self) {
        let records = &self.outcomes.records;
        let count = |kind: fn(&Record) -> bool| records.iter().filter(|record| kind(record)).count();
        self.figures.requests = records.len();
        self.figures.answered = count(|record| record.by == By::Model);
        self.figures.fallbacks = count(|record| matches!(record.by, By::Fallback(_)));
        self.figures.cancelled = count(|record| record.by == By::Cancelled);
        self.figures.refused = count(|record| matches!(record.by, By::Refused(_) | By::Cap(_)));
        self.answers_within_sla();
        self.caps();
    }

    /// The model never answers late, and the 99th percentile of all answers is within the SLA, except while
    /// the process was stopped.
    fn answers_within_sla(&mut self) {
        if !world::enforced(self.scenario) {
            return;
        }
        let stands_still = matches!(self.scenario.case, Case::Stolen | Case::Chaos | Case::Jump);
        let answers = || self.outcomes.records.iter().filter(|record| answered(record));
        let parts: Vec<u64> =
            answers().map(|record| latency(record) * 1_000_000 / self.sla(record).0).collect();
        self.figures.p99 = quantile(parts, 0.99) / 1e6;
        if stands_still {
            return;
        }
        let late =
            answers().filter(|record| record.by == By::Model && latency(record) > self.sla(record).0).count();
        self.check(late == 0, || format!("{late} of the model's answers were late"));
        let p99 = self.figures.p99;
        // Without a timer, the answer is sent when a worker is free, which may be one evaluation later.
        let later = if self.scenario.timers { 0.0 } else { LONGEST * self.scenario.row.0 as f64 };
        let most = 1.0 + later / self.scenario.settings.checkpoints[0].p99.0 as f64;
        // If reading takes a worker's time, a request can be too late before it is read.
        let unread = self.scenario.reading > Nanos::ZERO;
        self.check(unread || p99 <= most, || format!("p99 of what was answered is {p99:.3} SLAs"));
    }

    /// No window, at any alignment, exceeds the caps.
    fn caps(&mut self) {
        let Some(caps) = self.scenario.caps else { return };
        let granted = &self.outcomes.granted;
        let (mut from, mut amount) = (0, 0);
        for (at, &(now, each)) in granted.iter().enumerate() {
            amount += each;
            while now.since(granted[from].0) >= caps.window {
                amount -= granted[from].1;
                from += 1;
            }
            let count = (at + 1 - from) as u64;
            let holds = count <= caps.max_count && amount <= caps.max_total && each <= caps.max_single;
            self.check(holds, || {
                format!("caps exceeded: {count} fallbacks, {amount} in all, {each} at once")
            });
        }
        let full = |hit: &By| matches!(hit, By::Cap(CapHit::Count | CapHit::Total));
        let hits = self.outcomes.records.iter().filter(|record| full(&record.by)).count();
        self.check(hits == 0 || !granted.is_empty(), || "caps hit before anything was given".to_owned());
    }

    // --- cases ---

    /// Work of the model's answers among requests that arrived from `from` on.
    fn goodput(&self, from: Nanos) -> f64 {
        let done =
            self.outcomes.records.iter().filter(|record| record.by == By::Model && record.replied >= from);
        let done = done.filter(|record| record.replied <= self.scenario.end);
        let work: u64 = done.map(|record| record.work.0 + self.scenario.reading.0).sum();
        work as f64 / (self.scenario.settings.workers as u64 * self.scenario.end.since(from).0) as f64
    }

    fn overload(&mut self) {
        self.figures.goodput = self.goodput(seconds(1.0));
        let goodput = self.figures.goodput;
        // Evaluations that callers cancel are not goodput.
        let cancels = self.scenario.streams.iter().map(|stream| stream.cancels).fold(0.0, f64::max);
        let arrived = self.outcomes.records.iter().filter(|record| record.arrived >= seconds(1.0));
        let time = self.scenario.settings.workers as u64 * self.scenario.end.since(seconds(1.0)).0;
        let offered =
            arrived.map(|record| record.work.0 + self.scenario.reading.0).sum::<u64>() as f64 / time as f64;
        // A request that is read and then shed costs the time to read it.
        let unread = self.scenario.reading > Nanos::ZERO;
        let least = offered.min(1.0) * if unread { 0.5 } else { 0.9 } - cancels;
        self.check(goodput >= least, || format!("goodput is {goodput:.3} of the capacity"));
        if !unread {
            self.tier_order();
        }
    }

    /// Higher tiers are shed less than lower ones, and much less if admission has a choice.
    fn tier_order(&mut self) {
        let mut share = [None; 4];
        for (tier, share) in share.iter_mut().enumerate() {
            let own = |record: &&Record| {
                usize::from(record.tier) == tier
                    && record.arrived >= seconds(1.0)
                    && record.by != By::Cancelled
            };
            let all = self.outcomes.records.iter().filter(own).count();
            let lost =
                self.outcomes.records.iter().filter(own).filter(|record| record.by != By::Model).count();
            if all > 0 {
                *share = Some((lost as f64 / all as f64, all as f64));
            }
        }
        let known: Vec<(f64, f64)> = share.into_iter().flatten().collect();
        for pair in known.windows(2) {
            let ((above, n), (below, m)) = (pair[0], pair[1]);
            let tolerance = 0.02 + 1.5 * (1.0 / n + 1.0 / m).sqrt();
            self.check(above <= below + tolerance, || {
                format!("{above:.2} of a tier was shed, {below:.2} of the one below")
            });
        }
        if let (Some(&(top, _)), Some(&(bottom, _)), 2..) = (known.first(), known.last(), known.len()) {
            self.figures.tiers = Some((top, bottom));
            let shed = known.iter().map(|(share, _)| share).sum::<f64>() / known.len() as f64;
            let choice = (0.2..0.7).contains(&shed);
            self.check(!choice || bottom - top > 0.1, || {
                format!(
                    "{top:.2} of the highest tier was shed, {bottom:.2} of the lowest: hardly a difference"
                )
            });
        }
    }

    /// From `from` on, answers are as before the disturbance.
    fn recovers(&mut self, from: f64, most_lost: f64) {
        let late = |record: &&Record| record.arrived >= seconds(from) && record.by != By::Cancelled;
        let all = self.outcomes.records.iter().filter(late).count();
        let lost = self.outcomes.records.iter().filter(late).filter(|record| record.by != By::Model).count();
        self.check(lost as f64 <= all as f64 * most_lost, || {
            format!("{lost} of {all} requests were not answered by the model after {from} s")
        });
        let of = |from: f64, until: f64| {
            let within = |record: &&Record| {
                record.arrived >= seconds(from) && record.arrived < seconds(until) && answered(record)
            };
            quantile(self.outcomes.records.iter().filter(within).map(latency).collect(), 0.9)
        };
        let (before, after) = (of(0.2, 1.0), of(from, 1e9));
        self.figures.beside = Some((after / self.scenario.row.0 as f64, before / self.scenario.row.0 as f64));
        // Two half seconds of random traffic differ, so the limit is 1.5 times plus a service time.
        let most = before * 1.5 + self.scenario.row.0 as f64 * 2.0;
        self.check(after <= most, || {
            format!("p90 is {:.1} ms after it, {:.1} ms before", after / 1e6, before / 1e6)
        });
    }

    /// The p99 of the first stream is the same without the second one, except for one piece of work that
    /// cannot be interrupted.
    fn undisturbed(&mut self) {
        let mut alone = self.scenario.clone();
        match self.scenario.case {
            Case::Noisy => alone.streams[1].rates.truncate(1),
            _ => alone.streams.truncate(1),
        }
        let without = world::run(&alone, false);
        let from = seconds(1.5);
        let of = |outcomes: &Outcomes| {
            let own =
                |record: &&Record| record.stream == 0 && record.arrived >= from && record.by == By::Model;
            quantile(outcomes.records.iter().filter(own).map(latency).collect(), 0.99)
        };
        let lost = |outcomes: &Outcomes| {
            let own =
                |record: &&Record| record.stream == 0 && record.arrived >= from && record.by != By::Cancelled;
            let all = outcomes.records.iter().filter(own).count();
            let lost = outcomes.records.iter().filter(own).filter(|record| record.by != By::Model).count();
            lost as f64 / all.max(1) as f64
        };
        let (with, before) = (of(self.outcomes), of(&without));
        let stretch = self.scenario.row.0 as f64 * LONGEST;
        self.figures.beside = Some((with / self.scenario.row.0 as f64, before / self.scenario.row.0 as f64));
        self.check(with <= before * 1.1 + stretch, || {
            format!("p99 is {:.2} ms, {:.2} ms without the disturbance", with / 1e6, before / 1e6)
        });
        let (with, before) = (lost(self.outcomes), lost(&without));
        self.check(with <= before + 0.005, || {
            format!("{:.2} % were lost, {:.2} % without the disturbance", with * 100.0, before * 100.0)
        });
    }

    /// The mode `observe` changes nothing and records what the mode `enforce` would have done.
    fn observes(&mut self) {
        let mut off = self.scenario.clone();
        for point in &mut off.settings.checkpoints {
            point.mode = Mode::Off;
        }
        let off = world::run(&off, false);
        let same = digest(self.outcomes) == digest(&off);
        self.check(same, || "observing is not the same as off".to_owned());
        self.check(off.would_shed == 0, || "off counts what it would shed".to_owned());
        let demand: f64 = self.scenario.streams.iter().map(|stream| stream.rates[0].1).sum();
        let would = self.outcomes.would_shed;
        let overloaded = demand > 1.3 * self.scenario.capacity();
        self.check(!overloaded || would > 0, || "overloaded, and observing saw nothing to shed".to_owned());
    }
}

fn digest(outcomes: &Outcomes) -> u64 {
    let mut hasher = DefaultHasher::new();
    outcomes.records.hash(&mut hasher);
    hasher.finish()
}
