//! A new configuration of the stream.

use super::{ApplyError, CommandOutcome, Effects, Halt, Stream, ns};
use crate::config::{Origin, Retention, StreamConfig};
use std::time::Duration;
use tidelock_base::{ApiError, ApiErrorCode, StreamSeq};
use tidelock_store::Filters;

impl Stream {
    /// Takes a configuration of a later revision. Whether the change is allowed was checked against the revision
    /// before; only what depends on the consumers is checked here.
    pub(super) fn stream_update(
        &mut self,
        rev: u64,
        config: &[u8],
        _fx: &mut impl Effects,
    ) -> Result<CommandOutcome, Halt> {
        let config = StreamConfig::decode(config).map_err(ApplyError::Config)?;
        if rev <= self.rev {
            return Ok(CommandOutcome::Updated { rev: self.rev });
        }
        if let Some(error) = self.violated_by(&config) {
            return Ok(CommandOutcome::Refused(error));
        }
        let old = std::mem::replace(&mut self.config, config);
        self.rev = rev;
        self.running.mix(rev);
        self.dedupe.set_window(ns(self.config.duplicate_window));
        if old.max_age != self.config.max_age {
            self.age_head = self.store.oldest().filter(|_| self.config.max_age.is_some());
        }
        self.follow_sources(&old);
        self.trim_all();
        if old.retention != self.config.retention && self.config.retention == Retention::Interest {
            self.reconsider(Filters::all(), StreamSeq(1));
        }
        Ok(CommandOutcome::Updated { rev })
    }

    /// 10069: consumers that have more than the new `consumer_limits` allow, by name.
    fn violated_by(&self, config: &StreamConfig) -> Option<ApiError> {
        let limits = &config.consumer_limits;
        let exceeds = |value: Option<Duration>, max: Option<Duration>| match (value, max) {
            (Some(value), Some(max)) => value > max,
            (_, None) | (None, Some(_)) => false,
        };
        let violators: Vec<&str> = self
            .names
            .iter()
            .filter_map(|(name, id)| Some((name, self.consumers.get(id)?.config())))
            .filter(|(_, consumer)| {
                let pending = consumer.max_ack_pending.zip(limits.max_ack_pending);
                pending.is_some_and(|(value, max)| u64::from(value) > max)
                    || exceeds(consumer.inactive_threshold, limits.inactive_threshold)
            })
            .map(|(name, _)| &**name)
            .collect();
        (!violators.is_empty()).then(|| {
            let text = format!("change to limits violates consumers: {}", violators.join(", "));
            ApiError::text(ApiErrorCode::StreamUpdate, text)
        })
    }

    /// Makes the positions those of the configured sources. Those of sources that are configured no longer are put
    /// aside: added again, they go on where they stood. That of a mirror that was promoted is forgotten, since it is
    /// no source's.
    fn follow_sources(&mut self, old: &StreamConfig) {
        if old.mirror.is_some() && self.config.mirror.is_none() {
            self.sources.clear();
        }
        let keys = |origins: &[Origin]| -> Vec<Vec<u8>> { origins.iter().map(super::source_key).collect() };
        let wanted = keys(&self.config.sources);
        for key in keys(&old.sources) {
            if !wanted.contains(&key)
                && let Some(position) = self.sources.remove(&*key)
            {
                self.former_sources.put(key.into(), position);
            }
        }
        for key in wanted {
            if !self.sources.contains_key(&*key)
                && let Some(position) = self.former_sources.take(&key)
            {
                self.sources.insert(key.into(), position);
            }
        }
    }
}
