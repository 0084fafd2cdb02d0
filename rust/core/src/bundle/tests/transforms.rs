//! The functions of the transform node, and the columns that they add, against naive computations.

use serde_json::{Value, json};

use super::super::program::Step;
use super::super::testing::{Recipe, action_recipe, score_recipe};
use super::super::*;
use crate::budget::Unlimited;
use crate::forest::{Missing, NanRule, Split, Target, Test, Tree, ZeroRule};
use crate::policy::Mask;
use crate::schema::FeatureType;

fn features() -> Vec<FeatureSpec> {
    serde_json::from_value(json!([
        {"name": "a", "type": "number"}, {"name": "b", "type": "number"},
        {"name": "country", "type": "category", "categories": ["NL", "DE", "FR"]},
        {"name": "night", "type": "flag"},
        {"name": "time", "type": "number", "minimum": -2e9, "maximum": 2e10},
    ]))
    .unwrap()
}

const TABLES: &str = r#"{"tables": {"risk": {"values": {"NL": 0.1, "FR": 0.7}, "default": -1.5}, "open": {"values": {"DE": 4}}}}"#;

/// The last column after one step, for one row.
fn of(step: &Value, row: [f32; 5]) -> f32 {
    let steps: Vec<node::TransformStep> = serde_json::from_value(json!([step])).unwrap();
    let out = transform_rows(&features(), &steps, Some(TABLES.as_bytes()), None, &row).unwrap();
    assert_eq!(out.len(), 6);
    assert!(out[..5].iter().zip(&row).all(|(new, old)| new.to_bits() == old.to_bits()));
    out[5]
}

/// Compares bits, except that every NaN is the same.
#[track_caller]
fn equal(found: f32, expected: f32) {
    assert!(
        found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan()),
        "{found} is not {expected}"
    );
}

const NAN: f32 = f32::NAN;

#[test]
fn functions_of_one_number() {
    let clip = json!({"function": "clip", "feature": "a", "low": -1.5, "high": 0.1, "output": "c"});
    let bucket = json!({"function": "bucket", "feature": "a", "edges": [-2, 0.7, 3], "output": "c"});
    let missing = json!({"function": "missing", "feature": "a", "output": "c"});
    let scaled = json!({"function": "standardise", "feature": "a", "mean": 0.3, "scale": 3.0, "output": "c"});
    for value in [-3.0, -2.0, -1.5, -0.0, 0.0, 0.1, 0.7, f32::next_down(0.7), 1e-45, 2.999, 3.0, 3e38, NAN] {
        let row = [value, 0.0, 0.0, 0.0, 0.0];
        let clipped = value.clamp(-1.5, 0.1);
        equal(of(&clip, row), clipped);
        let below = [-2.0, 0.7, 3.0].iter().filter(|edge| **edge <= value).count() as f32;
        equal(of(&bucket, row), if value.is_nan() { NAN } else { below });
        equal(of(&missing, row), if value.is_nan() { 1.0 } else { 0.0 });
        equal(of(&scaled, row), ((f64::from(value) - 0.3) / 3.0) as f32);
    }
    equal(
        of(&json!({"function": "missing", "feature": "country", "output": "c"}), [0.0, 0.0, NAN, 0.0, 0.0]),
        1.0,
    );
    let low = json!({"function": "clip", "feature": "a", "low": 2, "output": "c"});
    assert_eq!((of(&low, [-3e38, 0.0, 0.0, 0.0, 0.0]), of(&low, [3e38, 0.0, 0.0, 0.0, 0.0])), (2.0, 3e38));
}

