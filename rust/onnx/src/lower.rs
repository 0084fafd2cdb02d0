//! The operators: the rules that each states for its inputs, and the steps that compute it.
//!
//! One row is evaluated at a time, so all dimensions are known, and a value that depends on the row is a list of numbers
//! with a shape. An operator that only changes the shape needs no step.

use std::rc::Rc;

use crate::NetError;
use crate::constant::{Constant, Data, volume};
use crate::file::{Attribute, ML, Node};
use crate::graph::{Builder, Tensor};
use crate::limits::{MAX_RANK, shown};
use crate::math::{Binary, Unary};
use crate::plan::{Dense, Norm, Operand, Reduction, Work};

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

/// The function of an operator that computes each value from one value.
fn unary<'a>(builder: &Builder<'a>, node: &Node<'a>) -> Result<Option<Unary>, String> {
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
fn binary<'a>(builder: &mut Builder<'a>, node: &Node<'a>, function: Binary) -> Result<Tensor, String> {
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

fn constant(node: &Node<'_>) -> Result<Constant, String> {
    let attribute = |name: &str| node.attributes.get(name);
    if let Some(Attribute { tensor: Some(tensor), .. }) = attribute("value") {
        return tensor.clone();
    }
    let data = |shape: Vec<usize>, data: Data| Ok(Constant { shape, data: Rc::new(data) });
    if let Some(value) = attribute("value_float") {
        return data(vec![], Data::Floats(vec![value.float]));
    }
    if let Some(value) = attribute("value_int") {
        return data(vec![], Data::Integers(vec![value.integer]));
    }
    if let Some(value) = attribute("value_floats") {
        return data(vec![value.floats.len()], Data::Floats(value.floats.clone()));
    }
    if let Some(value) = attribute("value_ints") {
        return data(vec![value.integers.len()], Data::Integers(value.integers.clone()));
    }
    Err("has no value of float32 or int64; export the model again".to_owned())
}

fn integers(values: Vec<i64>) -> Tensor {
    Tensor::Constant(Constant { shape: vec![values.len()], data: Rc::new(Data::Integers(values)) })
}

fn cast<'a>(builder: &mut Builder<'a>, node: &Node<'a>) -> Result<Tensor, String> {
    let to = integer(node, "to", 0);
    match (builder.input(node, 0)?, to) {
        (value @ Tensor::Values { .. }, 1) => Ok(value),
        (Tensor::Constant(constant), 1 | 7) => {
            let data = match (&*constant.data, to) {
                (Data::Integers(integers), 1) => {
                    Data::Floats(integers.iter().map(|&one| one as f32).collect())
                }
                (Data::Floats(floats), 7) => Data::Integers(floats.iter().map(|&one| one as i64).collect()),
                _ => return Ok(Tensor::Constant(constant)),
            };
            builder.folded(constant.shape.clone(), data)
        }
        _ => Err("casts to another type than float32; export the score as float32".to_owned()),
    }
}

/// Operators that change the shape alone.
fn reshape<'a>(builder: &mut Builder<'a>, node: &Node<'a>) -> Result<Tensor, String> {
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

/// The product of a row with a constant matrix.
fn product<'a>(builder: &mut Builder<'a>, node: &Node<'a>) -> Result<Tensor, String> {
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
fn linear<'a>(builder: &mut Builder<'a>, node: &Node<'a>, outputs: usize) -> Result<Tensor, String> {
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
fn classifier<'a>(builder: &mut Builder<'a>, node: &Node<'a>) -> Result<Written, String> {
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

fn concat<'a>(builder: &mut Builder<'a>, node: &Node<'a>) -> Result<Tensor, String> {
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

fn gather<'a>(builder: &mut Builder<'a>, node: &Node<'a>) -> Result<Tensor, String> {
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

fn slice<'a>(builder: &mut Builder<'a>, node: &Node<'a>) -> Result<Tensor, String> {
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

fn split<'a>(builder: &mut Builder<'a>, node: &Node<'a>) -> Result<Written, String> {
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

fn softmax<'a>(builder: &mut Builder<'a>, node: &Node<'a>) -> Result<Tensor, String> {
    let (from, shape) = builder.values_of(node, 0)?;
    let default = if builder.version < 13 { 1 } else { -1 };
    let at = axis(integer(node, "axis", default), shape.len())?;
    let along: usize = if builder.version < 13 { shape[at..].iter().product() } else { shape[at] };
    whole(&shape, along)?;
    builder.add(Work::Softmax { from, log: node.operator == "LogSoftmax" }, shape)
}

fn reduce<'a>(builder: &mut Builder<'a>, node: &Node<'a>) -> Result<Tensor, String> {
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
fn batch_normalization<'a>(builder: &mut Builder<'a>, node: &Node<'a>) -> Result<Tensor, String> {
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

fn layer_normalization<'a>(builder: &mut Builder<'a>, node: &Node<'a>) -> Result<Tensor, String> {
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

/// The number of values of a row: all dimensions but the last one must be 1.
fn row_of(shape: &[usize]) -> Result<usize, String> {
    let (&last, first) = shape.split_last().ok_or("takes a single number; export the model again")?;
    if first.iter().any(|&dim| dim != 1) || last == 0 {
        return Err(format!(
            "takes the shape {shape:?} for one row, [1, values] is needed; such a model is not supported"
        ));
    }
    Ok(last)
}

/// Checks that the dimensions along which a function works hold all values, and returns their number.
fn whole(shape: &[usize], along: usize) -> Result<usize, String> {
    if along == 0 || volume(shape) != Some(along) {
        return Err(format!("works on a part of the shape {shape:?}; such a model is not supported"));
    }
    Ok(along)
}

/// The axes of a node: an attribute before this version of the operators, and then the input 1.
fn axes<'a>(builder: &Builder<'a>, node: &Node<'a>, since: i64) -> Result<Option<Vec<i64>>, String> {
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

fn axis(stated: i64, rank: usize) -> Result<usize, String> {
    let at = if stated < 0 { stated.saturating_add(rank as i64) } else { stated };
    usize::try_from(at)
        .ok()
        .filter(|at| *at < rank)
        .ok_or_else(|| format!("states axis {stated} of {rank} dimensions; export the model again"))
}

fn float(node: &Node<'_>, name: &str, default: f32) -> f32 {
    node.attributes.get(name).map_or(default, |attribute| attribute.float)
}

fn integer(node: &Node<'_>, name: &str, default: i64) -> i64 {
    node.attributes.get(name).map_or(default, |attribute| attribute.integer)
}

fn text<'a>(node: &Node<'a>, name: &str) -> &'a [u8] {
    node.attributes.get(name).map_or(b"", |attribute| attribute.text)
}

fn floats<'n>(node: &'n Node<'_>, name: &str) -> &'n [f32] {
    node.attributes.get(name).map_or(&[], |attribute| &attribute.floats)
}

impl Tensor {
    fn shape(&self) -> &[usize] {
        match self {
            Tensor::Constant(constant) => &constant.shape,
            Tensor::Values { shape, .. } => shape,
        }
    }

    fn with_shape(self, shape: Vec<usize>) -> Tensor {
        match self {
            Tensor::Constant(constant) => Tensor::Constant(Constant { shape, data: constant.data }),
            Tensor::Values { from, .. } => Tensor::Values { from, shape },
        }
    }
}
