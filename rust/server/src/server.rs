//! The server's life: start, load, swap, drain.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use scorer_core::bundle::{Bundle, Digest};
use scorer_log::Env;
use serde_json::json;

use crate::answer::admit::Door;
use crate::answer::features::FromRequest;
use crate::bundles::{Budget, Live, LoadFor, LoadReport, Reaper, Store, Task};
use crate::condition::Status;
use crate::config::ServerConfig;
use crate::decisions::Decisions;
use crate::error::{LoadError, ServerError, SwapError, UnloadError};
use crate::events::{Events, Level};
use crate::health::Health;
use crate::lanes::{LaneTable, LanesInForce};
use crate::metrics::Metrics;
use crate::observe::{Keeper, KeeperEnv};
use crate::pool::{Pool, Watchdog};
use crate::replay::Replay;
use crate::run::{Addresses, Listeners, Running};
use crate::shadow::{Forwarder, Remembered, Senders};
use crate::state::{self, Shared};

/// Answers remembered per kind, the newest.
const REMEMBERED: usize = 65_536;
/// Bytes of probabilities remembered with them; a catalogue of 256 actions takes 1 KiB a time.
const REMEMBERED_BYTES: usize = 32 << 20;
/// How long a dropped server waits for what is in flight.
const DROP_WITHIN: Duration = Duration::from_millis(500);
/// A running data plane. Its methods may be called from any thread and never wait for requests.
pub struct Server {
    shared: Arc<Shared>,
    addresses: Addresses,
    /// One swap or unload at a time.
    changes: Mutex<()>,
    /// The process whose threads serve.
    owner: u32,
    running: Mutex<Option<Running>>,
}

// === impl Server ===

impl Server {
    /// Binds, opens the log and starts the threads. It listens, and answers NOT_SERVING, on return.
    ///
    /// # Errors
    /// [`ServerError`]; nothing is left running then.
    pub fn start(config: ServerConfig) -> Result<Server, ServerError> {
        Server::start_in(config, Env::real())
    }

