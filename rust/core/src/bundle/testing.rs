//! Tiny bundles in memory, for tests of this crate and of those that build on it. No stable API.
#![expect(clippy::expect_used, reason = "for tests only: a failure here is a broken test")]

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::golden::{self, GoldenInput};
use super::{Bundle, BundleError, Digest, EvalScratch, Kind, MANIFEST, Manifest, ReadError, file_entries};
use crate::budget::Unlimited;
use crate::explain::Covers;
use crate::forest::{
    BaseOrder, Forest, Link, Missing, Model, NanRule, Node, Precision, Split, Target, Test, Tree, ZeroRule,
};
use crate::policy::Mask;

/// The files of a bundle by name, `manifest.json` included.
pub type Files = BTreeMap<String, Vec<u8>>;

/// Loads files as a server would.
pub fn assemble(files: &Files) -> Result<Bundle, BundleError> {
    let manifest = files.get(MANIFEST).cloned().unwrap_or_default();
    Manifest::parse(&manifest)?.check_listing(files.keys().map(String::as_str))?;
    Bundle::assemble(&manifest, &|name| files.get(name).cloned().ok_or(ReadError::Missing))
}

/// Hashes the files again and seals the manifest, so that only deeper checks can find a change.
pub fn reseal(files: &mut Files) -> Result<(), BundleError> {
    let text = files.remove(MANIFEST).unwrap_or_default();
    let mut manifest: Manifest =
        serde_json::from_slice(&text).map_err(|error| BundleError::Manifest(error.to_string()))?;
    manifest.files = file_entries(files);
    files.insert(MANIFEST.to_owned(), manifest.seal()?);
    Ok(())
}

/// What a test bundle is made of; change a part, then [`Recipe::build`].
#[derive(Debug, Clone)]
pub struct Recipe {
    /// Everything but the files and the digest of the manifest.
    pub manifest: Value,
    /// `schema.json`.
    pub schema: Value,
    /// `actions.json`.
    pub actions: Option<Value>,
    /// `calibration.json`.
    pub calibration: Option<Value>,
    /// `tables.json`.
    pub tables: Option<Value>,
    /// `score_map.json`.
    pub score_map: Option<Value>,
    /// `overlay.json`.
    pub overlay: Option<Value>,
    /// `forest.bin` and ensemble members.
    pub forests: BTreeMap<String, Model>,
    /// `model.onnx` and ensemble members.
    pub nets: BTreeMap<String, Vec<u8>>,
    /// Whether the bundle has `covers.bin`.
    pub covers: bool,
    /// `reasons.json`.
    pub reasons: Option<Value>,
    /// `rules.toml`.
    pub rules: Option<String>,
    /// `features.json`.
    pub features: Option<Value>,
    /// `functions.json`.
    pub functions: Option<Value>,
    /// The modules of functions by file name.
    pub modules: BTreeMap<String, Vec<u8>>,
    /// Files of lists.
    pub lists: BTreeMap<String, String>,
}

/// A score bundle over `amount` (number, 0 to 50000, refuses missing), `country` (NL, DE, FR; unknown is missing)
/// and `night` (flag), with bands approve, review and decline. The score rises with the amount. `base` shifts
/// every margin, so bundles that differ in it answer differently.
#[must_use]
pub fn score_recipe(name: &str, base: f32) -> Recipe {
    let model = model(
        3,
        base,
        vec![stump(0, 100.0, -1.0, 1.0), stump(0, 1000.0, -0.5, 1.5), stump(2, 0.5, 0.0, 0.25)],
    );
    Recipe {
        manifest: manifest(
            name,
            Kind::Score,
            json!([
                {"kind": "forest", "file": "forest.bin", "input": "row", "output": "margins"},
                {"kind": "link", "input": "margins", "output": "probability"},
                {"kind": "calibrate", "map": "main", "input": "probability", "output": "score"},
                {"kind": "threshold", "input": "score", "output": "decision", "bands": [
                    {"from": 0.0, "label": "approve"},
                    {"from": 0.5, "label": "review"},
                    {"from": 0.9, "label": "decline"},
                ]},
            ]),
        ),
        schema: json!({"features": context()}),
        actions: None,
        calibration: Some(
            json!({"maps": {"main": {"method": "isotonic", "x": [0.0, 1.0], "y": [0.0, 1.0]}}}),
        ),
        tables: None,
        score_map: None,
        overlay: None,
        forests: BTreeMap::from([("forest.bin".to_owned(), model)]),
        nets: BTreeMap::new(),
        covers: false,
        reasons: None,
        rules: None,
        features: None,
        functions: None,
        modules: BTreeMap::new(),
        lists: BTreeMap::new(),
    }
}

