//! The messages of an ONNX file, as far as an evaluation needs them. Names borrow from the file's bytes.

use std::collections::HashMap;

use crate::NetError;
use crate::constant::{self, Constant, Tensor};
use crate::limits::{MAX_ATTRIBUTES, MAX_FILE_BYTES, MAX_INITIALIZERS, MAX_LIST, MAX_NODES, shown};
use crate::wire::fields;

/// Least and greatest version of the default operator set.
const VERSIONS: std::ops::RangeInclusive<i64> = 7..=26;
/// Domain of the operators of classical machine learning.
pub(crate) const ML: &str = "ai.onnx.ml";

pub(crate) struct Model<'a> {
    /// Version of the default operator set.
    pub(crate) version: i64,
    pub(crate) nodes: Vec<Node<'a>>,
    pub(crate) initializers: HashMap<&'a str, Result<Constant, String>>,
    /// The inputs without initial value.
    pub(crate) inputs: Vec<Port<'a>>,
    pub(crate) outputs: Vec<Port<'a>>,
}

pub(crate) struct Node<'a> {
    pub(crate) name: &'a str,
    pub(crate) operator: &'a str,
    pub(crate) domain: &'a str,
    pub(crate) inputs: Vec<&'a str>,
    pub(crate) outputs: Vec<&'a str>,
    pub(crate) attributes: HashMap<&'a str, Attribute<'a>>,
}

/// An attribute, in all forms that it may have.
#[derive(Default)]
pub(crate) struct Attribute<'a> {
    pub(crate) float: f32,
    pub(crate) integer: i64,
    pub(crate) text: &'a [u8],
    pub(crate) tensor: Option<Result<Constant, String>>,
    pub(crate) floats: Vec<f32>,
    pub(crate) integers: Vec<i64>,
    /// Number of strings in a list of strings.
    pub(crate) texts: usize,
}

/// An input or output of the graph.
pub(crate) struct Port<'a> {
    pub(crate) name: &'a str,
    pub(crate) kind: PortType,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PortType {
    /// A tensor: its element type, and its dimensions if they are stated; `None` is a dynamic one.
    Tensor { element: i64, dims: Option<Vec<Option<i64>>> },
    /// A sequence, as `ZipMap` makes, a map, or a type that is not stated.
    Other,
}

pub(crate) fn parse(bytes: &[u8]) -> Result<Model<'_>, NetError> {
    limit("bytes", bytes.len(), MAX_FILE_BYTES)?;
    let (mut graph, mut version, mut sets) = (None, None, 0);
    for field in fields(bytes) {
        match field? {
            (7, value) => graph = Some(value.bytes()?),
            (8, value) => {
                sets += 1;
                limit("operator sets", sets, MAX_LIST)?;
                let (mut domain, mut stated) = ("", 0);
                for field in fields(value.bytes()?) {
                    match field? {
                        (1, value) => domain = value.text()?,
                        (2, value) => stated = value.integer()?,
                        _ => {}
                    }
                }
                if domain.is_empty() || domain == "ai.onnx" {
                    version = Some(stated);
                }
            }
            _ => {}
        }
    }
    let graph = graph.ok_or_else(|| NetError::Format("it has no graph".to_owned()))?;
    let version = match version {
        Some(version) if VERSIONS.contains(&version) => version,
        Some(version) => {
            return Err(NetError::Format(format!(
                "it has version {version} of the operators, {} to {} are supported",
                VERSIONS.start(),
                VERSIONS.end()
            )));
        }
        None if sets == 0 => {
            return Err(NetError::Format("it states no version of the operators".to_owned()));
        }
        // A model of classical machine learning alone may leave it out.
        None => *VERSIONS.start(),
    };
    let mut model = Model {
        version,
        nodes: Vec::new(),
        initializers: HashMap::new(),
        inputs: Vec::new(),
        outputs: Vec::new(),
    };
    for field in fields(graph) {
        match field? {
            (1, value) => {
                limit("nodes", model.nodes.len() + 1, MAX_NODES)?;
                model.nodes.push(node(value.bytes()?)?);
            }
            (5, value) => {
                limit("initializers", model.initializers.len() + 1, MAX_INITIALIZERS)?;
                let Tensor { name, content } = constant::parse(value.bytes()?)?;
                if model.initializers.insert(name, content).is_some() {
                    return Err(twice(name));
                }
            }
            (11, value) => {
                limit("inputs", model.inputs.len() + 1, MAX_LIST)?;
                model.inputs.push(port(value.bytes()?)?);
            }
            (12, value) => {
                limit("outputs", model.outputs.len() + 1, MAX_LIST)?;
                model.outputs.push(port(value.bytes()?)?);
            }
            _ => {}
        }
    }
    let initializers = &model.initializers;
    model.inputs.retain(|input| !initializers.contains_key(input.name));
    Ok(model)
}

