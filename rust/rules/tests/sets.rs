//! Rule sets: what they write, their hit policies, tables, dates, roll-outs, and the faults that refuse them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use scorer_rules::{
    Actions, Decision, Environment, ErrorKind, Exhausted, KeySet, ListKey, ListKind, Lists, Request, RuleSet,
    RuleState, Type,
};

const KEY: [u8; 16] = [3; 16];

fn environment() -> Environment {
    let mut environment = Environment::new();
    environment.declare("amount", Type::Double).unwrap();
    environment.declare("average", Type::Double).unwrap();
    environment.declare("count", Type::Int).unwrap();
    environment.declare("score", Type::Double).unwrap();
    environment.declare("night", Type::Bool).unwrap();
    environment.declare_text("country", ["NL", "DE", "NG", "GH"]).unwrap();
    environment.declare("card", Type::Key).unwrap();
    environment.declare_list("stolen", ListKind::Text).unwrap();
    environment
}

/// Six actions: three ways of 3DS, with an exemption and without.
fn actions() -> Actions {
    let column = |values: [&str; 6]| values.map(str::to_owned).to_vec();
    let factors = vec![
        (
            "three_ds".to_owned(),
            column(["none", "frictionless", "challenge", "none", "frictionless", "challenge"]),
        ),
        ("exemption".to_owned(), column(["none", "none", "none", "tra", "tra", "tra"])),
    ];
    Actions::new(6, factors).unwrap()
}

fn compile(text: &str) -> Result<RuleSet, String> {
    RuleSet::compile(text, &environment(), &actions(), ListKey::new(KEY))
        .map_err(|faults| faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
}

fn set(rules: &str) -> RuleSet {
    let head = "name = \"checkout\"\ndecisions = [\"decline\", \"review\", \"approve\"]\n";
    compile(&format!("{head}{rules}")).unwrap_or_else(|faults| panic!("{faults}"))
}

/// Doubles by name; everything else is missing.
fn run(set: &RuleSet, values: &[(&str, f64)]) -> Decision {
    at(set, values, 1_800_000_000, b"order-1")
}

fn at(set: &RuleSet, values: &[(&str, f64)], seconds: i64, id: &[u8]) -> Decision {
    let mut decision = set.start();
    for (name, value) in values {
        let slot = set.program().environment().slot(name).unwrap();
        decision.values().set_double(slot, *value);
    }
    let lists = Lists::new(ListKey::new(KEY), &environment());
    set.evaluate(&mut decision, &lists, Request { seconds, id, exhausted: Exhausted::NONE });
    decision
}

/// Evaluates without the rules whose daily budgets are used up.
fn without(set: &RuleSet, values: &[(&str, f64)], exhausted: &[&str]) -> Decision {
    let mut decision = run(set, values);
    let exhausted = set.exhausted(exhausted.iter().copied());
    let lists = Lists::new(ListKey::new(KEY), &environment());
    set.evaluate(&mut decision, &lists, Request { seconds: 1_800_000_000, id: b"order-1", exhausted });
    decision
}

fn applied<'a>(set: &'a RuleSet, decision: &Decision) -> Vec<&'a str> {
    decision.applied().iter().map(|rule| set.rules()[usize::from(*rule)].id.as_str()).collect()
}

const LADDER: &str = r#"
[[rules]]
id = "large"
when = "amount > 500.0"
decision = "review"
reason = "R1"
cap = 0.8
queue = "level_1"
priority = 1

[[rules]]
id = "huge"
when = "amount > 5000.0 && score > 0.1"
decision = "decline"
reason = "R2"
cap = 0.6
floor = 0.5
priority = 2

[[rules]]
id = "unusual"
when = "amount > 4.0 * average"
reason = "R3"
floor = 0.3
"#;

