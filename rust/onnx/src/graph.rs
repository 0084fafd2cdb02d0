//! Compiles the graph of a file: keeps the nodes that the score needs, and finds the score among the outputs.

use std::collections::{BTreeMap, HashSet};

use crate::NetError;
use crate::builder::{Builder, Tensor};
use crate::constant::volume;
use crate::file::{Model, Node, Port, PortType};
use crate::limits::shown;
use crate::lower;
use crate::math::Binary;
use crate::plan::{Norm, Operand, Step, Work};

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
    let mut builder = Builder::new(model.version, columns.len());
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
            {
                builder.define(name, tensor)?;
            }
        }
        *operators.entry(known.to_owned()).or_insert(0) += 1;
    }
    let Some(Tensor::Values { from, shape }) = builder.tensor(output.name) else {
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
