//! Cases of CEL's conformance tests for the subset, and everything else refused by name.
//!
//! The cases follow the areas of the simple tests of cel-spec: integer and double arithmetic, comparisons, logic,
//! strings, lists, macros, conversions, parsing. Most are evaluated twice: as written, which tests the constants
//! that compiling computes, and with their numbers as names, which tests the instructions.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use scorer_rules::{Environment, ErrorKind, ListKey, ListKind, Lists, Outcome, Program, Source, Type, Value};

const KEY: [u8; 16] = [7; 16];

/// Expected results.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Expected {
    Bool(bool),
    Int(i64),
    Double(f64),
    Text(&'static str),
    Error(ErrorKind),
}

use Expected::{Bool, Double, Error, Int, Text};

const YES: Expected = Bool(true);
const NO: Expected = Bool(false);
const ZERO: Expected = Error(ErrorKind::DivisionByZero);
const OVERFLOW: Expected = Error(ErrorKind::Overflow);
const RANGE: Expected = Error(ErrorKind::Range);

fn result(outcome: Outcome<Value<'_>>) -> Option<Expected> {
    Some(match outcome {
        Outcome::Known(Value::Bool(value)) => Bool(value),
        Outcome::Known(Value::Int(value)) => Int(value),
        Outcome::Known(Value::Double(value)) => Double(value),
        Outcome::Known(Value::Text(text)) => Text(Box::leak(text?.to_owned().into_boxed_str())),
        Outcome::Error(kind) => Error(kind),
        _ => return None,
    })
}

fn constant(text: &str) -> Option<Expected> {
    let environment = Environment::new();
    let key = ListKey::new(KEY);
    let program = Program::compile(&environment, key, &[Source { rule: "case", text }])
        .unwrap_or_else(|faults| panic!("{text}: {}", faults[0]));
    result(program.evaluate(0, &mut program.scratch(), &Lists::new(key, &environment)))
}

/// Evaluates with every number outside strings, brackets and words as a name that has its value.
fn with_names(text: &str) -> Option<Expected> {
    let bytes = text.as_bytes();
    let (mut written, mut ints, mut doubles) = (String::new(), Vec::new(), Vec::new());
    let (mut at, mut brackets, mut quote) = (0, 0, None);
    while at < bytes.len() {
        let byte = bytes[at];
        let word = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
        match quote {
            Some(open) => {
                if byte == open {
                    quote = None;
                }
            }
            None => match byte {
                b'"' | b'\'' => quote = Some(byte),
                b'[' => brackets += 1,
                b']' => brackets -= 1,
                b'0'..=b'9' if brackets == 0 && !word => {
                    let end = at
                        + text[at..]
                            .find(|next: char| !next.is_ascii_alphanumeric() && next != '.')
                            .unwrap_or(text.len() - at);
                    // An exponent with a sign, and the magnitude of the smallest int, stay as they are.
                    let number = &text[at..end];
                    if let Ok(value) = number.parse::<i64>() {
                        written.push_str(&format!("i{}", ints.len()));
                        ints.push(value);
                    } else if let (Ok(value), true) =
                        (number.parse::<f64>(), number.contains('.') && !number.contains('e'))
                    {
                        written.push_str(&format!("d{}", doubles.len()));
                        doubles.push(value);
                    } else {
                        written.push_str(number);
                    }
                    at = end;
                    continue;
                }
                _ => {}
            },
        }
        written.push(char::from(byte));
        at += 1;
    }
    let mut environment = Environment::new();
    let int_slots: Vec<_> =
        (0..ints.len()).map(|at| environment.declare(&format!("i{at}"), Type::Int).unwrap()).collect();
    let double_slots: Vec<_> =
        (0..doubles.len()).map(|at| environment.declare(&format!("d{at}"), Type::Double).unwrap()).collect();
    let key = ListKey::new(KEY);
    let program = Program::compile(&environment, key, &[Source { rule: "case", text: &written }])
        .unwrap_or_else(|faults| panic!("{written}: {}", faults[0]));
    let mut scratch = program.scratch();
    for (slot, value) in int_slots.iter().zip(&ints) {
        scratch.set_int(*slot, *value);
    }
    for (slot, value) in double_slots.iter().zip(&doubles) {
        scratch.set_double(*slot, *value);
    }
    result(program.evaluate(0, &mut scratch, &Lists::new(key, &environment)))
}

fn agrees(cases: &[(&str, Expected)], names: bool) {
    for (text, expected) in cases {
        assert_eq!(constant(text), Some(*expected), "{text}");
        if names {
            assert_eq!(with_names(text), Some(*expected), "{text} with names");
        }
    }
}

