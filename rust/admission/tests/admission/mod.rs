//! The deterministic simulator of admission control: virtual time, one seed per scenario, the code of the
//! server.
//!
//! To run one seed: `cargo run --release -p scorer-admission --example admission_sim -- --seed N --trace`.

pub(crate) mod check;
pub(crate) mod random;
pub(crate) mod scenario;
pub(crate) mod world;
