//! Reads a module and refuses everything that a function of a bundle may not have. Nothing is compiled.

use std::ops::Range;

use wasmparser::{
    CompositeInnerType, Export, ExternalKind, FunctionBody, Operator, Parser, Payload, TypeRef, ValType,
    Validator, WasmFeatures,
};

use crate::error::ModuleError;
use crate::graph::{Body, changes};
use crate::limits::{
    MAX_BODY_BYTES, MAX_CODE_BYTES, MAX_ENTRIES, MAX_LOCALS, MAX_MODULE_BYTES, MAX_MODULE_FUNCTIONS,
    MAX_NESTING, MAX_PAGES, shown,
};

/// What a module contains, after all checks.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    /// The sections that are compiled: their number and the place of their content.
    pub(crate) sections: Vec<(u8, Range<usize>)>,
    pub(crate) functions: Vec<Exported>,
    /// Whether the module has a memory.
    pub(crate) memory: bool,
    /// The globals that code can change.
    pub(crate) globals: Vec<u32>,
}

/// A function that the module exports.
#[derive(Debug, Clone)]
pub(crate) struct Exported {
    pub(crate) name: String,
    pub(crate) index: u32,
    /// The number of its parameters, or its type if that is not one of doubles.
    pub(crate) arity: Result<usize, String>,
    /// Whether a call can change memory or globals.
    pub(crate) writes: bool,
}

/// The parameters and results of a type.
type Signature = (Vec<ValType>, Vec<ValType>);

/// The features of the language that modules may use. All of them give the same results on every machine.
fn features() -> WasmFeatures {
    WasmFeatures::FLOATS
        | WasmFeatures::MUTABLE_GLOBAL
        | WasmFeatures::SATURATING_FLOAT_TO_INT
        | WasmFeatures::SIGN_EXTENSION
        | WasmFeatures::BULK_MEMORY
        | WasmFeatures::BULK_MEMORY_OPT
}

/// Checks a module.
pub(crate) fn check(bytes: &[u8]) -> Result<Contents, ModuleError> {
    bound("bytes", bytes.len(), MAX_MODULE_BYTES)?;
    // The time and memory of validation are linear in the length.
    Validator::new_with_features(features()).validate_all(bytes).map_err(invalid)?;
    let mut contents = Contents::default();
    let mut types: Vec<Signature> = Vec::new();
    let mut of_functions: Vec<u32> = Vec::new();
    let mut exports: Vec<(String, u32)> = Vec::new();
    let mut bodies: Vec<Body> = Vec::new();
    let mut code = 0;
    for payload in Parser::new(0).parse_all(bytes) {
        let payload = payload.map_err(invalid)?;
        if let Some((number, range)) = payload.as_section() {
            keep(&mut contents.sections, number, range);
        }
        match payload {
            Payload::TypeSection(section) => {
                bound("types", section.count() as usize, MAX_ENTRIES)?;
                for group in section {
                    for kind in group.map_err(invalid)?.into_types() {
                        types.push(match kind.composite_type.inner {
                            CompositeInnerType::Func(function) => {
                                (function.params().to_vec(), function.results().to_vec())
                            }
                            _ => return Err(part("a type that is no function", PLAIN)),
                        });
                    }
                }
            }
            Payload::ImportSection(section) => {
                if let Some(import) = section.into_imports().next() {
                    let import = import.map_err(invalid)?;
                    let kind = if matches!(import.ty, TypeRef::Func(_)) { "function" } else { "import" };
                    let what = format!("the {kind} {:?} of {:?}", shown(import.name), shown(import.module));
                    return Err(part(
                        format!("an import, {what}"),
                        "a function has no access to the host; remove the import",
                    ));
                }
            }
            Payload::FunctionSection(section) => {
                bound("functions", section.count() as usize, MAX_MODULE_FUNCTIONS)?;
                for index in section {
                    of_functions.push(index.map_err(invalid)?);
                }
            }
            Payload::MemorySection(section) => {
                for memory in section {
                    let memory = memory.map_err(invalid)?;
                    bound(
                        "pages of memory",
                        memory.initial.try_into().unwrap_or(usize::MAX),
                        MAX_PAGES as usize,
                    )?;
                    contents.memory = true;
                }
            }
            Payload::GlobalSection(section) => {
                bound("globals", section.count() as usize, MAX_ENTRIES)?;
                for (index, global) in section.into_iter().enumerate() {
                    if global.map_err(invalid)?.ty.mutable {
                        contents.globals.push(index as u32);
                    }
                }
            }
            Payload::ExportSection(section) => {
                bound("exports", section.count() as usize, MAX_ENTRIES)?;
                for export in section {
                    let Export { name, kind, index } = export.map_err(invalid)?;
                    if kind == ExternalKind::Func {
                        exports.push((name.to_owned(), index));
                    }
                }
            }
            Payload::StartSection { .. } => {
                return Err(part("a start function", "code runs in calls only; remove it"));
            }
            Payload::ElementSection(section) if section.count() > 0 => {
                return Err(part("elements of a table", INDIRECT));
            }
            Payload::DataSection(section) => {
                bound("data segments", section.count() as usize, MAX_ENTRIES)?;
                for data in section {
                    if matches!(data.map_err(invalid)?.kind, wasmparser::DataKind::Passive) {
                        return Err(part("a passive data segment", "use active data segments"));
                    }
                }
            }
            Payload::CodeSectionEntry(body) => {
                let length = body.range().len();
                code += length;
                bound("bytes of code", code, MAX_CODE_BYTES)?;
                bound("bytes in a function", length, MAX_BODY_BYTES)?;
                let parameters = of_functions
                    .get(bodies.len())
                    .and_then(|kind| types.get(*kind as usize))
                    .map_or(0, |(parameters, _)| parameters.len());
                bodies.push(read_body(&body, parameters)?);
            }
            _ => {}
        }
    }
    let writes = changes(&bodies)?;
    for (name, index) in exports {
        let kind = of_functions.get(index as usize).and_then(|kind| types.get(*kind as usize));
        contents.functions.push(Exported {
            arity: kind.map_or_else(|| Err("unknown".to_owned()), arity),
            writes: writes.get(index as usize).copied().unwrap_or(true),
            name,
            index,
        });
    }
    Ok(contents)
}

