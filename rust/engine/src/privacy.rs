//! The rules for storing data of requests: card numbers are refused or replaced, entities are stored as keyed
//! pseudonyms, and sensitive features are masked or encrypted.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use scorer_core::schema::FeatureSpec;
use scorer_privacy::{ENTITY, KeyError, Pseudonyms, PublicKey, SealError, Sealer, card};
use scorer_proto::v1::DecisionRecord;
use serde::{Deserialize, Serialize};

use crate::rejection::Rejection;
use crate::sensitive::{self, FeatureRule, FeatureRules, Sensitive};

/// The purpose of a card number's pseudonym.
const CARD: &str = "card";
/// Prefix of the replacement of a card number.
const CARD_PREFIX: &str = "card:";
/// Number of hexadecimal digits of the pseudonym in the replacement, so that ids stay short.
const CARD_DIGITS: usize = 16;
/// Limit on the length of a key of an entity, in bytes.
const MAX_KEY: usize = 128;
/// The purpose to which encrypted features are bound.
const SEALED_FOR: &[u8] = b"scorer decision log: sensitive features";
/// Time for which one ephemeral key is used. During this time, access to the memory of the process is enough to decrypt
/// the features that the key encrypted.
const EPHEMERAL_FOR: Duration = Duration::from_secs(3600);

/// The settings of the privacy rules.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PrivacyConfig {
    /// The treatment of text that contains a card number.
    #[serde(default)]
    pub card_numbers: CardRule,
    /// How entities are stored.
    #[serde(default)]
    pub entities: EntityRule,
    /// File of the key of the pseudonyms.
    #[serde(default)]
    pub key_file: Option<PathBuf>,
    /// How the values of features are stored.
    #[serde(default)]
    pub features: FeatureRules,
    /// File of the public key to which features are encrypted.
    #[serde(default)]
    pub public_key_file: Option<PathBuf>,
}

/// The treatment of text that contains a card number.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum CardRule {
    /// The request is refused.
    #[default]
    Refuse,
    /// The card number is replaced by a keyed pseudonym.
    Mask,
    /// Text is not checked for card numbers.
    Off,
}

/// How entities are stored.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum EntityRule {
    /// Entities are stored as keyed pseudonyms.
    Hash,
    /// Entities are stored as they are sent.
    #[default]
    Clear,
}

/// The reason why the rules cannot be applied.
#[derive(Debug, thiserror::Error)]
pub enum PrivacyError {
    /// The key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A rule needs a key, and no key file is configured.
    #[error("privacy: {0} needs a key; name a file in key_file")]
    NoKey(&'static str),
    /// Features must be encrypted, and no public key file is configured.
    #[error("privacy: features are marked \"encrypt\"; name the reader's public key in public_key_file")]
    NoPublicKey,
    /// The public key cannot be used for encryption.
    #[error("privacy: public_key_file: {0}")]
    Seal(#[from] SealError),
}

/// The effective rules, and counters of their use.
#[derive(Debug, Default)]
pub struct Privacy {
    cards: CardRule,
    entities: EntityRule,
    pseudonyms: Option<Pseudonyms>,
    features: FeatureRules,
    seal: Option<Seal>,
    /// Requests refused for a card number.
    pub refused: AtomicU64,
    /// Texts in which a card number was replaced.
    pub masked: AtomicU64,
    /// Records whose values were masked because they could not be encrypted.
    pub unsealed: AtomicU64,
}

/// Encrypts sensitive features with ephemeral keys, which are replaced regularly.
#[derive(Debug)]
struct Seal {
    reader: PublicKey,
    current: ArcSwap<Sealer>,
    since: Mutex<Instant>,
}

// === impl Privacy ===

impl Privacy {
    /// Reads the keys and applies the settings.
    ///
    /// # Errors
    /// Fails if a key cannot be used, or a rule needs a key and there is none.
    pub fn new(config: &PrivacyConfig) -> Result<Privacy, PrivacyError> {
        let pseudonyms = config.key_file.as_deref().map(Pseudonyms::from_file).transpose()?;
        if pseudonyms.is_none() {
            if config.entities == EntityRule::Hash {
                return Err(PrivacyError::NoKey("entities = \"hash\""));
            }
            if config.card_numbers == CardRule::Mask {
                return Err(PrivacyError::NoKey("card_numbers = \"mask\""));
            }
        }
        let seal = config.public_key_file.as_deref().map(Seal::from_file).transpose()?;
        if seal.is_none() && config.features.values().any(|rule| *rule == FeatureRule::Encrypt) {
            return Err(PrivacyError::NoPublicKey);
        }
        Ok(Privacy {
            cards: config.card_numbers,
            entities: config.entities,
            pseudonyms,
            features: config.features.clone(),
            seal,
            refused: AtomicU64::new(0),
            masked: AtomicU64::new(0),
            unsealed: AtomicU64::new(0),
        })
    }

    /// Masks or encrypts the sensitive values of a record before it is stored. `scratch` is working memory.
    pub fn withhold(&self, sensitive: &Sensitive, record: &mut DecisionRecord, scratch: &mut Vec<u8>) {
        let sealer = self.seal.as_ref().map(|seal| seal.current.load());
        if sensitive.withhold(record, sealer.as_deref().map(|sealer| &**sealer), scratch).is_err() {
            self.unsealed.fetch_add(1, Relaxed);
        }
    }

    /// Replaces the ephemeral key of encrypted features if it has been in use for an hour.
    pub fn renew(&self, now: Instant) {
        if let Some(seal) = &self.seal {
            seal.renew(now);
        }
    }

    /// Returns the names of features in the rules that none of these features has.
    pub(crate) fn unknown_features<'a>(
        &'a self,
        features: impl Iterator<Item = &'a FeatureSpec>,
    ) -> Vec<&'a str> {
        sensitive::unknown(&self.features, features)
    }

