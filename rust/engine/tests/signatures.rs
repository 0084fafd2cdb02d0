//! Signed bundles: which ones the engine refuses, and that answers continue.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here is a failed test")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use scorer_core::bundle::testing::{self, Files};
use scorer_core::bundle::{Digest, MANIFEST, SIGNATURE};
use scorer_engine::*;
use scorer_log::{Env, RealClock};
use scorer_signing::{PrivateKey, Trust};
use serde_json::{Value, json};
use support::FRAUD;

/// An engine that trusts one key, and a signed live bundle.
struct Signing {
    engine: Arc<Engine>,
    key: PrivateKey,
    keys: PathBuf,
    live: Digest,
    directory: tempfile::TempDir,
}

fn key() -> PrivateKey {
    PrivateKey::from_pem(&PrivateKey::generate_pem().unwrap()).unwrap()
}

fn signing() -> Signing {
    let directory = tempfile::tempdir().unwrap();
    let (keys, key) = (directory.path().join("keys"), key());
    fs::create_dir(&keys).unwrap();
    fs::write(keys.join("release.pem"), key.public(None).unwrap().to_pem()).unwrap();
    let config = EngineConfig {
        checkpoints: serde_json::from_value(json!({FRAUD: {"kind": "score", "p99_ms": 60_000.0}})).unwrap(),
        trust: Trust { trusted_keys: vec![keys.clone()], unsigned: None },
        ..EngineConfig::default()
    };
    let events = Arc::new(Events::new(Arc::new(RealClock::default())));
    let engine = Engine::new(&config, Env::real(), events, Arc::new(()), Instant::now()).unwrap();
    let mut world = Signing { engine, key, keys, live: Digest([0; 32]), directory };
    let (path, digest) = world.write("live", &testing::score_files("fraud", 0.0));
    world.sign(&path, &digest, 7);
    world.load(&path, digest).unwrap();
    let table = json!({"version": 1, "checkpoints": {
        FRAUD: [{"name": "live", "bundle": digest.to_string(), "share": 1.0}]}});
    let table = LaneTable::from_json(&table.to_string()).unwrap();
    world.engine.publish(world.engine.compile(&table).unwrap());
    world.live = digest;
    world
}

impl Signing {
    fn write(&self, name: &str, files: &Files) -> (PathBuf, Digest) {
        let path = self.directory.path().join(name);
        fs::create_dir_all(&path).unwrap();
        for (name, bytes) in files {
            fs::write(path.join(name), bytes).unwrap();
        }
        let manifest: Value = serde_json::from_slice(&files[MANIFEST]).unwrap();
        (path, manifest["digest"].as_str().unwrap().parse().unwrap())
    }

    fn sign(&self, path: &Path, digest: &Digest, release: u64) {
        self.sign_by(path, digest, release, &self.key);
    }

    fn sign_by(&self, path: &Path, digest: &Digest, release: u64, key: &PrivateKey) {
        let key = std::slice::from_ref(key);
        let text = scorer_signing::sign("fraud", digest, release, key, SystemTime::now()).unwrap();
        fs::write(path.join(SIGNATURE), text).unwrap();
    }

    fn load(&self, path: &Path, digest: Digest) -> Result<LoadReport, LoadError> {
        self.load_as(path, digest, &Vetting::default())
    }

    fn load_as(&self, path: &Path, expected: Digest, vetting: &Vetting) -> Result<LoadReport, LoadError> {
        let request = LoadRequest { path, expected, vetting, live: None, low_priority: false };
        self.engine.bundles.load(&request, &|| 0, &self.engine.events)
    }

    /// Asserts that the load is refused in one line with this text, that nothing was loaded, and that the
    /// live bundle answers.
    fn refuses(&self, path: &Path, digest: Digest, words: &str) {
        let error = self.load(path, digest).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(words) && !text.contains('\n'), "{words:?} not in {text:?}");
        let loaded: Vec<_> = self.engine.bundles.all().iter().map(|loaded| loaded.digest).collect();
        assert_eq!(loaded, [self.live]);
        let checkpoint = self.engine.checkpoints.find(FRAUD).unwrap().index;
        assert_eq!(self.engine.lanes().main(checkpoint).unwrap().digest, self.live);
    }
}

fn candidate() -> Files {
    testing::score_files("fraud", 0.25)
}

