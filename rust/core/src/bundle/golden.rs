//! Golden cases: rows with the margins that the training library computed for them.
//!
//! Loading a bundle scores every case again and compares the results bit for bit. Of an ONNX model, whose own runtime gives
//! other last bits on every machine, the output is compared within a tolerance, and everything after it is computed from
//! the stored output, again bit for bit. A bundle whose answers would differ
//! with this engine, build or machine is therefore refused before it serves. `docs/bundle-format.md` describes the
//! layout of `golden.bin`.

use super::program::End;
use super::{Bundle, BundleError, EvalError, EvalScratch, FunctionSet, Kind, ScoreOut};
use crate::budget::Unlimited;
use crate::policy::{Mask, Policy};

/// Smallest number of cases that a bundle may have.
pub const MIN_CASES: usize = 256;
/// The checkpoint name that seeds the draws of golden selections; case `i` has the decision id `golden-<i>`.
pub const CHECKPOINT: &str = "golden";

/// Greatest difference between an output of an ONNX model and that of its own runtime, relative to outputs above 1.
pub const TOLERANCE: f64 = 1e-5;

const MAGIC: &[u8; 8] = b"SCGOLD1\n";

/// A case without the values that the engine adds to the expected results.
#[derive(Debug, Clone)]
pub struct GoldenInput {
    /// The request's features.
    pub row: Vec<f32>,
    /// The eligible actions; `None` for a score bundle.
    pub eligible: Option<Mask>,
    /// The training library's margins: those of every forest in program order, then the outputs of the ONNX models as
    /// their own runtime computes them. An action bundle has them once per
    /// eligible action, in catalogue order.
    pub margins: Vec<f64>,
}

/// The request of a golden case.
#[derive(Debug, Clone)]
pub struct GoldenRow {
    /// The request's features.
    pub row: Box<[f32]>,
    /// The eligible actions; `None` for a score bundle.
    pub eligible: Option<Mask>,
}

/// Evaluates the cases with a draft bundle and renders `golden.bin`.
///
/// # Errors
/// Fails if there are fewer than [`MIN_CASES`] cases, if the margins of a case differ in any bit from the training
/// library's, or if a case cannot be evaluated.
pub fn build(bundle: &Bundle, cases: &[GoldenInput]) -> Result<Vec<u8>, BundleError> {
    if cases.len() < MIN_CASES {
        return Err(few(cases.len()));
    }
    let shape = Shape::of(bundle);
    let mut file = MAGIC.to_vec();
    for number in [cases.len(), shape.row, shape.margins, shape.actions, shape.voters] {
        file.extend(u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
    }
    let mut scratch = whole(bundle);
    for (number, case) in cases.iter().enumerate() {
        let refuse = |reason: &str| BundleError::GoldenCase { case: number, reason: reason.to_owned() };
        if case.eligible.is_some() != (bundle.kind() == Kind::Action) {
            return Err(refuse("action bundles need an eligible set, score bundles must not have one"));
        }
        let needed = case.eligible.as_ref().map_or(1, Mask::count) * shape.margins;
        if needed != case.margins.len() {
            return Err(refuse(&format!("{} margins given, {needed} are needed", case.margins.len())));
        }
        let seen = evaluate(bundle, number, case, &mut scratch)?;
        file.extend(case.row.iter().flat_map(|value| value.to_le_bytes()));
        file.extend(case.eligible.iter().flat_map(Mask::to_bytes));
        let numbers = case.margins.iter().chain(&seen.scores).chain(&seen.pmf);
        file.extend(numbers.flat_map(|value| value.to_le_bytes()));
        file.extend(seen.choice.to_le_bytes());
    }
    Ok(file)
}

/// Renders `golden.bin` of a bundle's next revision. The cases and margins are those of `file`; the engine computes
/// all other values again.
///
/// # Errors
/// Fails if `file` is malformed or belongs to a bundle of another shape, and as [`build`] does.
pub fn revise(revision: &Bundle, file: &[u8]) -> Result<Vec<u8>, BundleError> {
    let mut inputs = Vec::new();
    for case in Cases::open(revision, file)? {
        inputs.push(case?.input);
    }
    build(revision, &inputs)
}

/// Scores every case of `golden.bin` again and returns the rows of the cases.
pub(super) fn verify(bundle: &Bundle, file: &[u8]) -> Result<Vec<GoldenRow>, BundleError> {
    let mut scratch = whole(bundle);
    // The number of cases is read from the file, so it is not trusted as a capacity.
    let mut golden = Vec::new();
    for (number, case) in Cases::open(bundle, file)?.enumerate() {
        let Case { input, scores, pmf, choice } = case?;
        let seen = evaluate(bundle, number, &input, &mut scratch)?;
        compare(number, "score", &seen.scores, &scores)?;
        compare(number, "probability", &seen.pmf, &pmf)?;
        compare(number, "choice", &[f64::from(seen.choice)], &[f64::from(choice)])?;
        golden.push(GoldenRow { row: input.row.into(), eligible: input.eligible });
    }
    Ok(golden)
}

/// Working memory with which every branch of a switch is evaluated, because a case has the margins of all forests.
fn whole(bundle: &Bundle) -> EvalScratch {
    let mut scratch = EvalScratch::new(bundle);
    scratch.buffers.whole = true;
    scratch
}

/// One case as it is stored in the file.
struct Case {
    input: GoldenInput,
    scores: Vec<f64>,
    pmf: Vec<f64>,
    choice: u32,
}

/// An iterator over the cases of a file.
struct Cases<'a> {
    bundle: &'a Bundle,
    shape: Shape,
    reader: Reader<'a>,
    next: usize,
    count: usize,
}

