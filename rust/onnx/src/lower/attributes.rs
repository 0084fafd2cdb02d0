//! What a node states: attributes, axes and the row that it takes.

use crate::builder::Builder;
use crate::file::Node;
use crate::limits::MAX_RANK;

/// The number of values of a row: all dimensions but the last one must be 1.
pub(super) fn row_of(shape: &[usize]) -> Result<usize, String> {
    let (&last, first) = shape.split_last().ok_or("takes a single number; export the model again")?;
    if first.iter().any(|&dim| dim != 1) || last == 0 {
        return Err(format!(
            "takes the shape {shape:?} for one row, [1, values] is needed; such a model is not supported"
        ));
    }
    Ok(last)
}

/// The axes of a node: an attribute before this version of the operators, and then the input 1.
pub(super) fn axes<'a>(
    builder: &Builder<'a>,
    node: &Node<'a>,
    since: i64,
) -> Result<Option<Vec<i64>>, String> {
    let stated = if builder.version < since {
        node.attributes.get("axes").map(|axes| axes.integers.clone())
    } else {
        match builder.optional(node, 1)? {
            None => None,
            Some(_) => Some(builder.constant_of(node, 1)?.integers()?.to_vec()),
        }
    };
    match stated {
        Some(stated) if stated.len() > MAX_RANK => {
            Err(format!("states {} axes, at most {MAX_RANK}; export the model again", stated.len()))
        }
        stated => Ok(stated),
    }
}

pub(super) fn axis(stated: i64, rank: usize) -> Result<usize, String> {
    let at = if stated < 0 { stated.saturating_add(rank as i64) } else { stated };
    usize::try_from(at)
        .ok()
        .filter(|at| *at < rank)
        .ok_or_else(|| format!("states axis {stated} of {rank} dimensions; export the model again"))
}

pub(super) fn float(node: &Node<'_>, name: &str, default: f32) -> f32 {
    node.attributes.get(name).map_or(default, |attribute| attribute.float)
}

pub(super) fn integer(node: &Node<'_>, name: &str, default: i64) -> i64 {
    node.attributes.get(name).map_or(default, |attribute| attribute.integer)
}

pub(super) fn text<'a>(node: &Node<'a>, name: &str) -> &'a [u8] {
    node.attributes.get(name).map_or(b"", |attribute| attribute.text)
}

pub(super) fn floats<'n>(node: &'n Node<'_>, name: &str) -> &'n [f32] {
    node.attributes.get(name).map_or(&[], |attribute| &attribute.floats)
}
