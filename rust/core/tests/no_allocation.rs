//! The request path does not allocate after the scratch memory was created.
#![expect(unsafe_code, reason = "an allocator that counts has to implement GlobalAlloc")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use scorer_core::budget::Unlimited;
use scorer_core::bundle::EvalScratch;
use scorer_core::bundle::testing::{
    action_recipe, assemble, ensemble_recipe, net_recipe, score_files, score_recipe,
};
use scorer_core::forest::actions::{ActionForest, ActionScratch, Catalogue};
use scorer_core::forest::{
    BaseOrder, Forest, Isa, Link, Missing, Model, NanRule, Node, Precision, Split, Target, Test, Tree,
    ZeroRule,
};
use scorer_core::policy::Mask;
use scorer_core::schema::Value;
use serde_json::json;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is forwarded unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // While a thread ends, its counter is gone and is no longer read.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's obligations are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's obligations are the system allocator's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.with(Cell::get);
    work();
    ALLOCATIONS.with(Cell::get) - before
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(vec![1_u8]))), 1);
}

#[test]
fn features_and_scores() {
    let bundle = assemble(&score_files("fraud", 0.0)).unwrap();
    let mut scratch = EvalScratch::new(&bundle);
    let mut row = vec![0.0; bundle.schema().len()];
    let named =
        [("amount", Value::Number(120.0)), ("country", Value::Category("FR")), ("night", Value::Flag(true))];
    let count = allocations(|| {
        bundle.schema().encode_named(named, &mut row).unwrap();
        bundle.schema().check_dense(&row).unwrap();
        bundle.score(&row, &Unlimited, &mut scratch).unwrap();
    });
    assert_eq!(count, 0);
    for count in [1, 64, 150] {
        let rows = row.repeat(count);
        let mut out = Vec::with_capacity(count);
        let allocated = allocations(|| bundle.score_rows(&rows, &Unlimited, &mut scratch, &mut out).unwrap());
        assert_eq!((allocated, out.len()), (0, count));
    }
}

#[test]
fn functions_in_transforms_and_rules() {
    let module = wat::parse_str(
        r#"(module (memory 1) (func (export "risk") (param f64 f64) (result f64)
            (f64.store (i32.const 8) (local.get 0)) (f64.add (f64.load (i32.const 8)) (local.get 1))))"#,
    );
    let rules = "name = 'r'\ndecisions = ['decline']\n[[rules]]\nid = 'one'\nwhen = 'risk(amount, 1.0) > 100.0'\ncap = 0.5\n";
    let mut recipe = score_recipe("fraud", 0.0)
        .with_functions(module.unwrap(), &[("risk", &["amount", "night"])])
        .with_rules(rules, &[]);
    let program = recipe.manifest["program"].as_array_mut().unwrap();
    program[0]["input"] = json!("wide");
    let step = json!({"function": "custom", "name": "risk", "inputs": ["amount", "night"], "output": "risk"});
    program.insert(0, json!({"kind": "transform", "input": "row", "output": "wide", "steps": [step]}));
    recipe.forests.values_mut().for_each(|model| model.num_features += 1);
    let bundle = recipe.draft().unwrap();
    let mut scratch = EvalScratch::new(&bundle);
    let request = scorer_rules::Request { seconds: 0, id: b"", exhausted: scorer_rules::Exhausted::NONE };
    let count = allocations(|| {
        for amount in [50.0, 150.0, f32::NAN] {
            let row = [amount, 0.0, 1.0];
            let score = bundle.score(&row, &Unlimited, &mut scratch).unwrap().score;
            assert!(bundle.apply_rules(&row, Some(score), request, &mut scratch).unwrap());
            scratch.take_function_faults(|_, _| unreachable!("no call fails"));
        }
    });
    assert_eq!(count, 0);
}

#[test]
fn reasons() {
    let mut score = score_recipe("fraud", 0.0);
    score.covers = true;
    let bundle = assemble(&score.build().unwrap()).unwrap();
    let mut scratch = EvalScratch::new(&bundle);
    let count = allocations(|| {
        bundle.score_explained(&[120.0, 1.0, 0.0], &Unlimited, &mut scratch).unwrap();
        assert!(!scratch.reasons(7).as_slice().is_empty());
    });
    assert_eq!(count, 0);
    let mut actions = action_recipe("authorise", 0.0, json!({"rule": "uniform"}));
    actions.covers = true;
    let bundle = assemble(&actions.build().unwrap()).unwrap();
    let mut scratch = EvalScratch::new(&bundle);
    let count = allocations(|| {
        bundle.explain_action(&[120.0, 1.0, 0.0], 3, &Unlimited, &mut scratch).unwrap();
        assert!(!scratch.reasons(7).as_slice().is_empty());
    });
    assert_eq!(count, 0);
    // The first exact explanation prepares the forest and the memory.
    bundle.explain(&[120.0, 1.0, 0.0], Some(3), &Unlimited, &mut scratch).unwrap();
    let count = allocations(|| {
        bundle.explain(&[60.0, 1.0, 0.0], Some(4), &Unlimited, &mut scratch).unwrap();
        assert!(scratch.contributions().iter().any(|amount| *amount != 0.0));
    });
    assert_eq!(count, 0);
}

