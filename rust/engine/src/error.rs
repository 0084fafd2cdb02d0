//! Errors of bundles and lane tables that are not accepted. Rejections of single requests are in [`crate::rejection`].

use std::path::PathBuf;

use scorer_core::bundle::BundleError;
use scorer_signing::SignatureError;

use crate::computed::SourceRefusal;

/// A bundle was not loaded. The served bundles are not affected.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The text is not a digest.
    #[error("{digest:?} is not a digest; write \"sha256:\" and 64 lower-case hexadecimal digits")]
    Digest {
        /// The text given.
        digest: String,
    },
    /// The bundle cannot be read, or its verification fails.
    #[error("bundle {}: {source}", path.display())]
    Bundle {
        /// The bundle's directory.
        path: PathBuf,
        /// The fault.
        source: BundleError,
    },
    /// The bundle's signature is missing, or this server does not accept it.
    #[error("bundle {}: {source}", path.display())]
    Signature {
        /// The bundle's directory.
        path: PathBuf,
        /// The fault of the signature.
        source: SignatureError,
    },
    /// The server does not have the bundle's computed features.
    #[error("bundle {}: features.json: {source}", path.display())]
    Features {
        /// The bundle's directory.
        path: PathBuf,
        /// What is missing, and the remedy.
        source: SourceRefusal,
    },
    /// Loading the bundle or scoring its golden cases panicked, which is a defect of this program.
    #[error("bundle {}: loading it panicked, id {id}; keep the bundle and report the defect", path.display())]
    Panic {
        /// The bundle's directory.
        path: PathBuf,
        /// Id of the event that contains the panic's message.
        id: String,
    },
    /// There is not enough memory for the bundle beside the live bundle and the one kept for a rollback.
    #[error(
        "bundle {}: loading it takes up to {needed_mib} MiB, the process holds {resident_mib} MiB, and its budget is \
         {budget_mib} MiB ({source_of_budget}); give it more memory or build a smaller bundle",
        path.display()
    )]
    Memory {
        /// The bundle's directory.
        path: PathBuf,
        /// Memory that loading may need, in MiB.
        needed_mib: u64,
        /// Memory of the process, without that of bundles that can be unloaded, in MiB.
        resident_mib: u64,
        /// The memory budget, in MiB.
        budget_mib: u64,
        /// The source of the budget.
        source_of_budget: String,
    },
    /// Evaluations at warm-up took too much longer than those of the live bundle.
    #[error(
        "bundle {}: at warm-up one evaluation took {p99_us:.1} us (p99), {ratio:.1} times the live bundle's {live_us:.1} us; \
         {max_ratio} times are allowed: make it smaller, raise warmup_max_ratio, or swap it in with --allow-slower",
        path.display()
    )]
    Slower {
        /// The bundle's directory.
        path: PathBuf,
        /// 99th percentile of the candidate, in microseconds.
        p99_us: f64,
        /// 99th percentile of the live bundle, measured alternately, in microseconds.
        live_us: f64,
        /// The candidate's time divided by the live bundle's.
        ratio: f64,
        /// The checkpoint's limit.
        max_ratio: f64,
    },
    /// Evaluations at warm-up took longer than the checkpoint's SLA for a whole answer.
    #[error(
        "bundle {}: at warm-up one evaluation took {p99_us:.1} us (p99), the SLA of the checkpoint is {sla_ms} ms for the whole answer; make the bundle smaller or raise p99_ms",
        path.display()
    )]
    TooSlow {
        /// The bundle's directory.
        path: PathBuf,
        /// 99th percentile of the candidate, in microseconds.
        p99_us: f64,
        /// The checkpoint's SLA, in milliseconds.
        sla_ms: f64,
    },
    /// The checkpoint is not configured.
    #[error("checkpoint {checkpoint:?} is not configured; load the bundle for one that is, or for none")]
    UnknownCheckpoint {
        /// Name of the checkpoint.
        checkpoint: String,
    },
    /// The loading thread could not be started.
    #[error("cannot load a bundle: its thread cannot be started: {0}; check the limit on threads")]
    Thread(std::io::Error),
    /// The server has been drained.
    #[error("the server has been stopped; start a new one")]
    Stopped,
}

