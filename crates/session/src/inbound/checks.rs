//! What a client may publish to: subjects that nobody may use, and a memory of those that permissions allow.

use tidelock_auth::Permissions;

/// Subjects of gateways and of consensus, which clients must not publish to.
#[inline]
pub(super) fn is_reserved_subject(subject: &[u8]) -> bool {
    match subject {
        [b'_', b'G', rest @ ..] => rest.starts_with(b"R_."),
        [b'$', b'N', rest @ ..] => rest.starts_with(b"RG."),
        _ => false,
    }
}

/// Replies that would let a client pose as a service import, an acknowledgement or a gateway.
#[inline]
pub(super) fn is_reserved_reply(reply: &[u8]) -> bool {
    match reply {
        [b'_', b'R' | b'G', ..] => reply.starts_with(b"_R_.") || reply.starts_with(b"_GR_."),
        [b'$', b'J', ..] => reply.starts_with(b"$JS.ACK."),
        _ => false,
    }
}

/// Entries of the cache; a power of two.
const ENTRIES: usize = 32;
/// Longer subjects are looked up each time, so that the memory of a connection stays small.
const SUBJECT_BYTES_MAX: usize = 128;

/// Subjects that permissions were found to allow. Direct-mapped; buffers are used again, so that a connection that
/// publishes to a few subjects neither allocates nor asks the permissions.
#[derive(Debug, Default)]
pub(super) struct PublishCache {
    entries: Vec<Vec<u8>>,
}

impl PublishCache {
    /// Whether `permissions`, which are the same at each call until [`Self::clear`], allow a publish.
    pub(super) fn allows(&mut self, subject: &[u8], permissions: &Permissions) -> bool {
        if self.entries.is_empty() {
            self.entries.resize_with(ENTRIES, Vec::new);
        }
        let Some(entry) = self.entries.get_mut(position(subject)) else {
            return false;
        };
        if entry.as_slice() == subject && !subject.is_empty() {
            return true;
        }
        let allowed = permissions.can_publish(subject);
        if allowed && subject.len() <= SUBJECT_BYTES_MAX {
            entry.clear();
            entry.extend_from_slice(subject);
        }
        allowed
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }
}

/// Where a subject is kept: mixed from its length and a few of its bytes, which is enough for subjects that differ
/// at the end or in the middle.
fn position(subject: &[u8]) -> usize {
    let byte = |at: usize| usize::from(subject.get(at).copied().unwrap_or(0));
    let n = subject.len();
    (n * 31 + byte(n.wrapping_sub(1)) * 7 + byte(n.wrapping_sub(2)) * 13 + byte(n / 2)) % ENTRIES
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidelock_auth::{PermissionsSpec, SubjectRules};

    #[test]
    fn the_cache_answers_as_the_permissions_do() {
        let rules = SubjectRules {
            allow: Some(vec!["ok.>".into()]),
            deny: vec!["ok.no".into()],
        };
        let spec = PermissionsSpec {
            publish: Some(rules),
            subscribe: None,
            responses: None,
        };
        let permissions = Permissions::new(spec).unwrap();
        let mut cache = PublishCache::default();
        for _ in 0..3 {
            for subject in ["ok.a", "ok.no", "no", "", "ok.b", "ok.a.b", "ko.a"] {
                let subject = subject.as_bytes();
                assert_eq!(
                    cache.allows(subject, &permissions),
                    permissions.can_publish(subject)
                );
            }
        }
    }

    #[test]
    fn reserved_subjects_and_replies() {
        assert!(is_reserved_subject(b"_GR_.x") && is_reserved_subject(b"$NRG.x"));
        assert!(
            !is_reserved_subject(b"$GNR.x")
                && !is_reserved_subject(b"_INBOX.x")
                && !is_reserved_subject(b"_GR_")
        );
        assert!(
            is_reserved_reply(b"_R_.x") && is_reserved_reply(b"_GR_.x") && is_reserved_reply(b"$JS.ACK.x")
        );
        assert!(
            !is_reserved_reply(b"_R_") && !is_reserved_reply(b"_INBOX.x") && !is_reserved_reply(b"$JS.API.x")
        );
    }
}
