//! Rules in bundles: what they read and write, and what is refused.

use scorer_rules::{Exhausted, Request, RuleState};
use serde_json::json;

use super::super::testing::{Recipe, action_recipe, assemble, reseal, score_files, score_recipe};
use super::super::*;
use crate::budget::Unlimited;
use crate::policy::{Mask, Salt};

const NOW: Request<'static> =
    Request { seconds: 1_790_000_000, id: b"payment-1", exhausted: Exhausted::NONE };

const CHECKOUT: &str = r#"
name = "checkout"
decisions = ["decline", "review", "approve"]

[[rules]]
id = "listed"
when = 'country in list("blocked")'
decision = "decline"
reason = "R01"

[[rules]]
id = "limit"
when = "amount > 250.1 && night"
floor = 0.95
reason = "R02"

[[rules]]
id = "certain"
when = "score < 0.3"
cap = 0.1
"#;

const EXEMPTIONS: &str = r#"
name = "exemptions"

[[rules]]
id = "tra_limit"
when = "amount > 100.0"
remove = { exemption = ["tra"] }
source = "Delegated Regulation (EU) 2018/389, article 18"

[[rules]]
id = "challenged"
when = 'night && action.three_ds == "none"'
source = "agreement"

[[rules]]
id = "no_low_value"
when = 'country == "FR"'
remove = { exemption = ["low"] }
source = "agreement"

[[rules]]
id = "no_plain"
when = 'country == "FR" && amount * 2.0 > 1800.0'
remove = { exemption = ["none"] }
source = "agreement"
"#;

fn fraud() -> Recipe {
    score_recipe("fraud", 0.0).with_rules(CHECKOUT, &[("blocked", "string", "FR\n\nXX\n")])
}

fn actions() -> Recipe {
    action_recipe("authorise", 0.0, json!({"rule": "squarecb", "gamma": 20.0, "floor": 0.05}))
}

/// The score, the result of the rules, and the ids of the rules with an effect.
fn ruled(bundle: &Bundle, row: [f32; 3]) -> (ScoreOut, RuledScore, Vec<String>) {
    let mut scratch = EvalScratch::new(bundle);
    let out = bundle.score(&row, &Unlimited, &mut scratch).unwrap();
    assert_eq!(bundle.apply_rules(&row, Some(out.score), NOW, &mut scratch), Ok(true));
    let rules = bundle.rules().unwrap().rules();
    let applied = scratch.ruling().unwrap().applied();
    let ids = applied.iter().map(|number| rules[usize::from(*number)].id.clone()).collect();
    (out, bundle.ruled_score(out.score, &scratch).unwrap(), ids)
}

#[test]
fn rules_read_features_and_the_score_and_write_the_decision() {
    let bundle = assemble(&fraud().build().unwrap()).unwrap();
    let label = |band: usize| bundle.labels()[band].as_str();
    // Nothing fires: the decision is that of the band.
    let (out, result, ids) = ruled(&bundle, [500.0, 0.0, 0.0]);
    assert_eq!((result.score, result.band, ids), (out.score, out.band, vec![]));
    // The country is in the list.
    let (out, result, ids) = ruled(&bundle, [500.0, 2.0, 0.0]);
    assert_eq!((result.score, label(result.band), ids), (out.score, "decline", vec!["listed".to_owned()]));
    // A floor changes the score that the bands see, and not the score itself.
    let (out, result, ids) = ruled(&bundle, [500.0, 0.0, 1.0]);
    assert_eq!((result.score, label(result.band), ids), (0.95, "decline", vec!["limit".to_owned()]));
    assert!(out.score < 0.9);
    // 250.1 is not a float32, and the rule has to see what was sent.
    assert!(f64::from(250.1_f32) > 250.1);
    assert_eq!(ruled(&bundle, [250.1, 0.0, 1.0]).2, Vec::<String>::new());
    assert_eq!(ruled(&bundle, [250.2, 0.0, 1.0]).2, ["limit"]);
    // The score of a small amount is low, and its cap makes it lower.
    let (out, result, ids) = ruled(&bundle, [5.0, 0.0, 0.0]);
    assert!(out.score < 0.3 && out.score > 0.1);
    assert_eq!((result.score, label(result.band), ids), (0.1, "approve", vec!["certain".to_owned()]));
}

