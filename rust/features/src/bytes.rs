//! Numbers in bytes, little-endian. A place outside of the bytes reads as 0 and is not written.

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).copied().map_or(0, u16::from_le_bytes)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).copied().map_or(0, u32::from_le_bytes)
}

pub(crate) fn i64_at(bytes: &[u8], at: usize) -> i64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).copied().map_or(0, i64::from_le_bytes)
}

pub(crate) fn f64_at(bytes: &[u8], at: usize) -> f64 {
    f64::from_bits(i64_at(bytes, at).cast_unsigned())
}

pub(crate) fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    if let Some(place) = bytes.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        *place = value;
    }
}

/// Inserts zeros. The bytes grow by no more than them.
pub(crate) fn insert_zeros(bytes: &mut Vec<u8>, at: usize, count: usize) {
    let end = bytes.len();
    bytes.reserve_exact(count);
    bytes.resize(end + count, 0);
    if at < end {
        bytes.copy_within(at..end, at + count);
        if let Some(new) = bytes.get_mut(at..at + count) {
            new.fill(0);
        }
    }
}
