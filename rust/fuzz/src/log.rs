//! Segments of the decision log: reading and recovery.

use std::path::Path;
use std::sync::Arc;

use crc32c::{crc32c, crc32c_append};
use prost::Message as _;
use scorer_log::sim::SimMachine;
use scorer_log::{Durability, Env, Fs, Log, LogConfig, Reader};
use scorer_proto::v1::{DecisionRecord, LogRecord, log_record};

const HEADER: usize = 96;
const FRAME: usize = 16;
const ALIGN: usize = 8;
/// The directory of the simulated disk.
pub const DIR: &str = "/log";

/// Writes up to two segments to a simulated disk, reads them, lets the log recover, appends a record, and reads again.
/// Bit 0 of the first byte is 0 if checksums are to be computed. Three bytes contain the length of the first segment.
pub fn run(data: &[u8]) {
    let Some((&[flags, a, b, c], rest)) = data.split_first_chunk::<4>() else { return };
    let first = (u32::from_le_bytes([a, b, c, 0]) as usize).min(rest.len());
    let machine = SimMachine::new(1);
    let env = machine.start();
    env.fs.create_dir_all(Path::new(DIR)).expect("the simulated disk takes a directory");
    let (first, second) = rest.split_at(first);
    for segment in [first, second] {
        let mut segment = segment.to_vec();
        if flags & 1 == 0 {
            complete_checksums(&mut segment);
        }
        write(&*env.fs, &segment);
    }
    let before = read(&env);
    let config = LogConfig::new(DIR);
    let Ok((log, _)) = Log::open(env, config) else { return };
    let sequence = log.append(&record(), Durability::Sync).expect("the simulated disk does not fail");
    drop(log);
    let after = read(&machine.start());
    assert!(after.iter().any(|(at, _)| Some(*at) == sequence), "an acknowledged record is not read");
    for (at, payload) in &before {
        assert!(after.contains(&(*at, payload.clone())), "recovery lost record {at}");
    }
}

/// A record in the form that the server writes.
pub fn record() -> Vec<u8> {
    let record = DecisionRecord { decision_id: "fuzz".to_owned(), ..DecisionRecord::default() };
    LogRecord { record: Some(log_record::Record::Decision(record)) }.encode_to_vec()
}

/// The records of the directory with their sequences.
fn read(env: &Env) -> Vec<(u64, Vec<u8>)> {
    let fs: Arc<dyn Fs> = Arc::clone(&env.fs);
    let Ok(mut reader) = Reader::open(fs, Path::new(DIR)) else { return Vec::new() };
    let mut records = Vec::new();
    while let Ok(Some(record)) = reader.next_record() {
        records.push((record.sequence, record.payload.to_vec()));
    }
    records
}

/// Writes a segment under the file name that its header requires, because a file with another name is not read.
fn write(fs: &dyn Fs, segment: &[u8]) {
    if segment.is_empty() {
        return;
    }
    let uuid = segment.get(32..48).and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; 16]);
    let number = segment.get(48..56).and_then(|bytes| bytes.try_into().ok()).map_or(1, u64::from_le_bytes);
    let name = format!("{number:010}-{}.seg", uuid::Uuid::from_bytes(uuid).as_simple());
    // The first segment may have the same name.
    let Ok(file) = fs.create(&Path::new(DIR).join(name)) else { return };
    let mut at = 0;
    while at < segment.len() {
        at += file.write_at(&segment[at..], at as u64).expect("the simulated disk takes the bytes");
    }
}

/// Computes the checksums of the header and of every frame whose length is within the segment.
fn complete_checksums(segment: &mut [u8]) {
    if segment.len() < HEADER {
        return;
    }
    let sum = crc32c(&segment[..HEADER - 4]);
    segment[HEADER - 4..HEADER].copy_from_slice(&sum.to_le_bytes());
    let identity: [u8; 16] = segment[32..48].try_into().expect("16 bytes");
    let mut at = HEADER;
    while let Some(head) = segment.get(at..at + FRAME) {
        let length = u32::from_le_bytes([head[4], head[5], head[6], 0]) as usize;
        let Some(payload) = segment.get(at + FRAME..at + FRAME + length) else { return };
        let mut tail = [0; 28];
        tail[..16].copy_from_slice(&identity);
        tail[16..20].copy_from_slice(&head[4..8]);
        tail[20..].copy_from_slice(&head[8..16]);
        let sum = crc32c_append(crc32c(payload), &tail);
        segment[at..at + 4].copy_from_slice(&sum.to_le_bytes());
        at += (FRAME + length).next_multiple_of(ALIGN);
    }
}
