//! Splits an expression into tokens.

use crate::fault::Problem;
use crate::limits::{MAX_SOURCE, MAX_TEXT};

/// One token with the byte at which it starts.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Token {
    pub(crate) at: usize,
    pub(crate) kind: Kind,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Kind {
    /// The magnitude of an integer; at most 2^63, which only a minus sign makes an int.
    Int(u64),
    Double(f64),
    Text(String),
    Name(String),
    Symbol(&'static str),
    End,
}

/// Longer symbols come before their prefixes.
const SYMBOLS: [&str; 25] = [
    "&&", "||", "==", "!=", "<=", ">=", "<", ">", "!", "+", "-", "*", "/", "%", "?", ":", "(", ")", "[", "]",
    "{", "}", ",", ".", "=",
];

/// CEL reserves these words for languages that embed it.
const RESERVED: [&str; 17] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

pub(crate) fn tokens(source: &str) -> Result<Vec<Token>, Problem> {
    if source.len() > MAX_SOURCE {
        return Err(Problem::new(
            0,
            format!("the expression has {} bytes, more than {MAX_SOURCE}; split the rule", source.len()),
        ));
    }
    let mut lexer = Lexer { source, at: 0 };
    let mut tokens = Vec::new();
    loop {
        lexer.skip_blank();
        let at = lexer.at;
        let kind = lexer.next()?;
        let end = kind == Kind::End;
        tokens.push(Token { at, kind });
        if end {
            return Ok(tokens);
        }
    }
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
}

impl Lexer<'_> {
    fn rest(&self) -> &str {
        &self.source[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn skip_blank(&mut self) {
        loop {
            let rest = self.rest();
            let blank = rest.len() - rest.trim_start_matches([' ', '\t', '\n', '\r', '\x0c']).len();
            self.at += blank;
            if !self.rest().starts_with("//") {
                return;
            }
            self.at += self.rest().find('\n').unwrap_or(self.rest().len());
        }
    }

    fn next(&mut self) -> Result<Kind, Problem> {
        let Some(first) = self.peek() else { return Ok(Kind::End) };
        let second = self.rest()[first.len_utf8()..].chars().next();
        if first.is_ascii_digit() || (first == '.' && second.is_some_and(|next| next.is_ascii_digit())) {
            return self.number();
        }
        if let Some(raw) = self.opens_text()? {
            return self.text(raw);
        }
        if first.is_ascii_alphabetic() || first == '_' {
            return self.name();
        }
        for symbol in SYMBOLS {
            if self.rest().starts_with(symbol) {
                if symbol == "=" {
                    return Err(Problem::new(self.at, "\"=\" is not an operator; compare with \"==\""));
                }
                self.at += symbol.len();
                return Ok(Kind::Symbol(symbol));
            }
        }
        let remedy = match first {
            '&' => "write \"&&\"",
            '|' => "write \"||\"",
            '`' => "names in backticks are not supported",
            _ => "remove it",
        };
        Err(Problem::new(self.at, format!("unexpected character {first:?}; {remedy}")))
    }

    fn name(&mut self) -> Result<Kind, Problem> {
        let start = self.at;
        let rest = self.rest();
        let length = rest
            .find(|character: char| !character.is_ascii_alphanumeric() && character != '_')
            .unwrap_or(rest.len());
        let name = rest[..length].to_owned();
        self.at += length;
        if RESERVED.contains(&name.as_str()) {
            return Err(Problem::new(start, format!("{name:?} is a reserved word of CEL; use another name")));
        }
        Ok(Kind::Name(name))
    }

    fn number(&mut self) -> Result<Kind, Problem> {
        let start = self.at;
        let bytes = self.source.as_bytes();
        let digits = |from: usize, hexadecimal: bool| {
            let mut end = from;
            while bytes.get(end).is_some_and(|byte| {
                if hexadecimal { byte.is_ascii_hexdigit() } else { byte.is_ascii_digit() }
            }) {
                end += 1;
            }
            end
        };
        let too_large = || {
            Problem::new(start, "the integer does not fit into 64 bits; write it as a double, such as 1e20")
        };
        if self.rest().starts_with("0x") || self.rest().starts_with("0X") {
            let end = digits(start + 2, true);
            self.at = end;
            self.ends_number(start)?;
            let value = u64::from_str_radix(&self.source[start + 2..end], 16)
                .ok()
                .filter(|value| *value <= 1 << 63)
                .ok_or_else(too_large)?;
            return Ok(Kind::Int(value));
        }
        let mut end = digits(start, false);
        let mut double = false;
        // `1.size()` is a call on an integer, `1.5` is a double.
        if bytes.get(end) == Some(&b'.') && bytes.get(end + 1).is_some_and(u8::is_ascii_digit) {
            double = true;
            end = digits(end + 1, false);
        }
        if matches!(bytes.get(end), Some(b'e' | b'E')) {
            let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
            let exponent = digits(end + 1 + sign, false);
            if exponent > end + 1 + sign {
                double = true;
                end = exponent;
            }
        }
        self.at = end;
        self.ends_number(start)?;
        let text = &self.source[start..end];
        if double {
            return text
                .parse()
                .map(Kind::Double)
                .map_err(|_| Problem::new(start, format!("{text:?} is not a number; correct it")));
        }
        text.parse::<u64>().ok().filter(|value| *value <= 1 << 63).map(Kind::Int).ok_or_else(too_large)
    }

    fn ends_number(&self, start: usize) -> Result<(), Problem> {
        match self.peek() {
            Some('u' | 'U') => Err(Problem::new(
                start,
                "unsigned integers are not supported; write the integer without \"u\"",
            )),
            Some(next) if next.is_ascii_alphanumeric() || next == '_' => {
                Err(Problem::new(self.at, format!("unexpected {next:?} after a number; separate them")))
            }
            _ => Ok(()),
        }
    }

    /// Whether a string starts here, and whether it is raw. The prefix is consumed.
    fn opens_text(&mut self) -> Result<Option<bool>, Problem> {
        let rest = self.rest();
        let letters = rest.len() - rest.trim_start_matches(['r', 'R', 'b', 'B']).len();
        if letters > 2 || !rest[letters..].starts_with(['"', '\'']) {
            return Ok(None);
        }
        let prefix = &rest[..letters];
        if prefix.contains(['b', 'B']) {
            return Err(Problem::new(self.at, "bytes are not supported; write a string without \"b\""));
        }
        let raw = letters > 0;
        self.at += letters;
        Ok(Some(raw))
    }

    fn text(&mut self, raw: bool) -> Result<Kind, Problem> {
        let start = self.at;
        let quote = if self.rest().starts_with('"') { '"' } else { '\'' };
        let triple: String = [quote; 3].iter().collect();
        let long = self.rest().starts_with(&triple);
        let close = if long { triple } else { quote.to_string() };
        self.at += close.len();
        let mut text = String::new();
        loop {
            if self.rest().starts_with(&close) {
                self.at += close.len();
                return Ok(Kind::Text(text));
            }
            let at = self.at;
            let Some(next) = self.peek() else {
                return Err(Problem::new(start, format!("the string does not end; close it with {close}")));
            };
            if text.len() >= MAX_TEXT {
                return Err(Problem::new(
                    start,
                    format!("the string is longer than {MAX_TEXT} bytes; shorten it"),
                ));
            }
            self.at += next.len_utf8();
            match next {
                '\n' | '\r' if !long => {
                    return Err(Problem::new(
                        at,
                        "the string has a line break; write \\n, or use three quotation marks",
                    ));
                }
                '\\' if !raw => text.push(self.escape(at)?),
                _ => text.push(next),
            }
        }
    }

    fn escape(&mut self, at: usize) -> Result<char, Problem> {
        let unknown = || Problem::new(at, "unknown escape in a string; write \\\\ for a backslash");
        let letter = self.peek().ok_or_else(unknown)?;
        self.at += letter.len_utf8();
        Ok(match letter {
            'a' => '\x07',
            'b' => '\x08',
            'f' => '\x0c',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\x0b',
            '\\' | '?' | '"' | '\'' | '`' => letter,
            'x' | 'X' => self.code(at, 2, 16)?,
            'u' => self.code(at, 4, 16)?,
            'U' => self.code(at, 8, 16)?,
            '0'..='3' => {
                self.at -= 1;
                self.code(at, 3, 8)?
            }
            _ => return Err(unknown()),
        })
    }

    fn code(&mut self, at: usize, digits: usize, radix: u32) -> Result<char, Problem> {
        let code = self
            .rest()
            .get(..digits)
            .filter(|code| code.chars().all(|digit| digit.is_digit(radix)))
            .and_then(|code| u32::from_str_radix(code, radix).ok())
            .and_then(char::from_u32)
            .ok_or_else(|| {
                Problem::new(at, format!("an escape of {digits} digits that is not a character; correct it"))
            })?;
        self.at += digits;
        Ok(code)
    }
}