    /// Applies the rule for card numbers to an id.
    ///
    /// # Errors
    /// Fails if the id contains a card number and the rule refuses it.
    pub(crate) fn id(&self, field: &'static str, id: String) -> Result<String, Rejection> {
        match self.text(field, &id)? {
            Cow::Borrowed(_) => Ok(id),
            Cow::Owned(masked) => Ok(masked),
        }
    }

    /// Returns the form in which an entity is stored.
    ///
    /// # Errors
    /// Fails if the entity contains a card number and the rule refuses it.
    pub(crate) fn entity<'a>(&self, entity: &'a str) -> Result<Cow<'a, str>, Rejection> {
        let entity = self.text("entity", entity)?;
        Ok(self.pseudonym(entity))
    }

    /// Returns the pseudonym of an entity if entities are stored under pseudonyms.
    fn pseudonym<'a>(&self, entity: Cow<'a, str>) -> Cow<'a, str> {
        match &self.pseudonyms {
            Some(pseudonyms) if self.entities == EntityRule::Hash && !entity.is_empty() => {
                Cow::Owned(pseudonyms.of(ENTITY, &entity))
            }
            _ => entity,
        }
    }

    /// Returns the form in which the key of an entity is stored. The same key has the same form as
    /// [`Privacy::entity`] gives it.
    ///
    /// # Errors
    /// Fails if the key is too long, or contains a card number and the rule refuses it.
    pub fn key<'a>(&self, key: &'a str) -> Result<Cow<'a, str>, Rejection> {
        if key.len() > MAX_KEY {
            return Err(Rejection::TooLong { field: "keys", bytes: key.len(), max: MAX_KEY });
        }
        let key = self.text("keys", key)?;
        Ok(self.pseudonym(key))
    }

    /// Applies the rule for card numbers to the text of a field.
    ///
    /// # Errors
    /// Fails if the text contains a card number and the rule refuses it.
    pub fn text<'a>(&self, field: &'static str, text: &'a str) -> Result<Cow<'a, str>, Rejection> {
        if self.cards == CardRule::Off || !card::is_in(text) {
            return Ok(Cow::Borrowed(text));
        }
        match &self.pseudonyms {
            Some(pseudonyms) if self.cards == CardRule::Mask => {
                self.masked.fetch_add(1, Relaxed);
                Ok(Cow::Owned(card::replace(text, |digits| {
                    let mut pseudonym = pseudonyms.of(CARD, digits);
                    pseudonym.truncate(CARD_DIGITS);
                    format!("{CARD_PREFIX}{pseudonym}")
                })))
            }
            _ => Err(self.refuse(field)),
        }
    }

    /// Refuses text with a card number in a field whose value cannot be replaced, because the value itself has a
    /// meaning.
    ///
    /// # Errors
    /// Fails if the text contains a card number.
    pub fn plain(&self, field: &'static str, text: &str) -> Result<(), Rejection> {
        if self.cards != CardRule::Off && card::is_in(text) { Err(self.refuse(field)) } else { Ok(()) }
    }

    /// Refuses a number whose decimal digits are a card number.
    ///
    /// # Errors
    /// Fails if the number is a card number.
    pub fn number(&self, field: &'static str, value: f64) -> Result<(), Rejection> {
        if self.cards != CardRule::Off && card::is_number(value) { Err(self.refuse(field)) } else { Ok(()) }
    }

    fn refuse(&self, field: &'static str) -> Rejection {
        self.refused.fetch_add(1, Relaxed);
        Rejection::CardNumber { field }
    }
}

// === impl Seal ===

impl Seal {
    fn from_file(path: &Path) -> Result<Seal, PrivacyError> {
        let reader = PublicKey::from_file(path)?;
        let current = ArcSwap::from_pointee(Sealer::new(&reader, SEALED_FOR)?);
        Ok(Seal { reader, current, since: Mutex::new(Instant::now()) })
    }

