//! External lists: versions replace each other for all bundles at once, and what is wrong is refused.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here is a failed test")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use scorer_core::bundle::Digest;
use scorer_core::bundle::testing::{action_recipe, reseal, score_recipe};
use scorer_engine::*;
use scorer_proto::v1::ListRead as RecordedList;
use serde_json::json;
use support::*;

/// Two rules that read the same list, so that a request which saw two versions would fire one of them alone.
const CHECKOUT: &str = r#"
name = "checkout"
decisions = ["decline", "review", "approve"]

[[rules]]
id = "listed"
when = 'int(amount) in list("amounts")'
decision = "decline"

[[rules]]
id = "listed_again"
when = '!(int(amount) in list("amounts")) && amount > 0.0'
floor = 0.2
"#;

const EXEMPTIONS: &str = r#"
name = "exemptions"

[[rules]]
id = "listed"
when = 'int(amount) in list("amounts")'
keep = { exemption = ["none"] }
source = "agreement"
"#;

struct Published {
    path: PathBuf,
    digest: String,
    _directory: tempfile::TempDir,
}

/// What a version states, beside its elements.
struct Stated {
    version: u64,
    elements: Option<u64>,
    kind: &'static str,
    shrinks: bool,
}

fn stated(version: u64) -> Stated {
    Stated { version, elements: None, kind: "int", shrinks: false }
}

fn publish(name: &str, content: &str, stated: &Stated) -> Published {
    let directory = tempfile::tempdir().unwrap();
    let lines = content.lines().filter(|line| !line.is_empty()).count() as u64;
    let manifest = json!({
        "format": 1, "digest": Digest([0; 32]).to_string(), "name": name, "kind": "list",
        "created_at": "2026-11-27T06:00:00Z",
        "list": {
            "type": stated.kind, "version": stated.version, "elements": stated.elements.unwrap_or(lines),
            "published_at_ms": 1_795_000_000_000_i64, "shrinks": stated.shrinks,
        },
        "files": {"elements.txt": {
            "sha256": Digest::of(content.as_bytes()).to_string(), "bytes": content.len(),
        }},
    });
    let blank = manifest.to_string();
    let digest = Digest::of(blank.as_bytes());
    fs::write(directory.path().join("manifest.json"), blank.replace(&"0".repeat(64), &digest.hex())).unwrap();
    fs::write(directory.path().join("elements.txt"), content).unwrap();
    Published { path: directory.path().to_owned(), digest: digest.to_string(), _directory: directory }
}

fn load_at(world: &World, name: &str, published: &Published, minimum: u64) -> Result<ListReport, ListError> {
    let request = ListRequest {
        path: &published.path,
        expected: published.digest.parse().unwrap(),
        name,
        minimum_version: minimum,
        known: false,
        low_priority: false,
    };
    world.engine.lists.load(&request, &world.engine.bundles, &world.engine.events)
}

fn load(world: &World, content: &str, stated: &Stated) -> Result<ListReport, ListError> {
    load_at(world, "amounts", &publish("amounts", content, stated), 0)
}

/// A world with two bundles that read the list `amounts`, with the same salt.
fn listed(minimum: u64) -> World {
    listed_with(minimum, |_| ())
}

fn listed_with(minimum: u64, change: impl FnOnce(&mut serde_json::Value)) -> World {
    let world = empty_world(change);
    let policy = json!({"rule": "squarecb", "gamma": 20.0, "floor": 0.05});
    let fraud = score_recipe("fraud", 0.0).with_rules(CHECKOUT, &[]).with_external("amounts", "int", minimum);
    let action =
        action_recipe("action", 0.0, policy).with_rules(EXEMPTIONS, &[]).with_external("amounts", "int", 0);
    let fraud = world.load(&fraud.build().unwrap());
    let action = world.load(&action.build().unwrap());
    world.engine.lists.rebind(&world.engine.bundles);
    world.publish(1, &fraud, &action);
    world
}

fn fired(world: &World, id: &str, amount: f32) -> (Vec<String>, u32) {
    let answer = world.score(id, amount).unwrap().value;
    let fired = answer.rules.fired().map(|rule| rule.id.clone()).collect();
    (fired, answer.rules.ruled().unwrap().errors)
}

fn status(world: &World) -> ListStatus {
    let mut all = world.engine.lists.status(&world.engine.bundles);
    assert_eq!(all.len(), 1);
    all.remove(0)
}

#[test]
fn rules_that_read_a_list_without_a_version_are_errors() {
    let world = listed(0);
    assert_eq!(fired(&world, "a", 500.0), (vec![], 2));
    let of = status(&world);
    assert_eq!((of.version, of.bundles.len(), of.kind), (0, 2, "int"));
    let record = world.decisions().remove(0).rules.unwrap();
    let expected = RecordedList { name: "amounts".to_owned(), version: 0, digest: vec![] };
    assert_eq!((record.lists, record.errors), (vec![expected], 2));
}