impl<'a> Cases<'a> {
    fn open(bundle: &'a Bundle, file: &'a [u8]) -> Result<Cases<'a>, BundleError> {
        let shape = Shape::of(bundle);
        let mut reader = Reader { rest: file };
        if reader.take(8)? != MAGIC {
            return Err(BundleError::GoldenFile("does not start with SCGOLD1".to_owned()));
        }
        let count = reader.u32()? as usize;
        if count < MIN_CASES {
            return Err(few(count));
        }
        let header = [
            ("features", shape.row),
            ("margins", shape.margins),
            ("actions", shape.actions),
            ("voters", shape.voters),
        ];
        for (what, expected) in header {
            let found = reader.u32()? as usize;
            if found != expected {
                return Err(BundleError::GoldenFile(format!(
                    "is for {found} {what}, the bundle has {expected}"
                )));
            }
        }
        Ok(Cases { bundle, shape, reader, next: 0, count })
    }

    fn read(&mut self) -> Result<Case, BundleError> {
        let Cases { bundle, shape, reader, next: number, .. } = self;
        let refuse = |reason: String| BundleError::GoldenCase { case: *number, reason };
        let row: Vec<f32> = reader.array(shape.row, f32::from_le_bytes)?;
        let eligible = if bundle.kind() == Kind::Action {
            let bytes = reader.take(shape.actions.div_ceil(8))?;
            Some(Mask::from_bytes(shape.actions, bytes).map_err(|error| refuse(error.to_string()))?)
        } else {
            None
        };
        bundle.schema.check_dense(&row).map_err(|error| refuse(error.to_string()))?;
        let rows = eligible.as_ref().map_or(1, Mask::count);
        let margins = reader.array(rows * shape.margins, f64::from_le_bytes)?;
        let scores = reader.array(rows * (1 + shape.voters), f64::from_le_bytes)?;
        let pmf = reader.array(if eligible.is_some() { rows } else { 0 }, f64::from_le_bytes)?;
        let choice = reader.u32()?;
        Ok(Case { input: GoldenInput { row, eligible, margins }, scores, pmf, choice })
    }
}

impl Iterator for Cases<'_> {
    type Item = Result<Case, BundleError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next < self.count {
            let case = self.read();
            self.next += 1;
            return Some(case);
        }
        // Bytes after the last case are an error.
        let left = std::mem::take(&mut self.reader.rest).len();
        let surplus = || BundleError::GoldenFile(format!("{left} bytes follow the last case"));
        (left > 0).then(|| Err(surplus()))
    }
}

fn few(cases: usize) -> BundleError {
    BundleError::GoldenFile(format!("{cases} cases, at least {MIN_CASES} are needed"))
}

/// The numbers of features, margins, actions and voters that determine the layout of a golden file.
struct Shape {
    row: usize,
    margins: usize,
    actions: usize,
    voters: usize,
}

impl Shape {
    fn of(bundle: &Bundle) -> Shape {
        Shape {
            row: bundle.schema.len(),
            margins: bundle.num_margins(),
            actions: bundle.catalogue.len(),
            voters: bundle.program.voters.len(),
        }
    }
}

/// The values that the engine computes for one case, in the order of the file, without the margins.
struct Seen {
    scores: Vec<f64>,
    pmf: Vec<f64>,
    choice: u32,
}

