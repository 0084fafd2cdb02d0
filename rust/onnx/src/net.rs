//! A net that is ready to run.

use crate::NetError;
use crate::file;
use crate::graph;
use crate::plan::{CHUNK, Step, Stopped};

/// How a net is used.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct NetOptions {
    /// Which value of the output is the score. Without it the output has one value, or two, of which the second one is
    /// the positive class.
    pub index: Option<usize>,
    /// The number that takes the place of a missing value; without it the net reads NaN.
    pub missing: Option<f32>,
}

/// A compiled model, `Send + Sync`.
pub struct Net {
    steps: Box<[Step]>,
    width: usize,
    values: usize,
    constants: usize,
    score: usize,
    probability: bool,
    missing: Option<f32>,
    operators: Box<[(String, usize)]>,
}

/// The memory of one evaluation at a time.
#[derive(Debug, Clone)]
pub struct NetScratch {
    buffer: Vec<f32>,
}

impl NetScratch {
    /// Allocates what an evaluation of this net needs.
    #[must_use]
    pub fn new(net: &Net) -> NetScratch {
        NetScratch { buffer: vec![0.0; net.values] }
    }
}

impl std::fmt::Debug for Net {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the weights.
        f.debug_struct("Net")
            .field("width", &self.width)
            .field("constants", &self.constants)
            .field("operators", &self.operators)
            .finish_non_exhaustive()
    }
}

impl Net {
    /// Parses and compiles a file.
    ///
    /// The model has either one input of all `columns`, or one input `[rows, 1]` for each of them, with its name.
    ///
    /// # Errors
    /// Fails if the file is damaged or exceeds a limit, has an operator that is not supported or data in another file,
    /// or does not compute one score from these columns.
    pub fn parse(bytes: &[u8], columns: &[&str], options: NetOptions) -> Result<Net, NetError> {
        let model = file::parse(bytes)?;
        let compiled = graph::compile(&model, columns, options.index)?;
        Ok(Net {
            steps: compiled.steps.into(),
            width: columns.len(),
            values: compiled.values,
            constants: compiled.constants,
            score: compiled.score,
            probability: compiled.probability,
            missing: options.missing,
            operators: compiled.operators.into_iter().collect(),
        })
    }

    /// Number of columns of a row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Whether the score is from 0 to 1, whatever the row.
    #[must_use]
    pub fn is_probability(&self) -> bool {
        self.probability
    }

    /// The operators that the score needs, in alphabetical order, with the number of nodes of each.
    #[must_use]
    pub fn operators(&self) -> &[(String, usize)] {
        &self.operators
    }

    /// Number of constants, which are mostly weights. Matrices are filled up to a multiple of 32 columns.
    #[must_use]
    pub fn constants(&self) -> usize {
        self.constants
    }

    /// Heap memory in bytes.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        4 * self.constants + size_of_val(&*self.steps)
    }

    /// Computes the score of a row of [`Net::width`] values. It allocates no memory.
    ///
    /// `stop` is called at the start and then about every 65,536 multiplications, between steps and within products.
    ///
    /// # Errors
    /// Fails if `stop` returned true.
    ///
    /// # Panics
    /// Panics if the row has another length or the scratch was made for another net.
    pub fn run(
        &self,
        row: &[f32],
        scratch: &mut NetScratch,
        mut stop: impl FnMut() -> bool,
    ) -> Result<f32, Stopped> {
        let buffer = &mut scratch.buffer[..self.values];
        let first = &mut buffer[..self.width];
        first.copy_from_slice(row);
        if let Some(number) = self.missing {
            first.iter_mut().filter(|value| value.is_nan()).for_each(|value| *value = number);
        }
        if stop() {
            return Err(Stopped);
        }
        let mut unchecked = 0;
        for step in &self.steps {
            if unchecked >= CHUNK {
                unchecked = 0;
                if stop() {
                    return Err(Stopped);
                }
            }
            step.run(buffer, &mut stop)?;
            unchecked += step.cost();
        }
        Ok(buffer[self.score])
    }
}
