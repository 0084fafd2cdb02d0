//! External lists: the manifest of a version and its elements.
//!
//! A version is a directory in the form of a bundle, with `manifest.json`, `elements.txt` and, where bundles are signed,
//! `signature.json`. Its digest is computed and signed as that of a bundle is.

use std::collections::BTreeMap;

use scorer_rules::ListKey;
use serde::{Deserialize, Serialize};

use super::Digest;
use super::manifest::{FORMAT, FileEntry, MAX_FILE_BYTES, MAX_MANIFEST_BYTES, digest_of};

/// The file of the elements, one per line.
pub const LIST_ELEMENTS: &str = "elements.txt";
/// Bytes of the longest element.
const MAX_ELEMENT: usize = 64 << 10;
/// Bytes of the longest name of an external list.
const MAX_NAME: usize = 64;
/// What the name of an external list must be, because it is a name of the registry.
pub(super) const NAME_RULE: &str = "the name of an external list has 1 to 64 lower-case letters, digits, \".\", \"_\" and \"-\", and starts with a letter or digit; rename it";

/// The type of a list's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ElementType {
    /// Strings.
    #[default]
    String,
    /// 64-bit integers.
    Int,
}

impl ElementType {
    /// The name in manifests.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            ElementType::String => "string",
            ElementType::Int => "int",
        }
    }
}

/// The contents of the `manifest.json` of one version of an external list.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListManifest {
    /// Version of the format, that of bundles.
    pub format: u64,
    /// SHA-256 of this file with the 64 digits of this field replaced by zeros.
    pub digest: Digest,
    /// Name of the list.
    pub name: String,
    /// `list`.
    pub kind: String,
    /// Time of publication, in RFC 3339.
    pub created_at: String,
    /// What the version contains.
    pub list: ListContent,
    /// The file of the elements.
    pub files: BTreeMap<String, FileEntry>,
}

/// What a version of a list contains.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListContent {
    /// The type of the elements.
    #[serde(rename = "type")]
    pub kind: ElementType,
    /// The version, 1 or above; each one is higher than the one before it.
    pub version: u64,
    /// Number of elements, duplicates included.
    pub elements: u64,
    /// Time of publication, in milliseconds since the Unix epoch.
    pub published_at_ms: i64,
    /// Whether the publisher confirmed that the list has far fewer elements than before.
    #[serde(default)]
    pub shrinks: bool,
}

impl ListManifest {
    /// Parses a manifest and checks its form and its digest. It does not read the elements.
    ///
    /// # Errors
    /// Returns the rule that the manifest breaks, and the remedy.
    pub fn parse(bytes: &[u8]) -> Result<ListManifest, String> {
        if bytes.len() as u64 > MAX_MANIFEST_BYTES {
            return Err(format!(
                "{} bytes, the limit is {MAX_MANIFEST_BYTES}; publish the list again",
                bytes.len()
            ));
        }
        let manifest: ListManifest = serde_json::from_slice(bytes).map_err(|error| {
            let shown =
                error.to_string().chars().filter(|shown| !shown.is_control()).take(200).collect::<String>();
            format!("{shown}; publish the list again with `scorer lists put`")
        })?;
        if manifest.format != FORMAT {
            let found = manifest.format;
            return Err(format!(
                "format {found}, this build reads {FORMAT}; use the version of scorer that wrote it"
            ));
        }
        let got = digest_of(bytes, &manifest.digest).map_err(|error| error.to_string())?;
        if got != manifest.digest {
            let stated = manifest.digest;
            return Err(format!(
                "its digest is {got}, it states {stated}; it was altered, publish the list again"
            ));
        }
        if manifest.kind != "list" {
            return Err(format!("kind {:?}; give a directory that `scorer lists put` wrote", manifest.kind));
        }
        if !is_list_name(&manifest.name) {
            return Err(NAME_RULE.to_owned());
        }
        if manifest.list.version == 0 {
            return Err("version 0; versions start at 1".to_owned());
        }
        manifest.entry().map(|_| manifest.clone())
    }

