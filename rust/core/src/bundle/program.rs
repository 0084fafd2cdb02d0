//! Compiles the manifest's nodes to a program: a flat list of steps over typed slots.
//!
//! A node reads slots that earlier nodes wrote and writes one slot, so the list is in topological order. All rows are
//! in one float32 buffer, margins and scores in one float64 buffer; a slot is a position there. Compiling checks
//! every use of a slot, so running needs no checks. [`branches`](super::branches) finds the steps that a switch can skip.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use scorer_onnx::{NetScratch, Stopped};

use super::branches::{self, Guard};
use super::calibration::{Calibration, CalibrationMap};
use super::combine::Combination;
use super::explain::Explainer;
use super::functions::CustomFunctions;
use super::nets::{self, NetNode, NetSettings, Refused};
use super::node::{INPUT, Node, Quantity};
use super::overlay::{self, OVERLAY, Overlay};
use super::rules::RULES;
use super::score_map::{SCORE_MAP, ScoreMap};
use super::scratch::Buffers;
use super::switch::{Branch, Selector};
use super::tables::Tables;
use super::threshold::Thresholds;
use super::times::NodeInfo;
use super::transform::{self, Column, Run, Transform};
use super::{BundleError, Digest, EvalError, Kind};
use crate::budget::{Budget, OutOfTime};
use crate::forest::{Forest, Link};
use crate::policy::{ActionCatalogue, Policy};
use crate::schema::FeatureSpec;

/// The parts of a bundle that its program refers to.
pub(super) struct Parts<'a> {
    pub(super) kind: Kind,
    /// Columns of the row: the context's features, then the action's.
    pub(super) features: &'a [FeatureSpec],
    /// The forests by file name, each with the SHA-256 of its file.
    pub(super) forests: BTreeMap<String, (Digest, Arc<Forest>)>,
    /// The ONNX models by file name.
    pub(super) nets: BTreeMap<String, Vec<u8>>,
    pub(super) tables: Tables,
    pub(super) functions: Option<&'a CustomFunctions>,
    pub(super) calibration: Option<Calibration>,
    pub(super) score_map: Option<ScoreMap>,
    pub(super) overlay: Option<Overlay>,
    pub(super) catalogue: &'a ActionCatalogue,
}

/// A compiled program.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) steps: Vec<Step>,
    /// For each step the number of the manifest's node that it belongs to.
    pub(super) nodes: Vec<usize>,
    /// Number of the node of the rules, if there is one, and of the last node.
    pub(super) rules_node: Option<usize>,
    pub(super) last_node: usize,
    pub(super) infos: Vec<NodeInfo>,
    /// For each step the branch of a switch that alone needs it, if there is one.
    pub(super) guards: Vec<Option<Guard>>,
    /// The choice of each switch node, in program order.
    pub(super) selectors: Vec<Selector>,
    pub(super) forests: Vec<Arc<Forest>>,
    /// SHA-256 of the file of each forest.
    pub(super) digests: Vec<Digest>,
    pub(super) nets: Vec<NetNode>,
    pub(super) score_map: Option<ScoreMap>,
    pub(super) overlay: Option<Overlay>,
    /// Number of values in the input's row.
    pub(super) width: usize,
    /// The row slots. The first is the input's.
    pub(super) rows: Vec<RowSlot>,
    /// Length of the buffer of margins and scores.
    pub(super) values: usize,
    /// Range of each forest's margins in that buffer.
    pub(super) margins: Vec<Range<usize>>,
    /// Position of the margin that the score comes from; for an ensemble that of the number that it combines.
    pub(super) margin: usize,
    /// Position of the score; in an action bundle that of the oracle's score.
    pub(super) score: usize,
    /// Positions of the scores of the ensemble members.
    pub(super) voters: Vec<usize>,
    pub(super) end: End,
    /// For each function of the bundle whether a transform calls it.
    pub(super) calls: Vec<bool>,
}

/// The last node of a program.
#[derive(Debug)]
pub(super) enum End {
    Threshold(Thresholds),
    Policy(Box<Policy>),
}

