//! Measures the time of the search for card numbers per text: `cargo run --release -p scorer-privacy --example
//! detector_cost`.

#![allow(clippy::print_stdout, reason = "a program that prints its figures")]

use std::hint::black_box;
use std::time::Instant;

use scorer_privacy::card;

const ROUNDS: u32 = 200_000;

fn main() {
    for (name, text) in [
        ("UUID", "01934567-89ab-7cde-8f01-23456789abcd".to_owned()),
        ("short id", "order-1234567".to_owned()),
        ("long id", "merchant-1234/order-987654321/attempt-2/2026-11-23T03:15:00".to_owned()),
        ("digest", "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08".to_owned()),
        ("card number", "4111 1111 1111 1111".to_owned()),
        ("256 digits in groups of one", "1 ".repeat(128)),
        ("256 digits", "4".repeat(256)),
    ] {
        let began = Instant::now();
        for _ in 0..ROUNDS {
            black_box(card::is_in(black_box(&text)));
        }
        let each = began.elapsed().as_nanos() / u128::from(ROUNDS);
        println!("{name:30} {each:6} ns");
    }
}
