//! Random expressions have the results of cel-rust where both languages agree.
//!
//! Values are never missing, because cel-rust has no unknown values. Errors are compared as errors.
#![allow(dead_code, reason = "the support of rust/rules has more than this test needs")]

#[path = "../../../../rust/rules/tests/support/mod.rs"]
mod support;

use cel::{Context, ExecutionError, Program as Peer, Value as PeerValue};
use scorer_rules::{ListKey, Outcome, Program, Source, Type, Value};
use support::{Dialect, NAMES, OUTSIDE, Plain, Random, environment, generate, lists, render, set, values};

const CASES: u64 = 20_000;

#[test]
fn random_expressions() {
    let environment = environment();
    let lists = lists(&environment);
    let (mut compared, mut errors, mut left_out) = (0_u64, 0, 0_u64);
    for seed in 0..CASES {
        let mut random = Random(seed);
        let kind = random.pick(&[Type::Bool, Type::Bool, Type::Int, Type::Double]);
        let node = generate(&mut random, kind, 1 + (seed % 4) as usize, Dialect { extended: false });
        let text = render(&node, &mut random, 0);
        let program = Program::compile(
            &environment,
            ListKey::new(support::KEY),
            &[Source { rule: "case", text: &text }],
        )
        .unwrap_or_else(|faults| panic!("{text}: {}", faults[0]));
        let peer = Peer::compile(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let mut row = values(&mut random);
        for (name, kind) in NAMES {
            let filled = row.entry(name).or_insert(match kind {
                Type::Bool => Plain::Bool(true),
                Type::Int => Plain::Int(5),
                Type::Double => Plain::Double(2.5),
                _ => Plain::Text("DE".to_owned()),
            });
            if *filled == Plain::Text(OUTSIDE.to_owned()) {
                *filled = Plain::Text("NL".to_owned());
            }
        }
        let mut scratch = program.scratch();
        set(&program, &mut scratch, &row);
        let mut context = Context::default();
        let mut text_fields = std::collections::HashMap::new();
        for (name, value) in &row {
            let value = match value {
                Plain::Bool(value) => PeerValue::Bool(*value),
                Plain::Int(value) => PeerValue::Int(*value),
                Plain::Double(value) => PeerValue::Float(*value),
                Plain::Text(text) => PeerValue::String(text.clone().into()),
            };
            match name.split_once('.') {
                Some((_, field)) => drop(text_fields.insert(field.to_owned(), value)),
                None => context.add_variable_from_value(*name, value),
            }
        }
        context.add_variable_from_value("t", PeerValue::from(text_fields));
        let got = program.evaluate(0, &mut scratch, &lists);
        let expected = peer.execute(&context);
        // The peer compares neither bools by order nor doubles with NaN; the specification does.
        if matches!(expected, Err(ExecutionError::NoSuchOverload(_))) {
            left_out += 1;
            continue;
        }
        let same = match (&got, &expected) {
            (Outcome::Known(Value::Bool(a)), Ok(PeerValue::Bool(b))) => a == b,
            (Outcome::Known(Value::Int(a)), Ok(PeerValue::Int(b))) => a == b,
            (Outcome::Known(Value::Double(a)), Ok(PeerValue::Float(b))) => {
                a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
            }
            (Outcome::Error(_), Err(_)) => {
                errors += 1;
                true
            }
            _ => false,
        };
        assert!(same, "seed {seed}: {text}\n{row:?}\nours {got:?}\ncel {expected:?}");
        compared += 1;
    }
    println!(
        "{compared} expressions, {errors} of them errors in both; {left_out} that the peer does not support"
    );
    assert!(compared > CASES * 9 / 10);
}
