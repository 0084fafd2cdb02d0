//! Traces: which requests have spans, and the way of the spans to a collector.
//!
//! A request is sampled when it arrives. If it is not, the only trace of it here is one number of the generator of ids:
//! nothing is allocated, locked or measured. A sampled request measures its stages, and when it has ended, it is put
//! into a bounded queue, from which a thread of low priority makes its spans and exports them. A request for which the
//! queue has no room loses its spans, which are counted.

mod context;
mod exporter;
mod sampling;
mod spans;

use std::io;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use http::HeaderMap;
use scorer_engine::{Arrival, Engine};
use tokio::sync::{mpsc, watch};
use tonic::Code;

use crate::config::TracingConfig;
use crate::counters::Exemplar;
use crate::method::Method;
use context::{Malformed, Parent, RANDOM, SAMPLED};
use sampling::{Ids, PerSecond, Ratio};

/// Id of a trace.
type TraceId = [u8; 16];

/// Samples requests, and holds the queue of those that have ended.
pub(crate) struct Tracer {
    config: TracingConfig,
    instance: String,
    ratio: Ratio,
    ids: Ids,
    limit: PerSecond,
    queue: mpsc::Sender<Ended>,
    /// The receiving end, until the exporting thread takes it.
    waiting: Mutex<Option<mpsc::Receiver<Ended>>>,
    pub(crate) counts: Counts,
}

/// Numbers of traced requests and of their spans. Every recorded span is finally counted once as exported, refused or
/// dropped.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Requests that are traced because their caller's trace is.
    pub(crate) by_caller: AtomicU64,
    /// Requests that are traced because of their trace's id.
    pub(crate) by_ratio: AtomicU64,
    /// Requests that are not traced because too many are in the same second.
    pub(crate) limited: AtomicU64,
    pub(crate) malformed_parents: AtomicU64,
    pub(crate) malformed_states: AtomicU64,
    pub(crate) recorded: AtomicU64,
    pub(crate) exported: AtomicU64,
    /// Spans that the collector rejected.
    pub(crate) refused: AtomicU64,
    /// Spans that were lost because the queue was full, the collector could not be reached or the server stopped.
    pub(crate) dropped: AtomicU64,
    /// Whether the collector answered the latest call.
    pub(crate) connected: AtomicBool,
}

/// The place of a traced request's span in its trace.
#[derive(Debug)]
pub(crate) struct Trace {
    trace_id: TraceId,
    span_id: [u8; 8],
    /// Id of the caller's span.
    parent: Option<[u8; 8]>,
    flags: u8,
    state: String,
}

/// A traced request that has ended.
pub(crate) struct Ended {
    pub(crate) trace: Box<Trace>,
    pub(crate) arrival: Arc<Arrival>,
    pub(crate) method: Method,
    pub(crate) code: Code,
    pub(crate) took: Duration,
    /// Time of the end, in microseconds since the Unix epoch.
    pub(crate) at_us: i64,
}

// === impl Tracer ===

impl Tracer {
    /// Creates the queue. `listens` is the name of this server if the configuration does not set one.
    pub(crate) fn new(config: &TracingConfig, listens: &str, started: Instant) -> Tracer {
        let (queue, waiting) = mpsc::channel(config.queue);
        Tracer {
            instance: config.instance.clone().unwrap_or_else(|| listens.to_owned()),
            ratio: Ratio::new(config.ratio),
            ids: Ids::new(),
            limit: PerSecond::new(config.most_per_second, started),
            config: config.clone(),
            queue,
            waiting: Mutex::new(Some(waiting)),
            counts: Counts::default(),
        }
    }

    /// Decides whether a request that arrived at `now` is traced.
    pub(crate) fn sample(&self, headers: &HeaderMap, now: Instant) -> Option<Box<Trace>> {
        let counts = &self.counts;
        let parent = Parent::of(headers).unwrap_or_else(|Malformed| {
            counts.malformed_parents.fetch_add(1, Relaxed);
            None
        });
        let trace_id = parent.map_or_else(|| self.ids.trace(), |parent| parent.trace_id);
        let decided = match parent {
            Some(parent) if self.config.follow_callers => parent.is_sampled().then_some(&counts.by_caller),
            _ => self.ratio.samples(trace_id).then_some(&counts.by_ratio),
        }?;
        if !self.limit.admits(now) {
            counts.limited.fetch_add(1, Relaxed);
            return None;
        }
        decided.fetch_add(1, Relaxed);
        let state = parent.map_or_else(String::new, |_| {
            context::state(headers).unwrap_or_else(|Malformed| {
                counts.malformed_states.fetch_add(1, Relaxed);
                String::new()
            })
        });
        Some(Box::new(Trace {
            trace_id,
            span_id: self.ids.span(),
            parent: parent.map(|parent| parent.span_id),
            flags: SAMPLED | parent.map_or(RANDOM, |parent| parent.flags & RANDOM),
            state,
        }))
    }

