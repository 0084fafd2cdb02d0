//! All observe lanes of a server.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use scorer_core::schema::Schema;
use scorer_engine::{ActiveLanes, AnswerSink, Engine, LaneTable, Loaded, SwapError};
use tokio::sync::watch;

use crate::config::ShadowPoolConfig;
use crate::forward::{Forwarder, PoolStatus};
use crate::status::ObserverStatus;
use crate::subscription::{Context, Subscription};
use crate::supervisor::ObserverSupervisor;
use crate::table::{ObserveLanes, Place};
use crate::thread::Env;

/// The settings of a server's observe lanes.
pub struct ObserveConfig {
    /// Share of one core that a lane's thread may use, above 0 and at most 1.
    pub cpu: f64,
    /// Number of requests that may wait for one lane.
    pub queue: usize,
    /// The connection to the shadow pool, if there is one.
    pub shadow_pool: Option<ShadowPoolConfig>,
    /// Whether this server is a shadow pool.
    pub is_pool: bool,
    /// Name of this server in the pool's counters, unless `shadow_pool` sets one.
    pub server: String,
}

/// The active observe lanes, their threads and the connection to the shadow pool.
pub struct Observers {
    engine: Arc<Engine>,
    active: ArcSwap<ObserveLanes>,
    supervisor: ObserverSupervisor,
    context: Arc<Context>,
    queue: usize,
    is_pool: bool,
    #[cfg(feature = "fault-injection")]
    faults: Arc<crate::fault::LaneFaults>,
}

// === impl Observers ===

impl Observers {
    /// Creates observers without lanes. `started` is the origin of times of the server.
    #[must_use]
    pub fn new(engine: &Arc<Engine>, config: &ObserveConfig, started: Instant) -> Observers {
        #[cfg(feature = "fault-injection")]
        let faults = Arc::<crate::fault::LaneFaults>::default();
        let env = Env {
            started,
            gate: Arc::clone(&engine.admission),
            clock: Arc::clone(&engine.clock),
            events: Arc::clone(&engine.events),
            privacy: Arc::clone(&engine.privacy),
            lists: Arc::clone(&engine.lists),
            logs: engine.log.is_some(),
            share: config.cpu,
            finishing: Arc::new(AtomicBool::new(false)),
            #[cfg(feature = "fault-injection")]
            faults: Arc::clone(&faults),
        };
        let forwarder = config.shadow_pool.as_ref();
        let context = Context {
            gate: Arc::clone(&engine.admission),
            clock: Arc::clone(&engine.clock),
            forwarder: forwarder.map(|pool| Arc::new(Forwarder::new(pool, &config.server))),
        };
        Observers {
            active: ArcSwap::from_pointee(ObserveLanes::none(engine.checkpoints.iter().count())),
            supervisor: ObserverSupervisor::new(Arc::clone(engine), env),
            context: Arc::new(context),
            queue: config.queue,
            is_pool: config.is_pool,
            engine: Arc::clone(engine),
            #[cfg(feature = "fault-injection")]
            faults,
        }
    }

    /// The active lanes.
    #[must_use]
    pub fn active(&self) -> Arc<ObserveLanes> {
        self.active.load_full()
    }

    /// Checks and compiles the observe lanes of a table. `answering` are the answer lanes of the same table.
    ///
    /// # Errors
    /// [`SwapError`] names the lane, the rule and the remedy.
    pub fn compile(&self, table: &LaneTable, answering: &ActiveLanes) -> Result<ObserveLanes, SwapError> {
        let place = Place {
            checkpoints: &self.engine.checkpoints,
            store: &self.engine.bundles,
            queue: self.queue,
            has_pool: self.context.forwarder.is_some(),
            is_pool: self.is_pool,
        };
        ObserveLanes::compile(table, &place, &self.active.load(), answering)
    }

    /// Starts the threads of the lanes that have none yet.
    ///
    /// # Errors
    /// Fails if a thread cannot be started; those that were started are ended.
    pub fn start(&self, lanes: &ObserveLanes) -> Result<(), SwapError> {
        self.supervisor.start(lanes.all()).map_err(|(lane, error)| SwapError::Lane {
            checkpoint: lane.checkpoint.clone(),
            lane: lane.table.name.clone(),
            reason: format!("its thread cannot be started: {error}; check the limit on threads"),
        })
    }

    /// Returns the sink for a bundle's answers at a checkpoint; `None` if no lane observes there.
    #[must_use]
    pub fn sink(
        &self,
        lanes: &ObserveLanes,
        checkpoint: usize,
        loaded: &Loaded,
    ) -> Option<Arc<dyn AnswerSink>> {
        let subscription = self.subscribe(lanes, checkpoint, loaded.bundle.schema())?;
        Some(Arc::new(subscription))
    }

    /// Returns a checkpoint's lanes, compiled for rows of a schema; `None` if no lane observes there.
    #[must_use]
    pub fn subscribe(
        &self,
        lanes: &ObserveLanes,
        checkpoint: usize,
        schema: &Schema,
    ) -> Option<Subscription> {
        let lanes = lanes.of(checkpoint);
        (!lanes.is_empty()).then(|| Subscription::compile(&self.context, lanes, schema))
    }

    /// Activates lanes, whose sinks the engine already has, and ends the lanes that are not among them.
    pub fn publish(&self, lanes: ObserveLanes) {
        let lanes = Arc::new(lanes);
        let before = self.active.swap(Arc::clone(&lanes));
        for gone in before.all().filter(|lane| !lanes.all().any(|kept| Arc::ptr_eq(lane, kept))) {
            gone.close();
        }
        self.engine.bundles.retire(before);
    }

    /// Supervises the lanes' threads on this thread, until [`Observers::finish`].
    pub fn supervise(&self) {
        self.supervisor.run();
    }

    /// Starts the thread that sends to the shadow pool, if there is one. The thread ends when `stop` becomes true.
    ///
    /// # Errors
    /// Fails if the thread cannot be started.
    pub fn forward(&self, stop: watch::Receiver<bool>) -> std::io::Result<Option<JoinHandle<()>>> {
        match &self.context.forwarder {
            Some(forwarder) => forwarder.start(Arc::clone(&self.engine.events), stop),
            None => Ok(None),
        }
    }

    /// Ends all lanes within about this time. Call it after the server has answered the last request.
    pub fn finish(&self, within: Duration) {
        self.supervisor.finish(within);
    }

    /// The counters of every active lane.
    #[must_use]
    pub fn status(&self) -> Vec<ObserverStatus> {
        self.active.load().all().map(|lane| lane.status()).collect()
    }

    /// The state of the connection to the shadow pool, if there is one.
    #[must_use]
    pub fn pool_status(&self) -> Option<PoolStatus> {
        self.context.forwarder.as_ref().map(|forwarder| forwarder.status())
    }

    /// The injected faults of lanes.
    #[cfg(feature = "fault-injection")]
    #[must_use]
    pub fn faults(&self) -> &crate::fault::LaneFaults {
        &self.faults
    }
}
