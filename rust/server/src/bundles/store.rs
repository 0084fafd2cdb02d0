//! The bundles in memory, ready to answer.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use scorer_admission::{Breaker, BreakerSettings};
use scorer_core::bundle::{Bundle, Digest, GoldenRow, Kind as BundleKind};
use scorer_os::sched::lower_priority;
use serde::Serialize;
use serde_json::json;

use super::journey::{Journey, Journeys, LoadFor, Stages, shown};
use super::memory::{self, Budget};
use super::reaper::Reaper;
use super::warm::{Subject, WarmUp, WarmUpReport, warm_up};
use crate::bundle_dir;
use crate::config::Kind;
use crate::error::LoadError;
use crate::events::{Events, Level};
use crate::observe::Shape;

/// The thread that reads bundles in, as debuggers and events show it.
pub(crate) const LOADER: &str = "scorer-loader";
/// Up to this share of the promise the evaluation is not what an answer takes, and a slower bundle is let in
/// whatever the live one takes: a hundredth.
const NEGLIGIBLE: f64 = 0.01;

/// One loaded bundle with what answering needs ready-made.
pub(crate) struct Loaded {
    pub(crate) bundle: Bundle,
    pub(crate) digest: Digest,
    /// `sha256:<hex>`, as it goes into every reply.
    pub(crate) digest_text: Arc<str>,
    pub(crate) kind: Kind,
    /// Outlives the bundle where a remembered answer refers to it.
    pub(crate) actions: Arc<[ActionInfo]>,
    /// What its rows and masks mean to those who observe what it answers; made when the first one does.
    pub(crate) shape: OnceLock<Arc<Shape>>,
    /// Of the score bands, ascending.
    pub(crate) labels: Box<[Arc<str>]>,
    /// Tells the scratch of one load from that of another.
    pub(crate) serial: u64,
    pub(crate) bytes: u64,
    /// Those of them that are of forests of bundles that were in memory before: they are there once.
    pub(crate) shared_bytes: u64,
    pub(crate) load_ms: f64,
    pub(crate) stages: Stages,
    /// How fast one evaluation is on this machine: what admission starts from.
    pub(crate) warmup: WarmUp,
    pub(crate) decisions: AtomicU64,
    /// Takes it out of service when it keeps failing.
    pub(crate) breaker: Breaker,
    /// It has been in force: without that it may be waiting for the swap that it was loaded for.
    was_live: AtomicBool,
    /// The next answer is the first since a swap, and closes these.
    awaited: AtomicBool,
    journeys: Mutex<Vec<Journey>>,
    wanted: Mutex<Option<Wanted>>,
    /// What to replay when a candidate is measured beside it.
    rows: Box<[GoldenRow]>,
    known: Arc<Journeys>,
    events: Arc<Events>,
}

/// What a bundle was loaded for; the swap that follows takes it.
struct Wanted {
    what: LoadFor,
    began_us: i64,
    stages: Stages,
}

/// One bundle to be read in.
pub(crate) struct Task<'a> {
    pub(crate) path: &'a Path,
    /// The digest it must have.
    pub(crate) expected: Digest,
    pub(crate) wanted: &'a LoadFor,
    pub(crate) live: Option<&'a Live>,
    /// There are requests that must not wait for it.
    pub(crate) gently: bool,
}

/// What a reply says about an action.
#[derive(Debug)]
pub(crate) struct ActionInfo {
    pub(crate) id: String,
    pub(crate) factors: HashMap<String, String>,
}

/// What loading a bundle found.
#[derive(Clone, Debug, Serialize)]
pub struct LoadReport {
    /// `sha256:<hex>`.
    pub digest: String,
    /// The bundle's name.
    pub name: String,
    /// `score` or `action`.
    pub kind: &'static str,
    /// Time to read, verify, score the golden cases and warm up, milliseconds.
    pub load_ms: f64,
    /// The same, step by step.
    pub stages: Stages,
    /// How fast it is.
    pub warm_up: WarmUpReport,
    /// Bytes of its files.
    pub bytes: u64,
    /// Those of them that are of forests of bundles that were in memory already; nothing of them was parsed again.
    pub shared_bytes: u64,
    /// It was in memory already; nothing was done.
    pub already_loaded: bool,
}

