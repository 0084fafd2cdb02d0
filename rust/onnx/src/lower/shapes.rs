//! Operators that change the shape alone.

use super::attributes::{axes, axis, integer};
use crate::builder::{Builder, Tensor};
use crate::constant::{Data, volume};
use crate::file::Node;
use crate::limits::MAX_RANK;

/// Operators that change the shape alone.
pub(super) fn reshape<'a>(builder: &mut Builder<'a>, node: &Node<'a>) -> Result<Tensor, String> {
    let tensor = builder.input(node, 0)?;
    let old = tensor.shape().to_vec();
    let rank = old.len();
    let shape = match node.operator {
        "Flatten" => {
            let at = axis(integer(node, "axis", 1), rank + 1)?;
            vec![old[..at].iter().product(), old[at..].iter().product()]
        }
        "Reshape" => {
            let target = builder.constant_of(node, 1)?;
            stated_shape(&old, target.integers()?, integer(node, "allowzero", 0) != 0)?
        }
        "Squeeze" | "Unsqueeze" => {
            let squeeze = node.operator == "Squeeze";
            let stated = axes(builder, node, 13)?;
            if squeeze {
                let removed = match stated {
                    None => (0..rank).filter(|&at| old[at] == 1).collect(),
                    Some(stated) => stated.iter().map(|&at| axis(at, rank)).collect::<Result<Vec<_>, _>>()?,
                };
                if removed.iter().any(|&at| old[at] != 1) {
                    return Err(format!(
                        "removes a dimension of {old:?} that is not 1; export the model again"
                    ));
                }
                (0..rank).filter(|at| !removed.contains(at)).map(|at| old[at]).collect()
            } else {
                let stated = stated.ok_or("has no axes; export the model again")?;
                if rank + stated.len() > MAX_RANK {
                    return Err(format!("makes more than {MAX_RANK} dimensions; export the model again"));
                }
                let all = rank + stated.len();
                let added = stated.iter().map(|&at| axis(at, all)).collect::<Result<Vec<_>, _>>()?;
                let mut rest = old.iter().copied();
                let shape: Vec<usize> = (0..all)
                    .map(|at| if added.contains(&at) { 1 } else { rest.next().unwrap_or(1) })
                    .collect();
                if rest.next().is_some() {
                    return Err("states an axis twice; export the model again".to_owned());
                }
                shape
            }
        }
        _ => return transpose(builder, node, tensor),
    };
    if volume(&shape) != volume(&old) || shape.len() > MAX_RANK {
        return Err(format!(
            "changes the shape {old:?} to {shape:?}; export the model with a dynamic number of rows"
        ));
    }
    Ok(tensor.with_shape(shape))
}

/// The shape that the constant of a `Reshape` states: 0 keeps a dimension, and -1 is the rest.
fn stated_shape(old: &[usize], target: &[i64], zero: bool) -> Result<Vec<usize>, String> {
    let wrong =
        || format!("changes the shape {old:?} to {target:?}; export the model with a dynamic number of rows");
    if target.len() > MAX_RANK {
        return Err(wrong());
    }
    let mut shape = Vec::with_capacity(target.len());
    for (at, &dim) in target.iter().enumerate() {
        shape.push(match dim {
            0 if !zero => *old.get(at).ok_or_else(wrong)?,
            -1 => 1,
            _ => usize::try_from(dim).map_err(|_| wrong())?,
        });
    }
    match target.iter().filter(|dim| **dim == -1).count() {
        0 => Ok(shape),
        1 => {
            let (all, known) = (volume(old), volume(&shape).filter(|known| *known > 0));
            let (Some(all), Some(known)) = (all, known) else { return Err(wrong()) };
            for (dim, stated) in shape.iter_mut().zip(target) {
                if *stated == -1 {
                    *dim = all / known;
                }
            }
            Ok(shape)
        }
        _ => Err(wrong()),
    }
}

fn transpose(builder: &mut Builder<'_>, node: &Node<'_>, tensor: Tensor) -> Result<Tensor, String> {
    let old = tensor.shape().to_vec();
    let stated = node.attributes.get("perm").map(|perm| perm.integers.as_slice());
    let order: Vec<usize> = match stated {
        None => (0..old.len()).rev().collect(),
        Some(stated) => stated.iter().map(|&at| axis(at, old.len())).collect::<Result<_, _>>()?,
    };
    let mut sorted = order.clone();
    sorted.sort_unstable();
    if sorted != (0..old.len()).collect::<Vec<_>>() {
        return Err("states another order than one of all dimensions; export the model again".to_owned());
    }
    let shape: Vec<usize> = order.iter().map(|&at| old[at]).collect();
    // Dimensions of 1 may be anywhere.
    if order.iter().filter(|&&at| old[at] != 1).is_sorted() {
        return Ok(tensor.with_shape(shape));
    }
    match (&tensor, &old[..]) {
        (Tensor::Constant(constant), &[rows, columns]) => {
            let floats = constant.floats()?;
            let data = (0..rows * columns).map(|at| floats[at % rows * columns + at / rows]).collect();
            builder.folded(shape, Data::Floats(data))
        }
        _ => Err(format!("changes the order of {old:?}; such a model is not supported")),
    }
}
