//! What a user may publish and subscribe to.
//!
//! A [`PermissionsSpec`] is what the configuration says; [`Permissions`] is the same, prepared for checks on the
//! path of a message: literal subjects in a hash set, patterns in a list. A check allocates nothing.

use std::collections::HashSet;

use tidelock_subject as subject;

/// The subjects of one direction (publish or subscribe).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubjectRules {
    /// Only these are allowed; `None` means all. For publishing an empty list allows nothing, for subscribing an
    /// empty list is no restriction.
    pub allow: Option<Vec<String>>,
    /// These are not allowed, whatever `allow` says.
    pub deny: Vec<String>,
}

/// How far a receiver may answer to reply subjects that it has no permission for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Responses {
    /// Messages allowed to each reply subject; negative means unlimited.
    pub max: i64,
    /// Nanoseconds after the delivery during which they are allowed; negative means unlimited.
    pub expires_ns: i64,
}

impl Default for Responses {
    /// One message within two minutes.
    fn default() -> Self {
        Self {
            max: 1,
            expires_ns: 120_000_000_000,
        }
    }
}

/// Permissions as they are configured and shown. Subscribe entries may be `subject queue`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PermissionsSpec {
    /// What may be published; `None` means everything.
    pub publish: Option<SubjectRules>,
    /// What may be subscribed to; `None` means everything.
    pub subscribe: Option<SubjectRules>,
    /// Answers to reply subjects; `None` means no extra permission.
    pub responses: Option<Responses>,
}

/// An entry of a list that is not a subject or not a queue name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PermissionsError {
    /// The subject of an entry is not one.
    #[error("subject {0:?} is not a valid subject")]
    Subject(String),
    /// The queue part of an entry is not a queue name.
    #[error("queue {0:?} is not a valid queue")]
    Queue(String),
}

/// The answer to a SUB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubscribeCheck {
    /// Allowed, and nothing that arrives on it can be denied.
    Allowed,
    /// Allowed, but what [`Permissions::denies_delivery`] names must be left out at delivery.
    AllowedWithDenyFilter,
    /// Refused.
    Denied,
}

/// Permissions, prepared for checks.
#[derive(Clone, Debug, Default)]
pub struct Permissions {
    spec: PermissionsSpec,
    publish_allow: Option<SubjectSet>,
    publish_deny: SubjectSet,
    subscribe_allow: Option<SubjectSet>,
    subscribe_deny: SubjectSet,
}

impl Permissions {
    /// Everything is allowed.
    #[must_use]
    pub fn unrestricted() -> Self {
        Self::default()
    }

    /// Prepares a specification.
    ///
    /// # Errors
    /// [`PermissionsError`] names the first entry that is not a subject (or `subject queue` for subscribing).
    pub fn new(spec: PermissionsSpec) -> Result<Self, PermissionsError> {
        let publish = spec.publish.clone();
        // Answers are an addition to what may be published, so without a list there is nothing else to publish.
        let allow = match publish.as_ref().and_then(|rules| rules.allow.as_ref()) {
            Some(entries) => Some(SubjectSet::of_subjects(entries)?),
            None if spec.responses.is_some() => Some(SubjectSet::default()),
            None => None,
        };
        let deny = publish.map(|rules| rules.deny).unwrap_or_default();
        let subscribe = spec.subscribe.clone().unwrap_or_default();
        let subscribe_allow = subscribe.allow.filter(|entries| !entries.is_empty());
        Ok(Self {
            publish_allow: allow,
            publish_deny: SubjectSet::of_subjects(&deny)?,
            subscribe_allow: subscribe_allow
                .map(|entries| SubjectSet::with_queues(&entries))
                .transpose()?,
            subscribe_deny: SubjectSet::with_queues(&subscribe.deny)?,
            spec,
        })
    }

