//! Sets of actions as words of bits.

/// Returns the set of the numbers below `count`.
pub(super) fn first(count: usize) -> Vec<u64> {
    let mut set = vec![u64::MAX; count.div_ceil(64)];
    if let Some(last) = set.last_mut()
        && !count.is_multiple_of(64)
    {
        *last = (1 << (count % 64)) - 1;
    }
    set
}

pub(super) fn insert(set: &mut [u64], member: usize) {
    set[member / 64] |= 1 << (member % 64);
}

pub(super) fn is_empty(set: &[u64]) -> bool {
    set.iter().all(|&word| word == 0)
}

/// The members in ascending order.
pub(super) fn members(set: &[u64]) -> impl Iterator<Item = usize> {
    set.iter().enumerate().flat_map(|(at, &word)| {
        let mut rest = word;
        std::iter::from_fn(move || {
            (rest != 0).then(|| {
                let member = at * 64 + rest.trailing_zeros() as usize;
                rest &= rest - 1;
                member
            })
        })
    })
}
