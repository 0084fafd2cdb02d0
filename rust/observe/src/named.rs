//! Feature values by name, in the form of requests and of the shadow pool's messages.

use scorer_core::schema::Value;
use scorer_engine::NamedValues;
use scorer_proto::v1::{Feature, feature};

/// Features of a request as protobuf messages.
#[derive(Clone, Copy)]
pub struct NamedList<'a>(pub &'a [Feature]);

impl NamedValues for NamedList<'_> {
    fn visit(&self, visit: &mut dyn FnMut(&str, Value<'_>)) {
        self.0.iter().for_each(|feature| visit(&feature.name, value(feature)));
    }
}

/// A feature's value, as a schema encodes it.
#[must_use]
pub fn value(feature: &Feature) -> Value<'_> {
    match &feature.value {
        Some(feature::Value::Number(number)) => Value::Number(*number),
        Some(feature::Value::Category(category)) => Value::Category(category),
        Some(feature::Value::Flag(flag)) => Value::Flag(*flag),
        None => Value::Missing,
    }
}

/// The reverse of [`value`].
pub(crate) fn feature(name: &str, value: Value<'_>) -> Feature {
    let value = match value {
        Value::Number(number) => Some(feature::Value::Number(number)),
        Value::Category(category) => Some(feature::Value::Category(category.to_owned())),
        Value::Flag(flag) => Some(feature::Value::Flag(flag)),
        Value::Missing => None,
    };
    Feature { name: name.to_owned(), value }
}
