//! What is shown of consumers: CONSUMER.INFO, NAMES and LIST.

use super::Job;
use super::consumer::remaining;
use super::jobs::LIST_LIMIT;
use super::subjects::Call;
use crate::worker::Core;
use std::collections::BTreeMap;
use tidelock_api::{
    AckPolicy, ConsumerInfo, ConsumerList, ConsumerListRequest, ConsumerNames, ResponseKind, SequenceInfo,
    Time, decode_optional,
};
use tidelock_base::{ApiError, ApiErrorCode, GroupId, Wall};
use tidelock_jetstream::config::with_dynamic;
use tidelock_jetstream::consumer::Position;

/// Consumers of a page of CONSUMER.NAMES.
const NAMES_LIMIT: u64 = 1024;

impl Core {
    /// CONSUMER.INFO at the stream's leader.
    pub(super) fn consumer_info(&mut self, job: &Job, call: &Call<'_>) {
        match self.consumer_shown(job.group, call.consumer, true) {
            Some(info) => self.reply_ok(&job.request, ResponseKind::ConsumerInfo, &info),
            None => self.refuse(
                &job.request,
                call.endpoint,
                &ApiErrorCode::ConsumerNotFound.into(),
            ),
        }
    }

    /// CONSUMER.NAMES.
    pub(super) fn consumer_names(&mut self, job: &Job, call: &Call<'_>) {
        match self.page_of_consumers(job, NAMES_LIMIT) {
            Ok((total, offset, consumers)) => {
                let answer = ConsumerNames {
                    total,
                    offset,
                    limit: NAMES_LIMIT,
                    consumers,
                };
                self.reply_ok(&job.request, ResponseKind::ConsumerNames, &answer);
            }
            Err(error) => self.refuse(&job.request, call.endpoint, &error),
        }
    }

    /// CONSUMER.LIST.
    pub(super) fn consumer_list(&mut self, job: &Job, call: &Call<'_>) {
        match self.page_of_consumers(job, LIST_LIMIT) {
            Ok((total, offset, names)) => {
                let shown = names
                    .iter()
                    .filter_map(|name| self.consumer_shown(job.group, name, false));
                let consumers = shown.collect();
                let answer = ConsumerList {
                    total,
                    offset,
                    limit: LIST_LIMIT,
                    consumers,
                    ..ConsumerList::default()
                };
                self.reply_ok(&job.request, ResponseKind::ConsumerList, &answer);
            }
            Err(error) => self.refuse(&job.request, call.endpoint, &error),
        }
    }

    /// How many consumers there are, where the page starts, and its names. Those that servers made for mirrors and
    /// sources without acknowledgements do not show.
    fn page_of_consumers(&self, job: &Job, limit: u64) -> Result<(u64, u64, Vec<String>), ApiError> {
        let wanted: ConsumerListRequest = decode_optional(&job.request.payload, self.is_strict())?;
        let stream = self.stream(job.group).ok_or(ApiErrorCode::StreamNotFound)?;
        let shown = stream
            .consumers()
            .filter(|consumer| !consumer.config().direct || consumer.config().durable);
        let mut names: Vec<&str> = shown.map(|consumer| consumer.name()).collect();
        names.sort_unstable();
        let total = names.len() as u64;
        let offset = u64::try_from(wanted.offset).unwrap_or(0).min(total);
        let skip = usize::try_from(offset).unwrap_or(usize::MAX);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Ok((
            total,
            offset,
            names
                .into_iter()
                .skip(skip)
                .take(limit)
                .map(str::to_owned)
                .collect(),
        ))
    }

    /// A consumer as answers show it; lists leave out what the server adds to its metadata.
    pub(crate) fn consumer_shown(&self, group: GroupId, name: &str, dynamic: bool) -> Option<ConsumerInfo> {
        let stream = self.stream(group)?;
        let consumer = stream.consumer(name)?;
        let state = consumer.state();
        let live = self.consumer_live(group, consumer.id());
        let now = self.group_time(group).wall;
        let mut config = consumer.config().to_api();
        if dynamic {
            config.metadata = with_dynamic(std::mem::take(&mut config.metadata));
        }
        let paused_until = Some(state.paused_until()).filter(|until| *until != Wall::ZERO);
        if let Some(until) = paused_until {
            config.pause_until = Some(Time(until));
            require_pause(&mut config.metadata);
        }
        let delivered = live
            .as_ref()
            .map_or_else(Position::default, |live| live.delivered)
            // A purge moves the state on, and not what was sent.
            .max(state.delivered());
        // Without acknowledgements what is delivered is done. The log learns of it later, in larger steps.
        let ack_floor = match consumer.config().ack_policy {
            AckPolicy::None => delivered,
            AckPolicy::All | AckPolicy::Explicit | AckPolicy::FlowControl => state.ack_floor(),
        };
        let last_delivered = live
            .as_ref()
            .map_or_else(|| state.last_delivered(), |live| live.last_delivered);
        let num_pending = match &live {
            Some(live) => live.num_pending,
            None => stream.pending_for(consumer, state.delivered().stream_seq.next()),
        };
        let once = consumer.config().max_deliver == Some(1);
        Some(ConsumerInfo {
            stream_name: stream.config().name.clone(),
            name: name.to_owned(),
            created: Time(state.created()),
            config: Some(config),
            delivered: position(delivered, last_delivered),
            ack_floor: position(ack_floor, state.last_ack()),
            num_ack_pending: state.num_ack_pending() as u64,
            num_redelivered: if once { 0 } else { state.num_redelivered() },
            num_waiting: live.as_ref().map_or(0, |live| live.num_waiting as u64),
            num_pending,
            cluster: self.consumer_cluster(group, name),
            push_bound: live.as_ref().is_some_and(|live| live.push_bound),
            paused: paused_until.is_some_and(|until| until > now),
            pause_remaining: remaining(paused_until, now),
            ts: Time(now),
            priority_groups: Vec::new(),
        })
    }

    /// The `cluster` block of a consumer: its state is wherever the stream's is, and the stream's leader leads it.
    fn consumer_cluster(&self, group: GroupId, name: &str) -> Option<tidelock_api::ClusterInfo> {
        if !self.is_clustered() {
            return None;
        }
        let mut info = self.cluster_info(group)?;
        let stream = self.stream(group)?;
        let consumer = stream.consumer(name)?;
        let config = consumer.config();
        let replicas = config.effective_replicas(stream.config().num_replicas, stream.config().retention);
        if replicas <= 1 {
            let (name, leader) = (info.name, info.leader);
            return Some(tidelock_api::ClusterInfo {
                name,
                leader,
                ..tidelock_api::ClusterInfo::default()
            });
        }
        if !info.raft_group.is_empty() {
            info.raft_group = self.slot(group)?.consumer_group_name(stream, consumer);
        }
        Some(info)
    }
}

/// A consumer that is paused needs API level 1 (ADR-44).
fn require_pause(metadata: &mut BTreeMap<String, String>) {
    if let Some(level) = metadata.get_mut("_nats.req.level").filter(|level| *level == "0") {
        level.replace_range(.., "1");
    }
}

fn position(at: Position, when: Wall) -> SequenceInfo {
    SequenceInfo {
        consumer_seq: at.deliver_seq.0,
        stream_seq: at.stream_seq.0,
        last_active: Some(when).filter(|when| *when != Wall::ZERO).map(Time),
    }
}
