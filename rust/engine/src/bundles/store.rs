//! The store of loaded bundles.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use scorer_admission::{Breaker, BreakerSettings};
use scorer_core::bundle::{Bundle, Digest, GoldenRow, Kind as BundleKind};
use scorer_core::schema::FeatureSpec;
use scorer_os::sched;
use scorer_signing::{Signed, Trust};
use serde::Serialize;

use super::memory::{self, Budget};
use super::reaper::Reaper;
use super::vetting::{self, Vetting};
use super::warm::{Subject, WarmUp, WarmUpReport, warm_up};
use crate::bundle_dir::{self, Stages};
use crate::config::Kind;
use crate::error::LoadError;
use crate::events::Events;
use crate::sensitive::{FeatureRules, Sensitive};

/// Name of the thread that loads bundles.
pub(crate) const LOADER: &str = "scorer-loader";
/// Up to this share of the SLA, the evaluation is a negligible part of an answer, and a bundle that is slower than the
/// live one is accepted.
const NEGLIGIBLE: f64 = 0.01;

/// A loaded bundle, with precomputed values for answers.
pub struct Loaded {
    /// The bundle.
    pub bundle: Bundle,
    /// Its digest.
    pub digest: Digest,
    /// The digest as `sha256:<hex>`, for replies.
    pub digest_text: Arc<str>,
    /// What it answers.
    pub kind: Kind,
    /// Its actions, in the order of the catalogue. A remembered answer may keep them longer than the bundle.
    pub actions: Arc<[ActionInfo]>,
    /// What its rows and masks mean.
    pub shape: Arc<Shape>,
    /// Labels of the score bands, ascending.
    pub labels: Box<[Arc<str>]>,
    /// Serial number of the load.
    pub serial: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// Those of them that are of forests which bundles in memory before it hold: they are there once.
    pub shared_bytes: u64,
    /// Time that loading took, milliseconds.
    pub load_ms: f64,
    /// The same by stage.
    pub stages: Stages,
    /// Time of one evaluation on this machine, which is the initial estimate of admission control.
    pub warmup: WarmUp,
    /// Decisions that it has made.
    pub decisions: AtomicU64,
    /// What its signature says; absent where none was needed.
    pub signed: Option<Signed>,
    /// Takes the bundle out of service after repeated failures.
    pub breaker: Breaker,
    /// It has been active; without that it may be waiting for the table that it was loaded for.
    was_live: AtomicBool,
    /// The next answer is the first since it became active.
    awaited: AtomicBool,
    /// What to replay when a candidate is measured beside it.
    rows: Box<[GoldenRow]>,
    listener: Arc<dyn BundleListener>,
}

/// Schema and actions that the rows and masks of a bundle refer to. It may outlive the bundle and contains no forest.
pub struct Shape {
    /// The schema's fingerprint.
    pub fingerprint: u64,
    /// The features of a row, in its order.
    pub features: Vec<FeatureSpec>,
    /// The actions of a mask, in its order.
    pub actions: Arc<[ActionInfo]>,
    /// The features whose values are not stored as they are.
    pub sensitive: Sensitive,
}

/// Receives lifecycle events of bundles.
pub trait BundleListener: Send + Sync {
    /// A bundle has given its first answer since it became active. Called by the thread that answers.
    fn first_answer(&self, _bundle: &Loaded) {}

    /// A bundle is freed.
    fn freed(&self, _bundle: &Loaded) {}
}

/// Ignores all events.
impl BundleListener for () {}

/// A request to load a bundle.
pub struct LoadRequest<'a> {
    /// Its directory.
    pub path: &'a Path,
    /// The digest it must have.
    pub expected: Digest,
    /// What its signature is checked against.
    pub vetting: &'a Vetting,
    /// What it is compared with.
    pub live: Option<&'a Live>,
    /// Requests are being answered, which must not wait for the load.
    pub low_priority: bool,
}

/// An action as replies describe it.
#[derive(Debug)]
pub struct ActionInfo {
    /// Its id.
    pub id: String,
    /// Its factors by name.
    pub factors: HashMap<String, String>,
}

