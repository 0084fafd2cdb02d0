//! The store of loaded bundles.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use scorer_admission::{Breaker, BreakerSettings};
use scorer_core::bundle::{Bundle, Digest, FunctionSet, GoldenRow, Kind as BundleKind};
use scorer_core::schema::FeatureSpec;
use scorer_os::sched;
use scorer_signing::{Signed, Trust};
use serde::Serialize;

use super::functions::{self, FunctionCounters};
use super::memory::{self, Budget};
use super::nodes::NodeCounters;
use super::reaper::Reaper;
use super::rules::{self, FiredRule, RuleCounters};
use super::vetting::{self, Vetting};
use super::warm::{Subject, WarmUp, WarmUpReport, warm_up};
use crate::bundle_dir::{self, Stages};
use crate::computed::{Computed, FeatureSource, SourceRefusal};
use crate::config::Kind;
use crate::counters::FeatureSetCounters;
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
    /// The kind of its answers.
    pub kind: Kind,
    /// Its actions, in the order of the catalogue. A cached answer may hold them longer than the bundle exists.
    pub actions: Arc<[ActionInfo]>,
    /// The features and actions that its rows and masks refer to.
    pub shape: Arc<Shape>,
    /// Labels of the score bands, ascending.
    pub labels: Box<[Arc<str>]>,
    /// Serial number of the load.
    pub serial: u64,
    /// Total size of its files in bytes.
    pub bytes: u64,
    /// Size of the files of forests that it shares with bundles that were in memory before, in bytes.
    pub shared_bytes: u64,
    /// Time of loading in milliseconds.
    pub load_ms: f64,
    /// The times of the stages of loading.
    pub stages: Stages,
    /// Time of one evaluation on this machine, which is the initial estimate of admission control.
    pub warmup: WarmUp,
    /// Number of its decisions.
    pub decisions: AtomicU64,
    /// Counters of its rules.
    pub rules: RuleCounters,
    /// The faults of its functions.
    pub functions: FunctionCounters,
    /// The times of the nodes of its program.
    pub nodes: Arc<NodeCounters>,
    /// The statement of its signature; absent if no signature was required.
    pub signed: Option<Signed>,
    /// Takes the bundle out of service after repeated failures.
    pub breaker: Breaker,
    /// Whether the bundle has been in an active lane table. Until then it may be waiting for the table it was loaded
    /// for.
    was_live: AtomicBool,
    /// Whether the next answer is the first since the bundle became active.
    awaited: AtomicBool,
    /// The rows that are replayed when a candidate is compared with this bundle.
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
    /// The columns that reasons refer to, in their order; empty if the bundle gives no reasons.
    pub reasons: Vec<ReasonColumn>,
    /// The rules, in the order of their numbers; empty if the bundle has none.
    pub rules: Vec<FiredRule>,
    /// The names of the functions, in the order of the bundle.
    pub functions: Vec<String>,
    /// The computed features; absent if requests state all features.
    pub computed: Option<Computed>,
}

impl Shape {
    /// The names of functions of the bundle.
    pub fn faulted(&self, functions: FunctionSet) -> impl Iterator<Item = &str> {
        functions.iter().filter_map(|at| self.functions.get(at)).map(String::as_str)
    }
}

/// A column of a forest: a feature of the request or of the action, or a column that the bundle's program adds.
#[derive(Debug)]
pub struct ReasonColumn {
    /// Code of the column in the bundle's dictionary of reasons.
    pub code: String,
    /// Name of the feature or added column.
    pub feature: String,
    /// Positions of the features that its value is computed from: those of the request, then those of the action.
    pub origins: Vec<usize>,
}

fn reason_columns(bundle: &Bundle) -> Vec<ReasonColumn> {
    let column = |at: usize| {
        let (code, feature) = (bundle.reason_code(at)?, bundle.column_name(at)?);
        let origins = bundle.column_origins(at);
        Some(ReasonColumn { code: code.to_owned(), feature: feature.to_owned(), origins })
    };
    (0..).map_while(column).collect()
}

/// Receives lifecycle events of bundles.
pub trait BundleListener: Send + Sync {
    /// Called after a bundle's first answer since it became active, on the answering thread.
    fn first_answer(&self, _bundle: &Loaded) {}

    /// Called when a bundle is freed.
    fn freed(&self, _bundle: &Loaded) {}
}

