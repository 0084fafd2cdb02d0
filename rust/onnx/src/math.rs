//! Functions of one or two numbers, in float32 and with the same bits on every machine.

/// A function of one number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Unary {
    Relu,
    LeakyRelu(f32),
    Elu(f32),
    Selu {
        alpha: f32,
        gamma: f32,
    },
    ThresholdedRelu(f32),
    Sigmoid,
    HardSigmoid {
        alpha: f32,
        beta: f32,
    },
    HardSwish,
    Tanh,
    Softplus,
    Softsign,
    Gelu,
    GeluTanh,
    Erf,
    Exp,
    Log,
    Sqrt,
    Neg,
    Abs,
    Reciprocal,
    Clip {
        low: f32,
        high: f32,
    },
    /// 1 above the threshold, otherwise 0.
    Binarize(f32),
}

/// A function of two numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    Pow,
    Min,
    Max,
    /// `x` above 0, otherwise `slope * x`.
    Prelu,
    /// The right number in place of a missing left one.
    Fill,
}

impl Unary {
    /// Writes the function of each number.
    pub(crate) fn apply(self, from: &[f32], to: &mut [f32]) {
        // One loop for each function, so that the compiler vectorises the simple ones.
        match self {
            Unary::Relu => map(from, to, |x| if x < 0.0 { 0.0 } else { x }),
            Unary::LeakyRelu(alpha) => map(from, to, |x| if x < 0.0 { alpha * x } else { x }),
            Unary::Elu(alpha) => map(from, to, |x| if x < 0.0 { alpha * libm::expm1f(x) } else { x }),
            Unary::Selu { alpha, gamma } => {
                map(from, to, |x| gamma * if x > 0.0 { x } else { alpha * libm::expm1f(x) });
            }
            Unary::ThresholdedRelu(alpha) => map(from, to, |x| if x > alpha { x } else { 0.0 }),
            Unary::Sigmoid => map(from, to, sigmoid),
            Unary::HardSigmoid { alpha, beta } => map(from, to, |x| (alpha * x + beta).clamp(0.0, 1.0)),
            Unary::HardSwish => map(from, to, |x| x * (x / 6.0 + 0.5).clamp(0.0, 1.0)),
            Unary::Tanh => map(from, to, libm::tanhf),
            Unary::Softplus => map(from, to, |x| x.max(0.0) + libm::log1pf(libm::expf(-x.abs()))),
            Unary::Softsign => map(from, to, |x| x / (1.0 + x.abs())),
            Unary::Gelu => {
                map(from, to, |x| 0.5 * x * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2)))
            }
            Unary::GeluTanh => {
                map(from, to, |x| 0.5 * x * (1.0 + libm::tanhf(0.797_884_6 * (x + 0.044_715 * x * x * x))))
            }
            Unary::Erf => map(from, to, libm::erff),
            Unary::Exp => map(from, to, libm::expf),
            Unary::Log => map(from, to, libm::logf),
            Unary::Sqrt => map(from, to, f32::sqrt),
            Unary::Neg => map(from, to, |x| -x),
            Unary::Abs => map(from, to, f32::abs),
            Unary::Reciprocal => map(from, to, |x| 1.0 / x),
            // Not `clamp`, which requires low <= high. A missing value stays one.
            Unary::Clip { low, high } => map(from, to, |x| {
                let raised = if x < low { low } else { x };
                if raised > high { high } else { raised }
            }),
            Unary::Binarize(threshold) => map(from, to, |x| if x > threshold { 1.0 } else { 0.0 }),
        }
    }

    /// Whether every result is from 0 to 1, whatever the number.
    pub(crate) fn is_probability(self) -> bool {
        matches!(self, Unary::Sigmoid | Unary::HardSigmoid { .. } | Unary::Binarize(_))
    }
}

impl Binary {
    pub(crate) fn apply(self, left: f32, right: f32) -> f32 {
        match self {
            Binary::Add => left + right,
            Binary::Sub => left - right,
            Binary::Mul => left * right,
            Binary::Div => left / right,
            Binary::Pow => libm::powf(left, right),
            // A missing value stays one; `f32::min` would drop it.
            Binary::Min if left.is_nan() || left < right => left,
            Binary::Max if left.is_nan() || left > right => left,
            Binary::Min | Binary::Max => right,
            Binary::Prelu if left < 0.0 => right * left,
            Binary::Fill if left.is_nan() => right,
            Binary::Prelu | Binary::Fill => left,
        }
    }
}

pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + libm::expf(-x))
}

fn map(from: &[f32], to: &mut [f32], function: impl Fn(f32) -> f32) {
    for (to, &from) in to.iter_mut().zip(from) {
        *to = function(from);
    }
}
