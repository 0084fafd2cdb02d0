//! Orders values and rules so that each comes after those that it reads.

/// Returns an order in which every node comes after those that it reads, and as early as the order given allows; or
/// the nodes of a cycle, each read by the next one.
pub(crate) fn order(reads: &[Vec<usize>]) -> Result<Vec<usize>, Vec<usize>> {
    #[derive(Clone, Copy, PartialEq)]
    enum State {
        New,
        Open,
        Done,
    }
    let mut states = vec![State::New; reads.len()];
    let mut ordered = Vec::with_capacity(reads.len());
    for root in 0..reads.len() {
        // Without recursion: a chain may be as long as there are rules.
        let mut open: Vec<(usize, usize)> = Vec::new();
        if states[root] == State::New {
            states[root] = State::Open;
            open.push((root, 0));
        }
        while let Some((node, next)) = open.last_mut() {
            match reads[*node].get(*next) {
                Some(&read) => {
                    *next += 1;
                    match states[read] {
                        State::Done => {}
                        State::New => {
                            states[read] = State::Open;
                            open.push((read, 0));
                        }
                        State::Open => {
                            let start = open.iter().position(|(node, _)| *node == read).unwrap_or(0);
                            let mut cycle: Vec<usize> = open[start..].iter().map(|(node, _)| *node).collect();
                            cycle.reverse();
                            return Err(cycle);
                        }
                    }
                }
                None => {
                    states[*node] = State::Done;
                    ordered.push(*node);
                    open.pop();
                }
            }
        }
    }
    Ok(ordered)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn what_is_read_comes_first() {
        let (mut orders, mut cycles) = (0, 0);
        for seed in 0..1_000 {
            let mut random = Random(seed);
            let mut reads = vec![Vec::new(); 12];
            for _ in 0..random.below(24) {
                let reader = random.below(12);
                reads[reader].push(random.below(12));
            }
            match order(&reads) {
                Ok(ordered) => {
                    orders += 1;
                    assert_eq!(ordered.len(), 12, "seed {seed}");
                    let place = |node: usize| ordered.iter().position(|other| *other == node).unwrap();
                    for (reader, read) in reads.iter().enumerate() {
                        assert!(read.iter().all(|read| place(*read) < place(reader)), "seed {seed}");
                    }
                }
                Err(cycle) => {
                    cycles += 1;
                    for (at, node) in cycle.iter().enumerate() {
                        let reader = cycle[(at + 1) % cycle.len()];
                        assert!(reads[reader].contains(node), "seed {seed}");
                    }
                }
            }
        }
        assert!(orders > 100 && cycles > 100);
    }

    #[test]
    fn the_order_of_the_file_is_kept() {
        assert_eq!(order(&[vec![], vec![3], vec![], vec![]]), Ok(vec![0, 3, 1, 2]));
        assert_eq!(order(&[vec![1], vec![0]]).unwrap_err().len(), 2);
        assert_eq!(order(&[vec![0]]), Err(vec![0]));
        assert!(
            order(&(0..100_000).map(|at| if at > 0 { vec![at - 1] } else { vec![] }).collect::<Vec<_>>())
                .is_ok()
        );
    }
}