/// An ensemble with an overlay. One member has vector leaves and is therefore evaluated row by row.
#[test]
fn forests_of_both_kinds() {
    let overlay =
        json!({"segment": "country", "limit": 2.0, "segments": {"DE": {"three_ds": {"none": 1.0}}}});
    let bagging = action_recipe("authorise", 0.0, json!({"rule": "bagging", "voters": 2}));
    let mut recipe = bagging.with_overlay(overlay);
    recipe.forests.get_mut("member-01.bin").unwrap().trees[0].target = Target::All;
    let bundle = assemble(&recipe.build().unwrap()).unwrap();
    let mut scratch = EvalScratch::new(&bundle);
    let eligible = Mask::all(bundle.catalogue().len());
    let count = allocations(|| {
        let row = [50.0, 1.0, 0.0];
        bundle.select(&row, &eligible, "action.authorise", "order-1", &Unlimited, &mut scratch).unwrap();
    });
    assert_eq!(count, 0);
}

#[test]
fn transforms() {
    let mut recipe = score_recipe("fraud", 0.0);
    recipe.tables = Some(json!({"tables": {"risk": {"values": {"DE": 0.5}, "default": 0.25}}}));
    recipe.forests.get_mut("forest.bin").unwrap().num_features = 7;
    let nodes = recipe.manifest["program"].as_array_mut().unwrap();
    nodes[0]["input"] = json!("inputs");
    let steps = json!([
        {"function": "clip", "feature": "amount", "high": 1000.0},
        {"function": "bucket", "feature": "amount", "edges": [10, 100], "output": "class"},
        {"function": "table", "feature": "country", "table": "risk", "output": "risk"},
        {"function": "ratio", "left": "amount", "right": "class", "zero": "missing", "output": "ratio"},
        {"function": "datepart", "feature": "amount", "part": "hour", "output": "hour"},
    ]);
    nodes.insert(0, json!({"kind": "transform", "input": "row", "output": "inputs", "steps": steps}));
    let bundle = recipe.draft().unwrap();
    let mut scratch = EvalScratch::new(&bundle);
    let rows = [500.0, 0.0, 1.0, 5.0, f32::NAN, 0.0];
    let mut out = Vec::with_capacity(2);
    let count = allocations(|| {
        bundle.score(&rows[..3], &Unlimited, &mut scratch).unwrap();
        bundle.score_rows(&rows, &Unlimited, &mut scratch, &mut out).unwrap();
    });
    assert_eq!((count, out.len()), (0, 2));
}

#[test]
fn ensembles_and_score_maps() {
    let mut recipe = ensemble_recipe(
        "fraud",
        json!([
            {"kind": "mean", "inputs": ["probability-0", "probability-1"], "of": "logits", "output": "mean"},
            {"kind": "stack", "inputs": ["mean", "probability-2"], "coefficients": [0.5, 0.75], "output": "stack"},
            {"kind": "switch", "feature": "country", "output": "segment", "default": "probability-0",
             "cases": [{"input": "stack", "categories": ["DE"]}, {"input": "mean", "categories": ["FR"]}]},
            {"kind": "scoremap", "file": "score_map.json", "input": "segment", "output": "combined"},
        ]),
    );
    recipe.score_map = Some(json!({"x": [0.0, 0.5, 1.0], "y": [0.0, 0.75, 1.0]}));
    let bundle = assemble(&recipe.build().unwrap()).unwrap();
    let mut scratch = EvalScratch::new(&bundle);
    let rows = [500.0, 0.0, 1.0, 50.0, 1.0, 0.0, 150.0, 2.0, 0.0, 250.0, f32::NAN, 1.0];
    let mut out = Vec::with_capacity(4);
    let count = allocations(|| {
        for row in rows.chunks(3) {
            bundle.score(row, &Unlimited, &mut scratch).unwrap();
        }
        bundle.score_rows(&rows, &Unlimited, &mut scratch, &mut out).unwrap();
    });
    assert_eq!((count, out.len()), (0, 4));
}

#[test]
fn nets() {
    let bundle = assemble(&net_recipe("fraud").build().unwrap()).unwrap();
    let mut scratch = EvalScratch::new(&bundle);
    let rows = [500.0, 0.0, 1.0, 50.0, f32::NAN, f32::NAN];
    let mut out = Vec::with_capacity(2);
    let count = allocations(|| {
        for row in rows.chunks(3) {
            bundle.score(row, &Unlimited, &mut scratch).unwrap();
        }
        bundle.score_rows(&rows, &Unlimited, &mut scratch, &mut out).unwrap();
    });
    assert_eq!((count, out.len()), (0, 2));
}

