use proptest::prelude::*;
use scorer_core::forest::{Forest, ForestError, Link, Model};

use crate::number::Number;
use crate::value::{Kind, Value};
use crate::{ReadError, json, read_model, ubj};

/// Two stumps on feature 1 at 0.25; missing goes left, then right.
fn document(base_score: &str, objective: &str) -> String {
    let tree = |id: u32, default_left: u32| {
        format!(
            r#"{{"id": {id}, "tree_param": {{"num_nodes": "3", "size_leaf_vector": "1", "num_deleted": "0"}},
            "left_children": [1, -1, -1], "right_children": [2, -1, -1], "split_indices": [1, 0, 0],
            "split_conditions": [2.5E-1, 1E0, -2E0], "default_left": [{default_left}, 0, 0], "split_type": [0, 0, 0]}}"#
        )
    };
    format!(
        r#"{{"version": [3, 2, 0], "learner": {{
            "learner_model_param": {{"base_score": "{base_score}", "num_class": "0", "num_feature": "2"}},
            "objective": {{"name": "{objective}"}}, "feature_names": ["a\u00e4\n\ud83d\ude00", "b"],
            "gradient_booster": {{"name": "gbtree", "model": {{
                "trees": [{}, {}], "tree_info": [0, 0]}}}}}}}}"#,
        tree(1, 0),
        tree(0, 1)
    )
}

/// The same document in UBJ, numbers as XGBoost types them.
fn to_ubj(value: &Value<'_>, out: &mut Vec<u8>) {
    let length = |out: &mut Vec<u8>, length: usize| {
        out.push(b'L');
        out.extend((length as i64).to_be_bytes());
    };
    match value {
        Value::Number(number) => match number.i64() {
            Some(integer) => {
                out.push(b'l');
                out.extend((integer as i32).to_be_bytes());
            }
            None => {
                out.push(b'd');
                out.extend(number.f32().unwrap().to_be_bytes());
            }
        },
        Value::String(text) => {
            out.push(b'S');
            length(out, text.len());
            out.extend(text.as_bytes());
        }
        Value::Array(values) => {
            out.extend(b"[#");
            length(out, values.len());
            values.iter().for_each(|value| to_ubj(value, out));
        }
        Value::Object(members) => {
            out.push(b'{');
            for (key, value) in members {
                length(out, key.len());
                out.extend(key.as_bytes());
                to_ubj(value, out);
            }
            out.push(b'}');
        }
        Value::Null | Value::Bool(_) | Value::Typed(_) => panic!("not in these documents"),
    }
}

fn margins(model: &Model, rows: &[[f32; 2]]) -> Vec<f64> {
    let forest = Forest::compile(model).unwrap();
    let mut out = vec![0.0; rows.len()];
    forest.predict(rows.as_flattened(), rows.len(), true, &mut out).unwrap();
    out
}

const ROWS: [[f32; 2]; 4] = [[0.0, 0.0], [0.0, 0.25], [0.0, 9.0], [0.0, f32::NAN]];

#[test]
fn both_formats_are_read() {
    let text = document("[5E-1]", "reg:squarederror");
    let model = read_model(text.as_bytes()).unwrap();
    assert_eq!((model.num_features, model.num_outputs, model.trees.len()), (2, 1, 2));
    // The tree whose id is 0 stands second in the file.
    assert_eq!(margins(&model, &ROWS), [2.5, -3.5, -3.5, -0.5]);
    let mut bytes = Vec::new();
    to_ubj(&json::parse(text.as_bytes()).unwrap(), &mut bytes);
    assert_eq!(read_model(&bytes).unwrap(), model);
}

#[test]
fn base_scores_become_margins_in_float32() {
    let base =
        |score: &str, objective: &str| read_model(document(score, objective).as_bytes()).unwrap().base[0];
    assert_eq!(base("2.5E-1", "reg:squarederror"), 0.25);
    assert_eq!(base("[2.5E-1]", "binary:logistic"), f64::from(-(3.0_f32.ln())));
    assert_eq!(base("[2.5E-1]", "binary:logitraw"), 0.25);
    assert_eq!(base("[2.5E-1]", "count:poisson"), f64::from(0.25_f32.ln()));
    // Clamped from 3.2 on.
    assert_eq!(base("[0E0]", "binary:logistic"), f64::from(-((1.0_f32 / 1e-6 - 1.0).ln())));
    let old = |score: &str| {
        let text = document(score, "binary:logistic").replace("[3, 2, 0]", "[3, 1, 0]");
        read_model(text.as_bytes()).map(|model| model.base[0])
    };
    assert_eq!(old("[1E-7]").unwrap(), f64::from(-((1.0_f32 / 1e-7 - 1.0).ln())));
    assert!(old("[0E0]").unwrap_err().to_string().contains("base_score: 0e0 has no finite margin"));
    for wrong in ["", "[]", "[1", "1,", "x", "[nan]", "1E999"] {
        let error = read_model(document(wrong, "reg:squarederror").as_bytes()).unwrap_err().to_string();
        assert!(error.contains("base_score"), "{wrong}: {error}");
    }
}

