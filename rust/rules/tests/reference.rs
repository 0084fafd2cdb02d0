//! Random expressions give the results of a naive interpreter.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod support;

use scorer_rules::{ErrorKind, ListKey, Outcome, Program, Source, Type, Value};
use support::{
    Dialect, Interpreter, Lack, Node, Plain, Random, environment, generate, lists, render, set, values,
};

/// The result in the form of the interpreter. Strings outside the vocabulary have one name.
fn plain(outcome: Outcome<Value<'_>>) -> Result<Plain, Lack> {
    match outcome {
        Outcome::Known(Value::Bool(value)) => Ok(Plain::Bool(value)),
        Outcome::Known(Value::Int(value)) => Ok(Plain::Int(value)),
        Outcome::Known(Value::Double(value)) => Ok(Plain::Double(value)),
        Outcome::Known(Value::Text(text)) => Ok(Plain::Text(text.unwrap_or(support::OUTSIDE).to_owned())),
        Outcome::Known(Value::Key(_)) => panic!("no expression of this test is a key"),
        Outcome::Unknown => Err(Lack::Unknown),
        Outcome::Error(ErrorKind::DivisionByZero) => Err(Lack::DivisionByZero),
        Outcome::Error(ErrorKind::Overflow) => Err(Lack::Overflow),
        Outcome::Error(ErrorKind::Range) => Err(Lack::Range),
        Outcome::Error(ErrorKind::NoList) => Err(Lack::NoList),
        Outcome::Error(ErrorKind::NotANumber) => Err(Lack::NotANumber),
        Outcome::Error(ErrorKind::Failed) => panic!("no function is declared"),
    }
}

fn same(left: &Result<Plain, Lack>, right: &Result<Plain, Lack>) -> bool {
    match (left, right) {
        // Operands of a sum of two NaN decide its sign.
        (Ok(Plain::Double(left)), Ok(Plain::Double(right))) if left.is_nan() => right.is_nan(),
        (Ok(Plain::Double(left)), Ok(Plain::Double(right))) => left.to_bits() == right.to_bits(),
        _ => left == right,
    }
}

#[test]
fn programs_agree_with_the_interpreter() {
    let environment = environment();
    let lists = lists(&environment);
    for seed in 0..4_000 {
        let mut random = Random(seed);
        let nodes: Vec<Node> = (0..3)
            .map(|_| {
                let kind = random.pick(&[Type::Bool, Type::Bool, Type::Int, Type::Double, Type::Text]);
                let depth = 1 + random.below(5);
                generate(&mut random, kind, depth, Dialect { extended: true })
            })
            .collect();
        let texts: Vec<String> = nodes.iter().map(|node| render(node, &mut random, 0)).collect();
        let sources: Vec<Source<'_>> = texts.iter().map(|text| Source { rule: "random", text }).collect();
        let program = Program::compile(&environment, ListKey::new(support::KEY), &sources)
            .unwrap_or_else(|faults| panic!("seed {seed}: {}: {}", faults[0], texts.join("\n")));
        let mut scratch = program.scratch();
        for _ in 0..8 {
            let values = values(&mut random);
            set(&program, &mut scratch, &values);
            for (at, node) in nodes.iter().enumerate() {
                let expected = Interpreter { values: &values, elements: Vec::new() }.value(node);
                let got = plain(program.evaluate(at, &mut scratch, &lists));
                assert!(
                    same(&got, &expected),
                    "seed {seed}: {}\n{values:?}\n{got:?} {expected:?}",
                    texts[at]
                );
            }
        }
    }
}

/// No text makes the compiler panic.
#[test]
fn any_text_is_compiled_or_refused() {
    let tokens = [
        "i0",
        "d0",
        "b0",
        "t1",
        "k0",
        "t.x",
        "e",
        "has",
        "size",
        "int",
        "list",
        "abs",
        "within",
        "exists",
        "true",
        "null",
        "1",
        "2.5",
        "'a'",
        "&&",
        "||",
        "!",
        "-",
        "+",
        "*",
        "/",
        "%",
        "==",
        "<",
        ">=",
        "in",
        "?",
        ":",
        "(",
        ")",
        "[",
        "]",
        ",",
        ".",
        "{",
        "}",
        "1u",
        "b'a'",
        ".matches('(')",
        "'",
        "\"",
        "\\",
        "é",
        "\u{0}",
        "\n",
        "0x",
        "1e",
        "&",
        "r'",
        "9223372036854775808",
    ];
    let environment = environment();
    for seed in 0..20_000 {
        let mut random = Random(seed);
        let count = random.below(24);
        let between = random.pick(&["", " "]);
        let text = (0..count).map(|_| random.pick(&tokens)).collect::<Vec<_>>().join(between);
        let source = Source { rule: "tokens", text: &text };
        if let Err(faults) = Program::compile(&environment, ListKey::new(support::KEY), &[source]) {
            assert!(faults[0].line >= 1 && faults[0].column >= 1, "seed {seed}");
        }
    }
}

/// The interpreter's own answers are right for some expressions that are written out.
#[test]
fn the_interpreter() {
    let mut values = support::Values::new();
    values.insert("i0", Plain::Int(7));
    let value = |node: &Node| Interpreter { values: &values, elements: Vec::new() }.value(node);
    let name = |name| Box::new(Node::Name(name));
    let seventh = Node::Binary("/", name("i0"), Box::new(Node::Int(0)));
    assert_eq!(value(&seventh), Err(Lack::DivisionByZero));
    let absorbed = Node::And(vec![Node::Binary("==", Box::new(seventh), name("i0")), Node::Bool(false)]);
    assert_eq!(value(&absorbed), Ok(Plain::Bool(false)));
    assert_eq!(value(&Node::Or(vec![Node::Name("b0"), Node::Bool(true)])), Ok(Plain::Bool(true)));
    assert_eq!(value(&Node::Name("b0")), Err(Lack::Unknown));
}
