//! Functions of a bundle in steps and rules: replies, records and the metric of faults.

#![allow(clippy::panic, reason = "a failure here is a failed test")]

use std::collections::HashMap;

use crate::decide::decide;
use crate::support::*;
use scorer_core::budget::Unlimited;
use scorer_core::bundle::EvalScratch;
use scorer_core::bundle::testing::{Recipe, action_recipe, assemble, score_recipe};
use scorer_proto::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use scorer_proto::inference::infer_parameter::ParameterChoice;
use scorer_proto::inference::model_infer_request::InferInputTensor;
use scorer_proto::inference::{InferTensorContents, ModelInferRequest};
use scorer_proto::v1::{DecideRequest, FaultedRow, ScoreResponse, SelectActionResponse, Served, log_record};
use serde_json::json;

/// `bad(x)` loops for 6000, traps for 7000, and is x otherwise.
const MODULE: &str = r#"(module (func (export "bad") (param f64) (result f64)
    (if (f64.eq (local.get 0) (f64.const 6000)) (then (loop (br 0))))
    (if (f64.eq (local.get 0) (f64.const 7000)) (then unreachable))
    (local.get 0)))"#;
const CHECKOUT: &str = r#"
name = "checkout"
decisions = ["decline", "review", "approve"]
[[rules]]
id = "large"
when = "bad(amount) >= 5000.0"
decision = "decline"
"#;
const EXEMPTIONS: &str = r#"
name = "exemptions"
[[rules]]
id = "large"
when = "bad(amount) >= 5000.0"
keep = { exemption = ["none"] }
source = "agreement"
"#;

/// Fault case 107.
#[tokio::test(flavor = "multi_thread")]
async fn a_fault_of_a_function_is_an_error_of_its_rule_and_counted() {
    let setup = start();
    let module = wat::parse_str(MODULE).unwrap();
    let policy = json!({"rule": "squarecb", "gamma": 20.0, "floor": 0.05});
    let functions: &[(&str, &[&str])] = &[("bad", &["x"])];
    let fraud =
        score_recipe("fraud", 0.0).with_functions(module.clone(), functions).with_rules(CHECKOUT, &[]);
    let action =
        action_recipe("action", 0.0, policy).with_functions(module, functions).with_rules(EXEMPTIONS, &[]);
    let fraud = load(&setup.server, setup.directory.path(), &fraud.build().unwrap());
    let action = load(&setup.server, setup.directory.path(), &action.build().unwrap());
    setup.server.swap(&table(2, &fraud, &action)).unwrap();
    let mut client = setup.client().await;
    let large = client.score(score("a", 5500.0)).await.unwrap().into_inner();
    assert_eq!((large.decision.as_str(), large.rules.unwrap().errors), ("decline", 0));
    for (id, amount) in [("b", 6000.0), ("c", 7000.0)] {
        let failed = client.score(score(id, amount)).await.unwrap().into_inner();
        let rules = failed.rules.unwrap();
        assert_eq!((rules.fired.len(), rules.errors), (0, 1), "{amount}");
        assert_eq!(rules.score, failed.score);
    }
    let print = fingerprint(&mut client, FRAUD).await;
    let rows = batch("batch", print, &[[500.0, 0.0, 0.0], [6000.0, 0.0, 0.0], [5500.0, 0.0, 0.0]]);
    let rows = client.score_batch(rows).await.unwrap().into_inner();
    assert_eq!(rows.ruled_rows.iter().map(|row| row.errors).collect::<Vec<_>>(), [0, 1, 0]);
    let chosen = client.select_action(select("d", 5500.0)).await.unwrap().into_inner();
    assert_eq!(chosen.rules.unwrap().fired[0].id, "large");
    let chosen = client.select_action(select("e", 6000.0)).await.unwrap().into_inner();
    assert_eq!(chosen.rules.unwrap().errors, 1);
    // Reading the records stops the server.
    let metrics = setup.metrics().await;
    let records = setup.decisions();
    let of = |id: &str| records.iter().find(|record| record.decision_id == id).unwrap();
    assert_eq!(of("b").rules.as_ref().unwrap().errors, 1);
    for (name, bundle, faults) in [("fraud", &fraud, 3), ("action", &action, 1)] {
        let short = &bundle[7..19];
        let line = format!(
            "scorer_function_faults_total{{name=\"{name}\",bundle=\"{short}\",function=\"bad\"}} {faults}"
        );
        assert!(metrics.contains(&line), "{line} is not in {metrics}");
    }
}

/// Functions of the same code for steps and for rules.
const BOTH: &str = r#"(module
    (func $bad (param f64) (result f64)
        (if (f64.eq (local.get 0) (f64.const 6000)) (then (loop (br 0))))
        (if (f64.eq (local.get 0) (f64.const 7000)) (then unreachable))
        (local.get 0))
    (func (export "step") (param f64) (result f64) (call $bad (local.get 0)))
    (func (export "bad") (param f64) (result f64)
        (call $bad (f64.add (local.get 0) (f64.const 1000)))))"#;
