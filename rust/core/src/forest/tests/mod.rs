//! The engine, compared with a naive recursive evaluation of the same model, and the decoder with malicious
//! bytes.

mod evaluate;
mod format;
mod links;
pub(crate) mod models;
pub(crate) mod reference;
mod refusals;
mod small;
mod smoke;