/// One compiled node.
#[derive(Debug)]
pub(super) enum Step {
    Transform {
        transform: Transform,
        from: usize,
        to: usize,
    },
    Forest {
        forest: usize,
        row: usize,
    },
    Net {
        net: usize,
    },
    Link {
        forest: usize,
        index: usize,
        to: usize,
    },
    Calibrate {
        map: CalibrationMap,
        from: usize,
        to: usize,
    },
    Overlay {
        from: usize,
        to: usize,
    },
    ScoreMap {
        from: usize,
        to: usize,
    },
    /// A mean or stack. It writes the score and the number that it comes from.
    Combine {
        combination: Combination,
        to: usize,
        margin: usize,
    },
    /// Chooses the branch of a switch, as soon as its row is known.
    Choose {
        switch: usize,
    },
    /// Copies score and margin of the chosen branch.
    Switch {
        switch: usize,
        to: usize,
        margin: usize,
    },
}

/// A row in the buffer of rows.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RowSlot {
    /// Its values in the buffer.
    pub(super) range: Range<usize>,
    /// The columns that transforms have added after those of the schema.
    pub(super) added: Vec<Added>,
}

/// A column that a transform has added to a row.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Added {
    pub(super) name: String,
    /// The columns of the input's row that its value is computed from, ascending.
    pub(super) origins: Vec<usize>,
}

#[derive(Debug, Clone, Copy)]
enum Slot {
    /// Index of the row.
    Row(usize),
    /// Index of the forest.
    Margins(usize),
    /// Positions of the score and of the margin that it comes from, and whether the score is a probability.
    Score { at: usize, margin: usize, probability: bool },
    /// The actions that rules leave eligible.
    Eligible,
}

impl Slot {
    fn name(self) -> &'static str {
        match self {
            Slot::Row(_) => "a row",
            Slot::Margins(_) => "margins",
            Slot::Score { .. } => "a score",
            Slot::Eligible => "eligible actions",
        }
    }
}

impl Program {
    pub(super) fn compile(nodes: &[Node], mut parts: Parts<'_>) -> Result<Program, BundleError> {
        let mut slots = Slots::default();
        slots.map.insert(INPUT.to_owned(), (Slot::Row(0), false));
        slots.columns.push(transform::input_columns(parts.features));
        slots.may_miss.push(nets::missing_inputs(parts.features));
        let mut program = Program {
            steps: Vec::new(),
            nodes: Vec::new(),
            infos: nodes
                .iter()
                .map(|node| NodeInfo { name: node.output().to_owned(), kind: node.kind() })
                .collect(),
            rules_node: nodes.iter().position(|node| matches!(node, Node::Rules { .. })),
            last_node: nodes.len().saturating_sub(1),
            guards: Vec::new(),
            selectors: Vec::new(),
            forests: Vec::new(),
            digests: Vec::new(),
            nets: Vec::new(),
            score_map: parts.score_map.take(),
            overlay: parts.overlay.take(),
            width: parts.features.len(),
            rows: vec![RowSlot { range: 0..parts.features.len(), added: Vec::new() }],
            values: 0,
            margins: Vec::new(),
            margin: 0,
            score: 0,
            voters: Vec::new(),
            end: End::Threshold(Thresholds::default()),
            calls: vec![false; parts.functions.map_or(0, |functions| functions.entries().len())],
        };
        let last = nodes.len().checked_sub(1).ok_or_else(|| {
            BundleError::Program(
                "is empty; it needs at least a forest, a link and a threshold or policy".to_owned(),
            )
        })?;
        for (at, node) in nodes.iter().enumerate() {
            let fail = |reason: String| BundleError::Node { node: at, kind: node.kind(), reason };
            if matches!(node, Node::Rules { .. }) && at + 1 != last {
                return Err(fail(
                    "rules come directly before the threshold or policy; reorder the nodes".to_owned(),
                ));
            }
            if matches!(node, Node::Threshold { .. } | Node::Policy { .. }) != (at == last) {
                return Err(fail(
                    "a program ends with its only threshold or policy; reorder the nodes".to_owned(),
                ));
            }
            let slot = program.add(node, &mut parts, &mut slots).map_err(|error| match error {
                Refusal::Reason(reason) => fail(reason),
                Refusal::Bundle(error) => error,
            })?;
            program.nodes.resize(program.steps.len(), at);
            slots.define(node.output(), slot).map_err(fail)?;
        }
        if let Some(unread) = slots.unread() {
            return Err(BundleError::Program(format!(
                "never reads slot {unread:?}; remove the node that writes it"
            )));
        }
        if let Some(file) = parts.forests.keys().next() {
            return Err(BundleError::Surplus { file: file.clone(), why: "no forest node evaluates it" });
        }
        if let Some(file) = parts.nets.keys().next() {
            return Err(BundleError::Surplus { file: file.clone(), why: "no onnx node evaluates it" });
        }
        if let Some(table) = parts.tables.unused() {
            let reason = "no step of a transform uses it, remove it".to_owned();
            return Err(BundleError::Table { table: table.clone(), reason });
        }
        if program.score_map.is_some() && !nodes.iter().any(|node| matches!(node, Node::ScoreMap { .. })) {
            return Err(BundleError::Surplus { file: SCORE_MAP.to_owned(), why: "no scoremap node uses it" });
        }
        if program.overlay.is_some() && !nodes.iter().any(|node| matches!(node, Node::Overlay { .. })) {
            return Err(BundleError::Surplus { file: OVERLAY.to_owned(), why: "no overlay node uses it" });
        }
        if let Some(map) =
            parts.calibration.iter().flat_map(|calibration| calibration.maps.keys()).find(|&map| {
                !nodes.iter().any(|node| matches!(node, Node::Calibrate { map: used, .. } if used == map))
            })
        {
            let reason = "no calibrate node uses it, remove it".to_owned();
            return Err(BundleError::Calibration { map: map.clone(), reason });
        }
        branches::guard(&mut program);
        Ok(program)
    }

