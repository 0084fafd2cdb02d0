//! The times of nodes: each node that ran has one, and an evaluation that is not timed has none.

use std::cell::Cell;
use std::time::Duration;

use serde_json::json;

use crate::budget::{Budget, Unlimited};
use crate::bundle::testing::{Recipe, action_recipe, assemble, ensemble_recipe, score_recipe};
use crate::bundle::{Bundle, EvalError, EvalScratch, GoldenRow, measure};
use crate::policy::Mask;

const ROW: [f32; 3] = [250.0, 0.0, 0.0];
const RULES: &str = "name = \"r\"\ndecisions = [\"review\"]\n[[rules]]\nid = \"a\"\nwhen = \"amount > 1.0\"\nreason = \"R\"\n";
const LIMITS: &str = "name = \"r\"\n[[rules]]\nid = \"a\"\nwhen = \"amount > 100.0\"\nkeep = { exemption = [\"none\"] }\nsource = \"s\"\n";

fn squarecb() -> serde_json::Value {
    json!({"rule": "squarecb", "gamma": 20.0, "floor": 0.05})
}

fn ran(recipe: &Recipe) -> Vec<(String, &'static str, bool)> {
    let bundle = assemble(&recipe.build().unwrap()).unwrap();
    let mut scratch = EvalScratch::new(&bundle);
    let evaluate = |scratch: &mut EvalScratch| match bundle.policy() {
        None => drop(bundle.score(&ROW, &Unlimited, scratch).unwrap()),
        Some(_) => {
            let all = Mask::all(bundle.catalogue().len());
            bundle.select(&ROW, &all, "c", "id", &Unlimited, scratch).unwrap();
        }
    };
    evaluate(&mut scratch);
    assert_eq!(scratch.node_times(), None);
    scratch.time_nodes(true);
    evaluate(&mut scratch);
    let times = scratch.node_times().unwrap().to_vec();
    scratch.time_nodes(false);
    assert_eq!(scratch.node_times(), None);
    bundle.nodes().iter().zip(times).map(|(node, time)| (node.name.clone(), node.kind, time > 0)).collect()
}

