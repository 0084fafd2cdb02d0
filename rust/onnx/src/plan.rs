//! The compiled form of a net: a flat list of steps over one buffer.
//!
//! The buffer begins with the row. Each step reads values that are before its own and writes behind them.

use crate::math::{Binary, Unary};

/// Columns of a matrix that are computed together, in registers.
const PANEL: usize = 32;
/// Number of multiplications between two questions whether to stop.
pub(crate) const CHUNK: usize = 1 << 16;

/// The evaluation was stopped before its end, so there is no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the evaluation of the net was stopped")]
pub struct Stopped;

#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) work: Work,
    /// Position of the first result.
    pub(crate) to: usize,
    /// Number of results.
    pub(crate) len: usize,
}

#[derive(Debug)]
pub(crate) enum Work {
    Dense(Dense),
    Unary {
        function: Unary,
        from: usize,
    },
    Binary {
        function: Binary,
        left: Operand,
        right: Operand,
    },
    Softmax {
        from: usize,
        log: bool,
    },
    Normalize {
        norm: Norm,
        from: usize,
    },
    Reduce {
        function: Reduction,
        from: usize,
        count: usize,
    },
    LayerNorm {
        from: usize,
        epsilon: f32,
    },
    /// Copies values from these positions.
    Pick {
        positions: Box<[u32]>,
    },
}

