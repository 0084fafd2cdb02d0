//! Random models, catalogues, contexts and eligible sets at every instruction set.

use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::forest::tests::{models, reference};

/// Deterministic numbers. Their distribution is not important.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

fn expected(model: &Model, context: &[f32], catalogue: &Catalogue<'_>, eligible: &[u64]) -> Vec<u64> {
    let rows: Vec<Vec<f64>> = set::members(eligible)
        .map(|action| {
            let row: Vec<f32> = context.iter().chain(catalogue.row(action)).copied().collect();
            reference::margins(model, &row)
        })
        .collect();
    bits((0..model.num_outputs).flat_map(|output| rows.iter().map(move |row| row[output])))
}

fn check(model: &Model, context: usize, actions: usize, pool: usize, seed: u64) -> Result<(), TestCaseError> {
    let forest = Forest::compile(model).unwrap();
    let mut random = Random(seed | 1);
    let values = models::values(model);
    let width = model.num_features - context;
    // The rows are from a small pool, so that equal actions occur.
    let pool: Vec<f32> = (0..pool * width).map(|_| values[random.below(values.len())]).collect();
    let rows: Vec<f32> = (0..actions)
        .flat_map(|_| {
            let at = random.below(pool.len().checked_div(width).unwrap_or(1)) * width;
            pool[at..at + width].to_vec()
        })
        .collect();
    let catalogue = Catalogue { context, actions, rows: &rows };
    let everyone = set::first(actions);
    let some: Vec<u64> =
        everyone.iter().map(|&word| word & random.0.rotate_left(random.below(64) as u32)).collect();
    let one = {
        let mut one = vec![0; everyone.len()];
        set::insert(&mut one, random.below(actions));
        one
    };
    for isa in Isa::available() {
        for limits in [Limits::default(), SPLIT, Limits { classes: 5, ..Limits::default() }] {
            let factored = ActionForest::within(&forest, &catalogue, isa, limits).unwrap();
            let mut scratch = ActionScratch::new(&forest, &factored);
            for _ in 0..4 {
                let context: Vec<f32> = (0..context).map(|_| values[random.below(values.len())]).collect();
                for eligible in [&everyone, &some, &one] {
                    prop_assert_eq!(
                        margins(&forest, &factored, &mut scratch, &context, eligible),
                        expected(model, &context, &catalogue, eligible),
                        "{:?}, {:?}",
                        isa,
                        factored.shape()
                    );
                }
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, ..ProptestConfig::default() })]

    #[test]
    fn sums_are_those_of_full_rows(
        model in models::model().prop_map(scalar),
        context in 0..5_usize,
        actions in select(vec![1, 2, 7, 15, 16, 63, 64, 65, 127, 129, 130, 300]),
        pool in select(vec![1, 3, 20, 300]),
        seed in any::<u64>(),
    ) {
        check(&model, context.min(model.num_features), actions, pool, seed)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn also_of_a_thousand_actions(model in models::model().prop_map(scalar), seed in any::<u64>()) {
        check(&model, model.num_features / 2, 1024, 1024, seed)?;
    }
}