/// An action bundle over the same context and six actions (3DS `none`/`challenge` × exemption `none`/`tra`/`low`)
/// whose features are `three_ds` and `exemption`. `policy` is its specification without the salt.
#[must_use]
pub fn action_recipe(name: &str, base: f32, mut policy: Value) -> Recipe {
    policy["salt"] = json!("000102030405060708090a0b0c0d0e0f");
    let voters = policy.get("voters").and_then(Value::as_u64).unwrap_or(0);
    let trees = |shift: f64| {
        vec![
            stump(3, 0.5, -0.25 + shift, 0.5),
            stump(4, 0.5, 0.25, -0.25 - shift),
            stump(4, 1.5, -0.125, 0.375),
            stump(0, 100.0, 0.5, -0.5),
        ]
    };
    let mut forests = BTreeMap::from([("forest.bin".to_owned(), model(5, base, trees(0.0)))]);
    let mut program = vec![
        json!({"kind": "forest", "file": "forest.bin", "input": "row", "output": "margins"}),
        json!({"kind": "link", "input": "margins", "output": "score"}),
    ];
    let mut slots = Vec::new();
    for voter in 1..=voters {
        let file = format!("member-{voter:02}.bin");
        let (margins, score) = (format!("margins-{voter}"), format!("score-{voter}"));
        forests.insert(file.clone(), model(5, base, trees(voter as f64 * 0.5)));
        program.push(json!({"kind": "forest", "file": file, "input": "row", "output": margins}));
        program.push(json!({"kind": "link", "input": margins, "output": score}));
        slots.push(score);
    }
    program.push(
        json!({"kind": "policy", "input": "score", "voters": slots, "output": "action", "policy": policy}),
    );
    let mut actions = Vec::new();
    for (three_ds, uses) in [("none", 0.0), ("challenge", 1.0)] {
        for (code, exemption) in ["none", "tra", "low"].into_iter().enumerate() {
            actions.push(json!({
                "id": format!("3ds={three_ds}|exemption={exemption}"),
                "factors": {"three_ds": three_ds, "exemption": exemption},
                "features": [uses, code],
                "attributes": {"three_ds": uses, "cost": 0.125 * code as f64},
            }));
        }
    }
    Recipe {
        manifest: manifest(name, Kind::Action, Value::Array(program)),
        schema: json!({"features": context(), "action_features": [
            {"name": "three_ds", "type": "flag"},
            {"name": "exemption", "type": "category", "categories": ["none", "tra", "low"]},
        ]}),
        actions: Some(Value::Array(actions)),
        calibration: None,
        tables: None,
        score_map: None,
        overlay: None,
        forests,
        nets: BTreeMap::new(),
        covers: false,
        reasons: None,
        rules: None,
        features: None,
        functions: None,
        modules: BTreeMap::new(),
        lists: BTreeMap::new(),
    }
}

/// A small score bundle, ready to load.
#[must_use]
pub fn score_files(name: &str, base: f32) -> Files {
    score_recipe(name, base).build().expect("the score recipe builds")
}

/// A small action bundle with SquareCB, ready to load.
#[must_use]
pub fn action_files(name: &str, base: f32) -> Files {
    let policy = json!({"rule": "squarecb", "gamma": 20.0, "floor": 0.05});
    action_recipe(name, base, policy).build().expect("the action recipe builds")
}