    /// Compiles one node and returns the slot that it writes; `None` for the last node.
    fn add(
        &mut self,
        node: &Node,
        parts: &mut Parts<'_>,
        slots: &mut Slots,
    ) -> Result<Option<Slot>, Refusal> {
        match node {
            Node::Transform { input, steps, .. } => {
                let from = slots.row(input)?;
                let (transform, columns) =
                    Transform::compile(steps, &slots.columns[from], &mut parts.tables, parts.functions)?;
                if let Some(functions) = parts.functions {
                    let calls = transform.calls(functions);
                    self.calls.iter_mut().zip(calls).for_each(|(all, own)| *all |= own);
                }
                let to = self.rows.len();
                let start = self.rows[to - 1].range.end;
                let added = |column: &Column| Added {
                    name: column.spec.name.clone(),
                    origins: column.origins.to_vec(),
                };
                let may_miss = nets::missing_after(steps, &columns, &slots.may_miss[from], &parts.tables);
                slots.may_miss.push(may_miss);
                self.rows.push(RowSlot {
                    range: start..start + columns.len(),
                    added: columns[self.width..].iter().map(added).collect(),
                });
                slots.columns.push(columns);
                self.steps.push(Step::Transform { transform, from, to });
                Ok(Some(Slot::Row(to)))
            }
            Node::Forest { file, input, .. } => {
                let row = slots.row(input)?;
                let (digest, forest) = parts.forests.remove(file).ok_or_else(|| {
                    format!("{file:?} is not a forest of this bundle, or an earlier node evaluates it; correct the name or reuse that node's slot")
                })?;
                let width = self.rows[row].range.len();
                if forest.num_features() != width {
                    let why = if width == self.width { "the schema has" } else { "the row slot has" };
                    return Err(Refusal::Reason(format!(
                        "{file} takes {} features, {why} {width} (context and action features together); build both from the same columns",
                        forest.num_features(),
                    )));
                }
                let number = self.forests.len();
                self.margins.push(self.values..self.values + forest.num_outputs());
                self.values += forest.num_outputs();
                self.forests.push(forest);
                self.digests.push(digest);
                self.steps.push(Step::Forest { forest: number, row });
                Ok(Some(Slot::Margins(number)))
            }
            Node::Onnx { file, input, index, link, missing, .. } => {
                if parts.kind != Kind::Score {
                    return Err(Refusal::Reason(
                        "an action bundle evaluates forests alone; use a forest".to_owned(),
                    ));
                }
                let row = slots.row(input)?;
                let bytes = parts.nets.remove(file).ok_or_else(|| {
                    format!("{file:?} is not an ONNX model of this bundle, or an earlier node evaluates it; correct the name or reuse that node's slot")
                })?;
                let settings = NetSettings { index: *index, link: *link, missing: *missing };
                let net = nets::compile(file, &bytes, &slots.columns[row], &slots.may_miss[row], &settings)?;
                let node = NetNode::new(file, net, row, &settings, || self.new_value());
                let (at, margin, probability) = (node.to, node.margin, node.is_probability());
                self.steps.push(Step::Net { net: self.nets.len() });
                self.nets.push(node);
                Ok(Some(Slot::Score { at, margin, probability }))
            }
            Node::Link { input, index, .. } => {
                let forest = slots.margins(input)?;
                let predictions = self.forests[forest].num_predictions();
                if *index >= predictions {
                    return Err(Refusal::Reason(format!(
                        "index {index} is beyond the model's {predictions} predictions; correct it"
                    )));
                }
                let to = self.new_value();
                self.steps.push(Step::Link { forest, index: *index, to });
                let margin = self.margins[forest].start + (*index).min(self.margins[forest].len() - 1);
                let link = self.forests[forest].link();
                let probability = matches!(link, Link::Sigmoid { .. } | Link::Softmax | Link::Normalize);
                Ok(Some(Slot::Score { at: to, margin, probability }))
            }
            Node::Calibrate { map, input, .. } => {
                let (from, margin) = match slots.read(input)? {
                    Slot::Score { at, margin, .. } => (at, margin),
                    Slot::Margins(forest) if self.margins[forest].len() == 1 => {
                        let at = self.margins[forest].start;
                        (at, at)
                    }
                    Slot::Margins(_) => {
                        return Err(Refusal::Reason(format!(
                            "slot {input:?} holds the margins of several outputs; put a link node before"
                        )));
                    }
                    other @ (Slot::Row(_) | Slot::Eligible) => {
                        return Err(wrong_type(input, other.name(), "a score"));
                    }
                };
                let maps = parts.calibration.as_ref().map(|calibration| &calibration.maps);
                let map = maps.and_then(|maps| maps.get(map)).cloned().ok_or_else(|| {
                    format!("calibration.json has no map {map:?}; add it or correct the name")
                })?;
                let to = self.new_value();
                self.steps.push(Step::Calibrate { map, from, to });
                Ok(Some(Slot::Score { at: to, margin, probability: true }))
            }
            Node::ScoreMap { file, input, .. } => {
                let map = self.score_map.as_ref().filter(|_| file == SCORE_MAP).ok_or_else(|| {
                    format!("{file:?} is not a score map of this bundle; name {SCORE_MAP} and add it, or remove the node")
                })?;
                let probability = map.is_probability();
                let (from, margin) = slots.score(input)?;
                let to = self.new_value();
                self.steps.push(Step::ScoreMap { from, to });
                Ok(Some(Slot::Score { at: to, margin, probability }))
            }
            Node::Mean { inputs, weights, of, .. } => {
                let (terms, probability) = slots.scores(inputs, *of)?;
                let combination = Combination::mean(&terms, weights, *of)?;
                Ok(Some(self.combine(combination, probability)))
            }
            Node::Stack { inputs, coefficients, intercept, of, .. } => {
                let (terms, _) = slots.scores(inputs, *of)?;
                let combination = Combination::stack(&terms, coefficients, *intercept, *of)?;
                Ok(Some(self.combine(combination, true)))
            }
            Node::Switch { row, feature, cases, default, .. } => {
                let slot = slots.row(row)?;
                let column = transform::find(&slots.columns[slot], feature)?;
                let spec = Arc::clone(&slots.columns[slot][column].spec);
                let mut probable = true;
                let mut branches = Vec::with_capacity(cases.len() + 1);
                for name in cases.iter().map(|case| &case.input).chain([default]) {
                    let (at, margin, probability) = slots.score_of(name)?;
                    probable &= probability;
                    branches.push(Branch { at, margin });
                }
                let selector = Selector::compile(slot, column, &spec, cases, branches)?;
                let switch = self.selectors.len();
                self.selectors.push(selector);
                let (to, margin) = (self.new_value(), self.new_value());
                self.steps.push(Step::Switch { switch, to, margin });
                Ok(Some(Slot::Score { at: to, margin, probability: probable }))
            }
            Node::Overlay { file, input, .. } => {
                if parts.kind != Kind::Action {
                    return Err(Refusal::Reason(
                        "a score bundle has no actions to adjust; remove the node".to_owned(),
                    ));
                }
                if file != OVERLAY || self.overlay.is_none() {
                    return Err(Refusal::Reason(format!(
                        "{file:?} is not an overlay of this bundle; name {OVERLAY} and add it, or remove the node"
                    )));
                }
                let Slot::Score { at: from, margin, probability } = slots.read(input)? else {
                    return Err(wrong_type(input, "a row or margins", "a score"));
                };
                if !probability {
                    return Err(Refusal::Reason(format!(
                        "slot {input:?} holds no probabilities; put a calibrate node before"
                    )));
                }
                let to = self.new_value();
                self.steps.push(Step::Overlay { from, to });
                Ok(Some(Slot::Score { at: to, margin, probability }))
            }
            Node::Rules { file, input, .. } => {
                if file != RULES {
                    return Err(Refusal::Reason(format!("{file:?} is not the file of rules; name {RULES}")));
                }
                match (parts.kind, slots.read(input)?) {
                    (Kind::Score, score @ Slot::Score { .. }) => Ok(Some(score)),
                    (Kind::Score, other) => Err(wrong_type(input, other.name(), "a score")),
                    (Kind::Action, Slot::Row(0)) => Ok(Some(Slot::Eligible)),
                    (Kind::Action, _) => Err(Refusal::Reason(format!(
                        "rules of an action bundle read the request; connect {INPUT:?}"
                    ))),
                }
            }
            Node::Threshold { input, bands, .. } => {
                if parts.kind != Kind::Score {
                    return Err(Refusal::Reason(
                        "an action bundle ends with a policy; replace the node".to_owned(),
                    ));
                }
                (self.score, self.margin) = slots.score(input)?;
                self.end = End::Threshold(Thresholds::compile(bands)?);
                Ok(None)
            }
            Node::Policy { input, voters, eligible, policy, .. } => {
                if parts.kind != Kind::Action {
                    return Err(Refusal::Reason(
                        "a score bundle ends with a threshold; replace the node".to_owned(),
                    ));
                }
                (self.score, self.margin) = slots.score(input)?;
                if let Some(eligible) = eligible {
                    match slots.read(eligible)? {
                        Slot::Eligible => {}
                        other => return Err(wrong_type(eligible, other.name(), "eligible actions")),
                    }
                }
                for voter in voters {
                    self.voters.push(slots.score(voter)?.0);
                }
                let policy = Policy::compile(policy, parts.catalogue)
                    .map_err(|error| Refusal::Bundle(BundleError::Policy(error)))?;
                if policy.voters() != voters.len() {
                    return Err(Refusal::Reason(format!(
                        "rule {} takes {} voters, the node lists {}; make them agree",
                        policy.spec().rule.name(),
                        policy.voters(),
                        voters.len()
                    )));
                }
                self.end = End::Policy(Box::new(policy));
                Ok(None)
            }
        }
    }

