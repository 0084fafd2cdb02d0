//! The metrics page: reads what the engine, the observe lanes and the server count, and renders it as OpenMetrics.

mod admission;
mod expose;
pub(crate) mod http;
mod observe;
mod outcomes;
mod security;
mod shadow;

pub(crate) use expose::render;