#[test]
fn a_version_replaces_the_one_before_it_for_every_bundle() {
    let world = listed(0);
    let first = load(&world, "500\n600\n", &stated(1)).unwrap();
    assert_eq!((first.version, first.previous, first.elements, first.bundles), (1, 0, 2, 2));
    assert!(!first.already_loaded);
    assert_eq!(fired(&world, "a", 500.0), (vec!["listed".to_owned()], 0));
    assert_eq!(world.select("x", 500.0).unwrap().value.rules.fired().count(), 1);
    // Both bundles have the same salt and share one set.
    let of = status(&world);
    assert_eq!(of.bytes, scorer_rules::KeySet::bytes_for(2) as u64);
    let second = publish("amounts", "600\n700\n", &stated(2));
    let report = load_at(&world, "amounts", &second, 1).unwrap();
    assert_eq!((report.version, report.previous), (2, 1));
    assert_eq!(fired(&world, "b", 500.0), (vec!["listed_again".to_owned()], 0));
    assert_eq!(fired(&world, "c", 700.0), (vec!["listed".to_owned()], 0));
    assert_eq!(world.select("y", 500.0).unwrap().value.rules.fired().count(), 0);
    // The same version again builds nothing.
    assert!(load_at(&world, "amounts", &second, 2).unwrap().already_loaded);
    let of = status(&world);
    assert_eq!((of.version, of.loads, of.digest), (2, 2, second.digest.clone()));
    let digest: Digest = second.digest.parse().unwrap();
    let expected = RecordedList { name: "amounts".to_owned(), version: 2, digest: digest.0.to_vec() };
    let records = world.decisions();
    let of =
        |id: &str| records.iter().find(|record| record.decision_id == id).unwrap().rules.clone().unwrap();
    assert_eq!(of("c").lists, std::slice::from_ref(&expected));
    assert_eq!(of("y").lists, [expected]);
    assert_eq!(of("a").lists[0].version, 1);
}

#[test]
fn a_bundle_that_comes_later_reads_the_version_in_use() {
    let world = listed(0);
    let published = publish("amounts", "500\n", &stated(3));
    load_at(&world, "amounts", &published, 0).unwrap();
    let other = score_recipe("fraud", 0.5).with_rules(CHECKOUT, &[]).with_external("amounts", "int", 0);
    let mut files = other.build().unwrap();
    let text = String::from_utf8(files["manifest.json"].clone()).unwrap();
    // Another salt, so that the set is built again under another key.
    let salted = text.replace("0f0e0d0c0b0a09080706050403020100", "000102030405060708090a0b0c0d0e0f");
    files.insert("manifest.json".to_owned(), salted.into_bytes());
    reseal(&mut files).unwrap();
    let digest = world.load(&files);
    world.engine.lists.rebind(&world.engine.bundles);
    let before = status(&world).bytes;
    let report = load_at(&world, "amounts", &published, 3).unwrap();
    assert_eq!((report.already_loaded, report.bundles), (false, 3));
    assert_eq!(status(&world).bytes, 2 * before);
    let loaded = world.engine.bundles.get(&digest.parse().unwrap()).unwrap();
    assert_eq!(world.engine.lists.of(&loaded).unwrap().read[0].version, 3);
    drop(loaded);
    // Its set is released with it.
    world.engine.bundles.unload(&digest.parse().unwrap());
    world.engine.lists.rebind(&world.engine.bundles);
    assert_eq!((status(&world).bytes, status(&world).bundles.len()), (before, 2));
}

#[test]
fn a_version_below_the_bundle_s_minimum_counts_as_not_loaded() {
    let world = listed(2);
    load(&world, "500\n", &stated(1)).unwrap();
    assert_eq!(fired(&world, "a", 500.0), (vec![], 2));
    let of = status(&world);
    assert_eq!((of.version, of.bundles.len(), of.unfit.len()), (1, 2, 1));
    load(&world, "500\n", &stated(2)).unwrap();
    assert_eq!(fired(&world, "b", 500.0), (vec!["listed".to_owned()], 0));
    assert!(status(&world).unfit.is_empty());
}

