//! Every defect of a bundle is found and reported in one line that names the field, the rule and the remedy.

use serde_json::{Value, json};

use super::super::testing::{
    Files, Recipe, action_files, action_recipe, assemble, reseal, score_files, score_recipe,
};
use super::super::*;
use crate::budget::Unlimited;
use crate::policy::Mask;

#[track_caller]
fn refused(files: &Files) -> String {
    let message = assemble(files).unwrap_err().to_string();
    assert!(!message.contains('\n') && message.len() < 600, "{message}");
    message
}

#[track_caller]
fn refuses(files: &Files, expected: &str) {
    let message = refused(files);
    assert!(message.contains(expected), "{message}\nshould say: {expected}");
}

/// Fault case 54.
#[test]
fn an_altered_byte_anywhere() {
    for files in [score_files("fraud", 0.0), action_files("authorise", 0.0)] {
        assemble(&files).unwrap();
        for name in files.keys() {
            let length = files[name].len();
            // Every bit of short files, and a sample of the bits of long ones.
            let step = (length * 8 / 600).max(1);
            for bit in (0..length * 8).step_by(step) {
                let mut altered = files.clone();
                altered.get_mut(name).unwrap()[bit / 8] ^= 1 << (bit % 8);
                let message = refused(&altered);
                assert!(message.contains(name.as_str()) || name == MANIFEST, "{name} bit {bit}: {message}");
            }
        }
    }
}

/// With every hash corrected only the content can be refused; whatever is accepted must still answer.
#[test]
fn an_altered_byte_with_good_hashes() {
    for good in [score_files("fraud", 0.0), action_files("authorise", 0.0)] {
        for name in good.keys().filter(|name| *name != MANIFEST) {
            let length = good[name].len();
            let step = (length * 8 / 400).max(1) | 1;
            for bit in (0..length * 8).step_by(step) {
                let mut files = good.clone();
                files.get_mut(name).unwrap()[bit / 8] ^= 1 << (bit % 8);
                reseal(&mut files).unwrap();
                let Ok(bundle) = assemble(&files) else { continue };
                // A golden row may move a little without changing its leaves; a forest is checked as a whole.
                assert_ne!(name, "forest.bin", "bit {bit} was accepted");
                let mut scratch = EvalScratch::new(&bundle);
                let row = vec![f32::NAN; bundle.schema().len()];
                if bundle.kind() == Kind::Score {
                    bundle.score(&row, &Unlimited, &mut scratch).unwrap();
                } else {
                    let eligible = Mask::all(bundle.catalogue().len());
                    bundle.select(&row, &eligible, "c", "d", &Unlimited, &mut scratch).unwrap();
                }
            }
        }
    }
}

#[test]
fn a_truncated_or_extended_file() {
    for files in [score_files("fraud", 0.0), action_files("authorise", 0.0)] {
        for name in files.keys().cloned().collect::<Vec<_>>() {
            for length in [0, 1, files[&name].len() / 2, files[&name].len() - 1] {
                let mut short = files.clone();
                short.get_mut(&name).unwrap().truncate(length);
                assert!(refused(&short).contains(&name));
                // The hashes are corrected, so only the content can reveal the change.
                if name != MANIFEST && reseal(&mut short).is_ok() {
                    refused(&short);
                }
            }
            let mut long = files.clone();
            long.get_mut(&name).unwrap().push(b'x');
            assert!(refused(&long).contains(&name));
            if name != MANIFEST && reseal(&mut long).is_ok() {
                refused(&long);
            }
        }
    }
}

#[test]
fn missing_extra_and_misnamed_files() {
    let good = action_files("authorise", 0.0);
    for name in good.keys().filter(|name| *name != MANIFEST) {
        let mut files = good.clone();
        files.remove(name);
        refuses(&files, &format!("{name}: the file is missing; restore or rebuild the bundle"));
        // The file is not even listed.
        reseal(&mut files).unwrap();
        let message = refused(&files);
        assert!(message.contains(name.as_str()), "{name}: {message}");
    }
    let mut files = good.clone();
    files.insert("notes.txt".to_owned(), b"hi".to_vec());
    refuses(&files, "file \"notes.txt\": not listed in manifest.json; remove it");
    for name in [
        "notes.txt",
        "../forest.bin",
        "/etc/passwd",
        "forest.bin/",
        "member-00.bin",
        "member-65.bin",
        "member-1.bin",
        "",
    ] {
        let mut files = good.clone();
        files.insert(name.to_owned(), b"hi".to_vec());
        let error = reseal(&mut files).unwrap_err().to_string();
        assert_eq!(error, format!("file {name:?}: a bundle has no such file; remove it"));
    }
    let mut files = good.clone();
    files.insert("member-01.bin".to_owned(), good["forest.bin"].clone());
    reseal(&mut files).unwrap();
    refuses(&files, "member-01.bin: no forest node evaluates it; remove it");
    let mut files = score_files("fraud", 0.0);
    files.insert("actions.json".to_owned(), good["actions.json"].clone());
    reseal(&mut files).unwrap();
    refuses(&files, "actions.json: a score bundle has no actions; remove it");
}