/// Report on a loaded bundle.
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
    /// What its signature says; absent where none was needed.
    pub signed: Option<Signed>,
    /// Bytes of its files.
    pub bytes: u64,
    /// Those of them that are of forests of bundles that were in memory already; nothing of them was parsed again.
    pub shared_bytes: u64,
    /// It was in memory already; nothing was done.
    pub already_loaded: bool,
}

/// The comparison of a candidate with the live bundle.
pub struct Live {
    /// The bundle that answers most of the checkpoint's traffic now.
    pub loaded: Option<Arc<Loaded>>,
    /// The checkpoint's SLA, milliseconds.
    pub p99_ms: f64,
    /// How much slower than the live bundle it may be; infinite if that does not matter.
    pub max_ratio: f64,
}

/// Every loaded bundle by digest. Bundles and whatever holds them are freed by the store's reaper, on a thread of its
/// own.
pub struct Store {
    loaded: Mutex<HashMap<Digest, Arc<Loaded>>>,
    /// Serialises loads, because two at a time would use twice the memory and disturb each other's measurements.
    loading: Mutex<()>,
    next_serial: AtomicU64,
    budget: Option<Budget>,
    trust: Trust,
    features: FeatureRules,
    reaper: Reaper,
    listener: Arc<dyn BundleListener>,
}

// === impl Store ===

impl Store {
    /// An empty store that keeps to `memory_budget` bytes, or to the system's limit, and takes what `trust` accepts.
    /// `features` says which values of a row are sensitive.
    pub(crate) fn start(
        memory_budget: Option<u64>,
        trust: Trust,
        features: FeatureRules,
        listener: Arc<dyn BundleListener>,
    ) -> std::io::Result<Store> {
        Ok(Store {
            loaded: Mutex::default(),
            loading: Mutex::default(),
            next_serial: AtomicU64::new(0),
            budget: Budget::find(memory_budget),
            trust,
            features,
            reaper: Reaper::start()?,
            listener,
        })
    }

    /// Checks a bundle's signature; then reads, verifies, warms and measures the bundle on a thread of its own. It
    /// shares the forests of the bundles in memory. `make_room` lets go of bundles that are kept for a rollback only,
    /// and returns the bytes of their files.
    ///
    /// # Errors
    /// [`LoadError`]; the bundles in memory stay.
    pub fn load(
        &self,
        request: &LoadRequest<'_>,
        make_room: &dyn Fn() -> u64,
        events: &Events,
    ) -> Result<LoadReport, LoadError> {
        let &LoadRequest { path, expected, vetting, live, low_priority } = request;
        let _loading = lock(&self.loading);
        let signed = vetting::verify(&self.trust, path, &expected, vetting)?;
        if let Some(loaded) = self.get(&expected) {
            if let Some(live) = live.filter(|_| !loaded.was_live()) {
                // It was loaded to observe, and was not compared.
                on_own_thread(low_priority, || live.compare(path, &loaded.bundle, &loaded.rows))??;
            }
            return Ok(LoadReport { signed, ..loaded.report(true) });
        }
        let started = Instant::now();
        self.check_memory(path, make_room)?;
        // After making room: what was let go is no reason to keep its forests.
        let known = self.all();
        let Measured { bundle, rows, stages, warmup, shared_bytes } = on_own_thread(low_priority, || {
            catch_unwind(AssertUnwindSafe(|| read(path, &expected, live, &known))).unwrap_or_else(|panic| {
                let id = events.defect("bundle load", panic.as_ref());
                Err(LoadError::Panic { path: path.to_owned(), id })
            })
        })??;
        let actions = actions(&bundle);
        let shape = Shape {
            fingerprint: bundle.schema().fingerprint(),
            features: bundle.schema().features().to_vec(),
            actions: Arc::clone(&actions),
            sensitive: Sensitive::of(bundle.schema().features(), &self.features),
        };
        let loaded = Arc::new(Loaded {
            digest: expected,
            digest_text: expected.to_string().into(),
            kind: kind(&bundle),
            actions,
            shape: Arc::new(shape),
            labels: bundle.labels().iter().map(|label| label.as_str().into()).collect(),
            serial: self.next_serial.fetch_add(1, Relaxed),
            bytes: bundle.file_bytes(),
            shared_bytes,
            load_ms: started.elapsed().as_secs_f64() * 1e3,
            stages,
            warmup,
            signed,
            decisions: AtomicU64::new(0),
            breaker: Breaker::new(BreakerSettings::default()),
            was_live: AtomicBool::new(false),
            awaited: AtomicBool::new(false),
            rows: rows.into(),
            listener: Arc::clone(&self.listener),
            bundle,
        });
        let report = loaded.report(false);
        lock(&self.loaded).insert(expected, loaded);
        Ok(report)
    }