/// A side of a binary function. If it has one value, that is used for all results.
#[derive(Debug)]
pub(crate) enum Operand {
    Values { from: usize, len: usize },
    Constant(Box<[f32]>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Norm {
    Max,
    L1,
    L2,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reduction {
    Sum,
    Mean,
    Max,
    Min,
}

/// A product of the row vector at `from` with a matrix, and the sum with a vector.
#[derive(Debug)]
pub(crate) struct Dense {
    from: usize,
    inputs: usize,
    /// Panels of `PANEL` columns, each `[inputs, PANEL]`; the last one is filled up with 0.
    weights: Box<[f32]>,
    /// One number for each column, filled up as the weights are.
    bias: Box<[f32]>,
}

impl Dense {
    /// Packs a matrix, of which `weight(row, column)` returns an element. `bias` has one number per column.
    pub(crate) fn new(
        from: usize,
        inputs: usize,
        bias: &[f32],
        weight: impl Fn(usize, usize) -> f32,
    ) -> Dense {
        let outputs = bias.len();
        let panels = outputs.div_ceil(PANEL);
        let mut weights = vec![0.0; panels * inputs * PANEL].into_boxed_slice();
        for (at, packed) in weights.iter_mut().enumerate() {
            let column = at / (inputs * PANEL) * PANEL + at % PANEL;
            if column < outputs {
                *packed = weight(at / PANEL % inputs, column);
            }
        }
        let mut padded = bias.to_vec();
        padded.resize(panels * PANEL, 0.0);
        Dense { from, inputs, weights, bias: padded.into() }
    }

    /// The number of constants that a matrix of this size needs.
    pub(crate) fn constants(inputs: usize, outputs: usize) -> usize {
        outputs.div_ceil(PANEL).saturating_mul(PANEL).saturating_mul(inputs.saturating_add(1))
    }

    fn run(&self, before: &[f32], out: &mut [f32], stop: &mut dyn FnMut() -> bool) -> Result<(), Stopped> {
        let row = &before[self.from..][..self.inputs];
        let (panels, _) = self.bias.as_chunks::<PANEL>();
        let work = self.inputs * PANEL;
        let mut unchecked = 0;
        for (at, (out, bias)) in out.chunks_mut(PANEL).zip(panels).enumerate() {
            if unchecked + work > CHUNK && at > 0 {
                unchecked = 0;
                if stop() {
                    return Err(Stopped);
                }
            }
            unchecked += work;
            let (weights, _) = self.weights[at * work..][..work].as_chunks::<PANEL>();
            let mut sums = *bias;
            // The order of additions is that of the columns of the row, whatever the width of the vectors.
            for (value, weights) in row.iter().zip(weights) {
                for (sum, weight) in sums.iter_mut().zip(weights) {
                    *sum += value * weight;
                }
            }
            out.copy_from_slice(&sums[..out.len()]);
        }
        Ok(())
    }
}

impl Step {
    pub(crate) fn run(&self, buffer: &mut [f32], stop: &mut dyn FnMut() -> bool) -> Result<(), Stopped> {
        let (before, rest) = buffer.split_at_mut(self.to);
        let out = &mut rest[..self.len];
        match &self.work {
            Work::Dense(dense) => dense.run(before, out, stop)?,
            Work::Unary { function, from } => function.apply(&before[*from..][..out.len()], out),
            Work::Binary { function, left, right } => {
                binary(*function, left.of(before), right.of(before), out)
            }
            Work::Softmax { from, log } => softmax(&before[*from..][..out.len()], *log, out),
            Work::Normalize { norm, from } => normalize(*norm, &before[*from..][..out.len()], out),
            Work::Reduce { function, from, count } => out[0] = function.of(&before[*from..][..*count]),
            Work::LayerNorm { from, epsilon } => layer_norm(*epsilon, &before[*from..][..out.len()], out),
            Work::Pick { positions } => {
                for (out, &position) in out.iter_mut().zip(positions) {
                    *out = before[position as usize];
                }
            }
        }
        Ok(())
    }

    /// The work of the step, in multiplications.
    pub(crate) fn cost(&self) -> usize {
        match &self.work {
            Work::Dense(dense) => dense.weights.len(),
            Work::Reduce { count, .. } => *count,
            // A function of a number takes about as long as this many multiplications.
            _ => self.len * 32,
        }
    }

    /// The number of constants that the step holds.
    pub(crate) fn constants(&self) -> usize {
        match &self.work {
            Work::Dense(dense) => dense.weights.len() + dense.bias.len(),
            Work::Binary { left, right, .. } => left.constants() + right.constants(),
            Work::Pick { positions } => positions.len(),
            _ => 0,
        }
    }
}

impl Operand {
    fn of<'a>(&'a self, before: &'a [f32]) -> &'a [f32] {
        match self {
            Operand::Values { from, len } => &before[*from..][..*len],
            Operand::Constant(numbers) => numbers,
        }
    }

    fn constants(&self) -> usize {
        match self {
            Operand::Values { .. } => 0,
            Operand::Constant(numbers) => numbers.len(),
        }
    }
}

fn binary(function: Binary, left: &[f32], right: &[f32], out: &mut [f32]) {
    match (left, right) {
        (&[left], &[right]) => out.fill(function.apply(left, right)),
        (&[left], right) => {
            out.iter_mut().zip(right).for_each(|(out, &right)| *out = function.apply(left, right))
        }
        (left, &[right]) => {
            out.iter_mut().zip(left).for_each(|(out, &left)| *out = function.apply(left, right))
        }
        (left, right) => {
            for ((out, &left), &right) in out.iter_mut().zip(left).zip(right) {
                *out = function.apply(left, right);
            }
        }
    }
}

fn softmax(from: &[f32], log: bool, out: &mut [f32]) {
    let most = Reduction::Max.of(from);
    let mut sum = 0.0;
    for (out, &value) in out.iter_mut().zip(from) {
        *out = libm::expf(value - most);
        sum += *out;
    }
    if log {
        let sum = libm::logf(sum);
        out.iter_mut().zip(from).for_each(|(out, &value)| *out = value - most - sum);
    } else {
        out.iter_mut().for_each(|out| *out /= sum);
    }
}

fn normalize(norm: Norm, from: &[f32], out: &mut [f32]) {
    let size = match norm {
        Norm::Max => Reduction::Max.of(from),
        Norm::L1 => from.iter().fold(0.0, |sum, value| sum + value.abs()),
        Norm::L2 => from.iter().fold(0.0f32, |sum, value| sum + value * value).sqrt(),
    };
    // A vector of zeros stays as it is.
    let size = if size == 0.0 { 1.0 } else { size };
    out.iter_mut().zip(from).for_each(|(out, &value)| *out = value / size);
}

fn layer_norm(epsilon: f32, from: &[f32], out: &mut [f32]) {
    let mean = Reduction::Mean.of(from);
    let variance =
        from.iter().fold(0.0, |sum, value| sum + (value - mean) * (value - mean)) / from.len() as f32;
    let scale = 1.0 / (variance + epsilon).sqrt();
    out.iter_mut().zip(from).for_each(|(out, &value)| *out = (value - mean) * scale);
}

impl Reduction {
    fn of(self, values: &[f32]) -> f32 {
        let sum = || values.iter().fold(0.0, |sum, value| sum + value);
        match self {
            Reduction::Sum => sum(),
            Reduction::Mean => sum() / values.len() as f32,
            Reduction::Max => {
                values.iter().fold(f32::NEG_INFINITY, |most, &value| Binary::Max.apply(value, most))
            }
            Reduction::Min => {
                values.iter().fold(f32::INFINITY, |least, &value| Binary::Min.apply(value, least))
            }
        }
    }
}
