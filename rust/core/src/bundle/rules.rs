//! The rules node: a rule set that reads the request's features and the score, or restricts the eligible actions.
//!
//! Rules are evaluated after the program of a score bundle and before that of an action bundle. They change neither
//! margins nor scores, so golden cases and reference statistics do not depend on them.

use std::collections::BTreeMap;
use std::sync::Arc;

use scorer_rules::{
    Actions, CostSettings, Costs, Decision, DeclareError, Environment, Fault, KeySet, ListId, ListKey,
    ListKind, Lists, Request, Rows, Rule, RuleSet, Scratch, Slot, TextId, Type,
};
use serde::{Deserialize, Serialize};

use super::functions::CustomFunctions;
use super::list::{self, ElementType, ListParser};
use super::{Bundle, BundleError, EvalError, EvalScratch, Kind};
use crate::policy::{ActionCatalogue, Mask, Salt};
use crate::schema::{FeatureSpec, FeatureType, Schema};

/// Name of the file of the rules.
pub(super) const RULES: &str = "rules.toml";
/// Greatest number of lists.
pub(super) const MAX_LISTS: usize = 64;
/// The name by which rules read the score.
const SCORE: &str = "score";
/// The name by which rules read the time of the request, in seconds since 1970, unless a feature has this name.
const REQUEST_TIME: &str = "request_time";

/// A list that conditions name with `list("name")`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListEntry {
    /// Its file, `list-01.txt` to `list-64.txt`, with one element per line. An external list may have none; its file is
    /// the content until a version of the list is loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The type of its elements.
    #[serde(rename = "type", default)]
    pub kind: ElementType,
    /// Whether the content is that of the newest version in the registry, which changes without another bundle.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub external: bool,
    /// The oldest version of an external list that the rules may read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_version: Option<u64>,
}

/// A list as rules are compiled with it.
#[derive(Debug, Clone, Copy)]
pub struct ListSource<'a> {
    /// The type of its elements.
    pub kind: ElementType,
    /// One element per line. Without content, the list is not loaded.
    pub content: Option<&'a [u8]>,
    /// For an external list: the oldest version that the rules may read, or 0.
    pub external: Option<u64>,
}

/// Lists by name.
pub type ListFiles<'a> = BTreeMap<&'a str, ListSource<'a>>;

/// An external list of a compiled rule set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalList {
    /// Its name in the rules and in the registry.
    pub name: String,
    /// The type of its elements.
    pub kind: ElementType,
    /// The oldest version that the rules may read, or 0.
    pub minimum_version: u64,
    /// Its place among the lists of the rules.
    pub list: ListId,
}

/// The parts of a bundle that its rules are checked against.
#[derive(Debug, Clone, Copy)]
pub(super) struct Surroundings<'a> {
    pub(super) kind: Kind,
    /// The features of a request.
    pub(super) features: &'a [FeatureSpec],
    /// Labels of the bands, ascending.
    pub(super) labels: &'a [String],
    pub(super) catalogue: &'a ActionCatalogue,
    /// The functions that conditions can call.
    pub(super) functions: Option<&'a CustomFunctions>,
}

/// A rule set that is compiled for a bundle.
#[derive(Debug)]
pub struct Rules {
    set: RuleSet,
    /// The lists of the bundle's files.
    lists: Lists,
    external: Vec<ExternalList>,
    inputs: Vec<Input>,
    score: Option<Slot>,
    time: Option<Slot>,
    /// The band of each decision of the set.
    bands: Vec<usize>,
}

/// A feature that rules read.
#[derive(Debug)]
struct Input {
    column: usize,
    slot: Slot,
    kind: InputKind,
}

#[derive(Debug)]
enum InputKind {
    Number,
    Flag,
    /// The strings of the categories.
    Category(Box<[Option<TextId>]>),
}

