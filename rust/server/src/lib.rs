//! scorer-server

pub mod bundle_dir;