/// A lane table was rejected. The active table is not changed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SwapError {
    /// The text is not a lane table.
    #[error("lane table: {0}")]
    Table(String),
    /// The version is not higher than the active one.
    #[error("lane table {version}: version {current} is active; give every change a higher version")]
    Version {
        /// The version of the rejected table.
        version: u64,
        /// The active version.
        current: u64,
    },
    /// The table names a checkpoint that is not configured.
    #[error("lane table: checkpoint {checkpoint:?} is not configured; the server has {known}")]
    UnknownCheckpoint {
        /// Name of the checkpoint.
        checkpoint: String,
        /// The configured checkpoints.
        known: String,
    },
    /// A configured checkpoint is left out.
    #[error(
        "lane table: checkpoint {checkpoint:?} is left out; give it lanes, or [] if it has no bundle yet"
    )]
    LeftOut {
        /// Name of the checkpoint.
        checkpoint: String,
    },
    /// A lane breaks a rule.
    #[error("lane table: checkpoint {checkpoint:?}, lane {lane:?}: {reason}")]
    Lane {
        /// The checkpoint's name.
        checkpoint: String,
        /// The lane's name.
        lane: String,
        /// The rule and the remedy.
        reason: String,
    },
    /// The shares do not add up to 1.
    #[error("lane table: checkpoint {checkpoint:?}: the shares add up to {sum}; they must add up to 1")]
    Shares {
        /// The checkpoint's name.
        checkpoint: String,
        /// The sum of the shares.
        sum: f64,
    },
    /// The server has been drained.
    #[error("the server has been stopped; start a new one")]
    Stopped,
}

// === impl SwapError ===

impl SwapError {
    /// Creates the rejection of a table that names a checkpoint which is not one of `known`.
    pub fn unknown_checkpoint<'a>(checkpoint: &str, known: impl Iterator<Item = &'a str>) -> SwapError {
        let known: Vec<_> = known.collect();
        SwapError::UnknownCheckpoint { checkpoint: checkpoint.to_owned(), known: known.join(", ") }
    }
}

/// A bundle was not unloaded.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum UnloadError {
    /// The text is not a digest.
    #[error("{digest:?} is not a digest; write \"sha256:\" and 64 lower-case hexadecimal digits")]
    Digest {
        /// The text given.
        digest: String,
    },
    /// The bundle observes at a checkpoint.
    #[error("bundle {digest} observes at checkpoint {checkpoint:?} as {lane:?}; end that observe lane first")]
    Observes {
        /// The bundle.
        digest: String,
        /// The checkpoint that it observes.
        checkpoint: String,
        /// The lane.
        lane: String,
    },
    /// The bundle answers at a checkpoint.
    #[error("bundle {digest} answers at checkpoint {checkpoint:?}; swap it out first")]
    InUse {
        /// The bundle.
        digest: String,
        /// The checkpoint at which it answers.
        checkpoint: String,
    },
}

/// The reason why a bundle was rejected, for counters and events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadErrorKind {
    /// The files, hashes, structure or program are not valid.
    Verification,
    /// The signature is not accepted, or the release is too old.
    Signature,
    /// A golden case had a different result.
    Golden,
    /// The evaluations at warm-up took too long.
    WarmUp,
    /// The server does not have the computed features.
    Features,
    /// There is not enough memory.
    Memory,
    /// The reason is a defect or the system and not the bundle.
    Other,
}

// === impl LoadErrorKind ===

impl LoadErrorKind {
    /// Number of kinds.
    pub const COUNT: usize = 7;
    /// Every kind.
    pub const ALL: [LoadErrorKind; LoadErrorKind::COUNT] = [
        LoadErrorKind::Verification,
        LoadErrorKind::Signature,
        LoadErrorKind::Golden,
        LoadErrorKind::WarmUp,
        LoadErrorKind::Features,
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
            LoadErrorKind::Features => "features",
            LoadErrorKind::Memory => "memory",
            LoadErrorKind::Other => "other",
        }
    }
}

// === impl LoadError ===

impl LoadError {
    /// Returns the reason for counters and events.
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
            LoadError::Features { .. } => LoadErrorKind::Features,
            LoadError::Memory { .. } => LoadErrorKind::Memory,
            LoadError::Digest { .. }
            | LoadError::UnknownCheckpoint { .. }
            | LoadError::Panic { .. }
            | LoadError::Thread(_)
            | LoadError::Stopped => LoadErrorKind::Other,
        }
    }
}