    /// The same, with the file system, clock and randomness of the log given.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start_in(config: ServerConfig, env: Env) -> Result<Server, ServerError> {
        let started = Instant::now();
        config.check()?;
        let listeners = Listeners::bind(&config)?;
        let addresses = listeners.addresses()?;
        let shared = Arc::new(shared(config, env, &addresses, started)?);
        let running = Running::start(&shared, listeners)?;
        let fields = json!({"addresses": &addresses, "version": env!("CARGO_PKG_VERSION")});
        shared.events.push(Level::Info, "started", fields);
        Ok(Server {
            shared,
            addresses,
            changes: Mutex::default(),
            owner: std::process::id(),
            running: Mutex::new(Some(running)),
        })
    }

    /// Reads a bundle from its directory, verifies it completely, scores its golden cases, warms it up and
    /// keeps it ready. A bundle of that digest in memory already is left as it is.
    ///
    /// # Errors
    /// [`LoadError`] says what is wrong with the bundle; what is served is not touched.
    pub fn load(&self, path: &Path, digest: &str) -> Result<LoadReport, LoadError> {
        self.load_for(path, digest, &LoadFor::default())
    }

    /// The same for a checkpoint: the candidate is measured in turns with the checkpoint's live bundle, and one
    /// that is too slow is refused. One load runs at a time, on a thread that yields to requests.
    ///
    /// # Errors
    /// As [`Server::load`].
    pub fn load_for(&self, path: &Path, digest: &str, wanted: &LoadFor) -> Result<LoadReport, LoadError> {
        let expected: Digest = digest.parse().map_err(|_| LoadError::Digest { digest: digest.to_owned() })?;
        let metrics = &self.shared.metrics;
        if self.is_draining() {
            return Err(LoadError::Stopped);
        }
        let live =
            wanted.checkpoint.as_deref().map(|name| self.live(name, wanted.allow_slower)).transpose()?;
        // Before anything is served there is nobody to be gentle to.
        let gently = self.shared.lanes.load().all().next().is_some();
        let task = Task { path, expected, wanted, live: live.as_ref(), gently };
        let Shared { bundles, reaper, events, .. } = &*self.shared;
        let result = bundles.load(&task, &|| self.make_room(), reaper, events);
        if let Some(loaded) = live.and_then(|live| live.loaded) {
            // It may have been swapped out meanwhile; nobody but the reaper frees a bundle.
            self.shared.reaper.retire(loaded);
        }
        match &result {
            Ok(report) if report.already_loaded => {}
            Ok(report) => {
                metrics.loads.fetch_add(1, Relaxed);
                self.shared.events.push(Level::Info, "bundle_loaded", json!({"report": report}));
            }
            Err(error) => {
                metrics.refused(error.reason());
                let fields =
                    json!({"bundle": digest, "reason": error.reason().as_str(), "error": error.to_string()});
                self.shared.events.push(Level::Error, "bundle_refused", fields);
            }
        }
        result
    }

    /// What a candidate for a checkpoint is compared with.
    fn live(&self, checkpoint: &str, allow_slower: bool) -> Result<Live, LoadError> {
        let unknown = || LoadError::UnknownCheckpoint { checkpoint: checkpoint.to_owned() };
        let index = self.shared.checkpoint(checkpoint).ok_or_else(unknown)?.index;
        let config = self.shared.config.checkpoints.get(checkpoint).ok_or_else(unknown)?;
        Ok(Live {
            loaded: self.shared.lanes.load().main(index).cloned(),
            p99_ms: config.p99_ms,
            max_ratio: if allow_slower { f64::INFINITY } else { config.warmup_max_ratio },
        })
    }

    /// Lets go of the bundles that are kept for a rollback only; returns the bytes of their files. One that shares
    /// most of them with a live bundle would give back next to nothing, and stays.
    fn make_room(&self) -> u64 {
        let _turn = lock(&self.changes);
        let table = self.shared.lanes.load_full();
        let observe = || table.observers().filter_map(|lane| lane.loaded());
        let in_use = || table.all().map(|(_, lane)| &lane.loaded).chain(observe());
        let live: HashSet<Digest> = in_use().map(|loaded| loaded.digest).collect();
        let mut counted: Vec<&Bundle> = in_use().map(|loaded| &loaded.bundle).collect();
        let idle: Vec<_> = self
            .shared
            .bundles
            .all()
            .into_iter()
            .filter(|loaded| loaded.was_live() && !live.contains(&loaded.digest))
            .filter(|loaded| loaded.bundle.shared_bytes(&counted) <= loaded.bytes / 2)
            .collect();
        if idle.is_empty() {
            return 0;
        }
        let stays = |digest: &Digest| idle.iter().all(|loaded| loaded.digest != *digest);
        self.shared.put_in_force(table.keeping_previous(stays));
        let mut bytes = 0;
        for loaded in &idle {
            // A forest that several of them share is given back once.
            bytes += loaded.bytes - loaded.bundle.shared_bytes(&counted);
            counted.push(&loaded.bundle);
        }
        for loaded in idle {
            let fields = json!({"bundle": &*loaded.digest_text, "why": "memory for another bundle"});
            self.shared.events.push(Level::Warning, "previous_bundle_let_go", fields);
            self.let_go(&loaded.digest);
            self.shared.reaper.retire(loaded);
        }
        self.shared.reaper.retire(table);
        bytes
    }

    fn let_go(&self, digest: &Digest) {
        if let Some(loaded) = self.shared.bundles.remove(digest) {
            // Remembered answers may hold the action names longer than anything holds the bundle.
            self.shared.reaper.retire(Arc::new(Arc::clone(&loaded.actions)));
            self.shared.reaper.retire(loaded);
        }
    }

    /// Puts a lane table in force: every request that starts after this returns is answered by it. Doing it
    /// again with the table in force does nothing.
    ///
    /// # Errors
    /// [`SwapError`]; the table in force stays.
    pub fn swap(&self, table: &LaneTable) -> Result<(), SwapError> {
        let _turn = lock(&self.changes);
        let result = self.swap_in_turn(table);
        match &result {
            Ok(()) => self.shared.events.push(Level::Info, "lanes_swapped", json!({"table": table})),
            Err(error) => {
                self.shared.metrics.swaps_refused.fetch_add(1, Relaxed);
                let fields = json!({"version": table.version, "error": error.to_string()});
                self.shared.events.push(Level::Error, "lanes_refused", fields);
            }
        }
        result
    }

    fn swap_in_turn(&self, table: &LaneTable) -> Result<(), SwapError> {
        let shared = &self.shared;
        if self.is_draining() {
            return Err(SwapError::Stopped);
        }
        let current = shared.lanes.load_full();
        let lanes = LanesInForce::compile(table, &shared.config, &shared.bundles, &current)?;
        if table.version <= current.version {
            if table.version == current.version && lanes.same_as(&current) {
                // The bundles before may have come to memory, or gone from it, since.
                if !lanes.same_previous(&current) {
                    shared.reaper.retire(current);
                    shared.put_in_force(lanes);
                }
                return Ok(());
            }
            return Err(SwapError::Version { version: table.version, current: current.version });
        }
        shared.keeper.start(lanes.observers()).map_err(|(lane, error)| SwapError::Lane {
            checkpoint: lane.checkpoint.clone(),
            lane: lane.table.name.clone(),
            reason: format!("its thread cannot be started: {error}; check the limit on threads"),
        })?;
        if let Some(log) = &shared.log {
            let text = serde_json::to_string(table).unwrap_or_default();
            if let Err(error) = log.note_table(table.version, shared.clock.unix_us(), text) {
                // Every decision names its bundle and lane itself.
                let fields = json!({"version": table.version, "error": error.to_string()});
                shared.events.push(Level::Warning, "lanes_not_logged", fields);
            }
        }
        for (checkpoint, lane) in lanes.all() {
            if lane.share > 0.0 && !current.has(checkpoint, &lane.loaded.digest) {
                lane.loaded.expect(&shared.checkpoints[checkpoint].name, table.version);
            }
        }
        shared.reaper.retire(current);
        shared.put_in_force(lanes);
        shared.metrics.swaps.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Lets go of a bundle; one that is not in memory is gone already. Its memory is freed by the reaper
    /// once the last request that uses it has ended.
    ///
    /// # Errors
    /// The bundle answers or observes at a checkpoint.
    pub fn unload(&self, digest: &str) -> Result<(), UnloadError> {
        let parsed: Digest = digest.parse().map_err(|_| UnloadError::Digest { digest: digest.to_owned() })?;
        let _turn = lock(&self.changes);
        let table = self.shared.lanes.load_full();
        if let Some((checkpoint, _)) = table.all().find(|(_, lane)| lane.loaded.digest == parsed) {
            let checkpoint = self.shared.checkpoints[checkpoint].name.clone();
            return Err(UnloadError::InUse { digest: digest.to_owned(), checkpoint });
        }
        if let Some(lane) = table.observers().find(|lane| lane.loaded().is_some_and(|it| it.digest == parsed))
        {
            let (checkpoint, lane) = (lane.checkpoint.clone(), lane.table.name.clone());
            return Err(UnloadError::Observes { digest: digest.to_owned(), checkpoint, lane });
        }
        if self
            .shared
            .checkpoints
            .iter()
            .filter_map(|it| table.previous(it.index))
            .any(|it| it.loaded.digest == parsed)
        {
            self.shared.put_in_force(table.keeping_previous(|digest| *digest != parsed));
        }
        self.shared.reaper.retire(table);
        self.let_go(&parsed);
        Ok(())
    }

    /// The control plane looked at the registry: whether it could be read, and when it could last, milliseconds
    /// since the Unix epoch. For the metrics alone.
    pub fn note_registry(&self, reachable: bool, last_seen_ms: u64) {
        self.shared.metrics.registry_reachable.store(reachable, Relaxed);
        self.shared.metrics.registry_seen_ms.store(last_seen_ms, Relaxed);
    }

    /// Where it listens.
    #[must_use]
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Its condition now.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::of(&self.shared)
    }

    /// What happened since the last call, as JSON lines.
    #[must_use]
    pub fn events(&self) -> Vec<String> {
        // Whoever collects events does so often: as good a clock as any for the error budgets' windows.
        self.shared.tick();
        self.shared.events.take()
    }

    /// Stops: NOT_SERVING, no new connections, GOAWAY; waits up to `within` for what is in flight; writes
    /// and seals the log; ends every thread. Doing it again does nothing.
    pub fn drain(&self, within: Duration) {
        // Held throughout: whoever calls second returns when it is done.
        let mut running = lock(&self.running);
        let Some(running) = running.take() else { return };
        let began = Instant::now();
        let shared = &self.shared;
        shared.draining.store(true, Release);
        shared.health.drain();
        shared.events.push(Level::Info, "draining", json!({"within_seconds": within.as_secs_f64()}));
        let complete = running.stop(within);
        let sealed = shared.log.as_ref().map_or(Ok(()), Decisions::seal);
        shared.reaper.stop();
        let level = if complete && sealed.is_ok() { Level::Info } else { Level::Warning };
        let fields = json!({
            "complete": complete,
            "inflight": shared.admission.inflight(),
            "log_error": sealed.err().map(|error| error.to_string()),
            "seconds": began.elapsed().as_secs_f64(),
        });
        shared.events.push(level, "stopped", fields);
    }

    /// Puts a fault into the request of this id.
    #[cfg(feature = "fault-injection")]
    pub fn inject(&self, id: &str, fault: crate::Fault) {
        self.shared.faults.set(id, fault);
    }

    /// Puts a fault into every evaluation of an observe lane, in force now or later; `None` takes it out.
    #[cfg(feature = "fault-injection")]
    pub fn inject_lane(&self, checkpoint: &str, lane: &str, fault: Option<crate::LaneFault>) {
        self.shared.faults.lanes.set(checkpoint, lane, fault);
    }

    /// Lets admission believe that one row takes this long at a checkpoint.
    #[cfg(feature = "fault-injection")]
    pub fn assume_cost(&self, checkpoint: &str, row: Duration) {
        if let Some(checkpoint) = self.shared.checkpoint(checkpoint) {
            for lane in self.shared.lanes.load().of(checkpoint.index) {
                self.shared.admission.assume(checkpoint.index, &lane.loaded, row);
            }
        }
    }

    /// Makes every evaluation slower from now on.
    #[cfg(feature = "fault-injection")]
    pub fn slow_down(&self, slowness: crate::Slowness) {
        self.shared.faults.slow_down(slowness);
    }

    fn is_draining(&self) -> bool {
        self.shared.draining.load(Acquire)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::process::id() == self.owner {
            self.drain(DROP_WITHIN);
        } else {
            // A forked child: the threads and the socket's file are the parent's.
            std::mem::forget(lock(&self.running).take());
        }
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

fn shared(
    config: ServerConfig,
    env: Env,
    addresses: &Addresses,
    started: Instant,
) -> Result<Shared, ServerError> {
    let clock = Arc::clone(&env.clock);
    let events = Arc::new(Events::new(Arc::clone(&clock)));
    let log = config.log.as_ref().map(|settings| Decisions::open(settings, env, &events)).transpose()?;
    let (checkpoints, by_name) = state::checkpoints(&config);
    let admission = Door::new(&config, started)?;
    #[cfg(feature = "fault-injection")]
    let faults = crate::fault::Faults::default();
    let env = KeeperEnv {
        started,
        door: Arc::clone(&admission),
        clock: Arc::clone(&clock),
        events: Arc::clone(&events),
        logs: log.is_some(),
        share: config.observe_cpu,
        finishing: Arc::default(),
        #[cfg(feature = "fault-injection")]
        faults: Arc::clone(&faults.lanes),
    };
    Ok(Shared {
        lanes: ArcSwap::from_pointee(LanesInForce::none(checkpoints.len())),
        bundles: Store::new(Budget::find(config.memory_budget_bytes)),
        reaper: Reaper::start()
            .map_err(|source| ServerError::Start { what: "the reaper's thread", source })?,
        log,
        features: Box::new(FromRequest),
        admission,
        pool: Pool::default(),
        watchdog: Watchdog::default(),
        keeper: Keeper::new(env),
        scores: Replay::new(REMEMBERED, REMEMBERED_BYTES),
        selections: Replay::new(REMEMBERED, REMEMBERED_BYTES),
        health: Health::new(config.role, config.checkpoints.keys()),
        forwarder: config.shadow_pool.as_ref().map(|pool| Arc::new(Forwarder::new(pool, &addresses.name()))),
        senders: Senders::default(),
        schemas: Remembered::default(),
        metrics: Metrics::new(&config),
        events,
        started,
        started_at_us: clock.unix_us(),
        clock,
        ready_after_us: AtomicU64::new(0),
        draining: AtomicBool::new(false),
        checkpoints,
        by_name,
        config,
        #[cfg(feature = "fault-injection")]
        faults,
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
