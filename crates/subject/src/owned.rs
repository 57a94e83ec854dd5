//! Owned subjects and filters that exist only in a valid state.

use crate::matching::{self, has_wildcard, is_valid_filter, is_valid_literal};
use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;
use std::str::FromStr;
use std::sync::Arc;

/// Why bytes are not a subject or filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubjectError {
    /// Empty, an empty token, white space, `>` before the end, a wildcard where a literal is needed, or more than
    /// [`crate::FILTER_TOKENS_MAX`] tokens. The text is nats-server's.
    #[error("invalid subject")]
    Invalid,
}

/// A valid subject without wildcards. Cloning it counts a reference.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subject(Arc<[u8]>);

/// A valid subject in which `*` and `>` may stand. Cloning it counts a reference.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubjectFilter(Arc<[u8]>);

macro_rules! subject_bytes {
    ($name:ident, $valid:path) => {
        impl $name {
            /// The bytes of the subject.
            #[must_use]
            pub fn as_bytes(&self) -> &[u8] {
                &self.0
            }
        }

        impl TryFrom<&[u8]> for $name {
            type Error = SubjectError;
            fn try_from(bytes: &[u8]) -> Result<Self, SubjectError> {
                if $valid(bytes) {
                    Ok(Self(bytes.into()))
                } else {
                    Err(SubjectError::Invalid)
                }
            }
        }

        impl TryFrom<&str> for $name {
            type Error = SubjectError;
            fn try_from(text: &str) -> Result<Self, SubjectError> {
                Self::try_from(text.as_bytes())
            }
        }

        impl FromStr for $name {
            type Err = SubjectError;
            fn from_str(text: &str) -> Result<Self, SubjectError> {
                Self::try_from(text.as_bytes())
            }
        }

        impl Deref for $name {
            type Target = [u8];
            fn deref(&self) -> &[u8] {
                &self.0
            }
        }

        impl AsRef<[u8]> for $name {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }

        impl Borrow<[u8]> for $name {
            fn borrow(&self) -> &[u8] {
                &self.0
            }
        }

        /// Bytes that are not UTF-8 are shown as replacement characters.
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&String::from_utf8_lossy(&self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", String::from_utf8_lossy(&self.0))
            }
        }
    };
}

subject_bytes!(Subject, is_valid_literal);
subject_bytes!(SubjectFilter, is_valid_filter);

impl SubjectFilter {
    /// The filter `>`, which every subject matches.
    #[must_use]
    pub fn everything() -> Self {
        Self(Arc::from(&b">"[..]))
    }

    /// Whether a token is a wildcard.
    #[must_use]
    pub fn has_wildcard(&self) -> bool {
        has_wildcard(&self.0)
    }

    /// Whether the filter matches the subject; see [`crate::matches`].
    #[must_use]
    pub fn matches(&self, literal: &[u8]) -> bool {
        matching::matches(&self.0, literal)
    }

    /// Makes a filter of bytes already known to be valid.
    pub(crate) fn from_valid(bytes: &[u8]) -> Self {
        debug_assert!(is_valid_filter(bytes));
        Self(bytes.into())
    }
}

/// A literal is a filter that matches itself alone. One of more than [`crate::FILTER_TOKENS_MAX`] tokens is none.
impl TryFrom<Subject> for SubjectFilter {
    type Error = SubjectError;
    fn try_from(subject: Subject) -> Result<Self, SubjectError> {
        if is_valid_filter(&subject) {
            Ok(Self(subject.0))
        } else {
            Err(SubjectError::Invalid)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_valid_ones_exist() {
        assert_eq!("a.*".parse::<Subject>(), Err(SubjectError::Invalid));
        assert_eq!("a..b".parse::<SubjectFilter>(), Err(SubjectError::Invalid));
        let filter: SubjectFilter = "a.*".parse().unwrap();
        assert!(filter.matches(b"a.b") && filter.has_wildcard());
        let bytes = Subject::try_from(&b"a.\xff"[..]).unwrap();
        assert_eq!((bytes.to_string(), bytes.len()), ("a.\u{fffd}".to_owned(), 3));
        assert_eq!(SubjectFilter::try_from(bytes).unwrap().as_bytes(), b"a.\xff");
    }
}
