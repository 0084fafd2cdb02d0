//! Operators that select and join elements.

use super::Written;
use super::attributes::{axis, integer};
use super::constants::integers;
use crate::builder::{Builder, Tensor};
use crate::constant::volume;
use crate::file::Node;
use crate::limits::MAX_RANK;
use crate::plan::Work;

pub(super) fn concat<'a>(builder: &mut Builder<'a>, node: &Node<'a>) -> Result<Tensor, String> {
    let parts = (0..node.inputs.len()).map(|at| builder.input(node, at)).collect::<Result<Vec<_>, _>>()?;
    let Some(first) = parts.first() else { return Err("has no inputs; export the model again".to_owned()) };
    let rank = first.shape().len();
    let at = if node.operator == "Concat" { axis(integer(node, "axis", 1), rank)? } else { axis(-1, rank)? };
    let mut shape = first.shape().to_vec();
    shape[at] = 0;
    for part in &parts {
        let other = part.shape();
        if other.len() != rank || (0..rank).any(|one| one != at && other[one] != shape[one]) {
            return Err(format!("joins {:?} and {other:?}; export the model again", first.shape()));
        }
        shape[at] = shape[at].saturating_add(other[at]);
    }
    // Lists of integers are shapes.
    if rank == 1
        && let Tensor::Constant(one) = first
        && one.integers().is_ok()
        && shape[0] <= MAX_RANK
    {
        let mut all = Vec::with_capacity(shape[0]);
        for at in 0..parts.len() {
            all.extend_from_slice(builder.constant_of(node, at)?.integers()?);
        }
        return Ok(integers(all));
    }
    if shape[..at].iter().any(|&dim| dim != 1) {
        return Err(format!(
            "joins values of {:?} within a dimension; such a model is not supported",
            first.shape()
        ));
    }
    let len = volume(&shape).unwrap_or(usize::MAX);
    builder.reserve(len, len)?;
    let mut positions = Vec::with_capacity(len);
    for part in 0..parts.len() {
        let (from, shape) = builder.values_of(node, part)?;
        positions.extend((from..from + volume(&shape).unwrap_or(0)).map(|at| at as u32));
    }
    builder.add(Work::Pick { positions: positions.into() }, shape)
}

/// Selects elements of one dimension of a value.
fn pick(
    builder: &mut Builder<'_>,
    (from, mut shape): (usize, Vec<usize>),
    at: usize,
    chosen: &[usize],
) -> Result<(usize, Vec<usize>), String> {
    let dim = shape[at];
    if chosen.is_empty() {
        return Err("selects no elements; export the model again".to_owned());
    }
    if let Some(beyond) = chosen.iter().find(|chosen| **chosen >= dim) {
        return Err(format!("selects element {beyond} of {dim}; build both from the same columns"));
    }
    let outer: usize = shape[..at].iter().product();
    let inner: usize = shape[at + 1..].iter().product();
    shape[at] = chosen.len();
    let len = outer.saturating_mul(inner).saturating_mul(chosen.len());
    builder.reserve(len, len)?;
    let mut positions = Vec::with_capacity(len);
    for outer in 0..outer {
        for chosen in chosen {
            let first = from + (outer * dim + chosen) * inner;
            positions.extend((first..first + inner).map(|at| at as u32));
        }
    }
    match builder.add(Work::Pick { positions: positions.into() }, shape)? {
        Tensor::Values { from, shape } => Ok((from, shape)),
        Tensor::Constant(_) => Err("gives a constant; export the model again".to_owned()),
    }
}

