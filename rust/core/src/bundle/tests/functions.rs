//! A team's own functions in transforms and rules: results, faults, deadlines and refusals.

use std::cell::Cell;

use scorer_rules::{ErrorKind, Exhausted, Request, RuleState};
use serde_json::{Value, json};

use super::super::testing::{Recipe, action_recipe, assemble, reseal, score_recipe};
use super::super::*;
use crate::budget::{Budget, Unlimited};
use crate::policy::Mask;

const NOW: Request<'static> =
    Request { seconds: 1_790_000_000, id: b"payment-1", exhausted: Exhausted::NONE };

/// `risk(amount, night)` is amount × 2 + night, or -1 without an amount. `bad(x)` loops for 3, traps for 4, and is
/// beyond float32 for 5 and infinite for 6. `twofold(x)` is 2 × x.
fn module() -> Vec<u8> {
    wat::parse_str(
        r#"(module
        (func (export "risk") (param f64 f64) (result f64)
            (if (result f64) (f64.ne (local.get 0) (local.get 0))
                (then (f64.const -1))
                (else (f64.add (f64.mul (local.get 0) (f64.const 2)) (local.get 1)))))
        (func (export "bad") (param f64) (result f64)
            (if (f64.eq (local.get 0) (f64.const 3)) (then (loop (br 0))))
            (if (f64.eq (local.get 0) (f64.const 4)) (then unreachable))
            (if (f64.eq (local.get 0) (f64.const 5)) (then (return (f64.const 1e300))))
            (if (f64.eq (local.get 0) (f64.const 6)) (then (return (f64.const inf))))
            (local.get 0))
        (func (export "twofold") (param f64) (result f64) (f64.mul (local.get 0) (f64.const 2))))"#,
    )
    .unwrap()
}

