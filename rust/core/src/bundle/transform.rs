//! The transform node, which computes a row from a row: it replaces single features by functions of them, and adds columns.
//!
//! The steps run in their order, and a step reads columns as earlier steps left them. Each result is computed in float64
//! and rounded once to float32.

use std::sync::Arc;

use scorer_wasm::Instances;
use scorer_wasm::limits::MAX_ARGUMENTS;

use super::EvalError;
use super::date::Part;
use super::functions::CustomFunctions;
use super::node::{TransformStep, ZeroDivisor};
use super::tables::Tables;
use crate::budget::{Budget, OutOfTime};
use crate::schema::{FeatureSpec, FeatureType, MissingRule, UnknownCategoryRule};

/// Greatest number of columns of a row slot.
const MAX_COLUMNS: usize = 12_288;
/// Greatest number of edges of a bucket.
const MAX_EDGES: usize = 4096;
/// Length of the longest name of a column, in bytes.
const MAX_NAME: usize = 128;

/// A column of a row slot.
#[derive(Debug, Clone)]
pub(super) struct Column {
    /// Name, type and range.
    pub(super) spec: Arc<FeatureSpec>,
    /// The columns of the input's row that its value is computed from, ascending.
    pub(super) origins: Arc<[usize]>,
}

/// The columns of the input's row.
pub(super) fn input_columns(features: &[FeatureSpec]) -> Vec<Column> {
    let column =
        |(at, spec): (usize, &FeatureSpec)| Column { spec: Arc::new(spec.clone()), origins: Arc::new([at]) };
    features.iter().enumerate().map(column).collect()
}

/// A compiled transform.
#[derive(Debug, Clone)]
pub(super) struct Transform {
    steps: Vec<Step>,
}

#[derive(Debug, Clone)]
struct Step {
    to: usize,
    function: Function,
}

#[derive(Debug, Clone)]
enum Function {
    Log1p { from: usize },
    Standardise { from: usize, mean: f64, scale: f64 },
    Clip { from: usize, low: f64, high: f64 },
    Bucket { from: usize, edges: Box<[f32]> },
    Missing { from: usize },
    Arithmetic { left: usize, right: usize, operation: Operation },
    Table { from: usize, values: Box<[f32]>, default: f32 },
    DatePart { from: usize, part: Part, offset: f64 },
    Custom { function: usize, from: Box<[usize]> },
}

/// What an application of a transform needs besides the row.
pub(super) struct Run<'a> {
    pub(super) budget: &'a dyn Budget,
    /// The functions of the bundle, if the transform calls one.
    pub(super) calls: Option<&'a mut Instances>,
    /// The columns from here on are not computed.
    pub(super) until: usize,
}

#[derive(Debug, Clone, Copy)]
enum Operation {
    Add,
    Subtract,
    Multiply,
    Ratio {
        /// The result for a divisor of 0, and for a quotient that is not finite in float32; `None` for a missing value.
        zero: Option<f64>,
    },
}

impl Transform {
    /// Checks and compiles the steps, and returns the columns of the new row. `columns` are those of the row that is
    /// read.
    pub(super) fn compile(
        steps: &[TransformStep],
        columns: &[Column],
        tables: &mut Tables,
        functions: Option<&CustomFunctions>,
    ) -> Result<(Transform, Vec<Column>), String> {
        let mut builder =
            Builder { columns: columns.to_vec(), written: vec![false; columns.len()], tables, functions };
        let mut compiled = Vec::with_capacity(steps.len());
        for (at, step) in steps.iter().enumerate() {
            let step =
                builder.add(step).map_err(|reason| format!("step {at} ({}): {reason}", step.function()))?;
            compiled.push(step);
        }
        Ok((Transform { steps: compiled }, builder.columns))
    }

    /// For each function of the bundle whether a step calls it.
    pub(super) fn calls(&self, functions: &CustomFunctions) -> Vec<bool> {
        let called = |at| {
            let calls =
                |step: &Step| matches!(&step.function, Function::Custom { function, .. } if *function == at);
            self.steps.iter().any(calls)
        };
        (0..functions.entries().len()).map(called).collect()
    }

    /// Transforms `row` in place; it has the columns that are read, and room for those that are added.
    ///
    /// # Errors
    /// Fails if a value does not stay finite, or if the budget is spent before a function of the bundle is called.
    pub(super) fn apply(&self, row: &mut [f32], run: &mut Run<'_>) -> Result<(), EvalError> {
        for Step { to, function } in &self.steps {
            if *to >= run.until {
                continue;
            }
            if let Function::Custom { function, from } = function {
                if run.budget.spent() {
                    return Err(OutOfTime.into());
                }
                row[*to] = custom(*function, from, row, run.calls.as_deref_mut());
                continue;
            }
            row[*to] = match function.of(row) {
                None => f32::NAN,
                Some(result) => {
                    let rounded = result as f32;
                    if !rounded.is_finite() {
                        return Err(EvalError::NotFinite { what: "a transformed feature", value: result });
                    }
                    rounded
                }
            };
        }
        Ok(())
    }

