//! Operators that compute each value from one or two values.

use super::attributes::{float, text};
use crate::builder::{Builder, Tensor};
use crate::constant::volume;
use crate::file::Node;
use crate::math::{Binary, Unary};
use crate::plan::{Operand, Work};

/// The function of an operator that computes each value from one value.
pub(super) fn unary<'a>(builder: &Builder<'a>, node: &Node<'a>) -> Result<Option<Unary>, String> {
    let alpha = |default| float(node, "alpha", default);
    Ok(Some(match node.operator {
        "Relu" => Unary::Relu,
        "LeakyRelu" => Unary::LeakyRelu(alpha(0.01)),
        "Elu" => Unary::Elu(alpha(1.0)),
        "Selu" => Unary::Selu { alpha: alpha(1.673_263_2), gamma: float(node, "gamma", 1.050_701) },
        "ThresholdedRelu" => Unary::ThresholdedRelu(alpha(1.0)),
        "Sigmoid" => Unary::Sigmoid,
        "HardSigmoid" => Unary::HardSigmoid { alpha: alpha(0.2), beta: float(node, "beta", 0.5) },
        "HardSwish" => Unary::HardSwish,
        "Tanh" => Unary::Tanh,
        "Softplus" => Unary::Softplus,
        "Softsign" => Unary::Softsign,
        "Gelu" => match text(node, "approximate") {
            b"" | b"none" => Unary::Gelu,
            b"tanh" => Unary::GeluTanh,
            _ => return Err("has an unknown approximation; export the model with none or tanh".to_owned()),
        },
        "Erf" => Unary::Erf,
        "Exp" => Unary::Exp,
        "Log" => Unary::Log,
        "Sqrt" => Unary::Sqrt,
        "Neg" => Unary::Neg,
        "Abs" => Unary::Abs,
        "Reciprocal" => Unary::Reciprocal,
        "Binarizer" => Unary::Binarize(float(node, "threshold", 0.0)),
        "Clip" => {
            let limit = |at: usize, name: &str, default: f32| -> Result<f32, String> {
                if builder.version < 11 {
                    return Ok(float(node, name, default));
                }
                match builder.optional(node, at)? {
                    None => Ok(default),
                    Some(_) => match *builder.constant_of(node, at)?.floats()? {
                        [limit] => Ok(limit),
                        _ => Err("has a limit that is not one number; export the model again".to_owned()),
                    },
                }
            };
            Unary::Clip { low: limit(1, "min", f32::MIN)?, high: limit(2, "max", f32::MAX)? }
        }
        _ => return Ok(None),
    }))
}

/// A function of two values, one of which may be a constant. One side has all values of the result, and the other side
/// has as many or one.
pub(super) fn binary<'a>(
    builder: &mut Builder<'a>,
    node: &Node<'a>,
    function: Binary,
) -> Result<Tensor, String> {
    if node.inputs.len() != 2 {
        return Err(format!("has {} inputs, 2 are supported; export the model again", node.inputs.len()));
    }
    let (left, right) = (builder.input(node, 0)?, builder.input(node, 1)?);
    if let (Tensor::Constant(_), Tensor::Constant(_)) = (&left, &right) {
        return Err("computes a constant; export the model with constant folding".to_owned());
    }
    let shape = broadcast(left.shape(), right.shape())?;
    let len = volume(&shape).unwrap_or(usize::MAX);
    let side = |tensor: &Tensor| -> Result<Operand, String> {
        let size = volume(tensor.shape()).unwrap_or(usize::MAX);
        if size == 0 || (size != 1 && size != len) {
            return Err(format!(
                "combines the shapes {:?} and {:?}, of which one must be a single number or both equal; such a model is not supported",
                left.shape(),
                right.shape()
            ));
        }
        match tensor {
            Tensor::Values { from, .. } => Ok(Operand::Values { from: *from, len: size }),
            Tensor::Constant(constant) => {
                builder.reserve(size, len)?;
                Ok(Operand::Constant(constant.floats()?.into()))
            }
        }
    };
    let (left, right) = (side(&left)?, side(&right)?);
    builder.add(Work::Binary { function, left, right }, shape)
}

fn broadcast(left: &[usize], right: &[usize]) -> Result<Vec<usize>, String> {
    let rank = left.len().max(right.len());
    let dim = |shape: &[usize], at: usize| (at + shape.len()).checked_sub(rank).map_or(1, |at| shape[at]);
    (0..rank)
        .map(|at| match (dim(left, at), dim(right, at)) {
            (one, other) if one == other => Ok(one),
            (1, other) => Ok(other),
            (one, 1) => Ok(one),
            _ => Err(format!("combines the shapes {left:?} and {right:?}; export the model again")),
        })
        .collect()
}
