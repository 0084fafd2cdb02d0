//! Compiles a rule set: values, rules and decision tables with what they write.

use std::collections::{BTreeSet, HashMap};

use siphasher::sip::SipHasher13;
use toml::Spanned;

use crate::actions::Actions;
use crate::budget::{AmountLimit, Budget, Budgeted};
use crate::check::{Typed, check, join};
use crate::conflicts::{Checked, conflicts};
use crate::environment::{Environment, Slot, Type, check_name};
use crate::fault::{Fault, position};
use crate::limits::{MAX_BUDGETS, MAX_EXPRESSIONS, MAX_RULES};
use crate::lists::ListKey;
use crate::order::order;
use crate::parser::{Expr, ExprKind, parse};
use crate::program::Program;
use crate::source::{
    DailyAmount, File, HitPolicy, RuleSource, TableSource, ValueSource, parse_file, place, seconds,
};
use crate::table;

/// What a rule writes and how it is described.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// Its id; a row of a table has the table's id and its number, such as `tra.row1`.
    pub id: String,
    /// The decision that it writes.
    pub decision: Option<String>,
    /// The reason code that it adds.
    pub reason: Option<String>,
    /// The greatest score that it allows.
    pub cap: Option<f64>,
    /// The smallest score that it allows.
    pub floor: Option<f64>,
    /// The review queue that it selects.
    pub queue: Option<String>,
    /// The regulation or agreement that it follows.
    pub source: Option<String>,
    /// Its priority in a group with the hit policy `priority`.
    pub priority: i64,
    /// Whether it removes actions from the eligible ones.
    pub restricts: bool,
    /// What it may decide on one UTC day.
    pub budget: Option<Budget>,
    /// Line of the file where the rule or row begins, from 1.
    pub line: u32,
    /// Column of that line in characters, from 1.
    pub column: u32,
}

/// A compiled rule set.
#[derive(Debug)]
pub struct RuleSet {
    pub(crate) name: String,
    pub(crate) program: Program,
    pub(crate) rules: Vec<Rule>,
    pub(crate) parts: Vec<Part>,
    pub(crate) groups: Vec<Group>,
    pub(crate) steps: Vec<Step>,
    /// The rules with a daily budget.
    pub(crate) budgets: Vec<Budgeted>,
    /// The decisions, the strictest first.
    pub(crate) decisions: Vec<String>,
    pub(crate) queues: Vec<String>,
    /// The set of all actions.
    pub(crate) actions: Vec<u64>,
    /// The names that values and conditions read.
    reads: BTreeSet<String>,
    /// Line and column of each decision in the file's list.
    decisions_at: Vec<(u32, u32)>,
}

/// The part of a rule that evaluating it reads.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) slot: Slot,
    pub(crate) variants: Vec<Variant>,
    pub(crate) decision: Option<u16>,
    pub(crate) queue: Option<u16>,
    pub(crate) window: Window,
    /// Requests whose hash is below it are in the roll-out; `None` means all.
    pub(crate) rollout: Option<u64>,
    /// Its place among the rules with a daily budget.
    pub(crate) budget: Option<usize>,
    /// Makes the roll-outs of rules independent.
    pub(crate) hasher: SipHasher13,
}

/// A condition and the actions that are removed if it is true. A rule that reads the action's factors has a variant
/// for every group of actions on which its condition is the same.
#[derive(Debug)]
pub(crate) struct Variant {
    pub(crate) expression: usize,
    pub(crate) removed: Vec<u64>,
}

/// The greatest limits of a daily budget.
const MOST_DECISIONS: u64 = 1_000_000_000;
const MOST_AMOUNT: f64 = 100_000_000_000.0;

/// When a rule is active, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) from: i64,
    pub(crate) until: i64,
}

/// Rules with one hit policy: those of the file, or the rows of one table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group {
    pub(crate) hit: HitPolicy,
    pub(crate) first: usize,
    pub(crate) end: usize,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    Value { expression: usize, slot: Slot },
    Rule(usize),
}

/// A rule before its names are resolved.
struct Draft<'a> {
    rule: Rule,
    at: (u32, u32),
    terms: Vec<Term<'a>>,
    removed: Option<Vec<u64>>,
    /// Whether the actions on which the condition is true are removed.
    on_action: bool,
    window: Window,
    rollout: Option<f64>,
}