#[test]
fn integers() {
    agrees(
        &[
            ("17 + 25", Int(42)),
            ("17 + (-25)", Int(-8)),
            ("-17 - (-25)", Int(8)),
            ("6 * 7", Int(42)),
            ("-6 * (-7)", Int(42)),
            ("84 / 2", Int(42)),
            ("-7 / 2", Int(-3)),
            ("7 / -2", Int(-3)),
            ("47 % 5", Int(2)),
            ("47 % (-5)", Int(2)),
            ("-47 % 5", Int(-2)),
            ("-47 % (-5)", Int(-2)),
            ("-(-42)", Int(42)),
            ("--42", Int(42)),
            ("---42", Int(-42)),
            ("5 / 0", ZERO),
            ("5 % 0", ZERO),
            ("0 / 0", ZERO),
            ("5 * 0", Int(0)),
            ("9223372036854775807 + 1", OVERFLOW),
            ("-9223372036854775807 - 2", OVERFLOW),
            ("1 - (-9223372036854775807)", OVERFLOW),
            ("5000000000 * 5000000000", OVERFLOW),
            ("(-5000000000) * 5000000000", OVERFLOW),
            ("-(-9223372036854775807 - 1)", OVERFLOW),
            ("(-9223372036854775807 - 1) / -1", OVERFLOW),
            ("(-9223372036854775807 - 1) % -1", OVERFLOW),
            ("(-9223372036854775807 - 1) * -1", OVERFLOW),
            ("9 + 4 == 4 + 9", YES),
            ("2 * (3 * 4) == (2 * 3) * 4", YES),
            ("2 * (3 + 4) == 2 * 3 + 2 * 4", YES),
        ],
        true,
    );
    agrees(
        &[
            ("-9223372036854775808", Int(i64::MIN)),
            ("-9223372036854775808 - 1", OVERFLOW),
            ("-(-9223372036854775808)", OVERFLOW),
            ("0x2A", Int(42)),
            ("-0x8000000000000000", Int(i64::MIN)),
            ("0x7fffffffffffffff", Int(i64::MAX)),
        ],
        false,
    );
}

#[test]
fn doubles() {
    agrees(
        &[
            ("4.5 + 15.25", Double(19.75)),
            ("4.5 - (-1.25)", Double(5.75)),
            ("40.75 * (-2.25)", Double(-91.6875)),
            ("0.0625 / 0.002", Double(31.25)),
            ("-(4.5)", Double(-4.5)),
            ("-(0.0)", Double(-0.0)),
            ("15.75 / 0.0", Double(f64::INFINITY)),
            ("-15.75 / 0.0", Double(f64::NEG_INFINITY)),
            ("0.0 / 0.0 == 0.0 / 0.0", NO),
            ("0.0 / 0.0 != 0.0 / 0.0", YES),
            ("0.0 / 0.0 < 1.0", NO),
            ("0.0 / 0.0 >= 1.0", NO),
            ("-0.0 == 0.0", YES),
        ],
        true,
    );
    agrees(
        &[
            ("2.0 * 8.988466e+307", Double(f64::INFINITY)),
            ("1e-324 / 2.0", Double(0.0)),
            ("1.0 == 1.0e+0", YES),
            (".5 + .25", Double(0.75)),
            ("1e3", Double(1000.0)),
        ],
        false,
    );
}

#[test]
fn comparisons_between_int_and_double() {
    agrees(
        &[
            ("1 == 1.0", YES),
            ("2 == 1.0", NO),
            ("1.0 == 1", YES),
            ("1 != 1.5", YES),
            ("1 < 1.5", YES),
            ("2 < 1.5", NO),
            ("1.5 <= 2", YES),
            ("2 >= 1.5", YES),
            ("1.5 > 2", NO),
            ("1 == 0.0 / 0.0", NO),
            // An int is converted to the nearest double, so the greatest int equals 2^63.
            ("9223372036854775807 < 9223372036854775808.0", NO),
            ("9223372036854775807 <= 9223372036854775808.0", YES),
            ("9223372036854775807 >= 9223372036854775808.0", YES),
            ("9223372036854775807 < 9223372036854777857.0", YES),
            ("-9223372036854775807 > -9223372036854777857.0", YES),
            ("9223372036854775807 > 9223372036854775806", YES),
        ],
        true,
    );
}

