//! scorer-server
