//! Results of calls, their independence of each other, and their faults.

mod support;

use scorer_wasm::limits::{DEFAULT_FUEL, MAX_ARGUMENTS, MAX_FUEL};
use scorer_wasm::{Fault, Function, Library, Module};
use std::sync::Arc;
use support::{call, library, module, of_body, ready};

#[test]
fn functions_of_every_number_of_arguments_see_them_in_order() {
    for count in 1..=MAX_ARGUMENTS {
        let parameters = "f64 ".repeat(count);
        let mut sum = "(f64.const 0)".to_owned();
        for at in 0..count {
            sum = format!("(f64.add (f64.mul {sum} (f64.const 3)) (local.get {at}))");
        }
        let text = format!("(module (func (export \"f\") (param {parameters}) (result f64) {sum}))");
        let arguments: Vec<f64> = (0..count).map(|at| at as f64 + 0.5).collect();
        let expected = arguments.iter().fold(0.0, |sum, argument| sum * 3.0 + argument);
        assert_eq!(call(&text, &arguments), Ok(expected), "{count} arguments");
        assert_eq!(call(&text, &[0.0; 17]), Err(Fault::Arguments));
    }
}

#[test]
fn nan_is_a_missing_value_whose_bits_no_function_can_tell_apart() {
    let text = of_body("(f64.convert_i64_u (i64.reinterpret_f64 (local.get $x)))");
    let bits = [f64::NAN, f64::from_bits(0x7ff8_dead_beef_0001), f64::from_bits(0xfff0_0000_0000_0001)];
    let seen: Vec<_> = bits.iter().map(|bits| call(&text, &[*bits]).unwrap()).collect();
    assert!(seen.iter().all(|seen| *seen == 9_221_120_237_041_090_560.0), "{seen:?}");
    // Arithmetic gives the same NaN wherever it comes from.
    let made = of_body(
        "(f64.convert_i64_u (i64.reinterpret_f64 (f64.sub (f64.div (local.get $x) (f64.const 0)) (f64.const inf))))",
    );
    assert_eq!(call(&made, &[1.0]), Ok(9_221_120_237_041_090_560.0));
    assert!(call(&of_body("(f64.sqrt (local.get $x))"), &[-1.0]).unwrap().is_nan());
    assert!(call(&of_body("(f64.add (local.get $x) (f64.const 1))"), &[f64::NAN]).unwrap().is_nan());
}

#[test]
fn traps_and_infinite_results_are_faults() {
    let divide =
        of_body("(f64.convert_i32_s (i32.div_s (i32.const 1) (i32.trunc_sat_f64_s (local.get $x))))");
    assert_eq!(call(&divide, &[0.0]), Err(Fault::Trap));
    assert_eq!(call(&divide, &[1.0]), Ok(1.0));
    assert_eq!(call(&of_body("unreachable"), &[0.0]), Err(Fault::Trap));
    assert_eq!(
        call(&of_body("(f64.convert_i32_s (i32.trunc_f64_s (local.get $x)))"), &[1e99]),
        Err(Fault::Trap)
    );
    assert_eq!(call(&of_body("(f64.div (f64.const 1) (local.get $x))"), &[0.0]), Err(Fault::Infinite));
    let load = "(module (memory 1) (func (export \"f\") (param f64) (result f64)
        (f64.load (i32.trunc_sat_f64_u (local.get 0)))))";
    assert_eq!(call(load, &[65_528.0]), Ok(0.0));
    assert_eq!(call(load, &[65_529.0]), Err(Fault::Trap));
    assert_eq!(call(load, &[1e12]), Err(Fault::Trap));
}

#[test]
fn an_endless_loop_ends_when_the_fuel_does() {
    let text = of_body("(loop (br 0)) (f64.const 0)");
    let mut instances = ready(&text, MAX_FUEL);
    assert_eq!(instances.call(0, &[1.0]), Err(Fault::OutOfFuel));
    // The next call has its own fuel.
    let counted = of_body(
        "(local $n i32) (local.set $n (i32.trunc_sat_f64_u (local.get $x)))
         (loop (br_if 0 (local.tee $n (i32.sub (local.get $n) (i32.const 1))))) (f64.const 7)",
    );
    let mut instances = ready(&counted, 1_000);
    for _ in 0..3 {
        assert_eq!(instances.call(0, &[100.0]), Ok(7.0));
        assert_eq!(instances.call(0, &[1e6]), Err(Fault::OutOfFuel));
    }
    let mut counted = Vec::new();
    instances.take_faults(|function, faults| counted.push((function, faults)));
    instances.take_faults(|function, faults| counted.push((function, faults)));
    assert_eq!(counted, [(0, 3)]);
}

#[test]
fn copies_and_fills_of_memory_cost_fuel_by_the_byte() {
    let fill = "(module (memory 16) (func (export \"f\") (param f64) (result f64)
        (memory.fill (i32.const 0) (i32.const 1) (i32.trunc_sat_f64_u (local.get 0))) (f64.const 1)))";
    let mut instances = ready(fill, 10_000);
    assert_eq!(instances.call(0, &[9_000.0]), Ok(1.0));
    assert_eq!(instances.call(0, &[11_000.0]), Err(Fault::OutOfFuel));
}

