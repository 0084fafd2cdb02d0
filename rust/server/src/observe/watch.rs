//! The observe lanes as the answer path meets them: compiled for the bundle that answered.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use scorer_admission::Pressure;
use scorer_core::policy::{Mask, unit};
use scorer_core::schema::Schema;
use scorer_proto::v1::{Feature, NamedFeatures};

use super::filter::Filter;
use super::job::{Answer, Observed};
use super::lane::{Lane, Place};
use super::mapping::Shape;
use crate::answer::Decision;
use crate::metrics::Reason;
use crate::state::Shared;

/// The key of the draw: fixed, so that replicas observe the same requests, and another than any other draw's.
const KEY: &[u8; 16] = b"scorer/observing";

/// Who observes what one bundle answers at a checkpoint.
pub(crate) struct Watched {
    pub(crate) shape: Arc<Shape>,
    pub(crate) lanes: Box<[Watch]>,
    /// Features that one of them reads and the answering bundle does not, sorted: a request may name them.
    pub(crate) others: Box<[String]>,
}

/// One lane with its filter in terms of the answering bundle.
pub(crate) struct Watch {
    pub(crate) lane: Arc<Lane>,
    pub(crate) filter: Filter,
}

/// What was said, as far as [`Decision`] has it not.
#[derive(Clone, Copy)]
pub(crate) enum Said<'a> {
    Score { margin: f64, score: f64, label: &'a str },
    Action { eligible: &'a Mask, action: &'a str, propensity: f64, expected_reward: f64 },
}

// === impl Watched ===

impl Watched {
    /// Of these lanes, for what a bundle of this schema answers.
    pub(crate) fn compile(lanes: &[Arc<Lane>], shape: Arc<Shape>, schema: &Schema) -> Watched {
        let here = lanes.iter().filter_map(|lane| lane.loaded()).flat_map(|it| it.bundle.schema().features());
        let in_pool = lanes.iter().flat_map(|lane| &lane.table.reads);
        let mut others: Vec<String> = here
            .map(|feature| &feature.name)
            .chain(in_pool)
            .filter(|name| schema.index_of(name).is_none())
            .cloned()
            .collect();
        others.sort_unstable();
        others.dedup();
        let watch = |lane: &Arc<Lane>| Watch {
            filter: Filter::compile(&lane.table.filter, schema),
            lane: Arc::clone(lane),
        };
        Watched { shape, lanes: lanes.iter().map(watch).collect(), others: others.into() }
    }

    /// Whether a request may name a feature that the answering bundle does not read.
    pub(crate) fn reads(&self, name: &str) -> bool {
        self.others.binary_search_by(|other| other.as_str().cmp(name)).is_ok()
    }
}

impl Watch {
    /// Whether sample and filter leave a request to the lane.
    fn takes(&self, point: f64, row: &[f32]) -> bool {
        point < self.lane.table.sample && self.filter.holds(row)
    }
}

/// Offers an answered request to the lanes that observe. Without such lanes this is one comparison; a request that no
/// lane takes costs a hash and a counter per lane.
pub(crate) fn offer(
    shared: &Shared,
    decision: Decision<'_>,
    row: &[f32],
    said: Said<'_>,
    named: Option<&NamedFeatures>,
) {
    if let Some(watched) = &decision.lane.watched {
        watched.offer(shared, decision, row, said, named.map_or(&[], |named| &named.features));
    }
}

impl Watched {
    fn offer(&self, shared: &Shared, decision: Decision<'_>, row: &[f32], said: Said<'_>, named: &[Feature]) {
        let Decision { checkpoint, lane, id, entity, fallback, times } = decision;
        self.each(shared, &checkpoint.name, id, row, || {
            let mut answer = Answer {
                lane: &lane.source.lane,
                lane_table: lane.source.lane_table,
                bundle: &lane.loaded.digest.0,
                margin: 0.0,
                score: 0.0,
                decision: "",
                action: "",
                expected_reward: 0.0,
                propensity: 0.0,
                fallback_reason: fallback.map_or("", Reason::as_str),
                times,
            };
            let mut mask = None;
            match said {
                Said::Score { margin, score, label } => {
                    (answer.margin, answer.score, answer.decision) = (margin, score, label);
                }
                Said::Action { eligible, action, propensity, expected_reward } => {
                    mask = Some(eligible);
                    answer.action = action;
                    (answer.propensity, answer.expected_reward) = (propensity, expected_reward);
                }
            }
            Observed {
                checkpoint: &checkpoint.name,
                id,
                entity,
                row,
                shape: &self.shape,
                eligible: mask,
                named,
                answer,
                answered_at_us: shared.clock.unix_us(),
                at: Instant::now(),
            }
        });
    }

    /// Offers a request to each lane; it is laid out once, for the first that takes it. Whether every lane that took it
    /// has it now. Those of the shadow pool get it together: each draws and filters there again.
    pub(crate) fn each<'a>(
        &self,
        shared: &Shared,
        checkpoint: &str,
        id: &str,
        row: &[f32],
        lay_out: impl Fn() -> Observed<'a>,
    ) -> bool {
        let point = unit(KEY, &[b"observe", checkpoint.as_bytes(), id.as_bytes()]);
        let mut observed = None;
        let (mut all, mut to_pool) = (true, false);
        for watch in &self.lanes {
            let counters = &watch.lane.counters.offered;
            counters.seen.fetch_add(1, Relaxed);
            if !watch.takes(point, row) {
                continue;
            }
            counters.taken.fetch_add(1, Relaxed);
            if shared.admission.pressure() >= Pressure::NoObserve {
                counters.shed.fetch_add(1, Relaxed);
                all = false;
                continue;
            }
            let observed = observed.get_or_insert_with(&lay_out);
            match &watch.lane.place {
                Place::Here(_) => all &= watch.lane.put(observed),
                Place::Pool => to_pool = true,
            }
        }
        if to_pool && let Some(observed) = &observed {
            let sent = shared.forwarder.as_ref().is_some_and(|pool| pool.offer(observed, &self.others));
            if !sent {
                let of_pool = |watch: &&Watch| matches!(watch.lane.place, Place::Pool);
                let took = self.lanes.iter().filter(of_pool).filter(|watch| watch.takes(point, row));
                took.for_each(|watch| watch.lane.dropped());
            }
            all &= sent;
        }
        all
    }
}