    /// The entry of the file of the elements.
    ///
    /// # Errors
    /// Fails if the manifest does not list exactly this file, or states more than a list may have.
    pub fn entry(&self) -> Result<&FileEntry, String> {
        let (Some(entry), 1) = (self.files.get(LIST_ELEMENTS), self.files.len()) else {
            return Err(format!("it must list {LIST_ELEMENTS} and no other file; publish the list again"));
        };
        if entry.bytes > MAX_FILE_BYTES {
            return Err(format!(
                "{LIST_ELEMENTS} has {} bytes, the limit is {MAX_FILE_BYTES}; split the list",
                entry.bytes
            ));
        }
        // An element takes at least one byte and the end of its line, which the last one may lack.
        if self.list.elements > entry.bytes.div_ceil(2) {
            return Err(format!(
                "{} elements in {} bytes are not possible; publish the list again",
                self.list.elements, entry.bytes
            ));
        }
        Ok(entry)
    }
}

/// Whether an external list may have this name.
pub(super) fn is_list_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() <= MAX_NAME
        && name.bytes().next().is_some_and(plain)
        && name.bytes().all(|byte| plain(byte) || b"._-".contains(&byte))
}

/// An element of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element<'a> {
    /// A string.
    Text(&'a str),
    /// An integer.
    Int(i64),
}

impl Element<'_> {
    /// The hash under a key of a rule set.
    #[must_use]
    pub fn hash(self, key: ListKey) -> u64 {
        match self {
            Element::Text(text) => key.text(text),
            Element::Int(value) => key.int(value),
        }
    }
}

/// Splits the content of a list, which arrives in parts of any size, into elements. Empty lines are skipped.
#[derive(Debug)]
pub struct ListParser {
    kind: ElementType,
    /// The beginning of the line that the next part continues.
    rest: Vec<u8>,
    line: u64,
    elements: u64,
}

impl ListParser {
    /// Starts with an empty content.
    #[must_use]
    pub fn new(kind: ElementType) -> ListParser {
        ListParser { kind, rest: Vec::new(), line: 0, elements: 0 }
    }

