//! Compiles the graph of a file: keeps the nodes that the score needs, and gives every value a place in the buffer.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

use crate::NetError;
use crate::constant::{Constant, Data, type_name, volume};
use crate::file::{Model, Node, Port, PortType, twice};
use crate::limits::{MAX_PARAMETERS, MAX_VALUES, shown};
use crate::lower;
use crate::math::Binary;
use crate::plan::{Norm, Operand, Step, Work};

/// A value that nodes read: a constant, or values in the buffer.
#[derive(Debug, Clone)]
pub(crate) enum Tensor {
    Constant(Constant),
    Values { from: usize, shape: Vec<usize> },
}

/// The steps so far, and the values by name.
pub(crate) struct Builder<'a> {
    pub(crate) version: i64,
    tensors: HashMap<&'a str, Tensor>,
    pub(crate) steps: Vec<Step>,
    /// Length of the buffer so far.
    pub(crate) values: usize,
    /// Number of constants in the steps so far.
    pub(crate) constants: usize,
    /// Number of values that reductions read so far.
    read: usize,
}

/// A compiled graph.
pub(crate) struct Compiled {
    pub(crate) steps: Vec<Step>,
    pub(crate) values: usize,
    pub(crate) constants: usize,
    /// Position of the score in the buffer.
    pub(crate) score: usize,
    /// Whether the score is from 0 to 1, whatever the row.
    pub(crate) probability: bool,
    /// The operators that the score needs, with the number of nodes of each.
    pub(crate) operators: BTreeMap<String, usize>,
}

pub(crate) fn compile(
    model: &Model<'_>,
    columns: &[&str],
    index: Option<usize>,
) -> Result<Compiled, NetError> {
    let output = score_output(model)?;
    let mut builder = Builder {
        version: model.version,
        tensors: HashMap::new(),
        steps: Vec::new(),
        values: columns.len(),
        constants: 0,
        read: 0,
    };
    let needed = needed(model, output.name);
    builder.inputs(&model.inputs, columns)?;
    let mut operators = BTreeMap::new();
    for (node, needed) in model.nodes.iter().zip(needed) {
        if !needed {
            continue;
        }
        let known = lower::known(node)?;
        for &name in node.inputs.iter().filter(|name| !name.is_empty()) {
            builder.define_constant(model, name)?;
        }
        let tensors = lower::lower(&mut builder, node).map_err(|reason| fail(node, reason))?;
        builder.check()?;
        for (&name, tensor) in node.outputs.iter().zip(tensors) {
            if let Some(tensor) = tensor
                && !name.is_empty()
                && builder.tensors.insert(name, tensor).is_some()
            {
                return Err(twice(name));
            }
        }
        *operators.entry(known.to_owned()).or_insert(0) += 1;
    }
    let Some(Tensor::Values { from, shape }) = builder.tensors.get(output.name) else {
        return Err(NetError::Output(format!(
            "{:?} does not depend on the row; export the output of the model",
            shown(output.name)
        )));
    };
    let score = from + chosen(output.name, shape, index)?;
    let probable = probable(&builder.steps, builder.values);
    Ok(Compiled {
        probability: probable[score],
        score,
        values: builder.values,
        constants: builder.constants,
        operators,
        steps: builder.steps,
    })
}

/// Returns the only output that can be the score: a tensor of float32.
fn score_output<'m, 'a>(model: &'m Model<'a>) -> Result<&'m Port<'a>, NetError> {
    let scores: Vec<&Port<'_>> = model
        .outputs
        .iter()
        .filter(|output| matches!(output.kind, PortType::Tensor { element: 1, .. }))
        .collect();
    match scores[..] {
        [output] => Ok(output),
        [] if model.nodes.iter().any(|node| node.operator == "ZipMap") => Err(NetError::Output(
            "the probabilities are in a ZipMap, a list of maps; convert with options={\"zipmap\": False}"
                .to_owned(),
        )),
        [] => Err(NetError::Output("no output is a tensor of float32; export the score as one".to_owned())),
        _ => {
            let names: Vec<String> = scores.iter().take(8).map(|port| shown(port.name)).collect();
            Err(NetError::Output(format!(
                "{} are tensors of float32, and one is the score; export the score alone",
                names.join(", ")
            )))
        }
    }
}

