//! Signatures of bundles, verified without network access.
//!
//! A signature is a DSSE envelope in the file [`ENVELOPE`] of the bundle's directory. Its payload is an in-toto
//! statement with the bundle's name, digest and release number. The digest covers the manifest, and the manifest covers
//! every file.

mod envelope;
mod error;
mod key;
mod pem;
mod statement;
mod time;
mod trust;

pub use envelope::{MAX_ENVELOPE_BYTES, sign};
pub use error::{KeyError, SignatureError};
pub use key::{PrivateKey, PublicKey};
pub use scorer_core::bundle::SIGNATURE as ENVELOPE;
pub use trust::{Floors, Signed, Trust, Unsigned, Verification};
