use proptest::prelude::*;

use super::{assert_close, compiled, reference, scale, with_covers};
use crate::budget::Unlimited;
use crate::explain::PathAttributions;
use crate::forest::tests::models;
use crate::forest::{Forest, Isa, Missing, Model, NanRule, Node, Scratch, Split, Test, Tree, ZeroRule};

fn check(model: &Model, rows: &[f32]) {
    let (forest, covers) = compiled(model);
    for isa in Isa::available() {
        let forest =
            std::sync::Arc::new(Forest::from_bytes(&forest.to_bytes()).unwrap().with_isa(isa).unwrap());
        let mut scratch = Scratch::new(&forest);
        for output in 0..model.num_outputs {
            let paths = PathAttributions::new(&forest, &covers, output);
            let mut contributions = vec![f64::NAN; paths.buffer_len()];
            for row in rows.chunks(model.num_features) {
                let (mut bare, mut margins) = (vec![0.0; model.num_outputs], vec![0.0; model.num_outputs]);
                forest.margins(row, &mut scratch, &mut bare);
                paths.margins(row, &Unlimited, &mut scratch, &mut margins, &mut contributions).unwrap();
                assert_eq!(margins, bare, "{isa}: the walk computes the same margins");
                let expected = reference::paths(model, row, output);
                let tolerance = 1e-6 * scale(model);
                assert_close(&contributions[..model.num_features], &expected, tolerance, isa.name());
                let sum: f64 = paths.expectation() + contributions.iter().sum::<f64>();
                let whole = reference::margin(model, row, &|_| true, output);
                assert!((sum - whole).abs() <= tolerance, "{isa}: {sum}, not {whole}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn equal_to_the_definition(model in models::model(), seed in any::<u64>()) {
        let model = with_covers(model, seed);
        check(&model, &models::rows(&model, seed, 12));
    }
}

/// A tree of 20 tests on 20 features, whose steps are not stored in a table.
#[test]
fn deep_trees_are_followed_to_the_root() {
    let depth = 20_u32;
    let missing = Missing { nan: NanRule::Left, zero: ZeroRule::Keep };
    let mut nodes = Vec::new();
    for level in 0..depth {
        let at = 2 * level;
        let split = Split { feature: level, test: Test::Less(0.5), missing, left: at + 1, right: at + 2 };
        nodes.extend([Node::Split(split), Node::Leaf(level)]);
    }
    nodes.push(Node::Leaf(depth));
    let tree = Tree {
        nodes,
        leaves: (0..=depth).map(|leaf| f64::from(leaf * leaf)).collect(),
        ..models::stump(0, Test::Less(0.5), missing)
    };
    let shallow = models::stump(3, Test::Less(0.5), missing);
    let model = Model { num_features: depth as usize, ..models::of(vec![tree, shallow]) };
    let model = with_covers(model, 77);
    check(&model, &models::rows(&model, 5, 40));
    check(&model, &vec![1.0; depth as usize]);
}
