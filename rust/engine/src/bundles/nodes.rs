//! The times of the nodes of a bundle's program, of the evaluations that were timed.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use scorer_core::bundle::{Bundle, NodeInfo};

/// Number of nodes of a bundle whose times are kept. Those of further nodes are in the last one.
const MOST: usize = 64;

/// Sums and numbers of measurements by node. It may outlive the bundle and contains no forest.
#[derive(Debug)]
pub struct NodeCounters {
    nodes: Box<[NodeInfo]>,
    /// Total time in nanoseconds, and number of evaluations in which the node ran.
    measured: Box<[[AtomicU64; 2]]>,
}

/// The measurements of one node.
#[derive(Clone, Copy, Debug)]
pub struct NodeTime<'a> {
    /// Name and kind of the node.
    pub node: &'a NodeInfo,
    /// Total time of the measured evaluations, in nanoseconds.
    pub nanos: u64,
    /// Number of measured evaluations in which the node ran.
    pub timed: u64,
}

impl NodeCounters {
    pub(super) fn new(bundle: &Bundle) -> NodeCounters {
        NodeCounters::of(bundle.nodes().to_vec())
    }

    fn of(mut nodes: Vec<NodeInfo>) -> NodeCounters {
        if nodes.len() > MOST {
            nodes.truncate(MOST - 1);
            nodes.push(NodeInfo { name: "other".to_owned(), kind: "other" });
        }
        let measured = nodes.iter().map(|_| Default::default()).collect();
        NodeCounters { nodes: nodes.into(), measured }
    }

    /// Adds the times of one evaluation, or of a part of it.
    pub(crate) fn add(&self, times: &[u64]) {
        for (at, time) in self.folded(times) {
            if let Some([nanos, timed]) = self.measured.get(at) {
                nanos.fetch_add(time, Relaxed);
                timed.fetch_add(1, Relaxed);
            }
        }
    }

    /// The measurements of every node, in the order of the program.
    pub fn times(&self) -> impl Iterator<Item = NodeTime<'_>> {
        self.nodes.iter().zip(&self.measured).map(|(node, [nanos, timed])| NodeTime {
            node,
            nanos: nanos.load(Relaxed),
            timed: timed.load(Relaxed),
        })
    }

    /// The nodes that ran in one evaluation, with their times in nanoseconds.
    pub fn ran<'a>(&'a self, times: &'a [u64]) -> impl Iterator<Item = (&'a NodeInfo, u64)> {
        self.folded(times).filter_map(|(at, time)| Some((self.nodes.get(at)?, time)))
    }

    /// The places and times of the nodes that ran. The last one has the time of all further nodes.
    fn folded<'a>(&self, times: &'a [u64]) -> impl Iterator<Item = (usize, u64)> + use<'a> {
        let last = self.nodes.len().saturating_sub(1);
        let (own, rest) = times.split_at(last.min(times.len()));
        let rest = std::iter::once(rest.iter().sum::<u64>());
        own.iter().copied().chain(rest).enumerate().filter(|(_, time)| *time > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_beyond_the_limit_are_counted_together() {
        let node = |number: usize| NodeInfo { name: format!("n{number}"), kind: "link" };
        let counters = NodeCounters::of((0..MOST + 2).map(node).collect());
        let mut times = vec![0; MOST + 2];
        times[0] = 5;
        times[MOST - 1..].copy_from_slice(&[10, 20, 30]);
        counters.add(&times);
        let all: Vec<_> = counters.times().map(|time| (&*time.node.name, time.nanos, time.timed)).collect();
        assert_eq!(all.len(), MOST);
        assert_eq!((all[0], all[1], all[MOST - 1]), (("n0", 5, 1), ("n1", 0, 0), ("other", 60, 1)));
        let ran: Vec<_> = counters.ran(&times).map(|(node, time)| (&*node.name, time)).collect();
        assert_eq!(ran, [("n0", 5), ("other", 60)]);
        let whole = NodeCounters::of((0..MOST).map(node).collect());
        assert_eq!(whole.times().last().map(|time| &*time.node.name), Some("n63"));
    }
}
