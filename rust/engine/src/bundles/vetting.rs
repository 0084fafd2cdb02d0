//! Verification of a bundle's signature, before anything else of the bundle is read.

use std::path::Path;
use std::time::SystemTime;

use scorer_core::bundle::Digest;
use scorer_signing::{Floors, Signed, Trust, Verification};

use crate::bundle_dir;
use crate::error::LoadError;

/// The facts about a bundle that its signature is checked against.
#[derive(Clone, Debug, Default)]
pub struct Vetting {
    /// The name that its signature must state; any name if absent.
    pub name: Option<String>,
    /// The lowest accepted release of each bundle name.
    pub floors: Floors,
    /// Whether this server has accepted the bundle before.
    pub known: bool,
}

/// Checks the signature in a bundle's directory. Returns `None` if there is none and none is required.
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
