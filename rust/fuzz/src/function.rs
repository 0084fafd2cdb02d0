//! Modules of a bundle's functions.

use std::sync::Arc;

use scorer_wasm::{Function, Library, Module};

/// Values that are special in functions.
const VALUES: [f64; 6] = [0.0, -0.0, 1.0, -1.5, f64::NAN, 1e30];

/// Compiles a module and calls each function twice, with a call of every other one between the two.
pub fn run(data: &[u8]) {
    let Ok(module) = Module::compile(data) else { return };
    let functions: Vec<Function> = module
        .functions()
        .map(|(export, _)| Function { module: 0, export: export.to_owned(), fuel: 1_000 })
        .collect();
    let library = Library::new(vec![Arc::new(module)], &functions).expect("its own functions fit");
    let library = Arc::new(library);
    let mut instances = library.start(|_| true);
    let arguments = |function: usize, shift: usize| -> Vec<f64> {
        let count = library.arguments(function).expect("there is such a function");
        (0..count).map(|at| VALUES[(at + shift) % VALUES.len()]).collect()
    };
    for function in 0..functions.len() {
        let first = instances.call(function, &arguments(function, 0));
        for other in 0..functions.len() {
            let _ = instances.call(other, &arguments(other, 3));
        }
        let again = instances.call(function, &arguments(function, 0));
        match (first, again) {
            (Ok(one), Ok(other)) => {
                assert!(one.to_bits() == other.to_bits() || (one.is_nan() && other.is_nan()));
            }
            (one, other) => assert_eq!(one, other),
        }
    }
}

/// The text of modules that are accepted, with their names.
pub const SEEDS: [(&str, &str); 3] = [
    ("pure", "(module (func (export \"f\") (param f64 f64) (result f64) (f64.div (local.get 0) (local.get 1))))"),
    (
        "state",
        "(module (memory 1) (data (i32.const 8) \"ab\") (global (mut i32) (i32.const 7))
            (func $g (param i32) (result i32) (i32.add (local.get 0) (global.get 0)))
            (func (export \"f\") (param f64) (result f64)
                (global.set 0 (call $g (i32.const 3)))
                (i32.store (i32.const 4) (i32.add (i32.load (i32.const 8)) (global.get 0)))
                (f64.convert_i32_s (i32.load (i32.const 4)))))",
    ),
    (
        "loop",
        "(module (func (export \"f\") (param f64) (result f64) (local i64)
            (loop (local.set 1 (i64.add (local.get 1) (i64.const 1)))
                (br_if 0 (i64.lt_s (local.get 1) (i64.trunc_sat_f64_s (local.get 0)))))
            (if (result f64) (i64.eqz (local.get 1)) (then unreachable) (else (f64.convert_i64_s (local.get 1))))))",
    ),
];
