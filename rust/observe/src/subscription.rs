//! The observe lanes of a checkpoint, compiled for one answering bundle and called from the answer path.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use scorer_admission::Pressure;
use scorer_core::policy::unit;
use scorer_core::schema::Schema;
use scorer_engine::{AnswerSink, Answered, Gate};
use scorer_log::Clock;

use crate::filter::Filter;
use crate::forward::Forwarder;
use crate::job::Observed;
use crate::lane::{Lane, Place};

/// The key of the sampling draw. It is constant, so that replicas observe the same requests, and differs from the keys
/// of all other draws.
const KEY: &[u8; 16] = b"scorer/observing";

/// The parts of the server that subscriptions use.
pub(crate) struct Context {
    pub(crate) gate: Arc<Gate>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Sends to the shadow pool, if there is one.
    pub(crate) forwarder: Option<Arc<Forwarder>>,
}

/// The lanes that observe one bundle's answers at a checkpoint.
pub struct Subscription {
    context: Arc<Context>,
    lanes: Box<[Subscriber]>,
    /// Features, sorted, that at least one lane reads and the answering bundle does not. A request may name them.
    others: Box<[String]>,
}

/// One lane with its filter, compiled for the answering bundle.
struct Subscriber {
    lane: Arc<Lane>,
    filter: Filter,
}

// === impl Subscription ===

impl Subscription {
    /// Compiles these lanes for the answers of a bundle with this schema.
    pub(crate) fn compile(context: &Arc<Context>, lanes: &[Arc<Lane>], schema: &Schema) -> Subscription {
        let here = lanes.iter().filter_map(|lane| lane.loaded());
        let here = here.flat_map(|loaded| loaded.bundle.schema().features());
        let in_pool = lanes.iter().flat_map(|lane| &lane.table.reads);
        let mut others: Vec<String> = here
            .map(|feature| &feature.name)
            .chain(in_pool)
            .filter(|name| schema.index_of(name).is_none())
            .cloned()
            .collect();
        others.sort_unstable();
        others.dedup();
        let subscriber = |lane: &Arc<Lane>| Subscriber {
            filter: Filter::compile(&lane.table.filter, schema),
            lane: Arc::clone(lane),
        };
        Subscription {
            context: Arc::clone(context),
            lanes: lanes.iter().map(subscriber).collect(),
            others: others.into(),
        }
    }

    /// Offers a request to each lane. `observed` is called once, for the first lane that takes the request. Returns
    /// whether every lane that took it had room for it. Lanes of the shadow pool receive it as one message; the pool
    /// draws and filters again.
    pub fn offer<'a>(
        &self,
        checkpoint: &str,
        id: &str,
        row: &[f32],
        observed: impl Fn() -> Observed<'a>,
    ) -> bool {
        let point = unit(KEY, &[b"observe", checkpoint.as_bytes(), id.as_bytes()]);
        let mut made = None;
        let (mut all, mut to_pool) = (true, false);
        for subscriber in &self.lanes {
            let counters = &subscriber.lane.counters.offered;
            counters.seen.fetch_add(1, Relaxed);
            if !subscriber.takes(point, row) {
                continue;
            }
            counters.taken.fetch_add(1, Relaxed);
            if self.context.gate.pressure() >= Pressure::NoObserve {
                counters.shed.fetch_add(1, Relaxed);
                all = false;
                continue;
            }
            let observed = made.get_or_insert_with(&observed);
            match &subscriber.lane.place {
                Place::Here(_) => all &= subscriber.lane.try_enqueue(observed),
                Place::Pool => to_pool = true,
            }
        }
        if to_pool && let Some(observed) = &made {
            let forwarder = self.context.forwarder.as_ref();
            let sent = forwarder.is_some_and(|forwarder| forwarder.try_send(observed, &self.others));
            if !sent {
                let in_pool = |subscriber: &&Subscriber| matches!(subscriber.lane.place, Place::Pool);
                let took = self.lanes.iter().filter(in_pool).filter(|lane| lane.takes(point, row));
                took.for_each(|subscriber| subscriber.lane.dropped());
            }
            all &= sent;
        }
        all
    }
}

impl AnswerSink for Subscription {
    fn reads(&self, feature: &str) -> bool {
        self.others.binary_search_by(|other| other.as_str().cmp(feature)).is_ok()
    }

    /// Offers an answered request. If no lane takes it, this costs one hash and one counter per lane.
    fn answered(&self, answered: &Answered<'_>) {
        self.offer(answered.checkpoint, answered.id, answered.row, || Observed {
            answered,
            answered_at_us: self.context.clock.unix_us(),
            at: Instant::now(),
        });
    }
}

// === impl Subscriber ===

impl Subscriber {
    /// Whether a request passes the lane's sample and filter.
    fn takes(&self, point: f64, row: &[f32]) -> bool {
        point < self.lane.table.sample && self.filter.holds(row)
    }
}
