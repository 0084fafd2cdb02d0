//! Finds the steps of a program that only one branch of a switch needs, so that they run for that branch alone.

use super::program::{Program, Step};

/// The branch of a switch that alone needs a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Guard {
    switch: usize,
    branch: usize,
}

impl Guard {
    /// Whether the step is needed if the switches have chosen these branches.
    pub(super) fn holds(&self, chosen: &[usize]) -> bool {
        chosen[self.switch] == self.branch
    }
}

/// The steps that read a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// No step so far.
    Nothing,
    /// Only this branch.
    Branch(Guard),
    /// Several branches, or steps outside of switches.
    Always,
}

impl Need {
    fn or(self, other: Need) -> Need {
        match (self, other) {
            (Need::Nothing, need) | (need, Need::Nothing) => need,
            (one, other) if one == other => one,
            _ => Need::Always,
        }
    }
}

/// Puts the choice of every switch after the step that computes its row, and sets the guard of every step.
///
/// A step that runs before the choice has no guard. Within nested switches a step has the guard of the inner one.
pub(super) fn guard(program: &mut Program) {
    let needs = needs(program);
    let writer = |row: usize| {
        let writes = |step: &Step| matches!(step, Step::Transform { to, .. } if *to == row);
        program.steps.iter().position(writes).map_or(0, |at| at + 1)
    };
    let places: Vec<usize> = program.selectors.iter().map(|selector| writer(selector.row)).collect();
    let node_of = |switch: usize| {
        let is_switch = |step: &Step| matches!(step, Step::Switch { switch: own, .. } if *own == switch);
        program.steps.iter().position(is_switch).and_then(|at| program.nodes.get(at)).copied()
    };
    let choices: Vec<usize> = (0..places.len()).map(|switch| node_of(switch).unwrap_or(0)).collect();
    let before = std::mem::take(&mut program.nodes);
    let mut nodes = Vec::with_capacity(before.len() + places.len());
    let mut steps = Vec::with_capacity(program.steps.len() + places.len());
    let mut guards = Vec::with_capacity(steps.capacity());
    for (at, (step, need)) in std::mem::take(&mut program.steps).into_iter().zip(needs).enumerate() {
        for (switch, _) in places.iter().enumerate().filter(|(_, place)| **place == at) {
            steps.push(Step::Choose { switch });
            guards.push(None);
            nodes.push(choices[switch]);
        }
        steps.push(step);
        nodes.push(before[at]);
        guards.push(match need {
            Need::Branch(guard) if places[guard.switch] <= at => Some(guard),
            _ => None,
        });
    }
    program.steps = steps;
    program.guards = guards;
    program.nodes = nodes;
}

/// Computes for each step which branches need its result, from the last step to the first one.
fn needs(program: &Program) -> Vec<Need> {
    let mut values = vec![Need::Nothing; program.values];
    let mut rows = vec![Need::Nothing; program.rows.len()];
    for &value in [program.score, program.margin].iter().chain(&program.voters) {
        values[value] = Need::Always;
    }
    for selector in &program.selectors {
        rows[selector.row] = Need::Always;
    }
    let mut needs = vec![Need::Nothing; program.steps.len()];
    for (at, step) in program.steps.iter().enumerate().rev() {
        let need = match step {
            Step::Transform { from, to, .. } => {
                let need = rows[*to];
                rows[*from] = rows[*from].or(need);
                need
            }
            Step::Forest { forest, row } => {
                let all = values[program.margins[*forest].clone()].iter();
                let need = all.fold(Need::Nothing, |one, other| one.or(*other));
                rows[*row] = rows[*row].or(need);
                need
            }
            Step::Net { net } => {
                let node = &program.nets[*net];
                let need = values[node.to].or(values[node.margin]);
                rows[node.row] = rows[node.row].or(need);
                need
            }
            Step::Link { forest, to, .. } => {
                let need = values[*to];
                for value in &mut values[program.margins[*forest].clone()] {
                    *value = value.or(need);
                }
                need
            }
            Step::Calibrate { from, to, .. } | Step::Overlay { from, to } | Step::ScoreMap { from, to } => {
                let need = values[*to];
                values[*from] = values[*from].or(need);
                need
            }
            Step::Combine { combination, to, margin } => {
                let need = values[*to].or(values[*margin]);
                for term in &combination.terms {
                    values[term.at] = values[term.at].or(need);
                }
                need
            }
            Step::Switch { switch, to, margin } => {
                for (branch, slots) in program.selectors[*switch].branches.iter().enumerate() {
                    let need = Need::Branch(Guard { switch: *switch, branch });
                    values[slots.at] = values[slots.at].or(need);
                    values[slots.margin] = values[slots.margin].or(need);
                }
                values[*to].or(values[*margin])
            }
            Step::Choose { .. } => Need::Always,
        };
        needs[at] = need;
    }
    needs
}