/// Evaluates a case and compares its margins.
fn evaluate(
    bundle: &Bundle,
    number: usize,
    case: &GoldenInput,
    scratch: &mut EvalScratch,
) -> Result<Seen, BundleError> {
    let fail = |error: EvalError| BundleError::GoldenCase { case: number, reason: error.to_string() };
    match (&bundle.program.end, &case.eligible) {
        (End::Policy(policy), Some(eligible)) => {
            let (margins, seen) =
                evaluate_actions(bundle, policy, number, &case.row, eligible, scratch).map_err(fail)?;
            compare(number, "margin", &margins, &case.margins)?;
            Ok(seen)
        }
        _ => {
            let mut out = bundle.score(&case.row, &Unlimited, scratch).map_err(fail)?;
            let program = &bundle.program;
            let values = &scratch.buffers.values;
            let margins: Vec<f64> =
                program.margins.iter().flat_map(|range| &values[range.clone()]).copied().collect();
            compare(number, "margin", &margins, &case.margins[..margins.len()])?;
            if !program.nets.is_empty() {
                let outputs = &case.margins[margins.len()..];
                compare_outputs(bundle, number, values, outputs)?;
                out = from_outputs(bundle, outputs, scratch).map_err(fail)?;
            }
            let choice = u32::try_from(out.band).unwrap_or(u32::MAX);
            Ok(Seen { scores: vec![out.score], pmf: Vec::new(), choice })
        }
    }
}

/// Compares the outputs of ONNX models with those of their own runtime, within [`TOLERANCE`].
fn compare_outputs(
    bundle: &Bundle,
    case: usize,
    values: &[f64],
    expected: &[f64],
) -> Result<(), BundleError> {
    for (node, &expected) in bundle.program.nets.iter().zip(expected) {
        let got = values[node.margin];
        // A NaN on one side alone is a difference.
        let near = (got - expected).abs() <= TOLERANCE * expected.abs().max(1.0);
        let same = near || (got.is_nan() && expected.is_nan());
        if !same {
            return Err(BundleError::GoldenOutput { case, file: node.file.clone(), got, expected });
        }
    }
    Ok(())
}

/// Computes the score from these outputs of the ONNX models, and from the margins that the buffer holds.
fn from_outputs(bundle: &Bundle, outputs: &[f64], scratch: &mut EvalScratch) -> Result<ScoreOut, EvalError> {
    let program = &bundle.program;
    for (node, &output) in program.nets.iter().zip(outputs) {
        scratch.buffers.values[node.margin] = output;
    }
    for step in &program.steps {
        program.value(step, &mut scratch.buffers);
    }
    bundle.band(&scratch.buffers.values, FunctionSet::default())
}

fn evaluate_actions(
    bundle: &Bundle,
    policy: &Policy,
    number: usize,
    row: &[f32],
    eligible: &Mask,
    scratch: &mut EvalScratch,
) -> Result<(Vec<f64>, Seen), EvalError> {
    let out = bundle.select(row, eligible, CHECKPOINT, &format!("golden-{number}"), &Unlimited, scratch)?;
    let actions = bundle.catalogue.len();
    let columns = &scratch.columns;
    let each = |at: usize| {
        let values = bundle.program.margins.iter().flat_map(Clone::clone);
        values.map(move |value| columns.of(value)[at])
    };
    let voter = |action: usize| (0..=policy.voters()).map(move |voter| voter * actions + action);
    let seen = Seen {
        scores: eligible.iter().flat_map(voter).map(|at| scratch.scores[at]).collect(),
        pmf: eligible.iter().map(|action| scratch.pmf[action]).collect(),
        choice: u32::try_from(out.index).unwrap_or(u32::MAX),
    };
    Ok(((0..columns.eligible.len()).flat_map(each).collect(), seen))
}

fn compare(case: usize, what: &str, got_all: &[f64], expected: &[f64]) -> Result<(), BundleError> {
    let differs = |(got, expected): &(&f64, &f64)| got.to_bits() != expected.to_bits();
    match got_all.iter().zip(expected).enumerate().find(|(_, pair)| differs(pair)) {
        None => Ok(()),
        Some((at, (&got, &expected))) => Err(BundleError::Golden {
            case,
            // A single number needs no position.
            what: if got_all.len() == 1 { what.to_owned() } else { format!("{what} {at}") },
            got: got.to_bits(),
            expected: expected.to_bits(),
            got_value: got,
            expected_value: expected,
        }),
    }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], BundleError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(bytes)
            .ok_or_else(|| BundleError::GoldenFile("ends in the middle of a case".to_owned()))?;
        self.rest = rest;
        Ok(taken)
    }

    fn u32(&mut self) -> Result<u32, BundleError> {
        Ok(self.array(1, u32::from_le_bytes)?[0])
    }

    fn array<T, const N: usize>(
        &mut self,
        count: usize,
        read: fn([u8; N]) -> T,
    ) -> Result<Vec<T>, BundleError> {
        let bytes = self.take(count.saturating_mul(N))?;
        let (chunks, _) = bytes.as_chunks::<N>();
        Ok(chunks.iter().map(|chunk| read(*chunk)).collect())
    }
}