fn functions() -> [(&'static str, &'static [&'static str]); 3] {
    [("risk", &["amount", "night"]), ("bad", &["x"]), ("twofold", &["x"])]
}

/// The score bundle with a transform in front of its forest, which reads the columns that the steps add.
fn transformed(steps: Value) -> Recipe {
    score_recipe("fraud", 0.0).with_functions(module(), &functions()).with_steps(steps)
}

fn faults(bundle: &Bundle, scratch: &mut EvalScratch) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    let entries = bundle.functions().unwrap().entries();
    scratch.take_function_faults(|function, count| found.push((entries[function].name.clone(), count)));
    found
}

fn custom(name: &str, inputs: &[&str], output: &str) -> Value {
    json!({"function": "custom", "name": name, "inputs": inputs, "output": output})
}

#[test]
fn a_step_adds_the_result_of_a_function_alone_and_in_blocks() {
    let steps = json!([custom("risk", &["amount", "night"], "risk"), custom("twofold", &["risk"], "twice")]);
    let bundle = transformed(steps).draft().unwrap();
    let (mut scratch, mut other) = (EvalScratch::new(&bundle), EvalScratch::new(&bundle));
    let rows: Vec<f32> = (0..200)
        .flat_map(|at| [[10.0, 24.0, 25.0, 500.0, f32::NAN][at % 5], 0.0, [0.0, 1.0, f32::NAN][at % 3]])
        .collect();
    let mut together = Vec::new();
    bundle.score_rows(&rows, &Unlimited, &mut other, &mut together).unwrap();
    for (row, together) in rows.chunks(3).zip(together) {
        let alone = bundle.score(row, &Unlimited, &mut scratch).unwrap();
        assert_eq!(Ok(alone), together);
        let [amount, _, night] = [f64::from(row[0]), 0.0, f64::from(row[2])];
        let twice = 2.0 * if amount.is_nan() { -1.0 } else { amount * 2.0 + night };
        let expected = if twice >= 100.0 { 1.0 } else { -1.0 }
            + if amount >= 1000.0 { 1.5 } else { -0.5 }
            + if night >= 0.5 { 0.25 } else { 0.0 };
        assert_eq!(alone.margin, expected, "{row:?}");
    }
    assert!(faults(&bundle, &mut scratch).is_empty());
}

#[test]
fn a_fault_gives_a_missing_value_and_is_counted() {
    let bundle = transformed(json!([custom("bad", &["amount"], "value")])).draft().unwrap();
    let mut scratch = EvalScratch::new(&bundle);
    let mut margin =
        |amount: f32| bundle.score(&[amount, 0.0, 0.0], &Unlimited, &mut scratch).unwrap().margin;
    // A missing value goes left, as a small one does.
    let [missing, low, high] = [-1.5, -1.5, 0.5];
    assert_eq!((margin(100.0), margin(99.0)), (high, low));
    for amount in [3.0, 4.0, 5.0, 6.0] {
        assert_eq!(margin(amount), missing, "{amount}");
    }
    assert_eq!(margin(f32::NAN), missing);
    assert_eq!(faults(&bundle, &mut scratch), [("bad".to_owned(), 4)]);
    assert!(faults(&bundle, &mut scratch).is_empty());
}

/// A budget that is spent after a number of questions.
struct Questions(Cell<usize>);

impl Budget for Questions {
    fn spent(&self) -> bool {
        self.0.set(self.0.get().saturating_sub(1));
        self.0.get() == 0
    }
}

/// Fault case 107.
#[test]
fn the_deadline_is_checked_before_each_call_of_every_action() {
    let policy = json!({"rule": "epsilon_greedy", "epsilon": 0.1});
    let steps = json!([custom("bad", &["amount"], "risk")]);
    let recipe = action_recipe("authorise", 0.0, policy).with_functions(module(), &functions());
    let bundle = recipe.with_steps(steps).draft().unwrap();
    let mut scratch = EvalScratch::new(&bundle);
    let all = Mask::all(bundle.catalogue().len());
    let select = |amount: f32, budget: &dyn Budget, scratch: &mut EvalScratch| {
        bundle
            .select(&[amount, 0.0, 0.0], &all, "checkpoint", "decision", budget, scratch)
            .map(|out| out.faulted.iter().collect::<Vec<_>>())
    };
    // The function takes its whole fuel for every action, and each has a missing value.
    assert_eq!(select(3.0, &Unlimited, &mut scratch), Ok(vec![1]));
    let counted = faults(&bundle, &mut scratch);
    assert_eq!(counted, [("bad".to_owned(), bundle.catalogue().len() as u64)]);
    let late = Questions(Cell::new(1));
    assert!(matches!(select(3.0, &late, &mut scratch), Err(EvalError::OutOfTime(_))));
    assert!(faults(&bundle, &mut scratch).is_empty(), "no call after the deadline");
    // An evaluation that ended in its middle leaves no faults to the next one.
    let middle = Questions(Cell::new(3));
    assert!(matches!(select(3.0, &middle, &mut scratch), Err(EvalError::OutOfTime(_))));
    assert_eq!(faults(&bundle, &mut scratch).len(), 1);
    assert_eq!(select(2.0, &Unlimited, &mut scratch), Ok(Vec::new()));
}

#[test]
fn a_result_names_the_functions_that_had_none_alone_and_in_blocks() {
    let steps = json!([custom("twofold", &["amount"], "twice"), custom("bad", &["amount"], "value")]);
    let bundle = transformed(steps).draft().unwrap();
    let (mut scratch, mut other) = (EvalScratch::new(&bundle), EvalScratch::new(&bundle));
    let rows: Vec<f32> = (0..200).flat_map(|at| [[3.0, 1.0, 4.0, 5.0, 6.0, 2.0][at % 6], 0.0, 0.0]).collect();
    let mut together = Vec::new();
    bundle.score_rows(&rows, &Unlimited, &mut other, &mut together).unwrap();
    for (row, together) in rows.chunks(3).zip(together) {
        let alone = bundle.score(row, &Unlimited, &mut scratch).unwrap();
        assert_eq!(Ok(alone), together);
        let expected: &[usize] = if row[0] >= 3.0 { &[1] } else { &[] };
        assert_eq!(alone.faulted.iter().collect::<Vec<_>>(), expected, "{row:?}");
    }
    // Twice the amount is not finite in float32.
    let large = bundle.score(&[3e38, 0.0, 0.0], &Unlimited, &mut scratch).unwrap();
    assert_eq!(large.faulted.iter().collect::<Vec<_>>(), [2]);
    assert_eq!(scratch.faulted_in_rules(), FunctionSet::default());
}

#[test]
fn rules_name_the_functions_that_failed_one_by_one_and_in_rows() {
    // It would fail for an amount of 10.
    let inactive = "[[rules]]\nid = \"later\"\nwhen = \"twofold(amount * 1e307) > 0.0\"\ncap = 0.5\nfrom = 2090-01-01T00:00:00Z\n";
    let rules = format!("{RULES}\n{inactive}");
    let bundle =
        score_recipe("fraud", 0.0).with_functions(module(), &functions()).with_rules(&rules, &[]).build();
    let bundle = assemble(&bundle.unwrap()).unwrap();
    let rules = bundle.rules().unwrap();
    let mut scratch = EvalScratch::new(&bundle);
    let rows: Vec<[f32; 3]> = (0..100).map(|at| [[10.0, 3.0, 4.0, 499.4, 6.0][at % 5], 0.0, 0.0]).collect();
    let mut together = Vec::new();
    rules.evaluate_all(rules.lists(), rows.iter().map(|row| (&row[..], Some(0.4), NOW)), |_, decision| {
        together.push(decision.failed_functions());
    });
    for (row, together) in rows.iter().zip(together) {
        assert!(bundle.apply_rules(row, Some(0.4), NOW, &mut scratch).unwrap());
        assert_eq!(scratch.faulted_in_rules().bits(), together, "{row:?}");
        let failed = matches!(row[0], 3.0 | 4.0 | 6.0);
        assert_eq!(together, if failed { 1 << 1 } else { 0 }, "{row:?}");
    }
}

const RULES: &str = r#"
name = "checkout"
decisions = ["decline", "review", "approve"]

[[values]]
name = "twice"
is = "twofold(amount)"

[[rules]]
id = "risky"
when = "risk(amount, 1.0) > 1000.0"
decision = "decline"

[[rules]]
id = "bad"
when = "bad(amount) > 0.0 || false"
floor = 0.95

[[rules]]
id = "unknown"
when = "twofold(amount) > 1.0 && twice > 1.0"
cap = 0.5
"#;

#[test]
fn rules_call_functions_one_by_one_and_in_rows() {
    let bundle =
        score_recipe("fraud", 0.0).with_functions(module(), &functions()).with_rules(RULES, &[]).build();
    let bundle = assemble(&bundle.unwrap()).unwrap();
    let rules = bundle.rules().unwrap();
    let mut scratch = EvalScratch::new(&bundle);
    let amounts = [10.0, 499.4, 499.6, 3.0, 4.0, 5.0, 6.0, f32::NAN];
    let rows: Vec<[f32; 3]> = amounts.iter().map(|amount| [*amount, 0.0, 0.0]).collect();
    let mut together = Vec::new();
    rules.evaluate_all(rules.lists(), rows.iter().map(|row| (&row[..], Some(0.4), NOW)), |_, decision| {
        together.push(decision.states().to_vec());
    });
    let failed = RuleState::Error(ErrorKind::Failed);
    for ((row, amount), together) in rows.iter().zip(amounts).zip(together) {
        assert!(bundle.apply_rules(row, Some(0.4), NOW, &mut scratch).unwrap());
        let states = scratch.ruling().unwrap().states().to_vec();
        assert_eq!(states, together, "{amount}");
        let risky = if amount * 2.0 + 1.0 > 1000.0 { RuleState::Fired } else { RuleState::False };
        let (bad, unknown) = match amount {
            3.0 | 4.0 | 6.0 => (failed, RuleState::Fired),
            _ if amount.is_nan() => (RuleState::Unknown, RuleState::Unknown),
            _ => (RuleState::Fired, RuleState::Fired),
        };
        assert_eq!(states, [risky, bad, unknown], "{amount}");
    }
    assert_eq!(faults(&bundle, &mut scratch), [("bad".to_owned(), 3)]);
}

#[test]
fn calls_of_rules_are_checked_when_the_rules_are_compiled() {
    let refused = |condition: &str| {
        let rules = format!(
            "name = \"r\"\ndecisions = [\"decline\"]\n[[rules]]\nid = \"one\"\nwhen = '{condition}'\ncap = 0.5\n"
        );
        let recipe =
            score_recipe("fraud", 0.0).with_functions(module(), &functions()).with_rules(&rules, &[]);
        recipe.draft().unwrap_err().to_string()
    };
    for (condition, expected) in [
        ("risk(amount) > 1.0", "risk() takes 2 arguments and not 1; write risk(amount, night)"),
        ("risk(amount, night) > 1.0", "risk() needs double and not bool"),
        ("risk(amount, 1) > 1.0", "risk() needs double and not int; write the literal as a double"),
        ("rsk(amount, 1.0) > 1.0", "unknown function rsk(); the nearest name is \"risk\""),
        ("risk(amount, 1.0)", "bool"),
    ] {
        let error = refused(condition);
        assert!(error.contains(expected), "{error}");
    }
    // The work of all calls together is bounded, so that rules end in a bounded time.
    let mut recipe = score_recipe("fraud", 0.0).with_functions(module(), &functions());
    recipe.functions.as_mut().unwrap()["functions"][0]["fuel"] = json!(100_000);
    let rule =
        |at: usize| format!("[[rules]]\nid = \"r{at}\"\nwhen = 'risk(amount, {at}.0) > 1.0'\ncap = 0.5\n");
    let rules = |count: usize| {
        format!("name = \"r\"\ndecisions = [\"decline\"]\n{}", (0..count).map(rule).collect::<String>())
    };
    recipe.clone().with_rules(&rules(20), &[]).draft().unwrap();
    let error = recipe.with_rules(&rules(21), &[]).draft().unwrap_err().to_string();
    assert!(error.contains("may take 2100000 instructions together, more than 2000000"), "{error}");
}

#[test]
fn functions_that_do_not_fit_are_refused_by_name() {
    let change = |change: fn(&mut Recipe)| {
        let mut recipe = score_recipe("fraud", 0.0).with_functions(module(), &functions());
        change(&mut recipe);
        recipe.draft().unwrap_err().to_string()
    };
    for (error, expected) in [
        (change(|one| one.functions = None), "function-01.wasm: without functions.json"),
        (change(|one| one.modules.clear()), "function-01.wasm is not listed, functions.json names it"),
        (
            change(|one| drop(one.modules.insert("function-02.wasm".to_owned(), vec![1]))),
            "function-02.wasm: no function of functions.json is in it",
        ),
        (
            change(|one| drop(one.modules.insert("function-17.wasm".to_owned(), vec![1]))),
            "\"function-17.wasm\": a bundle has no such file",
        ),
        (
            change(|one| drop(one.modules.insert("function-01.wasm".to_owned(), b"\0asm".to_vec()))),
            "function-01.wasm: is not a valid module",
        ),
        (
            change(|one| one.functions.as_mut().unwrap()["functions"][0]["export"] = json!("gone")),
            "function \"risk\": the module exports no function \"gone\"",
        ),
        (
            change(|one| one.functions.as_mut().unwrap()["functions"][0]["parameters"] = json!(["a"])),
            "function \"risk\": 1 parameters are stated, the module's function has 2",
        ),
        (
            change(|one| one.functions.as_mut().unwrap()["functions"][0]["parameters"] = json!(["a", "a"])),
            "parameter \"a\" is not",
        ),
        (
            change(|one| one.functions.as_mut().unwrap()["functions"][0]["fuel"] = json!(1e6 as u64)),
            "function \"risk\": fuel 1000000 is not from 1 to 100000",
        ),
        (
            change(|one| {
                let functions = &mut one.functions.as_mut().unwrap()["functions"];
                functions[0]["name"] = json!("sqrt");
                functions[0]["export"] = json!("risk");
            }),
            "function \"sqrt\": is a function of the language",
        ),
        (
            change(|one| {
                let functions = &mut one.functions.as_mut().unwrap()["functions"];
                functions[0]["name"] = json!("my risk");
                functions[0]["export"] = json!("risk");
            }),
            "name \"my risk\": must be letters",
        ),
        (
            change(|one| {
                let functions = &mut one.functions.as_mut().unwrap()["functions"];
                functions[2] = json!({"name": "risk", "export": "twofold", "file": "function-01.wasm", "parameters": ["x"]});
            }),
            "function \"risk\": is declared twice",
        ),
        (change(|one| one.functions = Some(json!({"functions": []}))), "0 functions, 1 to 64 are allowed"),
        (change(|one| one.functions = Some(json!({"function": []}))), "functions.json: unknown field"),
    ] {
        assert!(error.contains(expected), "{error}");
    }
    for (step, expected) in [
        (
            custom("gone", &["amount"], "c"),
            "function \"gone\" is not in functions.json, which has risk, bad, twofold",
        ),
        (custom("risk", &["amount"], "c"), "takes 2 inputs (amount, night) and not 1"),
        (custom("risk", &["amount", "country"], "c"), "\"country\" is a category"),
        (custom("risk", &["amount", "gone"], "c"), "\"gone\" is not in the schema"),
        (custom("twofold", &["amount"], "night"), "is already a column"),
    ] {
        let error = transformed(json!([step])).draft().unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("step 0 (custom)"), "{error}");
    }
}

