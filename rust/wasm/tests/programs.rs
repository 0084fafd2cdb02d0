//! Random arithmetic programs in WebAssembly against the same programs in Rust, bit for bit.

mod support;

use proptest::prelude::*;
use scorer_wasm::limits::DEFAULT_FUEL;
use support::{call, of_body};

/// An expression over two arguments.
#[derive(Debug, Clone)]
enum Program {
    Argument(bool),
    Constant(f64),
    One(&'static str, Box<Program>),
    Two(&'static str, Box<Program>, Box<Program>),
    /// The second program where the first one is below the third, else the fourth.
    If(Box<[Program; 4]>),
    /// The program applied to its own result a number of times: it replaces the first argument.
    Repeat(u8, Box<Program>),
}

const UNARY: [&str; 8] = ["neg", "abs", "sqrt", "floor", "ceil", "trunc", "nearest", "demote"];
const BINARY: [&str; 7] = ["add", "sub", "mul", "div", "min", "max", "copysign"];

fn program() -> impl Strategy<Value = Program> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Program::Argument),
        prop_oneof![
            any::<f64>(),
            Just(0.0),
            Just(-0.0),
            Just(f64::NAN),
            Just(f64::INFINITY),
            (-9..9_i32).prop_map(|number| f64::from(number) / 4.0),
        ]
        .prop_map(Program::Constant),
    ];
    leaf.prop_recursive(5, 60, 4, |inner| {
        let boxed = inner.prop_map(Box::new).boxed();
        prop_oneof![
            (prop::sample::select(&UNARY[..]), boxed.clone()).prop_map(|(name, a)| Program::One(name, a)),
            (prop::sample::select(&BINARY[..]), boxed.clone(), boxed.clone())
                .prop_map(|(name, a, b)| Program::Two(name, a, b)),
            (boxed.clone(), boxed.clone(), boxed.clone(), boxed.clone())
                .prop_map(|(a, b, c, d)| Program::If(Box::new([*a, *b, *c, *d]))),
            (0..4_u8, boxed).prop_map(|(count, a)| Program::Repeat(count, a)),
        ]
    })
}

/// The text of a program, whose first argument is in a local.
fn text(program: &Program) -> String {
    match program {
        Program::Argument(second) => format!("(local.get {})", u8::from(*second)),
        Program::Constant(number) => {
            format!("(f64.reinterpret_i64 (i64.const {}))", canonical(*number).to_bits() as i64)
        }
        Program::One("demote", a) => format!("(f64.promote_f32 (f32.demote_f64 {}))", text(a)),
        Program::One(name, a) => format!("(f64.{name} {})", text(a)),
        Program::Two(name, a, b) => format!("(f64.{name} {} {})", text(a), text(b)),
        Program::If(parts) => {
            let [a, b, c, d] = parts.each_ref().map(text);
            format!("(if (result f64) (f64.lt {a} {c}) (then {b}) (else {d}))")
        }
        // The stack keeps the argument while it is replaced.
        Program::Repeat(count, a) => {
            let step = format!("(local.set 0 {})", text(a));
            format!("(local.get 0) {} (local.get 0) (call $swap)", step.repeat(usize::from(*count)))
        }
    }
}

/// Every NaN that is an operand or result has the same bits, apart from its sign.
fn canonical(value: f64) -> f64 {
    if value.is_nan() { f64::from_bits(0x7ff8_0000_0000_0000) } else { value }
}

