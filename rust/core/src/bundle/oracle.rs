//! Computes the scores of all eligible actions in one context.
//!
//! The program runs once for the whole eligible set: each value of the program is a column with one entry per eligible
//! action. A forest that could be specialised to the catalogue at load evaluates all actions at once; other forests
//! evaluate them row by row. A program for which no [`Oracle`] can be built runs once per action.

use std::sync::Arc;

use super::functions::CustomFunctions;
use super::overlay;
use super::program::{Program, Step};
use super::scratch::{Buffers, Columns};
use super::transform::Run;
use super::{Bundle, EvalError, EvalScratch};
use crate::budget::{Budget, Unlimited};
use crate::forest::actions::{ActionForest, Catalogue};
use crate::forest::{Forest, Isa};
use crate::policy::Mask;

/// A program specialised to the bundle's catalogue.
#[derive(Debug)]
pub(super) struct Oracle {
    /// One entry per forest; `None` for a forest that is evaluated row by row.
    pub(super) forests: Vec<Option<Arc<Specialised>>>,
    /// For each row slot the actions' own features as that slot holds them, `[actions, action features]`. Empty if no
    /// forest is evaluated row by row.
    own: Vec<Vec<f32>>,
    /// For each switch the branch of every action, if it reads a feature of the action.
    choices: Vec<Option<Box<[usize]>>>,
    context: usize,
}

/// A forest specialised to a catalogue, with the forest and the catalogue's rows that it was made from. Another bundle
/// with the same forest and rows shares it.
#[derive(Debug)]
pub(super) struct Specialised {
    pub(super) forest: ActionForest,
    made_of: Arc<Forest>,
    context: usize,
    /// `[actions, action features]`.
    own: Box<[f32]>,
}

impl Specialised {
    fn new(forest: &Arc<Forest>, catalogue: &Catalogue<'_>) -> Option<Arc<Specialised>> {
        let specialised = ActionForest::new(forest, catalogue, Isa::best())?;
        Some(Arc::new(Specialised {
            forest: specialised,
            made_of: Arc::clone(forest),
            context: catalogue.context,
            own: catalogue.rows.into(),
        }))
    }

    /// Whether specialising this forest to this catalogue would give the same result, bit for bit.
    fn is_of(&self, forest: &Arc<Forest>, catalogue: &Catalogue<'_>) -> bool {
        Arc::ptr_eq(&self.made_of, forest)
            && (self.context, self.forest.actions()) == (catalogue.context, catalogue.actions)
            && self.own.len() == catalogue.rows.len()
            && self.own.iter().zip(catalogue.rows).all(|(one, other)| one.to_bits() == other.to_bits())
    }

    fn heap_bytes(&self) -> usize {
        self.forest.heap_bytes() + size_of_val(&*self.own)
    }
}

impl Oracle {
    /// Specialises the program to the catalogue, and shares the specialisations that `known` oracles hold of the same
    /// forests and rows. Returns `None` if a transform computes a column of actions from the context or the reverse, or
    /// if one of an action's own features does not stay finite or a function fails for it; evaluating that action then
    /// returns the error or counts the fault.
    pub(super) fn new(
        program: &Program,
        functions: Option<&CustomFunctions>,
        context: usize,
        actions: usize,
        rows: &[f32],
        known: &[&Oracle],
    ) -> Option<Oracle> {
        let mut calls = functions.map(|functions| functions.start(&program.calls));
        let mut own = vec![Vec::new(); program.rows.len()];
        own[0] = rows.to_vec();
        let mut choices = vec![None; program.selectors.len()];
        let mut forests = Vec::with_capacity(program.forests.len());
        for step in &program.steps {
            match step {
                Step::Transform { transform, from, to } => {
                    if !transform.separates(context) {
                        return None;
                    }
                    let before = program.rows[*from].range.len() - context;
                    let mut row = vec![f32::NAN; program.rows[*to].range.len()];
                    let mut all = Vec::with_capacity(actions * (row.len() - context));
                    for action in 0..actions {
                        // The context's features are NaN here, and the steps of other columns do not read them.
                        row[..context].fill(f32::NAN);
                        row[context..][..before].copy_from_slice(&own[*from][action * before..][..before]);
                        let run = Run { budget: &Unlimited, calls: calls.as_mut(), until: usize::MAX };
                        transform.apply(&mut row, &mut { run }).ok()?;
                        all.extend_from_slice(&row[context..]);
                    }
                    own[*to] = all;
                }
                Step::Forest { forest, row } => {
                    let catalogue = Catalogue { context, actions, rows: &own[*row] };
                    let forest = &program.forests[*forest];
                    let mut all =
                        forests.iter().chain(known.iter().flat_map(|known| &known.forests)).flatten();
                    let same = all.find(|known: &&Arc<Specialised>| known.is_of(forest, &catalogue)).cloned();
                    forests.push(same.or_else(|| Specialised::new(forest, &catalogue)));
                }
                Step::Choose { switch } => {
                    let selector = &program.selectors[*switch];
                    let width = program.rows[selector.row].range.len() - context;
                    choices[*switch] = selector.column.checked_sub(context).map(|column| {
                        own[selector.row]
                            .chunks_exact(width)
                            .map(|own| selector.choose(own[column]))
                            .collect()
                    });
                }
                _ => {}
            }
        }
        let mut faults = false;
        calls.iter_mut().for_each(|calls| calls.take_faults(|_, _| faults = true));
        if faults {
            return None;
        }
        if forests.iter().all(Option::is_some) {
            own = Vec::new();
        }
        Some(Oracle { forests, own, choices, context })
    }

