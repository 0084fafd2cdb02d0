//! Once the scratch is made, nothing on the request path allocates.
#![expect(unsafe_code, reason = "an allocator that counts has to implement GlobalAlloc")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use scorer_core::budget::Unlimited;
use scorer_core::bundle::EvalScratch;
use scorer_core::bundle::testing::{action_recipe, assemble, score_files};
use scorer_core::policy::Mask;
use scorer_core::schema::Value;
use serde_json::json;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // While a thread ends its counter is gone, and nobody looks at it any more.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are the system allocator's.
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
fn features_and_scores() {
    let bundle = assemble(&score_files("fraud", 0.0)).unwrap();
    let mut scratch = EvalScratch::new(&bundle);
    let mut row = vec![0.0; bundle.schema().len()];
    let named =
        [("amount", Value::Number(120.0)), ("country", Value::Category("FR")), ("night", Value::Flag(true))];
    let count = allocations(|| {
        bundle.schema().encode_named(named, &mut row).unwrap();
        bundle.schema().check_dense(&row).unwrap();
        bundle.score(&row, &Unlimited, &mut scratch).unwrap();
    });
    assert_eq!(count, 0);
}

#[test]
fn every_policy() {
    for policy in [
        json!({"rule": "uniform"}),
        json!({"rule": "epsilon_greedy", "epsilon": 0.1, "floor": 0.3}),
        json!({"rule": "softmax", "inverse_temperature": 50.0, "floor": 0.3}),
        json!({"rule": "squarecb", "gamma": 50.0, "caps": [{"attribute": "cost", "lambda": 0.1}]}),
        json!({"rule": "fastcb", "gamma": 50.0, "floor": 0.3}),
        json!({"rule": "bagging", "voters": 3, "floor": 0.3}),
    ] {
        let bundle = assemble(&action_recipe("authorise", 0.0, policy.clone()).build().unwrap()).unwrap();
        let mut scratch = EvalScratch::new(&bundle);
        let mut eligible = Mask::all(bundle.catalogue().len());
        let count = allocations(|| {
            for mask in [[0b11_1111], [0b1], [0b10_1010]] {
                eligible.read(&mask).unwrap();
                bundle
                    .select(
                        &[50.0, 1.0, 0.0],
                        &eligible,
                        "action.authorise",
                        "order-1",
                        &Unlimited,
                        &mut scratch,
                    )
                    .unwrap();
                bundle.select_greedy(&[50.0, 1.0, 0.0], &eligible, &Unlimited, &mut scratch).unwrap();
            }
        });
        assert_eq!(count, 0, "{policy}");
    }
}