/// A score bundle like [`score_recipe`]'s whose score rises with `seen`, the feature `payments` of the set `set`, and, if
/// `mean` is given, also has a column of that name for the feature `mean_amount`.
#[must_use]
pub fn computed_recipe(name: &str, set: &Value, mean: Option<&str>) -> Recipe {
    let mut recipe = score_recipe(name, 0.0);
    let mut columns = serde_json::Map::new();
    for (column, feature) in [(Some("seen"), "payments"), (mean, "mean_amount")] {
        let Some(column) = column else { continue };
        columns.insert(column.to_owned(), json!(feature));
        if let Some(features) = recipe.schema["features"].as_array_mut() {
            features.push(json!({"name": column, "type": "number"}));
        }
    }
    let width = 3 + columns.len();
    let mut trees = vec![stump(0, 100.0, -1.0, 1.0), stump(3, 1.5, -0.5, 1.5), stump(3, 2.5, 0.0, 1.0)];
    if mean.is_some() {
        trees.push(stump(4, 50.0, 0.0, 0.5));
    }
    recipe.forests.insert("forest.bin".to_owned(), model(width, 0.0, trees));
    recipe.features = Some(json!({"set": set, "columns": columns}));
    recipe
}

/// An action bundle like [`action_recipe`]'s, whose context is `amount`, `fraud_decision` (category approve, review,
/// decline) and `fraud_score` (number).
#[must_use]
pub fn scored_action_recipe(name: &str) -> Recipe {
    let policy = json!({"rule": "squarecb", "gamma": 20.0, "floor": 0.05});
    let mut recipe = action_recipe(name, 0.0, policy);
    recipe.schema["features"][1] = json!({
        "name": "fraud_decision", "type": "category", "categories": ["approve", "review", "decline"],
    });
    recipe.schema["features"][2] = json!({"name": "fraud_score", "type": "number"});
    recipe
}

/// A score bundle of three forests, whose program ends with `nodes` and a threshold. `nodes` read the slots
/// `probability-0` to `probability-2` and write the slot `combined`.
#[must_use]
pub fn ensemble_recipe(name: &str, nodes: Value) -> Recipe {
    let mut recipe = score_recipe(name, 0.0);
    let mut program = recipe.manifest["program"].as_array_mut().map(std::mem::take).expect("a list of nodes");
    let mut end = program.pop().expect("a program has an end");
    end["input"] = json!("combined");
    let mut nodes_of_forests = Vec::new();
    for number in 0..3 {
        let file = if number == 0 { "forest.bin".to_owned() } else { format!("member-{number:02}.bin") };
        let own = model(
            3,
            [0.0, -1.0, 0.5][number],
            vec![stump(0, 100.0 * (number + 1) as f64, -1.0, 1.0), stump(2, 0.5, 0.0, 0.25)],
        );
        let (margins, score) = (format!("margins-{number}"), format!("probability-{number}"));
        nodes_of_forests.push(json!({"kind": "forest", "file": file, "input": "row", "output": margins}));
        nodes_of_forests.push(json!({"kind": "link", "input": margins, "output": score}));
        recipe.forests.insert(file, own);
    }
    nodes_of_forests.extend(nodes.as_array().cloned().unwrap_or_default());
    nodes_of_forests.push(end);
    recipe.manifest["program"] = Value::Array(nodes_of_forests);
    recipe.calibration = None;
    recipe
}

/// A score bundle with a net of dense layers in place of the forest. A missing value is 0 for the net.
#[must_use]
pub fn net_recipe(name: &str) -> Recipe {
    let mut recipe = score_recipe(name, 0.0);
    recipe.manifest["program"] = json!([
        {"kind": "onnx", "file": "model.onnx", "input": "row", "output": "probability", "missing": 0.0},
        recipe.manifest["program"][2].clone(),
        recipe.manifest["program"][3].clone(),
    ]);
    recipe.forests.clear();
    recipe.nets.insert("model.onnx".to_owned(), scorer_onnx::testing::dense_net(&[3, 40, 8, 1]));
    recipe
}

