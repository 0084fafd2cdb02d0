//! The metrics page: reads the counters of the engine, the observe lanes and the server, and renders them as
//! OpenMetrics.

mod admission;
mod exemplars;
mod explanations;
mod expose;
mod features;
pub(crate) mod http;
mod lists;
mod observe;
mod outcomes;
mod security;
mod shadow;
mod tracing;

pub(crate) use expose::render;
