//! Errors of bundles and lane tables that are not accepted. Rejections of single requests are in [`crate::rejection`].

use std::path::PathBuf;

use scorer_core::bundle::BundleError;
use scorer_signing::SignatureError;

/// A bundle was not loaded. The served bundles are not affected.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The digest is not written as one.
    #[error("{digest:?} is not a digest; write \"sha256:\" and 64 lower-case hexadecimal digits")]
    Digest {
        /// The text given.
        digest: String,
    },
    /// It cannot be read, or is not what its manifest says.
    #[error("bundle {}: {source}", path.display())]
    Bundle {
        /// The bundle's directory.
        path: PathBuf,
        /// What is wrong with it.
        source: BundleError,
    },
    /// Its signature is missing, or is not accepted here.
    #[error("bundle {}: {source}", path.display())]
    Signature {
        /// The bundle's directory.
        path: PathBuf,
        /// What is wrong with the signature.
        source: SignatureError,
    },
    /// Loading or scoring the golden cases panicked: a defect of this program.
    #[error("bundle {}: loading it panicked, id {id}; keep the bundle and report the defect", path.display())]
    Panic {
        /// The bundle's directory.
        path: PathBuf,
        /// Also in the event log, with the panic's own words.
        id: String,
    },
    /// Live bundle, candidate and the one kept for a rollback do not fit together.
    #[error(
        "bundle {}: loading it takes up to {needed_mib} MiB, the process holds {resident_mib} MiB, and its budget is \
         {budget_mib} MiB ({source_of_budget}); give it more memory or build a smaller bundle",
        path.display()
    )]
    Memory {
        /// The bundle's directory.
        path: PathBuf,
        /// What reading it in may take.
        needed_mib: u64,
        /// What the process holds, less what can be let go.
        resident_mib: u64,
        /// What it may hold.
        budget_mib: u64,
        /// What the budget was taken from.
        source_of_budget: String,
    },
    /// Its warm-up took too much longer than the live bundle's.
    #[error(
        "bundle {}: at warm-up one evaluation took {p99_us:.1} us (p99), {ratio:.1} times the live bundle's {live_us:.1} us; \
         {max_ratio} times are allowed: make it smaller, raise warmup_max_ratio, or swap it in with --allow-slower",
        path.display()
    )]
    Slower {
        /// The bundle's directory.
        path: PathBuf,
        /// The candidate, microseconds.
        p99_us: f64,
        /// The live bundle, in turns with it.
        live_us: f64,
        /// One by the other.
        ratio: f64,
        /// The checkpoint's limit.
        max_ratio: f64,
    },
    /// Its warm-up took longer than the checkpoint's SLA for a whole answer.
    #[error(
        "bundle {}: at warm-up one evaluation took {p99_us:.1} us (p99), the SLA of the checkpoint is {sla_ms} ms for the whole answer; make the bundle smaller or raise p99_ms",
        path.display()
    )]
    TooSlow {
        /// The bundle's directory.
        path: PathBuf,
        /// The candidate, microseconds.
        p99_us: f64,
        /// The checkpoint's SLA, milliseconds.
        sla_ms: f64,
    },
    /// A checkpoint that is not configured.
    #[error("checkpoint {checkpoint:?} is not configured; load the bundle for one that is, or for none")]
    UnknownCheckpoint {
        /// Its name.
        checkpoint: String,
    },
    /// The loading thread could not be started.
    #[error("cannot load a bundle: the thread for it: {0}; check the limit on threads")]
    Thread(std::io::Error),
    /// The server has been drained.
    #[error("the server has been stopped; start a new one")]
    Stopped,
}

