//! What a whole selection costs: forest, link, calibration, caps, floors, probabilities and draw.
//!
//! `select_cost --forest model.bin --context 30 --rows catalogue.f32 [--share 1.0] [--repeat 4000]` drafts a bundle
//! around a packed forest of one output, with an isotonic map of 200 knots and SquareCB with a cap and a floor, and
//! prints one JSON line: nanoseconds of `Bundle::select`, and of the forest's part of it. `--rows` is a file of
//! little-endian float32, `[actions, features - context]`.

mod cost;

use std::collections::BTreeMap;
use std::process::ExitCode;

use cost::{Arguments, Failure, times};
use scorer_core::budget::Unlimited;
use scorer_core::bundle::{Bundle, Digest, EvalScratch, Manifest, ReadError, file_entries};
use scorer_core::forest::actions::{ActionForest, ActionScratch, Catalogue};
use scorer_core::forest::{Forest, Isa};
use scorer_core::policy::Mask;
use serde_json::{Value, json};

fn main() -> ExitCode {
    cost::main("select_cost", run)
}

fn run(arguments: &Arguments) -> Result<Value, Failure> {
    let packed = std::fs::read(arguments.required("--forest")?)?;
    let context: usize = arguments.number("--context", None)?;
    let rows = cost::floats(arguments.required("--rows")?)?;
    let share: f64 = arguments.number("--share", Some(1.0))?;
    let repeat: usize = arguments.number("--repeat", Some(4000))?;

    let forest = Forest::from_bytes(&packed)?;
    let features = forest.num_features();
    let bundle = draft(packed, features, context, &rows)?;
    let actions = bundle.catalogue().len();
    let mut eligible = Mask::none(actions);
    for step in 0..(share * actions as f64).ceil() as usize {
        eligible.insert((step as f64 / share) as usize);
    }
    let mut state = 7_u64;
    let mut contexts = vec![[0.0_f32].repeat(context); 64];
    for value in contexts.iter_mut().flatten() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *value = (state >> 40) as f32 / 4e6 - 2.0;
    }
    let mut scratch = EvalScratch::new(&bundle);
    let mut failed = 0;
    let select = times(repeat, |at| {
        let row = &contexts[at % contexts.len()];
        let out = bundle.select(row, &eligible, "action.authorise", "order", &Unlimited, &mut scratch);
        failed += usize::from(out.is_err());
    });
    let catalogue = Catalogue { context, actions, rows: &rows };
    let factored = ActionForest::new(&forest, &catalogue, Isa::best()).ok_or("the forest is not factored")?;
    let mut scratch = ActionScratch::new(&forest, &factored);
    let mut out = vec![0.0; actions];
    let mut row = vec![f32::NAN; features];
    let oracle = times(repeat, |at| {
        row[..context].copy_from_slice(&contexts[at % contexts.len()]);
        let words = eligible.words();
        failed +=
            usize::from(factored.margins(&forest, &row, words, &Unlimited, &mut scratch, &mut out).is_err());
    });
    if failed > 0 {
        return Err(format!("{failed} evaluations failed").into());
    }
    Ok(json!({
        "trees": forest.num_trees(), "actions": actions, "eligible": eligible.count(),
        "select_min_ns": select[0], "select_median_ns": select[select.len() / 2],
        "forest_min_ns": oracle[0], "forest_median_ns": oracle[oracle.len() / 2],
        "bundle_bytes": bundle.heap_bytes(),
    }))
}

fn draft(packed: Vec<u8>, features: usize, context: usize, rows: &[f32]) -> Result<Bundle, Failure> {
    let number = |at: usize| json!({"name": format!("f{at}"), "type": "number"});
    let own: Vec<Value> = (context..features).map(number).collect();
    let actions: Vec<Value> = rows
        .chunks_exact(features - context)
        .enumerate()
        .map(|(at, row)| {
            let id = format!("a={at}");
            json!({"id": id, "factors": {"a": at.to_string()}, "features": row, "attributes": {"cost": at % 7}})
        })
        .collect();
    let knots: Vec<f64> = (0..200).map(|knot| f64::from(knot) / 199.0).collect();
    let squares: Vec<f64> = knots.iter().map(|x| x * x).collect();
    let json = |value: Value| value.to_string().into_bytes();
    let context: Vec<Value> = (0..context).map(number).collect();
    let files = BTreeMap::from([
        ("schema.json".to_owned(), json(json!({"features": context, "action_features": own}))),
        ("actions.json".to_owned(), json(Value::Array(actions))),
        (
            "calibration.json".to_owned(),
            json(json!({"maps": {"main": {"method": "isotonic", "x": knots, "y": squares}}})),
        ),
        ("forest.bin".to_owned(), packed),
    ]);
    let policy = json!({
        "rule": "squarecb", "gamma": 200.0, "floor": 0.02, "salt": "000102030405060708090a0b0c0d0e0f",
        "caps": [{"attribute": "cost", "lambda": 0.01}],
    });
    let manifest = json!({
        "format": 1, "name": "authorise", "kind": "action", "created_at": "2026-01-01T00:00:00Z",
        "program": [
            {"kind": "forest", "file": "forest.bin", "input": "row", "output": "margins"},
            {"kind": "link", "input": "margins", "output": "probability"},
            {"kind": "calibrate", "map": "main", "input": "probability", "output": "score"},
            {"kind": "policy", "input": "score", "output": "action", "policy": policy},
        ],
        "lineage": {
            "data_digest": "sha256:example", "code_version": "example", "library_versions": {},
            "run_id": "example", "metrics": {},
        },
        "files": file_entries(&files), "digest": Digest([0; 32]),
    });
    let mut manifest: Manifest = serde_json::from_value(manifest)?;
    let read = |name: &str| files.get(name).cloned().ok_or(ReadError::Missing);
    Ok(Bundle::draft(&manifest.seal()?, &read)?)
}