    /// Heap memory in bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        let forests: usize = distinct(self.forests.iter().flatten()).map(|forest| forest.heap_bytes()).sum();
        let own: usize = self.own.iter().map(|rows| size_of::<Vec<f32>>() + 4 * rows.len()).sum();
        let choices: usize = self.choices.iter().flatten().map(|choice| size_of_val(&**choice)).sum();
        forests + own + choices + size_of::<Option<Arc<Specialised>>>() * self.forests.len()
    }

    fn run(
        &self,
        program: &Program,
        eligible: &Mask,
        budget: &dyn Budget,
        buffers: &mut Buffers,
        columns: &mut Columns,
    ) -> Result<(), EvalError> {
        let result = self.run_steps(program, eligible, budget, buffers, columns);
        buffers.times.end();
        result
    }

    fn run_steps(
        &self,
        program: &Program,
        eligible: &Mask,
        budget: &dyn Budget,
        buffers: &mut Buffers,
        columns: &mut Columns,
    ) -> Result<(), EvalError> {
        let Columns { actions, eligible: members, values, together, forests } = columns;
        let (count, stride) = (members.len(), *actions);
        let place = |value: usize| value * stride..value * stride + count;
        buffers.rows[self.context..program.width].fill(f32::NAN);
        for (step, node) in program.steps.iter().zip(&program.nodes) {
            buffers.times.begin(*node);
            match step {
                Step::Transform { transform, from, to } => {
                    // The columns of actions were computed when the bundle was loaded.
                    let run = Run { budget, calls: buffers.functions.as_mut(), until: self.context };
                    program.transform(transform, *from, *to, &mut buffers.rows, run)?;
                    buffers.rows[program.rows[*to].range.clone()][self.context..].fill(f32::NAN);
                }
                Step::Forest { forest: number, row: slot } => {
                    let forest = &program.forests[*number];
                    let range = program.margins[*number].clone();
                    let row = &mut buffers.rows[program.rows[*slot].range.clone()];
                    if let (Some(factored), Some(scratch)) = (&self.forests[*number], &mut forests[*number]) {
                        let together = &mut together[..range.len() * stride];
                        factored.forest.margins(forest, row, eligible.words(), budget, scratch, together)?;
                        for (value, all) in range.zip(together.chunks_exact(stride)) {
                            for (to, &action) in values[place(value)].iter_mut().zip(&*members) {
                                *to = all[action as usize];
                            }
                        }
                        continue;
                    }
                    let own = &self.own[*slot];
                    let width = row.len() - self.context;
                    for (at, &action) in members.iter().enumerate() {
                        let action = action as usize;
                        row[self.context..].copy_from_slice(&own[action * width..(action + 1) * width]);
                        let out = &mut buffers.linked[..range.len()];
                        forest.margins_within(row, budget, &mut buffers.forests[*number], out)?;
                        for (value, &margin) in range.clone().zip(&*out) {
                            values[value * stride + at] = margin;
                        }
                    }
                    row[self.context..].fill(f32::NAN);
                }
                // Compiling refuses ONNX models in action bundles.
                Step::Net { .. } => {}
                Step::Link { forest: number, index, to } => {
                    let (forest, range) = (&program.forests[*number], program.margins[*number].clone());
                    if forest.link().is_elementwise() {
                        values.copy_within(place(range.start + index), to * stride);
                        forest.transform(&mut values[place(*to)]);
                        continue;
                    }
                    let linked = &mut buffers.linked[..range.len()];
                    for at in 0..count {
                        for (linked, value) in linked.iter_mut().zip(range.clone()) {
                            *linked = values[value * stride + at];
                        }
                        forest.transform(linked);
                        values[to * stride + at] = linked[*index];
                    }
                }
                Step::Calibrate { map, from, to } => {
                    values.copy_within(place(*from), to * stride);
                    map.apply_all(&mut values[place(*to)]);
                }
                Step::Overlay { from, to } => {
                    let Some(overlay) = &program.overlay else { continue };
                    let odds = overlay.odds(&buffers.rows);
                    values.copy_within(place(*from), to * stride);
                    for (score, &action) in values[place(*to)].iter_mut().zip(&*members) {
                        *score = overlay::moved(*score, odds[action as usize]);
                    }
                }
                Step::ScoreMap { from, to } => {
                    let Some(map) = &program.score_map else { continue };
                    values.copy_within(place(*from), to * stride);
                    values[place(*to)].iter_mut().for_each(|score| *score = map.apply(*score));
                }
                Step::Combine { combination, to, margin } => {
                    for at in 0..count {
                        let (score, sum) = combination.apply(|value| values[value * stride + at]);
                        values[to * stride + at] = score;
                        values[margin * stride + at] = sum;
                    }
                }
                Step::Choose { switch } => {
                    if self.choices[*switch].is_none() {
                        buffers.chosen[*switch] = program.choice(*switch, &buffers.rows);
                    }
                }
                Step::Switch { switch, to, margin } => {
                    let (selector, choices) = (&program.selectors[*switch], &self.choices[*switch]);
                    for (at, &action) in members.iter().enumerate() {
                        let chosen =
                            choices.as_ref().map_or(buffers.chosen[*switch], |all| all[action as usize]);
                        let branch = selector.branches[chosen];
                        values[to * stride + at] = values[branch.at * stride + at];
                        values[margin * stride + at] = values[branch.margin * stride + at];
                    }
                }
            }
        }
        Ok(())
    }
}

