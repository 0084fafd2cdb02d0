//! Evaluating does not allocate after the scratch memory was created.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]
#![expect(unsafe_code, reason = "an allocator that counts has to implement GlobalAlloc")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use scorer_rules::{Actions, Decision, Exhausted, ListKey, Program, Request, RuleSet, Source, Type};
use support::{Dialect, Random, environment, generate, lists, render, set, values};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is forwarded unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // While a thread ends, its counter is gone and is no longer read.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's obligations are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's obligations are the system allocator's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.with(Cell::get);
    work();
    ALLOCATIONS.with(Cell::get) - before
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(vec![1_u8]))), 1);
}

#[test]
fn expressions() {
    let mut random = Random(5);
    let environment = environment();
    let texts: Vec<String> = (0..500)
        .map(|_| {
            let kind = random.pick(&[Type::Bool, Type::Int, Type::Double, Type::Text]);
            let node = generate(&mut random, kind, 5, Dialect { extended: true });
            render(&node, &mut random, 0)
        })
        .collect();
    let sources: Vec<Source<'_>> = texts.iter().map(|text| Source { rule: "random", text }).collect();
    let program = Program::compile(&environment, ListKey::new(support::KEY), &sources).unwrap();
    let (mut scratch, lists) = (program.scratch(), lists(&environment));
    for _ in 0..20 {
        let values = values(&mut random);
        set(&program, &mut scratch, &values);
        let count = allocations(|| {
            for at in 0..program.len() {
                std::hint::black_box(program.evaluate(at, &mut scratch, &lists));
            }
        });
        assert_eq!(count, 0);
    }
    let values = values(&mut random);
    assert_eq!(
        allocations(|| {
            for (name, value) in &values {
                let slot = environment.slot(name).unwrap();
                match value {
                    support::Plain::Bool(value) => scratch.set_bool(slot, *value),
                    support::Plain::Int(value) => scratch.set_int(slot, *value),
                    support::Plain::Double(value) => scratch.set_double(slot, *value),
                    support::Plain::Text(text) => scratch.set_text(slot, program.text_id(text)),
                }
            }
        }),
        0
    );
}

/// Every hit policy, a table, values, roll-outs, dates, and rules that remove actions.
#[test]
fn rule_sets() {
    let environment = environment();
    let key = ListKey::new(support::KEY);
    let lists = lists(&environment);
    let factor = ("way".to_owned(), (0..130).map(|at| format!("w{}", at % 3)).collect());
    let actions = Actions::new(130, vec![factor]).unwrap();
    for hit in ["first", "priority", "collect", "any", "unique"] {
        let text = format!(
            r#"
name = "all"
hit = "{hit}"
decisions = ["decline", "review"]
[[values]]
name = "twice"
is = "2.0 * d0"
[[rules]]
id = "large"
when = "twice > 1.0 && i0 * 3 > 5"
decision = "review"
queue = "q"
cap = 0.5
rollout = 50.0
[[rules]]
id = "listed"
when = "k0 in list('texts') || rules.large"
decision = "decline"
floor = 0.1
from = 2020-01-01
[[rules]]
id = "way"
when = "action.way != 'w1' && b0"
source = "an agreement"
[[tables]]
id = "t"
hit = "{hit}"
inputs = ["d0", "t1"]
outputs = ["reason", "priority"]
rows = [["< 1.0", "'DE'", "A", 1], [">= 1.0", "-", "B", 2]]
"#
        );
        let set = RuleSet::compile(&text, &environment, &actions, key)
            .unwrap_or_else(|faults| panic!("{hit}: {}", faults[0]));
        let mut decision = set.start();
        let mut random = Random(9);
        let mut applied = 0;
        for number in 0..200_i64 {
            set_values(&set, &mut decision, &values(&mut random));
            let count = allocations(|| {
                let request =
                    Request { seconds: number << 24, id: &number.to_le_bytes(), exhausted: Exhausted::NONE };
                set.evaluate(&mut decision, &lists, request);
                applied += decision.applied().len();
                std::hint::black_box((set.decision(&decision), set.queue(&decision), decision.score(0.3)));
            });
            assert_eq!(count, 0, "{hit}");
        }
        assert!(applied > 50, "{hit}: {applied}");
        let mut rows = set.start_rows();
        let requests: Vec<Request<'_>> = (0..64)
            .map(|number| Request { seconds: number << 24, id: b"payment", exhausted: Exhausted::NONE })
            .collect();
        let count = allocations(|| {
            while rows.push() {}
            set.evaluate_rows(&mut rows, &lists, &requests, |_, decision| {
                std::hint::black_box(decision.applied());
            });
        });
        assert_eq!(count, 0, "{hit}, many requests");
    }
}

fn set_values(rules: &RuleSet, decision: &mut Decision, row: &support::Values) {
    set(rules.program(), decision.values(), row);
}
