//! Signed tokens (JWS compact form with JWT claims) as credentials.
//!
//! Only what a bearer token needs: one signature, of an algorithm from a list, by a key of a set. The verification is
//! ring's. The crates for JWT bring a second cryptographic library, or accept claims of the wrong type as absent.

mod cache;
mod claims;
mod config;
mod keys;
mod verifier;

pub use config::{Algorithm, JwtConfig};
pub use verifier::{KeysState, Tokens};

#[cfg(test)]
mod tests;