impl Rules {
    /// Compiles and checks a rule set.
    pub(super) fn compile(
        text: &str,
        around: Surroundings<'_>,
        lists: &ListFiles<'_>,
        salt: &Salt,
    ) -> Result<Rules, Vec<Fault>> {
        let whole = |problem: String| vec![Fault { rule: String::new(), line: 1, column: 1, problem }];
        let declared = |error: DeclareError| whole(error.to_string());
        let mut environment = Environment::new();
        if let Some(functions) = around.functions {
            functions.declare(&mut environment).map_err(declared)?;
        }
        let mut slots = Vec::with_capacity(around.features.len());
        for feature in around.features {
            if around.kind == Kind::Score && feature.name == SCORE {
                return Err(whole(
                    "the schema has a feature \"score\", which rules could not tell from the bundle's score; rename the feature"
                        .to_owned(),
                ));
            }
            // A feature whose name is no identifier cannot be written in a condition.
            let slot = match feature.kind {
                FeatureType::Number => environment.declare(&feature.name, Type::Double),
                FeatureType::Flag => environment.declare(&feature.name, Type::Bool),
                FeatureType::Category => environment.declare(&feature.name, Type::Text),
            };
            // The number of strings is limited, so only dictionaries of features that may be read are added.
            if slot.is_ok() && feature.kind == FeatureType::Category && text.contains(&feature.name) {
                environment.known(feature.categories.iter().map(String::as_str)).map_err(declared)?;
            }
            slots.push(slot.ok());
        }
        let score = match around.kind {
            Kind::Score => Some(environment.declare(SCORE, Type::Double).map_err(declared)?),
            Kind::Action => None,
        };
        let time = environment.declare(REQUEST_TIME, Type::Double).ok();
        let key = ListKey::new(salt.0);
        let mut sets = Vec::with_capacity(lists.len());
        let mut external = Vec::new();
        for (&name, &ListSource { kind, content, external: minimum }) in lists {
            let of = match kind {
                ElementType::String => ListKind::Text,
                ElementType::Int => ListKind::Int,
            };
            let list = environment.declare_list(name, of).map_err(declared)?;
            if let Some(minimum_version) = minimum {
                if !list::is_list_name(name) {
                    return Err(whole(format!("list {name:?}: {}", list::NAME_RULE)));
                }
                external.push(ExternalList { name: name.to_owned(), kind, minimum_version, list });
            }
            let Some(bytes) = content else { continue };
            let set =
                key_set(key, kind, bytes).map_err(|problem| whole(format!("list {name:?}: {problem}")))?;
            sets.push((list, Arc::new(set)));
        }
        let set = RuleSet::compile(text, &environment, &factors(around.catalogue)?, key)?;
        let faults = check_writes(&set, around);
        if !faults.is_empty() {
            return Err(faults);
        }
        let mut loaded = Lists::new(key, &environment);
        for (list, keys) in sets {
            loaded = loaded.with(list, keys);
        }
        let inputs = around.features.iter().zip(slots).enumerate().filter_map(|(column, (feature, slot))| {
            let slot = slot.filter(|_| set.reads(&feature.name))?;
            let kind = match feature.kind {
                FeatureType::Number => InputKind::Number,
                FeatureType::Flag => InputKind::Flag,
                FeatureType::Category => InputKind::Category(
                    feature.categories.iter().map(|category| set.program().text_id(category)).collect(),
                ),
            };
            Some(Input { column, slot, kind })
        });
        let band = |decision: &String| around.labels.iter().position(|label| label == decision);
        Ok(Rules {
            inputs: inputs.collect(),
            score,
            time: time.filter(|_| set.reads(REQUEST_TIME)),
            bands: set.decisions().iter().filter_map(band).collect(),
            lists: loaded,
            external,
            set,
        })
    }

    /// Compiles and checks a rule set about actions, for the features and the catalogue of a bundle that need not exist.
    ///
    /// # Errors
    /// Fails with every fault that was found.
    pub fn for_actions(
        text: &str,
        features: &Schema,
        catalogue: &ActionCatalogue,
        lists: &ListFiles<'_>,
        salt: &Salt,
    ) -> Result<Rules, Vec<Fault>> {
        let around = Surroundings {
            kind: Kind::Action,
            features: features.features(),
            labels: &[],
            catalogue,
            functions: None,
        };
        Rules::compile(text, around, lists, salt)
    }

    /// The compiled rule set.
    #[must_use]
    pub fn set(&self) -> &RuleSet {
        &self.set
    }