const PLAIN: &str = "build the module for wasm32-unknown-unknown with -C target-cpu=mvp";
const INDIRECT: &str =
    "a function calls others by name only, not through pointers or traits; change the code";

/// Keeps the sections that are compiled. Others, such as names, tables that no code reads and exports, are left out.
fn keep(sections: &mut Vec<(u8, Range<usize>)>, number: u8, range: Range<usize>) {
    if matches!(number, 1 | 3 | 5 | 6 | 10 | 11) {
        sections.push((number, range));
    }
}

fn read_body(body: &FunctionBody<'_>, parameters: usize) -> Result<Body, ModuleError> {
    let mut locals = parameters;
    for entry in body.get_locals_reader().map_err(invalid)? {
        let (count, _) = entry.map_err(invalid)?;
        locals = locals.saturating_add(count as usize);
    }
    bound("parameters and locals in a function", locals, MAX_LOCALS)?;
    let mut found = Body::default();
    let mut nesting = 0_usize;
    for operator in body.get_operators_reader().map_err(invalid)? {
        match operator.map_err(invalid)? {
            Operator::Block { .. } | Operator::Loop { .. } | Operator::If { .. } => {
                nesting += 1;
                bound("nested blocks in a function", nesting, MAX_NESTING)?;
            }
            Operator::End => nesting = nesting.saturating_sub(1),
            Operator::Call { function_index } => found.calls.push(function_index as usize),
            Operator::CallIndirect { .. } => return Err(part("an indirect call", INDIRECT)),
            Operator::GlobalSet { .. }
            | Operator::MemoryCopy { .. }
            | Operator::MemoryFill { .. }
            | Operator::I32Store { .. }
            | Operator::I32Store8 { .. }
            | Operator::I32Store16 { .. }
            | Operator::I64Store { .. }
            | Operator::I64Store8 { .. }
            | Operator::I64Store16 { .. }
            | Operator::I64Store32 { .. }
            | Operator::F32Store { .. }
            | Operator::F64Store { .. } => found.writes = true,
            Operator::MemoryInit { .. }
            | Operator::DataDrop { .. }
            | Operator::TableInit { .. }
            | Operator::TableCopy { .. }
            | Operator::ElemDrop { .. } => {
                return Err(part("an operation on segments or tables", PLAIN));
            }
            _ => {}
        }
    }
    Ok(found)
}

/// The number of parameters of a function of doubles; otherwise its type.
fn arity((parameters, results): &Signature) -> Result<usize, String> {
    let doubles = |types: &[ValType]| types.iter().all(|kind| *kind == ValType::F64);
    if doubles(parameters)
        && doubles(results)
        && results.len() == 1
        && (1..=crate::limits::MAX_ARGUMENTS).contains(&parameters.len())
    {
        return Ok(parameters.len());
    }
    let list = |types: &[ValType]| {
        let mut names: Vec<String> = types.iter().take(20).map(ToString::to_string).collect();
        if types.len() > names.len() {
            names.push("..".to_owned());
        }
        names.join(", ")
    };
    Err(format!("({}) -> ({})", list(parameters), list(results)))
}

fn bound(what: &'static str, got: usize, limit: usize) -> Result<(), ModuleError> {
    if got > limit { Err(ModuleError::Limit { what, got, limit }) } else { Ok(()) }
}

fn part(what: impl Into<String>, remedy: &'static str) -> ModuleError {
    ModuleError::Part { what: what.into(), remedy }
}

fn invalid(error: wasmparser::BinaryReaderError) -> ModuleError {
    ModuleError::Invalid(shown_text(&format!("{} at byte {}", error.message(), error.offset())))
}

/// A message of the reader can quote names of the module.
fn shown_text(text: &str) -> String {
    text.chars().take(200).map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}
