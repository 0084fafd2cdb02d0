//! From the features and actions that one bundle decoded to those that another one reads.

use scorer_core::policy::{ActionCatalogue, Mask};
use scorer_core::schema::{FeatureSpec, FeatureType, Schema};
use scorer_engine::Shape;
use scorer_proto::v1::Feature;

use crate::named::value;

/// From one shape to one bundle.
pub(crate) struct Mapping {
    /// Where each value of the row comes from; `None`: rows mean the same.
    columns: Option<Box<[Column]>>,
    /// The place of each action in the bundle's catalogue; `None`: catalogues are the same.
    actions: Option<Box<[Option<usize>]>>,
}

enum Column {
    /// The value at this place.
    Same(usize),
    /// The category at this place, by its code.
    Category(usize, Box<[f32]>),
    /// The shape has no such feature: the request may name it.
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

    /// Fills `to`, and notes in `absent` which of its features the request does not have. False where the schema refuses a value,
    /// or its absence, as it would refuse the request.
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
            // The same meaning may come with other limits.
            return schema.check_dense(to).is_ok();
        };
        let mut fits = true;
        for (index, column) in columns.iter().enumerate() {
            let at = |at: &usize| row.get(*at).copied().unwrap_or(f32::NAN);
            let value = match column {
                Column::Same(place) => at(place),
                Column::Category(place, codes) => {
                    let code = at(place);
                    // NaN becomes 0 in the cast, so it is checked first.
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

    /// The eligible actions, from a bit for each action of the shape; all where the request excluded none.
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
