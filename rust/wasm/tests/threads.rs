//! Functions that loop, trap, ask for memory or call deeply, from many threads beside functions that do none of this.

#![allow(clippy::expect_used, reason = "a failure here is a failed test")]

mod support;

use std::sync::{Arc, Barrier};
use std::thread;

use scorer_wasm::limits::MAX_CALL_DEPTH;
use scorer_wasm::{Fault, Function, Instances, Library, Module};
use support::module;

const THREADS: u64 = 8;
const CALLS: usize = 4_000;
/// The functions: the first `GOOD` have a result for every argument, the others a fault.
const EXPORTS: [&str; 9] =
    ["horner", "scratch", "counter", "grow", "loop", "trap", "grow_forever", "outside", "deep"];
const GOOD: usize = 4;

/// `scratch` computes in its memory, and `counter` in a global and in memory; both would be wrong if a call saw what
/// another one left. The functions that fault write to the same memory and global first.
fn text() -> String {
    // `deep`, the last function of the chain and what it calls are active as well.
    let deepest = MAX_CALL_DEPTH - 2;
    let chain: String = (1..deepest)
        .map(|at| {
            let next = if at + 1 == deepest { "$end".to_owned() } else { format!("$d{}", at + 1) };
            format!("(func $d{at} (param f64) (result f64) (call $spoil (local.get 0)) (call {next} (local.get 0)))")
        })
        .collect();
    format!(
        r#"(module (memory 1) (data (i32.const 16) "\07") (global $n (mut f64) (f64.const 3))
        (func $spoil (param f64)
            (global.set $n (f64.const -1)) (f64.store (i32.const 8) (local.get 0)) (i32.store8 (i32.const 16) (i32.const 99)))
        (func (export "horner") (param f64) (result f64)
            (f64.add (f64.mul (f64.add (f64.mul (local.get 0) (f64.const 0.25)) (f64.const -3)) (local.get 0)) (f64.const 7)))
        (func (export "scratch") (param f64) (result f64)
            (f64.store (i32.const 8) (f64.add (f64.load (i32.const 8)) (local.get 0)))
            (f64.mul (f64.load (i32.const 8)) (f64.convert_i32_u (i32.load8_u (i32.const 16)))))
        (func (export "counter") (param f64) (result f64)
            (global.set $n (f64.add (global.get $n) (f64.const 1)))
            (i32.store8 (i32.const 16) (i32.add (i32.load8_u (i32.const 16)) (i32.const 1)))
            (f64.add (f64.mul (global.get $n) (local.get 0)) (f64.convert_i32_u (i32.load8_u (i32.const 16)))))
        (func (export "grow") (param f64) (result f64)
            (call $spoil (local.get 0))
            (f64.add (local.get 0) (f64.convert_i32_s (memory.grow (i32.const 1)))))
        (func (export "loop") (param f64) (result f64) (call $spoil (local.get 0)) (loop (br 0)) (f64.const 0))
        (func (export "trap") (param f64) (result f64) (call $spoil (local.get 0)) unreachable)
        (func (export "grow_forever") (param f64) (result f64)
            (call $spoil (local.get 0)) (loop (drop (memory.grow (i32.const 1))) (br 0)) (f64.const 0))
        (func (export "outside") (param f64) (result f64)
            (call $spoil (local.get 0)) (f64.load (i32.const 65535)))
        (func $end (param f64) (result f64) (call $spoil (local.get 0)) unreachable)
        {chain}
        (func (export "deep") (param f64) (result f64) (call $d1 (local.get 0))))"#
    )
}

/// What a good function gives, in Rust.
fn expected(function: usize, x: f64) -> f64 {
    match function {
        0 => (x * 0.25 + -3.0) * x + 7.0,
        1 => x * 7.0,
        2 => 4.0 * x + 8.0,
        _ => x + -1.0,
    }
}

/// The next number of a sequence (SplitMix64).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn library() -> Arc<Library> {
    let functions: Vec<Function> = EXPORTS
        .iter()
        .map(|export| Function { module: 0, export: (*export).to_owned(), fuel: 2_000 })
        .collect();
    let compiled: Arc<Module> = Arc::new(module(&text()).expect("the module keeps all limits"));
    Arc::new(Library::new(vec![compiled], &functions).expect("its own functions fit"))
}

/// Calls functions in a random order and returns the number of faults of each.
fn work(mut instances: Instances, seed: u64) -> [u64; EXPORTS.len()] {
    let mut state = seed;
    let mut faults = [0; EXPORTS.len()];
    for call in 0..CALLS {
        let function = (next(&mut state) % EXPORTS.len() as u64) as usize;
        let x = (next(&mut state) % 2_000_001) as f64 / 64.0 - 15_000.0;
        let result = instances.call(function, &[x]);
        if function < GOOD {
            let value = result.expect("a good function has a result");
            let wanted = expected(function, x);
            assert_eq!(
                value.to_bits(),
                wanted.to_bits(),
                "seed {seed}, call {call}: {}({x})",
                EXPORTS[function]
            );
            assert_eq!(instances.take_faulted(), 0);
        } else {
            let wanted = match EXPORTS[function] {
                "loop" | "grow_forever" => Fault::OutOfFuel,
                _ => Fault::Trap,
            };
            assert_eq!(result, Err(wanted), "seed {seed}, call {call}: {}({x})", EXPORTS[function]);
            assert_eq!(instances.take_faulted(), 1 << function);
            faults[function] += 1;
        }
        if call % 1_000 == 999 {
            // A thread that starts later begins like this.
            let mut counted = [0; EXPORTS.len()];
            instances.take_faults(|function, count| counted[function] = count);
            assert_eq!(counted, faults, "seed {seed}");
            faults = [0; EXPORTS.len()];
            instances = instances.clone();
        }
    }
    faults
}

#[test]
fn good_functions_have_the_same_bits_beside_bad_ones_on_many_threads() {
    let library = library();
    let begin = Arc::new(Barrier::new(THREADS as usize));
    let threads: Vec<_> = (1..=THREADS)
        .map(|seed| {
            let (library, begin) = (Arc::clone(&library), Arc::clone(&begin));
            thread::spawn(move || {
                begin.wait();
                work(library.start(|_| true), seed)
            })
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().expect("no thread panics"), [0; EXPORTS.len()], "all faults were taken");
    }
}

#[test]
fn recursion_is_refused_on_many_threads_while_functions_run() {
    let library = library();
    let recursive = [
        "(module (func $f (export \"f\") (param f64) (result f64) (call $f (local.get 0))))",
        "(module (func $f (export \"f\") (param f64) (result f64) (call $g (local.get 0)))
            (func $g (param f64) (result f64) (call $f (local.get 0))))",
    ];
    thread::scope(|scope| {
        for seed in 1..=2 {
            let library = Arc::clone(&library);
            scope.spawn(move || work(library.start(|_| true), 100 + seed));
        }
        for text in recursive {
            scope.spawn(move || {
                for _ in 0..50 {
                    let error = module(text).map(|_| ()).expect_err("recursion is refused").to_string();
                    assert!(error.contains("recursion") || error.contains("calls itself"), "{error}");
                }
            });
        }
    });
}
