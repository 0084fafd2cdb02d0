//! Keeps personal data out of what the service stores and prints.
//!
//! [`card`] finds card numbers in text, and [`Pseudonyms`] replaces identifiers by keyed hashes.

#![forbid(unsafe_code)]

pub mod card;
mod pseudonym;

pub use pseudonym::{KeyError, Pseudonyms};
