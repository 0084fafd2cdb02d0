//! Constants and casts.

use std::rc::Rc;

use super::attributes::integer;
use crate::builder::{Builder, Tensor};
use crate::constant::{Constant, Data};
use crate::file::{Attribute, Node};

pub(super) fn constant(node: &Node<'_>) -> Result<Constant, String> {
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

pub(super) fn integers(values: Vec<i64>) -> Tensor {
    Tensor::Constant(Constant { shape: vec![values.len()], data: Rc::new(Data::Integers(values)) })
}

pub(super) fn cast<'a>(builder: &mut Builder<'a>, node: &Node<'a>) -> Result<Tensor, String> {
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