/// One condition of a rule. All of them must be true.
struct Term<'a> {
    parsed: Expr,
    origin: Origin<'a>,
}

#[derive(Clone, Copy)]
enum Origin<'a> {
    Text(&'a Spanned<String>),
    Cell(usize),
}

impl RuleSet {
    /// Compiles the rule set of a TOML file. `environment` declares the names of the request; `actions` are those
    /// whose eligibility rules may decide, none for a set about scores.
    ///
    /// # Errors
    /// Fails with every fault that was found: unknown names, types, cycles, conflicts, rules without effect.
    pub fn compile(
        text: &str,
        environment: &Environment,
        actions: &Actions,
        key: ListKey,
    ) -> Result<RuleSet, Vec<Fault>> {
        let file = parse_file(text).map_err(|fault| vec![fault])?;
        let mut compiler = Compiler {
            text,
            environment: environment.clone(),
            actions,
            faults: Vec::new(),
            queues: Vec::new(),
        };
        let set = compiler.compile(&file, key);
        match set {
            Some(set) if compiler.faults.is_empty() => Ok(set),
            _ => {
                compiler.faults.sort_by_key(|fault| (fault.line, fault.column));
                Err(compiler.faults)
            }
        }
    }

    /// The set's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether a rule is rolled out to a share of the requests, which depends on their ids.
    #[must_use]
    pub fn needs_ids(&self) -> bool {
        self.parts.iter().any(|part| part.rollout.is_some())
    }

    /// The rules in the order of the file, then the rows of each table.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The decisions that rules may write, the strictest first.
    #[must_use]
    pub fn decisions(&self) -> &[String] {
        &self.decisions
    }

    /// Line and column, from 1, of a decision in the file's list of decisions.
    #[must_use]
    pub fn decision_place(&self, decision: usize) -> (u32, u32) {
        self.decisions_at.get(decision).copied().unwrap_or((1, 1))
    }

    /// Whether a value or a condition reads a name of the environment.
    #[must_use]
    pub fn reads(&self, name: &str) -> bool {
        self.reads.contains(name)
    }

    /// The program of all conditions.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The greatest number of instructions that an evaluation can take.
    #[must_use]
    pub fn steps(&self) -> usize {
        (0..self.program.len()).map(|expression| self.program.steps(expression)).sum()
    }
}

struct Compiler<'a> {
    text: &'a str,
    environment: Environment,
    actions: &'a Actions,
    faults: Vec<Fault>,
    queues: Vec<String>,
}

impl<'a> Compiler<'a> {
    fn fault(&mut self, rule: &str, (line, column): (u32, u32), problem: impl Into<String>) {
        self.faults.push(Fault { rule: rule.to_owned(), line, column, problem: problem.into() });
    }

    fn at<T>(&self, value: &Spanned<T>) -> (u32, u32) {
        position(self.text, value.span().start)
    }

