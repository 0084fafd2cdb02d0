//! Many requests at a time have the results that each of them has alone.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod support;

use scorer_rules::{Actions, Decision, Exhausted, ListKey, Request, Rows, RuleSet, Type};
use support::{Dialect, Random, environment, generate, lists, render, values};

/// A rule set of random conditions, with every hit policy, values, dates, roll-outs and rules that remove actions.
fn text(random: &mut Random) -> String {
    let hit = random.pick(&["first", "priority", "collect", "any", "unique"]);
    let mut text =
        format!("name = \"random\"\nhit = \"{hit}\"\ndecisions = [\"decline\", \"review\", \"approve\"]\n");
    let condition = |random: &mut Random, kind: Type| {
        let depth = 1 + random.below(5);
        let node = generate(random, kind, depth, Dialect { extended: true });
        render(&node, random, 0)
    };
    for number in 0..random.below(3) {
        let kind = random.pick(&[Type::Bool, Type::Int, Type::Double]);
        let is = condition(random, kind);
        text += &format!("[[values]]\nname = \"v{number}\"\nis = {}\n", quoted(&is));
    }
    for number in 0..1 + random.below(6) {
        let mut when = condition(random, Type::Bool);
        if number > 0 && random.below(3) == 0 {
            when = format!("({when}) || rules.r{}", number - 1);
        }
        if random.below(4) == 0 {
            when = format!("action.way != 'w1' && ({when})");
            text += &format!("[[rules]]\nid = \"r{number}\"\nwhen = {}\nsource = \"law\"\n", quoted(&when));
        } else {
            let effect = random.pick(&[
                "decision = \"decline\"",
                "decision = \"review\"\nqueue = \"q\"",
                "cap = 0.25",
                "floor = 0.75",
                "remove = { way = [\"w2\"] }\nsource = \"law\"",
            ]);
            text += &format!("[[rules]]\nid = \"r{number}\"\nwhen = {}\n{effect}\n", quoted(&when));
        }
        match random.below(4) {
            0 => text += "rollout = 50.0\n",
            1 => text += "from = 2026-06-01\n",
            2 => text += &format!("priority = {}\n", random.below(3)),
            _ => {}
        }
    }
    text
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn result(set: &RuleSet, decision: &Decision) -> String {
    let removed: Vec<&[u64]> = decision.applied().iter().map(|rule| decision.removed(*rule)).collect();
    format!(
        "{:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?}",
        decision.states(),
        decision.applied(),
        removed,
        set.decision(decision),
        set.queue(decision),
        (decision.cap(), decision.floor()),
        decision.allowed(),
        decision.unknown(),
        decision.errors(),
        decision.conflicts(),
    )
}

#[test]
fn many_requests_have_the_results_of_each() {
    let environment = environment();
    let lists = lists(&environment);
    let factor = ("way".to_owned(), (0..70).map(|at| format!("w{}", at % 3)).collect());
    let actions = Actions::new(70, vec![factor]).unwrap();
    let (mut compiled, mut fired) = (0, 0);
    for seed in 0..3_000 {
        let mut random = Random(seed);
        let text = text(&mut random);
        // Random rules may be constant, contradict each other or remove every action, which is refused.
        let Ok(set) = RuleSet::compile(&text, &environment, &actions, ListKey::new(support::KEY)) else {
            continue;
        };
        compiled += 1;
        let (mut alone, mut rows) = (set.start(), set.start_rows());
        for _ in 0..2 {
            let count = random.pick(&[1, 2, 63, Rows::CAPACITY]);
            let ids: Vec<String> = (0..count).map(|_| format!("payment-{}", random.next())).collect();
            let requests: Vec<Request<'_>> = ids
                .iter()
                .map(|id| Request {
                    exhausted: Exhausted::NONE,
                    seconds: 1_780_000_000 + random.below(40_000_000) as i64,
                    id: id.as_bytes(),
                })
                .collect();
            let expected: Vec<String> = requests
                .iter()
                .map(|request| {
                    let values = values(&mut random);
                    support::set(set.program(), alone.values(), &values);
                    set.evaluate(&mut alone, &lists, *request);
                    support::set(set.program(), rows.values(), &values);
                    assert!(rows.push());
                    fired += alone.applied().len();
                    result(&set, &alone)
                })
                .collect();
            assert_eq!(rows.len(), count);
            let mut got = Vec::new();
            set.evaluate_rows(&mut rows, &lists, &requests, |row, decision| {
                assert_eq!(row, got.len());
                got.push(result(&set, decision));
            });
            assert!(rows.is_empty());
            assert_eq!(got, expected, "seed {seed}\n{text}");
        }
    }
    assert!(compiled > 500 && fired > 10_000, "{compiled} sets, {fired} rules");
}

#[test]
fn a_full_block_takes_no_other_request() {
    let environment = environment();
    let actions = Actions::new(0, Vec::new()).unwrap();
    let text = "name = \"one\"\n[[rules]]\nid = \"r\"\nwhen = \"b0\"\nreason = \"R\"\n";
    let set = RuleSet::compile(text, &environment, &actions, ListKey::new(support::KEY)).unwrap();
    let mut rows = set.start_rows();
    assert!((0..Rows::CAPACITY).all(|_| rows.push()));
    assert!(rows.is_full() && !rows.push());
    // A request without a time and an id is ignored.
    let mut seen = 0;
    let requests = [Request { seconds: 0, id: b"", exhausted: Exhausted::NONE }; 3];
    set.evaluate_rows(&mut rows, &lists(&environment), &requests, |_, _| seen += 1);
    assert_eq!((seen, rows.len()), (3, 0));
}
