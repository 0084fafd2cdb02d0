//! The names that expressions may use, with their types.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use crate::custom::{Declared, FunctionSpec, Functions, MAX_FUNCTIONS, MAX_OPERANDS};
use crate::functions::Function;
use crate::limits::{MAX_NAMES, MAX_TEXT, MAX_TEXTS};

/// The type of a name or of an expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Type {
    /// True or false.
    Bool,
    /// A 64-bit integer.
    Int,
    /// A double-precision number.
    Double,
    /// A string of a known vocabulary.
    Text,
    /// Any string, known only by its keyed 64-bit hash. It can be compared with strings and looked up in lists.
    Key,
}

impl fmt::Display for Type {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Type::Bool => "bool",
            Type::Int => "int",
            Type::Double => "double",
            Type::Text => "string",
            Type::Key => "key",
        })
    }
}

/// What a named list holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListKind {
    /// Strings.
    Text,
    /// Integers.
    Int,
}

/// Position of a name's value in the inputs of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub(crate) u16);

/// Position of a named list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListId(pub(crate) u16);

/// A name could not be declared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeclareError(String);

impl fmt::Display for DeclareError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for DeclareError {}

/// The declared names. A value of any of them may be missing at run time.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    names: Vec<(String, Type)>,
    by_name: HashMap<String, Slot>,
    lists: Vec<(String, ListKind)>,
    vocabulary: BTreeSet<String>,
    functions: Declared,
}

impl Environment {
    /// Returns an environment without names.
    #[must_use]
    pub fn new() -> Environment {
        Environment::default()
    }

    /// Declares a name of type bool, int, double or key, or a string whose vocabulary is declared with
    /// [`Environment::known`].
    ///
    /// # Errors
    /// Fails if the name is not one or several identifiers with dots between them, is declared already, or is one
    /// too many.
    pub fn declare(&mut self, name: &str, kind: Type) -> Result<Slot, DeclareError> {
        check_name(name)?;
        if self.by_name.contains_key(name) {
            return Err(DeclareError(format!("name {name:?}: is declared twice; remove one of the two")));
        }
        if self.names.len() >= MAX_NAMES {
            return Err(DeclareError(format!(
                "name {name:?}: an environment has at most {MAX_NAMES} names; remove unused ones"
            )));
        }
        let slot = Slot(u16::try_from(self.names.len()).unwrap_or(u16::MAX));
        self.names.push((name.to_owned(), kind));
        self.by_name.insert(name.to_owned(), slot);
        Ok(slot)
    }

