//! Operators that work on all values of a row together.

use super::attributes::{axes, axis, float, integer, row_of};
use crate::builder::{Builder, Tensor};
use crate::constant::volume;
use crate::file::Node;
use crate::math::Binary;
use crate::plan::{Reduction, Work};

pub(super) fn softmax<'a>(builder: &mut Builder<'a>, node: &Node<'a>) -> Result<Tensor, String> {
    let (from, shape) = builder.values_of(node, 0)?;
    let default = if builder.version < 13 { 1 } else { -1 };
    let at = axis(integer(node, "axis", default), shape.len())?;
    let along: usize = if builder.version < 13 { shape[at..].iter().product() } else { shape[at] };
    whole(&shape, along)?;
    builder.add(Work::Softmax { from, log: node.operator == "LogSoftmax" }, shape)
}

pub(super) fn reduce<'a>(builder: &mut Builder<'a>, node: &Node<'a>) -> Result<Tensor, String> {
    let (from, shape) = builder.values_of(node, 0)?;
    let rank = shape.len();
    let since = if node.operator == "ReduceSum" { 13 } else { 18 };
    let stated = axes(builder, node, since)?.filter(|axes| !axes.is_empty());
    let reduced: Vec<usize> = match stated {
        None if integer(node, "noop_with_empty_axes", 0) != 0 => return Ok(Tensor::Values { from, shape }),
        None => (0..rank).collect(),
        Some(stated) => stated.iter().map(|&at| axis(at, rank)).collect::<Result<_, _>>()?,
    };
    let along = (0..rank).filter(|at| reduced.contains(at)).map(|at| shape[at]).product();
    let count = whole(&shape, along)?;
    let keep = integer(node, "keepdims", 1) != 0;
    let shape = (0..rank).filter(|at| keep || !reduced.contains(at)).map(|_| 1).collect();
    let function = match node.operator {
        "ReduceSum" => Reduction::Sum,
        "ReduceMean" => Reduction::Mean,
        "ReduceMax" => Reduction::Max,
        _ => Reduction::Min,
    };
    builder.add(Work::Reduce { function, from, count }, shape)
}

/// Scales and moves each value by statistics of the training data.
pub(super) fn batch_normalization<'a>(builder: &mut Builder<'a>, node: &Node<'a>) -> Result<Tensor, String> {
    let value = builder.values_of(node, 0)?;
    let width = row_of(&value.1)?;
    if value.1.len() != 2 || integer(node, "training_mode", 0) != 0 {
        return Err("takes another shape than [rows, columns], or is in training mode; export the model for inference".to_owned());
    }
    let constants = (1..=4).map(|at| builder.constant_of(node, at)).collect::<Result<Vec<_>, _>>()?;
    let lists = constants.iter().map(|one| one.floats()).collect::<Result<Vec<_>, _>>()?;
    let [scale, bias, mean, variance] = lists[..] else {
        return Err("has not 5 inputs; export the model again".to_owned());
    };
    if lists.iter().any(|list| list.len() != width) {
        return Err(format!(
            "has statistics of another length than its {width} values; export the model again"
        ));
    }
    let epsilon = f64::from(float(node, "epsilon", 1e-5));
    let factors: Vec<f64> = scale
        .iter()
        .zip(variance)
        .map(|(&scale, &variance)| f64::from(scale) / (f64::from(variance) + epsilon).sqrt())
        .collect();
    let offsets: Vec<f32> = bias
        .iter()
        .zip(mean)
        .zip(&factors)
        .map(|((&bias, &mean), factor)| (f64::from(bias) - f64::from(mean) * factor) as f32)
        .collect();
    let factors: Vec<f32> = factors.iter().map(|&factor| factor as f32).collect();
    let value = builder.with_constants(Binary::Mul, value, &factors)?;
    let (from, shape) = builder.with_constants(Binary::Add, value, &offsets)?;
    Ok(Tensor::Values { from, shape })
}

pub(super) fn layer_normalization<'a>(builder: &mut Builder<'a>, node: &Node<'a>) -> Result<Tensor, String> {
    let (from, shape) = builder.values_of(node, 0)?;
    let at = axis(integer(node, "axis", -1), shape.len())?;
    whole(&shape, shape[at..].iter().product())?;
    let epsilon = float(node, "epsilon", 1e-5);
    let Tensor::Values { from, shape } = builder.add(Work::LayerNorm { from, epsilon }, shape)? else {
        return Err("gives a constant; export the model again".to_owned());
    };
    let scale = builder.constant_of(node, 1)?;
    let mut value = builder.with_constants(Binary::Mul, (from, shape), scale.floats()?)?;
    if builder.optional(node, 2)?.is_some() {
        let bias = builder.constant_of(node, 2)?;
        value = builder.with_constants(Binary::Add, value, bias.floats()?)?;
    }
    Ok(Tensor::Values { from: value.0, shape: value.1 })
}

/// Checks that the dimensions along which a function works hold all values, and returns their number.
fn whole(shape: &[usize], along: usize) -> Result<usize, String> {
    if along == 0 || volume(shape) != Some(along) {
        return Err(format!("works on a part of the shape {shape:?}; such a model is not supported"));
    }
    Ok(along)
}
