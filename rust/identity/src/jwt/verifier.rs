//! Verifies tokens by the issuer's keys, which are read from a file at an interval.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{fs, io};

use arc_swap::ArcSwap;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::cache::Cache;
use super::claims::{Claims, Header};
use super::config::{Algorithm, JwtConfig};
use super::keys::KeySet;
use crate::error::{IdentityError, Unauthenticated};
use crate::grants::{Access, Grants};
use crate::principal::Principal;
use crate::tls::Reloaded;

/// The largest key set, in bytes.
const MAX_KEYS_BYTES: u64 = 1 << 20;

/// The state of the issuer's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeysState {
    /// Seconds since the file was written.
    pub age_s: u64,
    /// Whether every token is refused because the keys are older than allowed or were never read.
    pub expired: bool,
}

/// Verifies tokens.
pub struct Tokens {
    config: JwtConfig,
    keys: ArcSwap<Current>,
    cache: Cache,
    seen: Mutex<Option<Result<Vec<u8>, IdentityError>>>,
    /// How many signatures were verified, including those that were not valid.
    verified: AtomicU64,
    generation: AtomicU64,
}

struct Current {
    /// `None` until a set was read successfully.
    keys: Option<KeySet>,
    written: SystemTime,
    generation: u64,
}

// === impl Tokens ===

impl Tokens {
    /// Creates a verifier without keys. Their file need not exist yet; every token is refused until it was read.
    #[must_use]
    pub fn new(config: JwtConfig) -> Tokens {
        Tokens {
            cache: Cache::new(config.cache_tokens),
            keys: ArcSwap::from_pointee(Current { keys: None, written: UNIX_EPOCH, generation: 0 }),
            seen: Mutex::new(None),
            verified: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            config,
        }
    }

    /// Reads the file of keys again. If it cannot be read, the set in use stays in use.
    pub fn reload(&self) -> Reloaded {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let read = self.read();
        let (bytes, written) = match read {
            Ok(read) => read,
            Err(error) => {
                let error = IdentityError::Read {
                    what: "jwt keys",
                    path: self.config.keys.clone(),
                    error: error.to_string(),
                };
                let result = Err(error.clone());
                return if seen.replace(result.clone()) == Some(result) {
                    Reloaded::Unchanged
                } else {
                    Reloaded::Rejected(error)
                };
            }
        };
        let same = seen.as_ref() == Some(&Ok(bytes.clone()));
        let current = self.keys.load();
        if same && current.written == written {
            return Reloaded::Unchanged;
        }
        let parsed = KeySet::from_json(&bytes);
        *seen = Some(Ok(bytes));
        match parsed {
            Ok(keys) => {
                // If the keys are the same, the verified tokens stay valid.
                let generation =
                    if same { current.generation } else { self.generation.fetch_add(1, AcqRel) + 1 };
                self.keys.store(Arc::new(Current { keys: Some(keys), written, generation }));
                if same { Reloaded::Unchanged } else { Reloaded::Replaced }
            }
            Err(_) if same => Reloaded::Unchanged,
            Err(problem) => Reloaded::Rejected(IdentityError::file("jwt keys", &self.config.keys, problem)),
        }
    }

    fn read(&self) -> io::Result<(Vec<u8>, SystemTime)> {
        let metadata = fs::metadata(&self.config.keys)?;
        if !metadata.is_file() || metadata.len() > MAX_KEYS_BYTES {
            return Err(io::Error::other(format!("it is no file of at most {MAX_KEYS_BYTES} bytes")));
        }
        Ok((fs::read(&self.config.keys)?, metadata.modified()?))
    }

    /// The current state of the keys.
    pub fn keys(&self) -> KeysState {
        let current = self.keys.load();
        let age = SystemTime::now().duration_since(current.written).unwrap_or_default();
        KeysState { age_s: age.as_secs(), expired: current.keys.is_none() || self.is_old(age) }
    }

    fn is_old(&self, age: Duration) -> bool {
        self.config.max_age_s.is_some_and(|most| age > Duration::from_secs(most))
    }

    /// How many signatures were verified so far. A token from the cache does not count.
    pub fn verified(&self) -> u64 {
        self.verified.load(Relaxed)
    }

    /// The interval at which to call [`Tokens::reload`].
    pub fn reload_interval(&self) -> Duration {
        Duration::from_millis(self.config.reload_ms)
    }

    /// The principal of a token, with its roles.
    ///
    /// # Errors
    /// The token is not accepted.
    pub fn access(&self, token: &str, grants: &Grants) -> Result<Arc<Access>, Unauthenticated> {
        self.access_at(token, grants, SystemTime::now()).map_err(Unauthenticated::Token)
    }

    pub(super) fn access_at(
        &self,
        token: &str,
        grants: &Grants,
        now: SystemTime,
    ) -> Result<Arc<Access>, &'static str> {
        if token.len() > self.config.max_bytes {
            return Err("it is longer than the server accepts");
        }
        let current = self.keys.load();
        let keys = current.keys.as_ref().ok_or("the server has no keys of the issuer yet")?;
        if self.is_old(now.duration_since(current.written).unwrap_or_default()) {
            return Err("the server's keys of the issuer are too old; the issuer cannot be reached");
        }
        let (key, clock) = (self.cache.key(token), Instant::now());
        if let Some(access) = self.cache.find(key, current.generation, clock) {
            return Ok(access);
        }
        let seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let (principal, ends) = self.verify(token, keys, seconds)?;
        let access = Arc::new(grants.of(principal));
        let kept = Duration::from_secs_f64((ends - seconds).clamp(0.0, self.config.cache_s as f64));
        if !kept.is_zero() {
            self.cache.keep(key, current.generation, &access, clock + kept);
        }
        Ok(access)
    }

    /// Verifies a token; returns its principal and the second at which it expires.
    fn verify(&self, token: &str, keys: &KeySet, now: f64) -> Result<(Principal, f64), &'static str> {
        const FORM: &str = "it does not have the form header.payload.signature";
        let (signed, signature) = token.rsplit_once('.').ok_or(FORM)?;
        let (header, payload) = signed.split_once('.').ok_or(FORM)?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| FORM);
        let header: Header =
            serde_json::from_slice(&decode(header)?).map_err(|_| "its header is malformed")?;
        if header.crit.is_some() || header.b64.is_some() {
            return Err("its header needs an extension (crit, b64)");
        }
        let algorithm = Algorithm::of(&header.alg)
            .filter(|algorithm| self.config.algorithms.contains(algorithm))
            .ok_or("its algorithm (alg) is not among those accepted")?;
        let (payload, signature) = (decode(payload)?, decode(signature)?);
        self.verified.fetch_add(1, Relaxed);
        keys.verify(header.kid.as_deref(), algorithm, signed.as_bytes(), &signature)?;
        let claims: Claims = serde_json::from_slice(&payload)
            .map_err(|_| "its claims are malformed, missing or given twice")?;
        let ends =
            claims.check(&self.config.issuer, &self.config.audience, now, self.config.leeway_s as f64)?;
        Ok((Principal::of_subject(&claims.sub)?, ends))
    }

    /// The number of the key set in use; each replacement increases it.
    pub fn generation(&self) -> u64 {
        self.generation.load(Acquire)
    }

    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.cache.len()
    }
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokens").field("config", &self.config).finish_non_exhaustive()
    }
}