#[test]
fn arithmetic_of_two_columns() {
    let step = |function: &str| json!({"function": function, "left": "a", "right": "b", "output": "c"});
    let values = [0.0, -0.0, 0.1, -3.7, 1e-30, 12_345.678, 1e18, NAN];
    for a in values {
        for b in values {
            let row = [a, b, 0.0, 1.0, 0.0];
            let (x, y) = (f64::from(a), f64::from(b));
            equal(of(&step("add"), row), (x + y) as f32);
            equal(of(&step("subtract"), row), (x - y) as f32);
            equal(of(&step("multiply"), row), (x * y) as f32);
            for (zero, expected) in [(json!("missing"), NAN), (json!(-7.5), -7.5)] {
                let mut ratio = step("ratio");
                ratio["zero"] = zero;
                let quotient = (x / y) as f32;
                let missing = a.is_nan() || b.is_nan();
                let expected = if quotient.is_finite() { quotient } else { expected };
                equal(of(&ratio, row), if missing { NAN } else { expected });
            }
        }
    }
    let flag = json!({"function": "multiply", "left": "a", "right": "night", "output": "c"});
    equal(of(&flag, [2.5, 0.0, 0.0, 1.0, 0.0]), 2.5);
    equal(of(&flag, [2.5, 0.0, 0.0, NAN, 0.0]), NAN);
    // A result beyond float32 is a fault, and not a missing value.
    let steps: Vec<node::TransformStep> = serde_json::from_value(json!([step("multiply")])).unwrap();
    let refused = transform_rows(&features(), &steps, None, None, &[1e30, 1e30, 0.0, 0.0, 0.0]).unwrap_err();
    assert!(refused.to_string().contains("row 0: a value became 1000000"), "{refused}");
}

#[test]
fn tables_and_parts_of_dates() {
    let table = |name: &str| json!({"function": "table", "feature": "country", "table": name, "output": "c"});
    let other = json!({"function": "clip", "feature": "a", "low": 0, "output": "c"});
    assert_eq!(of(&other, [0.0; 5]), 0.0);
    for (code, risk, open) in [(0.0, 0.1, NAN), (1.0, -1.5, 4.0), (2.0, 0.7, NAN), (NAN, -1.5, NAN)] {
        equal(of(&table("risk"), [0.0, 0.0, code, 0.0, 0.0]), risk);
        equal(of(&table("open"), [0.0, 0.0, code, 0.0, 0.0]), open);
    }
    let part = |part: &str, offset: i64| json!({"function": "datepart", "feature": "time", "part": part, "offset": offset, "output": "c"});
    // 2024-02-29 was a Thursday, 1969-12-31 a Wednesday, 2000-03-01 a Wednesday, 1900-02-28 a Wednesday, 2100-03-01 a
    // Monday. The times are multiples of 256 s, which float32 holds exactly.
    for (days, day, weekday) in
        [(19_782_i64, 29, 3), (-1, 31, 2), (11_017, 1, 2), (-25_509, 28, 2), (47_541, 1, 0), (0, 1, 3)]
    {
        let row = [0.0, 0.0, 0.0, 0.0, ((days * 86_400 + 43_200) / 1024 * 1024) as f32];
        assert_eq!(of(&part("day", 0), row), day as f32, "{days}");
        assert_eq!(of(&part("weekday", 0), row), weekday as f32, "{days}");
        assert!((11.0..=12.0).contains(&of(&part("hour", 0), row)), "{days}");
    }
    let noon = [0.0, 0.0, 0.0, 0.0, 43_200.0];
    assert_eq!(
        [0, 3600, -43_201, 43_200].map(|offset| of(&part("hour", offset), noon)),
        [12.0, 13.0, 23.0, 0.0]
    );
    assert_eq!([0, -43_201, 43_200].map(|offset| of(&part("day", offset), noon)), [1.0, 31.0, 2.0]);
    equal(of(&part("day", 0), [0.0, 0.0, 0.0, 0.0, NAN]), NAN);
    // A row that was not checked gives some value.
    for wild in [f32::MAX, f32::MIN] {
        assert!((1.0..=31.0).contains(&of(&part("day", 0), [0.0, 0.0, 0.0, 0.0, wild])));
    }
}

#[test]
fn every_day_of_400_years() {
    let (mut year, mut month, mut day) = (1970, 1, 1);
    for days in 0..146_097_i64 {
        assert_eq!(node::Part::Day.of(days as f64 * 86_400.0), f64::from(day), "{days}");
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let length = [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31][month - 1];
        day += 1;
        if day > length {
            (day, month) = (1, month + 1);
        }
        if month > 12 {
            (month, year) = (1, year + 1);
        }
    }
}