/// Amounts with the functions that have no result.
const AMOUNTS: [(f32, &[&str]); 5] =
    [(500.0, &[]), (6000.0, &["step", "bad"]), (5500.0, &[]), (7000.0, &["step"]), (5000.0, &["bad"])];

/// A recipe whose forests read a column of the function `step`, and whose rules call `bad`.
fn with_both(recipe: Recipe, rules: &str) -> Recipe {
    let functions: &[(&str, &[&str])] = &[("step", &["x"]), ("bad", &["x"])];
    let steps = json!([{"function": "custom", "name": "step", "inputs": ["amount"], "output": "value"}]);
    recipe
        .with_functions(wat::parse_str(BOTH).unwrap(), functions)
        .with_steps(steps)
        .with_rules(&rules.replace("5000.0", "6200.0"), &[])
}

fn fraud() -> Recipe {
    with_both(score_recipe("fraud", 0.0), CHECKOUT)
}

fn action() -> Recipe {
    let policy = json!({"rule": "squarecb", "gamma": 20.0, "floor": 0.05});
    with_both(action_recipe("action", 0.0, policy), EXEMPTIONS)
}

fn start_with_both() -> Setup {
    let mut setup = start();
    setup.fraud = load(&setup.server, setup.directory.path(), &fraud().build().unwrap());
    setup.action = load(&setup.server, setup.directory.path(), &action().build().unwrap());
    setup.server.swap(&table(2, &setup.fraud, &setup.action)).unwrap();
    setup
}

fn faulted(served: Option<Served>) -> Vec<String> {
    served.unwrap().faulted_functions
}

