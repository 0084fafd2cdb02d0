//! Stage 4: the request's feature values, wherever they come from, and their way into a row.

use scorer_core::schema::{Schema, Value};
use scorer_proto::v1::{DenseFeatures, NamedFeatures, feature};

use crate::bundles::Loaded;
use crate::lanes::LaneInForce;
use crate::observe::Watched;
use crate::refusal::Refusal;
use crate::replay::Content;

/// Feature values before a schema is known: that depends on the lane, which is drawn next.
pub(crate) enum Features<'a> {
    /// By name.
    Named(&'a NamedFeatures),
    /// In schema order.
    Dense(&'a DenseFeatures),
}

/// Where feature values come from. The time that this takes is reported as `data_load_us`.
pub(crate) trait FeatureSource: Send + Sync {
    /// Completes what the request brings.
    fn fetch<'a>(&self, entity: &str, given: Option<Features<'a>>) -> Result<Features<'a>, Refusal>;
}

/// Everything is in the request itself.
pub(crate) struct FromRequest;

impl FeatureSource for FromRequest {
    fn fetch<'a>(&self, _entity: &str, given: Option<Features<'a>>) -> Result<Features<'a>, Refusal> {
        given.ok_or(Refusal::NoFeatures)
    }
}

/// Fills `row` for the bundle that answers.
pub(crate) fn encode(features: &Features<'_>, lane: &LaneInForce, row: &mut Vec<f32>) -> Result<(), Refusal> {
    let loaded = &*lane.loaded;
    let schema = loaded.bundle.schema();
    match features {
        Features::Named(named) => {
            row.resize(schema.len(), 0.0);
            encode_named(named, schema, lane.watched.as_deref(), row)
        }
        Features::Dense(dense) => {
            check_fingerprint(dense.schema_fingerprint, loaded)?;
            schema.check_dense(&dense.values)?;
            row.clear();
            row.extend_from_slice(&dense.values);
            Ok(())
        }
    }
}

/// What a request names, if it names anything.
pub(crate) fn named(given: Option<Features<'_>>) -> Option<&NamedFeatures> {
    match given {
        Some(Features::Named(named)) => Some(named),
        Some(Features::Dense(_)) | None => None,
    }
}

/// A vector made for another schema must never be scored.
pub(crate) fn check_fingerprint(got: u64, loaded: &Loaded) -> Result<(), Refusal> {
    let expected = loaded.bundle.schema().fingerprint();
    if got == expected {
        return Ok(());
    }
    Err(Refusal::Fingerprint { got, expected, bundle: loaded.digest_text.to_string() })
}

/// A name that only observe lanes know is left to them.
fn encode_named(
    named: &NamedFeatures,
    schema: &Schema,
    watched: Option<&Watched>,
    row: &mut [f32],
) -> Result<(), Refusal> {
    let read = |name: &str| watched.is_none_or(|watched| !watched.reads(name));
    let values = named.features.iter().filter(|feature| read(&feature.name)).map(|feature| {
        let value = match &feature.value {
            Some(feature::Value::Number(number)) => Value::Number(*number),
            Some(feature::Value::Category(category)) => Value::Category(category),
            Some(feature::Value::Flag(flag)) => Value::Flag(*flag),
            None => Value::Missing,
        };
        (feature.name.as_str(), value)
    });
    Ok(schema.encode_named(values, row)?)
}

/// Adds the values to the hash of a request's content; named ones in any order.
pub(crate) fn content(hasher: &mut Content, given: Option<&Features<'_>>) {
    match given {
        None => hasher.number(0),
        Some(Features::Named(named)) => {
            hasher.number(1);
            hasher.set(named.features.iter(), |hasher, feature| {
                hasher.bytes(feature.name.as_bytes());
                match &feature.value {
                    None => hasher.number(0),
                    Some(feature::Value::Number(number)) => {
                        hasher.number(1);
                        hasher.number(number.to_bits());
                    }
                    Some(feature::Value::Category(category)) => {
                        hasher.number(2);
                        hasher.bytes(category.as_bytes());
                    }
                    Some(feature::Value::Flag(flag)) => hasher.number(3 + u64::from(*flag)),
                }
            });
        }
        Some(Features::Dense(dense)) => {
            hasher.number(2);
            hasher.number(dense.schema_fingerprint);
            hasher.number(dense.values.len() as u64);
            dense.values.iter().for_each(|value| hasher.number(u64::from(value.to_bits())));
        }
    }
}
