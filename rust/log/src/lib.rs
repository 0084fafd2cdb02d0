//! scorer-log