    /// The specification these permissions were made from, for USER.INFO and monitoring.
    #[must_use]
    pub const fn spec(&self) -> &PermissionsSpec {
        &self.spec
    }

    /// Whether nothing at all is restricted, so that no check is needed.
    #[must_use]
    pub fn is_unrestricted(&self) -> bool {
        self.publish_allow.is_none()
            && self.publish_deny.is_empty()
            && self.subscribe_allow.is_none()
            && self.subscribe_deny.is_empty()
    }

    /// Whether a message may be published to this literal subject. Answers to reply subjects are beside this: see
    /// [`Self::allow_responses`].
    #[must_use]
    pub fn can_publish(&self, subject: &[u8]) -> bool {
        self.publish_allow
            .as_ref()
            .is_none_or(|allow| allow.matches(subject))
            && !self.publish_deny.matches(subject)
    }

    /// Whether a subscription to this subject, with wildcards or not, is allowed.
    ///
    /// The whole of the subject must lie within an entry of the allow list. A queue subscription must match a
    /// queue-qualified entry if one covers its subject; a plain subscription is never covered by such an entry.
    #[must_use]
    pub fn can_subscribe(&self, subject: &[u8], queue: Option<&[u8]>) -> SubscribeCheck {
        let allowed = self
            .subscribe_allow
            .as_ref()
            .is_none_or(|allow| allow.admits(subject, queue));
        if !allowed || self.subscribe_deny.refuses(subject, queue) {
            SubscribeCheck::Denied
        } else if self.subscribe_deny.overlaps(subject) {
            SubscribeCheck::AllowedWithDenyFilter
        } else {
            SubscribeCheck::Allowed
        }
    }

    /// Whether a message on this literal subject must not reach the user, though a subscription matches it.
    #[must_use]
    pub fn denies_delivery(&self, subject: &[u8]) -> bool {
        self.subscribe_deny.matches(subject)
    }

    /// The permission to answer, if there is one.
    #[must_use]
    pub const fn allow_responses(&self) -> Option<Responses> {
        self.spec.responses
    }
}

/// An entry of a list that is bound to a queue group, or to a pattern of their names.
#[derive(Clone, Debug)]
struct Queued {
    subject: Box<[u8]>,
    queue: Box<[u8]>,
}

/// A list of subjects, some of them bound to queue groups.
#[derive(Clone, Debug, Default)]
struct SubjectSet {
    literals: HashSet<Box<[u8]>>,
    patterns: Vec<Box<[u8]>>,
    queued: Vec<Queued>,
}

impl SubjectSet {
    fn of_subjects(entries: &[String]) -> Result<Self, PermissionsError> {
        let mut set = Self::default();
        for entry in entries {
            set.insert(entry)?;
        }
        Ok(set)
    }

    fn with_queues(entries: &[String]) -> Result<Self, PermissionsError> {
        let mut set = Self::default();
        for entry in entries {
            let mut words = entry.split_ascii_whitespace();
            match (words.next(), words.next(), words.next()) {
                (Some(subject), None, None) => set.insert(subject)?,
                (Some(subject), Some(queue), None) => set.insert_queued(subject, queue)?,
                _ => return Err(PermissionsError::Subject(entry.clone())),
            }
        }
        Ok(set)
    }

    fn insert(&mut self, entry: &str) -> Result<(), PermissionsError> {
        let bytes = entry.as_bytes();
        if !subject::is_valid_filter(bytes) {
            return Err(PermissionsError::Subject(entry.to_owned()));
        }
        if subject::has_wildcard(bytes) {
            self.patterns.push(bytes.into());
        } else {
            self.literals.insert(bytes.into());
        }
        Ok(())
    }