    fn renew(&self, now: Instant) {
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_duration_since(*since) < EPHEMERAL_FOR {
            return;
        }
        // If the system provides no randomness, the previous key stays in use.
        if let Ok(sealer) = Sealer::new(&self.reader, SEALED_FOR) {
            self.current.store(Arc::new(sealer));
            *since = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CARD_NUMBER: &str = "4111 1111 1111 1111";

    fn privacy(card_numbers: CardRule, entities: EntityRule) -> Privacy {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        std::fs::write(&path, "0123456789abcdef0123456789abcdef").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&path, mode).unwrap();
        Privacy::new(&PrivacyConfig {
            card_numbers,
            entities,
            key_file: Some(path),
            ..PrivacyConfig::default()
        })
        .unwrap()
    }

    #[test]
    fn a_card_number_is_refused_by_the_name_of_its_field_alone() {
        let privacy = privacy(CardRule::Refuse, EntityRule::Clear);
        let error = privacy.entity(CARD_NUMBER).unwrap_err().to_string();
        assert!(error.starts_with("entity: ") && !error.contains("4111"), "{error}");
        assert!(privacy.number("value", 4_111_111_111_111_111.0).is_err());
        assert!(privacy.plain("kind", CARD_NUMBER).is_err());
        assert_eq!(privacy.refused.load(Relaxed), 3);
        assert_eq!(privacy.entity("customer-1").unwrap(), "customer-1");
        assert_eq!(privacy.id("request_id", "order-1".to_owned()).unwrap(), "order-1");
    }

    #[test]
    fn a_masked_card_number_names_the_same_id_in_every_form() {
        let privacy = privacy(CardRule::Mask, EntityRule::Clear);
        let ids = [CARD_NUMBER, "4111111111111111", "4111-1111-1111-1111"]
            .map(|id| privacy.id("request_id", format!("pay/{id}")).unwrap());
        assert!(ids[0].starts_with("pay/card:") && ids[0].len() == 25, "{}", ids[0]);
        assert!(ids.iter().all(|id| *id == ids[0]));
        assert_eq!(privacy.id("request_id", ids[0].clone()).unwrap(), ids[0], "masked once");
        assert_eq!(privacy.masked.load(Relaxed), 3);
        assert!(privacy.plain("kind", CARD_NUMBER).is_err(), "a kind has no other name");
    }

    #[test]
    fn an_entity_is_stored_under_its_pseudonym() {
        let privacy = privacy(CardRule::Refuse, EntityRule::Hash);
        let stored = privacy.entity("customer-1").unwrap();
        assert_eq!(stored, "b21b96651b4e01a7d93c311e78e5e7ac");
        assert_eq!(privacy.entity("").unwrap(), "", "no entity stays none");
    }

    #[test]
    fn a_rule_without_its_key_is_refused() {
        for (card_numbers, entities) in
            [(CardRule::Mask, EntityRule::Clear), (CardRule::Refuse, EntityRule::Hash)]
        {
            let config = PrivacyConfig { card_numbers, entities, ..PrivacyConfig::default() };
            assert!(Privacy::new(&config).unwrap_err().to_string().contains("key_file"));
        }
        assert!(Privacy::new(&PrivacyConfig::default()).unwrap().entity(CARD_NUMBER).is_err());
    }

    #[test]
    fn an_ephemeral_key_is_replaced_after_an_hour() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("reader.pub");
        let pem = "-----BEGIN PUBLIC KEY-----\n\
            MCowBQYDK2VuAyEAj0DFrbaPJWJK5bIU6nZ6bslNgp09e14a0bpvPiE4KF8=\n-----END PUBLIC KEY-----\n";
        std::fs::write(&path, pem).unwrap();
        let rules = FeatureRules::from([("income".to_owned(), FeatureRule::Encrypt)]);
        let config = PrivacyConfig { features: rules.clone(), ..PrivacyConfig::default() };
        assert!(Privacy::new(&config).unwrap_err().to_string().contains("public_key_file"));
        let privacy = Privacy::new(&PrivacyConfig { public_key_file: Some(path), ..config }).unwrap();
        let income = serde_json::json!([{"name": "income", "type": "number"}]);
        let features: Vec<FeatureSpec> = serde_json::from_value(income).unwrap();
        let sensitive = Sensitive::of(&features, &rules);
        let sealed = || {
            let mut record = DecisionRecord { features: vec![1.0], ..DecisionRecord::default() };
            privacy.withhold(&sensitive, &mut record, &mut Vec::new());
            assert!(record.features[0].is_nan() && record.withheld == [0]);
            let sealed = record.sealed.unwrap();
            (sealed.encapsulated_key, sealed.number, sealed.ciphertext.len(), sealed.key_id)
        };
        let (first, number, length, key_id) = sealed();
        assert_eq!((number, length, key_id), (0, 4 + 16, 0xeedd_883d_a0a9_4515));
        privacy.renew(Instant::now());
        assert_eq!((&sealed().0, sealed().1), (&first, 2));
        privacy.renew(Instant::now() + EPHEMERAL_FOR);
        let (second, number, ..) = sealed();
        assert!(second != first && number == 0);
        assert_eq!(privacy.unsealed.load(Relaxed), 0);
    }
}