    /// Labels of the score bands in ascending order; empty if the program ends with a policy.
    pub(super) fn labels(&self) -> &[String] {
        match &self.end {
            End::Threshold(thresholds) => &thresholds.labels,
            End::Policy(_) => &[],
        }
    }

    fn combine(&mut self, combination: Combination, probability: bool) -> Slot {
        let (to, margin) = (self.new_value(), self.new_value());
        self.steps.push(Step::Combine { combination, to, margin });
        Slot::Score { at: to, margin, probability }
    }

    fn new_value(&mut self) -> usize {
        self.values += 1;
        self.values - 1
    }

    /// Fills row slot `to` with the transformed row of slot `from`.
    pub(super) fn transform(
        &self,
        transform: &Transform,
        from: usize,
        to: usize,
        rows: &mut [f32],
        mut run: Run<'_>,
    ) -> Result<(), EvalError> {
        let (from, to) = (self.rows[from].range.clone(), self.rows[to].range.clone());
        rows.copy_within(from, to.start);
        transform.apply(&mut rows[to], &mut run)
    }

    /// The row slot that a forest reads.
    pub(super) fn slot_of(&self, forest: usize) -> &RowSlot {
        let reads = |step: &Step| match step {
            Step::Forest { forest: own, row } if *own == forest => Some(*row),
            _ => None,
        };
        &self.rows[self.steps.iter().find_map(reads).unwrap_or(0)]
    }

