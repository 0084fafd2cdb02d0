//! The engine against a naive recursive reading of the same model, and the decoder against hostile bytes.

mod evaluate;
mod format;
mod links;
pub(super) mod models;
pub(super) mod reference;
mod refusals;
mod small;
mod smoke;