    fn compile(&mut self, file: &'a File, key: ListKey) -> Option<RuleSet> {
        if let Err(error) = check_name(file.name.get_ref()) {
            self.fault("", self.at(&file.name), error.to_string());
        }
        let decisions = self.decisions(file);
        let (drafts, groups) = self.drafts(file, &decisions);
        if drafts.len() > MAX_RULES {
            self.fault(
                "",
                (1, 1),
                format!("there are {} rules, more than {MAX_RULES}; split the set", drafts.len()),
            );
            return None;
        }
        let values: Vec<Option<Expr>> = file
            .values
            .iter()
            .map(|value| {
                parse(value.is.get_ref())
                    .map_err(|problem| {
                        let at = place(self.text, &value.is, problem.at);
                        self.fault(value.name.get_ref(), at, problem.text);
                    })
                    .ok()
            })
            .collect();
        let slots = self.declare_rules(&drafts);
        let order = self.order(&file.values, &values, &drafts)?;
        if !self.faults.is_empty() {
            return None;
        }
        // Values are declared when they are checked, because their types follow from their expressions.
        let mut expressions: Vec<Typed> = Vec::new();
        let mut names: Vec<&str> = Vec::new();
        let mut steps = Vec::new();
        let mut checked: Vec<Option<Checked>> = drafts.iter().map(|_| None).collect();
        let mut variants: Vec<Vec<Variant>> = drafts.iter().map(|_| Vec::new()).collect();
        for node in order {
            if let Some(value) = file.values.get(node) {
                let Some(parsed) = &values[node] else { continue };
                let Some((typed, slot)) = self.value(value, parsed) else { continue };
                steps.push(Step::Value { expression: expressions.len(), slot });
                expressions.push(typed);
                names.push(value.name.get_ref());
                continue;
            }
            let number = node - file.values.len();
            let draft = &drafts[number];
            let Some(conditions) = self.conditions(draft) else { continue };
            steps.push(Step::Rule(number));
            for (condition, removed) in &conditions {
                variants[number].push(Variant { expression: expressions.len(), removed: removed.clone() });
                expressions.push(condition.clone());
                names.push(&draft.rule.id);
            }
            checked[number] = Some(Checked {
                id: draft.rule.id.clone(),
                at: draft.at,
                conditions,
                always: draft.window == Window::ALWAYS
                    && draft.rollout.is_none()
                    && draft.rule.budget.is_none(),
                literally_true: draft.terms.iter().all(|term| term.parsed.kind == ExprKind::Bool(true)),
                rule: draft.rule.clone(),
            });
        }
        if expressions.len() > MAX_EXPRESSIONS {
            self.fault(
                "",
                (1, 1),
                format!("the rules need more than {MAX_EXPRESSIONS} conditions; split the set"),
            );
        }
        if !self.faults.is_empty() {
            return None;
        }
        let checked: Vec<Checked> = checked.into_iter().flatten().collect();
        self.faults.extend(conflicts(&checked, &groups, &self.actions.all()));
        let program = match Program::lower(&self.environment, key, &names, &expressions) {
            Ok(program) => program,
            Err(fault) => {
                self.faults.push(fault);
                return None;
            }
        };
        let mut budgets: Vec<Budgeted> = Vec::new();
        let places: Vec<Option<usize>> = (0_u16..)
            .zip(&drafts)
            .map(|(rule, draft)| {
                let budget = draft.rule.budget.as_ref()?;
                let of = budget.amount.as_ref().and_then(|limit| self.environment.slot(&limit.of));
                budgets.push(Budgeted { rule, of: of.map(|slot| (slot, self.environment.kind(slot))) });
                Some(budgets.len() - 1)
            })
            .collect();
        let index = |known: &[String], value: &Option<String>| {
            let at = known.iter().position(|known| Some(known) == value.as_ref())?;
            u16::try_from(at).ok()
        };
        let parts = drafts
            .iter()
            .zip(variants)
            .zip(slots)
            .zip(places)
            .map(|(((draft, variants), slot), budget)| Part {
                slot,
                variants,
                decision: index(&decisions, &draft.rule.decision),
                queue: index(&self.queues, &draft.rule.queue),
                window: draft.window,
                rollout: draft.rollout.map(|percent| (percent / 100.0 * 2_f64.powi(64)) as u64),
                budget,
                hasher: key.salted(&[file.name.get_ref().as_bytes(), draft.rule.id.as_bytes()]),
            })
            .collect();
        let mut reads = BTreeSet::new();
        let mut read = |expression: &Expr| {
            expression.names(&mut |name| {
                reads.insert(name.to_owned());
            });
        };
        values.iter().flatten().for_each(&mut read);
        drafts.iter().flat_map(|draft| &draft.terms).for_each(|term| read(&term.parsed));
        Some(RuleSet {
            name: file.name.get_ref().clone(),
            reads,
            decisions_at: file.decisions.iter().map(|decision| self.at(decision)).collect(),
            program,
            rules: drafts.into_iter().map(|draft| draft.rule).collect(),
            parts,
            groups,
            steps,
            budgets,
            decisions,
            queues: std::mem::take(&mut self.queues),
            actions: self.actions.all(),
        })
    }

