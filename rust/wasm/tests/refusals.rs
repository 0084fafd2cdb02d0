//! Modules that are refused before they are compiled.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here is a failed test")]

mod support;

use scorer_wasm::limits::{
    MAX_BODY_BYTES, MAX_CALL_DEPTH, MAX_CODE_BYTES, MAX_LOCALS, MAX_MODULE_BYTES, MAX_MODULE_FUNCTIONS,
};
use scorer_wasm::{Module, ModuleError};
use support::{module, of_body};

fn refused(text: &str) -> String {
    match module(text) {
        Ok(_) => panic!("accepted: {text:.300}"),
        Err(error) => error.to_string(),
    }
}

/// Fault case 106.
#[test]
fn parts_that_functions_cannot_have_are_refused_by_name() {
    let f = "(func (export \"f\") (param f64) (result f64) (local.get 0))";
    for (text, expected) in [
        (format!("(module (import \"env\" \"now\" (func)) {f})"), "an import, the function \"now\" of \"env\"; a"),
        (format!("(module (import \"wasi\" \"m\" (memory 1)) {f})"), "an import, the import \"m\" of \"wasi\""),
        (format!("(module {f} (func $s) (start $s))"), "has a start function"),
        (format!("(module (table 1 funcref) (elem (i32.const 0) 0) {f})"), "elements of a table"),
        (
            "(module (type $t (func (param f64) (result f64))) (table 1 funcref)
                (func (export \"f\") (param f64) (result f64) (call_indirect (type $t) (local.get 0) (i32.const 0))))"
                .to_owned(),
            "an indirect call",
        ),
        (format!("(module (memory 17) {f})"), "has 17 pages of memory, at most 16"),
        (format!("(module (memory i64 1) {f})"), "is not a valid module"),
        (format!("(module (memory 1 1 shared) {f})"), "is not a valid module"),
        (format!("(module (memory 1) (memory 1) {f})"), "is not a valid module"),
        (format!("(module (memory 1) (data \"a\") {f})"), "a passive data segment"),
        (
            "(module (memory 1) (data (i32.const 0) \"a\") (func (export \"f\") (param f64) (result f64)
                (data.drop 0) (local.get 0)))"
                .to_owned(),
            "an operation on segments",
        ),
        (of_body("(drop (v128.const i64x2 0 0)) (local.get $x)"), "is not a valid module"),
        (
            "(module (memory 1) (func (export \"f\") (param f64) (result f64)
                (drop (i32.atomic.load (i32.const 0))) (local.get 0)))"
                .to_owned(),
            "is not a valid module",
        ),
        (
            "(module (func (export \"f\") (param f64) (result f64) (block (result f64 f64) (local.get 0) (local.get 0)) (drop)))"
                .to_owned(),
            "is not a valid module",
        ),
        (
            "(module (func $f (export \"f\") (param f64) (result f64) (return_call $f (local.get 0))))".to_owned(),
            "is not a valid module",
        ),
    ] {
        let error = refused(&text);
        assert!(error.contains(expected), "{error}\n{text}");
        assert!(!error.contains('\n'));
    }
}

