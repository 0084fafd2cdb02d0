//! Filters of observe lanes: conditions on the features of the answering bundle, all of which must hold.

use scorer_core::schema::{FeatureType, Schema};
use scorer_engine::{Condition, Op};
use serde_json::Value;

/// Greatest number of conditions of one filter.
const MAX_CONDITIONS: usize = 32;
/// Greatest number of values of one `in`.
const MAX_VALUES: usize = 1024;

/// A filter compiled for one schema. It compares the float32 values of rows.
#[derive(Clone, Debug)]
pub(crate) struct Filter(Box<[Test]>);

#[derive(Clone, Debug)]
pub(crate) struct Test {
    /// Position of the feature in the row; `None` if the schema does not have it, so that it counts as missing.
    feature: Option<usize>,
    op: Op,
    values: Box<[f32]>,
}

/// Checks the rules that do not depend on a schema.
pub(crate) fn check(conditions: &[Condition]) -> Result<(), String> {
    if conditions.len() > MAX_CONDITIONS {
        return Err(format!(
            "the filter has {} conditions, at most {MAX_CONDITIONS} are allowed",
            conditions.len()
        ));
    }
    conditions.iter().try_for_each(Condition::check)
}

/// The operations of a filter on a condition, which itself is plain data of the lane table.
pub(crate) trait Rules {
    /// Checks the rules that do not depend on a schema.
    fn check(&self) -> Result<(), String>;

    fn values(&self) -> &[Value];

    /// Checks that the schema has the condition's feature and values.
    fn check_against(&self, schema: &Schema) -> Result<(), String>;

    /// Compiles the condition. A feature that the schema does not have counts as missing; a category that it does not
    /// have equals no value.
    fn compile(&self, schema: &Schema) -> Test;
}

impl Rules for Condition {
    fn check(&self) -> Result<(), String> {
        let scalar = |value: &Value| value.is_number() || value.is_string() || value.is_boolean();
        let wants = match (self.op, &self.value) {
            (Op::Missing | Op::Present, None) => return Ok(()),
            (Op::Missing | Op::Present, Some(_)) => "takes no value; leave \"value\" out",
            (Op::Equal | Op::Differs, Some(value)) if scalar(value) => return Ok(()),
            (Op::Equal | Op::Differs, _) => "takes a number, a category's name, true or false",
            (Op::Below | Op::AtMost | Op::Above | Op::AtLeast, Some(Value::Number(_))) => return Ok(()),
            (Op::Below | Op::AtMost | Op::Above | Op::AtLeast, _) => "takes a number",
            (Op::In, Some(Value::Array(values)))
                if (1..=MAX_VALUES).contains(&values.len()) && values.iter().all(scalar) =>
            {
                return Ok(());
            }
            (Op::In, _) => "takes a list of 1 to 1024 numbers, category names or flags",
        };
        Err(format!("the filter's condition on {:?}: {:?} {wants}", self.feature, as_str(self.op)))
    }

    fn values(&self) -> &[Value] {
        match &self.value {
            None => &[],
            Some(Value::Array(values)) => values,
            Some(value) => std::slice::from_ref(value),
        }
    }

    fn check_against(&self, schema: &Schema) -> Result<(), String> {
        let Some(index) = schema.index_of(&self.feature) else {
            return Err(format!(
                "the filter's feature {:?} is not one that the answering bundle reads; \
                                correct the name or drop the condition",
                self.feature
            ));
        };
        let feature = &schema.features()[index];
        let orders = matches!(self.op, Op::Below | Op::AtMost | Op::Above | Op::AtLeast);
        if orders && feature.kind != FeatureType::Number {
            let kind = feature.kind.name();
            return Err(format!(
                "the filter's feature {:?} is a {kind} and has no order; use ==, != or in",
                self.feature
            ));
        }
        for value in self.values() {
            match (feature.kind, value) {
                (FeatureType::Number, Value::Number(_)) | (FeatureType::Flag, Value::Bool(_)) => {}
                (FeatureType::Category, Value::String(name)) if schema.code_of(index, name).is_some() => {}
                (FeatureType::Category, Value::String(name)) => {
                    return Err(format!(
                        "the filter's feature {:?} has no category {name:?} among its {}; correct it",
                        self.feature,
                        feature.categories.len()
                    ));
                }
                (kind, value) => {
                    return Err(format!(
                        "the filter's feature {:?} is a {}, and {value} is none; correct the value",
                        self.feature,
                        kind.name()
                    ));
                }
            }
        }
        Ok(())
    }

