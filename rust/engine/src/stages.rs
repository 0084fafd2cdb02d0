//! The times of the stages of one traced request. A request that is not traced has none, and its stages read no clock.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::bundles::NodeCounters;
use crate::lanes::Source;

/// A stage of the answer path that has a span of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Routing, and encoding the features.
    Features,
    /// Admission of the evaluation.
    Admit,
    /// The evaluation, with its wait for the pool.
    Evaluate,
    /// The choice of the answer.
    Decide,
    /// Writing the record, with the wait for its durability.
    Log,
}

/// The times of the stages of a request, and the lane that answered it.
#[derive(Debug, Default)]
pub struct StageTimes {
    /// Beginning and end of each stage in nanoseconds after the arrival, plus one; 0 means that it is not known.
    times: [[AtomicU64; 2]; Stage::COUNT],
    source: OnceLock<Arc<Source>>,
    /// The nodes of the bundle, and the times of those that ran.
    nodes: Mutex<Option<(Arc<NodeCounters>, Vec<u64>)>>,
}

/// Measures a stage from its creation until it is dropped, if the request is traced.
pub(crate) struct Timed<'a>(Option<(&'a StageTimes, Stage, Instant)>);

// === impl Stage ===

impl Stage {
    /// Number of stages.
    pub const COUNT: usize = 5;
    /// The stages in the order in which a request passes them.
    pub const ALL: [Stage; Stage::COUNT] =
        [Stage::Features, Stage::Admit, Stage::Evaluate, Stage::Decide, Stage::Log];

    /// Returns the name of the stage's span.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Stage::Features => "features",
            Stage::Admit => "admit",
            Stage::Evaluate => "evaluate",
            Stage::Decide => "decide",
            Stage::Log => "log",
        }
    }
}

// === impl StageTimes ===

impl StageTimes {
    /// Measures a stage of the request that arrived at `arrived`. A stage that is measured again lasts from its first
    /// beginning to its last end.
    pub(crate) fn measure(&self, stage: Stage, arrived: Instant) -> Timed<'_> {
        let [began, _] = &self.times[stage as usize];
        // Only the task of the request begins a stage.
        if began.load(Relaxed) == 0 {
            began.store(after(arrived), Relaxed);
        }
        Timed(Some((self, stage, arrived)))
    }

    /// Stores the lane that answers.
    pub(crate) fn answered_by(&self, source: &Arc<Source>) {
        let _ = self.source.set(Arc::clone(source));
    }

    /// Adds the times of nodes.
    pub(crate) fn ran(&self, nodes: &Arc<NodeCounters>, times: &[u64]) {
        let mut known = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, sums) = known.get_or_insert_with(|| (Arc::clone(nodes), vec![0; times.len()]));
        sums.iter_mut().zip(times).for_each(|(sum, time)| *sum += time);
    }

    /// Returns the names of the nodes that ran, with their times in nanoseconds.
    #[must_use]
    pub fn nodes(&self) -> Vec<(String, u64)> {
        let known = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((nodes, times)) = &*known else { return Vec::new() };
        nodes.ran(times).map(|(node, time)| (node.name.clone(), time)).collect()
    }

    /// Returns the lane that answered, if one was found.
    #[must_use]
    pub fn source(&self) -> Option<&Source> {
        self.source.get().map(|source| &**source)
    }

    /// Returns the stages that were begun, with their beginning and end after the arrival. A stage without an end was
    /// cut off when the request ended after `total`.
    pub fn spans(&self, total: Duration) -> impl Iterator<Item = (Stage, Duration, Duration)> {
        Stage::ALL.into_iter().filter_map(move |stage| {
            let [began, ended] = self.times[stage as usize].each_ref().map(|time| time.load(Relaxed));
            let began = Duration::from_nanos(began.checked_sub(1)?).min(total);
            let ended = ended.checked_sub(1).map_or(total, Duration::from_nanos).min(total);
            Some((stage, began, ended.max(began)))
        })
    }
}

// === impl Timed ===

impl Timed<'_> {
    /// Measures nothing: the request is not traced.
    pub(crate) const NONE: Timed<'static> = Timed(None);
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        if let Some((times, stage, arrived)) = self.0 {
            times.times[stage as usize][1].store(after(arrived), Relaxed);
        }
    }
}

fn after(arrived: Instant) -> u64 {
    u64::try_from(arrived.elapsed().as_nanos()).unwrap_or(u64::MAX - 1).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_lasts_from_its_first_beginning_to_its_last_end() {
        let times = StageTimes::default();
        let arrived = Instant::now();
        drop(times.measure(Stage::Log, arrived));
        let total = Duration::from_secs(3600);
        let [(Stage::Log, began, first)] = times.spans(total).collect::<Vec<_>>()[..] else { panic!() };
        std::thread::sleep(Duration::from_millis(2));
        drop(times.measure(Stage::Log, arrived));
        let [(_, again, last)] = times.spans(total).collect::<Vec<_>>()[..] else { panic!() };
        assert_eq!(began, again);
        assert!(last >= first + Duration::from_millis(2), "{first:?} {last:?}");
    }

    #[test]
    fn a_stage_without_an_end_ends_with_the_request() {
        let times = StageTimes::default();
        let timed = times.measure(Stage::Evaluate, Instant::now());
        let total = Duration::from_millis(5);
        assert_eq!(
            times.spans(total).map(|(stage, _, end)| (stage, end)).collect::<Vec<_>>(),
            [(Stage::Evaluate, total)]
        );
        drop(timed);
        drop(Timed::NONE);
        assert!(times.spans(Duration::ZERO).all(|(_, began, end)| began == end && end.is_zero()));
    }
}