#[test]
fn rules_read_the_time_of_the_request() {
    // 2026-09-21, a Monday, 14:13:20 in UTC.
    let rules = r#"
name = "times"
decisions = ["decline", "review", "approve"]

[[rules]]
id = "afternoon"
when = "within(hour_of_day(request_time, 0.0), 14.0, 15.0) && day_of_week(request_time, 0.0) == 0.0"
reason = "T1"

[[rules]]
id = "night"
when = "within(hour_of_day(request_time, 9.0), 22.0, 5.0)"
reason = "T2"

[[rules]]
id = "evening"
when = "within(hour_of_day(request_time, 2.0), 17.0, 22.0)"
reason = "T3"
"#;
    let recipe = score_recipe("fraud", 0.0).with_rules(rules, &[]);
    let bundle = assemble(&recipe.build().unwrap()).unwrap();
    assert_eq!(ruled(&bundle, [100.0, 1.0, 0.0]).2, ["afternoon", "night"]);
}

#[test]
fn a_missing_value_does_not_fire_a_rule_and_is_counted() {
    let bundle = assemble(&fraud().build().unwrap()).unwrap();
    let mut scratch = EvalScratch::new(&bundle);
    let row = [500.0, f32::NAN, f32::NAN];
    bundle.apply_rules(&row, None, NOW, &mut scratch).unwrap();
    let ruling = scratch.ruling().unwrap();
    assert_eq!(ruling.states(), [RuleState::Unknown; 3]);
    assert_eq!((ruling.unknown(), ruling.applied()), (3, &[][..]));
    // A value of the request before is not kept.
    bundle.apply_rules(&[500.0, 2.0, 1.0], Some(0.5), NOW, &mut scratch).unwrap();
    assert_eq!(scratch.ruling().unwrap().applied(), [0, 1]);
    bundle.apply_rules(&row, Some(0.5), NOW, &mut scratch).unwrap();
    assert_eq!(scratch.ruling().unwrap().unknown(), 2);
}

#[test]
fn rules_change_neither_scores_nor_golden_cases() {
    let with = fraud().build().unwrap();
    let without = score_files("fraud", 0.0);
    assert_eq!(with["golden.bin"], without["golden.bin"]);
    let recipe = actions().with_rules(EXEMPTIONS, &[]);
    assert_eq!(recipe.build().unwrap()["golden.bin"], actions().build().unwrap()["golden.bin"]);
    let bundle = assemble(&without).unwrap();
    let mut scratch = EvalScratch::new(&bundle);
    assert_eq!(bundle.apply_rules(&[1.0, 0.0, 0.0], None, NOW, &mut scratch), Ok(false));
    assert!(scratch.ruling().is_none() && bundle.rules().is_none());
}

#[test]
fn rules_restrict_the_eligible_actions() {
    let bundle = assemble(&actions().with_rules(EXEMPTIONS, &[]).build().unwrap()).unwrap();
    let mut scratch = EvalScratch::new(&bundle);
    // Actions are 3DS none and challenge, each with the exemptions none, tra and low.
    let mut left = |row: [f32; 3], mut mask: Mask| {
        bundle.apply_rules(&row, None, NOW, &mut scratch).unwrap();
        let some = bundle.restrict(&mut mask, &scratch);
        (some, mask.iter().collect::<Vec<_>>())
    };
    assert_eq!(left([50.0, 0.0, 0.0], Mask::all(6)), (true, vec![0, 1, 2, 3, 4, 5]));
    assert_eq!(left([500.0, 0.0, 0.0], Mask::all(6)), (true, vec![0, 2, 3, 5]));
    assert_eq!(left([500.0, 0.0, 1.0], Mask::all(6)), (true, vec![3, 5]));
    assert_eq!(left([500.0, 2.0, 1.0], Mask::all(6)), (true, vec![3]));
    // Rules that leave nothing leave the set as it is.
    let mut only = Mask::none(6);
    only.insert(1);
    assert_eq!(left([500.0, 0.0, 0.0], only), (false, vec![1]));
    assert_eq!(left([1000.0, 2.0, 0.0], Mask::all(6)), (false, vec![0, 1, 2, 3, 4, 5]));
}