#[test]
fn collect_merges_what_fired() {
    let set = set(LADDER);
    let decision = run(&set, &[("amount", 6_000.0), ("score", 0.2), ("average", 10_000.0)]);
    assert_eq!(applied(&set, &decision), ["large", "huge"]);
    assert_eq!(set.decision(&decision), Some("decline"), "the strictest decision");
    assert_eq!(set.queue(&decision), Some("level_1"));
    assert_eq!((decision.cap(), decision.floor()), (Some(0.6), Some(0.5)));
    assert_eq!([0.1, 0.55, 0.9].map(|score| decision.score(score)), [0.5, 0.55, 0.6]);
    assert_eq!(decision.states(), [RuleState::Fired, RuleState::Fired, RuleState::False]);
    let decision = run(&set, &[("amount", 6_000.0), ("score", 0.2)]);
    assert_eq!(decision.states()[2], RuleState::Unknown, "a missing value");
    assert_eq!((decision.unknown(), decision.errors(), decision.conflicts()), (1, 0, 0));
    let none = run(&set, &[]);
    assert_eq!((applied(&set, &none).len(), set.decision(&none), none.score(0.7)), (0, None, 0.7));
}

#[test]
fn first_and_priority_choose_one() {
    let values = [("amount", 6_000.0), ("score", 0.2), ("average", 10.0)];
    let head = "hit = \"first\"\n";
    // Under `first`, the second rule could never have an effect.
    let text = format!("name = \"s\"\ndecisions = [\"decline\", \"review\"]\n{head}{LADDER}");
    let refused = compile(&text).unwrap_err();
    assert!(refused.contains("rule \"huge\", line 15, column 6: the rule never has an effect, because rule \"large\" comes before it"), "{refused}");
    let set = set(&format!("hit = \"priority\"\n{LADDER}"));
    let decision = run(&set, &values);
    assert_eq!(applied(&set, &decision), ["huge"]);
    assert_eq!(decision.states(), [RuleState::Fired; 3]);
    assert_eq!(set.decision(&decision), Some("decline"));
    let decision = run(&set, &[("amount", 600.0), ("score", 0.2), ("average", 10.0)]);
    assert_eq!(applied(&set, &decision), ["large"]);
}

