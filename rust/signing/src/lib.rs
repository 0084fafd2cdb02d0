//! Signatures of bundles, checked without a network.
//!
//! A signature is a DSSE envelope ([`ENVELOPE`]) in the bundle's directory. What is signed is an in-toto statement that
//! names the bundle's digest and its release number. The digest covers the manifest, and the manifest every file.

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