/// Fault case 107.
#[tokio::test(flavor = "multi_thread")]
async fn replies_retries_and_records_name_the_functions_without_a_result() {
    let setup = start_with_both();
    let mut client = setup.client().await;
    let mut expected: HashMap<String, Vec<String>> = HashMap::new();
    let mut alone = Vec::new();
    for (amount, functions) in AMOUNTS {
        let id = format!("score-{amount}");
        let reply = client.score(score(&id, amount.into())).await.unwrap().into_inner();
        let again = client.score(score(&id, amount.into())).await.unwrap().into_inner();
        assert_eq!(reply, again, "a retry returns the first answer");
        // A missing value goes left in the first tree, whose leaves are -1 and 1.
        let missing = functions.contains(&"step");
        assert_eq!(
            reply.margin,
            if missing { -1.0 } else { 1.0 } + if amount >= 1000.0 { 1.5 } else { -0.5 }
        );
        assert_eq!(reply.rules.as_ref().unwrap().errors, u32::from(functions.contains(&"bad")));
        assert_eq!(faulted(reply.served.clone()), functions, "{amount}");
        expected.insert(id, faulted(reply.served.clone()));
        alone.push(reply);

        let id = format!("select-{amount}");
        let reply: SelectActionResponse =
            client.select_action(select(&id, amount.into())).await.unwrap().into_inner();
        let again = client.select_action(select(&id, amount.into())).await.unwrap().into_inner();
        assert!(again.replayed);
        assert_eq!([&reply.served, &again.served].map(|one| faulted(one.clone())), [functions, functions]);
        expected.insert(id, faulted(reply.served));

        let id = format!("decide-{amount}");
        // Nothing of the score is passed on, and an action is wanted in any case.
        let request = DecideRequest {
            score_feature: String::new(),
            decision_feature: String::new(),
            action_if_declined: true,
            ..decide(&id, amount.into())
        };
        let reply = client.decide(request).await.unwrap().into_inner();
        let (of_score, of_action) = (reply.score.unwrap(), reply.action.unwrap());
        assert_eq!(of_score.margin, alone.last().unwrap().margin);
        assert_eq!([of_score.served, of_action.served].map(faulted), [functions, functions], "{amount}");
        expected.insert(id, functions.iter().map(|name| (*name).to_owned()).collect());
    }
    let rows = AMOUNTS.map(|(amount, _)| [amount, 0.0, 0.0]);
    let print = fingerprint(&mut client, FRAUD).await;
    let reply = client.score_batch(batch("batch", print, &rows)).await.unwrap().into_inner();
    assert_eq!(reply.margins, alone.iter().map(|one: &ScoreResponse| one.margin).collect::<Vec<_>>());
    assert_eq!(faulted(reply.served), ["step", "bad"]);
    let row = |row, functions: &[u32]| FaultedRow { row, functions: functions.to_vec() };
    assert_eq!(reply.faulted_rows, [row(1, &[0, 1]), row(3, &[0]), row(4, &[1])]);
    for (at, (_, functions)) in AMOUNTS.iter().enumerate() {
        expected.insert(format!("batch/{at}"), functions.iter().map(|name| (*name).to_owned()).collect());
    }
    let records = setup.decisions();
    assert_eq!(records.len(), 5 * 5, "a retry and nothing else has no record");
    for record in records {
        assert_eq!(record.faulted_functions, expected[&record.decision_id], "{}", record.decision_id);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_open_inference_protocol_names_the_functions_without_a_result() {
    let setup = start_with_both();
    let mut client = GrpcInferenceServiceClient::new(setup.channel().await);
    for (amount, functions) in AMOUNTS {
        let contents = InferTensorContents { fp32_contents: vec![amount, 0.0, 0.0], ..Default::default() };
        let input = InferInputTensor {
            name: "input__0".to_owned(),
            datatype: "FP32".to_owned(),
            shape: vec![1, 3],
            contents: Some(contents),
            ..InferInputTensor::default()
        };
        let request =
            ModelInferRequest { model_name: FRAUD.to_owned(), inputs: vec![input], ..Default::default() };
        let reply = client.model_infer(request).await.unwrap().into_inner();
        let named = reply.parameters.get("faulted_functions").and_then(|one| one.parameter_choice.clone());
        let expected = Some(functions.join(",")).filter(|names| !names.is_empty());
        assert_eq!(named, expected.map(ParameterChoice::StringParam), "{amount}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_observe_lane_has_the_values_and_faults_of_an_answer() {
    let setup = start();
    let files = fraud().build().unwrap();
    let observing = load(&setup.server, setup.directory.path(), &files);
    setup.server.swap(&observed(&setup, 2, FRAUD, vec![observer("shadow", &observing, 1.0)])).unwrap();
    let mut client = setup.client().await;
    for (amount, _) in AMOUNTS {
        let reply = client.score(score(&amount.to_string(), amount.into())).await.unwrap().into_inner();
        assert_eq!(faulted(reply.served), [""; 0], "the answering bundle has no functions");
    }
    status(&setup, "shadow", |lane| lane.evaluated == AMOUNTS.len() as u64).await;
    let metrics = setup.metrics().await;
    let bundle = assemble(&files).unwrap();
    let mut scratch = EvalScratch::new(&bundle);
    let mut seen = 0;
    for record in setup.records() {
        let log_record::Record::Observation(observation) = record else { continue };
        let own = observation.decision.unwrap();
        let (_, functions) = AMOUNTS.into_iter().find(|(amount, _)| *amount == own.features[0]).unwrap();
        let expected = bundle.score(&own.features, &Unlimited, &mut scratch).unwrap();
        assert_eq!((own.margin, own.score), (expected.margin, expected.score));
        assert_eq!(own.faulted_functions, functions, "{}", own.features[0]);
        assert_eq!(own.rules.unwrap().errors, u32::from(functions.contains(&"bad")));
        seen += 1;
    }
    assert_eq!(seen, AMOUNTS.len());
    for function in ["step", "bad"] {
        assert_eq!(counted(&metrics, &observing, function), 2, "{function}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_explanation_has_the_values_and_faults_of_an_answer() {
    let setup = start();
    let mut recipe = fraud();
    recipe.covers = true;
    let explained = load(&setup.server, setup.directory.path(), &recipe.build().unwrap());
    setup.server.swap(&table(2, &explained, &setup.action)).unwrap();
    let mut client = setup.client().await;
    for (number, (amount, functions)) in (1..).zip(AMOUNTS) {
        let answer = client.score(score(&amount.to_string(), amount.into())).await.unwrap().into_inner();
        let reply = client.explain(explain(amount.into())).await.unwrap().into_inner();
        // An explanation has no rules, which call the other function.
        let faulted = if functions.contains(&"step") { vec!["step"] } else { vec![] };
        assert_eq!(reply.faulted_functions, faulted, "{amount}");
        let explanation = reply.explanation.unwrap();
        assert_eq!((explanation.margin, explanation.score), (answer.margin, answer.score), "{amount}");
        let sum = explanation.baseline + explanation.contributions.iter().map(|one| one.amount).sum::<f64>();
        assert!((sum - answer.margin).abs() < 1e-6, "{amount}: {sum}");
        let value = explanation.contributions.iter().find(|one| one.feature == "value").unwrap();
        let raises = !functions.contains(&"step");
        assert_eq!(value.amount > 0.0, raises, "{number}: {value:?}");
    }
    // Two answers and two explanations.
    assert_eq!(counted(&setup.metrics().await, &explained, "step"), 4);
}

/// The number of faults of a function of the bundle `fraud`.
fn counted(metrics: &str, bundle: &str, function: &str) -> u64 {
    let short = &bundle[7..19];
    let name =
        format!("scorer_function_faults_total{{name=\"fraud\",bundle=\"{short}\",function=\"{function}\"}} ");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
    line.unwrap_or_else(|| panic!("{name} is not in {metrics}")).parse().unwrap()
}