    fn compile(&self, schema: &Schema) -> Test {
        let mut feature = schema.index_of(&self.feature);
        let mut values = Vec::new();
        for value in self.values() {
            let Some(index) = feature else { break };
            match (schema.features()[index].kind, value) {
                // Features are rounded to float32, so the value is rounded too.
                (FeatureType::Number, Value::Number(number)) => {
                    values.extend(number.as_f64().map(|number| number as f32));
                }
                (FeatureType::Category, Value::String(name)) => {
                    values.extend(schema.code_of(index, name).map(|code| code as f32));
                }
                (FeatureType::Flag, Value::Bool(flag)) => values.push(f32::from(u8::from(*flag))),
                _ => feature = None,
            }
        }
        Test { feature, op: self.op, values: values.into() }
    }
}

// === impl Filter ===

impl Filter {
    pub(crate) fn compile(conditions: &[Condition], schema: &Schema) -> Filter {
        Filter(conditions.iter().map(|condition| condition.compile(schema)).collect())
    }

    /// Whether a row of the schema passes the filter.
    pub(crate) fn holds(&self, row: &[f32]) -> bool {
        self.0.iter().all(|test| test.holds(row))
    }
}

// === impl Test ===

impl Test {
    fn holds(&self, row: &[f32]) -> bool {
        let value = self.feature.and_then(|at| row.get(at)).copied().unwrap_or(f32::NAN);
        let first = self.values.first().copied().unwrap_or(f32::NAN);
        match self.op {
            Op::Missing => value.is_nan(),
            Op::Present => !value.is_nan(),
            // Every comparison with NaN, a missing value, is false.
            Op::Equal | Op::In => self.values.contains(&value),
            Op::Differs => !value.is_nan() && !self.values.contains(&value),
            Op::Below => value < first,
            Op::AtMost => value <= first,
            Op::Above => value > first,
            Op::AtLeast => value >= first,
        }
    }
}

