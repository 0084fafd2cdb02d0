//! Time of 300 rules of five conditions on one request, one thread: ours, cel-rust interpreted, zen-engine.
//!
//! Every engine gets the same conditions and requests, and must fire the same rules. The peers' inputs are converted
//! before the time starts; ours are set within it.
#![allow(dead_code, reason = "the example of rust/rules uses the rest of the workload")]

#[path = "../../../../rust/rules/examples/speed/workload.rs"]
mod workload;

use std::hint::black_box;

use cel::{Context, Program, Value};
use serde_json::{Map, json};
use workload::{Condition, Ours, RULES, Row, measure, rows, rules};
use zen_engine::DecisionEngine;
use zen_engine::model::DecisionContent;

fn main() {
    let rows = rows(64);
    println!("{RULES} rules of 5 conditions, one request, one thread");
    for (name, probability) in [("every rule fires", 1.0), ("conditions true at 80 %", 0.8)] {
        println!("{name}");
        let rules = rules(probability);
        let mut ours = Ours::new(&rules);
        let (base, base99) = measure(50_000, |call| {
            black_box(ours.run(&rows[call % rows.len()]));
        });
        println!("  scorer-rules                 p50 {base:9.1} µs  p99 {base99:9.1} µs");
        let expected: Vec<Vec<bool>> = rows
            .iter()
            .map(|row| {
                ours.run(row);
                ours.fired()
            })
            .collect();
        report("cel 0.15.0, interpreted", cel(&rules, &rows, &expected), base, base99);
        report("zen-engine 2.1.6, table", zen(table(&rules), &rows, &expected), base, base99);
        report("zen-engine 2.1.6, expressions", zen(expressions(&rules), &rows, &expected), base, base99);
    }
}

fn report(name: &str, (median, high): (f64, f64), base: f64, base99: f64) {
    println!(
        "  {name:<29}p50 {median:9.1} µs  p99 {high:9.1} µs  ({:.0}x, {:.0}x)",
        median / base,
        high / base99
    );
}

fn cel(rules: &[Vec<Condition>], rows: &[Row], expected: &[Vec<bool>]) -> (f64, f64) {
    let programs: Vec<Program> = rules
        .iter()
        .map(|conditions| {
            let text: Vec<&str> = conditions.iter().map(|condition| condition.cel.as_str()).collect();
            Program::compile(&text.join(" && ")).expect("the expression is valid")
        })
        .collect();
    let contexts: Vec<Context<'_, '_>> = rows
        .iter()
        .map(|row| {
            let mut context = Context::default();
            let add = |context: &mut Context<'_, '_>, name: String, value: Value| {
                context.add_variable_from_value(name, value);
            };
            row.doubles
                .iter()
                .enumerate()
                .for_each(|(at, value)| add(&mut context, format!("f{at}"), Value::Float(*value)));
            row.ints
                .iter()
                .enumerate()
                .for_each(|(at, value)| add(&mut context, format!("n{at}"), Value::Int(*value)));
            for (at, text) in row.texts.iter().enumerate() {
                add(&mut context, format!("c{at}"), Value::String((*text).to_owned().into()));
            }
            context
        })
        .collect();
    for (context, expected) in contexts.iter().zip(expected) {
        for (program, fired) in programs.iter().zip(expected) {
            assert_eq!(program.execute(context).expect("a result"), Value::Bool(*fired));
        }
    }
    measure(1_000, |call| {
        for program in &programs {
            drop(black_box(program.execute(&contexts[call % contexts.len()])));
        }
    })
}