/// A forest of stumps that counts the columns from `first` on that are at least a threshold.
fn counting(recipe: &mut Recipe, columns: usize, tests: &[(u32, f64)]) {
    let model = recipe.forests.get_mut("forest.bin").unwrap();
    model.num_features = columns;
    model.trees = tests
        .iter()
        .enumerate()
        .map(|(at, &(feature, threshold))| Tree {
            target: Target::Output(0),
            nodes: vec![
                crate::forest::Node::Split(Split {
                    feature,
                    test: Test::Less(threshold),
                    missing: Missing { nan: NanRule::Left, zero: ZeroRule::Keep },
                    left: 1,
                    right: 2,
                }),
                crate::forest::Node::Leaf(0),
                crate::forest::Node::Leaf(1),
            ],
            leaves: vec![0.0, f64::from(1 << at)],
            sets: Vec::new(),
            covers: vec![4.0, 3.0, 1.0],
        })
        .collect();
}

/// A score bundle whose forest reads the request's three features and three added columns.
fn extended() -> Recipe {
    let mut recipe = score_recipe("fraud", 0.0);
    recipe.tables = Some(json!({"tables": {"risk": {"values": {"DE": 0.5}, "default": 0.25}}}));
    let nodes = recipe.manifest["program"].as_array_mut().unwrap();
    nodes[0]["input"] = json!("more");
    nodes.insert(
        0,
        json!({"kind": "transform", "input": "row", "output": "first", "steps": [
            {"function": "table", "feature": "country", "table": "risk", "output": "risk"},
            {"function": "multiply", "left": "amount", "right": "risk", "output": "expected loss"},
            {"function": "log1p", "feature": "amount"},
        ]}),
    );
    nodes.insert(
        1,
        json!({"kind": "transform", "input": "first", "output": "more", "steps": [
            {"function": "bucket", "feature": "expected loss", "edges": [10, 20], "output": "class"},
            {"function": "standardise", "feature": "risk", "mean": 0.25, "scale": 0.25},
        ]}),
    );
    counting(&mut recipe, 6, &[(0, 4.0), (3, 1.0), (4, 15.0), (5, 2.0)]);
    recipe
}

#[test]
fn added_columns_reach_the_forest_and_later_nodes() {
    let mut recipe = extended();
    recipe.covers = true;
    recipe.reasons = Some(json!({"features": {"class": {"code": "R9"}}}));
    let bundle = recipe.draft().unwrap();
    let (mut scratch, mut other) = (EvalScratch::new(&bundle), EvalScratch::new(&bundle));
    let mut rows = Vec::new();
    for amount in [0.0, 30.0, 40.0, 60.0, 80.0, 50_000.0] {
        rows.extend([0.0, 1.0, NAN].iter().flat_map(|&country| [amount, country, 0.0]));
    }
    let mut together = Vec::new();
    bundle.score_rows(&rows, &Unlimited, &mut other, &mut together).unwrap();
    for (row, together) in rows.chunks(3).zip(together) {
        let risk = if row[1] == 1.0 { 0.5 } else { 0.25 };
        let loss = row[0] * risk;
        let class = [10.0, 20.0].iter().filter(|edge| **edge <= loss).count();
        let tests = [row[0].ln_1p() >= 4.0, (risk - 0.25) / 0.25 >= 1.0, loss >= 15.0, class >= 2];
        let expected: f64 =
            tests.iter().enumerate().map(|(at, test)| if *test { f64::from(1 << at) } else { 0.0 }).sum();
        let out = bundle.score_explained(row, &Unlimited, &mut scratch).unwrap();
        assert_eq!(out.margin, expected, "{row:?}");
        assert_eq!(together, Ok(out));
        assert_eq!(bundle.score(row, &Unlimited, &mut scratch), Ok(out));
        let explained = bundle.explain(row, None, &Unlimited, &mut scratch).unwrap();
        let sum: f64 = scratch.contributions().iter().sum();
        assert!((explained.expectation + sum - out.margin).abs() < 1e-6);
    }
    let names: Vec<_> = (0..7).map(|column| bundle.column_name(column)).collect();
    let known = ["amount", "country", "night", "risk", "expected loss", "class"];
    assert_eq!(names[..6], known.map(Some));
    assert_eq!((names[6], bundle.reason_code(5), bundle.reason_code(6)), (None, Some("R9"), None));
    assert_eq!([0, 3, 4, 5].map(|at| bundle.column_origins(at)), [vec![0], vec![1], vec![0, 1], vec![0, 1]]);
}

