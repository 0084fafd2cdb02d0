//! All rules of the schema, as tables.

use super::*;

fn feature(name: &str, kind: FeatureType) -> FeatureSpec {
    FeatureSpec {
        name: name.to_owned(),
        kind,
        categories: Vec::new(),
        missing: MissingRule::Allow,
        unknown_category: UnknownCategoryRule::Refuse,
        minimum: None,
        maximum: None,
    }
}

fn category(name: &str, categories: &[&str]) -> FeatureSpec {
    let categories = categories.iter().map(|&category| category.to_owned()).collect();
    FeatureSpec { categories, ..feature(name, FeatureType::Category) }
}

fn schema() -> Schema {
    Schema::new(vec![
        FeatureSpec {
            minimum: Some(0.0),
            maximum: Some(0.1),
            missing: MissingRule::Refuse,
            ..feature("rate", FeatureType::Number)
        },
        feature("hour", FeatureType::Number),
        category("country", &["NL", "DE"]),
        FeatureSpec { unknown_category: UnknownCategoryRule::Missing, ..category("device", &["ios"]) },
        feature("night", FeatureType::Flag),
    ])
    .unwrap()
}

fn encode(values: &[(&'static str, Value<'static>)]) -> Result<Vec<f32>, SchemaError> {
    let schema = schema();
    let mut row = vec![9.0; schema.len()];
    schema.encode_named(values.iter().copied(), &mut row).map(|()| row)
}

#[test]
fn named_values_become_a_row() {
    let row = encode(&[
        ("night", Value::Flag(true)),
        ("rate", Value::Number(0.05)),
        ("country", Value::Category("DE")),
        ("hour", Value::Missing),
    ])
    .unwrap();
    assert_eq!((row[0], row[2], row[4]), (0.05_f32, 1.0, 1.0));
    assert!(row[1].is_nan() && row[3].is_nan());
    // Rounding is to nearest, ties to even: 1 + 2^-24 is in the middle and rounded down, 1 + 3 x 2^-24 is
    // rounded up.
    let near =
        encode(&[("rate", Value::Number(0.0)), ("hour", Value::Number(1.0 + f64::powi(2.0, -24)))]).unwrap();
    assert_eq!(near[1], 1.0);
    let up =
        encode(&[("rate", Value::Number(0.0)), ("hour", Value::Number(1.0 + 3.0 * f64::powi(2.0, -24)))])
            .unwrap();
    assert_eq!(up[1].to_bits(), 1.0_f32.to_bits() + 2);
    // A category that this feature treats as missing. NaN is a missing number.
    let odd = encode(&[
        ("rate", Value::Number(0.0)),
        ("device", Value::Category("symbian")),
        ("hour", Value::Number(f64::NAN)),
    ]);
    assert!(odd.is_ok_and(|row| row[3].is_nan() && row[1].is_nan()));
}

#[test]
fn named_values_are_refused_by_name() {
    let rate = ("rate", Value::Number(0.05));
    for (values, message) in [
        (
            vec![rate, ("Hour", Value::Number(1.0))],
            "feature \"Hour\": not in the schema (did you mean \"hour\"?); remove it or correct the name",
        ),
        (
            vec![rate, ("colour", Value::Number(1.0))],
            "feature \"colour\": not in the schema; remove it or correct the name",
        ),
        (vec![rate, rate], "feature \"rate\": given twice; send it once"),
        (vec![], "feature \"rate\": missing, and the schema refuses missing values for it; send a value"),
        (
            vec![("rate", Value::Missing)],
            "feature \"rate\": missing, and the schema refuses missing values for it; send a value",
        ),
        (
            vec![("rate", Value::Number(f64::NAN))],
            "feature \"rate\": missing, and the schema refuses missing values for it; send a value",
        ),
        (
            vec![("rate", Value::Flag(true))],
            "feature \"rate\": a flag was sent, the schema has a number; send a number",
        ),
        (
            vec![rate, ("night", Value::Number(1.0))],
            "feature \"night\": a number was sent, the schema has a flag; send a flag",
        ),
        (
            vec![rate, ("country", Value::Number(1.0))],
            "feature \"country\": a number was sent, the schema has a category; send a category",
        ),
        (
            vec![rate, ("country", Value::Category("FR"))],
            "feature \"country\": the category is not among the 2 of its dictionary; map it to a known one or leave it out",
        ),
        (
            vec![("rate", Value::Number(0.2))],
            "feature \"rate\": the value is above the allowed maximum 0.1; clip it or extend the schema's range",
        ),
        (
            vec![("rate", Value::Number(-1e-9))],
            "feature \"rate\": the value is below the allowed minimum 0; clip it or extend the schema's range",
        ),
        (
            vec![rate, ("hour", Value::Number(f64::NEG_INFINITY))],
            "feature \"hour\": the value is infinite or beyond float32; send a finite value or leave it out",
        ),
        (
            vec![rate, ("hour", Value::Number(1e39))],
            "feature \"hour\": the value is infinite or beyond float32; send a finite value or leave it out",
        ),
    ] {
        assert_eq!(encode(&values).unwrap_err().to_string(), message);
    }
}

