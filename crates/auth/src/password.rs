//! Stored passwords and tokens: plain text, compared in constant time, or bcrypt.

use std::fmt;

/// A password or token as the configuration gives it. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(String);

impl Password {
    /// A stored value: bcrypt if it has that form (`$2a$10$…`), plain text otherwise.
    #[must_use]
    pub fn new(stored: impl Into<String>) -> Self {
        Self(stored.into())
    }

    /// Whether checking costs bcrypt's time (milliseconds to seconds) instead of nanoseconds.
    #[must_use]
    pub fn is_slow(&self) -> bool {
        is_bcrypt(self.0.as_bytes())
    }

    /// Whether the stored value is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `given` is this password. A bcrypt value that is damaged is no password at all.
    #[must_use]
    pub fn verify(&self, given: &[u8]) -> bool {
        if self.is_slow() {
            bcrypt::verify(given, &self.0).unwrap_or(false)
        } else {
            constant_time_eq(self.0.as_bytes(), given)
        }
    }

    /// The stored text, for those that must present the password themselves (cluster routes).
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[REDACTED]")
    }
}

/// Whether the text has the form `$2a$10$…` (versions a, b, x and y).
fn is_bcrypt(stored: &[u8]) -> bool {
    matches!(
        stored,
        [b'$', b'2', b'a' | b'b' | b'x' | b'y', b'$', tens, ones, b'$', ..]
            if tens.is_ascii_digit() && ones.is_ascii_digit()
    )
}

/// Compares without an early exit, so that the time tells nothing about where two texts of one length differ.
#[must_use]
pub fn constant_time_eq(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let difference = a.iter().zip(b).fold(0u8, |seen, (x, y)| seen | (x ^ y));
    std::hint::black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_passwords_match_exactly() {
        let stored = Password::new("secret");
        assert!(!stored.is_slow());
        assert!(stored.verify(b"secret"));
        for wrong in [&b"secre"[..], b"secret1", b"Secret", b""] {
            assert!(!stored.verify(wrong));
        }
        assert_eq!(format!("{stored:?}"), "[REDACTED]");
    }

    #[test]
    fn bcrypt_is_recognised_by_its_form() {
        for yes in ["$2a$10$x", "$2b$04$", "$2x$11$q", "$2y$31$q"] {
            assert!(Password::new(yes).is_slow(), "{yes}");
        }
        for no in ["$2c$10$x", "$2a$1$x", "$2a$1x$x", "2a$10$x", "$2a$10", "$1$", ""] {
            assert!(!Password::new(no).is_slow(), "{no}");
        }
    }

    #[test]
    fn bcrypt_passwords_verify() {
        let hash = bcrypt::hash("s3cr3t", 4).unwrap();
        let stored = Password::new(hash.replacen("$2b$", "$2a$", 1));
        assert!(stored.is_slow());
        assert!(stored.verify(b"s3cr3t"));
        assert!(!stored.verify(b"s3cr3T"));
    }

    #[test]
    fn a_damaged_bcrypt_value_admits_nobody() {
        let stored = Password::new("$2a$04$short");
        assert!(!stored.verify(b""));
        assert!(!stored.verify(b"$2a$04$short"));
    }
}
