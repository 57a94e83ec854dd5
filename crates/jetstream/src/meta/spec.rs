//! What the meta group needs to know of a stream's configuration.

use super::MetaError;
use crate::config::{Storage, StreamConfig};
use std::ops::Deref;

/// A stream's configuration, with what placement, limits and overlap ask of it. Its settings are read through
/// [`StreamConfig`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamSpec(StreamConfig);

impl Deref for StreamSpec {
    type Target = StreamConfig;

    fn deref(&self) -> &StreamConfig {
        &self.0
    }
}

impl StreamSpec {
    /// Reads an encoded configuration.
    ///
    /// # Errors
    /// [`MetaError::Config`] if it is none that this version knows.
    pub fn read(config: &str) -> Result<Self, MetaError> {
        StreamConfig::decode(config.as_bytes())
            .map(Self)
            .map_err(MetaError::Config)
    }

    /// What [`StreamSpec::read`] reads.
    pub(super) fn write(&self) -> String {
        String::from_utf8_lossy(&self.0.encode()).into_owned()
    }

    /// The configuration.
    #[must_use]
    pub const fn config(&self) -> &StreamConfig {
        &self.0
    }

    pub(super) fn is_memory(&self) -> bool {
        self.storage == Storage::Memory
    }

    /// Bytes that the stream reserves in its account: `max_bytes` on each replica.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.max_bytes
            .unwrap_or(0)
            .saturating_mul(u64::from(self.num_replicas))
    }

    /// Name of the cluster that it must be in, or empty.
    pub(super) fn cluster(&self) -> &str {
        self.placement.as_ref().map_or("", |placement| &placement.cluster)
    }

    /// Tags that its servers must have, or with a leading `!` must not have.
    pub(super) fn tags(&self) -> &[String] {
        self.placement.as_ref().map_or(&[], |placement| &placement.tags)
    }

    /// Whether some subject belongs to both.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        let meets = |own| {
            other
                .subjects
                .iter()
                .any(|theirs| tidelock_subject::overlaps(own, theirs))
        };
        self.subjects.iter().any(|own| meets(own))
    }
}
