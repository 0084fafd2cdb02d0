//! The fuzz target of rules, on its seeds and on random changes of them, without a fuzzer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a fault here is a failed test")]
#![allow(dead_code, unreachable_pub, reason = "the fuzz target is public in its own crate")]

#[path = "../../fuzz/src/rules.rs"]
mod fuzz;
#[path = "../src/random.rs"]
mod random;

use random::Random;

#[test]
fn seeds_are_compiled() {
    for (name, text) in fuzz::SEEDS {
        assert!(fuzz::run(text.as_bytes()), "{name} was refused");
    }
}

#[test]
fn changed_seeds() {
    let parts = [
        "&&", "||", "!", "(", ")", "\"", "'", "0", "\0", " in ", "[", "]", "?", ":", "\n", "=", "-", "é",
        "\u{7f}",
    ];
    for seed in 0..6_000 {
        let mut random = Random(seed);
        let mut bytes = random.pick(&fuzz::SEEDS).1.as_bytes().to_vec();
        for _ in 0..1 + random.below(4) {
            let at = random.below(bytes.len() + 1);
            let end = (at + random.below(6)).min(bytes.len());
            match random.below(3) {
                0 => drop(bytes.drain(at..end)),
                1 => drop(bytes.splice(at..at, random.pick(&parts).bytes())),
                _ => {
                    let copied = bytes[at..end].to_vec();
                    let to = random.below(bytes.len() + 1);
                    drop(bytes.splice(to..to, copied));
                }
            }
        }
        fuzz::run(&bytes);
    }
}