#[test]
fn comparisons_of_others() {
    agrees(
        &[
            ("'' == \"\"", YES),
            ("'abc' == r'abc'", YES),
            ("'abc' == 'ABC'", NO),
            ("'ίσος' == 'ίσος'", YES),
            ("'Am\\u00E9lie' == 'Ame\\u0301lie'", NO),
            ("'a' < 'b'", YES),
            ("'a' < 'a'", NO),
            ("'Abc' < 'aBC'", YES),
            ("'abc' < 'abcd'", YES),
            ("'tea' >= 'tea'", YES),
            ("'tea' > 'coffee'", YES),
            ("'Z' <= 'a'", YES),
            ("true == true", YES),
            ("true != false", YES),
            ("false < true", YES),
            ("true < true", NO),
            ("true >= false", YES),
            ("null == null", YES),
            ("null != null", NO),
        ],
        false,
    );
}

#[test]
fn logic() {
    agrees(
        &[
            ("true && true", YES),
            ("true && false", NO),
            ("false || true", YES),
            ("false || false", NO),
            ("!false", YES),
            ("!!true", YES),
            ("false && 1 / 0 > 2", NO),
            ("1 / 0 > 2 && false", NO),
            ("true && 1 / 0 > 2", ZERO),
            ("1 / 0 > 2 && true", ZERO),
            ("true || 1 / 0 > 2", YES),
            ("1 / 0 > 2 || true", YES),
            ("false || 1 / 0 > 2", ZERO),
            ("1 / 0 > 2 || false", ZERO),
            ("!(1 / 0 > 2)", ZERO),
            ("false && (2 / 0 > 3 ? false : true)", NO),
            ("(2 / 0 > 3 ? false : true) || true", YES),
            ("true ? 1 : 2", Int(1)),
            ("false ? 1 : 2", Int(2)),
            ("2 / 0 > 4 ? 1 : 2", ZERO),
            ("true ? 1 : 2 / 0", Int(1)),
            ("false ? 2 / 0 : 1", Int(1)),
            ("1 < 2 ? (3 < 4 ? 5 : 6) : 7", Int(5)),
            ("2 < 1 ? 5 : 4 < 3 ? 6 : 7", Int(7)),
        ],
        true,
    );
    agrees(&[("false ? 'foo' : 'bar'", Text("bar"))], false);
}

#[test]
fn precedence() {
    agrees(
        &[
            ("1 + 2 * 3", Int(7)),
            ("(1 + 2) * 3", Int(9)),
            ("20 - 5 - 3", Int(12)),
            ("40 / 4 / 2", Int(5)),
            ("7 - 3 % 2 * 4", Int(3)),
            ("-2 + 3", Int(1)),
            ("-2 * -3", Int(6)),
            ("1 + 2 < 4", YES),
            ("1 < 2 == true", YES),
            ("3 > 2 == (1 > 0)", YES),
            ("!(1 > 2) && 2 > 1", YES),
            ("true || false && false", YES),
            ("(true || false) && false", NO),
            ("false && true || true", YES),
            ("1 == 2 || 3 == 3 ? 4 : 5", Int(4)),
        ],
        true,
    );
}

#[test]
fn texts() {
    agrees(
        &[
            ("size('')", Int(0)),
            ("size('four')", Int(4)),
            ("size('πέντε')", Int(5)),
            ("'four'.size()", Int(4)),
            ("'foobar'.startsWith('foo')", YES),
            ("'foobar'.startsWith('bar')", NO),
            ("'foobar'.startsWith('')", YES),
            ("''.startsWith('foo')", NO),
            ("'завтра'.startsWith('за')", YES),
            ("'foobar'.endsWith('bar')", YES),
            ("'foobar'.endsWith('foo')", NO),
            ("''.endsWith('')", YES),
            ("'forté'.endsWith('té')", YES),
            ("'hello'.contains('ell')", YES),
            ("'hello'.contains('ol')", NO),
            ("'abababc'.contains('ababc')", YES),
            ("''.contains('')", YES),
            ("'hubba'.matches('ubb')", YES),
            ("matches('hubba', 'ubb')", YES),
            ("''.matches('foo|bar')", NO),
            ("'cows'.matches('')", YES),
            ("'grey'.matches('gr(a|e)y')", YES),
            ("'banana'.matches('ba(na)*')", YES),
            ("'mañana'.matches('a+ñ+a+')", YES),
            ("'banana'.matches('^(na)+$')", NO),
            ("'card42'.matches('^card\\\\d+$')", YES),
            ("'he' + 'llo'", Text("hello")),
            ("'' + ''", Text("")),
            ("'hello' + ' ' == 'hello'", NO),
        ],
        false,
    );
}

