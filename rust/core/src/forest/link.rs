//! Link functions, which compute predictions from margins with the arithmetic of the training library.

use super::Precision;

/// The function that computes predictions from margins.
///
/// In f32 forests the arithmetic is XGBoost's, in f64 forests LightGBM's and scikit-learn's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Link {
    /// The margins themselves.
    Identity,
    /// `1 / (1 + exp(-alpha x))` of each output.
    Sigmoid {
        /// LightGBM's `sigmoid` parameter; 1 for other libraries.
        alpha: f64,
    },
    /// Probabilities over the outputs.
    Softmax,
    /// Index of the largest output, the first one at a tie. There is one prediction per row.
    ArgMax,
    /// `exp(x)` of each output.
    Exp,
    /// 1 if the margin is above 0, otherwise 0 (XGBoost's `binary:hinge`).
    Hinge,
    /// `ln(1 + exp(x))` of each output (LightGBM's `cross_entropy_lambda`).
    LogOnePlusExp,
    /// `sign(x) x²` of each output (LightGBM's `reg_sqrt`).
    SignedSquare,
    /// `2^(-x / scale)`: the anomaly score of an isolation forest whose margin is the summed path length.
    ExpBase2 {
        /// Number of trees × average path length of an unsuccessful search.
        scale: f64,
    },
    /// Each output is divided by the sum of all (one-versus-rest votes).
    Normalize,
}

impl Link {
    /// Whether each output depends only on its own margin, so that outputs of several rows may be passed to
    /// [`super::Forest::transform`] together.
    #[must_use]
    pub fn is_elementwise(self) -> bool {
        !matches!(self, Self::Softmax | Self::ArgMax | Self::Normalize)
    }

    /// Applies the link in place.
    pub(super) fn apply(self, precision: Precision, outputs: &mut [f64]) {
        match precision {
            Precision::F32 => self.apply_f32(outputs),
            Precision::F64 => self.apply_f64(outputs),
        }
    }

    fn apply_f32(self, outputs: &mut [f64]) {
        match self {
            Self::Sigmoid { alpha } => map_f32(outputs, |x| sigmoid_f32(scale_f32(x, alpha))),
            Self::Exp => map_f32(outputs, f32::exp),
            Self::Softmax => softmax_f32(outputs),
            Self::LogOnePlusExp => map_f32(outputs, |x| x.exp().ln_1p()),
            Self::SignedSquare => map_f32(outputs, |x| (x * x).copysign(x)),
            Self::ExpBase2 { scale } => map_f32(outputs, |x| (-x / narrow(scale)).exp2()),
            Self::Identity | Self::ArgMax | Self::Hinge | Self::Normalize => self.apply_f64(outputs),
        }
    }

    fn apply_f64(self, outputs: &mut [f64]) {
        match self {
            Self::Identity => {}
            Self::Sigmoid { alpha } => map(outputs, |x| 1.0 / (1.0 + (-alpha * x).exp())),
            Self::Exp => map(outputs, f64::exp),
            Self::Softmax => softmax_f64(outputs),
            Self::ArgMax => argmax(outputs),
            Self::Hinge => map(outputs, |x| if x > 0.0 { 1.0 } else { 0.0 }),
            Self::LogOnePlusExp => map(outputs, |x| x.exp().ln_1p()),
            Self::SignedSquare => map(outputs, |x| (x * x).copysign(x)),
            Self::ExpBase2 { scale } => map(outputs, |x| (-(x / scale)).exp2()),
            Self::Normalize => {
                let sum: f64 = outputs.iter().sum();
                map(outputs, |x| x / sum);
            }
        }
    }
}

fn map(outputs: &mut [f64], f: impl Fn(f64) -> f64) {
    for output in outputs {
        *output = f(*output);
    }
}

fn map_f32(outputs: &mut [f64], f: impl Fn(f32) -> f32) {
    map(outputs, |x| f64::from(f(narrow(x))));
}
fn narrow(x: f64) -> f32 {
    x as f32
}

fn scale_f32(x: f32, alpha: f64) -> f32 {
    // XGBoost has no alpha. A product with 1 is exact.
    narrow(alpha) * x
}

/// XGBoost's sigmoid. The argument of `exp` is limited so that the result stays finite. The constant 1e-16 is in
/// XGBoost's source, although it has no effect in f32.
fn sigmoid_f32(x: f32) -> f32 {
    let denominator = (-x).min(88.7).exp() + 1.0 + 1e-16;
    1.0 / denominator
}

/// XGBoost's softmax, with terms in f32, their sum in f64 and quotients in f32.
fn softmax_f32(outputs: &mut [f64]) {
    let max = outputs.iter().map(|&x| narrow(x)).fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0_f64;
    for output in outputs.iter_mut() {
        let term = (narrow(*output) - max).exp();
        sum += f64::from(term);
        *output = f64::from(term);
    }
    let sum = narrow(sum);
    map_f32(outputs, |term| term / sum);
}

fn softmax_f64(outputs: &mut [f64]) {
    let max = outputs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut sum = 0.0;
    for output in outputs.iter_mut() {
        *output = (*output - max).exp();
        sum += *output;
    }
    map(outputs, |term| term / sum);
}

fn argmax(outputs: &mut [f64]) {
    let mut best = 0;
    for (i, &output) in outputs.iter().enumerate() {
        if output > outputs[best] {
            best = i;
        }
    }
    outputs.fill(0.0);
    if let Some(first) = outputs.first_mut() {
        // Class counts are far below 2^53.
        *first = f64::from(u32::try_from(best).unwrap_or(u32::MAX));
    }
}