fn names(nodes: &[(&str, &'static str, bool)]) -> Vec<(String, &'static str, bool)> {
    nodes.iter().map(|&(name, kind, ran)| (name.to_owned(), kind, ran)).collect()
}

#[test]
fn every_node_of_a_score_has_a_time() {
    let expected = [
        ("margins", "forest", true),
        ("probability", "link", true),
        ("score", "calibrate", true),
        ("decision", "threshold", true),
    ];
    assert_eq!(ran(&score_recipe("fraud", 0.0)), names(&expected));
}

#[test]
fn every_node_of_a_selection_has_a_time() {
    let expected = [("margins", "forest", true), ("score", "link", true), ("action", "policy", true)];
    assert_eq!(ran(&action_recipe("action", 0.0, squarecb())), names(&expected));
}

#[test]
fn a_branch_that_is_not_chosen_has_no_time() {
    let switch = json!([{
        "kind": "switch", "row": "row", "feature": "country", "output": "combined",
        "cases": [{"categories": ["NL"], "input": "probability-1"}], "default": "probability-0",
    }, ]);
    let mean = json!([{"kind": "mean", "inputs": ["combined-1", "probability-2"], "weights": [1.0, 1.0],
                       "of": "scores", "output": "combined"}]);
    let mut nodes = switch.as_array().unwrap().clone();
    nodes[0]["output"] = json!("combined-1");
    nodes.extend(mean.as_array().unwrap().clone());
    let ran = ran(&ensemble_recipe("switch", json!(nodes)));
    let time = |name: &str| ran.iter().find(|(own, ..)| own == name).unwrap().2;
    assert!(!time("margins-0") && !time("probability-0"), "the default is not chosen: {ran:?}");
    assert!(
        ["margins-1", "probability-1", "margins-2", "combined-1", "combined", "decision"]
            .map(time)
            .iter()
            .all(|&ran| ran)
    );
}

#[test]
fn the_best_action_without_a_draw_has_the_time_of_the_policy() {
    let bundle = assemble(&action_recipe("action", 0.0, squarecb()).build().unwrap()).unwrap();
    let mut scratch = EvalScratch::new(&bundle);
    scratch.time_nodes(true);
    let all = Mask::all(bundle.catalogue().len());
    bundle.select_greedy(&ROW, &all, &Unlimited, &mut scratch).unwrap();
    assert!(scratch.node_times().unwrap().iter().all(|&nanos| nanos > 0));
}

/// A budget that is spent after some questions.
struct Questions(Cell<u32>);

impl Budget for Questions {
    fn spent(&self) -> bool {
        let left = self.0.get();
        self.0.set(left.saturating_sub(1));
        left == 0
    }
}

#[test]
fn the_time_after_a_failed_node_is_not_counted_as_its_time() {
    let recipe = score_recipe("fraud", 0.0).with_rules(RULES, &[]);
    let bundle = assemble(&recipe.build().unwrap()).unwrap();
    let mut scratch = EvalScratch::new(&bundle);
    scratch.time_nodes(true);
    let spent = bundle.score(&ROW, &Questions(Cell::new(0)), &mut scratch);
    assert!(matches!(spent, Err(EvalError::OutOfTime(_))), "{spent:?}");
    let after = scratch.node_times().unwrap().to_vec();
    assert!(after[0] > 0 && after[1..].iter().all(|&nanos| nanos == 0), "{after:?}");
    // Whatever happens before the rules are evaluated is the time of no node.
    std::thread::sleep(Duration::from_millis(2));
    let request = scorer_rules::Request { seconds: 0, id: b"a", exhausted: scorer_rules::Exhausted::NONE };
    assert!(bundle.apply_rules(&ROW, None, request, &mut scratch).unwrap());
    let times = scratch.node_times().unwrap();
    let rules = bundle.nodes().iter().position(|node| node.kind == "rules").unwrap();
    assert_eq!(times[0], after[0]);
    assert!(times[rules] > 0);
}

#[test]
fn a_measurement_evaluates_every_row_equally_often_with_and_without_the_times_of_nodes() {
    let rows: Vec<GoldenRow> = [50.0, 250.0, 900.0]
        .map(|amount| GoldenRow { row: [amount, 0.0, 0.0].into(), eligible: None })
        .into();
    let of = |recipe: Recipe| assemble(&recipe.build().unwrap()).unwrap();
    let score = of(score_recipe("fraud", 0.0).with_rules(RULES, &[]));
    let action = of(action_recipe("action", 0.0, squarecb()).with_rules(LIMITS, &[]));
    // The second bundle has fewer rows and repeats them.
    let both: &[(&Bundle, &[GoldenRow])] = &[(&score, &rows), (&action, &rows[..2])];
    for bundles in [&both[..1], &both[1..], both] {
        let requests = bundles[0].1.len();
        let found = measure(bundles, 0, Duration::ZERO).unwrap();
        assert_eq!(
            (found.plain.len(), found.timed.len()),
            (requests, requests),
            "one pass after that which warms up"
        );
        assert_eq!(found.nodes.len(), bundles.len());
        for ((bundle, _), sums) in bundles.iter().zip(&found.nodes) {
            assert_eq!(sums.len(), bundle.nodes().len());
            assert!(bundle.nodes().iter().any(|node| node.kind == "rules"));
            assert!(sums.iter().all(|sum| sum.evaluations == requests as u64 && sum.nanos > 0), "{sums:?}");
        }
        // The nodes are parts of the timed requests.
        let nodes: u64 = found.nodes.iter().flatten().map(|sum| sum.nanos).sum();
        assert!(nodes <= found.timed.iter().sum(), "{found:?}");
    }
    assert_eq!(measure(&[], 0, Duration::ZERO).unwrap().plain.len(), 0);
}