    /// Whether the columns before `context` and those from it on are computed independently of each other.
    pub(super) fn separates(&self, context: usize) -> bool {
        self.steps.iter().all(|step| {
            let own = step.to < context;
            step.function.inputs().into_iter().all(|input| (input < context) == own)
        })
    }

    /// Heap memory in bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        let of = |step: &Step| match &step.function {
            Function::Bucket { edges, .. } => size_of_val(&**edges),
            Function::Table { values, .. } => size_of_val(&**values),
            Function::Custom { from, .. } => size_of_val(&**from),
            _ => 0,
        };
        self.steps.capacity() * size_of::<Step>() + self.steps.iter().map(of).sum::<usize>()
    }
}

/// The result of a function of the bundle, rounded to float32; NaN if it is missing.
fn custom(function: usize, from: &[usize], row: &[f32], calls: Option<&mut Instances>) -> f32 {
    let Some(calls) = calls else { return f32::NAN };
    let mut arguments = [0.0; MAX_ARGUMENTS];
    let arguments = &mut arguments[..from.len().min(MAX_ARGUMENTS)];
    for (argument, column) in arguments.iter_mut().zip(from) {
        *argument = f64::from(row[*column]);
    }
    let Ok(result) = calls.call(function, arguments) else { return f32::NAN };
    let rounded = result as f32;
    if rounded.is_infinite() {
        calls.count(function);
        return f32::NAN;
    }
    rounded
}

impl Function {
    /// The result for a row; `None` for a missing value.
    fn of(&self, row: &[f32]) -> Option<f64> {
        let read = |at: &usize| Some(f64::from(row[*at])).filter(|value| !value.is_nan());
        match self {
            // `libm::log1p` gives the same bits on every machine.
            Function::Log1p { from } => Some(libm::log1p(read(from)?)),
            Function::Standardise { from, mean, scale } => Some((read(from)? - mean) / scale),
            Function::Clip { from, low, high } => match read(from)? {
                value if value < *low => Some(*low),
                value if value > *high => Some(*high),
                value => Some(value),
            },
            Function::Bucket { from, edges } => {
                let value = row[*from];
                (!value.is_nan()).then(|| edges.partition_point(|&edge| edge <= value) as f64)
            }
            Function::Missing { from } => Some(if row[*from].is_nan() { 1.0 } else { 0.0 }),
            Function::Arithmetic { left, right, operation } => {
                let (left, right) = (read(left)?, read(right)?);
                match operation {
                    Operation::Add => Some(left + right),
                    Operation::Subtract => Some(left - right),
                    Operation::Multiply => Some(left * right),
                    Operation::Ratio { zero } => {
                        // A divisor of 0 gives NaN or an infinity.
                        Some(left / right).filter(|quotient| (*quotient as f32).is_finite()).or(*zero)
                    }
                }
            }
            Function::Table { from, values, default } => {
                let code = row[*from];
                // A missing category is NaN, for which the comparison is false.
                let known = if code >= 0.0 { values.get(code as usize).copied() } else { None };
                Some(f64::from(known.unwrap_or(*default))).filter(|value| !value.is_nan())
            }
            Function::DatePart { from, part, offset } => Some(part.of(read(from)? + offset)),
            // `apply` calls it.
            Function::Custom { .. } => None,
        }
    }

    /// The columns that are read.
    fn inputs(&self) -> Vec<usize> {
        match *self {
            Function::Log1p { from }
            | Function::Standardise { from, .. }
            | Function::Clip { from, .. }
            | Function::Bucket { from, .. }
            | Function::Missing { from }
            | Function::Table { from, .. }
            | Function::DatePart { from, .. } => vec![from],
            Function::Arithmetic { left, right, .. } => vec![left, right],
            Function::Custom { ref from, .. } => from.to_vec(),
        }
    }
}

/// The columns of the new row while its steps are compiled.
struct Builder<'a> {
    columns: Vec<Column>,
    /// For each column whether a step of this node has written it.
    written: Vec<bool>,
    tables: &'a mut Tables,
    functions: Option<&'a CustomFunctions>,
}