impl Recipe {
    /// An action recipe with an overlay on the oracle's score and on every voter's.
    #[must_use]
    pub fn with_overlay(mut self, overlay: Value) -> Recipe {
        self.overlay = Some(overlay);
        let program = self.manifest["program"].as_array_mut().expect("a program is a list");
        let mut end = program.pop().expect("a program has an end");
        let mut moved = |slot: &mut Value| {
            let from = slot.as_str().expect("a slot is a name").to_owned();
            *slot = json!(format!("{from}-moved"));
            program.push(json!({"kind": "overlay", "file": "overlay.json", "input": from, "output": *slot}));
        };
        moved(&mut end["input"]);
        end["voters"].as_array_mut().into_iter().flatten().for_each(&mut moved);
        program.push(end);
        self
    }

    /// A recipe with rules and the lists that they name, each with its type and contents.
    #[must_use]
    pub fn with_rules(mut self, rules: &str, lists: &[(&str, &str, &str)]) -> Recipe {
        self.rules = Some(rules.to_owned());
        let program = self.manifest["program"].as_array_mut().expect("a program is a list");
        let mut end = program.pop().expect("a program has an end");
        let input = if end["kind"] == json!("policy") {
            end["eligible"] = json!("ruled");
            json!("row")
        } else {
            std::mem::replace(&mut end["input"], json!("ruled"))
        };
        let mut entries = serde_json::Map::new();
        for (number, (name, kind, content)) in lists.iter().enumerate() {
            let file = format!("list-{:02}.txt", number + 1);
            self.lists.insert(file.clone(), (*content).to_owned());
            entries.insert((*name).to_owned(), json!({"file": file, "type": kind}));
        }
        program.push(json!({
            "kind": "rules", "file": "rules.toml", "input": input, "output": "ruled", "lists": entries,
            "salt": "0f0e0d0c0b0a09080706050403020100",
        }));
        program.push(end);
        self
    }

    /// A recipe with functions in `function-01.wasm`, each with its parameters.
    #[must_use]
    pub fn with_functions(mut self, module: Vec<u8>, functions: &[(&str, &[&str])]) -> Recipe {
        let entries: Vec<Value> = functions
            .iter()
            .map(|(name, parameters)| json!({"name": name, "file": "function-01.wasm", "parameters": parameters}))
            .collect();
        self.functions = Some(json!({"functions": entries}));
        self.modules = BTreeMap::from([("function-01.wasm".to_owned(), module)]);
        self
    }

    /// A recipe with steps that add columns in front of its forests. The first tree of each forest reads the last of
    /// them.
    #[must_use]
    pub fn with_steps(mut self, steps: Value) -> Recipe {
        let added = steps.as_array().expect("steps are a list").len();
        for model in self.forests.values_mut() {
            model.num_features += added;
            if let Some(Node::Split(split)) = model.trees.first_mut().and_then(|tree| tree.nodes.first_mut())
            {
                split.feature = model.num_features as u32 - 1;
            }
        }
        let program = self.manifest["program"].as_array_mut().expect("a program is a list");
        program.iter_mut().filter(|node| node["input"] == json!("row")).for_each(|node| {
            node["input"] = json!("wide");
        });
        program.insert(0, json!({"kind": "transform", "input": "row", "output": "wide", "steps": steps}));
        self
    }

    /// A recipe whose rules also declare an external list without a file.
    #[must_use]
    pub fn with_external(mut self, name: &str, kind: &str, minimum_version: u64) -> Recipe {
        let program = self.manifest["program"].as_array_mut().expect("a program is a list");
        let rules = program.iter_mut().find(|node| node["kind"] == json!("rules")).expect("a rules node");
        rules["lists"][name] = json!({"type": kind, "external": true, "minimum_version": minimum_version});
        self
    }