    /// The rules in the order of their numbers.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        self.set.rules()
    }

    /// The lists of the bundle's files. External lists without a file are not loaded.
    #[must_use]
    pub fn lists(&self) -> &Lists {
        &self.lists
    }

    /// The external lists that the rules declare.
    #[must_use]
    pub fn external(&self) -> &[ExternalList] {
        &self.external
    }

    /// Makes the memory for evaluations.
    #[must_use]
    pub fn start(&self) -> Decision {
        self.set.start()
    }

    /// Evaluates the rules on a request's row. `score` is the bundle's score; without it, as in an action bundle and
    /// after a failure, conditions that read it are unknown. It allocates nothing.
    pub fn evaluate(&self, row: &[f32], score: Option<f64>, request: Request<'_>, decision: &mut Decision) {
        self.evaluate_with(&self.lists, row, score, request, decision);
    }

    /// Evaluates as [`Rules::evaluate`] does, with other contents of the lists.
    pub fn evaluate_with(
        &self,
        lists: &Lists,
        row: &[f32],
        score: Option<f64>,
        request: Request<'_>,
        decision: &mut Decision,
    ) {
        self.fill(row, score, request.seconds, decision.values());
        self.set.evaluate(decision, lists, request);
    }

    /// Evaluates the rules on the rows of many requests, which have the results of [`Rules::evaluate_with`]. Each has a
    /// row, a score, and its time and id. Calls `each` with the number and the result of each of them.
    pub fn evaluate_all<'a>(
        &self,
        lists: &Lists,
        all: impl IntoIterator<Item = (&'a [f32], Option<f64>, Request<'a>)>,
        mut each: impl FnMut(usize, &Decision),
    ) {
        let mut rows = self.set.start_rows();
        let mut requests = Vec::with_capacity(Rows::CAPACITY);
        let mut first = 0;
        let mut all = all.into_iter().peekable();
        while let Some((row, score, request)) = all.next() {
            self.fill(row, score, request.seconds, rows.values());
            rows.push();
            requests.push(request);
            if rows.is_full() || all.peek().is_none() {
                self.set.evaluate_rows(&mut rows, lists, &requests, |at, decision| {
                    each(first + at, decision);
                });
                first += requests.len();
                requests.clear();
            }
        }
    }

    /// Measures the time that each rule needs on rows, by a clock that returns nanoseconds; see [`RuleSet::cost`].
    pub fn cost(
        &self,
        lists: &Lists,
        rows: &[(&[f32], Option<f64>, Request<'_>)],
        settings: CostSettings,
        clock: impl FnMut() -> u64,
    ) -> Costs {
        let fill = |at: usize, values: &mut Scratch| {
            let (row, score, request) = rows[at];
            self.fill(row, score, request.seconds, values);
            request
        };
        self.set.cost(lists, rows.len(), fill, settings, clock)
    }

    fn fill(&self, row: &[f32], score: Option<f64>, seconds: i64, values: &mut Scratch) {
        for Input { column, slot, kind } in &self.inputs {
            let value = row.get(*column).copied().unwrap_or(f32::NAN);
            match kind {
                _ if value.is_nan() => values.set_missing(*slot),
                InputKind::Number => values.set_double(*slot, decimal(value)),
                InputKind::Flag => values.set_bool(*slot, value != 0.0),
                InputKind::Category(texts) => {
                    values.set_text(*slot, texts.get(value as usize).copied().flatten());
                }
            }
        }
        if let Some(slot) = self.score {
            values.set_double(slot, score.unwrap_or(f64::NAN));
        }
        if let Some(slot) = self.time {
            values.set_double(slot, seconds as f64);
        }
    }

    /// The band of the decision that the rules wrote; `None` if they wrote none.
    #[must_use]
    pub fn band(&self, decision: &Decision) -> Option<usize> {
        let written = self.set.decision(decision)?;
        let at = self.set.decisions().iter().position(|known| known == written)?;
        self.bands.get(at).copied()
    }

    /// Heap memory of the lists in bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        self.lists.heap_bytes()
    }
}

/// The result of rules on a score.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RuledScore {
    /// The score within the caps and floors.
    pub score: f64,
    /// The band of the decision that the rules wrote, else of that score.
    pub band: usize,
}

impl Bundle {
    /// The bundle's rules, if it has some.
    #[must_use]
    pub fn rules(&self) -> Option<&Rules> {
        self.rules.as_ref()
    }

    /// Compiles another rule set for this bundle, with lists and a salt of its own.
    ///
    /// # Errors
    /// Fails with every fault that was found.
    pub fn compile_rules(&self, text: &str, lists: &ListFiles<'_>, salt: &Salt) -> Result<Rules, Vec<Fault>> {
        let around = Surroundings {
            kind: self.kind(),
            features: self.schema.features(),
            labels: self.labels(),
            catalogue: &self.catalogue,
            functions: self.functions.as_ref(),
        };
        Rules::compile(text, around, lists, salt)
    }