#[test]
fn data_outside_the_memory_stops_the_start() {
    let text = "(module (memory 1) (data (i32.const 65535) \"ab\")
        (func (export \"f\") (param f64) (result f64) (local.get 0)))";
    assert!(matches!(module(text), Err(ModuleError::Start(_))), "{:?}", module(text));
}

#[test]
fn recursion_is_refused_however_long_its_way_is() {
    let direct = "(module (func $f (export \"f\") (param f64) (result f64) (call $f (local.get 0))))";
    assert!(refused(direct).contains("recursion: function 0 calls itself"));
    let around = "(module
        (func $a (export \"f\") (param f64) (result f64) (call $b (local.get 0)))
        (func $b (param f64) (result f64) (call $c (local.get 0)))
        (func $c (param f64) (result f64) (call $a (local.get 0))))";
    assert!(refused(around).contains("recursion"));
    // Two ways to the same function are none.
    let shared = "(module
        (func $a (export \"f\") (param f64) (result f64) (f64.add (call $b (local.get 0)) (call $c (local.get 0))))
        (func $b (param f64) (result f64) (call $c (local.get 0)))
        (func $c (param f64) (result f64) (local.get 0)))";
    assert!(module(shared).is_ok());
}

#[test]
fn the_depth_of_calls_is_bounded() {
    let chain = |length: usize| {
        let mut text =
            "(module (func (export \"f\") (param f64) (result f64) (call 1 (local.get 0)))".to_owned();
        for at in 1..length {
            let call = if at + 1 == length {
                String::new()
            } else {
                format!("(drop (call {} (local.get 0)))", at + 1)
            };
            text += &format!("(func (param f64) (result f64) {call} (local.get 0))");
        }
        text + ")"
    };
    assert!(module(&chain(MAX_CALL_DEPTH)).is_ok());
    assert!(refused(&chain(MAX_CALL_DEPTH + 1)).contains("has 33 nested calls, at most 32"));
}

/// Fault case 106.
#[test]
fn modules_beyond_a_limit_are_refused() {
    let function = "(func (param f64) (result f64) (local.get 0))";
    let many = |count: usize| format!("(module {})", function.repeat(count));
    assert!(module(&many(MAX_MODULE_FUNCTIONS)).is_ok());
    assert!(refused(&many(MAX_MODULE_FUNCTIONS + 1)).contains("has 257 functions, at most 256"));
    let locals = |count: usize| of_body(&format!("(local {}) (local.get $x)", "f64 ".repeat(count)));
    assert!(module(&locals(MAX_LOCALS - 1)).is_ok());
    assert!(refused(&locals(MAX_LOCALS)).contains("has 257 parameters and locals in a function"));
    let nested =
        |depth: usize| of_body(&format!("{}{} (local.get $x)", "(block ".repeat(depth), ")".repeat(depth)));
    assert!(module(&nested(128)).is_ok());
    assert!(refused(&nested(129)).contains("has 129 nested blocks in a function"));
    let long = of_body(&format!("{} (local.get $x)", "(drop (local.get $x))".repeat(MAX_BODY_BYTES / 3 + 1)));
    assert!(refused(&long).contains("bytes in a function, at most 16384"));
    let part = format!("(func {})", "(drop (i32.const 1))".repeat(5_000));
    let text = format!("(module {})", part.repeat(MAX_CODE_BYTES / 15_000 + 1));
    assert!(refused(&text).contains("bytes of code, at most 65536"));
    let data = format!("(module (memory 16) (data (i32.const 0) \"{}\"))", "a".repeat(MAX_MODULE_BYTES));
    assert!(refused(&data).contains("bytes, at most 131072"));
    let globals = format!("(module {})", "(global i32 (i32.const 0))".repeat(257));
    assert!(refused(&globals).contains("has 257 globals, at most 256"));
    let segments = format!("(module (memory 1) {})", "(data (i32.const 0) \"a\")".repeat(257));
    assert!(refused(&segments).contains("has 257 data segments, at most 256"));
}

#[test]
fn damaged_bytes_are_refused_and_never_panic() {
    let whole = wat::parse_str(
        "(module (memory 1) (data (i32.const 0) \"abc\") (global (mut i32) (i32.const 1))
            (func $g (param f64) (result f64) (f64.sqrt (local.get 0)))
            (func (export \"f\") (param f64) (result f64) (loop (br_if 0 (i32.const 0))) (call $g (local.get 0))))",
    )
    .unwrap();
    assert!(Module::compile(&whole).is_ok());
    for bytes in [&b""[..], b"\0asm", b"\0asm\x02\0\0\0", b"not a module", b"\0asm\x0d\0\x01\0"] {
        assert!(matches!(Module::compile(bytes), Err(ModuleError::Invalid(_))), "{bytes:?}");
    }
    for end in 0..whole.len() {
        let _ = Module::compile(&whole[..end]);
    }
    for at in 8..whole.len() {
        for flip in [1, 0x40, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] ^= flip;
            let _ = Module::compile(&bytes);
        }
    }
}