fn as_str(op: Op) -> &'static str {
    match op {
        Op::Equal => "==",
        Op::Differs => "!=",
        Op::Below => "<",
        Op::AtMost => "<=",
        Op::Above => ">",
        Op::AtLeast => ">=",
        Op::In => "in",
        Op::Missing => "missing",
        Op::Present => "present",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use scorer_core::schema::Value as Given;
    use serde_json::json;

    use super::*;

    fn schema() -> Schema {
        let features = json!([
            {"name": "amount", "type": "number"},
            {"name": "country", "type": "category", "categories": ["NL", "DE", "FR"]},
            {"name": "night", "type": "flag"},
        ]);
        Schema::new(serde_json::from_value(features).unwrap()).unwrap()
    }

    /// A request's values before they are encoded in a row.
    #[derive(Clone, Debug)]
    struct Request {
        amount: Option<f64>,
        country: Option<&'static str>,
        night: Option<bool>,
    }

    /// Evaluates a condition on the request's values in their own types.
    fn naive(request: &Request, condition: &Condition) -> bool {
        let value: Option<Value> = match condition.feature.as_str() {
            // Rounded to the precision of a feature.
            "amount" => request.amount.map(|amount| json!(f64::from(amount as f32))),
            "country" => request.country.map(|country| json!(country)),
            "night" => request.night.map(|night| json!(night)),
            _ => None,
        };
        let rounded = |value: &Value| match value.as_f64() {
            Some(number) => json!(f64::from(number as f32)),
            None => value.clone(),
        };
        match (condition.op, value, &condition.value) {
            (Op::Missing, value, _) => value.is_none(),
            (Op::Present, value, _) => value.is_some(),
            (_, None, _) | (_, _, None) => false,
            (Op::In, Some(value), Some(Value::Array(of))) => of.iter().any(|member| rounded(member) == value),
            (Op::Equal, Some(value), Some(with)) => value == rounded(with),
            (Op::Differs, Some(value), Some(with)) => value != rounded(with),
            (op, Some(value), Some(with)) => {
                let order = value.as_f64().unwrap().partial_cmp(&rounded(with).as_f64().unwrap()).unwrap();
                match op {
                    Op::Below => order.is_lt(),
                    Op::AtMost => order.is_le(),
                    Op::Above => order.is_gt(),
                    Op::AtLeast => order.is_ge(),
                    _ => unreachable!("handled above"),
                }
            }
        }
    }

    fn amount() -> impl Strategy<Value = f64> {
        // Few values, so that equal values and limits occur. 0.1 changes when it is rounded to float32.
        prop::sample::select(vec![-1.0, -0.0, 0.0, 0.1, 0.1_f32.into(), 1.0, 16_777_217.0, 1e30])
    }

    fn condition() -> impl Strategy<Value = Condition> {
        let country = || prop::sample::select(vec!["NL", "DE", "FR"]).prop_map(|value| json!(value));
        let number = || amount().prop_map(|value| json!(value));
        let flag = || any::<bool>().prop_map(|value| json!(value));
        let of = |feature: &'static str, value: BoxedStrategy<Value>, ordered: bool| {
            let mut ops = vec![Op::Equal, Op::Differs, Op::In, Op::Missing, Op::Present];
            if ordered {
                ops.extend([Op::Below, Op::AtMost, Op::Above, Op::AtLeast]);
            }
            (prop::sample::select(ops), prop::collection::vec(value, 1..4)).prop_map(move |(op, values)| {
                let value = match op {
                    Op::Missing | Op::Present => None,
                    Op::In => Some(Value::Array(values)),
                    _ => values.into_iter().next(),
                };
                Condition { feature: feature.to_owned(), op, value }
            })
        };
        prop_oneof![
            of("amount", number().boxed(), true),
            of("country", country().boxed(), false),
            of("night", flag().boxed(), false),
        ]
    }

    fn request() -> impl Strategy<Value = Request> {
        let country = prop::sample::select(vec!["NL", "DE", "FR"]);
        (prop::option::of(amount()), prop::option::of(country), prop::option::of(any::<bool>()))
            .prop_map(|(amount, country, night)| Request { amount, country, night })
    }

    proptest! {
        #[test]
        fn a_filter_says_what_its_conditions_say_one_by_one(
            request in request(),
            conditions in prop::collection::vec(condition(), 0..4),
        ) {
            let schema = schema();
            check(&conditions).unwrap();
            for condition in &conditions {
                condition.check_against(&schema).unwrap();
                let text = serde_json::to_string(condition).unwrap();
                prop_assert_eq!(&serde_json::from_str::<Condition>(&text).unwrap(), condition);
            }
            let named = [
                ("amount", request.amount.map(Given::Number)),
                ("country", request.country.map(Given::Category)),
                ("night", request.night.map(Given::Flag)),
            ];
            let mut row = [0.0; 3];
            let given = named.into_iter().filter_map(|(name, value)| Some((name, value?)));
            schema.encode_named(given, &mut row).unwrap();
            let expected = conditions.iter().all(|condition| naive(&request, condition));
            prop_assert_eq!(Filter::compile(&conditions, &schema).holds(&row), expected);
        }
    }

    #[test]
    fn what_a_schema_does_not_know_is_missing_or_equals_nothing() {
        let schema = schema();
        let holds = |feature: &str, op: Op, value: Value| {
            let value = (!value.is_null()).then_some(value);
            let condition = Condition { feature: feature.to_owned(), op, value };
            assert!(value_is_refused(&schema, &condition));
            Filter::compile(&[condition], &schema).holds(&[1.0, 0.0, 1.0])
        };
        assert!(holds("nobody", Op::Missing, Value::Null));
        assert!(!holds("nobody", Op::Present, Value::Null));
        assert!(!holds("nobody", Op::Differs, json!(1)));
        assert!(!holds("country", Op::Equal, json!("BE")) && holds("country", Op::Differs, json!("BE")));
        // A value of another type equals no value of the feature.
        assert!(!holds("country", Op::Equal, json!(0)) && !holds("country", Op::Differs, json!(0)));
    }

    fn value_is_refused(schema: &Schema, condition: &Condition) -> bool {
        condition.check_against(schema).is_err()
    }
}
