//! The context that a caller sends with a request: `traceparent` and `tracestate` of W3C Trace Context.

use http::HeaderMap;

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";
/// Length of a `traceparent` of version 00: version, trace id, span id and flags in hexadecimal with dashes.
const LENGTH: usize = 55;
/// Flag of a trace that the caller records.
pub(super) const SAMPLED: u8 = 1;
/// Flag of a trace id whose last 7 bytes are random.
pub(super) const RANDOM: u8 = 2;
/// Greatest length of the entries of `tracestate` together, in bytes.
const STATE: usize = 512;
/// Greatest number of entries of `tracestate`.
const ENTRIES: usize = 32;

/// The span of the caller, of which the request is a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parent {
    pub(super) trace_id: [u8; 16],
    pub(super) span_id: [u8; 8],
    pub(super) flags: u8,
}

/// A header does not follow the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

// === impl Parent ===

impl Parent {
    /// Reads the caller's span; `None` if the request has none.
    pub(super) fn of(headers: &HeaderMap) -> Result<Option<Parent>, Malformed> {
        let mut values = headers.get_all(TRACEPARENT).iter();
        let Some(value) = values.next() else { return Ok(None) };
        if values.next().is_some() {
            return Err(Malformed);
        }
        parent(value.as_bytes()).map(Some).ok_or(Malformed)
    }

    pub(super) fn is_sampled(self) -> bool {
        self.flags & SAMPLED != 0
    }
}

fn parent(text: &[u8]) -> Option<Parent> {
    let (known, rest) = text.split_at_checked(LENGTH)?;
    let version = hex::<1>(&known[..2])?[0];
    let dashes = [2, 35, 52].iter().all(|&at| known[at] == b'-');
    // Later versions may append fields.
    let fits = if version == 0 { rest.is_empty() } else { rest.first().is_none_or(|&next| next == b'-') };
    if version == u8::MAX || !dashes || !fits {
        return None;
    }
    let parent = Parent {
        trace_id: hex(&known[3..35])?,
        span_id: hex(&known[36..52])?,
        flags: hex::<1>(&known[53..])?[0],
    };
    (parent.trace_id != [0; 16] && parent.span_id != [0; 8]).then_some(parent)
}

/// Decodes lower-case hexadecimal digits.
fn hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut out = [0; N];
    for (to, pair) in out.iter_mut().zip(text.chunks_exact(2)) {
        *to = (digit(pair[0])? << 4) | digit(pair[1])?;
    }
    Some(out)
}

/// Returns the entries of `tracestate`, joined by commas; empty if the request has none.
pub(super) fn state(headers: &HeaderMap) -> Result<String, Malformed> {
    let mut state = String::new();
    let mut entries = 0;
    for value in headers.get_all(TRACESTATE) {
        let value = value.to_str().map_err(|_| Malformed)?;
        let listed = value.split(',').map(|entry| entry.trim_matches([' ', '\t']));
        for entry in listed.filter(|entry| !entry.is_empty()) {
            entries += 1;
            if entries > ENTRIES || !is_entry(entry) {
                return Err(Malformed);
            }
            if !state.is_empty() {
                state.push(',');
            }
            state.push_str(entry);
            if state.len() > STATE {
                return Err(Malformed);
            }
        }
    }
    Ok(state)
}

/// Whether a text is `key=value` with a key of 1 to 256 and a value of 1 to 256 permitted characters.
fn is_entry(entry: &str) -> bool {
    let Some((key, value)) = entry.split_once('=') else { return false };
    let part = |text: &str| {
        text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-*/".contains(&byte))
    };
    let begins = |text: &str| text.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    let key_fits = key.len() <= 256
        && match key.split_once('@') {
            None => begins(key) && part(key),
            Some((tenant, system)) => begins(tenant) && part(tenant) && begins(system) && part(system),
        };
    let value_fits = (1..=256).contains(&value.len())
        && !value.ends_with(' ')
        && value.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b',' && byte != b'=');
    key_fits && value_fits
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn headers(name: &'static str, values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(name, value.parse().unwrap());
        }
        headers
    }

    fn read(values: &[&str]) -> Result<Option<Parent>, Malformed> {
        Parent::of(&headers(TRACEPARENT, values))
    }

    #[test]
    fn reads_the_span_of_the_caller() {
        let parent = read(&[GOOD]).unwrap().unwrap();
        assert_eq!(parent.trace_id[..2], [0x0a, 0xf7]);
        assert_eq!((parent.span_id[7], parent.flags, parent.is_sampled()), (0x31, 1, true));
        assert_eq!(read(&[]), Ok(None));
        let unsampled = GOOD.replace("-01", "-02");
        assert!(!read(&[&unsampled]).unwrap().unwrap().is_sampled());
        let later = format!("{}-more", GOOD.replacen("00", "cc", 1));
        assert_eq!(read(&[&later]), read(&[GOOD]), "a later version may have more fields");
    }

    #[test]
    fn whatever_else_is_malformed() {
        for bad in [
            "".to_owned(),
            GOOD[..54].to_owned(),
            format!("{GOOD}-more"),
            format!("{}0", GOOD.replacen("00", "cc", 1)),
            GOOD.replacen("00", "ff", 1),
            GOOD.replacen("00", "0g", 1),
            GOOD.to_uppercase(),
            GOOD.replace('-', "_"),
            GOOD.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            GOOD.replace("b7ad6b7169203331", &"0".repeat(16)),
            "x".repeat(8000),
        ] {
            assert_eq!(read(&[&bad]), Err(Malformed), "{bad:?}");
        }
        assert_eq!(read(&[GOOD, GOOD]), Err(Malformed), "given twice");
    }

    #[test]
    fn entries_of_all_headers_are_joined() {
        let read = |values: &[&str]| state(&headers(TRACESTATE, values));
        assert_eq!(read(&[]).as_deref(), Ok(""));
        assert_eq!(read(&["a=1 , , b@c=x y", "\td/e=~"]).as_deref(), Ok("a=1,b@c=x y,d/e=~"));
        let half = format!("a={}", "x".repeat(253));
        assert_eq!(read(&[&half, &half]).map(|state| state.len()), Ok(511));
        assert_eq!(read(&[&half, &half, "b=1"]), Err(Malformed), "more than 512 bytes");
        let many = |number: usize| vec!["a=1"; number].join(",");
        assert!(read(&[&many(32)]).is_ok());
        assert_eq!(read(&[&many(33)]), Err(Malformed));
        for bad in ["a", "a=", "=1", "A=1", "a=b=c", "@a=1", "a@=1", "a b=1", "a=\u{e9}"] {
            assert_eq!(read(&[bad]), Err(Malformed), "{bad:?}");
        }
    }
}