pub(crate) fn twice(name: &str) -> NetError {
    NetError::Format(format!("it defines {:?} twice", shown(name)))
}

fn limit(what: &'static str, got: usize, limit: usize) -> Result<(), NetError> {
    if got > limit { Err(NetError::Limit { what, got, limit }) } else { Ok(()) }
}

fn node(message: &[u8]) -> Result<Node<'_>, NetError> {
    let mut node = Node {
        name: "",
        operator: "",
        domain: "",
        inputs: Vec::new(),
        outputs: Vec::new(),
        attributes: HashMap::new(),
    };
    for field in fields(message) {
        match field? {
            (1, value) => {
                limit("inputs of a node", node.inputs.len() + 1, MAX_LIST)?;
                node.inputs.push(value.text()?);
            }
            (2, value) => {
                limit("outputs of a node", node.outputs.len() + 1, MAX_LIST)?;
                node.outputs.push(value.text()?);
            }
            (3, value) => node.name = value.text()?,
            (4, value) => node.operator = value.text()?,
            (5, value) => {
                limit("attributes of a node", node.attributes.len() + 1, MAX_ATTRIBUTES)?;
                let (name, attribute) = attribute(value.bytes()?)?;
                if node.attributes.insert(name, attribute).is_some() {
                    return Err(twice(name));
                }
            }
            (7, value) => node.domain = value.text()?,
            _ => {}
        }
    }
    if node.domain == "ai.onnx" {
        node.domain = "";
    }
    // A node without a name is known by its output.
    if node.name.is_empty() {
        node.name = node.outputs.first().copied().unwrap_or_default();
    }
    Ok(node)
}

fn attribute(message: &[u8]) -> Result<(&str, Attribute<'_>), NetError> {
    let (mut name, mut attribute) = ("", Attribute::default());
    for field in fields(message) {
        match field? {
            (1, value) => name = value.text()?,
            (2, value) => attribute.float = value.float()?,
            (3, value) => attribute.integer = value.integer()?,
            (4, value) => attribute.text = value.bytes()?,
            (5, value) => attribute.tensor = Some(constant::parse(value.bytes()?)?.content),
            (7, value) => value.floats(&mut attribute.floats)?,
            (8, value) => value.integers(&mut attribute.integers)?,
            (9, _) => attribute.texts += 1,
            _ => {}
        }
    }
    Ok((name, attribute))
}

fn port(message: &[u8]) -> Result<Port<'_>, NetError> {
    let mut port = Port { name: "", kind: PortType::Other };
    for field in fields(message) {
        match field? {
            (1, value) => port.name = value.text()?,
            (2, value) => {
                for field in fields(value.bytes()?) {
                    if let (1, value) = field? {
                        port.kind = tensor_type(value.bytes()?)?;
                    }
                }
            }
            _ => {}
        }
    }
    Ok(port)
}

fn tensor_type(message: &[u8]) -> Result<PortType, NetError> {
    let (mut element, mut dims) = (0, None);
    for field in fields(message) {
        match field? {
            (1, value) => element = value.integer()?,
            (2, value) => {
                let dims: &mut Vec<Option<i64>> = dims.insert(Vec::new());
                for field in fields(value.bytes()?) {
                    let (1, value) = field? else { continue };
                    limit("dimensions of an input or output", dims.len() + 1, MAX_LIST)?;
                    let mut size = None;
                    for field in fields(value.bytes()?) {
                        if let (1, value) = field? {
                            size = Some(value.integer()?).filter(|size| *size > 0);
                        }
                    }
                    dims.push(size);
                }
            }
            _ => {}
        }
    }
    Ok(PortType::Tensor { element, dims })
}
