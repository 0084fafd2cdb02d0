//! Small neural networks, linear models and pipelines in the ONNX format, evaluated for one row.
//!
//! [`Net::parse`] reads the bytes of a file with bounds on everything that the file states, keeps the nodes that the
//! score needs, fixes every shape for one row, and compiles the nodes to a flat list of steps over one buffer.
//! [`Net::run`] then allocates no memory, asks between steps whether it has to stop, and uses float32 arithmetic in a
//! fixed order, so that it gives the same bits on every machine.
//!
//! The set of operators is closed (see [`OPERATORS`]). A file with another operator is refused with its name.

mod builder;
mod constant;
mod error;
mod file;
mod graph;
mod limits;
mod lower;
mod math;
mod net;
mod plan;
#[doc(hidden)]
pub mod testing;
mod wire;

pub use error::NetError;
pub use limits::{MAX_FILE_BYTES, MAX_NODES, MAX_PARAMETERS, MAX_VALUES};
pub use lower::OPERATORS;
pub use net::{Net, NetOptions, NetScratch};
pub use plan::Stopped;

#[cfg(test)]
mod tests;
