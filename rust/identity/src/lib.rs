//! Authentication and authorization of callers.
//!
//! A [`Principal`] comes from a client certificate, a signed token or the user of a Unix socket. [`Grants`] give it
//! roles at checkpoints; a principal without a grant may do nothing. [`tls`] reads certificates, authorities and
//! revocation lists from files and replaces them while connections stay open.
//!
//! The crate depends on no protocol and no server. Both TLS and tokens use the cryptography of ring.

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
