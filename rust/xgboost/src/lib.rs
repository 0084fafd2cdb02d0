//! Reads XGBoost's own UBJ and JSON files into [`scorer_core::forest::Model`].
//!
//! The file contains everything that a margin depends on, in the precision in which XGBoost computes it. That is
//! why it is read directly: a detour over another library's model adds the base score last and in float64,
//! and loses bit equality on most rows.

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

/// Most levels of nested arrays and objects; XGBoost's own files have eight.
const DEPTH_CAP: usize = 32;

/// Reads a model in either format, told apart by its first bytes.
///
/// # Errors
/// [`ReadError`] where the bytes are no XGBoost model, or the model is one that cannot be evaluated exactly.
pub fn read_model(bytes: &[u8]) -> Result<Model, ReadError> {
    let value = if is_ubj(bytes) { ubj::parse(bytes)? } else { json::parse(bytes)? };
    document::model(&value)
}

/// Both formats start with a brace; in UBJ the length of the first key follows.
fn is_ubj(bytes: &[u8]) -> bool {
    matches!(bytes, [b'{', b'i' | b'U' | b'I' | b'l' | b'L', ..])
}