/// A decision table with a column for every name.
fn table(rules: &[Vec<Condition>]) -> serde_json::Value {
    let names: Vec<String> = [('f', workload::DOUBLES), ('n', workload::INTS), ('c', workload::TEXTS)]
        .into_iter()
        .flat_map(|(letter, count)| (0..count).map(move |at| format!("{letter}{at}")))
        .collect();
    let inputs: Vec<_> = names.iter().map(|name| json!({"id": name, "name": name, "field": name})).collect();
    let rows: Vec<_> = rules
        .iter()
        .enumerate()
        .map(|(number, conditions)| {
            let mut row = Map::new();
            row.insert("_id".to_owned(), json!(format!("r{number}")));
            for condition in conditions {
                let (name, test) = condition.zen.split_once(' ').expect("a name before the operator");
                // A cell tests its column without its name; the last condition multiplies, so it is scaled.
                let cell = match test.strip_prefix("* 2.0 < ") {
                    Some(limit) => format!("$ * 2.0 < {limit}"),
                    None => format!("$ {test}"),
                };
                let joined = match row.get(name).and_then(serde_json::Value::as_str) {
                    Some(other) => format!("{other} and {cell}"),
                    None => cell,
                };
                row.insert(name.to_owned(), json!(joined));
            }
            row.insert("o".to_owned(), json!(number.to_string()));
            serde_json::Value::Object(row)
        })
        .collect();
    json!({"id": "rules", "name": "rules", "type": "decisionTableNode", "content": {
        "hitPolicy": "collect", "inputs": inputs, "outputs": [{"id": "o", "name": "rule", "field": "rule"}], "rules": rows,
    }})
}

/// An expression for every rule.
fn expressions(rules: &[Vec<Condition>]) -> serde_json::Value {
    let all: Vec<_> = rules
        .iter()
        .enumerate()
        .map(|(number, conditions)| {
            let text: Vec<&str> = conditions.iter().map(|condition| condition.zen.as_str()).collect();
            json!({"id": format!("x{number}"), "key": format!("r{number}"), "value": text.join(" and ")})
        })
        .collect();
    json!({"id": "rules", "name": "rules", "type": "expressionNode", "content": {"expressions": all}})
}

fn zen(node: serde_json::Value, rows: &[Row], expected: &[Vec<bool>]) -> (f64, f64) {
    let content: DecisionContent = serde_json::from_value(json!({
        "nodes": [
            {"id": "in", "name": "in", "type": "inputNode", "content": {}},
            node,
            {"id": "out", "name": "out", "type": "outputNode", "content": {}},
        ],
        "edges": [
            {"id": "e1", "sourceId": "in", "targetId": "rules"},
            {"id": "e2", "sourceId": "rules", "targetId": "out"},
        ],
    }))
    .expect("a valid graph");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let engine = DecisionEngine::default();
    let mut decision = engine.create_decision(content.into()).expect("a decision");
    decision.compile();
    let inputs: Vec<serde_json::Value> = rows
        .iter()
        .map(|row| {
            let mut input = Map::new();
            row.doubles
                .iter()
                .enumerate()
                .for_each(|(at, value)| drop(input.insert(format!("f{at}"), json!(value))));
            row.ints
                .iter()
                .enumerate()
                .for_each(|(at, value)| drop(input.insert(format!("n{at}"), json!(value))));
            row.texts
                .iter()
                .enumerate()
                .for_each(|(at, value)| drop(input.insert(format!("c{at}"), json!(value))));
            serde_json::Value::Object(input)
        })
        .collect();
    for (input, expected) in inputs.iter().zip(expected) {
        let response = runtime.block_on(decision.evaluate(input.clone().into())).expect("a response");
        let result = serde_json::to_value(&response.result).expect("JSON");
        let fired: Vec<bool> = match &result {
            serde_json::Value::Array(rows) => {
                let mut fired = vec![false; RULES];
                for row in rows {
                    fired[row["rule"].as_f64().expect("a number") as usize] = true;
                }
                fired
            }
            object => (0..RULES).map(|number| object[format!("r{number}")] == json!(true)).collect(),
        };
        assert_eq!(&fired, expected);
    }
    let inputs: Vec<_> = inputs.into_iter().map(zen_engine::Variable::from).collect();
    measure(1_000, |call| {
        let input = inputs[call % inputs.len()].clone();
        drop(black_box(runtime.block_on(decision.evaluate(input))));
    })
}