    /// Takes the next part, and calls `each` for every element that is complete.
    ///
    /// # Errors
    /// Returns the line that is not an element, and the error of `each`.
    pub fn push(
        &mut self,
        mut part: &[u8],
        each: &mut impl FnMut(Element<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        while let Some(end) = part.iter().position(|byte| *byte == b'\n') {
            let (line, after) = (&part[..end], &part[end + 1..]);
            if self.rest.is_empty() {
                self.take(line, each)?;
            } else {
                let mut whole = std::mem::take(&mut self.rest);
                whole.extend_from_slice(line);
                self.take(&whole, each)?;
                whole.clear();
                self.rest = whole;
            }
            part = after;
        }
        if self.rest.len() + part.len() > MAX_ELEMENT {
            return Err(too_long(self.line + 1));
        }
        self.rest.extend_from_slice(part);
        Ok(())
    }

    /// Takes the last line, if it has no end, and returns the number of elements.
    ///
    /// # Errors
    /// Fails as [`ListParser::push`] does.
    pub fn finish(mut self, each: &mut impl FnMut(Element<'_>) -> Result<(), String>) -> Result<u64, String> {
        let last = std::mem::take(&mut self.rest);
        self.take(&last, each)?;
        Ok(self.elements)
    }

    fn take(
        &mut self,
        line: &[u8],
        each: &mut impl FnMut(Element<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        self.line += 1;
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            return Ok(());
        }
        if line.len() > MAX_ELEMENT {
            return Err(too_long(self.line));
        }
        let text = std::str::from_utf8(line)
            .map_err(|_| format!("line {} of its file is not UTF-8; save it as UTF-8", self.line))?;
        let element = match self.kind {
            ElementType::String => Element::Text(text),
            ElementType::Int => Element::Int(
                text.parse()
                    .map_err(|_| format!("line {} of its file is not an int; correct it", self.line))?,
            ),
        };
        self.elements += 1;
        each(element)
    }
}

fn too_long(line: u64) -> String {
    format!("line {line} of its file has more than {MAX_ELEMENT} bytes; put one element on each line")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A manifest with its digest.
    fn sealed(mut manifest: serde_json::Value) -> Vec<u8> {
        manifest["digest"] = Digest([0; 32]).to_string().into();
        let blank = manifest.to_string();
        blank.replace(&"0".repeat(64), &Digest::of(blank.as_bytes()).hex()).into_bytes()
    }

    fn manifest() -> serde_json::Value {
        json!({
            "format": 1, "name": "stolen_cards", "kind": "list", "created_at": "2026-11-27T06:00:00Z",
            "list": {"type": "int", "version": 3, "elements": 2, "published_at_ms": 1},
            "files": {"elements.txt": {"sha256": Digest::of(b"1\n2\n").to_string(), "bytes": 4}},
        })
    }

    #[test]
    fn a_manifest_states_a_version_and_its_file() {
        let parsed = ListManifest::parse(&sealed(manifest())).unwrap();
        assert_eq!(
            (parsed.name.as_str(), parsed.list.version, parsed.list.shrinks),
            ("stolen_cards", 3, false)
        );
        assert_eq!(parsed.entry().unwrap().bytes, 4);
        let refused = |change: &dyn Fn(&mut serde_json::Value), why: &str| {
            let mut changed = manifest();
            change(&mut changed);
            let error = ListManifest::parse(&sealed(changed)).unwrap_err();
            assert!(error.contains(why), "{error}");
        };
        refused(&|one| one["name"] = "Stolen".into(), "lower-case letters");
        refused(&|one| one["kind"] = "score".into(), "kind \"score\"");
        refused(&|one| one["format"] = 2.into(), "format 2");
        refused(&|one| one["list"]["version"] = 0.into(), "versions start at 1");
        refused(&|one| one["list"]["elements"] = 3.into(), "3 elements in 4 bytes");
        refused(&|one| one["files"]["elements.txt"]["bytes"] = (2_u64 << 30).into(), "split the list");
        refused(&|one| one["files"]["more.txt"] = one["files"]["elements.txt"].clone(), "no other file");
        refused(&|one| one["other"] = 1.into(), "unknown field");
        let mut altered = sealed(manifest());
        let at = altered.windows(9).position(|part| part == b"\"stolen_c").unwrap();
        altered[at + 1] = b't';
        assert!(ListManifest::parse(&altered).unwrap_err().contains("it was altered"));
        assert!(ListManifest::parse(b"{").unwrap_err().contains("publish the list again"));
    }

    fn elements(kind: ElementType, content: &[u8], size: usize) -> Result<(u64, Vec<String>), String> {
        let mut found = Vec::new();
        let mut each = |element: Element<'_>| {
            found.push(match element {
                Element::Text(text) => text.to_owned(),
                Element::Int(value) => value.to_string(),
            });
            Ok(())
        };
        let mut parser = ListParser::new(kind);
        for part in content.chunks(size) {
            parser.push(part, &mut each)?;
        }
        let count = parser.finish(&mut each)?;
        Ok((count, found))
    }

    #[test]
    fn elements_do_not_depend_on_the_size_of_the_parts() {
        let content = "one\r\n\ntwö\nthree four".as_bytes();
        for size in 1..=content.len() {
            let expected = ["one", "twö", "three four"].map(str::to_owned).to_vec();
            assert_eq!(elements(ElementType::String, content, size), Ok((3, expected)), "{size}");
        }
        assert_eq!(elements(ElementType::Int, b"-1\n007\n", 3), Ok((2, vec!["-1".into(), "7".into()])));
        assert_eq!(elements(ElementType::Int, b"", 3), Ok((0, vec![])));
    }

    #[test]
    fn lines_that_are_no_elements_are_refused_with_their_number() {
        let refused = |kind, content: &[u8], why: &str| {
            for size in [1, 7, 1 << 20] {
                let error = elements(kind, content, size).unwrap_err();
                assert!(error.contains(why), "{error}");
            }
        };
        refused(ElementType::Int, b"1\n\n2x\n3\n", "line 3 of its file is not an int");
        refused(ElementType::String, b"one\n\xff\n", "line 2 of its file is not UTF-8");
        refused(
            ElementType::String,
            &[b'a'; MAX_ELEMENT + 1],
            "line 1 of its file has more than 65536 bytes",
        );
        let mut ended = vec![b'a'; MAX_ELEMENT + 1];
        ended.push(b'\n');
        refused(ElementType::String, &ended, "line 1 of its file has more than 65536 bytes");
    }
}