/// Returns the element of the output that is the score: the only one, or the positive class of two.
fn chosen(name: &str, shape: &[usize], index: Option<usize>) -> Result<usize, NetError> {
    let size = volume(shape).unwrap_or(0);
    let one_row = shape.iter().rev().skip(1).all(|&dim| dim == 1);
    match (size, index) {
        _ if !one_row => {}
        (1 | 2, None) => return Ok(size - 1),
        (_, Some(index)) if index < size => return Ok(index),
        (1.., Some(index)) => {
            return Err(NetError::Output(format!(
                "output_index {index} is beyond the {size} values of {:?}; correct it",
                shown(name)
            )));
        }
        (1.., None) => {
            return Err(NetError::Output(format!(
                "{:?} has {size} values for a row; state output_index",
                shown(name)
            )));
        }
        _ => {}
    }
    Err(NetError::Output(format!(
        "{:?} has the shape {shape:?} for one row, [1, values] is needed; export one row of values",
        shown(name)
    )))
}

/// Returns for each node whether the output depends on it.
fn needed(model: &Model<'_>, output: &str) -> Vec<bool> {
    let mut names = HashSet::from([output]);
    let mut needed = vec![false; model.nodes.len()];
    for (at, node) in model.nodes.iter().enumerate().rev() {
        if node.outputs.iter().any(|output| !output.is_empty() && names.contains(output)) {
            needed[at] = true;
            names.extend(node.inputs.iter().filter(|name| !name.is_empty()));
        }
    }
    needed
}

pub(crate) fn fail(node: &Node<'_>, reason: String) -> NetError {
    NetError::Node { node: shown(node.name), operator: shown(node.operator), reason }
}

