//! Products of a row with a constant matrix, and linear models.

use super::Written;
use super::attributes::{float, floats, integer, row_of, text};
use crate::builder::{Builder, Tensor};
use crate::file::Node;
use crate::math::Unary;
use crate::plan::{Dense, Work};

/// The product of a row with a constant matrix.
pub(super) fn product<'a>(builder: &mut Builder<'a>, node: &Node<'a>) -> Result<Tensor, String> {
    let (from, mut shape) = builder.values_of(node, 0)?;
    let gemm = node.operator == "Gemm";
    if gemm && (shape.len() != 2 || integer(node, "transA", 0) != 0) {
        return Err("takes a transposed row; export the model with transA=0".to_owned());
    }
    let inputs = row_of(&shape)?;
    let matrix = builder.constant_of(node, 1)?;
    let weights = matrix.floats()?;
    let transposed = gemm && integer(node, "transB", 0) != 0;
    let (rows, outputs) = match (&matrix.shape[..], transposed) {
        (&[rows, outputs], false) | (&[outputs, rows], true) => (rows, outputs),
        (other, _) => {
            return Err(format!(
                "multiplies by the shape {other:?}, [rows, columns] is needed; such a model is not supported"
            ));
        }
    };
    if rows != inputs {
        return Err(format!(
            "multiplies {inputs} values by {rows} rows of weights; build both from the same columns"
        ));
    }
    let (alpha, beta) = if gemm { (float(node, "alpha", 1.0), float(node, "beta", 1.0)) } else { (1.0, 1.0) };
    builder.reserve(Dense::constants(inputs, outputs), outputs)?;
    let mut bias = vec![0.0; outputs];
    if gemm && builder.optional(node, 2)?.is_some() {
        let stated = builder.constant_of(node, 2)?;
        let stated = stated.floats()?;
        match stated {
            [one] => bias.fill(one * beta),
            _ if stated.len() == outputs => {
                bias.iter_mut().zip(stated).for_each(|(bias, one)| *bias = one * beta)
            }
            _ => {
                return Err(format!(
                    "adds {} numbers to {outputs} values; export the model again",
                    stated.len()
                ));
            }
        }
    }
    let dense = Dense::new(from, inputs, &bias, |row, column| {
        alpha * if transposed { weights[column * rows + row] } else { weights[row * outputs + column] }
    });
    if let Some(last) = shape.last_mut() {
        *last = outputs;
    }
    builder.add(Work::Dense(dense), shape)
}

/// The linear function of `coefficients` and `intercepts`, one for each of the outputs.
pub(super) fn linear<'a>(
    builder: &mut Builder<'a>,
    node: &Node<'a>,
    outputs: usize,
) -> Result<Tensor, String> {
    let (from, shape) = builder.values_of(node, 0)?;
    let inputs = row_of(&shape)?;
    let (coefficients, intercepts) = (floats(node, "coefficients"), floats(node, "intercepts"));
    if outputs == 0 || inputs.checked_mul(outputs) != Some(coefficients.len()) {
        return Err(format!(
            "has {} coefficients for {inputs} columns and {outputs} outputs; build both from the same columns",
            coefficients.len()
        ));
    }
    if !intercepts.is_empty() && intercepts.len() != outputs {
        return Err(format!(
            "has {} intercepts for {outputs} outputs; export the model again",
            intercepts.len()
        ));
    }
    builder.reserve(Dense::constants(inputs, outputs), outputs)?;
    let mut bias = vec![0.0; outputs];
    bias.iter_mut().zip(intercepts).for_each(|(bias, one)| *bias = *one);
    let dense = Dense::new(from, inputs, &bias, |row, column| coefficients[column * inputs + row]);
    builder.add(Work::Dense(dense), vec![1, outputs])
}

/// A linear classifier, whose second output has one score for each class. Its first output, the label, is not computed.
pub(super) fn classifier<'a>(builder: &mut Builder<'a>, node: &Node<'a>) -> Result<Written, String> {
    let classes = node.attributes.get("classlabels_ints").map_or(0, |labels| labels.integers.len())
        + node.attributes.get("classlabels_strings").map_or(0, |labels| labels.texts);
    if classes < 2 {
        return Err("has fewer than 2 classes; export the model again".to_owned());
    }
    let Tensor::Values { from, shape } = linear(builder, node, classes)? else {
        return Err("gives a constant; export the model again".to_owned());
    };
    let scores = match text(node, "post_transform") {
        b"" | b"NONE" => Tensor::Values { from, shape },
        b"LOGISTIC" => builder.add(Work::Unary { function: Unary::Sigmoid, from }, shape)?,
        b"SOFTMAX" => builder.add(Work::Softmax { from, log: false }, shape)?,
        _ => {
            return Err(
                "has a post_transform other than LOGISTIC and SOFTMAX; export the model again".to_owned()
            );
        }
    };
    Ok(vec![None, Some(scores)])
}
