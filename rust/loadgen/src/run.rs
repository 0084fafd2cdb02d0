//! A whole run: start the workers, report once per second, merge what they measured.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::config::{ConfigError, LoadConfig};
use crate::record::{Division, Record};
use crate::report::{Progress, Report, Summary};
use crate::schedule::{Merged, Schedule, Stretch};
use crate::target::Target;
use crate::worker::{Calling, Endpoint, Part, Plan, connect, lock, send_all};

/// Interval at which the caller is asked whether to continue.
const TICK: Duration = Duration::from_millis(100);
const PROGRESS: Duration = Duration::from_secs(1);

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A setting breaks a rule.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The target or a method's path is not spelt as one.
    #[error("target or method path is not valid: {0}")]
    Address(#[from] http::Error),
    /// The first connections could not be made.
    #[error("cannot connect to {target}: {source}; check that the server runs there")]
    Connect {
        /// Where to.
        target: String,
        /// Why not.
        source: std::io::Error,
    },
    /// The machine refuses what a worker needs.
    #[error("a sending thread failed: {0}")]
    Worker(std::io::Error),
    /// Ended by the caller before the first request.
    #[error("interrupted while connecting")]
    Interrupted,
    /// A defect of the generator.
    #[error("a sending thread ended unexpectedly")]
    Crashed,
}

/// Runs the load and reports. `payloads[i]` are the encoded requests of `config.methods[i]`,
/// sent in turn.
///
/// `tick` is called about ten times per second, once per second with progress; its `Break`
/// ends the run early, and the report then covers what was sent until then.
///
/// # Errors
/// If the settings break a rule or the first connections cannot be made. What goes wrong
/// later is part of the report.
pub fn run(
    config: &LoadConfig,
    payloads: Vec<Vec<Bytes>>,
    mut tick: impl FnMut(Option<&Progress>) -> ControlFlow<()>,
) -> Result<Report, LoadError> {
    config.check(&payloads)?;
    let target = Target::parse(&config.target, config.tls.as_ref());
    let callers = config.callers();
    let callers = callers.iter().map(|caller| Calling::new(config, caller, &target));
    let plan = Arc::new(Plan {
        callers: callers.collect::<Result<_, _>>()?,
        target,
        protocol: config.protocol,
        endpoints: Endpoint::all(config, payloads),
        timeout: Duration::from_secs_f64(config.timeout_ms / 1000.0),
        warmup: Duration::from_secs_f64(config.warmup_seconds),
        cancel: config.cancel,
        cancel_within: Duration::from_secs_f64(config.cancel_within_ms / 1000.0),
        // The hasher's keys are random: ids of two runs never meet.
        nonce: RandomState::new().build_hasher().finish(),
        seed: config.seed,
        stop: AtomicBool::new(false),
    });
    let mut workers = Workers::spawn(config, &plan)?;
    let outcome = workers.watch(&plan, &mut tick);
    plan.stop.store(true, Ordering::Relaxed);
    workers.join()?;
    let interrupted = outcome?;
    Ok(Report::of(config, &workers.merged(), interrupted))
}

/// A message of a worker to the watching thread.
enum Event {
    Connected,
    Done,
    Failed(LoadError),
}

struct Workers {
    threads: Vec<JoinHandle<()>>,
    records: Vec<Arc<Mutex<Record>>>,
    starts: Vec<oneshot::Sender<Instant>>,
    events: Receiver<Event>,
    blank: Record,
}

impl Workers {
    fn spawn(config: &LoadConfig, plan: &Arc<Plan>) -> Result<Workers, LoadError> {
        let blank = Record::new(&division(config));
        let (tell, events) = channel();
        let mut workers =
            Workers { threads: Vec::new(), records: Vec::new(), starts: Vec::new(), events, blank };
        for index in 0..config.threads {
            let record = Arc::new(Mutex::new(workers.blank.clone()));
            let part = Part {
                index,
                connections: share(config.connections, index, config.threads),
                max_outstanding: share(config.max_outstanding, index, config.threads),
                schedule: schedule(config, index),
                record: Arc::clone(&record),
            };
            let (go, start) = oneshot::channel();
            let (plan, tell) = (Arc::clone(plan), tell.clone());
            let thread = std::thread::Builder::new()
                .name(format!("load-{index}"))
                .spawn(move || {
                    let last = work(plan, part, start, &tell).map_or_else(Event::Failed, |()| Event::Done);
                    // The receiver is gone once the run has failed elsewhere.
                    let _gone = tell.send(last);
                })
                .map_err(LoadError::Worker)?;
            workers.threads.push(thread);
            workers.records.push(record);
            workers.starts.push(go);
        }
        Ok(workers)
    }