    /// The place in the buffer of the row that a forest reads.
    pub(super) fn row_of(&self, forest: usize) -> Range<usize> {
        self.slot_of(forest).range.clone()
    }

    /// Runs every step on the row in slot 0 and leaves margins and scores in the buffers, and with an explainer the
    /// contributions of the features.
    pub(super) fn run(
        &self,
        budget: &dyn Budget,
        buffers: &mut Buffers,
        explainer: Option<&Explainer>,
    ) -> Result<(), EvalError> {
        let result = self.run_steps(budget, buffers, explainer);
        buffers.times.end();
        result
    }

    fn run_steps(
        &self,
        budget: &dyn Budget,
        buffers: &mut Buffers,
        explainer: Option<&Explainer>,
    ) -> Result<(), EvalError> {
        let explained = explainer.map(Explainer::of_forest);
        for ((step, guard), node) in self.steps.iter().zip(&self.guards).zip(&self.nodes) {
            let Buffers {
                rows, values, forests, nets, functions, attributions, chosen, whole, times, ..
            } = &mut *buffers;
            if !*whole && guard.is_some_and(|guard| !guard.holds(chosen)) {
                continue;
            }
            times.begin(*node);
            match step {
                Step::Transform { transform, from, to } => {
                    let run = Run { budget, calls: functions.as_mut(), until: usize::MAX };
                    self.transform(transform, *from, *to, rows, run)?;
                }
                Step::Forest { forest, row } => {
                    let row = &rows[self.rows[*row].range.clone()];
                    let out = &mut values[self.margins[*forest].clone()];
                    let scratch = &mut forests[*forest];
                    match (explained, attributions) {
                        (Some((number, paths)), Some(attributions)) if number == *forest => {
                            paths.margins(row, budget, scratch, out, attributions)?;
                        }
                        _ => self.forests[*forest].margins_within(row, budget, scratch, out)?,
                    }
                }
                Step::Net { net } => {
                    let node = &self.nets[*net];
                    values[node.margin] = self.net_output(*net, rows, budget, &mut nets[*net])?;
                    node.apply_link(values);
                }
                Step::Choose { switch } => chosen[*switch] = self.choice(*switch, rows),
                _ => self.value(step, buffers),
            }
        }
        Ok(())
    }

