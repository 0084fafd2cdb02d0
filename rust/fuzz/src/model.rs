//! Models of XGBoost in UBJ and JSON.

use scorer_core::forest::Forest;

/// Reads a model, compiles and evaluates it, and reads the forest file that is written from it.
pub fn run(data: &[u8]) {
    let Ok(model) = scorer_xgboost::read_model(data) else { return };
    let Ok(forest) = Forest::compile(&model) else { return };
    crate::forest::evaluate(&forest);
    Forest::from_bytes(&forest.to_bytes()).expect("a forest that was compiled can be read");
}
