//! Reads XGBoost's own UBJ and JSON files and returns a [`scorer_core::forest::Model`].
//!
//! A file contains everything that a margin depends on, in the precision in which XGBoost computes it. It is therefore
//! read directly: the model format of another library would add the base score last and in float64, and most margins
//! would then not be bit-equal.

#![forbid(unsafe_code)]

mod document;
mod error;
mod json;
mod number;
mod objective;
mod reader;
mod tree;
mod ubj;
mod value;

#[cfg(test)]
mod tests;

pub use error::ReadError;
use scorer_core::forest::Model;

/// Largest depth of nested arrays and objects. XGBoost's own files have eight levels.
const DEPTH_CAP: usize = 32;

/// Reads a model in either format, which is recognised by its first bytes.
///
/// # Errors
/// Fails if the bytes are not an XGBoost model, or the model cannot be evaluated exactly.
pub fn read_model(bytes: &[u8]) -> Result<Model, ReadError> {
    let value = if is_ubj(bytes) { ubj::parse(bytes)? } else { json::parse(bytes)? };
    document::model(&value)
}

/// Returns whether the bytes are UBJ. Both formats start with a brace, which in UBJ the length of the first key
/// follows.
fn is_ubj(bytes: &[u8]) -> bool {
    matches!(bytes, [b'{', b'i' | b'U' | b'I' | b'l' | b'L', ..])
}
