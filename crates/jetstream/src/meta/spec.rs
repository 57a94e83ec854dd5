//! What the meta group needs to know of a stream's configuration.

use super::MetaError;
use serde::Deserialize;
use tidelock_base::{ApiError, ApiErrorCode};
use tidelock_subject::SubjectFilter;

/// A valid configuration, encoded, with what placement, limits and overlap look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamSpec {
    /// The stream's name.
    pub name: String,
    /// The configuration in the JSON form of the API, normalised; equal for equal configurations.
    pub config: String,
    /// Its subjects; none for a mirror or a stream with sources alone.
    pub subjects: Vec<SubjectFilter>,
    /// How many replicas it wants.
    pub replicas: usize,
    /// Kept in memory instead of files.
    pub memory: bool,
    /// `max_bytes`, which is reserved.
    pub max_bytes: Option<u64>,
    /// `max_consumers`.
    pub max_consumers: Option<u64>,
    /// `placement.cluster`, or empty.
    pub cluster: String,
    /// `placement.tags`.
    pub tags: Vec<String>,
}

/// The fields of the API's form that are looked at; all others stay in the encoded form.
#[derive(Deserialize)]
struct Facts {
    name: String,
    #[serde(default)]
    subjects: Vec<String>,
    #[serde(default)]
    num_replicas: usize,
    #[serde(default)]
    storage: String,
    #[serde(default)]
    max_bytes: i64,
    #[serde(default)]
    max_consumers: i64,
    #[serde(default)]
    placement: Option<PlacementFacts>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PlacementFacts {
    cluster: String,
    tags: Vec<String>,
}

impl StreamSpec {
    /// Reads an encoded configuration.
    ///
    /// # Errors
    /// [`MetaError::Config`] if it is none.
    pub fn read(config: &str) -> Result<Self, MetaError> {
        let refused =
            |text: String| MetaError::Config(ApiError::text(ApiErrorCode::StreamInvalidConfigF, text));
        let facts: Facts = serde_json::from_str(config).map_err(|error| refused(error.to_string()))?;
        let subjects = facts
            .subjects
            .iter()
            .map(|subject| subject.parse::<SubjectFilter>())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| refused(error.to_string()))?;
        let placement = facts.placement.unwrap_or_default();
        let limit = |value: i64| u64::try_from(value).ok().filter(|value| *value > 0);
        Ok(Self {
            name: facts.name,
            config: config.to_owned(),
            subjects,
            replicas: facts.num_replicas.max(1),
            memory: facts.storage == "memory",
            max_bytes: limit(facts.max_bytes),
            max_consumers: limit(facts.max_consumers),
            cluster: placement.cluster,
            tags: placement.tags,
        })
    }

    /// Bytes that the stream reserves in its account: `max_bytes` on each replica.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.max_bytes.unwrap_or(0).saturating_mul(self.replicas as u64)
    }

    /// Whether some subject belongs to both.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        let meets = |subject: &SubjectFilter| {
            other
                .subjects
                .iter()
                .any(|theirs| tidelock_subject::overlaps(subject, theirs))
        };
        self.subjects.iter().any(meets)
    }
}