/// Ignores all events.
impl BundleListener for () {}

/// A request to load a bundle.
pub struct LoadRequest<'a> {
    /// Directory of the bundle.
    pub path: &'a Path,
    /// The digest that the bundle must have.
    pub expected: Digest,
    /// The facts that its signature is checked against.
    pub vetting: &'a Vetting,
    /// The live bundle that it is compared with, if there is one.
    pub live: Option<&'a Live>,
    /// Whether to load at low priority, because the server is answering requests.
    pub low_priority: bool,
}

/// An action, as described in replies.
#[derive(Debug)]
pub struct ActionInfo {
    /// The action's id.
    pub id: String,
    /// The levels of its factors, by factor name.
    pub factors: HashMap<String, String>,
}

/// Report on a loaded bundle.
#[derive(Clone, Debug, Serialize)]
pub struct LoadReport {
    /// The bundle's digest, `sha256:<hex>`.
    pub digest: String,
    /// The bundle's name.
    pub name: String,
    /// `score` or `action`.
    pub kind: &'static str,
    /// Time to read, verify, score the golden cases and warm up, in milliseconds.
    pub load_ms: f64,
    /// The times of the stages.
    pub stages: Stages,
    /// The evaluation times at warm-up.
    pub warm_up: WarmUpReport,
    /// The statement of its signature; absent if no signature was required.
    pub signed: Option<Signed>,
    /// Total size of its files in bytes.
    pub bytes: u64,
    /// Size of the files of forests that it shares with bundles that were in memory before, in bytes.
    pub shared_bytes: u64,
    /// Whether the bundle was in memory already, so that nothing was loaded.
    pub already_loaded: bool,
}

/// The comparison of a candidate with the live bundle.
pub struct Live {
    /// The bundle that answers most of the checkpoint's traffic now.
    pub loaded: Option<Arc<Loaded>>,
    /// The checkpoint's SLA in milliseconds.
    pub p99_ms: f64,
    /// Limit on the candidate's evaluation time relative to the live bundle's; infinite for no limit.
    pub max_ratio: f64,
}

/// The source of computed features, and the counters of its reads.
pub(crate) struct Computing {
    pub(crate) source: Option<Arc<dyn FeatureSource>>,
    pub(crate) counters: Arc<FeatureSetCounters>,
}

/// Every loaded bundle by digest. The store's reaper frees bundles, and values that hold them, on its own thread.
pub struct Store {
    loaded: Mutex<HashMap<Digest, Arc<Loaded>>>,
    /// Serialises loads, because two at a time would use twice the memory and disturb each other's measurements.
    loading: Mutex<()>,
    next_serial: AtomicU64,
    budget: Option<Budget>,
    trust: Trust,
    features: FeatureRules,
    computing: Computing,
    reaper: Reaper,
    listener: Arc<dyn BundleListener>,
}

// === impl Store ===

impl Store {
    /// Creates an empty store with a limit of `memory_budget` bytes, or else the system's limit. It loads only bundles
    /// that `trust` accepts. `features` states which values of a row are sensitive.
    pub(crate) fn start(
        memory_budget: Option<u64>,
        trust: Trust,
        features: FeatureRules,
        computing: Computing,
        listener: Arc<dyn BundleListener>,
    ) -> std::io::Result<Store> {
        Ok(Store {
            loaded: Mutex::default(),
            loading: Mutex::default(),
            next_serial: AtomicU64::new(0),
            budget: Budget::find(memory_budget),
            trust,
            features,
            computing,
            reaper: Reaper::start()?,
            listener,
        })
    }

