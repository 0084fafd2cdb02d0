//! The operators: the rules that each states for its inputs, and the steps that compute it.
//!
//! One row is evaluated at a time, so all dimensions are known, and a value that depends on the row is a list of numbers
//! with a shape. An operator that only changes the shape needs no step.

mod attributes;
mod constants;
mod elementwise;
mod products;
mod reductions;
mod selection;
mod shapes;

use self::attributes::{float, floats, integer, row_of, text};
use self::constants::{cast, constant, integers};
use self::elementwise::{binary, unary};
use self::products::{classifier, linear, product};
use self::reductions::{batch_normalization, layer_normalization, reduce, softmax};
use self::selection::{concat, gather, slice, split};
use self::shapes::reshape;
use crate::NetError;
use crate::builder::{Builder, Tensor};
use crate::file::{ML, Node};
use crate::limits::shown;
use crate::math::Binary;
use crate::plan::{Norm, Work};

/// The operators that are evaluated.
pub const OPERATORS: [&str; 60] = [
    "Abs",
    "Add",
    "ArrayFeatureExtractor",
    "BatchNormalization",
    "Binarizer",
    "Cast",
    "Clip",
    "Concat",
    "Constant",
    "Div",
    "Dropout",
    "Elu",
    "Erf",
    "Exp",
    "FeatureVectorizer",
    "Flatten",
    "Gather",
    "Gelu",
    "Gemm",
    "HardSigmoid",
    "HardSwish",
    "Identity",
    "Imputer",
    "LayerNormalization",
    "LeakyRelu",
    "LinearClassifier",
    "LinearRegressor",
    "Log",
    "LogSoftmax",
    "MatMul",
    "Max",
    "Min",
    "Mul",
    "Neg",
    "Normalizer",
    "PRelu",
    "Pow",
    "Reciprocal",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceSum",
    "Relu",
    "Reshape",
    "Scaler",
    "Selu",
    "Shape",
    "Sigmoid",
    "Slice",
    "Softmax",
    "Softplus",
    "Softsign",
    "Split",
    "Sqrt",
    "Squeeze",
    "Sub",
    "Tanh",
    "ThresholdedRelu",
    "Transpose",
    "Unsqueeze",
];

/// Operators of the domain of classical machine learning.
const CLASSICAL: [&str; 8] = [
    "ArrayFeatureExtractor",
    "Binarizer",
    "FeatureVectorizer",
    "Imputer",
    "LinearClassifier",
    "LinearRegressor",
    "Normalizer",
    "Scaler",
];

/// Returns the name of an operator that is supported.
pub(crate) fn known(node: &Node<'_>) -> Result<&'static str, NetError> {
    let found = OPERATORS.iter().copied().find(|known| *known == node.operator);
    let domain = if CLASSICAL.contains(&node.operator) { ML } else { "" };
    match found {
        Some(found) if node.domain == domain => Ok(found),
        _ => Err(NetError::Operator {
            node: shown(node.name),
            operator: if node.domain.is_empty() {
                shown(node.operator)
            } else {
                format!("{}.{}", shown(node.domain), shown(node.operator))
            },
            remedy: match node.operator {
                "ZipMap" => "convert with options={\"zipmap\": False}",
                "If" | "Loop" | "Scan" => "export the model without control flow",
                "TreeEnsembleClassifier" | "TreeEnsembleRegressor" | "TreeEnsemble" => {
                    "build the bundle from the trees' own library"
                }
                "LabelEncoder" | "OneHotEncoder" | "StringNormalizer" | "TfIdfVectorizer"
                | "DictVectorizer" => "encode categories by transforms of the bundle",
                _ => "docs/onnx.md lists the supported ones",
            },
        }),
    }
}

/// The tensors that a node writes; `None` for an output that is not supported, such as the label of a classifier.
pub(crate) type Written = Vec<Option<Tensor>>;

/// Adds the steps of a node and returns what it writes.
pub(crate) fn lower<'a>(builder: &mut Builder<'a>, node: &Node<'a>) -> Result<Written, String> {
    let one = |tensor: Tensor| Ok(vec![Some(tensor)]);
    if let Some(function) = unary(builder, node)? {
        let (from, shape) = builder.values_of(node, 0)?;
        return one(builder.add(Work::Unary { function, from }, shape)?);
    }
    let function = match node.operator {
        "Add" => Some(Binary::Add),
        "Sub" => Some(Binary::Sub),
        "Mul" => Some(Binary::Mul),
        "Div" => Some(Binary::Div),
        "Pow" => Some(Binary::Pow),
        "Min" => Some(Binary::Min),
        "Max" => Some(Binary::Max),
        "PRelu" => Some(Binary::Prelu),
        _ => None,
    };
    if let Some(function) = function {
        return one(binary(builder, node, function)?);
    }
    match node.operator {
        "Constant" => one(Tensor::Constant(constant(node)?)),
        "Identity" | "Dropout" => one(builder.input(node, 0)?),
        "Cast" => one(cast(builder, node)?),
        "Shape" => {
            let (_, shape) = builder.values_of(node, 0)?;
            one(integers(shape.iter().map(|&dim| dim as i64).collect()))
        }
        "Flatten" | "Reshape" | "Squeeze" | "Unsqueeze" | "Transpose" => one(reshape(builder, node)?),
        "MatMul" | "Gemm" => one(product(builder, node)?),
        "Concat" | "FeatureVectorizer" => one(concat(builder, node)?),
        "Gather" | "ArrayFeatureExtractor" => one(gather(builder, node)?),
        "Slice" => one(slice(builder, node)?),
        "Split" => split(builder, node),
        "Softmax" | "LogSoftmax" => one(softmax(builder, node)?),
        "ReduceSum" | "ReduceMean" | "ReduceMax" | "ReduceMin" => one(reduce(builder, node)?),
        "BatchNormalization" => one(batch_normalization(builder, node)?),
        "LayerNormalization" => one(layer_normalization(builder, node)?),
        "Scaler" => {
            let value = builder.values_of(node, 0)?;
            let value = builder.with_constants(Binary::Sub, value, floats(node, "offset"))?;
            let (from, shape) = builder.with_constants(Binary::Mul, value, floats(node, "scale"))?;
            one(Tensor::Values { from, shape })
        }
        "Imputer" => {
            let value = builder.values_of(node, 0)?;
            if !float(node, "replaced_value_float", 0.0).is_nan() {
                return Err("replaces a number other than NaN; impute missing values only".to_owned());
            }
            let (from, shape) =
                builder.with_constants(Binary::Fill, value, floats(node, "imputed_value_floats"))?;
            one(Tensor::Values { from, shape })
        }
        "Normalizer" => {
            let (from, shape) = builder.values_of(node, 0)?;
            row_of(&shape)?;
            let norm = match text(node, "norm") {
                b"" | b"MAX" => Norm::Max,
                b"L1" => Norm::L1,
                b"L2" => Norm::L2,
                _ => return Err("has a norm other than MAX, L1 and L2; export the model again".to_owned()),
            };
            one(builder.add(Work::Normalize { norm, from }, shape)?)
        }
        "LinearRegressor" => {
            let targets = usize::try_from(integer(node, "targets", 1)).unwrap_or(0);
            if !matches!(text(node, "post_transform"), b"" | b"NONE") {
                return Err("has a post_transform; export the model without".to_owned());
            }
            one(linear(builder, node, targets)?)
        }
        "LinearClassifier" => classifier(builder, node),
        _ => Err("is not supported".to_owned()),
    }
}