    /// Evaluates the bundle's rules on a request's row. Afterwards [`EvalScratch::ruling`] returns the result. Returns
    /// false if the bundle has no rules.
    ///
    /// # Errors
    /// Fails if the row has the wrong length or the scratch belongs to another bundle.
    pub fn apply_rules(
        &self,
        row: &[f32],
        score: Option<f64>,
        request: Request<'_>,
        scratch: &mut EvalScratch,
    ) -> Result<bool, EvalError> {
        self.apply_rules_with(None, row, score, request, scratch)
    }

    /// Evaluates as [`Bundle::apply_rules`] does, with `lists` in place of the lists of the bundle's files.
    ///
    /// # Errors
    /// Fails as [`Bundle::apply_rules`] does.
    pub fn apply_rules_with(
        &self,
        lists: Option<&Lists>,
        row: &[f32],
        score: Option<f64>,
        request: Request<'_>,
        scratch: &mut EvalScratch,
    ) -> Result<bool, EvalError> {
        let Some(rules) = &self.rules else { return Ok(false) };
        self.check_row(row, scratch)?;
        let ruling = scratch.ruling.as_mut().ok_or(EvalError::Scratch)?;
        let node = self.program.rules_node.unwrap_or(self.program.last_node);
        scratch.buffers.times.begin(node);
        rules.evaluate_with(lists.unwrap_or(&rules.lists), row, score, request, ruling);
        scratch.buffers.times.end();
        Ok(true)
    }

    /// Returns what the last evaluated rules make of a score that the bundle computed; `None` without rules.
    #[must_use]
    pub fn ruled_score(&self, score: f64, scratch: &EvalScratch) -> Option<RuledScore> {
        let (rules, ruling) = (self.rules.as_ref()?, scratch.ruling.as_ref()?);
        let within = ruling.score(score);
        let band = rules.band(ruling).or_else(|| self.band_of(within))?;
        Some(RuledScore { score: within, band })
    }

    /// Removes the actions that the last evaluated rules do not allow. Returns false, and leaves the set as it is, if no
    /// action would be left.
    #[must_use]
    pub fn restrict(&self, eligible: &mut Mask, scratch: &EvalScratch) -> bool {
        match &scratch.ruling {
            Some(ruling) if self.rules.is_some() => eligible.retain(ruling.allowed()),
            _ => true,
        }
    }
}

impl EvalScratch {
    /// The result of the rules that were evaluated last; `None` if the bundle has no rules.
    #[must_use]
    pub fn ruling(&self) -> Option<&Decision> {
        self.ruling.as_ref()
    }
}

/// Reads the rules of a bundle: the node's lists and the file of the rules.
pub(super) fn read(
    text: &[u8],
    entries: &BTreeMap<String, ListEntry>,
    files: &mut BTreeMap<String, Vec<u8>>,
    around: Surroundings<'_>,
    salt: &Salt,
) -> Result<Rules, BundleError> {
    let text = std::str::from_utf8(text)
        .map_err(|error| BundleError::Rules(format!("byte {} is not UTF-8", error.valid_up_to())))?;
    let mut contents = Vec::with_capacity(entries.len());
    for (name, entry) in entries {
        let fail = |problem: &str| BundleError::Rules(format!("list {name:?}: {problem}"));
        if !entry.external && entry.file.is_none() {
            return Err(fail("it has no file and is not external; give it one of the two"));
        }
        if !entry.external && entry.minimum_version.is_some() {
            return Err(fail("minimum_version is for external lists; remove it, or declare external = true"));
        }
        let content = match &entry.file {
            None => None,
            Some(file) => Some(files.remove(file).ok_or_else(|| BundleError::NotListed {
                file: file.clone(),
                why: "the rules node names it as a list of its own",
            })?),
        };
        contents.push((name.as_str(), entry, content));
    }
    let source = |entry: &ListEntry, content| ListSource {
        kind: entry.kind,
        content,
        external: entry.external.then_some(entry.minimum_version.unwrap_or(0)),
    };
    let lists =
        contents.iter().map(|(name, entry, bytes)| (*name, source(entry, bytes.as_deref()))).collect();
    Rules::compile(text, around, &lists, salt).map_err(|faults| BundleError::Rules(in_one_line(&faults)))
}

/// The first fault, and the number of the others.
fn in_one_line(faults: &[Fault]) -> String {
    match faults {
        [] => "cannot be compiled".to_owned(),
        [one] => one.to_string(),
        [first, rest @ ..] => format!("{first} (and {} more faults)", rest.len()),
    }
}

