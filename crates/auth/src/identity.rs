//! Names that are derived: the server id (an nkey) and the eight-character hash of a name.

use nkeys::{KeyPair, KeyPairType};
use sha2::{Digest, Sha256};

/// The key pair whose public part is the server's id (`N…`, 56 characters, base32 of an ed25519 public key).
pub struct ServerKey {
    pair: KeyPair,
    public: String,
}

impl ServerKey {
    /// The key of this seed of 32 random bytes; the same seed gives the same id.
    ///
    /// # Errors
    /// [`ServerKeyError`] if the key library refuses the seed.
    pub fn from_seed(random: [u8; 32]) -> Result<Self, ServerKeyError> {
        let pair = KeyPair::new_from_raw(KeyPairType::Server, random).map_err(|_| ServerKeyError)?;
        let public = pair.public_key();
        Ok(Self { pair, public })
    }

    /// The server id, as it stands in INFO, logs and events.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.public
    }

    /// The ed25519 signature (64 bytes) of `input` by the server's key.
    ///
    /// # Errors
    /// [`ServerKeyError`] if the key library refuses to sign.
    pub fn sign(&self, input: &[u8]) -> Result<Vec<u8>, ServerKeyError> {
        self.pair.sign(input).map_err(|_| ServerKeyError)
    }
}

impl std::fmt::Debug for ServerKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerKey")
            .field("id", &self.public)
            .finish_non_exhaustive()
    }
}

/// The key library refused a seed or a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("server key cannot be used")]
pub struct ServerKeyError;

/// The digits of [`hash8`], in the order of their values.
const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Eight characters that stand for a name: each of the first eight bytes of its SHA-256, modulo 62, as a digit of
/// `0-9A-Za-z`. Peer ids, account hashes and stream identities of the JetStream API have this form.
#[must_use]
pub fn hash8(name: &[u8]) -> String {
    let digest = Sha256::digest(name);
    digest
        .iter()
        .take(8)
        .filter_map(|byte| DIGITS.get(usize::from(*byte) % DIGITS.len()))
        .map(|digit| char::from(*digit))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_of_a_known_server_name() {
        assert_eq!(hash8(b"N1"), "xZ93l5JM");
        assert_eq!(hash8(b"").len(), 8);
    }

    #[test]
    fn server_ids_are_server_nkeys_and_depend_on_the_seed_alone() {
        let one = ServerKey::from_seed([7; 32]).unwrap();
        let same = ServerKey::from_seed([7; 32]).unwrap();
        let other = ServerKey::from_seed([8; 32]).unwrap();
        assert!(one.id().starts_with('N'));
        assert_eq!(one.id().len(), 56);
        assert_eq!(one.id(), same.id());
        assert_ne!(one.id(), other.id());
    }

    #[test]
    fn signatures_verify_with_the_public_key() {
        let key = ServerKey::from_seed([3; 32]).unwrap();
        let signature = key.sign(b"nonce").unwrap();
        let public = KeyPair::from_public_key(key.id()).unwrap();
        assert!(public.verify(b"nonce", &signature).is_ok());
        assert!(public.verify(b"other", &signature).is_err());
    }
}