#[test]
fn manifests() {
    let good = score_files("fraud", 0.0);
    let with = |change: &dyn Fn(&mut Value)| {
        let mut value: Value = serde_json::from_slice(&good[MANIFEST]).unwrap();
        change(&mut value);
        let mut files = good.clone();
        files.insert(MANIFEST.to_owned(), value.to_string().into_bytes());
        files
    };
    refuses(
        &with(&|m| m["format"] = json!(2)),
        "format 2 is not the format 1 that this build reads; upgrade scorer",
    );
    refuses(&with(&|m| m["surprise"] = json!(1)), "unknown field `surprise`");
    let long = "c".repeat(40_000);
    let hostile = with(&|m| m[format!("a\nb{long}").as_str()] = json!(1));
    refuses(&hostile, "unknown field `a\u{fffd}bccc");
    assert!(refused(&hostile).len() < 500, "the text is not repeated");
    refuses(&with(&|m| m["digest"] = json!("sha256:00")), "is not a digest");
    refuses(&with(&|m| m["name"] = json!("other")), "its digest field says sha256:");
    let digest = |m: &Value| m["digest"].clone();
    refuses(
        &with(&|m| m["lineage"]["run_id"] = digest(m)),
        "the digest must appear in the digest field and nowhere else",
    );
    let mut files = good.clone();
    files.insert(MANIFEST.to_owned(), b"{}".to_vec());
    refuses(&files, "missing field `format`");
    files.remove(MANIFEST);
    refuses(&files, "manifest.json");
    // Sealing checks the fields that users write.
    for (field, value, message) in [
        ("name", json!("../up"), "name must be 1 to 128 letters"),
        ("name", json!(""), "name must be 1 to 128 letters"),
        ("created_at", json!(""), "created_at must be a time"),
        (
            "lineage",
            json!({"data_digest": "", "code_version": "", "library_versions": {}, "run_id": ""}),
            "must state data_digest",
        ),
    ] {
        let error = reseal(&mut with(&|m| m[field] = value.clone())).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

/// Fault case 60.
#[test]
fn golden_cases_one_ulp_off() {
    for good in [score_files("fraud", 0.0), action_files("authorise", 0.0)] {
        let shape = Shape::of(&good);
        for (offset, what) in shape.numbers {
            let mut files = good.clone();
            let golden = files.get_mut("golden.bin").unwrap();
            let at = shape.header + shape.first_case_skipped + offset;
            golden[at] ^= 1;
            reseal(&mut files).unwrap();
            let message = refused(&files);
            assert!(message.starts_with(&format!("golden case 1: {what}")), "{message}");
            assert!(message.contains(" 0x") && message.contains(" expected 0x"), "{message}");
        }
    }
}

/// The positions of the numbers of golden case 1, by the documented layout.
struct Shape {
    header: usize,
    first_case_skipped: usize,
    numbers: Vec<(usize, &'static str)>,
}

impl Shape {
    fn of(files: &Files) -> Shape {
        let action = files.contains_key("actions.json");
        let row = 3 * 4;
        // Both recipes have one forest with one output; case 0 of the action recipe has every action eligible
        // (its bits select none), case 1 the actions whose number is a multiple of eight: action 0.
        let case = |eligible: usize| row + 1 + eligible * 3 * 8 + 4;
        let (first, numbers) = if action {
            let start = row + 1;
            (
                case(6),
                vec![
                    (start, "margin 0x"),
                    (start + 8, "score 0x"),
                    (start + 16, "probability 0x"),
                    (start + 24, "choice 0x"),
                ],
            )
        } else {
            (row + 16 + 4, vec![(row, "margin 0x"), (row + 8, "score 0x"), (row + 16, "choice 0x")])
        };
        Shape { header: 8 + 5 * 4, first_case_skipped: first, numbers }
    }
}

#[test]
fn golden_files() {
    let good = score_files("fraud", 0.0);
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut files = good.clone();
        change(files.get_mut("golden.bin").unwrap());
        reseal(&mut files).unwrap();
        files
    };
    refuses(&with(&|g| g[0] = b'X'), "golden.bin: does not start with SCGOLD1");
    refuses(
        &with(&|g| g[8..12].copy_from_slice(&255_u32.to_le_bytes())),
        "golden.bin: 255 cases, at least 256 are needed",
    );
    refuses(
        &with(&|g| g[8..12].copy_from_slice(&u32::MAX.to_le_bytes())),
        "golden.bin: ends in the middle of a case",
    );
    refuses(&with(&|g| g[12] = 4), "golden.bin: is for 4 features, the bundle has 3");
    refuses(&with(&|g| g.push(0)), "golden.bin: 1 bytes follow the last case");
    // A row that the schema would refuse in a request.
    refuses(
        &with(&|g| g[28..32].copy_from_slice(&(-1.0_f32).to_le_bytes())),
        "golden case 0: feature \"amount\": the value is below",
    );
}

#[test]
fn parts_of_another_model() {
    let (fraud, other) = (score_files("fraud", 0.0), score_files("other", 0.25));
    let mut files = fraud.clone();
    files.insert("forest.bin".to_owned(), other["forest.bin"].clone());
    reseal(&mut files).unwrap();
    refuses(&files, "golden case 0: margin 0x");
    files.insert("forest.bin".to_owned(), action_files("authorise", 0.0)["forest.bin"].clone());
    reseal(&mut files).unwrap();
    refuses(&files, "forest.bin takes 5 features, the schema has 3");
    files.insert("forest.bin".to_owned(), b"nonsense".to_vec());
    reseal(&mut files).unwrap();
    refuses(&files, "forest.bin: ");
}

/// Builds a changed recipe; returns the message of the check that refuses it.
#[track_caller]
fn recipe_refused(recipe: &Recipe, expected: &str) {
    let message = recipe.build().unwrap_err().to_string();
    assert!(message.contains(expected) && !message.contains('\n'), "{message}\nshould say: {expected}");
}

#[test]
fn programs() {
    let with = |change: &dyn Fn(&mut Vec<Value>)| {
        let mut recipe = score_recipe("fraud", 0.0);
        change(recipe.manifest["program"].as_array_mut().unwrap());
        recipe
    };
    for (recipe, expected) in [
        (
            with(&|p| p[1]["kind"] = json!("neural")),
            "program node 1 has unknown kind \"neural\"; this build knows transform, forest, onnx, link, calibrate, scoremap, mean, stack, switch, overlay, rules, threshold, policy; upgrade scorer",
        ),
        (with(&|p| p[1] = json!(7)), "program node 1 has unknown kind \"\""),
        (with(&|p| p[0]["depth"] = json!(3)), "program node 0 (forest): unknown field `depth`"),
        (
            with(&|p| p[0]["file"] = json!("member-01.bin")),
            "\"member-01.bin\" is not a forest of this bundle",
        ),
        (with(&|p| p[0]["input"] = json!("rows")), "slot \"rows\" is written by no earlier node"),
        (with(&|p| p.swap(0, 1)), "program node 0 (link): slot \"margins\" is written by no earlier node"),
        (with(&|p| p[1]["index"] = json!(1)), "index 1 is beyond the model's 1 predictions"),
        (with(&|p| p[1]["input"] = json!("row")), "slot \"row\" holds a row, margins is needed"),
        (with(&|p| p[2]["map"] = json!("other")), "calibration.json has no map \"other\""),
        (
            with(&|p| p[2]["output"] = json!("probability")),
            "output slot \"probability\" is empty or already taken",
        ),
        (with(&|p| p[3]["input"] = json!("margins")), "slot \"margins\" holds margins, a score is needed"),
        (with(&|p| p[3]["input"] = json!("probability")), "never reads slot \"score\""),
        (
            with(&|p| {
                p.pop();
            }),
            "program node 2 (calibrate): a program ends with its only threshold or policy",
        ),
        (
            with(&|p| p.push(p[3].clone())),
            "program node 3 (threshold): a program ends with its only threshold or policy",
        ),
        (with(&|p| p.clear()), "program is empty"),
        (
            with(&|p| {
                p.remove(2);
                p[2]["input"] = json!("probability");
            }),
            "map \"main\": no calibrate node uses it",
        ),
    ] {
        recipe_refused(&recipe, expected);
    }
    let mut action = action_recipe("authorise", 0.0, json!({"rule": "uniform"}));
    let policy = action.manifest["program"][2].clone();
    action.manifest["program"][2] =
        json!({"kind": "threshold", "input": "score", "output": "d", "bands": []});
    recipe_refused(&action, "an action bundle ends with a policy");
    recipe_refused(
        &with(&|p| {
            p[3] = json!({"kind": "policy", "input": "score", "output": "a", "policy": policy["policy"]})
        }),
        "a score bundle ends with a threshold",
    );
    let mut bag = action_recipe("authorise", 0.0, json!({"rule": "bagging", "voters": 3}));
    bag.manifest["program"][8]["policy"]["voters"] = json!(2);
    recipe_refused(&bag, "rule bagging takes 2 voters, the node lists 3");
    let mut rule =
        action_recipe("authorise", 0.0, json!({"rule": "uniform", "action_floors": {"3ds=none": 0.1}}));
    recipe_refused(&rule, "action_floors names action \"3ds=none\", which is not in the catalogue");
    rule.manifest["program"][2]["policy"] = json!({"rule": "ucb1", "salt": "00"});
    recipe_refused(&rule, "program node 2 (policy): policy: unknown rule \"ucb1\"");
}

#[test]
fn bands() {
    let with = |bands: Value| {
        let mut recipe = score_recipe("fraud", 0.0);
        recipe.manifest["program"][3]["bands"] = bands;
        recipe
    };
    let many: Vec<Value> = (0..65).map(|i| json!({"from": i, "label": format!("l{i}")})).collect();
    for (bands, expected) in [
        (json!([]), "0 bands; give 1 to 64"),
        (Value::Array(many), "65 bands; give 1 to 64"),
        (
            json!([{"from": 0.2, "label": "a"}]),
            "scores from 0 to 0.2 have no band; start the first band at 0",
        ),
        (
            json!([{"from": 0, "label": "a"}, {"from": 0, "label": "b"}]),
            "band \"b\" starts at 0, not above the one before it (0)",
        ),
        (json!([{"from": 0, "label": "a"}, {"from": 0.5, "label": "a"}]), "label \"a\" occurs twice"),
        (json!([{"from": 0, "label": ""}]), "band 0 has label \"\""),
        (json!([{"from": null, "label": "a"}]), "invalid type: null"),
    ] {
        recipe_refused(&with(bands), expected);
    }
}

#[test]
fn catalogues() {
    let with = |change: &dyn Fn(&mut Vec<Value>)| {
        let mut recipe = action_recipe("authorise", 0.0, json!({"rule": "uniform"}));
        change(recipe.actions.as_mut().unwrap().as_array_mut().unwrap());
        recipe
    };
    for (recipe, expected) in [
        (
            with(&|a| a[1]["id"] = a[0]["id"].clone()),
            "action \"3ds=none|exemption=none\": the id occurs twice",
        ),
        (with(&|a| a[1]["id"] = json!("")), "action \"\": an id is 1 to 256 printable characters"),
        (with(&|a| a.clear()), "the catalogue is empty; list at least one action"),
        (with(&|a| *a = vec![a[0].clone(); 4097]), "4097 actions, at most 4096 are allowed"),
        (
            with(&|a| a[2]["factors"] = json!({"three_ds": "none"})),
            "its factors are [\"three_ds\"], the first action's are [\"exemption\", \"three_ds\"]",
        ),
        (with(&|a| a[2]["features"] = json!([0.0])), "1 features, the schema has 2 action features"),
        (
            with(&|a| a[2]["features"] = json!([0.0, 3.0])),
            "feature \"exemption\": the value is not a category code; send a whole number from 0 and below 3",
        ),
        (with(&|a| a[2]["features"] = json!([0.5, 0.0])), "feature \"three_ds\": the value is not a flag"),
        (with(&|a| a[2]["attributes"] = json!({"cost": -1})), "attribute \"cost\" is -1"),
        (with(&|a| a[2]["price"] = json!(1)), "actions.json: unknown field `price`"),
    ] {
        recipe_refused(&recipe, expected);
    }
    let mut clash = action_recipe("authorise", 0.0, json!({"rule": "uniform"}));
    clash.schema["action_features"][0]["name"] = json!("amount");
    recipe_refused(&clash, "feature \"amount\": the name occurs twice");
}

#[test]
fn calibrations_and_references() {
    let with = |map: Value| {
        let mut recipe = score_recipe("fraud", 0.0);
        recipe.calibration = Some(json!({"maps": {"main": map}}));
        recipe
    };
    let isotonic = |x: Value, y: Value| with(json!({"method": "isotonic", "x": x, "y": y}));
    for (recipe, expected) in [
        (isotonic(json!([]), json!([])), "map \"main\": 0 x and 0 y knots"),
        (isotonic(json!([0.0, 1.0]), json!([0.0])), "2 x and 1 y knots"),
        (isotonic(json!([0.0, 0.0]), json!([0.0, 1.0])), "knot 1 goes back, x must ascend"),
        (isotonic(json!([0.0, 1.0]), json!([0.5, 0.4])), "knot 1 goes back"),
        (isotonic(json!([0.0, 1.0]), json!([0.0, 1.1])), "knot 1 is (1, 1.1)"),
        (isotonic(json!([null, 1.0]), json!([0.0, 1.0])), "calibration.json: invalid type: null"),
        (with(json!({"method": "sigmoid", "slope": 0.0, "intercept": 0.0})), "slope 0 and intercept 0"),
        (
            with(json!({"method": "sigmoid", "slope": "NaN", "intercept": 0.0})),
            "calibration.json: invalid type: string",
        ),
        (with(json!({"method": "spline"})), "unknown variant `spline`"),
    ] {
        recipe_refused(&recipe, expected);
    }
    let good = score_files("fraud", 0.0);
    for (pointer, value, expected) in [
        ("/training/counts", json!([1, 2]), "training: counts must add up to count"),
        ("/training/counts", json!([u64::MAX, 5]), "training: counts must add up to count"),
        ("/validation/edges", json!([0.0, 1.0]), "validation: edges must be one more than counts"),
        ("/validation/edges", json!([0.0, 1.0, 0.5]), "validation: edges must be finite and ascending"),
        (
            "/validation/quantiles",
            json!([0.5, 0.4]),
            "quantiles must be at least two finite numbers in ascending order",
        ),
        ("/training/count", json!(0), "count must be above 0"),
        ("/training/mean", json!("x"), "reference.json: invalid type"),
    ] {
        let mut reference: Value = serde_json::from_slice(&good["reference.json"]).unwrap();
        *reference.pointer_mut(pointer).unwrap() = value;
        let mut files = good.clone();
        files.insert("reference.json".to_owned(), reference.to_string().into_bytes());
        reseal(&mut files).unwrap();
        refuses(&files, expected);
    }
}

#[test]
fn transforms() {
    let with = |steps: Value| {
        let mut recipe = score_recipe("fraud", 0.0);
        recipe.schema["features"].as_array_mut().unwrap()[2] = json!({"name": "balance", "type": "number"});
        recipe.manifest["program"][0]["input"] = json!("inputs");
        let node = json!({"kind": "transform", "input": "row", "output": "inputs", "steps": steps});
        recipe.manifest["program"].as_array_mut().unwrap().insert(0, node);
        recipe
    };
    for (steps, expected) in [
        (json!([{"function": "log1p", "feature": "amt"}]), "feature \"amt\" is not in the schema"),
        (
            json!([{"function": "log1p", "feature": "country"}]),
            "feature \"country\" is a category, only numbers are transformed",
        ),
        (
            json!([{"function": "log1p", "feature": "balance"}]),
            "log1p needs values above -1; give it a minimum",
        ),
        (
            json!([{"function": "log1p", "feature": "amount"}, {"function": "log1p", "feature": "amount"}]),
            "has two steps",
        ),
        (
            json!([{"function": "standardise", "feature": "amount", "mean": 0, "scale": 0}]),
            "the scale above 0",
        ),
        (json!([{"function": "sqrt", "feature": "amount"}]), "unknown variant `sqrt`"),
    ] {
        recipe_refused(&with(steps), expected);
    }
}

#[test]
fn category_dictionaries_that_differ() {
    // The catalogue has three exemptions, and the schema two.
    let mut recipe = action_recipe("authorise", 0.0, json!({"rule": "uniform"}));
    recipe.schema["action_features"][1]["categories"] = json!(["none", "tra"]);
    recipe_refused(
        &recipe,
        "action \"3ds=none|exemption=low\": feature \"exemption\": the value is not a category code",
    );
    // The golden rows were computed with three countries.
    let mut files = score_files("fraud", 0.0);
    let schema = String::from_utf8(files["schema.json"].clone()).unwrap().replace("\"DE\",\"FR\"", "\"DE\"");
    files.insert("schema.json".to_owned(), schema.into_bytes());
    reseal(&mut files).unwrap();
    refuses(
        &files,
        "feature \"country\": the value is not a category code; send a whole number from 0 and below 2",
    );
}
