//! The pure part of `scorer`: no I/O, no async runtime, no Python.

pub mod forest;
// Declared by their owner when they arrive: pub mod policy; pub mod schema; pub mod bundle;
