//! Converts the features and actions that one bundle decoded to those that another bundle reads.

use scorer_core::policy::{ActionCatalogue, Mask};
use scorer_core::schema::{FeatureSpec, FeatureType, Schema};
use scorer_engine::Shape;
use scorer_proto::v1::Feature;

use crate::named::value;

/// A conversion from one shape to one bundle.
pub(crate) struct Mapping {
    /// The source of each value of the row; `None` if the rows of both have the same meaning.
    columns: Option<Box<[Column]>>,
    /// The position of each action in the bundle's catalogue; `None` if the catalogues are equal.
    actions: Option<Box<[Option<usize>]>>,
}

enum Column {
    /// The value at this position.
    Same(usize),
    /// The category at this position, with the new code of each old code.
    Category(usize, Box<[f32]>),
    /// The shape has no such feature. The request may name it.
    Other,
}

/// Whether a bundle reads a feature that rows of this shape do not have.
pub(crate) fn lacks(shape: &Shape, feature: &FeatureSpec) -> bool {
    find(shape, feature).is_none()
}

fn find(shape: &Shape, feature: &FeatureSpec) -> Option<usize> {
    shape.features.iter().position(|known| known.name == feature.name && known.kind == feature.kind)
}

// === impl Mapping ===

impl Mapping {
    pub(crate) fn compile(from: &Shape, schema: &Schema, catalogue: &ActionCatalogue) -> Mapping {
        let column = |feature: &FeatureSpec| match find(from, feature) {
            None => Column::Other,
            Some(at) if feature.kind == FeatureType::Category => {
                let code = |name: &String| {
                    let at = feature.categories.iter().position(|known| known == name);
                    at.map_or(f32::NAN, |code| code as f32)
                };
                Column::Category(at, from.features[at].categories.iter().map(code).collect())
            }
            Some(at) => Column::Same(at),
        };
        let same_rows = from.fingerprint == schema.fingerprint();
        let same_actions =
            from.actions.iter().map(|action| &action.id).eq(catalogue.iter().map(|action| &action.id));
        Mapping {
            columns: (!same_rows).then(|| schema.features().iter().map(column).collect()),
            actions: (!same_actions)
                .then(|| from.actions.iter().map(|action| catalogue.index_of(&action.id)).collect()),
        }
    }

    /// Fills `to`, and lists in `absent` the features that the request does not have. Returns false if the schema
    /// refuses a value or its absence, as it would refuse a request.
    pub(crate) fn row(
        &self,
        row: &[f32],
        others: &[Feature],
        schema: &Schema,
        to: &mut Vec<f32>,
        absent: &mut Vec<u32>,
    ) -> bool {
        to.clear();
        absent.clear();
        let Some(columns) = &self.columns else {
            to.extend_from_slice(row);
            // Values with the same meaning may have other limits in this schema.
            return schema.check_dense(to).is_ok();
        };
        let mut fits = true;
        for (index, column) in columns.iter().enumerate() {
            let at = |at: &usize| row.get(*at).copied().unwrap_or(f32::NAN);
            let value = match column {
                Column::Same(place) => at(place),
                Column::Category(place, codes) => {
                    let code = at(place);
                    // The cast turns NaN into 0, so NaN is checked first.
                    if code.is_nan() { code } else { codes.get(code as usize).copied().unwrap_or(f32::NAN) }
                }
                Column::Other => {
                    let name = &schema.features()[index].name;
                    match others.iter().find(|other| other.name == *name) {
                        Some(other) => schema.encode_value(index, value(other)).unwrap_or_else(|_| {
                            fits = false;
                            f32::NAN
                        }),
                        None => {
                            absent.push(index as u32);
                            f32::NAN
                        }
                    }
                }
            };
            to.push(value);
        }
        fits && schema.check_dense(to).is_ok()
    }

    /// Fills the eligible actions from one bit per action of the shape. Without `words` all actions are eligible.
    pub(crate) fn mask(&self, words: Option<&[u64]>, to: &mut Mask) {
        let Some(words) = words else { return to.fill() };
        to.clear();
        for (at, &word) in words.iter().enumerate() {
            let mut rest = word;
            while rest != 0 {
                let action = at * 64 + rest.trailing_zeros() as usize;
                rest &= rest - 1;
                let place = match &self.actions {
                    None => Some(action),
                    Some(places) => places.get(action).copied().flatten(),
                };
                place.map(|place| to.insert(place));
            }
        }
    }
}