    /// Builds the bundle; golden margins come from the engine itself.
    pub fn build(&self) -> Result<Files, BundleError> {
        let (mut files, mut manifest, draft) = self.start()?;
        let golden = golden::build(&draft, &golden_cases(&draft))?;
        files.insert("golden.bin".to_owned(), golden);
        files.insert("reference.json".to_owned(), reference().to_string().into_bytes());
        manifest.files = file_entries(&files);
        files.insert(MANIFEST.to_owned(), manifest.seal()?);
        Ok(files)
    }

    /// The bundle without golden cases.
    pub fn draft(&self) -> Result<Bundle, BundleError> {
        self.start().map(|(_, _, draft)| draft)
    }

    fn start(&self) -> Result<(Files, Manifest, Bundle), BundleError> {
        let mut files = Files::new();
        let text = |value: &Value| value.to_string().into_bytes();
        files.insert("schema.json".to_owned(), text(&self.schema));
        files.extend(self.actions.as_ref().map(|actions| ("actions.json".to_owned(), text(actions))));
        files.extend(self.overlay.as_ref().map(|overlay| ("overlay.json".to_owned(), text(overlay))));
        files.extend(self.tables.as_ref().map(|tables| ("tables.json".to_owned(), text(tables))));
        files.extend(self.score_map.as_ref().map(|map| ("score_map.json".to_owned(), text(map))));
        files.extend(self.calibration.as_ref().map(|maps| ("calibration.json".to_owned(), text(maps))));
        files.extend(self.nets.iter().map(|(name, net)| (name.clone(), net.clone())));
        for (name, model) in &self.forests {
            let (forest, covers) = Forest::compile_with_covers(model).expect("the model compiles");
            files.insert(name.clone(), forest.to_bytes());
            if self.covers && name == "forest.bin" {
                let covers = Covers::new(&forest, &covers.expect("the model has covers"));
                files.insert("covers.bin".to_owned(), covers.expect("the covers are valid").to_bytes());
            }
        }
        files.extend(self.reasons.as_ref().map(|reasons| ("reasons.json".to_owned(), text(reasons))));
        files.extend(self.features.as_ref().map(|features| ("features.json".to_owned(), text(features))));
        files.extend(self.rules.as_ref().map(|rules| ("rules.toml".to_owned(), rules.clone().into_bytes())));
        files.extend(self.functions.as_ref().map(|functions| ("functions.json".to_owned(), text(functions))));
        files.extend(self.modules.iter().map(|(name, module)| (name.clone(), module.clone())));
        files.extend(self.lists.iter().map(|(file, list)| (file.clone(), list.clone().into_bytes())));
        let mut manifest = self.manifest.clone();
        manifest["files"] = serde_json::to_value(file_entries(&files)).expect("entries are JSON");
        manifest["digest"] = json!(Digest([0; 32]));
        let mut manifest: Manifest =
            serde_json::from_value(manifest).map_err(|error| BundleError::Manifest(error.to_string()))?;
        let read = |name: &str| files.get(name).cloned().ok_or(ReadError::Missing);
        let draft = Bundle::draft(&manifest.seal()?, &read)?;
        Ok((files, manifest, draft))
    }
}

