use crate::forest::*;

fn stump(threshold: f64, left: f64, right: f64) -> Tree {
    let missing = Missing { nan: NanRule::Right, zero: ZeroRule::Keep };
    Tree {
        target: Target::Output(0),
        nodes: vec![
            Node::Split(Split { feature: 1, test: Test::Less(threshold), missing, left: 1, right: 2 }),
            Node::Leaf(0),
            Node::Leaf(1),
        ],
        leaves: vec![left, right],
        sets: vec![],
        covers: vec![],
    }
}

#[test]
fn a_stump_round_trips_and_scores() {
    let model = Model {
        num_features: 2,
        num_outputs: 1,
        precision: Precision::F32,
        base: vec![0.5],
        base_order: BaseOrder::First,
        divisor: vec![],
        link: Link::Identity,
        trees: vec![stump(1.0, 2.0, 4.0), stump(3.0, 8.0, 16.0)],
    };
    let forest = Forest::compile(&model).unwrap();
    let bytes = forest.to_bytes();
    let again = Forest::from_bytes(&bytes).unwrap();
    assert_eq!(again.to_bytes(), bytes);
    let rows = [9.0, 0.0, 9.0, 1.0, 9.0, 3.0, 9.0, f32::NAN];
    let mut out = [0.0; 4];
    again.predict(&rows, 4, true, &mut out).unwrap();
    assert_eq!(out, [10.5, 12.5, 20.5, 20.5]);
}
