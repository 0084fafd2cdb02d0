//! Stage `features`: validates a row against the schema of the bundle that answers, and fills its computed features.

use super::evaluate::Workspace;
use super::load::{Filled, Preloaded};
use crate::bundles::Loaded;
use crate::computed::{EntityKeys, Origins};
use crate::engine::Engine;
use crate::rejection::Rejection;

/// Checks a vector that is in schema order already, and copies it to `row`.
///
/// # Errors
/// Fails if the vector was built for another schema, or the schema rejects a value.
pub fn check_dense(
    fingerprint: u64,
    values: &[f32],
    loaded: &Loaded,
    row: &mut Vec<f32>,
) -> Result<(), Rejection> {
    check_fingerprint(fingerprint, loaded)?;
    loaded.bundle.schema().check_dense(values)?;
    row.clear();
    row.extend_from_slice(values);
    Ok(())
}

/// Checks that a vector was built for the bundle's schema. A vector of another schema must never be scored.
///
/// # Errors
/// Returns [`Rejection::Fingerprint`] if it was built for another schema.
pub fn check_fingerprint(got: u64, loaded: &Loaded) -> Result<(), Rejection> {
    let expected = loaded.bundle.schema().fingerprint();
    if got == expected {
        return Ok(());
    }
    Err(Rejection::Fingerprint { got, expected, bundle: loaded.digest_text.to_string() })
}

/// Fills the computed features of the encoded row in `workspace` that the request does not state.
pub(super) fn fill(
    engine: &Engine,
    loaded: &Loaded,
    keys: &dyn EntityKeys,
    preloaded: Option<&Preloaded>,
    workspace: &mut Workspace,
) -> Filled {
    let Some(computed) = &loaded.shape.computed else { return Filled::Done(Origins::default()) };
    let Workspace { row, values, .. } = workspace;
    match preloaded {
        Some(preloaded) => Filled::Done(computed.fill_with(preloaded, keys, row)),
        None => computed.fill(keys, engine.clock.unix_us(), row, values),
    }
}

/// Checks the shape and every value of a batch, and returns the number of values per row.
pub(crate) fn check_rows(loaded: &Loaded, values: &[f32], rows: u32) -> Result<usize, Rejection> {
    let schema = loaded.bundle.schema();
    let width = schema.len();
    if values.len() != width * rows as usize {
        return Err(Rejection::Shape { got: values.len(), rows, features: width });
    }
    for (row, values) in values.chunks_exact(width.max(1)).enumerate() {
        schema.check_dense(values).map_err(|error| Rejection::Row { row, error })?;
    }
    Ok(width)
}
