//! Hashes the content of a row in the same way for all protocols, so that a retry by another protocol is recognised.

use scorer_core::schema::Value;
use scorer_engine::Content;

/// No features.
pub(crate) const ABSENT: u64 = 0;
/// Features by name follow.
pub(crate) const NAMED: u64 = 1;
/// Values in schema order follow.
const DENSE: u64 = 2;

/// Adds a row in schema order.
pub(crate) fn hash_dense(values: &[f32], content: &mut Content) {
    content.number(DENSE);
    content.number(values.len() as u64);
    values.iter().for_each(|value| content.number(u64::from(value.to_bits())));
}

/// Adds the value of a feature.
pub(crate) fn hash_value(value: Value<'_>, content: &mut Content) {
    match value {
        Value::Missing => content.number(0),
        Value::Number(number) => {
            content.number(1);
            content.number(number.to_bits());
        }
        Value::Category(category) => {
            content.number(2);
            content.bytes(category.as_bytes());
        }
        Value::Flag(flag) => content.number(3 + u64::from(flag)),
    }
}