impl Builder<'_> {
    fn add(&mut self, step: &TransformStep) -> Result<Step, String> {
        let (function, result) = self.function(step)?;
        let origins = self.origins(&function);
        let to = match step.output() {
            None => {
                // Every function without an output reads the column that it replaces.
                let to = function.inputs().first().copied().unwrap_or(0);
                if std::mem::replace(&mut self.written[to], true) {
                    let name = &self.columns[to].spec.name;
                    return Err(format!("feature {name:?} has two steps; chain a second transform node"));
                }
                if let Some((minimum, maximum)) = result.range {
                    let mut spec = FeatureSpec::clone(&self.columns[to].spec);
                    (spec.minimum, spec.maximum) = (minimum, maximum);
                    self.columns[to].spec = Arc::new(spec);
                }
                to
            }
            Some(name) => {
                self.check_name(name)?;
                let (minimum, maximum) = result.range.unwrap_or_default();
                self.columns.push(Column {
                    spec: Arc::new(FeatureSpec {
                        name: name.to_owned(),
                        kind: result.kind,
                        categories: Vec::new(),
                        missing: MissingRule::default(),
                        unknown_category: UnknownCategoryRule::default(),
                        minimum,
                        maximum,
                    }),
                    origins,
                });
                self.written.push(true);
                self.columns.len() - 1
            }
        };
        Ok(Step { to, function })
    }

    fn function(&mut self, step: &TransformStep) -> Result<(Function, Outcome), String> {
        let number = Outcome { kind: FeatureType::Number, range: None };
        Ok(match step {
            TransformStep::Log1p { feature, .. } => {
                let from = self.number(feature)?;
                if self.columns[from].spec.minimum.is_none_or(|minimum| minimum <= -1.0) {
                    return Err(format!(
                        "feature {feature:?}: log1p needs values above -1; give it a minimum in the schema, or clip it before"
                    ));
                }
                (Function::Log1p { from }, number)
            }
            TransformStep::Standardise { feature, mean, scale, .. } => {
                if !(mean.is_finite() && scale.is_finite() && *scale > 0.0) {
                    return Err(format!(
                        "feature {feature:?}: mean {mean} and scale {scale} must be finite and the scale above 0; correct them"
                    ));
                }
                (Function::Standardise { from: self.number(feature)?, mean: *mean, scale: *scale }, number)
            }
            TransformStep::Clip { feature, low, high, .. } => {
                let from = self.number(feature)?;
                let finite = |limit: &Option<f64>| limit.is_none_or(|limit| (limit as f32).is_finite());
                if (low.is_none() && high.is_none()) || !finite(low) || !finite(high) {
                    return Err(format!("feature {feature:?}: give a finite low, high or both"));
                }
                let spec = &self.columns[from].spec;
                let range = (low.or(spec.minimum), high.or(spec.maximum));
                let (low, high) = (low.unwrap_or(f64::NEG_INFINITY), high.unwrap_or(f64::INFINITY));
                if low > high {
                    return Err(format!("feature {feature:?}: low {low} is above high {high}; correct them"));
                }
                (Function::Clip { from, low, high }, Outcome { range: Some(range), ..number })
            }
            TransformStep::Bucket { feature, edges, .. } => {
                let from = self.number(feature)?;
                let rounded: Box<[f32]> = edges.iter().map(|edge| *edge as f32).collect();
                if rounded.is_empty() || rounded.len() > MAX_EDGES {
                    return Err(format!("{} edges; give 1 to {MAX_EDGES}", rounded.len()));
                }
                if rounded.iter().any(|edge| !edge.is_finite())
                    || rounded.windows(2).any(|pair| pair[0] >= pair[1])
                {
                    return Err("the edges must be finite and ascend in float32; correct them".to_owned());
                }
                let range = Some((Some(0.0), Some(rounded.len() as f64)));
                (Function::Bucket { from, edges: rounded }, Outcome { range, ..number })
            }
            TransformStep::Missing { feature, .. } => {
                let flag = Outcome { kind: FeatureType::Flag, range: None };
                (Function::Missing { from: self.find(feature)? }, flag)
            }
            TransformStep::Add { left, right, .. } => (self.arithmetic(left, right, Operation::Add)?, number),
            TransformStep::Subtract { left, right, .. } => {
                (self.arithmetic(left, right, Operation::Subtract)?, number)
            }
            TransformStep::Multiply { left, right, .. } => {
                (self.arithmetic(left, right, Operation::Multiply)?, number)
            }
            TransformStep::Ratio { left, right, zero, .. } => {
                let zero = match zero {
                    ZeroDivisor::Missing(_) => None,
                    ZeroDivisor::Number(zero) if (*zero as f32).is_finite() => Some(*zero),
                    ZeroDivisor::Number(zero) => {
                        return Err(format!("zero is {zero}; give a finite number or \"missing\""));
                    }
                };
                (self.arithmetic(left, right, Operation::Ratio { zero })?, number)
            }
            TransformStep::Table { feature, table, .. } => {
                let from = self.find(feature)?;
                let spec = &self.columns[from].spec;
                if spec.kind != FeatureType::Category {
                    let kind = spec.kind.name();
                    return Err(format!(
                        "feature {feature:?} is a {kind}, a table has values of categories; name a category"
                    ));
                }
                let (values, default) = self.tables.compile(table, spec)?;
                (Function::Table { from, values, default }, number)
            }
            TransformStep::Custom { name, inputs, .. } => (self.custom(name, inputs)?, number),
            TransformStep::DatePart { feature, part, offset, .. } => {
                let from = self.number(feature)?;
                let spec = &self.columns[from].spec;
                part.check(spec.minimum, spec.maximum, *offset)
                    .map_err(|reason| format!("feature {feature:?}: {reason}"))?;
                let (low, high) = part.range();
                let range = Some((Some(low), Some(high)));
                let function = Function::DatePart { from, part: *part, offset: *offset as f64 };
                (function, Outcome { range, ..number })
            }
        })
    }

    fn arithmetic(&self, left: &str, right: &str, operation: Operation) -> Result<Function, String> {
        Ok(Function::Arithmetic { left: self.operand(left)?, right: self.operand(right)?, operation })
    }

    fn custom(&self, name: &str, inputs: &[String]) -> Result<Function, String> {
        let known = self.functions.map_or(&[][..], CustomFunctions::entries);
        let Some(function) = self.functions.and_then(|functions| functions.find(name)) else {
            let names: Vec<&str> = known.iter().take(10).map(|entry| entry.name.as_str()).collect();
            let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            return Err(format!(
                "function {name:?} is not in functions.json, which has {known}; add it or correct the name"
            ));
        };
        let parameters = &known[function].parameters;
        if parameters.len() != inputs.len() {
            return Err(format!(
                "function {name:?} takes {} inputs ({}) and not {}; correct the inputs",
                parameters.len(),
                parameters.join(", "),
                inputs.len()
            ));
        }
        let from = inputs.iter().map(|input| self.operand(input)).collect::<Result<_, _>>()?;
        Ok(Function::Custom { function, from })
    }

    /// The column of a number or flag.
    fn operand(&self, name: &str) -> Result<usize, String> {
        match self.find(name)? {
            at if self.columns[at].spec.kind == FeatureType::Category => {
                Err(format!("feature {name:?} is a category, which has no number; name a number or flag"))
            }
            at => Ok(at),
        }
    }

    fn find(&self, name: &str) -> Result<usize, String> {
        find(&self.columns, name)
    }

    fn number(&self, name: &str) -> Result<usize, String> {
        let at = self.find(name)?;
        if self.columns[at].spec.kind != FeatureType::Number {
            let kind = self.columns[at].spec.kind.name();
            return Err(format!(
                "feature {name:?} is a {kind}, only numbers are transformed; remove the step"
            ));
        }
        Ok(at)
    }

    fn check_name(&self, name: &str) -> Result<(), String> {
        if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
            return Err(format!(
                "output {name:?} is not 1 to {MAX_NAME} printable bytes; name it differently"
            ));
        }
        if self.columns.iter().any(|column| column.spec.name == name) {
            return Err(format!("output {name:?} is already a column of the row; name it differently"));
        }
        if self.columns.len() >= MAX_COLUMNS {
            return Err(format!("the row would have more than {MAX_COLUMNS} columns; add fewer"));
        }
        Ok(())
    }

    /// The columns of the input's row that a function's result is computed from.
    fn origins(&self, function: &Function) -> Arc<[usize]> {
        let inputs = function.inputs();
        let of = |input: &usize| &self.columns[*input].origins;
        if let Some((first, rest)) = inputs.split_first()
            && rest.iter().all(|other| of(other) == of(first))
        {
            return Arc::clone(of(first));
        }
        let mut all: Vec<usize> = inputs.iter().flat_map(|input| of(input).iter().copied()).collect();
        all.sort_unstable();
        all.dedup();
        all.into()
    }
}

/// Returns the position of a column.
pub(super) fn find(columns: &[Column], name: &str) -> Result<usize, String> {
    columns.iter().position(|column| column.spec.name == name).ok_or_else(|| {
        format!("feature {name:?} is not in the schema, and no earlier step adds it; correct the name")
    })
}

/// The type of a function's result, and its range if the function sets it.
#[derive(Clone, Copy)]
struct Outcome {
    kind: FeatureType,
    range: Option<(Option<f64>, Option<f64>)>,
}
