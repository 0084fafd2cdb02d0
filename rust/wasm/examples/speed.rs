//! Prints the cost of a call beside that of a native closure, and the time to compile modules, also of hostile ones.
//!
//! `cargo run --release -p scorer-wasm --example speed`
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark that prints its figures")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use scorer_wasm::{Function, Library, Module};

/// Most nanoseconds that a call of a small function may take.
const TARGET_NANOS: f64 = 100.0;
/// Most seconds that the compilation of a module may take.
const TARGET_SECONDS: f64 = 2.0;

fn main() {
    let pure = r#"(module (func (export "f") (param f64 f64) (result f64)
        (f64.div (f64.add (local.get 0) (f64.const 2)) (f64.add (local.get 1) (f64.const 3)))))"#;
    let pages = |pages: u32| {
        format!(
            r#"(module (memory {pages}) (func (export "f") (param f64 f64) (result f64)
                (f64.store (i32.const 8) (local.get 0))
                (f64.div (f64.add (f64.load (i32.const 8)) (f64.const 2)) (f64.add (local.get 1) (f64.const 3)))))"#
        )
    };
    let looped = r#"(module (func (export "f") (param f64 f64) (result f64) (local $n i32)
        (local.set $n (i32.const 1000))
        (loop (local.set 0 (f64.add (local.get 0) (local.get 1)))
            (br_if 0 (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (local.get 0)))"#;
    let endless = r#"(module (func (export "f") (param f64 f64) (result f64) (loop (br 0)) (f64.const 0)))"#;
    let native = |x: f64, y: f64| (x + 2.0) / (y + 3.0);
    let closure = best(|at| black_box(&native)(black_box(at), black_box(0.5)));
    println!("{:44} {closure:>10.1} ns", "native closure");
    let mut small = f64::INFINITY;
    for (name, text, fuel) in [
        ("call of a small function", pure.to_owned(), 10_000),
        ("the same with a store, memory of 64 KiB", pages(1), 10_000),
        ("the same with a store, memory of 1 MiB", pages(16), 10_000),
        ("loop of 1,000 additions", looped.to_owned(), 10_000),
        ("endless loop, 100,000 instructions of fuel", endless.to_owned(), 100_000),
    ] {
        let module = Arc::new(Module::compile(&wat::parse_str(text).unwrap()).unwrap());
        let function = Function { module: 0, export: "f".to_owned(), fuel };
        let library = Arc::new(Library::new(vec![module], &[function]).unwrap());
        let mut instances = library.start(|_| true);
        let nanos = best(|at| instances.call(0, &[black_box(at), 0.5]).unwrap_or(0.0));
        small = small.min(nanos);
        println!("{name:44} {nanos:>10.1} ns");
    }
    let mut slowest = 0.0_f64;
    for (name, text) in [
        ("compile a small module", pure.to_owned()),
        ("compile 64 KiB of additions", additions()),
        ("compile 64 KiB of blocks with 250 locals", blocks()),
        ("compile 64 KiB of nested loops", loops()),
        ("compile 64 KiB of jump tables", tables()),
    ] {
        let bytes = wat::parse_str(text).unwrap();
        let began = Instant::now();
        let module = Module::compile(&bytes).unwrap();
        let seconds = began.elapsed().as_secs_f64();
        slowest = slowest.max(seconds);
        println!("{name:44} {:>10.1} ms, {} KiB", seconds * 1e3, module.heap_bytes() >> 10);
    }
    let verdict = |met: bool| if met { "met" } else { "MISSED" };
    println!("target: a call within {TARGET_NANOS} ns: {}", verdict(small <= TARGET_NANOS));
    println!("target: each module within {TARGET_SECONDS} s: {}", verdict(slowest <= TARGET_SECONDS));
}

/// Nanoseconds of the fastest of 20 batches of calls.
fn best(mut call: impl FnMut(f64) -> f64) -> f64 {
    let mut fastest = f64::INFINITY;
    let mut calls = 16_u32;
    for _ in 0..20 {
        let began = Instant::now();
        for at in 0..calls {
            black_box(call(f64::from(at)));
        }
        let nanos = began.elapsed().as_nanos() as f64;
        fastest = fastest.min(nanos / f64::from(calls));
        if nanos < 2e6 {
            calls *= 4;
        }
    }
    fastest
}

/// A module of four functions with this body, which has almost 16 KiB.
fn four(body: &str) -> String {
    let function = format!("(func (param f64 f64) (result f64) {body})");
    format!("(module {})", function.repeat(4))
}

fn additions() -> String {
    four(&format!("{} (local.get 0)", "(local.set 0 (f64.add (local.get 0) (local.get 1)))".repeat(2_000)))
}

fn blocks() -> String {
    let locals = "f64 ".repeat(250);
    let mut body = format!("(local {locals})");
    for at in 0..960 {
        let local = 2 + at % 250;
        body += &format!(
            "(block (br_if 0 (f64.lt (local.get 0) (local.get {local}))) (local.set {local} (local.get 1)))"
        );
    }
    for local in 2..252 {
        body += &format!("(local.set 0 (f64.add (local.get 0) (local.get {local})))");
    }
    four(&(body + "(local.get 0)"))
}

fn loops() -> String {
    let locals = "f64 ".repeat(250);
    let mut body = format!("(local {locals})");
    for round in 0..7 {
        for depth in 0..120 {
            let local = 2 + (round * 120 + depth) % 250;
            body += &format!("(loop (local.set {local} (f64.add (local.get {local}) (local.get 0)))");
        }
        body += &"(br_if 0 (f64.lt (local.get 0) (local.get 1))))".repeat(120);
    }
    four(&(body + "(local.get 0)"))
}

fn tables() -> String {
    let targets = (0..100).map(|at| format!("{at} ")).collect::<String>();
    let one = format!(
        "{}(br_table {targets} 0 (i32.trunc_sat_f64_s (local.get 0))){}",
        "(block ".repeat(100),
        ")".repeat(100)
    );
    four(&format!("{} (local.get 0)", one.repeat(30)))
}