/// What a candidate has to be a match for.
pub(crate) struct Live {
    /// The bundle that answers most of the checkpoint's traffic now.
    pub(crate) loaded: Option<Arc<Loaded>>,
    /// The checkpoint's promise, milliseconds.
    pub(crate) p99_ms: f64,
    /// How much slower than the live bundle it may be; infinite if that does not matter.
    pub(crate) max_ratio: f64,
}

/// Every loaded bundle by digest.
pub(crate) struct Store {
    loaded: Mutex<HashMap<Digest, Arc<Loaded>>>,
    /// One load at a time: two would take twice the memory and measure each other.
    turn: Mutex<()>,
    next_serial: AtomicU64,
    budget: Option<Budget>,
    pub(crate) journeys: Arc<Journeys>,
}

// === impl Store ===

impl Store {
    pub(crate) fn new(budget: Option<Budget>) -> Store {
        Store {
            loaded: Mutex::default(),
            turn: Mutex::default(),
            next_serial: AtomicU64::new(0),
            budget,
            journeys: Arc::default(),
        }
    }

    /// Reads, verifies, warms and measures a bundle on a thread of its own. It shares the forests of the bundles in
    /// memory. `make_room` lets go of bundles that are kept for a rollback only, and returns the bytes of their
    /// files.
    pub(crate) fn load(
        &self,
        task: &Task<'_>,
        make_room: &dyn Fn() -> u64,
        reaper: &Reaper,
        events: &Arc<Events>,
    ) -> Result<LoadReport, LoadError> {
        let &Task { path, expected, wanted, live, gently } = task;
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let began_us = events.now_us();
        if let Some(loaded) = self.get(&expected) {
            if let Some(live) = live.filter(|_| !loaded.was_live()) {
                // It came in to observe, and nobody compared it.
                let result = on_own_thread(gently, || live.compare(path, &loaded.bundle, &loaded.rows));
                reaper.retire(Arc::clone(&loaded));
                result??;
            }
            let wanted = Wanted { what: wanted.clone(), began_us, stages: Stages::default() };
            *lock(&loaded.wanted) = Some(wanted);
            return Ok(loaded.report(true));
        }
        let started = Instant::now();
        self.check_memory(path, make_room)?;
        // After making room: what was let go is no reason to keep its forests.
        let known = self.all();
        let measured = on_own_thread(gently, || {
            catch_unwind(AssertUnwindSafe(|| read(path, &expected, live, &known))).unwrap_or_else(|panic| {
                let id = events.defect("bundle load", panic.as_ref());
                Err(LoadError::Panic { path: path.to_owned(), id })
            })
        });
        // They may have been let go meanwhile; nobody but the reaper frees a bundle.
        for loaded in known {
            reaper.retire(loaded);
        }
        let Measured { bundle, rows, stages, warmup, shared_bytes } = measured??;
        let loaded = Arc::new(Loaded {
            digest: expected,
            digest_text: expected.to_string().into(),
            kind: kind(&bundle),
            actions: actions(&bundle),
            shape: OnceLock::new(),
            labels: bundle.labels().iter().map(|label| label.as_str().into()).collect(),
            serial: self.next_serial.fetch_add(1, Relaxed),
            bytes: bundle.file_bytes(),
            shared_bytes,
            load_ms: started.elapsed().as_secs_f64() * 1e3,
            stages,
            warmup,
            decisions: AtomicU64::new(0),
            breaker: Breaker::new(BreakerSettings::default()),
            was_live: AtomicBool::new(false),
            awaited: AtomicBool::new(false),
            journeys: Mutex::default(),
            wanted: Mutex::new(Some(Wanted { what: wanted.clone(), began_us, stages })),
            rows: rows.into(),
            known: Arc::clone(&self.journeys),
            events: Arc::clone(events),
            bundle,
        });
        let report = loaded.report(false);
        self.lock().insert(expected, loaded);
        Ok(report)
    }