    /// Evaluates an ONNX model on the rows in the buffer.
    pub(super) fn net_output(
        &self,
        net: usize,
        rows: &[f32],
        budget: &dyn Budget,
        scratch: &mut NetScratch,
    ) -> Result<f64, OutOfTime> {
        let node = &self.nets[net];
        let row = &rows[self.rows[node.row].range.clone()];
        node.net.run(row, scratch, || budget.spent()).map(f64::from).map_err(|Stopped| OutOfTime)
    }

    /// The branch of a switch for the rows in the buffer.
    pub(super) fn choice(&self, switch: usize, rows: &[f32]) -> usize {
        let selector = &self.selectors[switch];
        selector.choose(rows[self.rows[selector.row].range.start + selector.column])
    }

    /// Runs a step that computes a value from values. Steps that compute rows, choose a branch or evaluate forests are
    /// ignored. Of an ONNX model only the link is computed.
    pub(super) fn value(&self, step: &Step, buffers: &mut Buffers) {
        let Buffers { rows, values, linked, action, chosen, .. } = buffers;
        match step {
            Step::Link { forest, index, to } => {
                let margins = &values[self.margins[*forest].clone()];
                let linked = &mut linked[..margins.len()];
                linked.copy_from_slice(margins);
                self.forests[*forest].transform(linked);
                values[*to] = linked[*index];
            }
            Step::Net { net } => self.nets[*net].apply_link(values),
            Step::Calibrate { map, from, to } => values[*to] = map.apply(values[*from]),
            Step::Overlay { from, to } => {
                if let Some(overlay) = &self.overlay {
                    values[*to] = overlay::moved(values[*from], overlay.odds(rows)[*action]);
                }
            }
            Step::ScoreMap { from, to } => {
                if let Some(map) = &self.score_map {
                    values[*to] = map.apply(values[*from]);
                }
            }
            Step::Combine { combination, to, margin } => {
                (values[*to], values[*margin]) = combination.apply(|at| values[at]);
            }
            Step::Switch { switch, to, margin } => {
                let branch = self.selectors[*switch].branches[chosen[*switch]];
                (values[*to], values[*margin]) = (values[branch.at], values[branch.margin]);
            }
            Step::Transform { .. } | Step::Forest { .. } | Step::Choose { .. } => {}
        }
    }

