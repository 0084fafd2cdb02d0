//! The deterministic simulator of admission: virtual time, one seed per scenario, the very code that serves.
//!
//! One seed: `cargo run --release -p scorer-admission --example admission_sim -- --seed N --trace`.

pub(crate) mod check;
pub(crate) mod random;
pub(crate) mod scenario;
pub(crate) mod world;