    /// Declares a string and the values that it usually has. Another value at run time is different from every
    /// string of the rules, and the result of other tests of it is unknown.
    ///
    /// # Errors
    /// Fails like [`Environment::declare`] and [`Environment::known`].
    pub fn declare_text<'a>(
        &mut self,
        name: &str,
        vocabulary: impl IntoIterator<Item = &'a str>,
    ) -> Result<Slot, DeclareError> {
        let slot = self.declare(name, Type::Text)?;
        self.known(vocabulary)?;
        Ok(slot)
    }

    /// Adds strings to those that string functions can be evaluated on.
    ///
    /// # Errors
    /// Fails if a string is too long or there are too many of them.
    pub fn known<'a>(&mut self, texts: impl IntoIterator<Item = &'a str>) -> Result<(), DeclareError> {
        for text in texts {
            if text.len() > MAX_TEXT {
                return Err(DeclareError(format!(
                    "a string of the vocabulary has {} bytes, more than {MAX_TEXT}; shorten it or declare a key",
                    text.len()
                )));
            }
            self.vocabulary.insert(text.to_owned());
        }
        if self.vocabulary.len() > MAX_TEXTS / 2 {
            return Err(DeclareError(format!(
                "the vocabulary has more than {} strings; declare names with many values as keys",
                MAX_TEXTS / 2
            )));
        }
        Ok(())
    }

    /// Declares a list that expressions name with `list("name")`.
    ///
    /// # Errors
    /// Fails if the name is declared already or there are too many lists.
    pub fn declare_list(&mut self, name: &str, kind: ListKind) -> Result<ListId, DeclareError> {
        if self.lists.iter().any(|(known, _)| known == name) {
            return Err(DeclareError(format!("list {name:?}: is declared twice; remove one of the two")));
        }
        if self.lists.len() >= MAX_NAMES {
            return Err(DeclareError(format!(
                "list {name:?}: there are at most {MAX_NAMES} lists; remove one"
            )));
        }
        self.lists.push((name.to_owned(), kind));
        Ok(ListId(u16::try_from(self.lists.len() - 1).unwrap_or(u16::MAX)))
    }

    /// Declares functions that conditions call by their names. A call passes their positions to `functions`.
    ///
    /// # Errors
    /// Fails if there are more than 64 functions, or if a name is no identifier, is that of another function, or has no
    /// or too many operands.
    pub fn declare_functions(
        &mut self,
        specs: Vec<FunctionSpec>,
        functions: Arc<dyn Functions>,
    ) -> Result<(), DeclareError> {
        if specs.len() > MAX_FUNCTIONS {
            let count = specs.len();
            return Err(DeclareError(format!(
                "{count} functions are declared, at most {MAX_FUNCTIONS}; remove some"
            )));
        }
        for (at, FunctionSpec { name, operands, .. }) in specs.iter().enumerate() {
            let fail = |problem: &str| Err(DeclareError(format!("function {name:?}: {problem}")));
            check_name(name)?;
            if name.contains('.') {
                return fail("has a dot in its name; remove it");
            }
            if Function::named(name).is_some() || crate::check::FORMS.contains(&name.as_str()) {
                return fail("is a function of the language; rename it");
            }
            if specs[..at].iter().any(|other| other.name == *name) {
                return fail("is declared twice; remove one of the two");
            }
            if operands.is_empty() || operands.len() > MAX_OPERANDS {
                return fail("takes 1 to 16 operands; correct it");
            }
        }
        self.functions = Declared { specs: specs.into(), functions: Some(functions) };
        Ok(())
    }

    /// The declared functions.
    #[must_use]
    pub fn functions(&self) -> &[FunctionSpec] {
        &self.functions.specs
    }

    pub(crate) fn declared(&self) -> &Declared {
        &self.functions
    }

    /// Returns the slot of a name.
    #[must_use]
    pub fn slot(&self, name: &str) -> Option<Slot> {
        self.by_name.get(name).copied()
    }

    /// Returns the list of a name.
    #[must_use]
    pub fn list(&self, name: &str) -> Option<ListId> {
        let at = self.lists.iter().position(|(known, _)| known == name)?;
        Some(ListId(u16::try_from(at).unwrap_or(u16::MAX)))
    }

    /// Returns the names in the order of their slots, with their types.
    pub fn names(&self) -> impl Iterator<Item = (&str, Type)> {
        self.names.iter().map(|(name, kind)| (name.as_str(), *kind))
    }

    /// Returns the names of the lists, in the order of their ids.
    pub fn list_names(&self) -> impl Iterator<Item = &str> {
        self.lists.iter().map(|(name, _)| name.as_str())
    }

    pub(crate) fn kind(&self, slot: Slot) -> Type {
        self.names[usize::from(slot.0)].1
    }

    pub(crate) fn list_kind(&self, list: ListId) -> ListKind {
        self.lists[usize::from(list.0)].1
    }

    pub(crate) fn vocabulary(&self) -> &BTreeSet<String> {
        &self.vocabulary
    }

    pub(crate) fn count(&self) -> usize {
        self.names.len()
    }

    pub(crate) fn list_count(&self) -> usize {
        self.lists.len()
    }
}

/// Whether a text is one or several identifiers with dots between them, and no word of CEL.
pub(crate) fn check_name(name: &str) -> Result<(), DeclareError> {
    let identifier = |part: &str| {
        part.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
            && part.chars().all(|character| character.is_ascii_alphanumeric() || character == '_')
    };
    if name.len() > 256 || !name.split('.').all(identifier) || ["true", "false", "null", "in"].contains(&name)
    {
        return Err(DeclareError(format!(
            "name {name:?}: must be letters, digits and '_', not start with a digit, and not be a word of CEL; rename it"
        )));
    }
    Ok(())
}