/// Fault cases 19, 20, 23.
#[test]
fn a_value_gets_the_same_verdict_by_name_and_in_a_row() {
    // 0.1 as float32 is above 0.1. The limit is rounded too, or else the dense form would be refused.
    let row = encode(&[("rate", Value::Number(0.1))]).unwrap();
    assert!(f64::from(row[0]) > 0.1);
    assert_eq!(schema().check_dense(&row), Ok(()));
}

/// Fault cases 22, 25.
#[test]
fn dense_rows_are_refused_by_name() {
    let good = [0.05, 12.0, 1.0, 0.0, 1.0];
    assert_eq!(schema().check_dense(&good), Ok(()));
    let missing = [0.0, f32::NAN, f32::NAN, f32::NAN, f32::NAN];
    assert_eq!(schema().check_dense(&missing), Ok(()));
    assert_eq!(
        schema().check_dense(&good[..4]).unwrap_err().to_string(),
        "features: 4 values, the schema has 5; call Describe for the features and their order"
    );
    let code = "is not a category code; send a whole number from 0 and below 2, or NaN if missing";
    for (at, value, message) in [
        (0, f32::NAN, "feature \"rate\": missing".to_owned()),
        (0, 0.2, "feature \"rate\": the value is above".to_owned()),
        (1, f32::INFINITY, "feature \"hour\": the value is infinite".to_owned()),
        (2, 2.0, format!("feature \"country\": the value {code}")),
        (2, 0.5, format!("feature \"country\": the value {code}")),
        (2, -1.0, format!("feature \"country\": the value {code}")),
        (2, f32::INFINITY, format!("feature \"country\": the value {code}")),
        (4, 0.5, "feature \"night\": the value is not a flag; send 0 or 1, or NaN if missing".to_owned()),
    ] {
        let mut row = good;
        row[at] = value;
        let refused = schema().check_dense(&row).unwrap_err().to_string();
        assert!(refused.starts_with(&message), "{refused}");
    }
}

#[test]
fn schemas_are_refused_by_name() {
    let number = |name: &str| feature(name, FeatureType::Number);
    let long = "x".repeat(129);
    for (features, message) in [
        (vec![number("")], "a name is 1 to 128 printable characters"),
        (vec![number(&long)], "a name is 1 to 128 printable characters"),
        (vec![number("a\nb")], "a name is 1 to 128 printable characters"),
        (vec![number("a"), number("a")], "feature \"a\": the name occurs twice"),
        (vec![category("c", &[])], "feature \"c\": a category with 0 categories"),
        (vec![category("c", &["x", "x"])], "category \"x\" occurs twice"),
        (
            vec![FeatureSpec { kind: FeatureType::Number, ..category("c", &["x"]) }],
            "a number with 1 categories",
        ),
        (
            vec![FeatureSpec { minimum: Some(0.0), ..category("c", &["x"]) }],
            "a category has no minimum or maximum",
        ),
        (vec![FeatureSpec { minimum: Some(1.0), maximum: Some(0.0), ..number("a") }], "in ascending order"),
        (vec![FeatureSpec { maximum: Some(f64::NAN), ..number("a") }], "must be finite float32"),
        (vec![FeatureSpec { maximum: Some(1e300), ..number("a") }], "must be finite float32"),
        ((0..=MAX_FEATURES).map(|i| number(&format!("f{i}"))).collect(), "4097 features, at most 4096"),
    ] {
        let refused = Schema::new(features).unwrap_err().to_string();
        assert!(refused.contains(message) && !refused.contains('\n'), "{refused}");
    }
}

#[test]
fn the_fingerprint_covers_meaning_and_nothing_else() {
    let base = vec![feature("a", FeatureType::Number), category("c", &["x", "y"])];
    let of = |features: &[FeatureSpec]| Schema::new(features.to_vec()).unwrap().fingerprint();
    // Computed separately with hashlib over the documented rendering (as in tests/unit/test_schema.py).
    assert_eq!(of(&base), 0x79172ea4c1d90257);
    let mut wider = base.clone();
    wider[0].maximum = Some(1.0);
    wider[0].missing = MissingRule::Refuse;
    wider[1].unknown_category = UnknownCategoryRule::Missing;
    assert_eq!(of(&wider), of(&base));
    let swapped: Vec<_> = base.iter().rev().cloned().collect();
    for changed in [
        swapped,
        vec![base[0].clone()],
        vec![feature("b", FeatureType::Number), base[1].clone()],
        vec![feature("a", FeatureType::Flag), base[1].clone()],
        vec![base[0].clone(), category("c", &["y", "x"])],
        vec![base[0].clone(), category("c", &["x"])],
        vec![base[0].clone(), category("c", &["xy", ""])],
    ] {
        assert_ne!(of(&changed), of(&base), "{changed:?}");
    }
}