#[test]
fn first_in_the_order_of_the_file() {
    let set = set(r#"hit = "first"
[[rules]]
id = "a"
when = "amount > 5000.0"
decision = "decline"
[[rules]]
id = "b"
when = "amount > 500.0"
decision = "review"
[[rules]]
id = "c"
when = "true"
decision = "approve"
"#);
    for (amount, rule) in [(6_000.0, "a"), (600.0, "b"), (6.0, "c")] {
        assert_eq!(applied(&set, &run(&set, &[("amount", amount)])), [rule]);
    }
}

#[test]
fn any_and_unique_refuse_contradictions() {
    // Whether these overlap is not decided when they are compiled.
    let rules = r#"
[[rules]]
id = "a"
when = "amount > 4.0 * average"
decision = "decline"
[[rules]]
id = "b"
when = "amount > 500.0"
decision = "review"
"#;
    for hit in ["any", "unique"] {
        let set = set(&format!("hit = \"{hit}\"\n{rules}"));
        let decision = run(&set, &[("amount", 600.0), ("average", 10.0)]);
        assert_eq!((applied(&set, &decision).len(), decision.conflicts()), (0, 1), "{hit}");
        let decision = run(&set, &[("amount", 600.0), ("average", 1_000.0)]);
        assert_eq!((applied(&set, &decision), decision.conflicts()), (vec!["b"], 0), "{hit}");
    }
    let same = set(&format!("hit = \"any\"\n{}", rules.replace("review", "decline")));
    let decision = run(&same, &[("amount", 600.0), ("average", 10.0)]);
    assert_eq!((applied(&same, &decision), decision.conflicts()), (vec!["a"], 0));
}

#[test]
fn values_and_rules_are_read_by_others() {
    // Both references point to a later place in the file.
    let set = set(r#"
[[values]]
name = "twice"
is = "2.0 * ratio"
[[values]]
name = "ratio"
is = "amount / average"
[[rules]]
id = "second"
when = "rules.first && !rules.off && twice > 8.0"
reason = "B"
[[rules]]
id = "first"
when = "ratio > 1.0"
reason = "A"
[[rules]]
id = "off"
when = "amount > 0.0"
reason = "C"
enabled = false
"#);
    let decision = run(&set, &[("amount", 50.0), ("average", 10.0)]);
    assert_eq!(applied(&set, &decision), ["second", "first"]);
    assert_eq!(decision.states()[2], RuleState::Inactive);
    let decision = run(&set, &[("amount", 20.0), ("average", 10.0)]);
    assert_eq!(applied(&set, &decision), ["first"]);
    let decision = run(&set, &[("amount", 20.0)]);
    assert_eq!(decision.states(), [RuleState::Unknown, RuleState::Unknown, RuleState::Inactive]);
}

#[test]
fn errors_are_counted() {
    let mut environment = environment();
    let count = environment.slot("count").unwrap();
    let stolen = environment.list("stolen").unwrap();
    environment.declare("unused", Type::Int).unwrap();
    let text = r#"
name = "s"
[[rules]]
id = "divides"
when = "100 / count > 5"
reason = "A"
[[rules]]
id = "looks_up"
when = "card in list(\"stolen\")"
reason = "B"
[[rules]]
id = "depends"
when = "rules.looks_up || count == 0"
reason = "C"
"#;
    let key = ListKey::new(KEY);
    let set = RuleSet::compile(text, &environment, &Actions::default(), key).unwrap();
    let mut decision = set.start();
    decision.values().set_int(count, 0);
    decision.values().set_key(environment.slot("card").unwrap(), key.text("4711"));
    let lists = Lists::new(key, &environment);
    let request = Request { seconds: 0, id: b"x", exhausted: Exhausted::NONE };
    set.evaluate(&mut decision, &lists, request);
    let expected =
        [RuleState::Error(ErrorKind::DivisionByZero), RuleState::Error(ErrorKind::NoList), RuleState::Fired];
    assert_eq!((decision.states(), decision.errors()), (&expected[..], 2));
    assert!(decision.allowed().is_empty() && !decision.leaves_nothing(), "there are no actions");
    let lists = lists.with(stolen, KeySet::new(1, &[key.text("4711")]).unwrap().into());
    set.evaluate(&mut decision, &lists, request);
    assert_eq!(decision.states()[1], RuleState::Fired);
    let other = Lists::new(ListKey::new([9; 16]), &environment)
        .with(stolen, KeySet::new(1, &[key.text("4711")]).unwrap().into());
    set.evaluate(&mut decision, &other, request);
    assert_eq!(decision.states()[1], RuleState::Error(ErrorKind::NoList), "hashes of another secret");
}

#[test]
fn eligibility() {
    let set = set(r#"
[[rules]]
id = "tra_limit"
when = "amount > 500.0"
remove = { exemption = ["tra"] }
source = "RTS on SCA, article 18"
[[rules]]
id = "strong"
when = "amount > 1000.0"
keep = { three_ds = ["challenge"] }
source = "Scheme rules"
[[rules]]
id = "by_action"
when = "action.three_ds == 'frictionless' && (night || amount < 1.0)"
source = "Scheme rules"
[[rules]]
id = "rest"
when = "score > 0.9"
remove = { three_ds = ["challenge"] }
source = "Scheme rules"
"#);
    assert_eq!(run(&set, &[("amount", 100.0)]).allowed(), [0b11_1111]);
    assert_eq!(run(&set, &[("amount", 600.0)]).allowed(), [0b00_0111]);
    assert_eq!(run(&set, &[("amount", 2_000.0)]).allowed(), [0b00_0100]);
    assert_eq!(run(&set, &[("amount", 0.5)]).allowed(), [0b10_1101]);
    let nothing = run(&set, &[("amount", 2_000.0), ("score", 0.95)]);
    assert_eq!((nothing.allowed(), nothing.leaves_nothing()), (&[0][..], true));
    assert_eq!(run(&set, &[]).allowed(), [0b11_1111]);
    assert!(set.rules().iter().all(|rule| rule.restricts));
    // Each rule with an effect names the actions that it removed.
    let removed = |decision: &Decision| -> Vec<(u16, u64)> {
        decision.applied().iter().map(|rule| (*rule, decision.removed(*rule)[0])).collect()
    };
    assert_eq!(removed(&nothing), [(0, 0b11_1000), (1, 0b01_1011), (3, 0b10_0100)]);
    assert_eq!(removed(&run(&set, &[("amount", 0.5)])), [(2, 0b01_0010)]);
    assert!(nothing.removed(4).is_empty());
}

#[test]
fn rules_without_eligibility_remove_nothing() {
    let set = set("[[rules]]\nid = \"late\"\nwhen = \"amount > 1.0\"\nreason = \"R1\"\n");
    let decision = run(&set, &[("amount", 2.0)]);
    assert_eq!((decision.applied(), decision.removed(0)), (&[0][..], &[0][..]));
}

#[test]
fn tables() {
    let set = set(r#"
[[tables]]
id = "limits"
inputs = ["amount", "country", "count"]
outputs = ["decision", "reason", "cap"]
rows = [
  ["> 5000.0", "-", "-", "decline", "T1", "-"],
  ["[100..5000]", "in [\"NG\", \"GH\"]", "-", "review", "T2", 0.5],
  ["-", "\"NL\"", 3, "approve", "-", 1],
]
"#);
    let environment = environment();
    let mut decision = set.start();
    let lists = Lists::new(ListKey::new(KEY), &environment);
    for (amount, country, count, rule, result, cap) in [
        (6_000.0, "NL", 3, Some("limits.row1"), Some("decline"), None),
        (5_000.0, "NG", 3, Some("limits.row2"), Some("review"), Some(0.5)),
        (50.0, "NG", 3, None, None, None),
        (50.0, "NL", 3, Some("limits.row3"), Some("approve"), Some(1.0)),
        (50.0, "NL", 4, None, None, None),
    ] {
        let values = decision.values();
        values.set_double(environment.slot("amount").unwrap(), amount);
        values.set_text(environment.slot("country").unwrap(), set.program().text_id(country));
        values.set_int(environment.slot("count").unwrap(), count);
        set.evaluate(&mut decision, &lists, Request { seconds: 0, id: b"", exhausted: Exhausted::NONE });
        assert_eq!(applied(&set, &decision), Vec::from_iter(rule));
        assert_eq!((set.decision(&decision), decision.cap()), (result, cap));
    }
}

#[test]
fn dates() {
    let set = set(r#"
[[rules]]
id = "season"
when = "true"
reason = "A"
from = 2026-11-01
until = 2026-12-01T00:00:00+01:00
[[rules]]
id = "snoozed"
when = "amount > 0.0"
reason = "B"
snoozed_until = 2026-11-15T00:00:00Z
"#);
    let fires = |seconds| {
        let decision = at(&set, &[("amount", 1.0)], seconds, b"");
        decision.states().iter().map(|state| *state == RuleState::Fired).collect::<Vec<_>>()
    };
    assert_eq!(fires(1_793_491_199), [false, false]);
    assert_eq!(fires(1_793_491_200), [true, false]);
    assert_eq!(fires(1_794_700_800), [true, true]);
    assert_eq!(fires(1_796_079_599), [true, true]);
    assert_eq!(fires(1_796_079_600), [false, true]);
}

#[test]
fn roll_outs() {
    let rules = "[[rules]]\nid = \"a\"\nwhen = \"true\"\nreason = \"A\"\nrollout = 25.0\n[[rules]]\nid = \"b\"\nwhen = \"true\"\nreason = \"B\"\nrollout = 25.0\n";
    let set = set(rules);
    let (mut first, mut second, mut both) = (0, 0, 0);
    for number in 0..4_000 {
        let id = format!("order-{number}");
        let decision = at(&set, &[], 0, id.as_bytes());
        assert_eq!(decision.states(), at(&set, &[], 9, id.as_bytes()).states(), "the same at every time");
        let fired = |rule: usize| usize::from(decision.states()[rule] == RuleState::Fired);
        first += fired(0);
        second += fired(1);
        both += fired(0) * fired(1);
    }
    // Five standard deviations: 137 for a share of 1/4, 77 for 1/16.
    assert!(first.abs_diff(1_000) < 137 && second.abs_diff(1_000) < 137, "{first} {second}");
    assert!(both.abs_diff(250) < 77, "{both}: the roll-outs are independent");
}

const EXPLORING: &str = r#"
hit = "first"

[[values]]
name = "twice"
is = "2.0 * amount"

[[rules]]
id = "plain"
when = "amount > 900.0"
decision = "review"

[[rules]]
id = "explore"
when = "score >= 0.8"
decision = "approve"
daily = 500
daily_amount = { of = "twice", most = 5000 }

[[rules]]
id = "explore_more"
when = "score >= 0.8 && count >= 0"
decision = "approve"
daily_amount = { of = "count", most = 10.5 }

[[rules]]
id = "high"
when = "score >= 0.8"
decision = "decline"

[[tables]]
id = "after"
inputs = ["rules.explore"]
outputs = ["reason"]
rows = [["true", "explored"]]
"#;

#[test]
fn a_rule_whose_daily_budget_is_used_up_is_as_if_it_were_not_there() {
    let set = set(EXPLORING);
    assert_eq!(set.budgets().collect::<Vec<_>>(), [1, 2]);
    let budget = set.rules()[1].budget.clone().unwrap();
    assert_eq!((budget.decisions, budget.amount.unwrap().thousandths()), (Some(500), 5_000_000));
    let values = [("score", 0.9), ("amount", 19.99)];
    let decision = without(&set, &values, &[]);
    assert_eq!(applied(&set, &decision), ["explore", "after.row1"]);
    // 2 * 19.99 in thousandths.
    assert_eq!((set.charge(0, &decision), set.charge(1, &decision)), (Some(39_980), None));
    let decision = without(&set, &values, &["explore", "unknown", "high"]);
    assert_eq!((decision.states()[1], set.decision(&decision)), (RuleState::Inactive, Some("decline")));
    assert_eq!(applied(&set, &decision), ["high"], "rules that read it see that it did not fire");
    assert_eq!((set.charge(0, &decision), set.charge(1, &decision)), (None, None));
    // Several rows at once have the same results.
    let mut rows = set.start_rows();
    let requests = [&[][..], &["explore"]].map(|ids: &[&str]| {
        for (name, value) in values {
            rows.values().set_double(set.program().environment().slot(name).unwrap(), value);
        }
        rows.push();
        Request { seconds: 0, id: b"", exhausted: set.exhausted(ids.iter().copied()) }
    });
    let mut decisions = Vec::new();
    let lists = Lists::new(ListKey::new(KEY), &environment());
    set.evaluate_rows(&mut rows, &lists, &requests, |_, one| {
        decisions.push(set.decision(one).unwrap().to_owned());
    });
    assert_eq!(decisions, ["approve", "decline"]);
}

#[test]
fn a_budget_is_charged_if_its_rule_wrote_the_decision() {
    let set = set(&EXPLORING.replace("hit = \"first\"", "hit = \"collect\""));
    let decision = run(&set, &[("score", 0.9), ("amount", 10.0)]);
    assert!(applied(&set, &decision).contains(&"explore"));
    assert_eq!((set.decision(&decision), set.charge(0, &decision)), (Some("decline"), None));
    assert_eq!(set.charge(9, &decision), None);
}

#[test]
fn a_number_that_a_budget_adds_up_has_to_be_there_and_not_negative() {
    let set = set(EXPLORING);
    let explore = |amount: &[(&str, f64)]| {
        let values: Vec<_> = [("score", 0.9)].iter().chain(amount).copied().collect();
        let decision = run(&set, &values);
        (decision.states()[1], set.charge(0, &decision))
    };
    assert_eq!(explore(&[]), (RuleState::Unknown, None));
    assert_eq!(explore(&[("amount", -1.0)]), (RuleState::False, None));
    assert_eq!(explore(&[("amount", 0.0)]), (RuleState::Fired, Some(0)));
    assert_eq!(explore(&[("amount", 0.0001)]), (RuleState::Fired, Some(1)), "rounded up");
    assert_eq!(explore(&[("amount", 600.0)]), (RuleState::Fired, Some(1_200_000)));
    // An int is added up as well.
    let mut decision = run(&set, &[("score", 0.9)]);
    decision.values().set_int(set.program().environment().slot("count").unwrap(), 7);
    let request = Request { seconds: 0, id: b"", exhausted: set.exhausted(["explore"]) };
    set.evaluate(&mut decision, &Lists::new(ListKey::new(KEY), &environment()), request);
    assert_eq!((set.decision(&decision), set.charge(1, &decision)), (Some("approve"), Some(7000)));
}

/// The memory of another set gives no result, and no panic.
#[test]
fn memory_of_another_set() {
    let large = set(LADDER);
    let small = set("[[rules]]\nid = \"r\"\nwhen = \"true\"\nreason = \"R\"\n");
    let lists = Lists::new(ListKey::new(KEY), &environment());
    let mut decision = small.start();
    large.evaluate(&mut decision, &lists, Request { seconds: 0, id: b"", exhausted: Exhausted::NONE });
    assert_eq!((decision.applied(), decision.states()), (&[][..], &[RuleState::Inactive][..]));
    small.evaluate(&mut decision, &lists, Request { seconds: 0, id: b"", exhausted: Exhausted::NONE });
    assert_eq!(decision.applied(), [0]);
}

#[test]
fn refused_with_place_and_remedy() {
    let rule = |more: &str| format!("[[rules]]\nid = \"r\"\n{more}\n");
    let two =
        |one: &str, other: &str| format!("[[rules]]\nid = \"a\"\n{one}\n[[rules]]\nid = \"b\"\n{other}\n");
    let table = |hit: &str, rows: &str| {
        format!(
            "[[tables]]\nid = \"t\"\nhit = \"{hit}\"\ninputs = [\"amount\", \"country\"]\noutputs = [\"decision\"]\nrows = [{rows}]\n"
        )
    };
    for (rules, said) in [
        (
            rule("when = \"amont > 1.0\""),
            "rule \"r\", line 5, column 9: unknown name \"amont\"; the nearest name is \"amount\"",
        ),
        (
            rule("when = \"\"\"\namount > 1.0 &&\n zebra\"\"\""),
            "rule \"r\", line 7, column 2: unknown name \"zebra\"",
        ),
        (
            rule("when = \"country == \\\"NL\\\" && zebra\""),
            "rule \"r\", line 5, column 8: unknown name \"zebra\"",
        ),
        (rule("when = \"amount\""), "the condition is double and not bool"),
        (rule("when = \"amount >\""), "found the end where a value is expected"),
        (rule("when = \"1 > 2\""), "the condition is always false"),
        (rule("when = \"1 < 2\""), "the condition is always true; correct it, or write true"),
        (
            rule("when = \"amount > 5.0 && amount < 5.0\""),
            "the condition is never true, because it contradicts itself",
        ),
        (rule("when = \"country == 'NL' && country in ['DE', 'NG']\""), "never true"),
        (rule("when = \"night && !night\""), "never true"),
        (rule("when = \"!has(amount) && amount >= 0.0\""), "never true"),
        (
            rule("when = \"count / 0 > 1 || amount > 1.0 && 1 / 0 > 2\""),
            "the condition always fails: division by zero",
        ),
        (
            rule("when = \"night\"\ndecision = \"revew\""),
            "line 6, column 12: decision \"revew\" is not in decisions; the nearest name is \"review\"",
        ),
        (rule("when = \"night\"\ncap = nan"), "cap is not a finite number"),
        (rule("when = \"night\"\ncap = 0.2\nfloor = 0.3"), "floor 0.3 is above cap 0.2"),
        (rule("when = \"night\"\nrollout = 100.0"), "rollout is a percentage between 0 and 100"),
        (
            rule("when = \"night\"\ndecision = \"review\"\ndaily = 0"),
            "rule \"r\", line 7, column 9: daily is the greatest number of requests of a UTC day, from 1 to 1000000000",
        ),
        (rule("when = \"night\"\ndecision = \"review\"\ndaily = -3"), "daily is the greatest number"),
        (rule("when = \"night\"\ndecision = \"review\"\ndaily = 2.5"), "line 7, column 9: invalid type"),
        (
            rule("when = \"night\"\nreason = \"R\"\ndaily = 5"),
            "a daily budget counts the requests whose decision the rule writes; add a decision",
        ),
        (
            rule("when = \"night\"\ndecision = \"review\"\ndaily_amount = { of = \"amount\", most = 0 }"),
            "most is the greatest sum of a UTC day, above 0",
        ),
        (
            rule("when = \"night\"\ndecision = \"review\"\ndaily_amount = { of = \"amont\", most = 1 }"),
            "line 7, column 23: unknown name \"amont\"; the nearest name is \"amount\"",
        ),
        (
            rule("when = \"night\"\ndecision = \"review\"\ndaily_amount = { of = \"night\", most = 1 }"),
            "line 7, column 23: >= has no overload for bool and double",
        ),
        (
            rule(
                "when = \"night\"\ndecision = \"review\"\ndaily_amount = { of = \"2.0 * amount\", most = 1 }",
            ),
            "of is the name of a number, and \"2.0 * amount\" is none; define it in [[values]] and name it",
        ),
        (
            rule("when = \"night\"\ndecision = \"review\"\ndaily_amount = { of = \"amount\" }"),
            "missing field `most`",
        ),
        (rule("when = \"night\"\nfrom = 2026-01-01T00:00:00"), "from has no time zone"),
        (rule("when = \"night\"\nfrom = 2026-01-02\nuntil = 2026-01-01"), "the rule is never active"),
        (
            rule("when = \"night\"\nremove = { three_ds = [\"none\"] }"),
            "names the regulation or agreement; add source",
        ),
        (
            rule("when = \"night\"\nsource = \"x\"\nremove = { threeds = [\"none\"] }"),
            "unknown factor \"threeds\"; the nearest name is \"three_ds\"",
        ),
        (
            rule("when = \"night\"\nsource = \"x\"\nremove = { three_ds = [\"non\"] }"),
            "no action has three_ds = \"non\"; the nearest name is \"none\"",
        ),
        (rule("when = \"night\"\nsource = \"x\"\nremove = {}"), "no factor is named"),
        (
            rule(
                "when = \"night\"\nsource = \"x\"\nremove = { three_ds = [\"none\", \"frictionless\", \"challenge\"] }",
            ),
            "no action is left when the rule is true",
        ),
        (
            rule("when = \"action.three_ds == 'nine'\"\nsource = \"x\""),
            "the condition is false on every action",
        ),
        (
            rule(
                "when = \"action.three_ds == 'none' && night\"\nsource = \"x\"\nremove = { three_ds = [\"none\"] }",
            ),
            "remove \"remove\" and \"keep\"",
        ),
        (rule("when = \"night\"\nqueue = \"\""), "queue must have 1 to 128 printable bytes"),
        (rule("when = \"night\"\nwen = 1"), "unknown field `wen`"),
        (rule("when = 5"), "line 5, column 8: invalid type: integer"),
        (rule("when = \"rules.r\""), "a cycle: r reads itself"),
        (
            two("when = \"rules.b\"", "when = \"rules.a || night\""),
            "read each other; remove one of the references",
        ),
        (
            "[[values]]\nname = \"v\"\nis = \"w + 1.0\"\n[[values]]\nname = \"w\"\nis = \"v\"\n".to_owned(),
            "a cycle: ",
        ),
        ("[[values]]\nname = \"amount\"\nis = \"1.0\"\n".to_owned(), "name \"amount\": is declared twice"),
        (
            "[[values]]\nname = \"v\"\nis = \"amount + 1\"\n".to_owned(),
            "rule \"v\", line 5, column 14: + has no overload",
        ),
        ("[[values]]\nname = \"v\"\nis = \"1 / 0\"\n".to_owned(), "the value always fails: division by zero"),
        ("[[rules]]\nid = \"a.b\"\nwhen = \"night\"\n".to_owned(), "an id has letters"),
        (
            "[[rules]]\nid = \"a\"\nwhen = \"night\"\n[[rules]]\nid = \"a\"\nwhen = \"!night\"\n".to_owned(),
            "two rules have this id",
        ),
        (
            two("when = \"night\"\nreason = \"A\"", "when = \"night\"\nreason = \"A\""),
            "the rule repeats rule \"a\"",
        ),
        (
            two("when = \"night\"\nqueue = \"q1\"", "when = \"night && amount > 1.0\"\nqueue = \"q2\""),
            "a write conflict: rule \"a\" writes queue \"q1\"",
        ),
        (
            two("when = \"night\"\nfloor = 0.9", "when = \"night && amount > 1.0\"\ncap = 0.5"),
            "a floor is above a cap",
        ),
        (
            two(
                "when = \"amount > 500.0\"\nsource = \"x\"\nremove = { three_ds = [\"none\"] }",
                "when = \"amount > 900.0\"\nsource = \"x\"\nkeep = { three_ds = [\"none\"] }",
            ),
            "rule \"b\", line 9, column 6: no action is left when the rule is true (a, b remove all)",
        ),
        (
            table("first", "[\"> 5.0\", \"-\", \"review\"], [\"> 9.0\", \"'NL'\", \"decline\"]"),
            "rule \"t.row2\"",
        ),
        (
            table("first", "[\"> 5.0\", \"-\", \"review\"], [\"> 9.0\", \"'NL'\", \"decline\"]"),
            "never has an effect, because rule \"t.row1\" comes before",
        ),
        (
            table("unique", "[\"> 5.0\", \"'NL'\", \"review\"], [\"< 9.0\", \"-\", \"decline\"]"),
            "can be true together with this one, and unique allows one",
        ),
        (
            table("any", "[\"> 5.0\", \"'NL'\", \"review\"], [\"< 9.0\", \"-\", \"decline\"]"),
            "any needs equal effects",
        ),
        (table("first", "[\"> 5.0\", \"review\"]"), "the row has 2 cells and the table 3 columns"),
        (table("first", "[\"> 5.0\", \"-\", 7]"), "decision needs a string"),
        (table("first", "[\"> '5'\", \"-\", \"review\"]"), "> has no overload for double and string"),
        (table("first", "[\">\", \"-\", \"review\"]"), "found the end"),
        (
            "[[tables]]\nid = \"t\"\ninputs = [\"amount +\"]\noutputs = []\nrows = []\n".to_owned(),
            "found the end",
        ),
        (
            "[[tables]]\nid = \"t\"\ninputs = []\noutputs = [\"decison\"]\nrows = []\n".to_owned(),
            "unknown output \"decison\"; the nearest name is \"decision\"",
        ),
    ] {
        let text = format!("name = \"s\"\ndecisions = [\"decline\", \"review\"]\n{rules}");
        let refused = compile(&text).err().unwrap_or_else(|| panic!("accepted: {rules}"));
        assert!(refused.contains(said), "{rules}\n{refused}\nwithout: {said}");
    }
    assert!(compile("name = \"s\"\ndecisions = [\"a\", \"a\"]").unwrap_err().contains("is listed twice"));
    assert!(compile("name = \"a b\"").unwrap_err().contains("rename it"));
    assert!(compile("name = 5").unwrap_err().starts_with("line 1, column 8: "));
    let many = compile(&format!(
        "name = \"s\"\n{}{}",
        rule("when = \"x\""),
        "[[rules]]\nid = \"q\"\nwhen = \"y\"\n"
    ));
    assert_eq!(many.unwrap_err().lines().count(), 2, "all faults are reported");
}

/// Conditions that overlap, but of which none makes another one useless, are accepted.
#[test]
fn accepted() {
    let disjoint = "hit = \"unique\"\n[[rules]]\nid = \"a\"\nwhen = \"amount > 5.0 && country == 'NL'\"\n[[rules]]\nid = \"b\"\nwhen = \"amount > 5.0 && country != 'NL'\"\n[[rules]]\nid = \"c\"\nwhen = \"amount <= 5.0\"\n[[rules]]\nid = \"d\"\nwhen = \"!has(amount)\"\n";
    set(disjoint);
    let narrow_first = "hit = \"first\"\n[[rules]]\nid = \"a\"\nwhen = \"amount > 9.0\"\n[[rules]]\nid = \"b\"\nwhen = \"amount > 5.0\"\n[[rules]]\nid = \"c\"\nwhen = \"amount > 5.0 || night\"\n";
    set(narrow_first);
    // A rule with a budget does not make those below it superfluous, because it is not always active.
    let budget = "hit = \"first\"\n[[rules]]\nid = \"a\"\nwhen = \"amount > 5.0\"\ndecision = \"approve\"\ndaily = 1\n[[rules]]\nid = \"b\"\nwhen = \"amount > 9.0\"\n";
    assert_eq!(set(budget).rules().len(), 2);
    let many: String = (0..65)
        .map(|at| {
            format!(
                "[[rules]]\nid = \"r{at}\"\nwhen = \"amount > {at}.0\"\ndecision = \"approve\"\ndaily = 1\n"
            )
        })
        .collect();
    let faults = compile(&format!("name = \"checkout\"\ndecisions = [\"approve\"]\n{many}")).unwrap_err();
    assert!(faults.contains("65 rules have a daily budget, more than 64"), "{faults}");
    // A rule for a part of the requests does not make a later one useless.
    let partial = "hit = \"first\"\n[[rules]]\nid = \"a\"\nwhen = \"amount > 5.0\"\nrollout = 10.0\n[[rules]]\nid = \"b\"\nwhen = \"amount > 9.0\"\n";
    set(partial);
}
