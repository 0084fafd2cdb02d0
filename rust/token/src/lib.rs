//! Decision tokens: what an answer proves about its decision, signed, so that any replica accepts the outcome.
//!
//! A token is at most 120 bytes. It holds the claims of [`Claims`] in a fixed layout, the decision's id, and the first
//! 16 bytes of an HMAC-SHA-256 over both, the checkpoint's name and the tenant. `docs/decision-token.md` describes the
//! bytes and the rotation of keys. Pure: no I/O, no clock.

#![forbid(unsafe_code)]

mod claims;
mod keys;
mod layout;
mod scope;

pub use claims::{Claims, Kind};
pub use keys::{KeyFileError, KeyRing, TokenError};
pub use layout::{LongestToken, MAX_TOKEN, Token, Unreadable};
pub use scope::{Scope, Tenant, fingerprint};