#[test]
fn all_actions_at_once() {
    let (model, rows) = tall();
    let forest = Forest::compile(&model).unwrap();
    let catalogue = Catalogue { context: 1, actions: 400, rows: &rows };
    for isa in Isa::available() {
        let actions = ActionForest::new(&forest, &catalogue, isa).unwrap();
        assert_eq!((actions.shape().specialised, actions.shape().split), (1, 1), "both branches are taken");
        let mut scratch = ActionScratch::new(&forest, &actions);
        let mut out = vec![0.0; 400];
        let count = allocations(|| {
            let eligible = [u64::MAX, 1, 0, 0, 0, 0, 1];
            let row = [1.0, f32::NAN];
            actions.margins(&forest, &row, &eligible, &Unlimited, &mut scratch, &mut out).unwrap();
        });
        assert_eq!(count, 0);
    }
}

/// Two trees below a test of the context: one has a leaf for each of 400 actions, and the other one has two
/// leaves.
fn tall() -> (Model, Vec<f32>) {
    let chain = |leaves: u32| {
        let split = |feature, threshold: u32, at| {
            let missing = Missing { nan: NanRule::Left, zero: ZeroRule::Keep };
            let test = Test::Less(f64::from(threshold));
            Node::Split(Split { feature, test, missing, left: at + 1, right: at + 2 })
        };
        fn grow(low: u32, high: u32, nodes: &mut Vec<Node>, split: &dyn Fn(u32, u32, u32) -> Node) -> u32 {
            let at = nodes.len() as u32;
            nodes.push(Node::Leaf(low));
            if high - low > 1 {
                let middle = (low + high) / 2;
                let left = grow(low, middle, nodes, split);
                let right = grow(middle, high, nodes, split);
                nodes[at as usize] = split(1, middle, 0);
                if let Node::Split(split) = &mut nodes[at as usize] {
                    (split.left, split.right) = (left, right);
                }
            }
            at
        }
        let mut nodes = vec![split(0, 0, 0), Node::Leaf(leaves)];
        grow(0, leaves, &mut nodes, &split);
        Tree {
            target: Target::Output(0),
            nodes,
            leaves: (0..=leaves).map(f64::from).collect(),
            sets: Vec::new(),
            covers: Vec::new(),
        }
    };
    let model = Model {
        num_features: 2,
        num_outputs: 1,
        precision: Precision::F32,
        base: vec![0.0],
        base_order: BaseOrder::First,
        divisor: Vec::new(),
        link: Link::Identity,
        trees: vec![chain(400), chain(2)],
    };
    (model, (0..400).map(|action| action as f32).collect())
}

#[test]
fn every_policy() {
    for policy in [
        json!({"rule": "uniform"}),
        json!({"rule": "epsilon_greedy", "epsilon": 0.1, "floor": 0.3}),
        json!({"rule": "softmax", "inverse_temperature": 50.0, "floor": 0.3}),
        json!({"rule": "squarecb", "gamma": 50.0, "caps": [{"attribute": "cost", "lambda": 0.1}]}),
        json!({"rule": "fastcb", "gamma": 50.0, "floor": 0.3}),
        json!({"rule": "loss_ratio", "exponent": 50.0, "floor": 0.3}),
        json!({"rule": "bagging", "voters": 3, "floor": 0.3}),
    ] {
        let bundle = assemble(&action_recipe("authorise", 0.0, policy.clone()).build().unwrap()).unwrap();
        let mut scratch = EvalScratch::new(&bundle);
        let mut eligible = Mask::all(bundle.catalogue().len());
        let count = allocations(|| {
            for mask in [[0b11_1111], [0b1], [0b10_1010]] {
                eligible.read(&mask).unwrap();
                bundle
                    .select(
                        &[50.0, 1.0, 0.0],
                        &eligible,
                        "action.authorise",
                        "order-1",
                        &Unlimited,
                        &mut scratch,
                    )
                    .unwrap();
                bundle.select_greedy(&[50.0, 1.0, 0.0], &eligible, &Unlimited, &mut scratch).unwrap();
            }
        });
        assert_eq!(count, 0, "{policy}");
    }
}

#[test]
fn rules() {
    let text = r#"
name = "checkout"
decisions = ["decline", "review", "approve"]
[[rules]]
id = "listed"
when = 'country in list("blocked") || amount > 9000.5'
decision = "decline"
[[rules]]
id = "low"
when = "score < 0.3 && !night"
floor = 0.6
"#;
    let recipe = score_recipe("fraud", 0.0).with_rules(text, &[("blocked", "string", "FR\n")]);
    let bundle = assemble(&recipe.build().unwrap()).unwrap();
    let mut scratch = EvalScratch::new(&bundle);
    let request =
        scorer_rules::Request { seconds: 0, id: b"payment-1", exhausted: scorer_rules::Exhausted::NONE };
    let mut bands = Vec::with_capacity(4);
    let count = allocations(|| {
        for row in [[500.1, 2.0, 0.0], [1.0, 0.0, 0.0], [9001.0, f32::NAN, 1.0], [500.0, 1.0, f32::NAN]] {
            let out = bundle.score(&row, &Unlimited, &mut scratch).unwrap();
            bundle.apply_rules(&row, Some(out.score), request, &mut scratch).unwrap();
            bands.push(bundle.ruled_score(out.score, &scratch).unwrap().band);
        }
    });
    assert_eq!((count, bands), (0, vec![2, 1, 2, 1]));
}