/// The same functions on names: each string of the vocabulary gives what the constant gives.
#[test]
fn texts_with_names() {
    let words = ["", "foobar", "grey", "mañana", "forté", "banana"];
    let tests = [
        "size(t)",
        "t.startsWith('foo')",
        "t.endsWith('té')",
        "t.contains('an')",
        "t.matches('^gr(a|e)y$')",
        "t == 'grey'",
        "t != 'grey'",
        "t < 'g'",
        "t <= 'grey'",
        "t > 'g'",
        "'grey' >= t",
        "t in ['', 'grey', 'gray']",
        "size(t) > 4 && t.contains('o')",
    ];
    let mut environment = Environment::new();
    let slot = environment.declare_text("t", words).unwrap();
    let sources: Vec<Source<'_>> = tests.iter().map(|text| Source { rule: "case", text }).collect();
    let key = ListKey::new(KEY);
    let program = Program::compile(&environment, key, &sources).unwrap();
    let (mut scratch, lists) = (program.scratch(), Lists::new(key, &environment));
    for word in words {
        scratch.set_text(slot, program.text_id(word));
        for (at, test) in tests.iter().enumerate() {
            let written = test.replace("(t)", &format!("('{word}')"));
            let written = written
                .split(' ')
                .map(|part| {
                    if part == "t" { format!("'{word}'") } else { part.replace("t.", &format!("'{word}'.")) }
                })
                .collect::<Vec<_>>()
                .join(" ");
            let got = result(program.evaluate(at, &mut scratch, &lists));
            assert_eq!(got, constant(&written), "{written}");
            assert!(got.is_some());
        }
    }
}