#[test]
fn a_revision_shares_the_compiled_modules() {
    let files = score_recipe("fraud", 0.0).with_functions(module(), &functions()).build().unwrap();
    let bundle = assemble(&files).unwrap();
    let mut changed = files.clone();
    let functions = String::from_utf8(files["functions.json"].clone()).unwrap();
    changed.insert("functions.json".to_owned(), functions.replace("10000", "20000").into_bytes());
    reseal(&mut changed).unwrap();
    let read = |name: &str| changed.get(name).cloned().ok_or(ReadError::Missing);
    let next = Bundle::draft_beside(&changed[MANIFEST], &read, &[&bundle]).unwrap();
    let module = |bundle: &Bundle| {
        let functions = bundle.functions().unwrap();
        Arc::clone(functions.library().modules().first().unwrap())
    };
    assert!(Arc::ptr_eq(&module(&bundle), &module(&next)));
}

#[test]
fn training_has_the_columns_of_the_server() {
    let features: Vec<FeatureSpec> =
        serde_json::from_value(json!([{"name": "a", "type": "number"}])).unwrap();
    let steps: Vec<node::TransformStep> =
        serde_json::from_value(json!([custom("bad", &["a"], "b")])).unwrap();
    let file =
        json!({"functions": [{"name": "bad", "file": "function-01.wasm", "parameters": ["x"]}]}).to_string();
    let modules = BTreeMap::from([("function-01.wasm".to_owned(), module())]);
    let rows = [1.0, 3.0, f32::NAN];
    let out = transform_rows(&features, &steps, None, Some((file.as_bytes(), &modules)), &rows).unwrap();
    assert_eq!(out[..3], [1.0, 1.0, 3.0]);
    assert!(out[3..].iter().skip_while(|value| **value == 3.0).all(|value| value.is_nan()));
}
