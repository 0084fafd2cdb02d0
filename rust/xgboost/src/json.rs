//! JSON with XGBoost's `NaN` and `Infinity`. Numbers remain text until their type is known.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::DEPTH_CAP;
use crate::error::ReadError;
use crate::number::Number;
use crate::value::Value;

/// Parses a document. Only white space may follow it.
pub(crate) fn parse(bytes: &[u8]) -> Result<Value<'_>, ReadError> {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let rule = "the bytes are not UTF-8 (only .ubj and .json files are read)".to_owned();
            return Err(ReadError::Syntax { format: "JSON", offset: error.valid_up_to(), rule });
        }
    };
    let mut parser = Parser { text, at: 0 };
    parser.space();
    let value = parser.value(0)?;
    parser.space();
    if parser.at != text.len() {
        return parser.fail("characters are left over behind the document");
    }
    Ok(value)
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Parser<'a> {
    fn fail<T>(&self, rule: impl Into<String>) -> Result<T, ReadError> {
        Err(ReadError::Syntax { format: "JSON", offset: self.at, rule: rule.into() })
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn expect(&mut self, byte: u8) -> Result<(), ReadError> {
        self.space();
        if self.peek() != Some(byte) {
            return self.fail(format!("{:?} is expected", char::from(byte)));
        }
        self.at += 1;
        self.space();
        Ok(())
    }

    fn word(&mut self, word: &str) -> bool {
        let found = self.text.as_bytes()[self.at..].starts_with(word.as_bytes());
        if found {
            self.at += word.len();
        }
        found
    }

    fn value(&mut self, depth: usize) -> Result<Value<'a>, ReadError> {
        if depth > DEPTH_CAP {
            return self.fail("values are nested too deeply");
        }
        match self.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => Ok(Value::String(self.string()?)),
            Some(b'-' | b'0'..=b'9' | b'N' | b'I') => self.number(),
            _ if self.word("true") => Ok(Value::Bool(true)),
            _ if self.word("false") => Ok(Value::Bool(false)),
            _ if self.word("null") => Ok(Value::Null),
            _ => self.fail("a value is expected"),
        }
    }

    fn number(&mut self) -> Result<Value<'a>, ReadError> {
        let start = self.at;
        let literal = ["NaN", "Infinity", "-Infinity"].into_iter().any(|word| self.word(word));
        if !literal {
            while matches!(self.peek(), Some(b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E')) {
                self.at += 1;
            }
        }
        let text = &self.text[start..self.at];
        // Rust's parser checks the form. It accepts more than JSON does (`1.`, `01`), but nothing that has another
        // value in JSON.
        if text.parse::<f32>().is_err() {
            self.at = start;
            return self.fail("a number is malformed");
        }
        Ok(Value::Number(Number::Text(text)))
    }

    fn array(&mut self, depth: usize) -> Result<Value<'a>, ReadError> {
        self.expect(b'[')?;
        let mut values = Vec::new();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Value::Array(values));
        }
        loop {
            values.push(self.value(depth + 1)?);
            self.space();
            match self.peek() {
                Some(b',') => self.expect(b',')?,
                Some(b']') => break,
                _ => return self.fail("',' or ']' is expected"),
            }
        }
        self.at += 1;
        Ok(Value::Array(values))
    }

    fn object(&mut self, depth: usize) -> Result<Value<'a>, ReadError> {
        self.expect(b'{')?;
        let mut members = HashMap::new();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Value::Object(members));
        }
        loop {
            let key = self.string()?;
            if members.contains_key(&key) {
                return self.fail(format!("key {key:?} appears twice in one object"));
            }
            self.expect(b':')?;
            let value = self.value(depth + 1)?;
            members.insert(key, value);
            self.space();
            match self.peek() {
                Some(b',') => self.expect(b',')?,
                Some(b'}') => break,
                _ => return self.fail("',' or '}' is expected"),
            }
        }
        self.at += 1;
        Ok(Value::Object(members))
    }

    fn string(&mut self) -> Result<Cow<'a, str>, ReadError> {
        if self.peek() != Some(b'"') {
            return self.fail("a string is expected");
        }
        self.at += 1;
        let start = self.at;
        let mut owned: Option<String> = None;
        let mut from = start;
        loop {
            match self.peek() {
                None => return self.fail("a string is not closed"),
                Some(b'"') => {
                    let tail = &self.text[from..self.at];
                    self.at += 1;
                    return Ok(match owned {
                        None => Cow::Borrowed(tail),
                        Some(head) => Cow::Owned(head + tail),
                    });
                }
                Some(b'\\') => {
                    let head = owned.get_or_insert_default();
                    head.push_str(&self.text[from..self.at]);
                    self.at += 1;
                    let character = self.escape()?;
                    owned.get_or_insert_default().push(character);
                    from = self.at;
                }
                Some(_) => self.at += 1,
            }
        }
    }

    fn escape(&mut self) -> Result<char, ReadError> {
        let Some(byte) = self.peek() else {
            return self.fail("a string is not closed");
        };
        self.at += 1;
        Ok(match byte {
            b'"' => '"',
            b'\\' => '\\',
            b'/' => '/',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let high = self.hex()?;
                let code = if (0xd800..0xdc00).contains(&high) && self.word("\\u") {
                    let low = self.hex()?;
                    0x10000 + ((high - 0xd800) << 10) + (low.wrapping_sub(0xdc00) & 0x3ff)
                } else {
                    high
                };
                char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
            }
            _ => return self.fail("an escape is not known"),
        })
    }

    fn hex(&mut self) -> Result<u32, ReadError> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4);
        let parsed = digits
            .filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u32::from_str_radix(digits, 16).ok());
        match parsed {
            Some(code) => {
                self.at += 4;
                Ok(code)
            }
            None => self.fail("\\u needs four hexadecimal digits"),
        }
    }
}