    /// Removes a bundle. Its memory is freed after the last request that uses it has ended.
    pub fn unload(&self, digest: &Digest) {
        let removed = lock(&self.loaded).remove(digest);
        if let Some(loaded) = removed {
            // Cached answers may hold the action names longer than the bundle is held.
            self.reaper.retire(Arc::new((Arc::clone(&loaded.actions), Arc::clone(&loaded.shape))));
            self.reaper.retire(loaded);
        }
    }

    /// Frees `retired` on the reaper's thread, once nothing else holds it.
    pub fn retire<T: Send + Sync + 'static>(&self, retired: Arc<T>) {
        self.reaper.retire(retired);
    }

    /// Ends the reaper's thread. Values that are still in use are freed by their last holder.
    pub fn stop(&self) {
        self.reaper.stop();
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

    /// The bundle of this digest.
    pub fn get(&self, digest: &Digest) -> Option<Arc<Loaded>> {
        lock(&self.loaded).get(digest).cloned()
    }

    /// Every bundle, in the order in which they were loaded.
    pub fn all(&self) -> Vec<Arc<Loaded>> {
        let mut all: Vec<_> = lock(&self.loaded).values().cloned().collect();
        all.sort_by_key(|loaded| loaded.serial);
        all
    }

    /// Bytes of the files of all bundles, those of a forest that several share once.
    pub fn file_bytes(&self) -> u64 {
        let all = self.all();
        let mut before = Vec::with_capacity(all.len());
        let mut bytes = 0;
        for loaded in &all {
            bytes += loaded.bytes - loaded.bundle.shared_bytes(&before);
            before.push(&loaded.bundle);
        }
        bytes
    }

    /// Memory up to which bundles are loaded, bytes; 0 where that is not known.
    pub fn budget_bytes(&self) -> u64 {
        self.budget.as_ref().map_or(0, |budget| budget.bytes)
    }
}

/// Runs `work` on a new thread and waits for it.
fn on_own_thread<T: Send>(low_priority: bool, work: impl FnOnce() -> T + Send) -> Result<T, LoadError> {
    std::thread::scope(|scope| {
        let work = move || {
            if low_priority {
                sched::lower_priority();
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

    /// Whether a candidate that takes so long can meet the checkpoint's SLA.
    fn check(&self, path: &Path, candidate: &WarmUp, live: Option<&WarmUp>) -> Result<(), LoadError> {
        let millis = |warm: &WarmUp| warm.p99.as_secs_f64() * 1e3;
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
                sla_ms: self.p99_ms,
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
    fn report(&self, already_loaded: bool) -> LoadReport {
        LoadReport {
            digest: self.digest_text.to_string(),
            name: self.bundle.name().to_owned(),
            kind: self.kind.as_str(),
            load_ms: self.load_ms,
            stages: self.stages,
            warm_up: self.warmup.report(),
            signed: self.signed.clone(),
            bytes: self.bytes,
            shared_bytes: self.shared_bytes,
            already_loaded,
        }
    }

    /// Notes `rows` decisions. Once after a swap it also calls the listener; at any other time it is one addition.
    pub(crate) fn answered(&self, rows: u64) {
        self.decisions.fetch_add(rows, Relaxed);
        if self.awaited.load(Relaxed) {
            self.first_answer();
        }
    }

    #[cold]
    fn first_answer(&self) {
        if self.awaited.swap(false, AcqRel) {
            self.listener.first_answer(self);
        }
    }

    /// Notes that a table is about to be active which names it where it did not answer before.
    pub fn expect_first_answer(&self) {
        self.was_live.store(true, Relaxed);
        self.awaited.store(true, Relaxed);
    }

    /// Whether it has been active.
    pub fn was_live(&self) -> bool {
        self.was_live.load(Relaxed)
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        self.listener.freed(self);
    }
}
