//! Expressions of rules, and rule sets.

use std::sync::OnceLock;

use scorer_rules::{
    Actions, Environment, Exhausted, KeySet, ListKey, ListKind, Lists, Outcome, Program, Request, RuleSet,
    Scratch, Source, Type, Value,
};

const NAMES: [(&str, Type); 6] = [
    ("b", Type::Bool),
    ("i", Type::Int),
    ("n", Type::Int),
    ("d", Type::Double),
    ("t.x", Type::Text),
    ("k", Type::Key),
];
const VOCABULARY: [&str; 4] = ["", "DE", "NL", "gaming"];

/// Inputs that use every part of the language.
pub const SEEDS: [(&str, &str); 6] = [
    ("logic", "b && i / n > 2 || d * 1.5 >= 3.0 ? t.x == \"NL\" : k in list(\"texts\")\0\x01\x05\x07"),
    ("texts", "t.x.matches(r'^[A-Z]{2}$') && size(t.x) < 3 && t.x in ['DE', 'gaming']\0\x02\x03"),
    ("macros", "[1, 2].exists(e, e == i % 4) && [1].all(x, x < n) && has(d) && n != null\0"),
    ("numbers", "int(d) in [0x10, -3] && double(i) < 1e3 && -i - 9223372036854775807 != n\0"),
    (
        "functions",
        "within(hour_of_day(d, 1.0), 22.0, 5.0) || max(distance_km(d, 0.0, -d, 9.5), 1.0) > pow(d, 2.0)\0",
    ),
    (
        "set",
        r#"name = "s"
hit = "priority"
decisions = ["decline", "review"]
[[values]]
name = "v"
is = "2.0 * d"
[[rules]]
id = "a"
when = "v > 3.0 || rules.t.row1"
decision = "review"
reason = "R"
cap = 0.5
floor = 0.1
queue = "q"
priority = 2
from = 2026-01-01
until = 2027-01-01T00:00:00Z
rollout = 50.0
[[rules]]
id = "e"
when = "action.way == 'x' && i > 2"
source = "an agreement"
[[rules]]
id = "f"
when = "b"
keep = { way = ["y"] }
source = "an agreement"
[[tables]]
id = "t"
hit = "unique"
inputs = ["d", "t.x"]
outputs = ["decision", "cap"]
rows = [["[1..5)", "in ['DE']", "decline", 0.5], [7, "-", "-", "-"]]
"#,
    ),
];

fn world() -> &'static (Environment, Lists) {
    static WORLD: OnceLock<(Environment, Lists)> = OnceLock::new();
    WORLD.get_or_init(|| {
        let mut environment = Environment::new();
        for (name, kind) in NAMES {
            environment.declare(name, kind).expect("the names differ");
        }
        environment.known(VOCABULARY).expect("a short vocabulary");
        let texts = environment.declare_list("texts", ListKind::Text).expect("the lists differ");
        environment.declare_list("ints", ListKind::Int).expect("the lists differ");
        let key = ListKey::new([1; 16]);
        let set = KeySet::new(1, &[key.text("DE")]).expect("a short list");
        let lists = Lists::new(key, &environment).with(texts, set.into());
        (environment, lists)
    })
}

/// Compiles a rule set and evaluates it twice.
fn rule_set(text: &str, bytes: &[u8], environment: &Environment, lists: &Lists) -> bool {
    let ways = ["x", "y", "x", "z"].map(str::to_owned).to_vec();
    let actions = Actions::new(ways.len(), vec![("way".to_owned(), ways)]).expect("a value for each action");
    let set = match RuleSet::compile(text, environment, &actions, lists.key()) {
        Ok(set) => set,
        Err(faults) => {
            assert!(!faults.is_empty() && faults.iter().all(|fault| fault.line >= 1 && fault.column >= 1));
            return false;
        }
    };
    let mut decision = set.start();
    let request = Request { seconds: 1_780_000_000, id: bytes, exhausted: Exhausted::NONE };
    let mut results = Vec::new();
    for _ in 0..2 {
        fill(set.program(), decision.values(), bytes, false);
        set.evaluate(&mut decision, lists, request);
        assert!(decision.applied().len() <= set.rules().len());
        results.push((decision.applied().to_vec(), decision.states().to_vec(), decision.allowed().to_vec()));
    }
    assert_eq!(results[0], results[1]);
    true
}

/// Compiles an expression, which ends at the first zero byte, and evaluates it on values of the bytes after it. A
/// result that does not need the missing values is the same when they are there. Returns whether it was accepted.
pub fn run(data: &[u8]) -> bool {
    let (text, bytes) = data.split_at(data.iter().position(|byte| *byte == 0).unwrap_or(data.len()));
    let Ok(text) = std::str::from_utf8(text) else { return false };
    let (environment, lists) = world();
    if text.trim_start().starts_with("name") {
        return rule_set(text, bytes, environment, lists);
    }
    let source = Source { rule: "fuzz", text };
    let program = match Program::compile(environment, lists.key(), &[source]) {
        Ok(program) => program,
        Err(faults) => {
            assert!(faults.iter().all(|fault| fault.line >= 1 && fault.column >= 1));
            return false;
        }
    };
    let mut scratch = program.scratch();
    let mut first = None;
    // The first time some values are missing, the second time none is.
    for complete in [false, true] {
        fill(&program, &mut scratch, bytes, complete);
        let outcome = program.evaluate(0, &mut scratch, lists);
        assert_eq!(bits(outcome), bits(program.evaluate(0, &mut scratch, lists)));
        match first {
            None => first = Some(outcome),
            Some(known @ Outcome::Known(_)) if !text.contains("has") && !text.contains("null") => {
                assert_eq!(bits(known), bits(outcome), "a missing value decided");
            }
            Some(_) => {}
        }
    }
    true
}

fn fill(program: &Program, scratch: &mut Scratch, bytes: &[u8], complete: bool) {
    scratch.clear();
    let mut bytes = bytes.iter().skip(1).copied();
    for (name, kind) in NAMES {
        let (shape, value) = (bytes.next().unwrap_or(0), bytes.next().unwrap_or(0));
        if shape % 3 == 0 && !complete {
            continue;
        }
        let slot = program.environment().slot(name).expect("a declared name");
        let int = (i64::from(value) - 100) << (shape % 60);
        match kind {
            Type::Bool => scratch.set_bool(slot, value % 2 == 0),
            Type::Int => scratch.set_int(slot, int),
            Type::Double => scratch.set_double(slot, int as f64 / 8.0),
            Type::Text => {
                let text = VOCABULARY[usize::from(value) % VOCABULARY.len()];
                scratch.set_text(slot, program.text_id(text));
            }
            Type::Key => scratch.set_key(slot, u64::from(value)),
        }
    }
}

/// A result that can be compared also if it is NaN.
fn bits(outcome: Outcome<Value<'_>>) -> String {
    match outcome {
        Outcome::Known(Value::Double(value)) if !value.is_nan() => format!("{:x}", value.to_bits()),
        other => format!("{other:?}"),
    }
}