#[test]
fn wrong_rules_are_refused_with_place_and_remedy() {
    let refused = |recipe: Recipe| recipe.build().unwrap_err().to_string();
    let score = |rule: &str| {
        let text =
            format!("name = \"c\"\ndecisions = [\"decline\", \"review\"]\n[[rules]]\nid = \"r\"\n{rule}");
        refused(score_recipe("fraud", 0.0).with_rules(&text, &[]))
    };
    let action = |rule: &str| {
        let text = format!("name = \"c\"\n[[rules]]\nid = \"r\"\n{rule}");
        refused(actions().with_rules(&text, &[]))
    };
    for (found, part) in [
        (
            score("when = \"amont > 5.0\""),
            "rules.toml: rule \"r\", line 5, column 9: unknown name \"amont\"; the nearest name is \"amount\"",
        ),
        (
            score("when = \"amount > 5\"\ndecision = \"reject\""),
            "line 6, column 12: decision \"reject\" is not in decisions",
        ),
        (score("when = \"night > 5.0\""), "no overload for bool and double"),
        (score("when = 'country in list(\"x\")'"), "list \"x\""),
        (
            score("when = \"amount > 5.0\"\nremove = { exemption = [\"tra\"] }\nsource = \"s\""),
            "unknown factor \"exemption\"",
        ),
        (action("when = \"score > 0.5\""), "unknown name \"score\""),
        (action("when = \"amount > 5.0\"\ncap = 0.5"), "rule \"r\", line 3, column 6: the rule writes a cap"),
        (
            action("when = \"amount > 5.0\"\nremove = { exemption = [\"tro\"] }\nsource = \"s\""),
            "the nearest name is \"tra\"",
        ),
        (
            action(
                "when = \"amount > 5.0\"\nkeep = { exemption = [\"none\"], three_ds = [\"none\"] }\nremove = { exemption = [\"none\"] }\nsource = \"s\"",
            ),
            "no action is left when the rule is true",
        ),
        (
            refused(
                score_recipe("fraud", 0.0)
                    .with_rules("name = \"c\"\ndecisions = [\"decline\", \"hold\"]", &[]),
            ),
            "line 2, column 25: decision \"hold\" is not the label of a band (approve, review, decline)",
        ),
        (
            refused(
                score_recipe("fraud", 0.0)
                    .with_rules("name = \"c\"\ndecisions = [\"review\", \"decline\"]", &[]),
            ),
            "list the strictest first",
        ),
        (refused(score_recipe("fraud", 0.0).with_rules("name = ", &[])), "rules.toml: line 1, column"),
        (
            refused(score_recipe("fraud", 0.0).with_rules(CHECKOUT, &[("blocked", "int", "1\ntwo\n")])),
            "list \"blocked\": line 2 of its file is not an int",
        ),
    ] {
        assert!(found.contains(part) && !found.contains('\n'), "{found}");
    }
}

