//! Keeps personal data out of records and logs.
//!
//! [`card`] finds card numbers in text, [`Pseudonyms`] replaces identifiers by keyed hashes, and [`Sealer`] encrypts
//! values to a public key.

#![forbid(unsafe_code)]

pub mod card;
mod key_file;
mod pseudonym;
mod seal;

pub use key_file::{KeyError, KeyFile, read_secret};
pub use pseudonym::{ENTITY, Pseudonyms};
pub use seal::{PublicKey, SealError, Sealer};
