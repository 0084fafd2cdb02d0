//! PEM (RFC 7468) with one block, which explanatory text may precede.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Decodes the first block with this label. Returns `None` if it is missing, incomplete or not Base64.
pub(crate) fn decode(text: &str, label: &str) -> Option<Vec<u8>> {
    let (begin, end) = (format!("-----BEGIN {label}-----"), format!("-----END {label}-----"));
    let (_, rest) = text.split_once(&begin)?;
    let (body, _) = rest.split_once(&end)?;
    let digits: String = body.split_whitespace().collect();
    STANDARD.decode(digits).ok()
}

/// Encodes `bytes` as one block.
pub(crate) fn encode(label: &str, bytes: &[u8]) -> String {
    let digits = STANDARD.encode(bytes);
    let mut text = format!("-----BEGIN {label}-----\n");
    for line in digits.as_bytes().chunks(64) {
        text.extend(line.iter().copied().map(char::from));
        text.push('\n');
    }
    text.push_str(&format!("-----END {label}-----\n"));
    text
}

/// Returns the value of a header line before the first block, such as `Not-After: 2027-01-01T00:00:00Z`.
pub(crate) fn header<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().take_while(|line| !line.starts_with("-----BEGIN")).find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.trim().eq_ignore_ascii_case(name).then(|| value.trim())
    })
}
