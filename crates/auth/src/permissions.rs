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

/// A list of subjects, some of them bound to queue groups.
#[derive(Clone, Debug, Default)]
struct SubjectSet {
    literals: HashSet<Box<[u8]>>,
    patterns: Vec<Box<[u8]>>,
    queued: Vec<(Box<[u8]>, Box<[u8]>)>,
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
        self.queued
            .push((entry.as_bytes().into(), queue.as_bytes().into()));
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
                .filter(|(entry, _)| subject::is_subset(entry, filter))
                .peekable();
            if covering.peek().is_some() {
                return covering.any(|(_, allowed)| subject::matches(allowed, queue));
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
            self.queued
                .iter()
                .any(|(entry, denied)| subject::matches(entry, filter) && subject::matches(denied, queue))
        })
    }

    /// Whether some message of a subscription would be on a subject of this list.
    fn overlaps(&self, filter: &[u8]) -> bool {
        self.patterns.iter().any(|entry| subject::overlaps(entry, filter))
            || (subject::has_wildcard(filter)
                && self.literals.iter().any(|entry| subject::matches(filter, entry)))
    }
}
