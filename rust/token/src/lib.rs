//! Decision tokens: signed claims of an answer about its decision, with which any replica can accept the outcome.
//!
//! A token has at most 120 bytes. It contains the [`Claims`] in a fixed layout, the decision's id, and the first
//! 16 bytes of an HMAC-SHA-256 over both, the checkpoint's name and the tenant. `docs/decision-token.md` describes the
//! bytes and the rotation of keys. The crate has no I/O and reads no clock.

#![forbid(unsafe_code)]

mod claims;
mod keys;
mod layout;
mod scope;

pub use claims::{Claims, Kind};
pub use keys::{KeyFileError, KeyRing, TokenError};
pub use layout::{LongestToken, MAX_TOKEN, Token, Unreadable};
pub use scope::{Scope, Tenant, fingerprint};
