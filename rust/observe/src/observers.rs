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

/// How a server observes.
pub struct ObserveConfig {
    /// Share of one core that a lane's thread may use, above 0, to 1.
    pub cpu: f64,
    /// Requests that may wait for a lane.
    pub queue: usize,
    /// Where lanes of the shadow pool send to.
    pub shadow_pool: Option<ShadowPoolConfig>,
    /// This server is a shadow pool.
    pub is_pool: bool,
    /// What this server is called in the pool's counters, unless the configuration names it.
    pub server: String,
}

/// The active observe lanes, their threads, and the way to the shadow pool.
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
    /// No lanes yet; `started` is the origin of the server's time.
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

    /// Checks the observe lanes of a table; `answering` are the lanes that answer by it.
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

    /// Starts the threads of those lanes that have none yet.
    ///
    /// # Errors
    /// A thread could not be started; those that were are ended.
    pub fn start(&self, lanes: &ObserveLanes) -> Result<(), SwapError> {
        self.supervisor.start(lanes.all()).map_err(|(lane, error)| SwapError::Lane {
            checkpoint: lane.checkpoint.clone(),
            lane: lane.table.name.clone(),
            reason: format!("its thread cannot be started: {error}; check the limit on threads"),
        })
    }

    /// The sink for what a bundle answers at a checkpoint; `None` where no lane observes.
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

    /// A checkpoint's lanes for rows of a schema; `None` where no lane observes.
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

    /// Activates lanes, whose sinks the engine has by now, and ends those that are not among them.
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

    /// Starts the thread that sends to the shadow pool, if there is one; it ends when `stop` holds true.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn forward(&self, stop: watch::Receiver<bool>) -> std::io::Result<Option<JoinHandle<()>>> {
        match &self.context.forwarder {
            Some(forwarder) => forwarder.start(Arc::clone(&self.engine.events), stop),
            None => Ok(None),
        }
    }

    /// Ends all lanes within about this time, once no request is answered any more.
    pub fn finish(&self, within: Duration) {
        self.supervisor.finish(within);
    }

    /// What every active lane has counted.
    #[must_use]
    pub fn status(&self) -> Vec<ObserverStatus> {
        self.active.load().all().map(|lane| lane.status()).collect()
    }

    /// What was sent to the shadow pool, if there is one.
    #[must_use]
    pub fn pool_status(&self) -> Option<PoolStatus> {
        self.context.forwarder.as_ref().map(|forwarder| forwarder.status())
    }

    /// Faults of lanes.
    #[cfg(feature = "fault-injection")]
    #[must_use]
    pub fn faults(&self) -> &crate::fault::LaneFaults {
        &self.faults
    }
}
