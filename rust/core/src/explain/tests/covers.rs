use super::{compiled, with_covers};
use crate::explain::{Covers, CoversError};
use crate::forest::tests::models;
use crate::forest::{Forest, Missing, Model, NanRule, Test, ZeroRule};

fn stumps() -> Model {
    let missing = Missing { nan: NanRule::Left, zero: ZeroRule::Keep };
    with_covers(
        models::of(vec![
            models::stump(0, Test::Less(0.5), missing),
            models::stump(1, Test::Less(2.0), missing),
        ]),
        9,
    )
}

#[test]
fn the_file_keeps_every_cover() {
    let (forest, covers) = compiled(&stumps());
    let bytes = covers.to_bytes();
    assert_eq!(bytes.len(), 24 + 4 * forest.num_nodes() + 4);
    assert_eq!(Covers::from_bytes(&forest, &bytes), Ok(covers));
}

#[test]
fn altered_files_are_refused() {
    let (forest, covers) = compiled(&stumps());
    let bytes = covers.to_bytes();
    for at in 0..bytes.len() {
        let mut altered = bytes.clone();
        altered[at] ^= 1;
        assert_eq!(Covers::from_bytes(&forest, &altered), Err(CoversError::Format), "byte {at}");
        assert_eq!(Covers::from_bytes(&forest, &bytes[..at]), Err(CoversError::Format), "{at} bytes");
    }
}

#[test]
fn covers_that_no_training_gives_are_refused() {
    let (forest, _) = compiled(&stumps());
    let refused = |covers: &[f64]| Covers::new(&forest, covers).unwrap_err();
    assert_eq!(refused(&[2.0, 1.0, 1.0]), CoversError::Count { covers: 3, nodes: 6 });
    assert_eq!(refused(&[2.0, 1.0, 1.0, 2.0, -1.0, 1.0]), CoversError::Value { node: 4 });
    assert_eq!(refused(&[2.0, 1.0, f64::NAN, 2.0, 1.0, 1.0]), CoversError::Value { node: 2 });
    assert_eq!(refused(&[2.0, 1.0, 1.0, f64::INFINITY, 1.0, 1.0]), CoversError::Value { node: 3 });
    assert_eq!(refused(&[2.0, 1.0, 1.0, 2.0, 1.5, 1.0]), CoversError::Sum { node: 3 });
    // Less than the parent's is allowed, and so are sums that were rounded.
    assert!(Covers::new(&forest, &[3.0, 1.0, 1.0, 2.0, 1.005, 1.0]).is_ok());
    assert!(Covers::new(&forest, &[0.0; 6]).is_ok());
}

#[test]
fn a_model_without_covers_has_none() {
    let mut model = stumps();
    model.trees[1].covers = Vec::new();
    assert_eq!(Forest::compile_with_covers(&model).unwrap().1, None);
    model.trees[1].covers = vec![1.0; 2];
    assert_eq!(Forest::compile_with_covers(&model).unwrap().1, None);
}