/// A lane table was rejected. The active table stays.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SwapError {
    /// The text is no lane table.
    #[error("lane table: {0}")]
    Table(String),
    /// A version that is not newer.
    #[error("lane table {version}: version {current} is active; give every change a higher version")]
    Version {
        /// The version offered.
        version: u64,
        /// The active version.
        current: u64,
    },
    /// A checkpoint that is not configured.
    #[error("lane table: checkpoint {checkpoint:?} is not configured; the server has {known}")]
    UnknownCheckpoint {
        /// Its name.
        checkpoint: String,
        /// The configured ones.
        known: String,
    },
    /// A configured checkpoint is left out.
    #[error(
        "lane table: checkpoint {checkpoint:?} is left out; give it lanes, or [] if it has no bundle yet"
    )]
    LeftOut {
        /// Its name.
        checkpoint: String,
    },
    /// Something is wrong with one lane.
    #[error("lane table: checkpoint {checkpoint:?}, lane {lane:?}: {reason}")]
    Lane {
        /// The checkpoint's name.
        checkpoint: String,
        /// The lane's name.
        lane: String,
        /// The rule and the remedy.
        reason: String,
    },
    /// The shares do not add up.
    #[error("lane table: checkpoint {checkpoint:?}: the shares add up to {sum}; they must add up to 1")]
    Shares {
        /// The checkpoint's name.
        checkpoint: String,
        /// What they add up to.
        sum: f64,
    },
    /// The server has been drained.
    #[error("the server has been stopped; start a new one")]
    Stopped,
}

// === impl SwapError ===

impl SwapError {
    /// The rejection of a table that names a checkpoint which is not one of `known`.
    pub fn unknown_checkpoint<'a>(checkpoint: &str, known: impl Iterator<Item = &'a str>) -> SwapError {
        let known: Vec<_> = known.collect();
        SwapError::UnknownCheckpoint { checkpoint: checkpoint.to_owned(), known: known.join(", ") }
    }
}

/// A bundle was not unloaded.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum UnloadError {
    /// The digest is not written as one.
    #[error("{digest:?} is not a digest; write \"sha256:\" and 64 lower-case hexadecimal digits")]
    Digest {
        /// The text given.
        digest: String,
    },
    /// It observes at a checkpoint.
    #[error("bundle {digest} observes at checkpoint {checkpoint:?} as {lane:?}; end that observe lane first")]
    Observes {
        /// The bundle.
        digest: String,
        /// Where it observes.
        checkpoint: String,
        /// The lane.
        lane: String,
    },
    /// It answers at a checkpoint.
    #[error("bundle {digest} answers at checkpoint {checkpoint:?}; swap it out first")]
    InUse {
        /// The bundle.
        digest: String,
        /// Where it answers.
        checkpoint: String,
    },
}

/// Why a bundle was rejected, as counters name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadErrorKind {
    /// Files, hashes, structure or program.
    Verification,
    /// No signature that is accepted here, or an older release.
    Signature,
    /// A golden case gave other bits.
    Golden,
    /// Its warm-up took too long.
    WarmUp,
    /// There is no memory for it.
    Memory,
    /// A defect or the system, not the bundle.
    Other,
}

// === impl LoadErrorKind ===

impl LoadErrorKind {
    /// How many kinds there are.
    pub const COUNT: usize = 6;
    /// Every kind.
    pub const ALL: [LoadErrorKind; LoadErrorKind::COUNT] = [
        LoadErrorKind::Verification,
        LoadErrorKind::Signature,
        LoadErrorKind::Golden,
        LoadErrorKind::WarmUp,
        LoadErrorKind::Memory,
        LoadErrorKind::Other,
    ];

    /// The label in metrics and events.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            LoadErrorKind::Verification => "verification",
            LoadErrorKind::Signature => "signature",
            LoadErrorKind::Golden => "golden",
            LoadErrorKind::WarmUp => "warm_up",
            LoadErrorKind::Memory => "memory",
            LoadErrorKind::Other => "other",
        }
    }
}

// === impl LoadError ===

impl LoadError {
    /// What counters and events name as the reason.
    #[must_use]
    pub fn reason(&self) -> LoadErrorKind {
        match self {
            LoadError::Bundle {
                source:
                    BundleError::Golden { .. } | BundleError::GoldenCase { .. } | BundleError::GoldenFile(_),
                ..
            } => LoadErrorKind::Golden,
            LoadError::Bundle { .. } => LoadErrorKind::Verification,
            LoadError::Signature { .. } => LoadErrorKind::Signature,
            LoadError::Slower { .. } | LoadError::TooSlow { .. } => LoadErrorKind::WarmUp,
            LoadError::Memory { .. } => LoadErrorKind::Memory,
            LoadError::Digest { .. }
            | LoadError::UnknownCheckpoint { .. }
            | LoadError::Panic { .. }
            | LoadError::Thread(_)
            | LoadError::Stopped => LoadErrorKind::Other,
        }
    }
}