#[test]
fn what_is_wrong_is_refused_and_the_version_in_use_stays() {
    let world = listed(0);
    let content = "1\n2\n3\n500\n";
    load(&world, content, &stated(5)).unwrap();
    let refused = |published: &Published, minimum, reason: ListRefusal, why: &str| {
        let error = load_at(&world, "amounts", published, minimum).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
        assert_eq!(error.refusal(), reason, "{error}");
    };
    let changed = |file: &str, content: &str| {
        let published = publish("amounts", "1\n2\n3\n", &stated(6));
        fs::write(published.path.join(file), content).unwrap();
        published
    };
    let of = |content: &str, stated: &Stated| publish("amounts", content, stated);
    refused(&of(content, &stated(4)), 0, ListRefusal::Version, "version 4 is older than version 5");
    refused(&of("1\n2\n3\n4\n", &stated(5)), 0, ListRefusal::Version, "version 5 is in use as");
    refused(&of(content, &stated(6)), 7, ListRefusal::Version, "older than version 7");
    refused(&of("1\n", &stated(6)), 0, ListRefusal::Plausibility, "fewer than half of the 4 in use");
    refused(&of("", &stated(6)), 0, ListRefusal::Plausibility, "0 elements");
    let text = Stated { kind: "string", ..stated(6) };
    refused(&of(content, &text), 0, ListRefusal::Plausibility, "of type string");
    refused(&of("1\nx\n3\n", &stated(6)), 0, ListRefusal::Content, "line 2 of its file is not an int");
    for elements in [3, 5] {
        let wrong = Stated { elements: Some(elements), ..stated(6) };
        refused(&of("10\n20\n30\n40\n", &wrong), 0, ListRefusal::Content, "the manifest states");
    }
    refused(&changed("elements.txt", "1\n2\n4\n"), 0, ListRefusal::Content, "the manifest states sha256:");
    refused(&changed("elements.txt", "1\n2\n"), 0, ListRefusal::Content, "4 bytes, the manifest states 6");
    refused(&changed("elements.txt", "1\n2\n3\n4\n"), 0, ListRefusal::Content, "more than the limit");
    refused(&changed("manifest.json", "{"), 0, ListRefusal::Content, "publish the list again");
    refused(&publish("other", content, &stated(6)), 0, ListRefusal::Content, "list \"amounts\"");
    let gone = of(content, &stated(6));
    fs::remove_file(gone.path.join("elements.txt")).unwrap();
    refused(&gone, 0, ListRefusal::Content, "missing");
    assert_eq!(fired(&world, "a", 500.0), (vec!["listed".to_owned()], 0));
    let state = status(&world);
    assert_eq!((state.version, state.loads), (5, 1));
    assert_eq!(state.refused, [("content", 9), ("plausibility", 3), ("version", 3)].into());
    // A version that states that it shrinks is accepted.
    let shrinks = Stated { shrinks: true, ..stated(6) };
    load(&world, "500\n", &shrinks).unwrap();
    assert_eq!(status(&world).elements, 1);
}

#[test]
fn a_version_that_does_not_fit_the_memory_is_refused() {
    let budget = resident().unwrap() + (1 << 30);
    let world = listed_with(0, |settings| settings["memory_budget_bytes"] = budget.into());
    load(&world, "500\n", &stated(1)).unwrap();
    // The memory is checked before the file is read, so the file need not have these elements.
    let published = publish("amounts", "", &stated(2));
    let manifest = fs::read_to_string(published.path.join("manifest.json")).unwrap();
    let mut manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    manifest["list"]["elements"] = 100_000_000.into();
    manifest["files"]["elements.txt"]["bytes"] = 200_000_000.into();
    manifest["digest"] = Digest([0; 32]).to_string().into();
    let (blank, zeros) = (manifest.to_string(), "0".repeat(64));
    let digest = Digest::of(blank.as_bytes());
    fs::write(published.path.join("manifest.json"), blank.replace(&zeros, &digest.hex())).unwrap();
    let published = Published { digest: digest.to_string(), ..published };
    let error = load_at(&world, "amounts", &published, 0).unwrap_err();
    assert!(error.to_string().contains("takes 2048 MiB"), "{error}");
    assert_eq!((error.refusal(), status(&world).version), (ListRefusal::Memory, 1));
}

/// A request takes its lists once: while versions alternate, exactly one of two opposite rules fires.
#[test]
fn a_request_sees_one_version() {
    let world = listed(0);
    load(&world, "500\n", &stated(1)).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for version in 2..400 {
                let content = if version % 2 == 0 { "501\n" } else { "500\n" };
                load(&world, content, &stated(version)).unwrap();
            }
            stop.store(true, Relaxed);
        });
        let mut seen = [0_u32; 2];
        let mut number = 0_u32;
        while !stop.load(Relaxed) || number < 100 {
            number += 1;
            let rows = DenseRows(2, [500.0, 501.0].iter().flat_map(|amount| [*amount, 0.0, 0.0]).collect());
            let query = BatchQuery { checkpoint: FRAUD, request_id: format!("b{number}"), entity: "", rows };
            let batch = world.run(world.engine.score_batch(&now(), query)).unwrap().value;
            // Bundles that come and go meanwhile do not disturb loads.
            world.engine.lists.rebind(&world.engine.bundles);
            let listed = |ruled: &Ruled| ruled.fired(&batch.shape).any(|rule| rule.id == "listed");
            let fired: Vec<bool> = batch.ruled.iter().map(listed).collect();
            // The two rows are listed in turn, so that equal results would mean two versions.
            assert_ne!(fired[0], fired[1], "request {number}");
            seen[usize::from(fired[0])] += 1;
        }
        assert!(number >= 100 && seen.iter().sum::<u32>() == number);
    });
    assert_eq!(status(&world).loads, 399);
}

#[test]
fn verification_reads_everything_but_the_signature() {
    let published = publish("amounts", "1\n2\n", &stated(1));
    assert_eq!(verify_list(&published.path).unwrap().to_string(), published.digest);
    fs::write(published.path.join("elements.txt"), "1\n3\n").unwrap();
    assert!(verify_list(&published.path).unwrap_err().to_string().contains("publish the list again"));
    assert!(verify_list(Path::new("/nowhere")).is_err());
}