    fn check_memory(&self, path: &Path, make_room: &dyn Fn() -> u64) -> Result<(), LoadError> {
        let (Some(budget), Some(resident)) = (&self.budget, memory::resident()) else { return Ok(()) };
        let files =
            bundle_dir::files(path).map_err(|source| LoadError::Bundle { path: path.to_owned(), source })?;
        let needed = || {
            let loaded = self.all();
            memory::needed(&files, loaded.iter().map(|loaded| &loaded.bundle.manifest().files))
        };
        if resident.saturating_add(needed()) <= budget.bytes {
            return Ok(());
        }
        // What is let go is counted at its files' size: less than it will give back.
        let resident = resident.saturating_sub(make_room());
        let needed = needed();
        if resident.saturating_add(needed) <= budget.bytes {
            return Ok(());
        }
        Err(LoadError::Memory {
            path: path.to_owned(),
            needed_mib: needed.div_ceil(1 << 20),
            resident_mib: resident.div_ceil(1 << 20),
            budget_mib: budget.bytes >> 20,
            source_of_budget: budget.source.clone(),
        })
    }

    pub(crate) fn get(&self, digest: &Digest) -> Option<Arc<Loaded>> {
        self.lock().get(digest).cloned()
    }

    pub(crate) fn remove(&self, digest: &Digest) -> Option<Arc<Loaded>> {
        self.lock().remove(digest)
    }

    pub(crate) fn all(&self) -> Vec<Arc<Loaded>> {
        let mut all: Vec<_> = self.lock().values().cloned().collect();
        all.sort_by_key(|loaded| loaded.serial);
        all
    }

    /// Memory that bundles may bring the process to, bytes; 0 where that is not known.
    pub(crate) fn budget_bytes(&self) -> u64 {
        self.budget.as_ref().map_or(0, |budget| budget.bytes)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Digest, Arc<Loaded>>> {
        lock(&self.loaded)
    }
}

/// Runs `work` on a thread of its own and waits for it.
fn on_own_thread<T: Send>(gently: bool, work: impl FnOnce() -> T + Send) -> Result<T, LoadError> {
    std::thread::scope(|scope| {
        let work = move || {
            if gently {
                lower_priority();
            }
            work()
        };
        let thread = std::thread::Builder::new()
            .name(LOADER.to_owned())
            .spawn_scoped(scope, work)
            .map_err(LoadError::Thread)?;
        // `work` catches its panics.
        thread.join().map_err(|_| LoadError::Thread(std::io::Error::other("it panicked")))
    })
}

struct Measured {
    bundle: Bundle,
    rows: Vec<GoldenRow>,
    stages: Stages,
    warmup: WarmUp,
    shared_bytes: u64,
}

fn read(
    path: &Path,
    expected: &Digest,
    live: Option<&Live>,
    known: &[Arc<Loaded>],
) -> Result<Measured, LoadError> {
    let known: Vec<&Bundle> = known.iter().map(|loaded| &loaded.bundle).collect();
    let (bundle, rows, mut stages) = bundle_dir::load_timed(path, Some(expected), &known)
        .map_err(|source| LoadError::Bundle { path: path.to_owned(), source })?;
    let began = Instant::now();
    let warmup = match live {
        Some(live) => live.compare(path, &bundle, &rows)?,
        None => warm_up(Subject::new(&bundle, &rows), None).0,
    };
    stages.warm_up_ms = began.elapsed().as_secs_f64() * 1e3;
    Ok(Measured { shared_bytes: bundle.shared_bytes(&known), bundle, rows, stages, warmup })
}

// === impl Live ===

impl Live {
    /// Measures a candidate in turns with the live bundle.
    fn compare(&self, path: &Path, bundle: &Bundle, rows: &[GoldenRow]) -> Result<WarmUp, LoadError> {
        let beside = self.loaded.as_deref().map(|loaded| Subject::new(&loaded.bundle, &loaded.rows));
        let (warmup, of_live) = warm_up(Subject::new(bundle, rows), beside);
        self.check(path, &warmup, of_live.as_ref())?;
        Ok(warmup)
    }

