//! Functions that are not built in. The user of this crate declares them in an environment and evaluates them.

use std::fmt;
use std::sync::Arc;

/// Greatest number of operands of a declared function.
pub(crate) const MAX_OPERANDS: usize = 16;
/// Greatest number of declared functions, so that a set of them is one number.
pub(crate) const MAX_FUNCTIONS: usize = 64;

/// A function that conditions can call by its name. Its operands and its result are doubles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionSpec {
    /// The name, an identifier that is no function of the language.
    pub name: String,
    /// The names of its operands, 1 to 16 of them.
    pub operands: Vec<String>,
    /// An upper bound on the work of a call, in instructions.
    pub work: u64,
}

/// Makes the memory in which one thread calls declared functions.
pub trait Functions: fmt::Debug + Send + Sync {
    /// Makes the memory to call the functions for which `used` is true.
    fn start(&self, used: &[bool]) -> Box<dyn Calls>;
}

/// The memory in which one thread calls declared functions.
pub trait Calls: fmt::Debug + Send + Sync {
    /// Calls a function by its position. NaN is a missing operand or result. Returns `None` if the call failed.
    fn call(&mut self, function: usize, operands: &[f64]) -> Option<f64>;

    /// Makes the same memory for another thread.
    fn again(&self) -> Box<dyn Calls>;

    /// Passes the number of failed calls of each function since the last time, if there were some.
    fn take_faults(&mut self, each: &mut dyn FnMut(usize, u64));
}

/// The declared functions of an environment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Declared {
    pub(crate) specs: Arc<[FunctionSpec]>,
    pub(crate) functions: Option<Arc<dyn Functions>>,
}

impl Declared {
    /// The position and the description of a function.
    pub(crate) fn named(&self, name: &str) -> Option<(u16, &FunctionSpec)> {
        let at = self.specs.iter().position(|known| known.name == name)?;
        u16::try_from(at).ok().zip(self.specs.get(at))
    }
}

/// The memory of a scratch, which can be cloned with it.
#[derive(Debug, Default)]
pub(crate) struct Calling {
    calls: Option<Box<dyn Calls>>,
    /// For each request of the scratch the functions whose calls failed, a bit for each. It is empty without functions.
    failed: Box<[u64]>,
}

impl Calling {
    /// `requests` is the number of requests that the scratch holds.
    pub(crate) fn new(calls: Option<Box<dyn Calls>>, requests: usize) -> Calling {
        let requests = if calls.is_some() { requests } else { 0 };
        Calling { calls, failed: vec![0; requests].into() }
    }

    /// Calls a function for a request. Returns `None` if the call failed.
    pub(crate) fn call(&mut self, request: usize, function: u16, operands: &[f64]) -> Option<f64> {
        let result = self.calls.as_mut()?.call(usize::from(function), operands);
        if let (None, Some(failed)) = (result, self.failed.get_mut(request)) {
            *failed |= 1 << function;
        }
        result
    }

    /// Returns the functions whose calls failed for a request since the last time, a bit for each.
    pub(crate) fn take_failed(&mut self, request: usize) -> u64 {
        self.failed.get_mut(request).map_or(0, std::mem::take)
    }

    /// Passes the number of failed calls of each function since the last time.
    pub(crate) fn take_faults(&mut self, each: &mut dyn FnMut(usize, u64)) {
        if let Some(calls) = &mut self.calls {
            calls.take_faults(each);
        }
    }
}

impl Clone for Calling {
    fn clone(&self) -> Calling {
        Calling { calls: self.calls.as_ref().map(|calls| calls.again()), failed: self.failed.clone() }
    }
}