    fn insert_queued(&mut self, entry: &str, queue: &str) -> Result<(), PermissionsError> {
        if !subject::is_valid_filter(entry.as_bytes()) {
            return Err(PermissionsError::Subject(entry.to_owned()));
        }
        if !subject::is_valid_filter(queue.as_bytes()) {
            return Err(PermissionsError::Queue(queue.to_owned()));
        }
        self.queued.push(Queued {
            subject: entry.as_bytes().into(),
            queue: queue.as_bytes().into(),
        });
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.literals.is_empty() && self.patterns.is_empty() && self.queued.is_empty()
    }

    /// Whether an entry without queue matches this literal subject.
    fn matches(&self, literal: &[u8]) -> bool {
        self.literals.contains(literal)
            || self
                .patterns
                .iter()
                .any(|pattern| subject::matches(pattern, literal))
    }

    /// Whether a subscription lies wholly within this allow list.
    fn admits(&self, filter: &[u8], queue: Option<&[u8]>) -> bool {
        if let Some(queue) = queue {
            let mut covering = self
                .queued
                .iter()
                .filter(|entry| subject::is_subset(&entry.subject, filter))
                .peekable();
            if covering.peek().is_some() {
                return covering.any(|entry| subject::matches(&entry.queue, queue));
            }
        }
        self.literals.contains(filter)
            || self
                .patterns
                .iter()
                .any(|entry| subject::is_subset(entry, filter))
    }

    /// Whether this deny list refuses a subscription outright. A wildcard token of the subscription counts as
    /// covered by `*` of an entry (`foo.x.*` refuses `foo.x.>`), as on nats-server.
    fn refuses(&self, filter: &[u8], queue: Option<&[u8]>) -> bool {
        if self.literals.contains(filter) || self.patterns.iter().any(|entry| subject::matches(entry, filter))
        {
            return true;
        }
        queue.is_some_and(|queue| {
            self.queued.iter().any(|entry| {
                subject::matches(&entry.subject, filter) && subject::matches(&entry.queue, queue)
            })
        })
    }

