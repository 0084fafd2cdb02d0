//! Counters of reported outcomes.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use scorer_proto::v1::{OutcomeProof, OutcomeSourceKind};

/// Numbers of recorded and refused outcomes.
#[derive(Debug, Default)]
pub struct OutcomeCounters {
    recorded: [AtomicU64; PROOFS.len()],
    sources: [AtomicU64; SOURCES.len()],
    refused: [AtomicU64; Refusal::ALL.len()],
}

const PROOFS: [(OutcomeProof, &str); 3] =
    [(OutcomeProof::Unproven, "unproven"), (OutcomeProof::Known, "known"), (OutcomeProof::Token, "token")];

/// The kinds of sources with their names in metrics. An outcome without a source is unspecified.
const SOURCES: [(OutcomeSourceKind, &str); 5] = [
    (OutcomeSourceKind::Unspecified, "unspecified"),
    (OutcomeSourceKind::Reviewer, "reviewer"),
    (OutcomeSourceKind::Merchant, "merchant"),
    (OutcomeSourceKind::Issuer, "issuer"),
    (OutcomeSourceKind::Scheme, "scheme"),
];

/// The reason why an outcome is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Its token is not valid.
    Token,
    /// It is unproven, and unproven outcomes are refused.
    Unproven,
    /// Its value is outside the declared range.
    Range,
    /// Its revision is above the highest.
    Revision,
    /// There are too many reports of the outcome.
    DecisionRate,
    /// There are too many reports of the caller.
    CallerRate,
}

// === impl OutcomeCounters ===

impl OutcomeCounters {
    pub(crate) fn recorded(&self, proof: OutcomeProof, source: OutcomeSourceKind) {
        if let Some(at) = SOURCES.iter().position(|(known, _)| *known == source) {
            self.sources[at].fetch_add(1, Relaxed);
        }
        if let Some(at) = PROOFS.iter().position(|(known, _)| *known == proof) {
            self.recorded[at].fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn refused(&self, refusal: Refusal) {
        self.refused[refusal as usize].fetch_add(1, Relaxed);
    }

    /// The numbers of recorded outcomes by proof.
    pub fn by_proof(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        PROOFS.iter().zip(&self.recorded).map(|((_, name), count)| (*name, count.load(Relaxed)))
    }

    /// The numbers of recorded outcomes by the kind of their source.
    pub fn by_source(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        SOURCES.iter().zip(&self.sources).map(|((_, name), count)| (*name, count.load(Relaxed)))
    }

    /// The numbers of refused outcomes by reason.
    pub fn by_refusal(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Refusal::ALL.iter().zip(&self.refused).map(|(refusal, count)| (refusal.as_str(), count.load(Relaxed)))
    }
}

// === impl Refusal ===

impl Refusal {
    /// All reasons, in the order of their counters.
    pub const ALL: [Refusal; 6] = [
        Refusal::Token,
        Refusal::Unproven,
        Refusal::Range,
        Refusal::Revision,
        Refusal::DecisionRate,
        Refusal::CallerRate,
    ];

    /// The name of the reason in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Refusal::Token => "token",
            Refusal::Unproven => "unproven",
            Refusal::Range => "range",
            Refusal::Revision => "revision",
            Refusal::DecisionRate => "decision_rate",
            Refusal::CallerRate => "caller_rate",
        }
    }
}