#[test]
fn a_signed_bundle_is_loaded_and_its_release_is_reported() {
    let world = signing();
    let (path, digest) = world.write("candidate", &candidate());
    world.sign(&path, &digest, 8);
    let signed = world.load(&path, digest).unwrap().signed.unwrap();
    assert_eq!((signed.name.as_str(), signed.release, signed.key), ("fraud", 8, world.key.id()));
}

/// Fault case 55.
#[test]
fn missing_foreign_and_copied_signatures_are_refused() {
    let world = signing();
    let (path, digest) = world.write("candidate", &candidate());
    world.refuses(&path, digest, "it has no signature.json");
    world.sign_by(&path, &digest, 8, &key());
    world.refuses(&path, digest, "which is not trusted here");
    fs::copy(world.directory.path().join("live").join(SIGNATURE), path.join(SIGNATURE)).unwrap();
    world.refuses(&path, digest, "its signature is of bundle sha256:");
    fs::write(path.join(SIGNATURE), "{\"payloadType\":").unwrap();
    world.refuses(&path, digest, "it is no signature envelope");
    fs::remove_file(path.join(SIGNATURE)).unwrap();
    std::os::unix::fs::symlink(world.directory.path().join("live").join(SIGNATURE), path.join(SIGNATURE))
        .unwrap();
    world.refuses(&path, digest, "a symbolic link");
    fs::remove_file(path.join(SIGNATURE)).unwrap();
    let expired = world.key.public(Some("2020-01-01T00:00:00Z")).unwrap();
    fs::write(world.keys.join("release.pem"), expired.to_pem()).unwrap();
    world.sign(&path, &digest, 8);
    world.refuses(&path, digest, "which expired on 2020-01-01T00:00:00Z");
}

/// Fault case 55.
#[test]
fn a_manifest_with_fewer_or_more_files_than_the_signed_one_is_refused() {
    let world = signing();
    let more = candidate();
    let (path, digest) = world.write("candidate", &more);
    world.sign(&path, &digest, 8);
    fs::write(path.join("calibration.json"), "{}").unwrap();
    world.refuses(&path, digest, "calibration.json");
    fs::remove_file(path.join("calibration.json")).unwrap();
    let listing = |change: &dyn Fn(&mut serde_json::Map<String, Value>)| {
        let mut manifest: Value = serde_json::from_slice(&more[MANIFEST]).unwrap();
        change(manifest["files"].as_object_mut().unwrap());
        fs::write(path.join(MANIFEST), manifest.to_string()).unwrap();
    };
    listing(&|files| drop(files.remove("reference.json")));
    world.refuses(&path, digest, "digest");
    listing(&|files| {
        let entry = files["reference.json"].clone();
        files.insert("overlay.json".to_owned(), entry);
    });
    world.refuses(&path, digest, "digest");
    // The manifest is sealed again without the key and loaded under its new digest.
    let mut resealed = candidate();
    let mut manifest: Value = serde_json::from_slice(&resealed[MANIFEST]).unwrap();
    manifest["lineage"]["run_id"] = json!("forged");
    resealed.insert(MANIFEST.to_owned(), manifest.to_string().into_bytes());
    testing::reseal(&mut resealed).unwrap();
    let (forged_path, forged) = world.write("forged", &resealed);
    fs::copy(path.join(SIGNATURE), forged_path.join(SIGNATURE)).unwrap();
    world.refuses(&forged_path, forged, "its signature is of bundle sha256:");
}

/// Fault case 57.
#[test]
fn an_older_release_is_refused_also_when_it_is_in_memory() {
    let world = signing();
    let (path, digest) = world.write("candidate", &candidate());
    world.sign(&path, &digest, 8);
    world.load(&path, digest).unwrap();
    let floors = [("fraud".to_owned(), 8)].into();
    let vetting = Vetting { floors, ..Vetting::default() };
    let live = world.directory.path().join("live");
    let error = world.load_as(&live, world.live, &vetting).unwrap_err();
    assert_eq!(error.reason(), LoadErrorKind::Signature);
    assert!(
        error.to_string().contains("it is release 7 of \"fraud\", and release 8 has been served"),
        "{error}"
    );
    assert!(world.load_as(&live, world.live, &Vetting::default()).unwrap().already_loaded);
}