#[test]
fn the_node_and_its_files_belong_together() {
    let refused = |change: &dyn Fn(&mut Recipe)| {
        let mut recipe = fraud();
        change(&mut recipe);
        recipe.build().unwrap_err().to_string()
    };
    let nodes = |recipe: &mut Recipe| recipe.manifest["program"].as_array().unwrap().len();
    for (found, part) in [
        (refused(&|recipe| recipe.rules = None), "rules.toml is not listed, the program has a rules node"),
        (refused(&|recipe| recipe.lists.clear()), "list-01.txt is not listed, the rules node names it"),
        (
            refused(&|recipe| {
                recipe.lists.insert("list-02.txt".to_owned(), String::new());
            }),
            "list-02.txt: no rules node names it as a list",
        ),
        (
            refused(&|recipe| {
                let at = nodes(recipe) - 2;
                recipe.manifest["program"][at]["salt"] = json!("00");
            }),
            "(rules): salt must be 32 hexadecimal digits",
        ),
        (
            refused(&|recipe| {
                let at = nodes(recipe) - 1;
                recipe.manifest["program"][at]["input"] = json!("score");
            }),
            "never reads slot \"ruled\"",
        ),
        (
            refused(&|recipe| {
                let program = recipe.manifest["program"].as_array_mut().unwrap();
                let last = program.len() - 1;
                program.swap(last - 2, last - 1);
            }),
            "rules come directly before the threshold or policy",
        ),
    ] {
        assert!(found.contains(part) && !found.contains('\n'), "{found}");
    }
    let mut files = score_files("fraud", 0.0);
    files.insert("rules.toml".to_owned(), CHECKOUT.as_bytes().to_vec());
    reseal(&mut files).unwrap();
    assert!(assemble(&files).unwrap_err().to_string().starts_with("rules.toml: no rules node uses it"));
    let mut recipe = actions().with_rules(EXEMPTIONS, &[]);
    let last = recipe.manifest["program"].as_array().unwrap().len() - 1;
    recipe.manifest["program"][last].as_object_mut().unwrap().remove("eligible");
    assert!(recipe.build().unwrap_err().to_string().contains("never reads slot \"ruled\""));
}

#[test]
fn rules_without_a_bundle_are_those_of_a_bundle() {
    let bundle = assemble(&actions().with_rules(EXEMPTIONS, &[]).build().unwrap()).unwrap();
    let (of_bundle, salt) = (bundle.rules().unwrap(), Salt([7; 16]));
    let alone = Rules::for_actions(EXEMPTIONS, bundle.schema(), bundle.catalogue(), &ListFiles::new(), &salt)
        .unwrap();
    let (mut left, mut right) = (of_bundle.start(), alone.start());
    for row in [[50.0, 0.0, 0.0], [150.0, 1.0, 1.0], [950.0, 1.0, 2.0], [f32::NAN; 3]] {
        of_bundle.evaluate(&row, None, NOW, &mut left);
        alone.evaluate(&row, None, NOW, &mut right);
        assert_eq!((left.applied(), left.allowed()), (right.applied(), right.allowed()));
    }
    let wrong = EXEMPTIONS.replace("amount >", "amont >");
    let faults = Rules::for_actions(&wrong, bundle.schema(), bundle.catalogue(), &ListFiles::new(), &salt);
    assert!(faults.unwrap_err()[0].problem.contains("amount"));
}

#[test]
fn a_revision_changes_rules_and_keeps_the_forest() {
    let (before, after) = (fraud().build().unwrap(), score_recipe("fraud", 0.0));
    let text = CHECKOUT.replace("250.1", "99.0");
    let after = after.with_rules(&text, &[("blocked", "string", "DE\n")]).build().unwrap();
    let bundle = assemble(&before).unwrap();
    let manifest: Manifest = serde_json::from_slice(&after[MANIFEST]).unwrap();
    let changing =
        |files: &[&str]| files.iter().map(|name| ((*name).to_owned(), after[*name].clone())).collect();
    let read = |name: &str| before.get(name).cloned().ok_or(ReadError::Missing);
    let revised = bundle.revise(manifest.clone(), &changing(&["rules.toml", "list-01.txt"]), &read).unwrap();
    assert_eq!((&revised.manifest, &revised.golden), (&after[MANIFEST], &after["golden.bin"]));
    let refused = bundle.revise(manifest.clone(), &changing(&["rules.toml"]), &read).unwrap_err();
    assert!(refused.to_string().contains("list-01.txt is not listed"));
    let refused = bundle.revise(manifest, &changing(&["schema.json"]), &read).unwrap_err();
    assert!(refused.to_string().contains("schema.json: a revision keeps this file"));
}
