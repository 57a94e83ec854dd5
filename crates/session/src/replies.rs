//! Permission to answer: reply subjects that a client has received and may publish to (`allow_responses`).

use std::collections::BTreeMap;
use std::time::Duration;

use tidelock_auth::Responses;
use tidelock_base::Mono;

/// Grants are looked through for used-up ones when there are this many (nats-server 2.15), then at twice what is left.
const PRUNE_AT_LEAST: usize = 4096;
/// Looking through them again waits this long, so that a full table does not cost its length at each delivery.
const PRUNE_INTERVAL: Duration = Duration::from_secs(1);
/// More grants than this are not kept; further reply subjects cannot be answered until some are used up or expire.
const GRANTS_MAX: usize = 65_536;

/// The reply subjects that one client may answer to.
#[derive(Debug)]
pub(crate) struct ReplyGrants {
    rule: Responses,
    grants: BTreeMap<Box<[u8]>, Grant>,
    prune_at: usize,
    prune_after: Mono,
}

#[derive(Debug)]
struct Grant {
    opened: Mono,
    used: u64,
}

impl ReplyGrants {
    pub(crate) const fn new(rule: Responses) -> Self {
        Self {
            rule,
            grants: BTreeMap::new(),
            prune_at: PRUNE_AT_LEAST,
            prune_after: Mono(0),
        }
    }

    /// A message with this reply subject was delivered: it may be answered, from now on.
    pub(crate) fn open(&mut self, reply: &[u8], now: Mono) {
        if let Some(grant) = self.grants.get_mut(reply) {
            *grant = Grant { opened: now, used: 0 };
            return;
        }
        if self.grants.len() >= self.prune_at && now >= self.prune_after {
            let rule = self.rule;
            self.grants.retain(|_, grant| !grant.is_over(rule, now));
            self.prune_at = (self.grants.len() * 2).clamp(PRUNE_AT_LEAST, GRANTS_MAX);
            self.prune_after = now + PRUNE_INTERVAL;
        }
        if self.grants.len() < GRANTS_MAX {
            self.grants
                .insert(Box::from(reply), Grant { opened: now, used: 0 });
        }
    }

    /// Whether a publish to `subject` is an answer that is still allowed; counts it.
    pub(crate) fn use_up(&mut self, subject: &[u8], now: Mono) -> bool {
        let rule = self.rule;
        let Some(grant) = self.grants.get_mut(subject) else {
            return false;
        };
        if grant.is_over(rule, now) {
            self.grants.remove(subject);
            return false;
        }
        grant.used += 1;
        true
    }
}

impl Grant {
    fn is_over(&self, rule: Responses, now: Mono) -> bool {
        let used_up = u64::try_from(rule.max).is_ok_and(|max| self.used >= max);
        let age_ns = now.since(self.opened).as_nanos();
        let expired = u128::try_from(rule.expires_ns).is_ok_and(|expires| age_ns > expires);
        used_up || expired
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_ends_by_number_and_by_time() {
        let mut grants = ReplyGrants::new(Responses {
            max: 2,
            expires_ns: 100,
        });
        assert!(!grants.use_up(b"r", Mono(0)));
        grants.open(b"r", Mono(0));
        assert!(grants.use_up(b"r", Mono(1)));
        assert!(grants.use_up(b"r", Mono(100)));
        assert!(!grants.use_up(b"r", Mono(100)));
        grants.open(b"r", Mono(200));
        assert!(!grants.use_up(b"r", Mono(301)));
    }

    #[test]
    fn negative_means_unlimited() {
        let mut grants = ReplyGrants::new(Responses {
            max: -1,
            expires_ns: -1,
        });
        grants.open(b"r", Mono(0));
        assert!((0..1000).all(|i| grants.use_up(b"r", Mono(u64::MAX - i))));
    }

    #[test]
    fn the_number_of_grants_is_bounded_and_used_ones_make_room() {
        let mut grants = ReplyGrants::new(Responses {
            max: 1,
            expires_ns: 1000,
        });
        for i in 0..100_000_u32 {
            grants.open(&i.to_le_bytes(), Mono(0));
        }
        assert_eq!(grants.grants.len(), GRANTS_MAX);
        for i in 0..50_000_u32 {
            grants.open(&i.to_be_bytes(), Mono(u64::from(i) * 1_000_000_000));
        }
        assert!(grants.grants.len() <= PRUNE_AT_LEAST);
    }
}
