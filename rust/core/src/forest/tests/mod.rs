//! The engine against a naive recursive reading of the same model, and the decoder against hostile bytes.

mod evaluate;
mod format;
mod links;
mod models;
mod reference;
mod refusals;
mod smoke;
