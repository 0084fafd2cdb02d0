//! The calls between the functions of a module, and what each function can change.

use crate::error::ModuleError;
use crate::limits::MAX_CALL_DEPTH;

/// What the body of one function contains.
#[derive(Debug, Clone, Default)]
pub(crate) struct Body {
    /// The functions that it calls.
    pub(crate) calls: Vec<usize>,
    /// Whether it changes memory or globals.
    pub(crate) writes: bool,
}

/// Refuses recursion and deep chains of calls. Returns for each function whether it, or a function that it calls,
/// changes memory or globals.
pub(crate) fn changes(bodies: &[Body]) -> Result<Vec<bool>, ModuleError> {
    let mut known: Vec<Option<(usize, bool)>> = vec![None; bodies.len()];
    let mut active = vec![false; bodies.len()];
    for root in 0..bodies.len() {
        // A stack of its own in place of recursion: the position in the calls of each active function.
        let mut stack = vec![(root, 0)];
        while let Some((at, next)) = stack.pop() {
            if known[at].is_some() {
                continue;
            }
            active[at] = true;
            match bodies[at].calls.get(next) {
                Some(&callee) if active[callee] => {
                    return Err(ModuleError::Part {
                        what: format!("recursion: function {callee} calls itself, possibly through others"),
                        remedy: "write a loop in its place",
                    });
                }
                Some(&callee) => {
                    stack.push((at, next + 1));
                    stack.push((callee, 0));
                }
                None => {
                    active[at] = false;
                    let of = |callee: &usize| known[*callee].unwrap_or_default();
                    let depth = 1 + bodies[at].calls.iter().map(|callee| of(callee).0).max().unwrap_or(0);
                    let writes = bodies[at].writes || bodies[at].calls.iter().any(|callee| of(callee).1);
                    if depth > MAX_CALL_DEPTH {
                        return Err(ModuleError::Limit {
                            what: "nested calls",
                            got: depth,
                            limit: MAX_CALL_DEPTH,
                        });
                    }
                    known[at] = Some((depth, writes));
                }
            }
        }
    }
    Ok(known.into_iter().map(|known| known.unwrap_or_default().1).collect())
}