    /// Takes a request that has ended, if there is room. It neither blocks nor wakes a thread.
    pub(crate) fn ended(&self, ended: Ended) {
        let spans = spans::count(&ended);
        self.counts.recorded.fetch_add(spans, AcqRel);
        if self.queue.try_send(ended).is_err() {
            self.counts.dropped.fetch_add(spans, AcqRel);
        }
    }

    /// Starts the exporting thread. When `stop` becomes true, it exports the rest for a short time and ends.
    pub(crate) fn start(
        self: &Arc<Tracer>,
        engine: &Arc<Engine>,
        stop: watch::Receiver<bool>,
    ) -> io::Result<Option<JoinHandle<()>>> {
        let taken = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(waiting) = taken else { return Ok(None) };
        exporter::start(Arc::clone(self), Arc::clone(engine), waiting, stop).map(Some)
    }
}

// === impl Ended ===

impl Ended {
    /// Returns the request as an example of its latency.
    pub(crate) fn exemplar(&self) -> Exemplar {
        Exemplar { trace_id: self.trace.trace_id, took: self.took, at_us: self.at_us }
    }
}

// === impl Counts ===

impl Counts {
    /// Returns the number of spans that wait to be exported.
    pub(crate) fn waiting(&self) -> u64 {
        // The counters of finished spans are read first, so the difference is at least 0.
        let finished = [&self.exported, &self.refused, &self.dropped];
        let finished: u64 = finished.into_iter().map(|count| count.load(Relaxed)).sum();
        self.recorded.load(Relaxed).saturating_sub(finished)
    }
}

impl std::fmt::Debug for Tracer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tracer").field("endpoint", &self.config.endpoint).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tracer(settings: &str) -> Tracer {
        let config = serde_json::from_str(&format!(r#"{{"endpoint":"127.0.0.1:1",{settings}}}"#)).unwrap();
        Tracer::new(&config, "here", Instant::now())
    }

    fn headers(values: &[(&'static str, &str)]) -> HeaderMap {
        values.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

    fn parent(flags: &str) -> String {
        format!("00-{TRACE}-b7ad6b7169203331-{flags}")
    }

    #[test]
    fn the_caller_decides_about_its_trace() {
        for ratio in ["0", "1"] {
            let tracer = tracer(&format!("\"ratio\":{ratio}"));
            let sample = |flags| tracer.sample(&headers(&[("traceparent", &parent(flags))]), Instant::now());
            let trace = sample("03").unwrap();
            assert_eq!((trace.parent.unwrap()[0], trace.flags, trace.trace_id[0]), (0xb7, 3, 0x0a));
            assert!(sample("00").is_none());
            let alone = tracer.sample(&HeaderMap::new(), Instant::now());
            assert_eq!(alone.is_some(), ratio == "1");
            assert!(alone.is_none_or(|trace| trace.parent.is_none() && trace.flags == SAMPLED | RANDOM));
        }
    }

    #[test]
    fn the_ratio_decides_if_callers_are_not_followed() {
        for (ratio, sampled) in [("0", false), ("1", true)] {
            let tracer = tracer(&format!("\"follow_callers\":false,\"ratio\":{ratio}"));
            for flags in ["00", "01"] {
                let trace = tracer.sample(&headers(&[("traceparent", &parent(flags))]), Instant::now());
                assert_eq!(trace.is_some(), sampled);
                assert!(trace.is_none_or(|trace| trace.parent.is_some()), "it is still the caller's trace");
            }
        }
    }

    #[test]
    fn a_malformed_context_is_ignored_and_counted() {
        let tracer = tracer("\"ratio\":1");
        let now = Instant::now();
        let trace =
            tracer.sample(&headers(&[("traceparent", "nonsense"), ("tracestate", "a=1")]), now).unwrap();
        assert_eq!((trace.parent, trace.state.as_str()), (None, ""), "a new trace begins");
        let values = [("traceparent", &*parent("01")), ("tracestate", "nonsense")];
        let trace = tracer.sample(&headers(&values), now).unwrap();
        assert!(trace.parent.is_some() && trace.state.is_empty());
        let counts = &tracer.counts;
        let read = |count: &AtomicU64| count.load(Relaxed);
        assert_eq!((read(&counts.malformed_parents), read(&counts.malformed_states)), (1, 1));
        assert_eq!((read(&counts.by_ratio), read(&counts.by_caller)), (1, 1));
    }

    #[test]
    fn a_caller_cannot_have_more_requests_traced_than_the_limit() {
        let tracer = tracer("\"most_per_second\":2");
        let (values, now) = (headers(&[("traceparent", &parent("01"))]), Instant::now());
        let traced = (0..10).filter(|_| tracer.sample(&values, now).is_some()).count();
        assert_eq!((traced, tracer.counts.limited.load(Relaxed)), (2, 8));
    }
}
