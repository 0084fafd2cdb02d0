//! Signed tokens (JWS compact form with JWT claims) as credentials.
//!
//! It supports only what a bearer token needs: one signature, of an algorithm from a list, by a key of a set. ring
//! verifies the signature. The existing crates for JWT depend on a second cryptographic library, or treat a claim of
//! the wrong type as absent.

mod cache;
mod claims;
mod config;
mod keys;
mod verifier;

pub use config::{Algorithm, JwtConfig};
pub use verifier::{KeysState, Tokens};

#[cfg(test)]
mod tests;
