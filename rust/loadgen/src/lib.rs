//! scorer-loadgen