    fn decisions(&mut self, file: &File) -> Vec<String> {
        let mut decisions: Vec<String> = Vec::new();
        for decision in &file.decisions {
            if decisions.contains(decision.get_ref()) {
                let problem =
                    format!("decision {:?} is listed twice; remove one of the two", decision.get_ref());
                self.fault("", self.at(decision), problem);
            }
            decisions.push(decision.get_ref().clone());
        }
        if decisions.len() > 256 {
            self.fault("", (1, 1), "there are more than 256 decisions; remove some");
        }
        decisions
    }

    /// All rules: those of the file, then the rows of each table.
    fn drafts(&mut self, file: &'a File, decisions: &[String]) -> (Vec<Draft<'a>>, Vec<Group>) {
        let mut drafts: Vec<Draft<'a>> = Vec::new();
        let mut groups = Vec::new();
        for source in &file.rules {
            drafts.extend(self.draft(source, decisions));
        }
        if !drafts.is_empty() {
            let hit = file.hit.unwrap_or(HitPolicy::Collect);
            groups.push(Group { hit, first: 0, end: drafts.len() });
        }
        for table in &file.tables {
            let first = drafts.len();
            self.table(table, decisions, &mut drafts);
            let hit = table.hit.unwrap_or(HitPolicy::First);
            groups.push(Group { hit, first, end: drafts.len() });
        }
        let mut ids: HashMap<&str, (u32, u32)> = HashMap::new();
        let mut twice = Vec::new();
        for draft in &drafts {
            if ids.insert(&draft.rule.id, draft.at).is_some() {
                twice.push((draft.rule.id.clone(), draft.at));
            }
        }
        let with_budget = drafts.iter().filter(|draft| draft.rule.budget.is_some()).count();
        if with_budget > MAX_BUDGETS {
            let problem = format!(
                "{with_budget} rules have a daily budget, more than {MAX_BUDGETS}; remove \"daily\" and \"daily_amount\" from some"
            );
            self.fault("", (1, 1), problem);
        }
        for (id, at) in twice {
            self.fault(&id, at, "two rules have this id; rename one of them");
        }
        (drafts, groups)
    }