    /// Lets the workers begin together and waits for their end; whether it was an early one.
    fn watch(
        &mut self,
        plan: &Plan,
        tick: &mut impl FnMut(Option<&Progress>) -> ControlFlow<()>,
    ) -> Result<bool, LoadError> {
        let (mut connected, mut done, mut interrupted) = (0, 0, false);
        let mut start = None;
        let mut next_progress = PROGRESS;
        while done < self.threads.len() {
            match self.events.recv_timeout(TICK) {
                Ok(Event::Failed(error)) => return Err(error),
                Ok(Event::Done) => done += 1,
                Ok(Event::Connected) => {
                    connected += 1;
                    if connected == self.threads.len() {
                        let at = Instant::now() + Duration::from_millis(20);
                        start = Some(at);
                        for go in self.starts.drain(..) {
                            // A worker that is gone has sent its reason.
                            let _gone = go.send(at);
                        }
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(LoadError::Crashed),
            }
            let elapsed = start.map_or(Duration::ZERO, |at: Instant| at.elapsed());
            let progress = (elapsed >= next_progress).then(|| self.progress(elapsed, plan.warmup));
            if progress.is_some() {
                next_progress = elapsed + PROGRESS;
            }
            if !interrupted && tick(progress.as_ref()).is_break() {
                interrupted = true;
                plan.stop.store(true, Ordering::Relaxed);
                if start.is_none() {
                    return Err(LoadError::Interrupted);
                }
            }
        }
        Ok(interrupted)
    }

    fn progress(&self, elapsed: Duration, warmup: Duration) -> Progress {
        let mut sum = Progress {
            elapsed: elapsed.as_secs_f64(),
            warming_up: elapsed < warmup,
            finished: 0,
            errors: 0,
            fallbacks: 0,
            send_lag_p99_us: 0,
            latency_us: Summary::default(),
        };
        let mut recent = self.blank.recent.clone();
        for record in &self.records {
            let mut fresh = self.blank.recent.clone();
            let mut record = lock(record);
            // Swapped, not copied: the worker waits for this lock.
            std::mem::swap(&mut record.recent, &mut fresh);
            sum.finished += std::mem::take(&mut record.finished);
            sum.errors += record.errors.values().sum::<u64>();
            sum.fallbacks += record.fallbacks.values().sum::<u64>();
            // Of the worst thread: merging histograms would keep the worker waiting.
            sum.send_lag_p99_us = sum.send_lag_p99_us.max(record.send_lag.value_at_quantile(0.99));
            drop(record);
            let added = recent.add(&fresh);
            debug_assert!(added.is_ok(), "histograms of one run have one shape");
        }
        sum.latency_us = Summary::of(&recent);
        sum
    }

    fn join(&mut self) -> Result<(), LoadError> {
        self.starts.clear();
        let mut outcome = Ok(());
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                outcome = Err(LoadError::Crashed);
            }
        }
        outcome
    }

    fn merged(&self) -> Record {
        let mut whole = self.blank.clone();
        for record in &self.records {
            whole.merge(&lock(record));
        }
        whole
    }
}

/// A worker thread's life.
fn work(
    plan: Arc<Plan>,
    part: Part,
    start: oneshot::Receiver<Instant>,
    tell: &Sender<Event>,
) -> Result<(), LoadError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // The timer's wake-up must not wait behind a long queue of replies.
        .event_interval(16)
        .build()
        .map_err(LoadError::Worker)?;
    runtime.block_on(async {
        let connections = connect(&plan, &part)
            .await
            .map_err(|source| LoadError::Connect { target: plan.target.to_string(), source })?;
        // The watching thread is gone only if the run has failed elsewhere; then this worker is not started either.
        let _gone = tell.send(Event::Connected);
        match start.await {
            Ok(at) => send_all(plan, part, connections, at).await.map_err(LoadError::Worker),
            Err(_never) => Ok(()),
        }
    })
}

/// How the record of a run is divided.
fn division(config: &LoadConfig) -> Division {
    let mut end = 0.0;
    let step_ends = config.steps().into_iter().map(|step| {
        end += step.seconds;
        Duration::from_secs_f64(end)
    });
    Division {
        methods: config.methods.len(),
        callers: config.callers().len(),
        step_ends: step_ends.collect(),
        windows: (config.seconds / config.window_seconds).ceil().max(1.0) as usize,
        window: Duration::from_secs_f64(config.window_seconds),
        sla: config.sla_ms.map(|ms| Duration::from_secs_f64(ms / 1000.0)),
    }
}

/// One thread's part of what all callers send: the warm-up at the first step's load, then the steps.
fn schedule(config: &LoadConfig, part: usize) -> Merged {
    let steps = config.steps();
    let of = |(number, caller): (usize, &crate::config::Caller)| {
        let rate = |step: usize| config.rate * steps[step].load * caller.load(step);
        let warmup = Stretch { seconds: config.warmup_seconds, rate: rate(0) };
        let measured =
            steps.iter().enumerate().map(|(i, step)| Stretch { seconds: step.seconds, rate: rate(i) });
        let stretches = std::iter::once(warmup).chain(measured).collect();
        Schedule::new(config.arrivals, stretches, (part, config.threads), config.seed, number as u64)
    };
    Merged::new(config.callers().iter().enumerate().map(of).collect())
}

/// This part's share of a whole, remainders to the first parts.
fn share(whole: usize, part: usize, parts: usize) -> usize {
    whole / parts + usize::from(part < whole % parts)
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn shares_add_up() {
        for (whole, parts) in [(4, 1), (5, 2), (3, 3), (10_000, 7)] {
            assert_eq!((0..parts).map(|part| share(whole, part, parts)).sum::<usize>(), whole);
            assert!(share(whole, parts - 1, parts) >= 1);
        }
    }
}
