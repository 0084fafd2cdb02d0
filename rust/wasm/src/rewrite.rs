//! Writes the module that is compiled: the checked sections, and exports of everything that a call can change, so that
//! it can be restored.

use wasm_encoder::{ExportKind, ExportSection, Module, RawSection};

use crate::check::Contents;

/// The name of the memory's export.
pub(crate) const MEMORY: &str = "m";
/// The number of the section of exports.
const EXPORTS: u8 = 7;

/// The name of the export of a global.
pub(crate) fn global_name(index: u32) -> String {
    format!("g{index}")
}

/// The name of the export of a function.
pub(crate) fn function_name(index: u32) -> String {
    format!("f{index}")
}

/// Writes the module.
pub(crate) fn rewrite(bytes: &[u8], contents: &Contents) -> Vec<u8> {
    let mut module = Module::new();
    let mut exports = ExportSection::new();
    if contents.memory {
        exports.export(MEMORY, ExportKind::Memory, 0);
    }
    for index in &contents.globals {
        exports.export(&global_name(*index), ExportKind::Global, *index);
    }
    let mut indexes: Vec<u32> =
        contents.functions.iter().filter(|function| function.arity.is_ok()).map(|one| one.index).collect();
    indexes.sort_unstable();
    indexes.dedup();
    for index in indexes {
        exports.export(&function_name(index), ExportKind::Func, index);
    }
    let (before, after): (Vec<_>, Vec<_>) = contents.sections.iter().partition(|(id, _)| *id < EXPORTS);
    for (id, range) in before {
        module.section(&RawSection { id: *id, data: content(bytes, range) });
    }
    module.section(&exports);
    for (id, range) in after {
        module.section(&RawSection { id: *id, data: content(bytes, range) });
    }
    module.finish()
}

fn content<'a>(bytes: &'a [u8], range: &std::ops::Range<usize>) -> &'a [u8] {
    bytes.get(range.clone()).unwrap_or_default()
}