impl<'a> Builder<'a> {
    /// Connects the inputs of the graph to the columns of the row, which are the first values of the buffer.
    fn inputs(&mut self, inputs: &[Port<'a>], columns: &[&str]) -> Result<(), NetError> {
        let single = inputs.len() == 1;
        let mut places: HashMap<&str, usize> =
            columns.iter().enumerate().map(|(at, name)| (*name, at)).collect();
        for input in inputs {
            let refuse = |reason: String| Err(NetError::Input { name: shown(input.name), reason });
            let (dims, element) = match &input.kind {
                PortType::Tensor { element, dims } => (dims, *element),
                PortType::Other => {
                    return refuse("is no tensor; export the model with a tensor of float32".to_owned());
                }
            };
            if element != 1 {
                return refuse(format!(
                    "takes {}, a row has float32; export the model with float32 inputs (categories are codes)",
                    type_name(element)
                ));
            }
            let Some([batch, width]) = dims.as_deref() else {
                return refuse("must have the shape [rows, columns]; export the model with it".to_owned());
            };
            if batch.is_some_and(|batch| batch != 1) {
                return refuse(format!(
                    "is fixed to {} rows; export the model with a dynamic number of rows",
                    batch.unwrap_or_default()
                ));
            }
            let expected = if single { columns.len() } else { 1 };
            if width.is_some_and(|width| usize::try_from(width) != Ok(expected)) {
                let width = width.unwrap_or_default();
                return refuse(if single {
                    format!("takes {width} columns, the row has {expected}; build both from the same columns")
                } else {
                    format!(
                        "is one of {} inputs and takes {width} columns; export one input of all columns, or one per column",
                        inputs.len()
                    )
                });
            }
            let from = match places.get(input.name).copied() {
                _ if single => 0,
                Some(column) => column,
                None => return refuse("is no column of the row; name the inputs as the columns".to_owned()),
            };
            places.remove(input.name);
            if self.tensors.insert(input.name, Tensor::Values { from, shape: vec![1, expected] }).is_some() {
                return Err(twice(input.name));
            }
        }
        if inputs.is_empty() {
            return Err(NetError::Input {
                name: String::new(),
                reason: "the model has no input; export it with one of [rows, columns]".to_owned(),
            });
        }
        match columns.iter().find(|column| places.contains_key(**column)) {
            Some(column) if !single => Err(NetError::Input {
                name: shown(column),
                reason: "the model has no input for this column of the row; build both from the same columns"
                    .to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// Makes an initializer known by its name.
    fn define_constant(&mut self, model: &Model<'a>, name: &'a str) -> Result<(), NetError> {
        let Some(content) = model.initializers.get(name) else { return Ok(()) };
        if !self.tensors.contains_key(name) {
            let content =
                content.clone().map_err(|reason| NetError::Initializer { name: shown(name), reason })?;
            self.tensors.insert(name, Tensor::Constant(content));
        }
        Ok(())
    }

    /// Fails if the steps so far exceed a limit.
    fn check(&self) -> Result<(), NetError> {
        let limit = |what, got, limit| {
            if got > limit { Err(NetError::Limit { what, got, limit }) } else { Ok(()) }
        };
        limit("constants", self.constants, MAX_PARAMETERS)?;
        limit("values per row", self.values.max(self.read), MAX_VALUES)
    }

    /// Fails if a step of this size would exceed a limit. Called before memory is allocated for the step.
    pub(crate) fn reserve(&self, constants: usize, values: usize) -> Result<(), String> {
        if self.constants.saturating_add(constants) > MAX_PARAMETERS {
            return Err(format!(
                "the model needs more than {MAX_PARAMETERS} constants; export a smaller model"
            ));
        }
        if self.values.saturating_add(values) > MAX_VALUES {
            return Err(format!(
                "the model needs more than {MAX_VALUES} values per row; export a smaller model"
            ));
        }
        Ok(())
    }

    /// The input of a node at a position; `None` if it is left out.
    pub(crate) fn optional(&self, node: &Node<'a>, at: usize) -> Result<Option<Tensor>, String> {
        match node.inputs.get(at).filter(|name| !name.is_empty()) {
            None => Ok(None),
            Some(name) => match self.tensors.get(name) {
                Some(tensor) => Ok(Some(tensor.clone())),
                None => Err(format!(
                    "reads {:?}, which no earlier node writes as a tensor of float32; export the model again",
                    shown(name)
                )),
            },
        }
    }

    pub(crate) fn input(&self, node: &Node<'a>, at: usize) -> Result<Tensor, String> {
        self.optional(node, at)?.ok_or_else(|| format!("has no input {at}; export the model again"))
    }

    /// The values of an input that depends on the row.
    pub(crate) fn values_of(&self, node: &Node<'a>, at: usize) -> Result<(usize, Vec<usize>), String> {
        match self.input(node, at)? {
            Tensor::Values { from, shape } => Ok((from, shape)),
            Tensor::Constant(_) => Err(format!(
                "input {at} is a constant where a value of the row is needed; export the model with constant folding"
            )),
        }
    }

    pub(crate) fn constant_of(&self, node: &Node<'a>, at: usize) -> Result<Constant, String> {
        match self.input(node, at)? {
            Tensor::Constant(constant) => Ok(constant),
            Tensor::Values { .. } => Err(format!(
                "input {at} depends on the row, a constant is needed; such a model is not supported"
            )),
        }
    }

    /// Makes a constant that is computed from another one.
    pub(crate) fn folded(&mut self, shape: Vec<usize>, data: Data) -> Result<Tensor, String> {
        let constant = Constant { shape, data: Rc::new(data) };
        self.constants = self.constants.saturating_add(constant.len());
        self.reserve(0, 0)?;
        Ok(Tensor::Constant(constant))
    }

    /// Adds a step and returns its results.
    pub(crate) fn add(&mut self, work: Work, shape: Vec<usize>) -> Result<Tensor, String> {
        let len = volume(&shape).unwrap_or(usize::MAX);
        self.reserve(0, len)?;
        let step = Step { work, to: self.values, len };
        self.constants += step.constants();
        if let Work::Reduce { count, .. } = &step.work {
            self.read += count;
        }
        self.steps.push(step);
        let from = self.values;
        self.values += len;
        Ok(Tensor::Values { from, shape })
    }

    /// Adds a function of a value and constants, one or as many as the value has elements.
    pub(crate) fn with_constants(
        &mut self,
        function: Binary,
        (from, shape): (usize, Vec<usize>),
        constants: &[f32],
    ) -> Result<(usize, Vec<usize>), String> {
        let len = volume(&shape).unwrap_or(usize::MAX);
        if constants.len() != 1 && constants.len() != len {
            return Err(format!(
                "has {} constants for {len} values; export the model again",
                constants.len()
            ));
        }
        self.reserve(constants.len(), len)?;
        let (left, right) = (Operand::Values { from, len }, Operand::Constant(constants.into()));
        match self.add(Work::Binary { function, left, right }, shape)? {
            Tensor::Values { from, shape } => Ok((from, shape)),
            Tensor::Constant(_) => Err("gives a constant; export the model again".to_owned()),
        }
    }
}

/// Returns for each value of the buffer whether it is from 0 to 1, whatever the row.
fn probable(steps: &[Step], values: usize) -> Vec<bool> {
    let mut probable = vec![false; values];
    for Step { work, to, len } in steps {
        let range = *to..to + len;
        match work {
            Work::Unary { function, .. } => probable[range].fill(function.is_probability()),
            Work::Softmax { log: false, .. } => probable[range].fill(true),
            Work::Normalize { norm: Norm::L1 | Norm::Max, from } => {
                let all = probable[*from..from + len].iter().all(|probable| *probable);
                probable[range].fill(all);
            }
            Work::Binary {
                function: Binary::Sub,
                left: Operand::Constant(left),
                right: Operand::Values { from, .. },
            } if **left == [1.0] => {
                probable.copy_within(*from..from + len, *to);
            }
            Work::Pick { positions } => {
                for (at, position) in positions.iter().enumerate() {
                    probable[to + at] = probable[*position as usize];
                }
            }
            _ => {}
        }
    }
    probable
}