    /// Whether some message of a subscription would be on a subject of this list.
    fn overlaps(&self, filter: &[u8]) -> bool {
        self.patterns.iter().any(|entry| subject::overlaps(entry, filter))
            || (subject::has_wildcard(filter)
                && self.literals.iter().any(|entry| subject::matches(filter, entry)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn owned(entries: &[&str]) -> Vec<String> {
        entries.iter().map(|entry| (*entry).to_owned()).collect()
    }

    fn subscribe(allow: Option<&[&str]>, deny: &[&str]) -> Permissions {
        let rules = SubjectRules {
            allow: allow.map(owned),
            deny: owned(deny),
        };
        Permissions::new(PermissionsSpec {
            subscribe: Some(rules),
            ..PermissionsSpec::default()
        })
        .unwrap()
    }

    fn publish(allow: Option<&[&str]>, deny: &[&str]) -> Permissions {
        let rules = SubjectRules {
            allow: allow.map(owned),
            deny: owned(deny),
        };
        Permissions::new(PermissionsSpec {
            publish: Some(rules),
            ..PermissionsSpec::default()
        })
        .unwrap()
    }

    /// The answer to `SUB subject [queue]` in one word.
    fn sub(permissions: &Permissions, line: &str) -> &'static str {
        let (subject, queue) = match line.split_once(' ') {
            Some((subject, queue)) => (subject, Some(queue.as_bytes())),
            None => (line, None),
        };
        match permissions.can_subscribe(subject.as_bytes(), queue) {
            SubscribeCheck::Allowed => "yes",
            SubscribeCheck::AllowedWithDenyFilter => "filtered",
            SubscribeCheck::Denied => "no",
        }
    }

    #[test]
    fn nothing_configured_allows_everything() {
        let free = Permissions::unrestricted();
        assert!(free.is_unrestricted());
        assert!(free.can_publish(b"any.thing"));
        assert_eq!(sub(&free, ">"), "yes");
        assert_eq!(free.allow_responses(), None);
    }

    #[test]
    fn publish_needs_an_allow_entry_and_no_deny_entry() {
        let permissions = publish(Some(&["a", "b.*", "c.>"]), &["b.x", "c.*.no"]);
        assert!(!permissions.is_unrestricted());
        for yes in ["a", "b.y", "c.d", "c.d.e"] {
            assert!(permissions.can_publish(yes.as_bytes()), "{yes}");
        }
        for no in ["", "d", "a.b", "b", "b.x", "b.y.z", "c", "c.d.no"] {
            assert!(!permissions.can_publish(no.as_bytes()), "{no}");
        }
    }

    #[test]
    fn an_empty_list_allows_no_publish_but_every_subscription() {
        assert!(!publish(Some(&[]), &[]).can_publish(b"a"));
        assert!(publish(None, &["x"]).can_publish(b"a"));
        assert_eq!(sub(&subscribe(Some(&[]), &[]), ">"), "yes");
    }

    #[test]
    fn permission_to_answer_takes_all_other_publishing_away() {
        for publish in [
            None,
            Some(SubjectRules {
                allow: None,
                deny: owned(&["x"]),
            }),
        ] {
            let spec = PermissionsSpec {
                publish,
                responses: Some(Responses::default()),
                ..PermissionsSpec::default()
            };
            let permissions = Permissions::new(spec).unwrap();
            assert!(!permissions.can_publish(b"a"));
            assert_eq!(
                permissions.allow_responses(),
                Some(Responses {
                    max: 1,
                    expires_ns: 120_000_000_000
                })
            );
        }
    }

    #[test]
    fn a_subscription_must_lie_within_an_allow_entry() {
        let permissions = subscribe(Some(&["foo.*", "bar.>", "lit"]), &[]);
        for yes in ["foo.a", "foo.*", "bar.>", "bar.*.x", "lit", "lit q", "foo.a q"] {
            assert_eq!(sub(&permissions, yes), "yes", "{yes}");
        }
        for no in ["foo.>", ">", "*", "foo.a.b", "bar", "*.a"] {
            assert_eq!(sub(&permissions, no), "no", "{no}");
        }
    }

    #[test]
    fn queue_entries_bind_queue_subscriptions_only() {
        let permissions = subscribe(Some(&["foo", "foo q1", "bar q1.*"]), &[]);
        for yes in ["foo", "foo q1", "bar q1.x"] {
            assert_eq!(sub(&permissions, yes), "yes", "{yes}");
        }
        for no in ["foo q2", "bar", "bar q1", "bar q2.x"] {
            assert_eq!(sub(&permissions, no), "no", "{no}");
        }
    }

    #[test]
    fn deny_entries_with_queues() {
        let both = subscribe(None, &["foo", "foo q1"]);
        for no in ["foo", "foo q1", "foo q2"] {
            assert_eq!(sub(&both, no), "no", "{no}");
        }
        let queue = subscribe(None, &["foo q1"]);
        assert_eq!(sub(&queue, "foo"), "yes");
        assert_eq!(sub(&queue, "foo q1"), "no");
        assert_eq!(sub(&queue, "foo q2"), "yes");
        assert_eq!(sub(&queue, "* q1"), "yes");
    }

    #[test]
    fn what_overlaps_a_deny_entry_is_filtered_at_delivery() {
        let permissions = subscribe(None, &["foo.x.*", "lit"]);
        for no in ["foo.x.y", "foo.x.*", "foo.x.>", "lit"] {
            assert_eq!(sub(&permissions, no), "no", "{no}");
        }
        for filtered in ["foo.>", ">", "foo.*.y", "*"] {
            assert_eq!(sub(&permissions, filtered), "filtered", "{filtered}");
        }
        assert_eq!(sub(&permissions, "bar.>"), "yes");
        assert!(permissions.denies_delivery(b"foo.x.y"));
        assert!(permissions.denies_delivery(b"lit"));
        assert!(!permissions.denies_delivery(b"foo.y.x"));
    }

    #[test]
    fn bad_entries_are_named() {
        let error = |entry: &str| {
            let rules = SubjectRules {
                allow: Some(owned(&[entry])),
                deny: Vec::new(),
            };
            Permissions::new(PermissionsSpec {
                subscribe: Some(rules),
                ..PermissionsSpec::default()
            })
            .unwrap_err()
            .to_string()
        };
        assert_eq!(error("a..c"), "subject \"a..c\" is not a valid subject");
        assert_eq!(error("a b c"), "subject \"a b c\" is not a valid subject");
        assert_eq!(error(""), "subject \"\" is not a valid subject");
        assert_eq!(error("a b..c"), "queue \"b..c\" is not a valid queue");
        let rules = SubjectRules {
            allow: None,
            deny: owned(&["a b"]),
        };
        assert!(
            Permissions::new(PermissionsSpec {
                publish: Some(rules),
                ..PermissionsSpec::default()
            })
            .is_err()
        );
    }

    fn filter() -> impl Strategy<Value = String> {
        let token = prop_oneof![Just("a"), Just("b"), Just("*")];
        (proptest::collection::vec(token, 1..4), any::<bool>()).prop_map(|(tokens, open)| {
            let joined = tokens.join(".");
            if open { format!("{joined}.>") } else { joined }
        })
    }

    /// All subjects of up to four tokens over a small alphabet: enough to tell any two of the filters apart.
    fn literals() -> Vec<String> {
        let mut all: Vec<String> = ["a", "b", "c"].map(str::to_owned).into();
        for _ in 0..3 {
            let longer: Vec<String> = all
                .iter()
                .flat_map(|head| ["a", "b", "c"].map(|tail| format!("{head}.{tail}")))
                .collect();
            all.extend(longer);
            all.sort();
            all.dedup();
        }
        all
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// Nothing that an accepted subscription receives lies outside the allow list or inside the deny list.
        #[test]
        fn an_accepted_subscription_receives_only_what_is_allowed(
            allow in proptest::collection::vec(filter(), 1..4),
            deny in proptest::collection::vec(filter(), 0..3),
            wanted in filter(),
        ) {
            let rules = SubjectRules { allow: Some(allow.clone()), deny: deny.clone() };
            let spec = PermissionsSpec { subscribe: Some(rules), ..PermissionsSpec::default() };
            let permissions = Permissions::new(spec).unwrap();
            let check = permissions.can_subscribe(wanted.as_bytes(), None);
            prop_assume!(check != SubscribeCheck::Denied);
            for literal in literals() {
                let literal = literal.as_bytes();
                let filtered = check == SubscribeCheck::AllowedWithDenyFilter && permissions.denies_delivery(literal);
                if subject::matches(wanted.as_bytes(), literal) && !filtered {
                    prop_assert!(allow.iter().any(|entry| subject::matches(entry.as_bytes(), literal)));
                    prop_assert!(!deny.iter().any(|entry| subject::matches(entry.as_bytes(), literal)));
                }
            }
        }

        /// A publish is decided as a plain walk through both lists would.
        #[test]
        fn publish_agrees_with_a_walk_through_the_lists(
            allow in proptest::option::of(proptest::collection::vec(filter(), 0..4)),
            deny in proptest::collection::vec(filter(), 0..3),
        ) {
            let rules = SubjectRules { allow: allow.clone(), deny: deny.clone() };
            let spec = PermissionsSpec { publish: Some(rules), ..PermissionsSpec::default() };
            let permissions = Permissions::new(spec).unwrap();
            for literal in literals() {
                let listed = |list: &[String]| list.iter().any(|e| subject::matches(e.as_bytes(), literal.as_bytes()));
                let expected = allow.as_deref().is_none_or(listed) && !listed(&deny);
                prop_assert_eq!(permissions.can_publish(literal.as_bytes()), expected, "{}", literal);
            }
        }
    }
}