#[test]
fn escapes() {
    agrees(
        &[
            (r"'\a\b\f\n\r\t\v'", Text("\x07\x08\x0c\n\r\t\x0b")),
            (r#""\\\?\"\'\`""#, Text("\\?\"'`")),
            (r"'\x41\X42\103'", Text("ABC")),
            (r"'\u0100\U0001F62C'", Text("\u{100}\u{1F62C}")),
            (r"r'\n'", Text("\\n")),
            (r#"R"\d""#, Text("\\d")),
            ("'''it's'''", Text("it's")),
            ("\"\"\"a\nb\"\"\"", Text("a\nb")),
            ("'\"'", Text("\"")),
            ("true // a comment\n && true", YES),
        ],
        false,
    );
}

#[test]
fn lists() {
    agrees(
        &[
            ("7 in []", NO),
            ("'x' in []", NO),
            ("3 in [5, 4, 3]", YES),
            ("6 in [5, 4, 3]", NO),
            ("3.0 in [5, 4, 3]", YES),
            ("3 in [5.0, 3.0]", YES),
            ("3 in [5, 3.0]", YES),
            ("-0.0 in [0.0]", YES),
            ("0.0 in [-0.0, 1.0]", YES),
            ("0.0 / 0.0 in [0.0, 1.0]", NO),
            ("9007199254740993 in [9007199254740992]", NO),
            ("9007199254740993 in [9007199254740992.0]", YES),
            ("5 in [1, 2, 5,]", YES),
            ("1 in [1, 1 / 0]", ZERO),
            ("1 / 0 in [1]", ZERO),
            ("!(3 in [1, 2])", YES),
        ],
        true,
    );
    agrees(
        &[
            ("'alpha' in ['alpha', 'beta']", YES),
            ("'hawaiian' in ['meat', 'cheese']", NO),
            ("size([])", Int(0)),
            ("size([1, 2, 3])", Int(3)),
            ("[1, 2, 3].size()", Int(3)),
        ],
        false,
    );
}

#[test]
fn macros() {
    agrees(
        &[
            ("[1, 2, 3].exists(e, e > 0)", YES),
            ("[1, 2, 3].exists(e, e == 2)", YES),
            ("[1, 2, 3].exists(e, e > 3)", NO),
            ("[1, 2, 3].exists(e, e / 0 == 17)", ZERO),
            ("[1, 2, 0].exists(e, 4 / e == 2)", YES),
            ("[].exists(e, e == 2)", NO),
            ("[1, 2, 3].all(e, e > 0)", YES),
            ("[1, 2, 3].all(e, e == 2)", NO),
            ("[1, 2, 3].all(e, 6 / (2 - e) == 6)", NO),
            ("[1, 2, 3].all(e, e / 0 != 17)", ZERO),
            ("[].all(e, e > 0)", YES),
            ("[].exists_one(a, a == 7)", NO),
            ("[7].exists_one(a, a == 7)", YES),
            ("[8].exists_one(a, a == 7)", NO),
            ("[6, 7, 8].exists_one(foo, foo % 5 == 2)", YES),
            ("[0, 1, 2, 3, 4].exists_one(n, n % 2 == 1)", NO),
            ("[3, 2, 1, 0].exists_one(n, 12 / n > 1)", ZERO),
            ("[1, 2].all(a, [3, 4].all(b, a < b))", YES),
            ("[1, 2].exists(a, [1, 5].exists(a, a == 5))", YES),
        ],
        true,
    );
    agrees(&[("['foal', 'foo', 'four'].exists_one(n, n.startsWith('fo'))", NO)], false);
}

#[test]
fn conversions() {
    agrees(
        &[
            ("double(0)", Double(0.0)),
            ("double(9223372036854775807)", Double(i64::MAX as f64)),
            ("double(1.5)", Double(1.5)),
            ("int(-123.456)", Int(-123)),
            ("int(1.9)", Int(1)),
            ("int(-7.9)", Int(-7)),
            ("int(5)", Int(5)),
            ("int(double(36028797018963969))", Int(36_028_797_018_963_968)),
            ("int(9223372036854775807.0)", RANGE),
            ("int(-9223372036854775808.0)", RANGE),
            ("int(0.0 / 0.0)", RANGE),
            ("int(1.0 / 0.0)", RANGE),
        ],
        true,
    );
    agrees(&[("int(1e99)", RANGE)], false);
}

#[test]
fn depth() {
    let nested = |count: usize| format!("{}7{}", "(".repeat(count), ")".repeat(count));
    assert_eq!(constant(&nested(32)), Some(Int(7)));
    assert_eq!(constant(&format!("{}19", "-".repeat(32))), Some(Int(19)));
    assert_eq!(constant(&format!("{}true", "!".repeat(32))), Some(YES));
    assert_eq!(constant(&["3"; 25].join(" - ")), Some(Int(-69)));
    assert_eq!(constant(&["false"; 400].join(" || ")), Some(NO));
    assert_eq!(constant(&format!("{}true", "true ? true : ".repeat(24))), Some(YES));
}

/// A missing value is unknown except where the operands that are there decide.
#[test]
fn missing_values() {
    let mut environment = Environment::new();
    for (name, kind) in
        [("gone", Type::Bool), ("none", Type::Int), ("no.text", Type::Text), ("here", Type::Int)]
    {
        environment.declare(name, kind).unwrap();
    }
    environment.known(["a"]).unwrap();
    let unknown = None;
    let cases = [
        ("gone", unknown),
        ("!gone", unknown),
        ("gone && false", Some(NO)),
        ("false && gone", Some(NO)),
        ("gone && true", unknown),
        ("gone || true", Some(YES)),
        ("true || gone", Some(YES)),
        ("gone || false", unknown),
        ("gone || here == 5", Some(YES)),
        ("here == 6 && gone", Some(NO)),
        ("gone && here / 0 == 1", unknown),
        ("here / 0 == 1 && gone", unknown),
        ("none + 1 > 2", unknown),
        ("none / 0 == 1", unknown),
        ("none in [1, 2]", unknown),
        ("no.text.startsWith('a')", unknown),
        ("size(no.text) > 0", unknown),
        ("no.text == 'a'", unknown),
        ("has(none)", Some(NO)),
        ("has(no.text)", Some(NO)),
        ("has(here)", Some(YES)),
        ("none == null", Some(YES)),
        ("null != here", Some(YES)),
        ("none != null && none > 3", Some(NO)),
        ("has(none) ? none : 0", Some(Int(0))),
        ("gone ? 1 : 2", unknown),
        ("[1, 2].exists(e, e == none)", unknown),
        ("[5, 2].exists(e, e == here || e == none)", Some(YES)),
        ("[5].exists_one(e, e == here || gone)", Some(YES)),
    ];
    let sources: Vec<Source<'_>> = cases.iter().map(|(text, _)| Source { rule: "case", text }).collect();
    let key = ListKey::new(KEY);
    let program = Program::compile(&environment, key, &sources).unwrap();
    let (mut scratch, lists) = (program.scratch(), Lists::new(key, &environment));
    scratch.set_int(environment.slot("here").unwrap(), 5);
    for (at, (text, expected)) in cases.iter().enumerate() {
        let outcome = program.evaluate(at, &mut scratch, &lists);
        assert_eq!(expected.is_none(), outcome == Outcome::Unknown, "{text}");
        assert_eq!(result(outcome), *expected, "{text}");
    }
}

const NO_NUMBER: Expected = Error(ErrorKind::NotANumber);

#[test]
fn functions_of_doubles() {
    agrees(
        &[
            ("abs(-2.5)", Double(2.5)),
            ("min(2.0, 3.0) + max(2.0, 3.0) * 10.0", Double(32.0)),
            ("min(0.0, -0.0) == max(-0.0, 0.0)", YES),
            ("floor(-2.5)", Double(-3.0)),
            ("ceil(-2.5)", Double(-2.0)),
            ("round(-2.5)", Double(-3.0)),
            ("sqrt(2.25)", Double(1.5)),
            ("pow(2.0, -2.0)", Double(0.25)),
            ("exp(0.0)", Double(1.0)),
            ("log(1.0)", Double(0.0)),
            ("log10(1000.0)", Double(3.0)),
            ("log1p(0.0)", Double(0.0)),
            ("smoothed_ratio(9.0, 1.0, 1.0)", Double(5.0)),
            ("smoothed_ratio(0.0, 0.0, 2.0)", Double(1.0)),
            // An hour of the day, with its fraction: 22:30 at UTC+1 is 21:30 in UTC.
            ("hour_of_day(77400.0, 1.0)", Double(22.5)),
            ("hour_of_day(0.0, -0.5)", Double(23.5)),
            // 1970-01-01 was a Thursday.
            ("day_of_week(0.0, 0.0)", Double(3.0)),
            ("day_of_week(0.0, -1.0)", Double(2.0)),
            ("day_of_week(1790000000.0, 0.0)", Double(0.0)),
            ("within(22.0, 22.0, 5.0)", YES),
            ("within(4.9, 22.0, 5.0)", YES),
            ("within(5.0, 22.0, 5.0)", NO),
            ("within(21.9, 22.0, 5.0)", NO),
            ("within(9.0, 9.0, 17.0)", YES),
            ("within(17.0, 9.0, 17.0)", NO),
            ("!within(17.0, 9.0, 17.0) && within(10.0, 9.0, 17.0)", YES),
            ("distance_km(52.0, 5.0, 52.0, 5.0)", Double(0.0)),
            // Amsterdam and New York; a quarter of a great circle; half of one; across the date line.
            ("within(distance_km(52.37, 4.9, 40.71, -74.01), 5850.0, 5875.0)", YES),
            ("within(distance_km(0.0, 0.0, 90.0, 0.0), 10007.5, 10007.6)", YES),
            ("within(distance_km(0.0, 0.0, 0.0, 180.0), 20015.1, 20015.2)", YES),
            ("within(distance_km(0.0, 179.5, 0.0, -179.5), 111.1, 111.3)", YES),
            // Results that are no finite number.
            ("sqrt(-1.0)", NO_NUMBER),
            ("log(0.0)", NO_NUMBER),
            ("log1p(-2.0) > 0.0", NO_NUMBER),
            ("pow(-8.0, 0.5)", NO_NUMBER),
            ("exp(1000.0)", NO_NUMBER),
            ("abs(1.0 / 0.0)", NO_NUMBER),
            ("min(0.0 / 0.0, 1.0)", NO_NUMBER),
            ("max(0.0 / 0.0, 1.0)", NO_NUMBER),
            ("within(0.0 / 0.0, 22.0, 5.0)", NO_NUMBER),
            ("within(0.0 / 0.0, 22.0, 5.0) || 1.0 < 2.0", YES),
            ("smoothed_ratio(1.0, 0.0, 0.0)", NO_NUMBER),
            ("smoothed_ratio(1.0, -2.0, 3.0)", NO_NUMBER),
            ("distance_km(90.1, 0.0, 0.0, 0.0)", NO_NUMBER),
            ("distance_km(0.0, 0.0, 0.0, 360.1)", NO_NUMBER),
            ("hour_of_day(0.0, 24.5)", NO_NUMBER),
            ("day_of_week(1.0 / 0.0, 0.0)", NO_NUMBER),
            // The greater error of two operands.
            ("max(double(1 / 0), sqrt(-1.0))", NO_NUMBER),
        ],
        true,
    );
}

/// A missing operand makes the result unknown, also beside an error.
#[test]
fn functions_of_missing_values() {
    let mut environment = Environment::new();
    let known = environment.declare("known", Type::Double).unwrap();
    environment.declare("gone", Type::Double).unwrap();
    let key = ListKey::new(KEY);
    let cases = [
        ("max(known, gone)", None),
        ("within(gone, 1.0, 2.0)", None),
        ("distance_km(known, 0.0, 0.0, gone) < 5.0", None),
        ("min(sqrt(-known), gone)", None),
        ("within(gone, 1.0, 2.0) || abs(known) == 4.0", Some(YES)),
        ("min(sqrt(-known), known)", Some(NO_NUMBER)),
    ];
    for (text, expected) in cases {
        let program = Program::compile(&environment, key, &[Source { rule: "case", text }]).unwrap();
        let mut scratch = program.scratch();
        scratch.set_double(known, 4.0);
        let outcome = program.evaluate(0, &mut scratch, &Lists::new(key, &environment));
        assert_eq!(expected.is_none(), outcome == Outcome::Unknown, "{text}");
        assert_eq!(result(outcome), expected, "{text}");
    }
}

/// Everything that the subset does not have is refused, and the message names it and its place.
#[test]
fn refused_by_name() {
    let mut environment = Environment::new();
    environment.declare("amount", Type::Double).unwrap();
    environment.declare("count", Type::Int).unwrap();
    environment.declare("country", Type::Text).unwrap();
    environment.declare("other", Type::Text).unwrap();
    environment.declare("card", Type::Key).unwrap();
    environment.declare_list("bins", ListKind::Int).unwrap();
    environment.declare_list("cards", ListKind::Text).unwrap();
    let key = ListKey::new(KEY);
    let long = format!("{} > 1", "(".repeat(200));
    let deep = format!("true{}", " == true".repeat(200));
    let wide = format!("count in [{}]", vec!["1"; 5_000].join(","));
    let many = format!(
        "[{}].all(a, [{}].all(b, a != count + b))",
        vec!["1"; 200].join(","),
        vec!["2"; 200].join(",")
    );
    let regex = format!("country.matches('{}')", "(a{1000}){1000}");
    for (text, line, column, said) in [
        ("1u == 1", 1, 1, "unsigned integers are not supported"),
        ("b'a' == b'a'", 1, 1, "bytes are not supported"),
        ("count == uint(3)", 1, 10, "uint() is not supported; use int()"),
        ("{'a': 1}.a == 1", 1, 1, "maps are not supported"),
        ("Point{x: 1}", 1, 6, "messages and maps are not supported"),
        ("[1, 2][0] == 1", 1, 7, "indexing is not supported"),
        ("[1, 2].map(e, e)", 1, 8, "map() is not supported; use exists() or all()"),
        ("[1, 2].filter(e, e > 1)", 1, 8, "filter() is not supported"),
        ("[1] == [1]", 1, 1, "a list can only be used with in, size()"),
        ("string(count) == '1'", 1, 1, "string() is not supported"),
        ("timestamp('2026') > 1", 1, 1, "timestamp() is not supported"),
        ("dyn(1) == 1", 1, 1, "dyn() is not supported"),
        ("abs(count) > 1.0", 1, 5, "abs() needs double and not int; write the literal as a double"),
        ("within(amount, 22, 5.0)", 1, 16, "within() needs double and not int"),
        ("max(amount) > 1.0", 1, 1, "max() takes 2 arguments and not 1; write max(x, y)"),
        ("sqrt(country) > 1.0", 1, 6, "sqrt() needs double and not string; correct the argument"),
        ("distance_kn(amount) > 1.0", 1, 1, "the nearest name is \"distance_km\""),
        ("getHours() > 1", 1, 1, "getHours() is not supported; use hour_of_day()"),
        ("type(1) == int", 1, 1, "type() is not supported"),
        ("amount.?x", 1, 8, "optional fields are not supported"),
        ("'a'.b", 1, 5, "fields of values are not supported"),
        (".amount > 1.0", 1, 1, "names that start with a dot"),
        ("for > 1", 1, 1, "\"for\" is a reserved word"),
        (
            "amont > 1.0",
            1,
            1,
            "unknown name \"amont\"; the nearest name is \"amount\"; correct or declare it",
        ),
        (
            "amount > 1.0 &&\n  cuntry == 'NL'",
            2,
            3,
            "unknown name \"cuntry\"; the nearest name is \"country\"",
        ),
        ("true && zebra", 1, 9, "unknown name \"zebra\"; correct or declare it"),
        ("amount * 2 > 1.0", 1, 8, "* has no overload for double and int; write the literal as a double"),
        ("amount % 2.0 > 1.0", 1, 8, "% has no overload for double and double"),
        ("count % amount > 1", 1, 7, "% has no overload for int and double; convert with int()"),
        ("count == 'a'", 1, 7, "== has no overload for int and string"),
        ("'a' > count", 1, 5, "> has no overload for string and int"),
        ("amount && true", 1, 1, "&& needs bool and not double"),
        ("!count", 1, 2, "! needs bool and not int"),
        ("-country == 'a'", 1, 1, "- has no overload for string"),
        ("count ? 1 : 2", 1, 1, "the condition of ?: needs bool"),
        ("true ? 'a' : 1", 1, 6, "?: has values of types string and int"),
        ("amount = 1.0", 1, 8, "\"=\" is not an operator; compare with \"==\""),
        ("amount > 1.0 & true", 1, 14, "write \"&&\""),
        ("amount >", 1, 9, "found the end where a value is expected"),
        ("(amount > 1.0", 1, 14, "found the end where \")\" is expected"),
        ("amount > 1.0 true", 1, 14, "found \"true\" where an operator or the end is expected"),
        ("country == 'NL", 1, 12, "the string does not end; close it with '"),
        ("country == 'N\nL'", 1, 14, "the string has a line break"),
        ("country == '\\q'", 1, 13, "unknown escape"),
        ("country == '\\uD800'", 1, 13, "an escape of 4 digits that is not a character"),
        ("9223372036854775808 > count", 1, 1, "the integer does not fit into 64 bits"),
        ("12ab > count", 1, 3, "unexpected 'a' after a number"),
        ("amount == null + 1", 1, 11, "null can only be compared with a name"),
        ("1 == null", 1, 1, "null can only be compared with a name"),
        ("has(amount + 1.0)", 1, 12, "has() needs a name"),
        ("has(amont)", 1, 5, "unknown name \"amont\""),
        ("amont == null", 1, 1, "unknown name \"amont\""),
        ("country.startsWith(other)", 1, 20, "the argument of startsWith() must be constant"),
        ("country + 'a' == 'b'", 1, 9, "+ joins constant strings only"),
        ("country.matches('(')", 1, 9, "the pattern of matches() is refused"),
        (regex.as_str(), 1, 9, "the pattern of matches() is refused"),
        (
            "country.startswith('N')",
            1,
            9,
            "unknown function startswith(); the nearest name is \"startsWith\"",
        ),
        ("country.startsWith('N', 'L')", 1, 9, "startsWith() has other arguments"),
        ("count in [1, country]", 1, 14, "in compares int with string"),
        ("count in [1, count]", 1, 14, "elements of a list after in must be constant"),
        ("count in count", 1, 10, "in needs a list literal or list(\"name\")"),
        ("count in list(\"bin\")", 1, 10, "unknown list \"bin\"; the nearest name is \"bins\""),
        ("count in list(bins)", 1, 10, "list() needs one string literal"),
        ("amount in list(\"bins\")", 1, 8, "convert it with int()"),
        ("country in list(\"bins\")", 1, 9, "list \"bins\" has integers and the value is string"),
        ("count in list(\"cards\")", 1, 7, "list \"cards\" has strings and the value is int"),
        ("list(\"bins\") == 1", 1, 1, "list() can only be used after in"),
        ("card == country", 1, 6, "a key can be compared with constant strings and keys only"),
        ("card < 'a'", 1, 6, "< has no overload for key and string"),
        ("size(card) > 1", 1, 6, "size() needs string and not key"),
        ("count.exists(e, e > 1)", 1, 7, "exists() needs a list literal"),
        ("[count].exists(e, e > 1)", 1, 2, "the elements of the list before exists() must be constant"),
        ("[1].exists(1, true)", 1, 12, "the first argument of exists() is a name"),
        ("[1].exists(e, e)", 1, 15, "exists needs bool and not int"),
        ("", 1, 1, "found the end where a value is expected"),
        ("amount > 1.0 § 2", 1, 14, "unexpected character '§'"),
        (long.as_str(), 1, 129, "nested more than 128 deep"),
        (deep.as_str(), 1, 1021, "nested more than 128 deep"),
        (wide.as_str(), 1, 8203, "the list has more than 4096 elements"),
        (many.as_str(), 1, 821, "more than 8192 parts after macros are expanded"),
    ] {
        let faults = Program::compile(&environment, key, &[Source { rule: "r", text }]).unwrap_err();
        let fault = &faults[0];
        assert!(fault.problem.contains(said), "{text:.60}: {fault}");
        if text.len() < 200 || text.starts_with('(') {
            assert_eq!((fault.line, fault.column), (line, column), "{text:.60}: {fault}");
        }
        assert!(
            fault.to_string().starts_with("rule \"r\", line ") && !fault.to_string().contains('\n'),
            "{fault}"
        );
    }
    let huge = "x".repeat(20_000);
    let faults = Program::compile(&environment, key, &[Source { rule: "r", text: &huge }]).unwrap_err();
    assert!(faults[0].problem.contains("20000 bytes, more than 16384"), "{}", faults[0]);
    let both = [Source { rule: "a", text: "x" }, Source { rule: "b", text: "y" }];
    assert_eq!(Program::compile(&environment, key, &both).unwrap_err().len(), 2, "all faults are reported");
}

#[test]
fn declarations() {
    let mut environment = Environment::new();
    let slot = environment.declare("action.three_ds", Type::Text).unwrap();
    assert_eq!(environment.slot("action.three_ds"), Some(slot));
    for name in ["action.three_ds", "", "1a", "a..b", "a b", "true", "in", "é"] {
        assert!(environment.declare(name, Type::Int).is_err(), "{name}");
    }
    environment.declare_list("l", ListKind::Int).unwrap();
    assert!(environment.declare_list("l", ListKind::Text).is_err());
    assert!(environment.declare_text("long", ["x".repeat(2_000).as_str()]).is_err());
}
