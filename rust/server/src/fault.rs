//! Faults that tests put into single requests; compiled with the feature `fault-injection` only.

use std::collections::HashMap;
use std::sync::{Arc, Barrier, Mutex, PoisonError};

use scorer_core::bundle::EvalError;

/// What happens to a request while it is evaluated.
#[derive(Clone, Debug)]
pub enum Fault {
    /// It panics.
    Panic,
    /// Its score is NaN.
    NotFinite,
    /// It meets the test at the barrier twice: once it is there, and once it may go on.
    Meet(Arc<Barrier>),
}

/// Faults by decision id; each strikes every time.
#[derive(Debug, Default)]
pub(crate) struct Faults(Mutex<HashMap<String, Fault>>);

// === impl Faults ===

impl Faults {
    pub(crate) fn set(&self, id: &str, fault: Fault) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(id.to_owned(), fault);
    }

    pub(crate) fn strike(&self, id: &str) -> Result<(), EvalError> {
        let fault = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned();
        match fault {
            None => Ok(()),
            #[expect(clippy::panic, reason = "the fault is a panic")]
            Some(Fault::Panic) => panic!("injected"),
            Some(Fault::NotFinite) => Err(EvalError::NotFinite { what: "the score", value: f64::NAN }),
            Some(Fault::Meet(barrier)) => {
                // Other requests go on meanwhile, as they would on another thread.
                tokio::task::block_in_place(|| {
                    barrier.wait();
                    barrier.wait();
                });
                Ok(())
            }
        }
    }
}