    /// Whether a candidate that takes so long can keep the checkpoint's promise.
    fn check(&self, path: &Path, candidate: &WarmUp, live: Option<&WarmUp>) -> Result<(), LoadError> {
        let millis = |it: &WarmUp| it.p99.as_secs_f64() * 1e3;
        let took = millis(candidate);
        if let Some(live) = live.map(millis)
            && took > live * self.max_ratio
            && took > self.p99_ms * NEGLIGIBLE
        {
            return Err(LoadError::Slower {
                path: path.to_owned(),
                p99_us: took * 1e3,
                live_us: live * 1e3,
                ratio: took / live,
                max_ratio: self.max_ratio,
            });
        }
        if took > self.p99_ms {
            return Err(LoadError::TooSlow {
                path: path.to_owned(),
                p99_us: took * 1e3,
                promise_ms: self.p99_ms,
            });
        }
        Ok(())
    }
}

fn kind(bundle: &Bundle) -> Kind {
    match bundle.kind() {
        BundleKind::Score => Kind::Score,
        BundleKind::Action => Kind::Action,
    }
}

fn actions(bundle: &Bundle) -> Arc<[ActionInfo]> {
    let info = |action: &scorer_core::policy::Action| ActionInfo {
        id: action.id.clone(),
        factors: action.factors.iter().map(|(key, value)| (key.clone(), value.clone())).collect(),
    };
    bundle.catalogue().iter().map(info).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl Loaded ===

impl Loaded {
    pub(crate) fn report(&self, already_loaded: bool) -> LoadReport {
        LoadReport {
            digest: self.digest_text.to_string(),
            name: self.bundle.name().to_owned(),
            kind: self.kind.as_str(),
            load_ms: self.load_ms,
            stages: self.stages,
            warm_up: self.warmup.report(),
            bytes: self.bytes,
            shared_bytes: self.shared_bytes,
            already_loaded,
        }
    }

    /// It made `rows` decisions. Once after a swap this also tells how long the whole way took; any other time
    /// it is one addition.
    pub(crate) fn answered(&self, rows: u64) {
        self.decisions.fetch_add(rows, Relaxed);
        if self.awaited.load(Relaxed) {
            self.first_answer();
        }
    }

    #[cold]
    fn first_answer(&self) {
        if !self.awaited.swap(false, AcqRel) {
            return;
        }
        let now = self.events.now_us();
        for journey in std::mem::take(&mut *lock(&self.journeys)) {
            let stages = journey.finish(now);
            let mut fields = json!({
                "checkpoint": journey.checkpoint,
                "bundle": &*self.digest_text,
                "lane_table": journey.lane_table,
            });
            if let (Some(fields), serde_json::Value::Object(stages)) =
                (fields.as_object_mut(), shown(&stages))
            {
                fields.extend(stages);
            }
            self.known.add(&journey.checkpoint, stages);
            self.events.push(Level::Info, "first_answer", fields);
        }
    }

    /// A table that names it for `checkpoint`, where it did not answer before, is about to be in force.
    pub(crate) fn expect(&self, checkpoint: &str, lane_table: u64) {
        self.was_live.store(true, Relaxed);
        let swapped_us = self.events.now_us();
        let loaded_for_it =
            |wanted: &mut Wanted| wanted.what.checkpoint.as_deref().is_none_or(|it| it == checkpoint);
        // Without a load before it, the way began with the swap.
        let wanted = lock(&self.wanted).take_if(loaded_for_it).unwrap_or_else(|| Wanted {
            what: LoadFor::default(),
            began_us: swapped_us,
            stages: Stages::default(),
        });
        let Wanted { what: wanted, began_us, stages } = wanted;
        let journey =
            Journey { checkpoint: checkpoint.to_owned(), lane_table, wanted, stages, began_us, swapped_us };
        let mut journeys = lock(&self.journeys);
        journeys.retain(|it| it.checkpoint != checkpoint);
        journeys.push(journey);
        self.awaited.store(true, Relaxed);
    }

    /// Whether it has answered at a checkpoint.
    pub(crate) fn was_live(&self) -> bool {
        self.was_live.load(Relaxed)
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let thread = std::thread::current();
        let fields = json!({"bundle": &*self.digest_text, "thread": thread.name().unwrap_or("unnamed")});
        self.events.push(Level::Info, "bundle_freed", fields);
    }
}