#[test]
fn a_switch_reads_an_added_column() {
    let mut recipe = extended();
    recipe.forests.insert("member-01.bin".to_owned(), score_recipe("m", 0.0).forests["forest.bin"].clone());
    let nodes = recipe.manifest["program"].as_array_mut().unwrap();
    nodes.insert(4, json!({"kind": "forest", "file": "member-01.bin", "input": "row", "output": "plain"}));
    nodes.insert(5, json!({"kind": "link", "input": "plain", "output": "other"}));
    nodes.insert(
        6,
        json!({"kind": "switch", "row": "more", "feature": "class", "default": "other", "output": "either",
        "cases": [{"input": "probability", "from": 1}]}),
    );
    nodes[7]["input"] = json!("either");
    let bundle = recipe.draft().unwrap();
    // The choice comes after the transforms that it reads.
    let position = |test: fn(&Step) -> bool| bundle.program.steps.iter().position(test).unwrap();
    assert_eq!(position(|step| matches!(step, Step::Choose { .. })), 2);
    let mut scratch = EvalScratch::new(&bundle);
    let high = bundle.score(&[60.0, 0.0, 0.0], &Unlimited, &mut scratch).unwrap();
    let low = bundle.score(&[30.0, 0.0, 0.0], &Unlimited, &mut scratch).unwrap();
    // ln(1 + 60) and 60 * 0.25 pass their tests; 30 * 0.25 is below the first edge.
    assert_eq!((high.margin, low.margin), (5.0, -1.5));
}

fn refused(steps: Value) -> String {
    let mut recipe = score_recipe("fraud", 0.0);
    recipe.tables = Some(json!({"tables": {"risk": {"values": {"DE": 0.5}}}}));
    let nodes = recipe.manifest["program"].as_array_mut().unwrap();
    nodes[0]["input"] = json!("more");
    nodes.insert(0, json!({"kind": "transform", "input": "row", "output": "more", "steps": steps}));
    let message = recipe.draft().unwrap_err().to_string();
    assert!(!message.contains('\n') && message.len() < 600, "{message}");
    message
}

#[test]
fn faults_name_node_step_and_remedy() {
    let table = json!({"function": "table", "feature": "country", "table": "risk", "output": "c"});
    for (step, reason) in [
        (
            json!({"function": "clip", "feature": "amt", "low": 1}),
            "step 1 (clip): feature \"amt\" is not in the schema",
        ),
        (
            json!({"function": "clip", "feature": "amount"}),
            "step 1 (clip): feature \"amount\": give a finite low",
        ),
        (json!({"function": "clip", "feature": "amount", "low": 2, "high": 1}), "low 2 is above high 1"),
        (json!({"function": "clip", "feature": "night", "low": 0}), "\"night\" is a flag, only numbers"),
        (json!({"function": "bucket", "feature": "amount", "edges": [], "output": "x"}), "0 edges"),
        (
            json!({"function": "bucket", "feature": "amount", "edges": [1, 1.00000001], "output": "x"}),
            "ascend in float32",
        ),
        (
            json!({"function": "missing", "feature": "amount", "output": "night"}),
            "\"night\" is already a column",
        ),
        (json!({"function": "missing", "feature": "amount", "output": "c"}), "\"c\" is already a column"),
        (json!({"function": "missing", "feature": "amount", "output": ""}), "output \"\" is not 1 to 128"),
        (
            json!({"function": "add", "left": "amount", "right": "country", "output": "x"}),
            "\"country\" is a category",
        ),
        (
            json!({"function": "ratio", "left": "amount", "right": "night", "zero": 1e39, "output": "x"}),
            "zero is 1",
        ),
        (
            json!({"function": "table", "feature": "amount", "table": "risk", "output": "x"}),
            "\"amount\" is a number",
        ),
        (json!({"function": "table", "feature": "country", "table": "r", "output": "x"}), "no table \"r\""),
        (
            json!({"function": "datepart", "feature": "c", "part": "day", "output": "x"}),
            "needs a minimum and a maximum",
        ),
        (
            json!({"function": "datepart", "feature": "amount", "part": "day", "offset": 90000, "output": "x"}),
            "offset 90000",
        ),
    ] {
        let message = refused(json!([table, step]));
        assert!(
            message.contains("program node 0 (transform): step 1 (") && message.contains(reason),
            "{message}"
        );
    }
    let twice = json!({"function": "clip", "feature": "amount", "low": 1});
    assert!(
        refused(json!([table, twice, twice])).contains("step 2 (clip): feature \"amount\" has two steps")
    );
    assert!(refused(json!([{"function": "hash", "feature": "country"}])).contains("unknown variant `hash`"));
    assert!(
        refused(json!([{"function": "ratio", "left": "amount", "right": "night", "output": "x"}]))
            .contains("zero")
    );
    assert!(refused(json!([])).contains("tables.json: table \"risk\": no step of a transform uses it"));
    // The forest has three columns, the row four.
    assert!(refused(json!([table])).contains("forest.bin takes 3 features, the row slot has 4"));
    let typo = json!({"tables": {"risk": {"values": {"ES": 0.5}}}}).to_string();
    let steps: Vec<node::TransformStep> = serde_json::from_value(json!([table])).unwrap();
    let message =
        transform_rows(&features(), &steps, Some(typo.as_bytes()), None, &[]).unwrap_err().to_string();
    assert!(message.contains("step 0 (table): table \"risk\": \"ES\" is not a category"), "{message}");
}

