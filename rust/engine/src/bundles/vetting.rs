//! Verification of a bundle's signature, before anything else of the bundle is read.

use std::path::Path;
use std::time::SystemTime;

use scorer_core::bundle::Digest;
use scorer_signing::{Floors, Signed, Trust, Verification};

use crate::bundle_dir;
use crate::error::LoadError;

/// What is known of a bundle beside its bytes.
#[derive(Clone, Debug, Default)]
pub struct Vetting {
    /// The name that its signature must state; absent: any.
    pub name: Option<String>,
    /// By bundle name: the lowest release that is accepted.
    pub floors: Floors,
    /// This server has accepted the bundle before.
    pub known: bool,
}

/// Checks the signature in a bundle's directory; `None` where there is none and none is needed.
pub(crate) fn verify(
    trust: &Trust,
    path: &Path,
    digest: &Digest,
    vetting: &Vetting,
) -> Result<Option<Signed>, LoadError> {
    let refused = |source| LoadError::Signature { path: path.to_owned(), source };
    let envelope = if trust.trusted_keys.is_empty() {
        None
    } else {
        bundle_dir::signature(path).map_err(|source| LoadError::Bundle { path: path.to_owned(), source })?
    };
    let wanted = Verification {
        digest,
        name: vetting.name.as_deref(),
        floors: &vetting.floors,
        known: vetting.known,
        now: SystemTime::now(),
    };
    trust.verify(envelope.as_deref(), &wanted).map_err(refused)
}