pub(super) fn gather<'a>(builder: &mut Builder<'a>, node: &Node<'a>) -> Result<Tensor, String> {
    let indices = builder.constant_of(node, 1)?;
    let data = builder.input(node, 0)?;
    let rank = data.shape().len();
    let extractor = node.operator == "ArrayFeatureExtractor";
    let at = axis(if extractor { -1 } else { integer(node, "axis", 0) }, rank)?;
    let dim = data.shape()[at];
    let chosen = indices
        .integers()?
        .iter()
        .map(|&index| {
            let index = if index < 0 { index.saturating_add(dim as i64) } else { index };
            usize::try_from(index)
                .map_err(|_| format!("selects element {index} of {dim}; export the model again"))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let flat = extractor || indices.shape.len() == 1;
    if !flat && !indices.shape.is_empty() {
        return Err("selects by a matrix; such a model is not supported".to_owned());
    }
    let (from, mut shape) = match data {
        Tensor::Constant(constant) => {
            let values = constant.integers()?;
            if rank != 1 || chosen.len() > MAX_RANK {
                return Err("selects from a constant; export the model with constant folding".to_owned());
            }
            let chosen = chosen.iter().map(|&at| values.get(at).copied()).collect::<Option<Vec<_>>>();
            let chosen =
                chosen.ok_or_else(|| format!("selects beyond {dim} elements; export the model again"))?;
            let tensor = integers(chosen);
            return Ok(if flat { tensor } else { tensor.with_shape(Vec::new()) });
        }
        Tensor::Values { from, shape } => pick(builder, (from, shape), at, &chosen)?,
    };
    if !flat {
        shape.remove(at);
    }
    Ok(Tensor::Values { from, shape })
}

pub(super) fn slice<'a>(builder: &mut Builder<'a>, node: &Node<'a>) -> Result<Tensor, String> {
    let stated = |builder: &Builder<'a>, at: usize, name: &str| -> Result<Option<Vec<i64>>, String> {
        if builder.version < 10 {
            return Ok(node.attributes.get(name).map(|attribute| attribute.integers.clone()));
        }
        match builder.optional(node, at)? {
            None => Ok(None),
            Some(_) => Ok(Some(builder.constant_of(node, at)?.integers()?.to_vec())),
        }
    };
    let needed = || "has no starts or ends; export the model again".to_owned();
    let starts = stated(builder, 1, "starts")?.ok_or_else(needed)?;
    let ends = stated(builder, 2, "ends")?.ok_or_else(needed)?;
    let axes = stated(builder, 3, "axes")?.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = stated(builder, 4, "steps")?.unwrap_or_else(|| vec![1; starts.len()]);
    let mut value = builder.values_of(node, 0)?;
    if starts.len() > MAX_RANK || [ends.len(), axes.len(), steps.len()].iter().any(|len| *len != starts.len())
    {
        return Err(
            "has starts, ends, axes and steps of different lengths; export the model again".to_owned()
        );
    }
    for (((start, end), at), step) in starts.into_iter().zip(ends).zip(axes).zip(steps) {
        let at = axis(at, value.1.len())?;
        let dim = value.1[at] as i64;
        let step = usize::try_from(step).ok().filter(|step| *step > 0);
        let step = step.ok_or("has a step below 1; export the model again")?;
        let place =
            |index: i64| (if index < 0 { index.saturating_add(dim) } else { index }).clamp(0, dim) as usize;
        let chosen: Vec<usize> = (place(start)..place(end)).step_by(step).collect();
        if chosen.len() != value.1[at] {
            value = pick(builder, value, at, &chosen)?;
        }
    }
    Ok(Tensor::Values { from: value.0, shape: value.1 })
}

pub(super) fn split<'a>(builder: &mut Builder<'a>, node: &Node<'a>) -> Result<Written, String> {
    let value = builder.values_of(node, 0)?;
    let at = axis(integer(node, "axis", 0), value.1.len())?;
    let dim = value.1[at];
    let stated = if builder.version < 13 {
        node.attributes.get("split").map(|split| split.integers.clone())
    } else {
        match builder.optional(node, 1)? {
            None => None,
            Some(_) => Some(builder.constant_of(node, 1)?.integers()?.to_vec()),
        }
    };
    let count = node.outputs.len().max(1);
    let sizes: Vec<usize> = match stated {
        Some(stated) => stated.iter().map(|&size| usize::try_from(size).unwrap_or(usize::MAX)).collect(),
        None => {
            let size = dim.div_ceil(count);
            (0..count).map(|number| size.min(dim.saturating_sub(number * size))).collect()
        }
    };
    if sizes.len() != count || sizes.iter().try_fold(0usize, |all, &size| all.checked_add(size)) != Some(dim)
    {
        return Err(format!("splits {dim} elements into {sizes:.8?}; export the model again"));
    }
    let mut start = 0;
    let mut written = Vec::with_capacity(count);
    for size in sizes {
        let chosen: Vec<usize> = (start..start + size).collect();
        let (from, shape) = pick(builder, value.clone(), at, &chosen)?;
        written.push(Some(Tensor::Values { from, shape }));
        start += size;
    }
    Ok(written)
}