/// Amounts around the thresholds, every country and none, night and day.
fn golden_cases(draft: &Bundle) -> Vec<GoldenInput> {
    let actions = draft.catalogue().len();
    let mut scratch = vec![];
    scratch.extend(draft.forests().iter().map(|forest| crate::forest::Scratch::new(forest)));
    let mut whole = EvalScratch::new(draft);
    let mut cases = Vec::new();
    for number in 0..golden::MIN_CASES {
        let amount = [0.0, 99.99, 100.0, 100.01, 999.0, 1000.0, 20_000.0, 50_000.0][number % 8];
        let country = [0.0, 1.0, 2.0, f32::NAN][number / 8 % 4];
        let night = [0.0, 1.0, f32::NAN][number / 32 % 3];
        let mut row = vec![amount, country, night];
        // Computed features, beside these three columns.
        row.extend((3..draft.schema.len()).map(|column| (number / column % 5) as f32));
        let eligible = (actions > 0).then(|| {
            let mut mask = Mask::none(actions);
            (0..actions).filter(|action| number >> (action % 8) & 1 == 1).for_each(|action| {
                mask.insert(action);
            });
            if mask.is_empty() { Mask::all(actions) } else { mask }
        });
        let rows: Vec<Vec<f32>> = match &eligible {
            None => vec![row.clone()],
            Some(mask) => {
                let own =
                    |action: usize| &draft.action_rows[action * draft.action_width..][..draft.action_width];
                mask.iter().map(|action| row.iter().chain(own(action)).copied().collect()).collect()
            }
        };
        let mut margins = Vec::new();
        for row in rows {
            // A forest that reads added columns cannot be evaluated on the row itself.
            if draft.forests().iter().any(|forest| forest.num_features() != row.len()) {
                let buffers = &mut whole.buffers;
                buffers.rows[..row.len()].copy_from_slice(&row);
                draft.program.run(&Unlimited, buffers, None).expect("the rows of golden cases have scores");
                let of_forest = |range: &std::ops::Range<usize>| buffers.values[range.clone()].to_vec();
                margins.extend(draft.program.margins.iter().flat_map(of_forest));
                continue;
            }
            for (forest, scratch) in draft.forests().iter().zip(&mut scratch) {
                let mut out = vec![0.0; forest.num_outputs()];
                forest.margins(&row, scratch, &mut out);
                margins.extend(out);
            }
            for node in &draft.program.nets {
                let output = node.net.run(&row, &mut scorer_onnx::NetScratch::new(&node.net), || false);
                margins.push(f64::from(output.expect("nothing stops it")));
            }
        }
        cases.push(GoldenInput { row, eligible, margins });
    }
    cases
}

fn manifest(name: &str, kind: Kind, program: Value) -> Value {
    json!({
        "format": 1,
        "name": name,
        "kind": kind,
        "created_at": "2026-01-01T00:00:00Z",
        "program": program,
        "lineage": {
            "data_digest": "sha256:test",
            "code_version": "test",
            "library_versions": {},
            "run_id": "test",
            "metrics": {},
        },
    })
}

fn context() -> Value {
    json!([
        {"name": "amount", "type": "number", "missing": "refuse", "minimum": 0.0, "maximum": 50000.0},
        {"name": "country", "type": "category", "categories": ["NL", "DE", "FR"], "unknown_category": "missing"},
        {"name": "night", "type": "flag"},
    ])
}

fn reference() -> Value {
    let one = json!({
        "count": 4, "mean": 0.5, "quantiles": [0.0, 0.5, 1.0], "edges": [0.0, 0.5, 1.0], "counts": [2, 2],
    });
    json!({"training": one, "validation": one})
}

fn model(num_features: usize, base: f32, trees: Vec<Tree>) -> Model {
    Model {
        num_features,
        num_outputs: 1,
        precision: Precision::F32,
        base: vec![f64::from(base)],
        base_order: BaseOrder::First,
        divisor: Vec::new(),
        link: Link::Sigmoid { alpha: 1.0 },
        trees,
    }
}

/// `low` where the feature is below the threshold or missing, else `high`.
fn stump(feature: u32, threshold: f64, low: f64, high: f64) -> Tree {
    let missing = Missing { nan: NanRule::Left, zero: ZeroRule::Keep };
    let split = Split { feature, test: Test::Less(threshold), missing, left: 1, right: 2 };
    Tree {
        target: Target::Output(0),
        nodes: vec![Node::Split(split), Node::Leaf(0), Node::Leaf(1)],
        leaves: vec![low, high],
        sets: Vec::new(),
        covers: vec![4.0, 3.0, 1.0],
    }
}
