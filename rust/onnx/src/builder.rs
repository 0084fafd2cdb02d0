//! The steps of a graph while it is compiled: every value has a place in the buffer, and the sizes have limits.

use std::collections::HashMap;
use std::rc::Rc;

use crate::NetError;
use crate::constant::{Constant, Data, type_name, volume};
use crate::file::{Model, Node, Port, PortType, twice};
use crate::limits::{MAX_PARAMETERS, MAX_VALUES, shown};
use crate::math::Binary;
use crate::plan::{Operand, Step, Work};

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

// === impl Tensor ===

impl Tensor {
    pub(crate) fn shape(&self) -> &[usize] {
        match self {
            Tensor::Constant(constant) => &constant.shape,
            Tensor::Values { shape, .. } => shape,
        }
    }

    pub(crate) fn with_shape(self, shape: Vec<usize>) -> Tensor {
        match self {
            Tensor::Constant(constant) => Tensor::Constant(Constant { shape, data: constant.data }),
            Tensor::Values { from, .. } => Tensor::Values { from, shape },
        }
    }
}

// === impl Builder ===

impl<'a> Builder<'a> {
    pub(crate) fn new(version: i64, columns: usize) -> Builder<'a> {
        Builder {
            version,
            tensors: HashMap::new(),
            steps: Vec::new(),
            values: columns,
            constants: 0,
            read: 0,
        }
    }

    pub(crate) fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// Makes what a node writes known by its name.
    pub(crate) fn define(&mut self, name: &'a str, tensor: Tensor) -> Result<(), NetError> {
        if self.tensors.insert(name, tensor).is_some() { Err(twice(name)) } else { Ok(()) }
    }

    /// Connects the inputs of the graph to the columns of the row, which are the first values of the buffer.
    pub(crate) fn inputs(&mut self, inputs: &[Port<'a>], columns: &[&str]) -> Result<(), NetError> {
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
            self.define(input.name, Tensor::Values { from, shape: vec![1, expected] })?;
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
    pub(crate) fn define_constant(&mut self, model: &Model<'a>, name: &'a str) -> Result<(), NetError> {
        let Some(content) = model.initializers.get(name) else { return Ok(()) };
        if !self.tensors.contains_key(name) {
            let content =
                content.clone().map_err(|reason| NetError::Initializer { name: shown(name), reason })?;
            self.tensors.insert(name, Tensor::Constant(content));
        }
        Ok(())
    }

    /// Fails if the steps so far exceed a limit.
    pub(crate) fn check(&self) -> Result<(), NetError> {
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