    /// Checks a bundle's signature, then reads, verifies, warms up and measures the bundle on a separate thread. It
    /// shares the forests of the bundles in memory. `make_room` unloads bundles that are kept only for a rollback, and
    /// returns the size of their files in bytes.
    ///
    /// # Errors
    /// Returns a [`LoadError`]; the bundles in memory are not changed.
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
                // A bundle that was loaded for an observe lane has not been compared yet.
                on_own_thread(low_priority, || live.compare(path, &loaded.bundle, &loaded.rows))??;
            }
            return Ok(LoadReport { signed, ..loaded.report(true) });
        }
        let started = Instant::now();
        self.check_memory(path, make_room)?;
        // This comes after making room, so that it does not keep the forests of bundles that were unloaded.
        let known = self.all();
        let Measured { bundle, rows, stages, warmup, shared_bytes } = on_own_thread(low_priority, || {
            catch_unwind(AssertUnwindSafe(|| read(path, &expected, live, &known))).unwrap_or_else(|panic| {
                let id = events.defect("bundle load", panic.as_ref());
                Err(LoadError::Panic { path: path.to_owned(), id })
            })
        })??;
        let computed =
            self.computed(&bundle).map_err(|source| LoadError::Features { path: path.to_owned(), source })?;
        let actions = actions(&bundle);
        let shape = Shape {
            fingerprint: bundle.schema().fingerprint(),
            features: bundle.schema().features().to_vec(),
            actions: Arc::clone(&actions),
            sensitive: Sensitive::of(bundle.schema().features(), &self.features),
            reasons: reason_columns(&bundle),
            rules: rules::describe(&bundle),
            functions: functions::names(&bundle),
            computed,
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
            rules: RuleCounters::new(bundle.rules().map_or(0, |rules| rules.rules().len())),
            functions: FunctionCounters::new(bundle.functions().map_or(0, |own| own.entries().len())),
            nodes: Arc::new(NodeCounters::new(&bundle)),
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

    /// Binds the computed features of a bundle to their source.
    fn computed(&self, bundle: &Bundle) -> Result<Option<Computed>, SourceRefusal> {
        let Some(features) = bundle.computed() else { return Ok(None) };
        let name_of = |at: usize| bundle.schema().features().get(at).map_or("", |feature| &*feature.name);
        let Computing { source, counters } = &self.computing;
        Computed::bind(features, name_of, source.as_deref(), || counters.of(&features.set_name)).map(Some)
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

    /// Checks the signature in a directory; see [`Store::load`].
    pub(crate) fn vet(
        &self,
        path: &Path,
        digest: &Digest,
        vetting: &Vetting,
    ) -> Result<Option<Signed>, LoadError> {
        vetting::verify(&self.trust, path, digest, vetting)
    }

    /// Runs `work`, which catches its panics, on a thread for loads.
    pub(crate) fn on_loader_thread<T: Send>(
        &self,
        low_priority: bool,
        work: impl FnOnce() -> T + Send,
    ) -> Result<T, LoadError> {
        on_own_thread(low_priority, work)
    }

    /// Returns the memory of the process and its budget if it has no room for further bytes.
    pub(crate) fn lacks_memory(&self, needed: u64) -> Option<(u64, &Budget)> {
        let (budget, resident) = (self.budget.as_ref()?, memory::resident()?);
        (resident.saturating_add(needed) > budget.bytes).then_some((resident, budget))
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
        // Unloaded bundles count with the size of their files, which is less than the memory that they free.
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

    /// The bundle of this digest, if it is loaded.
    pub fn get(&self, digest: &Digest) -> Option<Arc<Loaded>> {
        lock(&self.loaded).get(digest).cloned()
    }

    /// Every bundle, in the order of loading.
    pub fn all(&self) -> Vec<Arc<Loaded>> {
        let mut all: Vec<_> = lock(&self.loaded).values().cloned().collect();
        all.sort_by_key(|loaded| loaded.serial);
        all
    }

    /// Total size of the files of all bundles in bytes. The file of a shared forest counts once.
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

    /// Memory limit for loading bundles, in bytes; 0 if it is not known.
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
    /// Measures a candidate alternately with the live bundle and checks its times.
    fn compare(&self, path: &Path, bundle: &Bundle, rows: &[GoldenRow]) -> Result<WarmUp, LoadError> {
        let beside = self.loaded.as_deref().map(|loaded| Subject::new(&loaded.bundle, &loaded.rows));
        let (warmup, of_live) = warm_up(Subject::new(bundle, rows), beside);
        self.check(path, &warmup, of_live.as_ref())?;
        Ok(warmup)
    }

    /// Checks that a candidate with these times can meet the checkpoint's SLA.
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

    /// Counts `rows` decisions. The first call after the bundle became active also calls the listener.
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

    /// Prepares the bundle for a table in which it answers for the first time, so that its first answer is reported.
    pub fn expect_first_answer(&self) {
        self.was_live.store(true, Relaxed);
        self.awaited.store(true, Relaxed);
    }

    /// Whether the bundle has been in an active lane table.
    pub fn was_live(&self) -> bool {
        self.was_live.load(Relaxed)
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        self.listener.freed(self);
    }
}
