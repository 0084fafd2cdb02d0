//! `features.json`: the columns that a feature set fills, and every rule that it breaks.

use serde_json::{Value, json};

use super::super::testing::{computed_recipe, score_recipe};
use super::*;

fn set() -> Value {
    json!({"name": "cards", "version": 1, "features": [
        {"name": "payments", "default": 0},
        {"name": "mean_amount", "default": null},
    ]})
}

#[test]
fn columns_are_in_the_order_of_the_schema_with_their_defaults() {
    let bundle = testing::assemble(&computed_recipe("c", &set(), Some("mean")).build().unwrap()).unwrap();
    let computed = bundle.computed().unwrap();
    assert_eq!(computed.set_name, "cards");
    let set: Value = serde_json::from_slice(&computed.set).unwrap();
    assert_eq!(set, self::set());
    let columns: Vec<_> = computed
        .columns
        .iter()
        .map(|column| (column.at, &*column.feature, column.default.to_bits()))
        .collect();
    assert_eq!(columns, [(3, "payments", 0), (4, "mean_amount", f32::NAN.to_bits())]);
    let plain = testing::assemble(&score_recipe("c", 0.0).build().unwrap()).unwrap();
    assert!(plain.computed().is_none());
}

#[test]
fn a_file_that_breaks_a_rule_is_refused() {
    let refused = |features: Value| {
        let mut recipe = computed_recipe("c", &set(), None);
        recipe.features = Some(features);
        recipe.build().unwrap_err().to_string()
    };
    let with = |columns: Value| refused(json!({"set": set(), "columns": columns}));
    for (message, says) in [
        (with(json!({})), "columns: is empty"),
        (with(json!({"seen": "none"})), "set \"cards\" has no feature \"none\""),
        (with(json!({"other": "payments"})), "column \"other\": schema.json has no such feature"),
        (with(json!({"amount": "payments"})), "column \"amount\": a computed feature is a number without"),
        (with(json!({"country": "payments"})), "column \"country\": a computed feature is a number without"),
        (refused(json!({"set": {}, "columns": {"seen": "payments"}})), "set: has no name"),
        (refused(json!({"set": set(), "columns": {}, "more": 1})), "unknown field `more`"),
    ] {
        assert!(message.starts_with("features.json: ") && message.contains(says), "{message}");
    }
    let mut recipe = computed_recipe("c", &set(), Some("mean"));
    recipe.features = Some(json!({"set": set(), "columns": {"mean": "payments", "seen": "payments"}}));
    let message = recipe.build().unwrap_err().to_string();
    assert!(message.contains("feature \"payments\": fills two columns"), "{message}");
}