#[test]
fn objectives_have_links() {
    let link = |name: &str| read_model(document("[5E-1]", name).as_bytes()).map(|model| model.link);
    assert_eq!(link("binary:logistic"), Ok(Link::Sigmoid { alpha: 1.0 }));
    assert_eq!(link("survival:aft"), Ok(Link::Exp));
    assert_eq!(link("rank:ndcg"), Ok(Link::Identity));
    assert!(matches!(
        link("reg:newest"),
        Err(ReadError::Forest(ForestError::Unsupported { feature, .. })) if feature.contains("reg:newest")
    ));
}

#[test]
fn decimals_are_rounded_once() {
    // Just above the middle of two float32 values; through float64 it would become the middle, then even.
    let text = "1.00000005960464477540000000000000001";
    assert_ne!(text.parse::<f64>().unwrap() as f32, text.parse::<f32>().unwrap());
    let Ok(Value::Number(number)) = json::parse(text.as_bytes()) else { panic!("a number") };
    assert_eq!(number.f32().unwrap().to_bits(), 0x3f80_0001);
}

#[test]
fn json_is_read_strictly() {
    for text in
        ["NaN", "Infinity", "-Infinity", "-0.5e-3", " [1, 2] ", r#"{"a": {"b": [null, true, false]}}"#]
    {
        assert!(json::parse(text.as_bytes()).is_ok(), "{text}");
    }
    assert_eq!(
        json::parse(br#""a\u00e4\ud83d\ude00\"\\\/\n""#).unwrap(),
        Value::String("aä😀\"\\/\n".into())
    );
    for (text, rule) in [
        ("", "a value is expected"),
        ("[1,]", "a value is expected"),
        ("[1 2]", "',' or ']'"),
        (r#"{"a" 1}"#, "':' is expected"),
        (r#"{"a": 1 "b": 2}"#, "',' or '}'"),
        (r#"{1: 2}"#, "a string is expected"),
        (r#"{"a": 1, "a": 2}"#, "key \"a\" appears twice"),
        (r#""abc"#, "not closed"),
        (r#""\x""#, "escape"),
        (r#""\u12g4""#, "four hexadecimal digits"),
        ("1e", "malformed"),
        ("--1", "malformed"),
        ("nan", "a value is expected"),
        ("1 1", "left over"),
    ] {
        let error = json::parse(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(rule), "{text}: {error}");
    }
    assert!(json::parse("[".repeat(1_000_000).as_bytes()).unwrap_err().to_string().contains("nested"));
}

#[test]
fn ubj_is_read_strictly() {
    let typed = b"[$d#i\x02\x3f\x80\x00\x00\xff\xc0\x00\x00";
    let Ok(Value::Typed(array)) = ubj::parse(typed) else { panic!("a typed array") };
    assert_eq!(array.kind, Kind::F32);
    let values: Vec<_> = array.iter().map(|number| number.f32().unwrap()).collect();
    assert!(values[0] == 1.0 && values[1].is_nan());
    assert_eq!(ubj::parse(b"[U\x07I\xff\xfeZTF]").unwrap(), {
        let number = |value| Value::Number(Number::Integer(value));
        Value::Array(vec![number(7), number(-2), Value::Null, Value::Bool(true), Value::Bool(false)])
    });
    for (bytes, rule) in [
        (&b""[..], "1 bytes are needed, 0 remain"),
        (b"[$d#L\x7f\xff\xff\xff\xff\xff\xff\xff", "length"),
        (b"[$d#i\x02\x3f\x80\x00\x00", "8 bytes are needed, 4 remain"),
        (b"[#i\x7f", "length"),
        (b"[$Z#i\x01", "must hold numbers"),
        (b"[$d\x00", "must have a length"),
        (b"Sd\x00\x00\x00\x00", "must be an integer"),
        (b"Si\xff", "negative"),
        (b"[", "needed"),
        (b"{i\x01aZ", "needed"),
        (b"{i\x01aZi\x01aZ}", "appears twice"),
        (b"H", "marker 'H'"),
        (b"ZZ", "left over"),
    ] {
        let error = ubj::parse(bytes).unwrap_err().to_string();
        assert!(error.contains(rule), "{bytes:?}: {error}");
    }
    assert!(ubj::parse(&b"[".repeat(1_000_000)).unwrap_err().to_string().contains("nested"));
}

#[test]
fn garbage_is_refused() {
    for bytes in [&b""[..], b"{", b"{}", b"binf", b"{L\xff\xff\xff\xff\xff\xff\xff\xff", b"[[[[", b"\xff\xfe"]
    {
        assert!(read_model(bytes).is_err(), "{bytes:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn altered_documents_never_panic(
        as_ubj in any::<bool>(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = document("[5E-1]", "binary:logistic").into_bytes();
        if as_ubj {
            let mut packed = Vec::new();
            to_ubj(&json::parse(&bytes).unwrap(), &mut packed);
            bytes = packed;
        }
        prop_assert!(read_model(&bytes[..cut.index(bytes.len())]).is_err());
        for (at, value) in edits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(model) = read_model(&bytes) {
            let _ = Forest::compile(&model);
        }
    }

    /// Fault case 59.
    #[test]
    fn any_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = (read_model(&bytes), json::parse(&bytes), ubj::parse(&bytes));
    }
}
