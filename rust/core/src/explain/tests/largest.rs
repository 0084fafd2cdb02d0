use proptest::prelude::*;

use crate::explain::{Contribution, Largest, MAX_REASONS};

proptest! {
    #[test]
    fn equal_to_a_stable_sort(
        amounts in proptest::collection::vec((-3..4_i32).prop_map(f64::from), 0..50),
        count in 0..40_usize,
    ) {
        let mut expected: Vec<Contribution> = amounts
            .iter()
            .enumerate()
            .filter(|(_, amount)| **amount != 0.0)
            .map(|(feature, &amount)| Contribution { feature: feature as u32, amount })
            .collect();
        expected.sort_by(|a, b| b.amount.abs().total_cmp(&a.amount.abs()));
        expected.truncate(count.min(MAX_REASONS));
        let largest = Largest::of(&amounts, count);
        prop_assert_eq!(largest.as_slice(), &expected[..]);
    }
}