fn value(program: &Program, x: f64, y: f64) -> f64 {
    match program {
        Program::Argument(second) => {
            if *second {
                y
            } else {
                x
            }
        }
        Program::Constant(number) => *number,
        Program::One(name, a) => {
            let a = value(a, x, y);
            match *name {
                "neg" => -a,
                "abs" => a.abs(),
                "sqrt" => a.sqrt(),
                "floor" => a.floor(),
                "ceil" => a.ceil(),
                "trunc" => a.trunc(),
                "nearest" => a.round_ties_even(),
                _ => f64::from(a as f32),
            }
        }
        Program::Two(name, a, b) => {
            let (a, b) = (value(a, x, y), value(b, x, y));
            match *name {
                "add" => a + b,
                "sub" => a - b,
                "mul" => a * b,
                "div" => a / b,
                "copysign" => a.copysign(b),
                _ if a.is_nan() || b.is_nan() => f64::NAN,
                // Of two zeros, the negative one is the less.
                "min" if a == b => {
                    if a.is_sign_negative() {
                        a
                    } else {
                        b
                    }
                }
                "max" if a == b => {
                    if a.is_sign_negative() {
                        b
                    } else {
                        a
                    }
                }
                "min" => a.min(b),
                _ => a.max(b),
            }
        }
        Program::If(parts) => {
            let [a, b, c, d] = &**parts;
            if value(a, x, y) < value(c, x, y) { value(b, x, y) } else { value(d, x, y) }
        }
        Program::Repeat(count, a) => {
            let mut x = x;
            for _ in 0..*count {
                x = value(a, x, y);
            }
            x
        }
    }
}

/// Whether the sign of a NaN can decide the result: the standard leaves it open before it is made canonical.
fn looks_at_signs(program: &Program) -> bool {
    match program {
        Program::Argument(_) | Program::Constant(_) => false,
        Program::Two("copysign", ..) => true,
        Program::One(_, a) | Program::Repeat(_, a) => looks_at_signs(a),
        Program::Two(_, a, b) => looks_at_signs(a) || looks_at_signs(b),
        Program::If(parts) => parts.iter().any(looks_at_signs),
    }
}

fn module_of(program: &Program) -> String {
    // `swap` drops the argument below the result.
    let body = text(program);
    format!(
        "(module
            (func $swap (param f64 f64) (result f64) (local.get 1))
            (func (export \"f\") (param f64 f64) (result f64) {body}))"
    )
}

fn arguments() -> impl Strategy<Value = f64> {
    prop_oneof![any::<f64>(), Just(f64::NAN), (-40..40_i32).prop_map(|number| f64::from(number) / 8.0)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn wasm_computes_what_rust_computes(program in program(), x in arguments(), y in arguments()) {
        // After a repetition the first argument is another one, in both.
        prop_assume!(!repeats_inside(&program));
        let expected = value(&program, x, y);
        let found = call(&module_of(&program), &[x, y]);
        if expected.is_infinite() {
            prop_assert_eq!(found, Err(scorer_wasm::Fault::Infinite));
        } else if expected.is_nan() {
            prop_assert!(found.unwrap().is_nan() || looks_at_signs(&program));
        } else if !looks_at_signs(&program) {
            prop_assert_eq!(found.unwrap().to_bits(), expected.to_bits());
        }
    }
}

/// Whether a repetition is part of another expression, which would see the argument that it leaves.
fn repeats_inside(program: &Program) -> bool {
    fn repeats(program: &Program) -> bool {
        match program {
            Program::Argument(_) | Program::Constant(_) => false,
            Program::Repeat(..) => true,
            Program::One(_, a) => repeats(a),
            Program::Two(_, a, b) => repeats(a) || repeats(b),
            Program::If(parts) => parts.iter().any(repeats),
        }
    }
    match program {
        Program::Repeat(_, a) => repeats(a),
        other => repeats(other),
    }
}

#[test]
fn a_clone_and_the_same_instance_give_the_same_bits() {
    let text = of_body("(f64.div (f64.const 1) (f64.add (local.get $x) (f64.const 3)))");
    let mut first = support::ready(&text, DEFAULT_FUEL);
    let mut second = first.clone();
    for number in 0..1000 {
        let x = f64::from(number) * 0.37;
        let (one, other) = (first.call(0, &[x]).unwrap(), second.call(0, &[x]).unwrap());
        assert_eq!(one.to_bits(), (1.0 / (x + 3.0)).to_bits());
        assert_eq!(one.to_bits(), other.to_bits());
    }
}