    /// Heap memory, in bytes, of the ONNX models, the transforms, the score map, the ensembles and the switches.
    pub(super) fn heap_bytes(&self) -> usize {
        let steps = self.steps.iter().map(|step| match step {
            Step::Combine { combination, .. } => combination.heap_bytes(),
            Step::Transform { transform, .. } => transform.heap_bytes(),
            _ => 0,
        });
        self.score_map.as_ref().map_or(0, ScoreMap::heap_bytes)
            + self.nets.iter().map(|node| node.net.heap_bytes()).sum::<usize>()
            + self.selectors.iter().map(Selector::heap_bytes).sum::<usize>()
            + steps.sum::<usize>()
    }
}

enum Refusal {
    Reason(String),
    Bundle(BundleError),
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Refusal {
        match refused {
            Refused::Node(reason) => Refusal::Reason(reason),
            Refused::File(error) => Refusal::Bundle(error),
        }
    }
}

impl From<String> for Refusal {
    fn from(reason: String) -> Refusal {
        Refusal::Reason(reason)
    }
}

/// Slots by name, each with whether a node reads it.
#[derive(Default)]
struct Slots {
    map: HashMap<String, (Slot, bool)>,
    /// The columns of each row slot.
    columns: Vec<Vec<Column>>,
    /// For each column of each row slot whether its value may be missing.
    may_miss: Vec<Vec<bool>>,
}

impl Slots {
    fn read(&mut self, name: &str) -> Result<Slot, Refusal> {
        let (slot, read) = self.map.get_mut(name).ok_or_else(|| {
            format!("slot {name:?} is written by no earlier node; correct the name or reorder the nodes")
        })?;
        *read = true;
        Ok(*slot)
    }

    fn row(&mut self, name: &str) -> Result<usize, Refusal> {
        match self.read(name)? {
            Slot::Row(row) => Ok(row),
            other => Err(wrong_type(name, other.name(), "a row")),
        }
    }

    fn margins(&mut self, name: &str) -> Result<usize, Refusal> {
        match self.read(name)? {
            Slot::Margins(forest) => Ok(forest),
            other => Err(wrong_type(name, other.name(), "margins")),
        }
    }

    fn score(&mut self, name: &str) -> Result<(usize, usize), Refusal> {
        self.score_of(name).map(|(at, margin, _)| (at, margin))
    }

    /// The positions of a score and of its margin, and whether the score is a probability.
    fn score_of(&mut self, name: &str) -> Result<(usize, usize, bool), Refusal> {
        match self.read(name)? {
            Slot::Score { at, margin, probability } => Ok((at, margin, probability)),
            other => Err(wrong_type(name, other.name(), "a score")),
        }
    }

    /// The positions of the inputs of an ensemble, and whether all of them are probabilities.
    fn scores(&mut self, names: &[String], of: Quantity) -> Result<(Vec<usize>, bool), Refusal> {
        let mut probable = true;
        let mut positions = Vec::with_capacity(names.len());
        for name in names {
            let (at, _, probability) = self.score_of(name)?;
            if of == Quantity::Logits && !probability {
                return Err(Refusal::Reason(format!(
                    "slot {name:?} holds no probabilities, which have logits; put a calibrate node before, or combine scores"
                )));
            }
            probable &= probability;
            positions.push(at);
        }
        Ok((positions, probable))
    }

    fn define(&mut self, name: &str, slot: Option<Slot>) -> Result<(), String> {
        if self.map.contains_key(name) || name.is_empty() {
            return Err(format!("output slot {name:?} is empty or already taken; name it differently"));
        }
        if let Some(slot) = slot {
            self.map.insert(name.to_owned(), (slot, false));
        }
        Ok(())
    }

    fn unread(&self) -> Option<&str> {
        self.map.iter().filter(|(_, (_, read))| !read).map(|(name, _)| name.as_str()).min()
    }
}

fn wrong_type(name: &str, found: &str, wanted: &str) -> Refusal {
    Refusal::Reason(format!("slot {name:?} holds {found}, {wanted} is needed; connect another slot"))
}
