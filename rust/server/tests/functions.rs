//! Functions of a bundle in rules: replies, records and the metric of faults.

#![allow(clippy::panic, reason = "a failure here is a failed test")]

use crate::support::*;
use scorer_core::bundle::testing::{action_recipe, score_recipe};
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