/// Columns of actions and of the context, which the program computes for all actions at once where they are separate.
#[test]
fn added_columns_of_actions() {
    let own = json!({"function": "missing", "feature": "three_ds", "output": "any"});
    let mixed = json!({"function": "multiply", "left": "amount", "right": "three_ds", "output": "any"});
    for (step, together) in [(own, true), (mixed, false)] {
        let mut recipe = action_recipe("a", 0.0, json!({"rule": "uniform"}));
        let clip = json!({"function": "clip", "feature": "amount", "high": 60});
        let nodes = recipe.manifest["program"].as_array_mut().unwrap();
        nodes[0]["input"] = json!("more");
        nodes
            .insert(0, json!({"kind": "transform", "input": "row", "output": "more", "steps": [clip, step]}));
        counting(&mut recipe, 6, &[(0, 55.0), (3, 0.5), (5, 50.0)]);
        let bundle = recipe.draft().unwrap();
        assert_eq!(bundle.oracle.is_some(), together);
        let mut by_rows = recipe.draft().unwrap();
        by_rows.oracle = None;
        let (mut scratch, mut other) = (EvalScratch::new(&bundle), EvalScratch::new(&by_rows));
        for amount in [10.0, 52.0, 1000.0] {
            let row = [amount, 0.0, 0.0];
            let out = bundle.select(&row, &Mask::all(6), "c", "d", &Unlimited, &mut scratch);
            assert_eq!(out, by_rows.select(&row, &Mask::all(6), "c", "d", &Unlimited, &mut other));
            let margins = bundle.program.margins[0].start;
            assert_eq!(scratch.columns.of(margins), other.columns.of(margins));
            for (action, margin) in scratch.columns.of(margins).iter().enumerate() {
                let uses = if action >= 3 { 1.0 } else { 0.0 };
                let last = if together { 0.0 } else { amount.min(60.0) * uses };
                let tests = [amount.min(60.0) >= 55.0, uses >= 0.5, last >= 50.0];
                let expected: f64 = tests
                    .iter()
                    .enumerate()
                    .map(|(at, test)| if *test { f64::from(1 << at) } else { 0.0 })
                    .sum();
                assert_eq!(*margin, expected, "{amount} {action}");
            }
        }
    }
}

#[test]
fn types_of_added_columns() {
    let steps: Vec<node::TransformStep> = serde_json::from_value(json!([
        {"function": "missing", "feature": "a", "output": "absent"},
        {"function": "datepart", "feature": "time", "part": "hour", "output": "hour"},
    ]))
    .unwrap();
    let columns = transform::input_columns(&features());
    let (_, columns) =
        transform::Transform::compile(&steps, &columns, &mut Default::default(), None).unwrap();
    let seen: Vec<_> = columns[5..].iter().map(|column| (column.spec.kind, column.spec.maximum)).collect();
    assert_eq!(seen, [(FeatureType::Flag, None), (FeatureType::Number, Some(23.0))]);
}
