//! The measured work: 300 rules of five conditions each, on requests of 35 values.

#[path = "../../src/random.rs"]
mod random;

use std::time::{Duration, Instant};

use scorer_rules::{
    Actions, Decision, Environment, Exhausted, ListKey, Lists, Request, Rows, RuleSet, RuleState, Scratch,
    Slot, TextId, Type,
};

pub(crate) use random::Random;

pub(crate) const RULES: usize = 300;
pub(crate) const DOUBLES: usize = 20;
pub(crate) const INTS: usize = 10;
pub(crate) const TEXTS: usize = 5;
pub(crate) const COUNTRIES: [&str; 8] = ["AT", "BE", "DE", "ES", "FR", "IT", "NL", "PL"];

/// One condition: the operator has the words of CEL.
pub(crate) struct Condition {
    pub(crate) cel: String,
    /// The same in the language of GoRules.
    pub(crate) zen: String,
}

/// The conditions of all rules. Each is true with about this probability; with 1, every rule fires.
pub(crate) fn rules(probability: f64) -> Vec<Vec<Condition>> {
    let mut random = Random(7);
    let both = |text: String| Condition { zen: text.clone(), cel: text };
    (0..RULES)
        .map(|_| {
            let limit = 100.0 * probability;
            let (a, c) = (random.below(DOUBLES), random.below(DOUBLES));
            // Another feature, because both conditions on the same one could not be true together.
            let b = (a + 1 + random.below(DOUBLES - 1)) % DOUBLES;
            let count = (limit as i64).max(1);
            let chosen = (COUNTRIES.len() as f64 * probability).ceil() as usize;
            let first = random.below(COUNTRIES.len());
            let texts: Vec<String> =
                (0..chosen).map(|at| format!("\"{}\"", COUNTRIES[(first + at) % COUNTRIES.len()])).collect();
            vec![
                both(format!("f{a} < {limit:?}")),
                both(format!("f{b} >= {:?}", 100.0 - limit)),
                both(format!("n{} < {count}", random.below(INTS))),
                both(format!("c{} in [{}]", random.below(TEXTS), texts.join(", "))),
                both(format!("f{c} * 2.0 < {:?}", 2.0 * limit)),
            ]
        })
        .collect()
}

/// The values of one request.
#[derive(Clone)]
pub(crate) struct Row {
    pub(crate) doubles: Vec<f64>,
    pub(crate) ints: Vec<i64>,
    pub(crate) texts: Vec<&'static str>,
}

pub(crate) fn rows(count: usize) -> Vec<Row> {
    let mut random = Random(11);
    (0..count)
        .map(|_| Row {
            doubles: (0..DOUBLES)
                .map(|_| (random.next() >> 11) as f64 / 9_007_199_254_740_992.0 * 100.0)
                .collect(),
            ints: (0..INTS).map(|_| random.below(100) as i64).collect(),
            texts: (0..TEXTS).map(|_| COUNTRIES[random.below(COUNTRIES.len())]).collect(),
        })
        .collect()
}

/// Our rules with their memory.
pub(crate) struct Ours {
    set: RuleSet,
    decision: Decision,
    rows: Rows,
    lists: Lists,
    countries: Vec<(&'static str, TextId)>,
    slots: Vec<Slot>,
}

impl Ours {
    pub(crate) fn new(rules: &[Vec<Condition>]) -> Ours {
        let mut environment = Environment::new();
        let mut slots = Vec::new();
        for (letter, count, kind) in
            [('f', DOUBLES, Type::Double), ('n', INTS, Type::Int), ('c', TEXTS, Type::Text)]
        {
            slots.extend(
                (0..count).map(|at| environment.declare(&format!("{letter}{at}"), kind).expect("new names")),
            );
        }
        environment.known(COUNTRIES).expect("a short vocabulary");
        let mut text = "name = \"speed\"\n".to_owned();
        for (number, conditions) in rules.iter().enumerate() {
            let when: Vec<&str> = conditions.iter().map(|condition| condition.cel.as_str()).collect();
            let when = when.join(" && ");
            text.push_str(&format!(
                "[[rules]]\nid = \"r{number}\"\nwhen = '{when}'\nreason = \"R{number}\"\n"
            ));
        }
        let key = ListKey::new([5; 16]);
        let set = RuleSet::compile(&text, &environment, &Actions::default(), key)
            .unwrap_or_else(|faults| panic!("{}", faults[0]));
        let countries =
            COUNTRIES.into_iter().filter_map(|name| Some((name, set.program().text_id(name)?))).collect();
        Ours {
            decision: set.start(),
            rows: set.start_rows(),
            lists: Lists::new(key, &environment),
            countries,
            slots,
            set,
        }
    }

    /// Sets the values of a request, evaluates all rules and returns how many fired.
    pub(crate) fn run(&mut self, row: &Row) -> usize {
        fill(self.decision.values(), &self.slots, &self.countries, row);
        self.set.evaluate(
            &mut self.decision,
            &self.lists,
            Request { seconds: 0, id: b"order", exhausted: Exhausted::NONE },
        );
        self.decision.applied().len()
    }

    /// Evaluates all rules on several requests, at most [`Rows::CAPACITY`], and returns how many fired.
    pub(crate) fn run_rows(&mut self, rows: &[Row]) -> usize {
        for row in rows {
            fill(self.rows.values(), &self.slots, &self.countries, row);
            self.rows.push();
        }
        let requests = [Request { seconds: 0, id: b"order", exhausted: Exhausted::NONE }; Rows::CAPACITY];
        let mut fired = 0;
        self.set.evaluate_rows(&mut self.rows, &self.lists, &requests, |_, decision| {
            fired += decision.applied().len();
        });
        fired
    }

    pub(crate) fn fired(&self) -> Vec<bool> {
        self.decision.states().iter().map(|state| *state == RuleState::Fired).collect()
    }
}

fn fill(values: &mut Scratch, slots: &[Slot], countries: &[(&'static str, TextId)], row: &Row) {
    for (slot, value) in slots.iter().zip(&row.doubles) {
        values.set_double(*slot, *value);
    }
    for (slot, value) in slots[DOUBLES..].iter().zip(&row.ints) {
        values.set_int(*slot, *value);
    }
    for (slot, text) in slots[DOUBLES + INTS..].iter().zip(&row.texts) {
        let id = countries.iter().find(|(name, _)| name == text).map(|(_, id)| *id);
        values.set_text(*slot, id);
    }
}

/// Median and 99th percentile of the time of one call, in µs.
pub(crate) fn measure(calls: usize, mut call: impl FnMut(usize)) -> (f64, f64) {
    (0..calls / 10).for_each(&mut call);
    let mut times: Vec<Duration> = (0..calls)
        .map(|number| {
            let start = Instant::now();
            call(number);
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    let micros = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
    (micros(0.5), micros(0.99))
}