/// Whether `name` is that of a list's file.
pub(super) fn is_list_file(name: &str) -> bool {
    (1..=MAX_LISTS).any(|number| name == format!("list-{number:02}.txt"))
}

fn factors(catalogue: &ActionCatalogue) -> Result<Actions, Vec<Fault>> {
    let names = catalogue.get(0).map(|action| action.factors.keys()).into_iter().flatten();
    let column = |name: &String| {
        let value = |action: &crate::policy::Action| action.factors.get(name).cloned().unwrap_or_default();
        (name.clone(), catalogue.iter().map(value).collect())
    };
    Actions::new(catalogue.len(), names.map(column).collect())
        .map_err(|error| vec![Fault { rule: String::new(), line: 1, column: 1, problem: error.to_string() }])
}

/// What rules write must exist in the bundle.
fn check_writes(set: &RuleSet, around: Surroundings<'_>) -> Vec<Fault> {
    let mut faults = Vec::new();
    if around.kind == Kind::Action {
        for rule in set.rules() {
            let written = [
                ("a decision", rule.decision.is_some()),
                ("a cap", rule.cap.is_some()),
                ("a floor", rule.floor.is_some()),
                ("a queue", rule.queue.is_some()),
            ];
            if let Some((what, _)) = written.into_iter().find(|(_, written)| *written) {
                faults.push(Fault {
                    rule: rule.id.clone(),
                    line: rule.line,
                    column: rule.column,
                    problem: format!(
                        "the rule writes {what}, and rules of an action bundle write reasons and eligibility; remove it"
                    ),
                });
            }
        }
        return faults;
    }
    // The bands ascend, so the strictest decision is the last one.
    let mut before = around.labels.len();
    for (at, decision) in set.decisions().iter().enumerate() {
        let (line, column) = set.decision_place(at);
        let mut fault = |problem: String| {
            faults.push(Fault { rule: String::new(), line, column, problem });
        };
        match around.labels.iter().position(|label| label == decision) {
            None => fault(format!(
                "decision {decision:?} is not the label of a band ({}); correct it",
                around.labels.join(", ")
            )),
            Some(band) if band >= before => fault(format!(
                "decision {decision:?} is stricter than the one before it, because its band has higher scores; list the strictest first"
            )),
            Some(band) => before = band,
        }
    }
    faults
}

fn key_set(key: ListKey, kind: ElementType, bytes: &[u8]) -> Result<KeySet, String> {
    let mut hashes = Vec::new();
    let mut parser = ListParser::new(kind);
    let mut each = |element: list::Element<'_>| {
        hashes.push(element.hash(key));
        Ok(())
    };
    parser.push(bytes, &mut each)?;
    parser.finish(&mut each)?;
    KeySet::new(0, &hashes).map_err(|error| error.to_string())
}

/// The decimal number of at most six places that has this float32, or else the float32 itself. Features are float32,
/// so that 30.1 in a request is 30.100000381…; `amount <= 30.1` must hold for it nevertheless.
fn decimal(value: f32) -> f64 {
    let exact = f64::from(value);
    // Beyond 2^23, float32 has no fraction.
    if exact.abs() >= 8_388_608.0 || exact.fract() == 0.0 {
        return exact;
    }
    [1e1, 1e2, 1e3, 1e4, 1e5, 1e6]
        .into_iter()
        .map(|scale| (exact * scale).round() / scale)
        .find(|rounded| (*rounded as f32).to_bits() == value.to_bits())
        .unwrap_or(exact)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feature_has_the_decimal_number_that_was_sent() {
        for sent in [30.1, 0.1, 19.99, 499.99, 1234.56, 0.000_001, -7.3, 99_999.9, 250.0, 0.0, 16_777_216.0] {
            assert_eq!(decimal(sent as f32), sent, "{sent}");
        }
        // A number of more places keeps the value of its float32.
        let third = 1.0_f32 / 3.0;
        assert_eq!(decimal(third) as f32, third);
        assert!(decimal(f32::INFINITY).is_infinite());
        // The order of numbers is kept.
        let mut last = f64::NEG_INFINITY;
        for bits in (0x3dcc_0000..0x3dcd_ffff_u32).step_by(7) {
            let number = decimal(f32::from_bits(bits));
            assert!(number > last);
            last = number;
        }
    }
}
