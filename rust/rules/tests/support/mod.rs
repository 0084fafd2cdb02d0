//! Random expressions, and a naive interpreter of them that shares nothing with the crate.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    reason = "each test uses a part of this file, and a fault of it ends the test"
)]

#[path = "../../src/random.rs"]
mod random;

use std::collections::HashMap;

pub(crate) use random::Random;
use scorer_rules::{Environment, KeySet, ListKey, ListKind, Lists, Program, Scratch, Type};

pub(crate) const KEY: [u8; 16] = *b"a key for tests!";
pub(crate) const VOCABULARY: [&str; 8] = ["", "AT", "DE", "NL", "gambling", "gaming", "é", "zürich"];
/// A string that is in no vocabulary, and in no expression.
pub(crate) const OUTSIDE: &str = "outside";
/// A key that is no string of any vocabulary.
const ELSEWHERE: &str = "elsewhere";

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Node {
    Bool(bool),
    Int(i64),
    Double(f64),
    Text(String),
    Name(&'static str),
    Has(&'static str),
    Not(Box<Node>),
    Negate(Box<Node>),
    Binary(&'static str, Box<Node>, Box<Node>),
    And(Vec<Node>),
    Or(Vec<Node>),
    If(Box<[Node; 3]>),
    In(Box<Node>, Vec<Node>),
    InList(Box<Node>, &'static str),
    Test(&'static str, Box<Node>, String),
    Size(Box<Node>),
    ToInt(Box<Node>),
    ToDouble(Box<Node>),
    /// A function of doubles.
    Call(&'static str, Vec<Node>),
    /// Macro, elements, and the condition on `e`.
    Macro(&'static str, Vec<Node>, Box<Node>),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Plain {
    Bool(bool),
    Int(i64),
    Double(f64),
    Text(String),
}

/// Why there is no value. A later variant outranks an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lack {
    DivisionByZero,
    Overflow,
    Range,
    NoList,
    NotANumber,
    Unknown,
}

pub(crate) const NAMES: [(&str, Type); 12] = [
    ("b0", Type::Bool),
    ("b1", Type::Bool),
    ("i0", Type::Int),
    ("i1", Type::Int),
    ("i2", Type::Int),
    ("d0", Type::Double),
    ("d1", Type::Double),
    ("d2", Type::Double),
    ("t.x", Type::Text),
    ("t1", Type::Text),
    ("k0", Type::Key),
    ("k1", Type::Key),
];

const INTS: [i64; 12] = [0, 1, -1, 2, 3, 7, 100, i64::MAX, i64::MIN, 1 << 53, (1 << 53) + 1, 3_037_000_500];
const DOUBLES: [f64; 12] = [
    0.0,
    -0.0,
    0.5,
    1.0,
    2.0,
    -3.25,
    100.0,
    1e300,
    -1e300,
    9_007_199_254_740_992.0,
    9.223_372_036_854_775e18,
    1e-300,
];
const LISTED_TEXTS: [&str; 3] = ["DE", "gaming", ELSEWHERE];
const LISTED_INTS: [i64; 3] = [1, 7, i64::MIN];

pub(crate) type Values = HashMap<&'static str, Plain>;

/// Random values of the names; each is missing at times.
pub(crate) fn values(random: &mut Random) -> Values {
    let mut values = Values::new();
    for (name, kind) in NAMES {
        if random.below(5) == 0 {
            continue;
        }
        let value = match kind {
            Type::Bool => Plain::Bool(random.below(2) == 0),
            Type::Int => Plain::Int(random.pick(&INTS)),
            Type::Double => {
                Plain::Double(if random.below(12) == 0 { f64::INFINITY } else { random.pick(&DOUBLES) })
            }
            _ if random.below(6) == 0 => {
                Plain::Text(if kind == Type::Key { ELSEWHERE } else { OUTSIDE }.to_owned())
            }
            _ => Plain::Text(random.pick(&VOCABULARY).to_owned()),
        };
        values.insert(name, value);
    }
    values
}

pub(crate) fn environment() -> Environment {
    let mut environment = Environment::new();
    for (name, kind) in NAMES {
        environment.declare(name, kind).unwrap();
    }
    environment.known(VOCABULARY).unwrap();
    environment.declare_list("texts", ListKind::Text).unwrap();
    environment.declare_list("ints", ListKind::Int).unwrap();
    environment.declare_list("gone", ListKind::Text).unwrap();
    environment
}

/// The lists of [`environment`]; "gone" is not loaded.
pub(crate) fn lists(environment: &Environment) -> Lists {
    let key = ListKey::new(KEY);
    let texts: Vec<u64> = LISTED_TEXTS.iter().map(|text| key.text(text)).collect();
    let ints: Vec<u64> = LISTED_INTS.iter().map(|value| key.int(*value)).collect();
    Lists::new(key, environment)
        .with(environment.list("texts").unwrap(), KeySet::new(1, &texts).unwrap().into())
        .with(environment.list("ints").unwrap(), KeySet::new(1, &ints).unwrap().into())
}

pub(crate) fn set(program: &Program, scratch: &mut Scratch, values: &Values) {
    scratch.clear();
    for (name, kind) in NAMES {
        let slot = program.environment().slot(name).unwrap();
        match values.get(name) {
            None => scratch.set_missing(slot),
            Some(Plain::Bool(value)) => scratch.set_bool(slot, *value),
            Some(Plain::Int(value)) => scratch.set_int(slot, *value),
            Some(Plain::Double(value)) => scratch.set_double(slot, *value),
            Some(Plain::Text(text)) if kind == Type::Key => {
                scratch.set_key(slot, ListKey::new(KEY).text(text));
            }
            Some(Plain::Text(text)) => scratch.set_text(slot, program.text_id(text)),
        }
    }
}

fn name(random: &mut Random, kind: Type) -> &'static str {
    let names: Vec<&str> = NAMES.iter().filter(|(_, other)| *other == kind).map(|(name, _)| *name).collect();
    random.pick(&names)
}

/// What a generator may use.
#[derive(Clone, Copy)]
pub(crate) struct Dialect {
    /// Names of type key, named lists and `has(name)`, which only this crate has, and comparisons of ints with
    /// doubles, which not every implementation of CEL has.
    pub(crate) extended: bool,
}

/// A random expression of a type.
pub(crate) fn generate(random: &mut Random, kind: Type, depth: usize, dialect: Dialect) -> Node {
    let leaf = depth == 0 || random.below(8) == 0;
    if leaf {
        return if random.below(3) == 0 { literal(random, kind) } else { Node::Name(name(random, kind)) };
    }
    let below = |random: &mut Random, kind| Box::new(generate(random, kind, depth - 1, dialect));
    if random.below(8) == 0 {
        let condition = generate(random, Type::Bool, depth - 1, dialect);
        let yes = generate(random, kind, depth - 1, dialect);
        return Node::If(Box::new([condition, yes, generate(random, kind, depth - 1, dialect)]));
    }
    match kind {
        Type::Bool => match random.below(if dialect.extended { 14 } else { 10 }) {
            0 => Node::Not(below(random, Type::Bool)),
            1 | 2 => {
                let count = 2 + random.below(3);
                Node::And((0..count).map(|_| *below(random, Type::Bool)).collect())
            }
            3 | 4 => {
                let count = 2 + random.below(3);
                Node::Or((0..count).map(|_| *below(random, Type::Bool)).collect())
            }
            5 | 6 => {
                let relation = random.pick(&["==", "!=", "<", "<=", ">", ">="]);
                let left = random.pick(&[Type::Bool, Type::Int, Type::Double, Type::Text]);
                let right = match left {
                    Type::Int | Type::Double if dialect.extended => random.pick(&[Type::Int, Type::Double]),
                    other => other,
                };
                Node::Binary(relation, below(random, left), below(random, right))
            }
            7 => {
                let kind = random.pick(&[Type::Int, Type::Double, Type::Text]);
                let count = random.below(6);
                let elements = (0..count)
                    .map(|_| {
                        let element = match kind {
                            Type::Int | Type::Double if dialect.extended => {
                                random.pick(&[Type::Int, Type::Double])
                            }
                            other => other,
                        };
                        literal(random, element)
                    })
                    .collect();
                Node::In(below(random, kind), elements)
            }
            8 => {
                let test = random.pick(&["startsWith", "endsWith", "contains", "matches"]);
                let part = random.pick(&["", "g", "ing", "AT", "ü", "gam", "N"]).to_owned();
                Node::Test(test, below(random, Type::Text), part)
            }
            9 => {
                let kind = random.pick(&["exists", "all", "exists_one"]);
                let count = random.below(4);
                let elements = (0..count).map(|_| literal(random, Type::Int)).collect();
                let mut condition = generate(random, Type::Bool, depth - 1, dialect);
                replace(&mut condition, random);
                Node::Macro(kind, elements, Box::new(condition))
            }
            10 => Node::Has(random.pick(&NAMES).0),
            11 => match random.below(4) {
                0 => Node::InList(below(random, Type::Text), "texts"),
                1 => Node::InList(below(random, Type::Int), "ints"),
                2 => Node::InList(below(random, Type::Key), "texts"),
                _ => Node::InList(below(random, Type::Text), "gone"),
            },
            12 => call(random, "within", 3, depth, dialect),
            _ => match random.below(3) {
                0 => Node::Binary(
                    random.pick(&["==", "!="]),
                    below(random, Type::Key),
                    below(random, Type::Key),
                ),
                1 => {
                    let text = Box::new(literal(random, Type::Text));
                    Node::Binary(random.pick(&["==", "!="]), below(random, Type::Key), text)
                }
                _ => {
                    let count = random.below(4);
                    let elements = (0..count).map(|_| literal(random, Type::Text)).collect();
                    Node::In(below(random, Type::Key), elements)
                }
            },
        },
        Type::Int => match random.below(8) {
            0 => Node::Negate(below(random, Type::Int)),
            1 => Node::Size(below(random, Type::Text)),
            2 => Node::ToInt(below(random, Type::Double)),
            _ => {
                let operator = random.pick(&["+", "-", "*", "/", "%"]);
                Node::Binary(operator, below(random, Type::Int), below(random, Type::Int))
            }
        },
        Type::Double => match random.below(if dialect.extended { 9 } else { 7 }) {
            7 | 8 => {
                let (function, operands) = random.pick(&FUNCTIONS);
                call(random, function, operands, depth, dialect)
            }
            0 => Node::Negate(below(random, Type::Double)),
            1 => Node::ToDouble(below(random, Type::Int)),
            _ => {
                let operator = random.pick(&["+", "-", "*", "/"]);
                Node::Binary(operator, below(random, Type::Double), below(random, Type::Double))
            }
        },
        Type::Text | Type::Key => literal_or_name(random, kind),
    }
}

/// The functions of doubles with the number of their operands.
const FUNCTIONS: [(&str, usize); 16] = [
    ("abs", 1),
    ("min", 2),
    ("max", 2),
    ("floor", 1),
    ("ceil", 1),
    ("round", 1),
    ("sqrt", 1),
    ("pow", 2),
    ("exp", 1),
    ("log", 1),
    ("log10", 1),
    ("log1p", 1),
    ("distance_km", 4),
    ("hour_of_day", 2),
    ("day_of_week", 2),
    ("smoothed_ratio", 3),
];

fn call(
    random: &mut Random,
    function: &'static str,
    operands: usize,
    depth: usize,
    dialect: Dialect,
) -> Node {
    Node::Call(function, (0..operands).map(|_| generate(random, Type::Double, depth - 1, dialect)).collect())
}

fn literal_or_name(random: &mut Random, kind: Type) -> Node {
    if random.below(3) == 0 { literal(random, kind) } else { Node::Name(name(random, kind)) }
}

pub(crate) fn literal(random: &mut Random, kind: Type) -> Node {
    match kind {
        Type::Bool => Node::Bool(random.below(2) == 0),
        Type::Int => Node::Int(random.pick(&INTS)),
        Type::Double => Node::Double(random.pick(&DOUBLES)),
        Type::Text => Node::Text(random.pick(&["", "DE", "gaming", "ing", "n'\"\\\n"]).to_owned()),
        // There is no literal of a key.
        Type::Key => Node::Name(name(random, Type::Key)),
    }
}

/// Makes some integers of a condition the variable of the macro around it.
fn replace(node: &mut Node, random: &mut Random) {
    match node {
        Node::Int(_) | Node::Name("i0" | "i1") if random.below(2) == 0 => *node = Node::Name("e"),
        Node::Not(a) | Node::Negate(a) | Node::Size(a) | Node::ToInt(a) | Node::ToDouble(a) => {
            replace(a, random)
        }
        Node::In(a, _) | Node::InList(a, _) | Node::Test(_, a, _) => replace(a, random),
        Node::Macro(_, _, a) => replace(a, random),
        Node::Binary(_, a, b) => {
            replace(a, random);
            replace(b, random);
        }
        Node::And(terms) | Node::Or(terms) | Node::Call(_, terms) => {
            terms.iter_mut().for_each(|term| replace(term, random))
        }
        Node::If(parts) => parts.iter_mut().for_each(|part| replace(part, random)),
        _ => {}
    }
}

fn quoted(text: &str) -> String {
    let mut quoted = "\"".to_owned();
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            '\n' => quoted.push_str("\\n"),
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

fn elements(nodes: &[Node], random: &mut Random) -> String {
    let elements: Vec<String> = nodes.iter().map(|node| render(node, random, 0)).collect();
    format!("[{}]", elements.join(", "))
}

/// Writes an expression with the parentheses that it needs around an operand of this strength, and some more.
pub(crate) fn render(node: &Node, random: &mut Random, strength: usize) -> String {
    let joined = |terms: &[Node], symbol: &str, strength: usize, random: &mut Random| {
        let terms: Vec<String> = terms.iter().map(|term| render(term, random, strength)).collect();
        terms.join(symbol)
    };
    let (own, text) = match node {
        Node::Bool(value) => (7, value.to_string()),
        // A sign binds less than the dot of a call.
        Node::Int(value) => (if *value < 0 { 6 } else { 7 }, value.to_string()),
        Node::Double(value) => (if value.is_sign_negative() { 6 } else { 7 }, format!("{value:?}")),
        Node::Text(text) => (7, quoted(text)),
        Node::Name(name) => (7, (*name).to_owned()),
        Node::Has(name) => (7, format!("has({name})")),
        Node::Not(a) => (6, format!("!{}", render(a, random, 6))),
        Node::Negate(a) => (6, format!("-({})", render(a, random, 0))),
        Node::Binary(symbol, a, b) => {
            let own = match *symbol {
                "*" | "/" | "%" => 5,
                "+" | "-" => 4,
                _ => 3,
            };
            (own, format!("{} {symbol} {}", render(a, random, own), render(b, random, own + 1)))
        }
        Node::And(terms) => (2, joined(terms, " && ", 3, random)),
        Node::Or(terms) => (1, joined(terms, " || ", 2, random)),
        Node::If(parts) => {
            let [condition, yes, no] = &**parts;
            let (condition, yes) = (render(condition, random, 1), render(yes, random, 1));
            (0, format!("{condition} ? {yes} : {}", render(no, random, 0)))
        }
        Node::In(a, list) => (3, format!("{} in {}", render(a, random, 3), elements(list, random))),
        Node::InList(a, list) => (3, format!("{} in list(\"{list}\")", render(a, random, 3))),
        Node::Test(test, a, part) => (7, format!("{}.{test}({})", render(a, random, 7), quoted(part))),
        Node::Size(a) => (7, format!("size({})", render(a, random, 0))),
        Node::ToInt(a) => (7, format!("int({})", render(a, random, 0))),
        Node::ToDouble(a) => (7, format!("double({})", render(a, random, 0))),
        Node::Call(function, operands) => (7, format!("{function}({})", joined(operands, ", ", 0, random))),
        Node::Macro(kind, list, condition) => {
            (7, format!("{}.{kind}(e, {})", elements(list, random), render(condition, random, 0)))
        }
    };
    if own < strength || random.below(10) == 0 { format!("({text})") } else { text }
}

type Result<T = Plain> = std::result::Result<T, Lack>;

/// Evaluates both, so that the greater lack of two is the result's.
fn both(a: Result, b: Result) -> Result<(Plain, Plain)> {
    match (a, b) {
        (Ok(a), Ok(b)) => Ok((a, b)),
        (Err(a), Err(b)) => Err(a.max(b)),
        (Err(lack), _) | (_, Err(lack)) => Err(lack),
    }
}

fn known(text: &str) -> Result<&str> {
    if text == OUTSIDE { Err(Lack::Unknown) } else { Ok(text) }
}

pub(crate) struct Interpreter<'a> {
    pub(crate) values: &'a Values,
    /// Values of `e`, the innermost last.
    pub(crate) elements: Vec<Plain>,
}

impl Interpreter<'_> {
    pub(crate) fn value(&mut self, node: &Node) -> Result {
        Ok(match node {
            Node::Bool(value) => Plain::Bool(*value),
            Node::Int(value) => Plain::Int(*value),
            Node::Double(value) => Plain::Double(*value),
            Node::Text(text) => Plain::Text(text.clone()),
            Node::Name("e") => self.elements.last().unwrap().clone(),
            Node::Name(name) => self.values.get(name).cloned().ok_or(Lack::Unknown)?,
            Node::Has(name) => Plain::Bool(self.values.contains_key(name)),
            Node::Not(a) => match self.value(a)? {
                Plain::Bool(value) => Plain::Bool(!value),
                other => panic!("! of {other:?}"),
            },
            Node::Negate(a) => match self.value(a)? {
                Plain::Int(i64::MIN) => return Err(Lack::Overflow),
                Plain::Int(value) => Plain::Int(-value),
                Plain::Double(value) => Plain::Double(-value),
                other => panic!("- of {other:?}"),
            },
            Node::Binary(symbol, a, b) => {
                let (a, b) = (self.value(a), self.value(b));
                return binary(symbol, both(a, b)?);
            }
            Node::And(terms) => return self.join(terms, false),
            Node::Or(terms) => return self.join(terms, true),
            Node::If(parts) => {
                let yes = self.value(&parts[0])? == Plain::Bool(true);
                return self.value(&parts[if yes { 1 } else { 2 }]);
            }
            Node::In(a, list) => {
                let value = self.value(a)?;
                let mut found = false;
                for element in list {
                    let element = self.value(element)?;
                    found |= binary("==", (value.clone(), element))? == Plain::Bool(true);
                }
                Plain::Bool(found)
            }
            Node::InList(a, list) => match self.value(a)? {
                Plain::Text(text) => {
                    known(&text)?;
                    if *list == "gone" {
                        return Err(Lack::NoList);
                    }
                    Plain::Bool(LISTED_TEXTS.contains(&text.as_str()))
                }
                Plain::Int(value) => Plain::Bool(LISTED_INTS.contains(&value)),
                other => panic!("a list of {other:?}"),
            },
            Node::Test(test, a, part) => {
                let Plain::Text(text) = self.value(a)? else { panic!("{test} of no string") };
                let text = known(&text)?;
                // No part has a character that is special in a pattern.
                Plain::Bool(match *test {
                    "startsWith" => text.starts_with(part.as_str()),
                    "endsWith" => text.ends_with(part.as_str()),
                    _ => text.contains(part.as_str()),
                })
            }
            Node::Size(a) => {
                let Plain::Text(text) = self.value(a)? else { panic!("size of no string") };
                Plain::Int(known(&text)?.chars().count() as i64)
            }
            Node::ToInt(a) => match self.value(a)? {
                Plain::Double(value) if value.abs() < 2_f64.powi(63) => Plain::Int(value.trunc() as i64),
                Plain::Double(_) => return Err(Lack::Range),
                other => panic!("int of {other:?}"),
            },
            Node::ToDouble(a) => match self.value(a)? {
                Plain::Int(value) => Plain::Double(value as f64),
                other => panic!("double of {other:?}"),
            },
            Node::Call(name, operands) => {
                let results: Vec<Result> = operands.iter().map(|operand| self.value(operand)).collect();
                if let Some(lack) = results.iter().filter_map(|result| result.as_ref().err()).max() {
                    return Err(*lack);
                }
                let numbers: Vec<f64> = results
                    .into_iter()
                    .map(|result| match result {
                        Ok(Plain::Double(number)) => number,
                        other => panic!("{name} of {other:?}"),
                    })
                    .collect();
                return function(name, &numbers);
            }
            Node::Macro(kind, list, condition) => {
                let mut results = Vec::new();
                for element in list {
                    let element = self.value(element)?;
                    self.elements.push(element);
                    results.push(self.value(condition));
                    self.elements.pop();
                }
                match *kind {
                    "exists" => return decide(results, true),
                    "all" => return decide(results, false),
                    _ => {
                        if let Some(lack) = results.iter().filter_map(|result| result.as_ref().err()).max() {
                            return Err(*lack);
                        }
                        Plain::Bool(
                            results.iter().filter(|result| **result == Ok(Plain::Bool(true))).count() == 1,
                        )
                    }
                }
            }
        })
    }

    fn join(&mut self, terms: &[Node], any: bool) -> Result {
        let results = terms.iter().map(|term| self.value(term)).collect();
        decide(results, any)
    }
}

/// A function of doubles, written out by its definition.
fn function(name: &str, numbers: &[f64]) -> Result {
    let x = numbers[0];
    let second = numbers.get(1).copied().unwrap_or_default();
    let third = numbers.get(2).copied().unwrap_or_default();
    let result = match name {
        _ if numbers.iter().any(|number| number.is_nan()) => return Err(Lack::NotANumber),
        "abs" => {
            if x.is_sign_negative() {
                -x
            } else {
                x
            }
        }
        "min" => {
            if x <= second {
                x
            } else {
                second
            }
        }
        "max" => {
            if x >= second {
                x
            } else {
                second
            }
        }
        "floor" => libm::floor(x),
        "ceil" => libm::ceil(x),
        "round" => libm::round(x),
        "sqrt" => libm::sqrt(x),
        "pow" => libm::pow(x, second),
        "exp" => libm::exp(x),
        "log" => libm::log(x),
        "log10" => libm::log10(x),
        "log1p" => libm::log1p(x),
        "distance_km" => {
            let [_, _, latitude, longitude] = numbers else { panic!("a distance of {numbers:?}") };
            if [x, *latitude].iter().any(|latitude| !(-90.0..=90.0).contains(latitude))
                || [second, *longitude].iter().any(|longitude| !(-360.0..=360.0).contains(longitude))
            {
                return Err(Lack::NotANumber);
            }
            let square = |sine: f64| sine * sine;
            let north = square(libm::sin((latitude - x).to_radians() / 2.0));
            let east = square(libm::sin((longitude - second).to_radians() / 2.0));
            let part = north + libm::cos(x.to_radians()) * libm::cos(latitude.to_radians()) * east;
            2.0 * 6371.0088 * libm::asin(libm::sqrt(part).min(1.0))
        }
        "hour_of_day" | "day_of_week" if !(-24.0..=24.0).contains(&second) || x.abs() >= 2_f64.powi(53) => {
            f64::NAN
        }
        "hour_of_day" => (x + second * 3600.0).rem_euclid(86_400.0) / 3600.0,
        // Day 4 was the first Monday.
        "day_of_week" => (((x + second * 3600.0) / 86_400.0).floor() - 4.0).rem_euclid(7.0),
        "smoothed_ratio" if numbers.iter().any(|number| *number < 0.0) => f64::NAN,
        "smoothed_ratio" => (x + third) / (second + third),
        _ => {
            let inside =
                if second <= third { (second..third).contains(&x) } else { !(third..second).contains(&x) };
            return Ok(Plain::Bool(inside));
        }
    };
    if result.is_finite() { Ok(Plain::Double(result)) } else { Err(Lack::NotANumber) }
}

fn decide(results: Vec<Result>, any: bool) -> Result {
    if results.contains(&Ok(Plain::Bool(any))) {
        return Ok(Plain::Bool(any));
    }
    match results.into_iter().filter_map(Result::err).max() {
        Some(lack) => Err(lack),
        None => Ok(Plain::Bool(!any)),
    }
}

fn binary(symbol: &str, operands: (Plain, Plain)) -> Result {
    let compared = |ordering: Option<std::cmp::Ordering>| {
        use std::cmp::Ordering::{Equal, Greater, Less};
        Plain::Bool(match symbol {
            "==" => ordering == Some(Equal),
            "!=" => ordering != Some(Equal),
            "<" => ordering == Some(Less),
            "<=" => matches!(ordering, Some(Less | Equal)),
            ">" => ordering == Some(Greater),
            _ => matches!(ordering, Some(Greater | Equal)),
        })
    };
    Ok(match operands {
        (Plain::Int(a), Plain::Int(b)) => {
            let wide = match symbol {
                "+" => i128::from(a) + i128::from(b),
                "-" => i128::from(a) - i128::from(b),
                "*" => i128::from(a) * i128::from(b),
                "/" | "%" if b == 0 => return Err(Lack::DivisionByZero),
                "/" => i128::from(a) / i128::from(b),
                // The quotient that belongs to this remainder does not fit into 64 bits.
                "%" if a == i64::MIN && b == -1 => return Err(Lack::Overflow),
                "%" => i128::from(a) % i128::from(b),
                _ => return Ok(compared(a.partial_cmp(&b))),
            };
            Plain::Int(i64::try_from(wide).map_err(|_| Lack::Overflow)?)
        }
        (Plain::Double(a), Plain::Double(b)) => match symbol {
            "+" => Plain::Double(a + b),
            "-" => Plain::Double(a - b),
            "*" => Plain::Double(a * b),
            "/" => Plain::Double(a / b),
            _ => compared(a.partial_cmp(&b)),
        },
        (Plain::Int(a), Plain::Double(b)) => compared((a as f64).partial_cmp(&b)),
        (Plain::Double(a), Plain::Int(b)) => compared(a.partial_cmp(&(b as f64))),
        (Plain::Bool(a), Plain::Bool(b)) => compared(a.partial_cmp(&b)),
        (Plain::Text(a), Plain::Text(b)) => {
            let unknown = match symbol {
                "==" | "!=" => a == OUTSIDE && b == OUTSIDE,
                _ => a == OUTSIDE || b == OUTSIDE,
            };
            if unknown {
                return Err(Lack::Unknown);
            }
            compared(Some(a.cmp(&b)))
        }
        other => panic!("{symbol} of {other:?}"),
    })
}