/// Returns each distinct `Arc` once.
pub(super) fn distinct<'a, T: 'a>(all: impl Iterator<Item = &'a Arc<T>>) -> impl Iterator<Item = &'a Arc<T>> {
    let mut seen = Vec::new();
    all.filter(move |forest| {
        let new = !seen.contains(&Arc::as_ptr(forest));
        if new {
            seen.push(Arc::as_ptr(forest));
        }
        new
    })
}

/// Fills `scratch.scores`, and the columns that they are copied from, for every eligible action. The scores of all
/// other actions are NaN.
pub(super) fn fill_scores(
    bundle: &Bundle,
    context: &[f32],
    eligible: &Mask,
    budget: &dyn Budget,
    scratch: &mut EvalScratch,
) -> Result<(), EvalError> {
    let program = &bundle.program;
    let EvalScratch { buffers, scores, columns, .. } = scratch;
    columns.eligible.clear();
    columns.eligible.extend(eligible.iter().map(|action| action as u32));
    buffers.rows[..context.len()].copy_from_slice(context);
    match &bundle.oracle {
        Some(oracle) => oracle.run(program, eligible, budget, buffers, columns)?,
        None => by_rows(bundle, budget, buffers, columns)?,
    }
    scores.fill(f64::NAN);
    let of_voters = std::iter::once(&program.score).chain(&program.voters);
    for (scores, &value) in scores.chunks_exact_mut(columns.actions).zip(of_voters) {
        for (&action, &score) in columns.eligible.iter().zip(columns.of(value)) {
            scores[action as usize] = score;
        }
    }
    Ok(())
}

/// Runs the program once per eligible action.
fn by_rows(
    bundle: &Bundle,
    budget: &dyn Budget,
    buffers: &mut Buffers,
    columns: &mut Columns,
) -> Result<(), EvalError> {
    let program = &bundle.program;
    let Columns { actions, eligible, values, .. } = columns;
    for (at, &action) in eligible.iter().enumerate() {
        bundle.fill_action(action as usize, &mut buffers.rows);
        buffers.action = action as usize;
        program.run(budget, buffers, None)?;
        for (column, &value) in values.chunks_exact_mut(*actions).zip(&buffers.values) {
            column[at] = value;
        }
    }
    Ok(())
}