#[test]
fn the_memory_never_grows() {
    for pages in [0, 1] {
        let text = format!(
            "(module (memory {pages}) (func (export \"f\") (param f64) (result f64)
                (f64.convert_i32_s (memory.grow (i32.trunc_sat_f64_u (local.get 0))))))"
        );
        let mut instances = ready(&text, DEFAULT_FUEL);
        assert_eq!(instances.call(0, &[1.0]), Ok(-1.0));
        assert_eq!(instances.call(0, &[60_000.0]), Ok(-1.0));
        assert_eq!(instances.call(0, &[0.0]), Ok(f64::from(pages)));
    }
    let forever = "(module (memory 1) (func (export \"f\") (param f64) (result f64)
        (loop (drop (memory.grow (i32.const 1))) (br 0)) (f64.const 0)))";
    assert_eq!(call(forever, &[0.0]), Err(Fault::OutOfFuel));
}

/// Counts its calls in a global and in memory, and writes what it read.
const COUNTS: &str = r#"(module (memory (export "memory") 1) (data (i32.const 8) "\05")
    (global $calls (mut f64) (f64.const 100))
    (func (export "f") (param f64) (result f64)
        (global.set $calls (f64.add (global.get $calls) (f64.const 1)))
        (i32.store (i32.const 8) (i32.add (i32.load (i32.const 8)) (i32.const 1)))
        (if (f64.lt (local.get 0) (f64.const 0)) (then unreachable))
        (f64.add (global.get $calls) (f64.convert_i32_s (i32.load (i32.const 8)))))
    (func (export "read") (param f64) (result f64)
        (f64.add (global.get $calls) (f64.convert_i32_s (i32.load (i32.const 8))))))"#;

#[test]
fn no_call_sees_what_another_call_left() {
    let mut instances = library(COUNTS, &["f", "read"], DEFAULT_FUEL).start(|_| true);
    for _ in 0..3 {
        assert_eq!(instances.call(1, &[0.0]), Ok(105.0));
        assert_eq!(instances.call(0, &[0.0]), Ok(107.0));
        assert_eq!(instances.call(0, &[-1.0]), Err(Fault::Trap));
    }
    let mut clone = instances.clone();
    assert_eq!(clone.call(0, &[0.0]), Ok(107.0));
}

#[test]
fn work_counts_the_restoration_of_memory() {
    let pure = library(&of_body("(local.get $x)"), &["f"], 500);
    assert_eq!(pure.work(0), 500);
    let counting = library(COUNTS, &["f", "read"], 500);
    assert_eq!(counting.work(1), 500 + 65_536 / 16 + 1);
}

#[test]
fn functions_that_are_not_used_are_not_started() {
    let library = library(COUNTS, &["f", "read"], DEFAULT_FUEL);
    let mut instances = library.start(|function| function == 1);
    assert_eq!(instances.call(0, &[0.0]), Err(Fault::NotStarted));
    assert_eq!(instances.call(1, &[0.0]), Ok(105.0));
    assert_eq!(instances.call(2, &[0.0]), Err(Fault::NotStarted));
}

#[test]
fn names_and_types_and_fuel_are_checked_when_functions_are_put_together() {
    let text = r#"(module (func (export "whole") (param i32) (result f64) (f64.const 0))
        (func (export "none") (result f64) (f64.const 0))
        (func (export "nothing") (param f64))
        (func (export "good") (param f64 f64) (result f64) (local.get 1)))"#;
    let compiled: Arc<Module> = Arc::new(module(text).unwrap());
    let of = |export: &str, fuel: u64, module: usize| {
        let function = Function { module, export: export.to_owned(), fuel };
        Library::new(vec![Arc::clone(&compiled)], &[function]).map_err(|(at, error)| (at, error.to_string()))
    };
    assert_eq!(of("good", 1, 0).unwrap().arguments(0), Some(2));
    assert_eq!(compiled.functions().collect::<Vec<_>>(), [("good", 2)]);
    for (export, fuel, position, expected) in [
        ("gone", 1, 0, "exports no function \"gone\", but whole, none, nothing, good; correct"),
        ("whole", 1, 0, "has the type (i32) -> (f64), not 1 to 16"),
        ("none", 1, 0, "has the type () -> (f64)"),
        ("nothing", 1, 0, "has the type (f64) -> ()"),
        ("good", 0, 0, "fuel 0 is not from 1 to 100000"),
        ("good", 100_001, 0, "fuel 100001 is not from 1 to 100000"),
        ("good", 1, 1, "no module 1"),
    ] {
        let (at, error) = of(export, fuel, position).unwrap_err();
        assert_eq!(at, 0);
        assert!(error.contains(expected), "{error}");
    }
}