    fn draft(&mut self, source: &'a RuleSource, decisions: &[String]) -> Option<Draft<'a>> {
        let id = source.id.get_ref();
        let at = self.at(&source.id);
        let before = self.faults.len();
        if id.contains('.') || check_name(id).is_err() {
            self.fault(
                id,
                at,
                "an id has letters, digits and '_' and does not start with a digit; rename the rule",
            );
        }
        let parsed = match parse(source.when.get_ref()) {
            Ok(parsed) => Some(parsed),
            Err(problem) => {
                let at = place(self.text, &source.when, problem.at);
                self.fault(id, at, problem.text);
                None
            }
        };
        if let Some(decision) = &source.decision {
            self.known_decision(id, self.at(decision), decision.get_ref(), decisions);
        }
        let mut number = |value: &Option<Spanned<f64>>, name: &str| {
            let value = value.as_ref()?;
            self.score(id, self.at(value), name, *value.get_ref());
            Some(*value.get_ref())
        };
        let (cap, floor) = (number(&source.cap, "cap"), number(&source.floor, "floor"));
        let rollout = source.rollout.as_ref().map(|rollout| {
            if !(*rollout.get_ref() > 0.0 && *rollout.get_ref() < 100.0) {
                let problem = "rollout is a percentage between 0 and 100, both excluded; correct it, or remove it for all requests";
                self.fault(id, self.at(rollout), problem);
            }
            *rollout.get_ref()
        });
        let window = self.window(id, source);
        let (budget, of_amount) = self.budget(source);
        let mut removed: Option<Vec<u64>> = None;
        for (selection, keep) in [(&source.remove, false), (&source.keep, true)] {
            let Some(selection) = selection else { continue };
            match self.actions.select(selection.get_ref()) {
                Ok(selected) => {
                    let all = self.actions.all();
                    let words = removed.get_or_insert_with(|| vec![0; all.len()]);
                    for ((word, selected), all) in words.iter_mut().zip(selected).zip(all) {
                        *word |= if keep { all & !selected } else { selected };
                    }
                }
                Err(problem) => self.fault(id, self.at(selection), problem),
            }
        }
        let on_action = parsed.as_ref().is_some_and(|parsed| self.reads_action(parsed));
        if on_action && removed.is_some() {
            let problem = "a rule that reads the action's factors removes the actions on which it is true; remove \"remove\" and \"keep\"";
            self.fault(id, self.at(&source.when), problem);
        }
        if (removed.is_some() || on_action)
            && source.source.as_ref().is_none_or(|source| source.trim().is_empty())
        {
            self.fault(
                id,
                at,
                "a rule about eligibility names the regulation or agreement; add source = \"…\"",
            );
        }
        let rule = Rule {
            id: id.clone(),
            decision: source.decision.as_ref().map(|decision| decision.get_ref().clone()),
            reason: source.reason.clone(),
            cap,
            floor,
            queue: source.queue.clone(),
            source: source.source.clone(),
            priority: source.priority,
            restricts: removed.is_some() || on_action,
            budget,
            line: at.0,
            column: at.1,
        };
        self.check_effect(&rule, at);
        let mut terms = vec![Term { parsed: parsed?, origin: Origin::Text(&source.when) }];
        terms.extend(of_amount);
        (self.faults.len() == before).then_some(Draft {
            rule,
            at,
            terms,
            removed,
            on_action,
            window,
            rollout,
        })
    }

    /// Whether an expression reads a factor of the action. Such a rule may not write anything else.
    fn reads_action(&self, parsed: &Expr) -> bool {
        let mut reads = false;
        parsed.names(&mut |name| {
            let factor = name.strip_prefix("action.");
            reads |=
                factor.is_some_and(|factor| self.actions.factors().iter().any(|(known, _)| known == factor));
        });
        reads
    }

    fn known_decision(&mut self, id: &str, at: (u32, u32), decision: &str, decisions: &[String]) {
        if !decisions.iter().any(|known| known == decision) {
            let near = crate::fault::nearest(decision, decisions.iter().map(String::as_str));
            let problem =
                format!("decision {decision:?} is not in decisions{near}; add it there or correct it");
            self.fault(id, at, problem);
        }
    }

    fn score(&mut self, id: &str, at: (u32, u32), name: &str, value: f64) {
        if !value.is_finite() {
            self.fault(id, at, format!("{name} is not a finite number; correct it"));
        }
    }

    /// The daily budget of a rule, and the condition that it needs: the number that is added up is there and not
    /// negative.
    fn budget(&mut self, source: &'a RuleSource) -> (Option<Budget>, Option<Term<'a>>) {
        let (RuleSource { daily, daily_amount, decision, .. }, id) = (source, source.id.get_ref());
        let at = daily.as_ref().map(|daily| self.at(daily));
        let Some(at) = at.or_else(|| Some(self.at(&daily_amount.as_ref()?.of))) else { return (None, None) };
        if decision.is_none() {
            let problem = "a daily budget counts the requests whose decision the rule writes; add a decision, or remove \"daily\" and \"daily_amount\"";
            self.fault(id, at, problem);
        }
        let decisions = daily.as_ref().map(|daily| {
            let number = u64::try_from(*daily.get_ref()).unwrap_or(0);
            if !(1..=MOST_DECISIONS).contains(&number) {
                let problem = format!(
                    "daily is the greatest number of requests of a UTC day, from 1 to {MOST_DECISIONS}; correct it, or use enabled = false for none"
                );
                self.fault(id, at, problem);
            }
            number
        });
        let (amount, term) = daily_amount.as_ref().map(|amount| self.amount_limit(id, amount)).unzip();
        (Some(Budget { decisions, amount }), term.flatten())
    }

    fn amount_limit(&mut self, id: &str, amount: &'a DailyAmount) -> (AmountLimit, Option<Term<'a>>) {
        let (of, most) = (amount.of.get_ref(), *amount.most.get_ref());
        if !(most > 0.0 && most <= MOST_AMOUNT) {
            let problem = format!(
                "most is the greatest sum of a UTC day, above 0 and at most {MOST_AMOUNT}; correct it, or use enabled = false for none"
            );
            self.fault(id, self.at(&amount.most), problem);
        }
        let named = parse(of).is_ok_and(|parsed| matches!(parsed.kind, ExprKind::Name(_)));
        let term = parse(&format!("{of} >= 0.0")).ok().filter(|_| named);
        if term.is_none() {
            let problem = format!(
                "of is the name of a number, and {of:?} is none; define it in [[values]] and name it"
            );
            self.fault(id, self.at(&amount.of), problem);
        }
        let term = term.map(|parsed| Term { parsed, origin: Origin::Cell(amount.of.span().start) });
        (AmountLimit { of: of.clone(), most }, term)
    }

    fn window(&mut self, id: &str, source: &RuleSource) -> Window {
        let mut window = Window::ALWAYS;
        let mut time = |value: &Option<Spanned<toml::value::Datetime>>, name: &str| {
            let value = value.as_ref()?;
            let seconds = seconds(value.get_ref());
            if seconds.is_none() {
                let problem =
                    format!("{name} has no time zone; write a date, or a time such as 2026-03-01T00:00:00Z");
                self.fault(id, self.at(value), problem);
            }
            seconds
        };
        window.from = time(&source.from, "from").unwrap_or(i64::MIN);
        window.until = time(&source.until, "until").unwrap_or(i64::MAX);
        if let Some(snoozed) = time(&source.snoozed_until, "snoozed_until") {
            window.from = window.from.max(snoozed);
        }
        if window.from >= window.until {
            self.fault(
                id,
                self.at(&source.id),
                "the rule is never active; correct from, until or snoozed_until",
            );
        }
        if source.enabled == Some(false) {
            return Window::NEVER;
        }
        window
    }

    fn check_effect(&mut self, rule: &Rule, at: (u32, u32)) {
        if let (Some(cap), Some(floor)) = (rule.cap, rule.floor)
            && floor > cap
        {
            self.fault(&rule.id, at, format!("floor {floor} is above cap {cap}; correct one of them"));
        }
        for (name, text) in [("reason", &rule.reason), ("queue", &rule.queue)] {
            let wrong =
                |text: &String| text.is_empty() || text.len() > 128 || text.chars().any(char::is_control);
            if text.as_ref().is_some_and(wrong) {
                self.fault(&rule.id, at, format!("{name} must have 1 to 128 printable bytes; correct it"));
            }
        }
        if let Some(queue) = &rule.queue
            && !self.queues.contains(queue)
        {
            self.queues.push(queue.clone());
        }
    }

    fn table(&mut self, table: &'a TableSource, decisions: &[String], drafts: &mut Vec<Draft<'a>>) {
        let id = table.id.get_ref();
        if id.contains('.') || check_name(id).is_err() {
            let problem =
                "an id has letters, digits and '_' and does not start with a digit; rename the table";
            self.fault(id, self.at(&table.id), problem);
            return;
        }
        for input in &table.inputs {
            if let Err(problem) = parse(input.get_ref()) {
                self.fault(id, place(self.text, input, problem.at), problem.text);
                return;
            }
        }
        let known = ["decision", "reason", "cap", "floor", "queue", "priority"];
        for output in &table.outputs {
            if !known.contains(&output.get_ref().as_str()) {
                let near = crate::fault::nearest(output.get_ref(), known.into_iter());
                let problem =
                    format!("unknown output {:?}{near}; a row writes {}", output.get_ref(), known.join(", "));
                self.fault(id, self.at(output), problem);
                return;
            }
        }
        for (number, row) in table.rows.iter().enumerate() {
            let row_id = format!("{id}.row{}", number + 1);
            let at = row.first().map_or_else(|| self.at(&table.id), |cell| self.at(cell));
            let columns = table.inputs.len() + table.outputs.len();
            if row.len() != columns {
                let problem =
                    format!("the row has {} cells and the table {columns} columns; correct it", row.len());
                self.fault(&row_id, at, problem);
                continue;
            }
            let (tests, writes) = row.split_at(table.inputs.len());
            let mut terms = Vec::new();
            for (input, cell) in table.inputs.iter().zip(tests) {
                let text = match cell.get_ref() {
                    toml::Value::String(text) => text.clone(),
                    toml::Value::Float(number) => format!("{number:?}"),
                    toml::Value::Integer(number) => number.to_string(),
                    toml::Value::Boolean(value) => value.to_string(),
                    _ => {
                        let problem = "a cell is a string, a number or a bool; correct it";
                        self.fault(&row_id, self.at(cell), problem);
                        continue;
                    }
                };
                let Some(condition) = table::condition(input.get_ref(), &text) else { continue };
                match parse(&condition) {
                    Ok(parsed) => terms.push(Term { parsed, origin: Origin::Cell(cell.span().start) }),
                    Err(problem) => self.fault(&row_id, self.at(cell), problem.text),
                }
            }
            let mut rule = Rule {
                id: row_id,
                decision: None,
                reason: None,
                cap: None,
                floor: None,
                queue: None,
                source: None,
                priority: 0,
                restricts: false,
                budget: None,
                line: at.0,
                column: at.1,
            };
            for (output, cell) in table.outputs.iter().zip(writes) {
                self.write(&mut rule, output.get_ref(), cell, decisions);
            }
            self.check_effect(&rule, at);
            drafts.push(Draft {
                rule,
                at,
                terms,
                removed: None,
                on_action: false,
                window: Window::ALWAYS,
                rollout: None,
            });
        }
    }

    fn write(&mut self, rule: &mut Rule, output: &str, cell: &Spanned<toml::Value>, decisions: &[String]) {
        let at = self.at(cell);
        let id = rule.id.clone();
        match (output, cell.get_ref()) {
            (_, toml::Value::String(text)) if text == "-" => {}
            ("decision", toml::Value::String(text)) => {
                self.known_decision(&id, at, text, decisions);
                rule.decision = Some(text.clone());
            }
            ("reason", toml::Value::String(text)) => rule.reason = Some(text.clone()),
            ("queue", toml::Value::String(text)) => rule.queue = Some(text.clone()),
            ("priority", toml::Value::Integer(value)) => rule.priority = *value,
            ("cap" | "floor", toml::Value::Float(_) | toml::Value::Integer(_)) => {
                let value = match cell.get_ref() {
                    toml::Value::Float(value) => *value,
                    toml::Value::Integer(value) => *value as f64,
                    _ => f64::NAN,
                };
                self.score(&id, at, output, value);
                *(if output == "cap" { &mut rule.cap } else { &mut rule.floor }) = Some(value);
            }
            _ => {
                let wanted = match output {
                    "cap" | "floor" => "a number",
                    "priority" => "an integer",
                    _ => "a string",
                };
                self.fault(
                    &id,
                    at,
                    format!("{output} needs {wanted}, or \"-\" for nothing; correct the cell"),
                );
            }
        }
    }

    fn declare_rules(&mut self, drafts: &[Draft<'_>]) -> Vec<Slot> {
        let mut slots = Vec::with_capacity(drafts.len());
        for draft in drafts {
            match self.environment.declare(&format!("rules.{}", draft.rule.id), Type::Bool) {
                Ok(slot) => slots.push(slot),
                Err(error) => self.fault(&draft.rule.id, draft.at, error.to_string()),
            }
        }
        slots
    }

    /// The numbers of values, then of rules, so that each comes after those that it reads.
    fn order(
        &mut self,
        sources: &[ValueSource],
        values: &[Option<Expr>],
        drafts: &[Draft<'_>],
    ) -> Option<Vec<usize>> {
        let mut numbers: HashMap<String, usize> = HashMap::new();
        for (number, value) in sources.iter().enumerate() {
            numbers.insert(value.name.get_ref().clone(), number);
        }
        for (number, draft) in drafts.iter().enumerate() {
            numbers.insert(format!("rules.{}", draft.rule.id), sources.len() + number);
        }
        let read = |expression: &Expr, reads: &mut Vec<usize>| {
            expression.names(&mut |name| reads.extend(numbers.get(name)));
        };
        let mut reads: Vec<Vec<usize>> = Vec::with_capacity(numbers.len());
        for value in values {
            let mut numbers = Vec::new();
            if let Some(value) = value {
                read(value, &mut numbers);
            }
            reads.push(numbers);
        }
        for draft in drafts {
            let mut numbers = Vec::new();
            draft.terms.iter().for_each(|term| read(&term.parsed, &mut numbers));
            reads.push(numbers);
        }
        match order(&reads) {
            Ok(order) => Some(order),
            Err(cycle) => {
                let name = |node: usize| match sources.get(node) {
                    Some(value) => value.name.get_ref().clone(),
                    None => drafts[node - sources.len()].rule.id.clone(),
                };
                let names: Vec<String> = cycle.iter().map(|node| name(*node)).collect();
                let at = match sources.get(cycle[0]) {
                    Some(value) => self.at(&value.name),
                    None => drafts[cycle[0] - sources.len()].at,
                };
                let problem = format!(
                    "a cycle: {} {}; remove one of the references",
                    names.join(", then "),
                    if names.len() == 1 { "reads itself" } else { "read each other" }
                );
                self.fault(&names[0], at, problem);
                None
            }
        }
    }

    fn value(&mut self, value: &ValueSource, parsed: &Expr) -> Option<(Typed, Slot)> {
        let name = value.name.get_ref();
        let typed = match check(parsed, &self.environment) {
            Ok(typed) => typed,
            Err(problem) => {
                let at = place(self.text, &value.is, problem.at);
                self.fault(name, at, problem.text);
                return None;
            }
        };
        if let Some(error) = typed.any_error() {
            let problem = format!("the value always fails: {}; correct it", error.describe());
            self.fault(name, self.at(&value.is), problem);
        }
        match self.environment.declare(name, typed.kind()) {
            Ok(slot) => Some((typed, slot)),
            Err(error) => {
                self.fault(name, self.at(&value.name), error.to_string());
                None
            }
        }
    }

    /// The conditions of a rule with the actions that each removes.
    fn conditions(&mut self, draft: &Draft<'_>) -> Option<Vec<(Typed, Vec<u64>)>> {
        if !draft.on_action {
            let condition = self.condition(draft, None)?;
            let removed = draft.removed.clone().unwrap_or_else(|| vec![0; self.actions.words()]);
            return Some(vec![(condition, removed)]);
        }
        let mut classes: Vec<(Typed, Vec<u64>)> = Vec::new();
        let mut seen: HashMap<Vec<&str>, usize> = HashMap::new();
        for action in 0..self.actions.count() {
            let actions = self.actions;
            let values: Vec<&str> =
                actions.factors().iter().map(|(_, values)| values[action].as_str()).collect();
            let class = match seen.get(&values) {
                Some(class) => *class,
                None => {
                    let condition = self.condition(draft, Some(action))?;
                    let class = match classes.iter().position(|(known, _)| *known == condition) {
                        Some(class) => class,
                        None => {
                            classes.push((condition, vec![0; self.actions.words()]));
                            classes.len() - 1
                        }
                    };
                    seen.insert(values, class);
                    class
                }
            };
            classes[class].1[action / 64] |= 1 << (action % 64);
        }
        // Actions on which the condition is constantly false are never removed.
        classes.retain(|(condition, _)| *condition != Typed::Bool(false));
        if classes.is_empty() {
            self.fault(
                &draft.rule.id,
                draft.at,
                "the condition is false on every action; correct or remove the rule",
            );
            return None;
        }
        Some(classes)
    }

    fn condition(&mut self, draft: &Draft<'_>, action: Option<usize>) -> Option<Typed> {
        let mut terms = Vec::new();
        for term in &draft.terms {
            let replaced = action.map(|action| {
                term.parsed.replace(&|name| {
                    let factor = name.strip_prefix("action.")?;
                    let (_, values) = self.actions.factors().iter().find(|(known, _)| known == factor)?;
                    Some(ExprKind::Text(values[action].clone()))
                })
            });
            let parsed = replaced.as_ref().unwrap_or(&term.parsed);
            let locate = |at: usize| match term.origin {
                Origin::Text(text) => place(self.text, text, at),
                Origin::Cell(start) => position(self.text, start),
            };
            match check(parsed, &self.environment) {
                Ok(typed) if typed.kind() == Type::Bool => terms.push(typed),
                Ok(typed) => {
                    let problem =
                        format!("the condition is {} and not bool; compare it with a value", typed.kind());
                    self.fault(&draft.rule.id, locate(0), problem);
                    return None;
                }
                Err(problem) => {
                    let at = locate(problem.at);
                    self.fault(&draft.rule.id, at, problem.text);
                    return None;
                }
            }
        }
        Some(join(terms, false))
    }
}

impl Window {
    pub(crate) const ALWAYS: Window = Window { from: i64::MIN, until: i64::MAX };
    pub(crate) const NEVER: Window = Window { from: i64::MAX, until: i64::MIN };
}
