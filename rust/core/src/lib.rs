//! scorer-core
