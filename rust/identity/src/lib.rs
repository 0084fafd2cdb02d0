//! Who calls, and what a caller may do.
//!
//! A [`Principal`] comes from a client certificate, a signed token or the user of a Unix socket. [`Grants`] give it roles
//! at checkpoints; a principal without a grant may do nothing. [`tls`] reads certificates, authorities and revocation
//! lists from files and replaces them while connections stay open.
//!
//! The crate knows no protocol and no server. Cryptography is ring's, in TLS as in tokens.

#![forbid(unsafe_code)]

pub mod authority;
mod certificate;
mod config;
mod error;
mod grants;
mod identity;
pub mod jwt;
mod principal;
pub mod tls;

pub use config::IdentityConfig;
pub use error::{IdentityError, Unauthenticated};
pub use grants::{Access, Denied, GrantConfig, Grants, Refused, Role};
pub use identity::Identity;
pub use principal::Principal;
