//! STREAM.INFO, and what other answers show of a stream.

use super::Job;
use super::subjects::Call;
use crate::cell::Request;
use crate::worker::Core;
use std::collections::BTreeMap;
use tidelock_api::{
    Alternate, Nanos, ResponseKind, StreamInfo, StreamInfoRequest, StreamInfoResponse, StreamSource,
    StreamSourceInfo, StreamState, Time, decode_optional, ok_response, to_json,
};
use tidelock_base::{AccountId, ApiError, GroupId};
use tidelock_jetstream::config::with_dynamic;
use tidelock_jetstream::stream::{Stream, source_key};

/// Subjects of a page of `state.subjects`.
const SUBJECTS_LIMIT: u64 = 100_000;
/// `active` of an origin that has not been heard of.
const NEVER: Nanos = Nanos(-1);
/// Sequences that `state.deleted` lists at most; an answer with more would not fit into a message anyway.
const DELETED_MAX: usize = 1_000_000;

impl Core {
    /// STREAM.INFO at the stream's leader.
    pub(super) fn stream_info(&mut self, job: &Job, call: &Call<'_>) {
        match self.stream_info_payload(&job.request, job.group) {
            Ok(payload) => self.reply_json(&job.request, payload),
            Err(error) => self.refuse(&job.request, call.endpoint, &error),
        }
    }

    fn stream_info_payload(&self, request: &Request, group: GroupId) -> Result<Vec<u8>, ApiError> {
        let wanted: StreamInfoRequest = decode_optional(&request.payload, self.is_strict())?;
        let mut answer = StreamInfoResponse::default();
        if let Some(info) = self.describe(group) {
            answer.info = info;
            answer.info.domain = self.domain();
            let metadata = std::mem::take(&mut answer.info.config.metadata);
            answer.info.config.metadata = with_dynamic(metadata);
            answer.info.alternates = self.alternates(request.account, &answer.info.config.name);
        }
        if let Some(stream) = self.stream(group) {
            if wanted.deleted_details {
                answer.info.state.deleted = deleted(stream);
            }
            if !wanted.subjects_filter.is_empty() {
                add_subjects(&mut answer, stream, &wanted);
            }
        }
        Ok(ok_response(ResponseKind::StreamInfo, &answer))
    }

    /// The stream and its mirrors, for readers that look for one nearby; nothing where there is no choice.
    fn alternates(&self, account: AccountId, name: &str) -> Vec<Alternate> {
        if !self.is_clustered() {
            return Vec::new();
        }
        let cluster = self
            .shared
            .cluster_name()
            .as_deref()
            .unwrap_or_default()
            .to_owned();
        let directory = self.shared.directory.load();
        let mut mirrors = directory.mirrors_of(account, name).peekable();
        if mirrors.peek().is_none() {
            return Vec::new();
        }
        let domain = self.domain();
        let alternate = |name: &str| Alternate {
            name: name.to_owned(),
            domain: domain.clone(),
            cluster: cluster.clone(),
        };
        std::iter::once(alternate(name))
            .chain(mirrors.map(|mirror| alternate(mirror)))
            .collect()
    }

    /// What a stream is, for answers that another leader makes of it.
    pub(super) fn inner_info(&mut self, job: &Job) {
        let info = self.describe(job.group).unwrap_or_default();
        self.reply_json(&job.request, to_json(&info));
    }

    /// A stream as lists show it: as configured, without the domain. The state is that of the local replica.
    pub(crate) fn describe(&self, group: GroupId) -> Option<StreamInfo> {
        let stream = self.stream(group)?;
        let config = stream.config().to_api();
        let origin = |source: &StreamSource| self.source_info(group, source);
        Some(StreamInfo {
            mirror: config.mirror.as_ref().map(origin),
            sources: config.sources.iter().map(origin).collect(),
            config,
            created: Time(stream.created()),
            state: state_of(stream),
            domain: String::new(),
            cluster: self.cluster_info(group),
            alternates: Vec::new(),
            ts: Time(self.now.wall),
        })
    }

    /// How far a mirror or source is.
    fn source_info(&self, group: GroupId, source: &StreamSource) -> StreamSourceInfo {
        let stream = self.stream(group);
        let origin = stream.and_then(|stream| {
            let mut origins = stream.config().sources.iter().chain(&stream.config().mirror);
            origins.find(|origin| {
                let filter = origin
                    .filter
                    .as_ref()
                    .map(ToString::to_string)
                    .unwrap_or_default();
                origin.name == source.name && filter == source.filter_subject
            })
        });
        let key = origin.map(source_key).unwrap_or_default();
        let is_mirror = stream.is_some_and(|stream| stream.config().mirror.is_some());
        let position = stream
            .and_then(|stream| stream.source(&key))
            .filter(|_| !is_mirror);
        let live = self.source_live(group, &key);
        let active = live.as_ref().and_then(|live| live.active);
        StreamSourceInfo {
            name: source.name.clone(),
            external: source.external.clone(),
            lag: live.as_ref().map_or(0, |live| live.lag),
            seq: position.map_or(0, |position| position.seq.0),
            active: active.map_or(NEVER, Nanos::from),
            error: live.and_then(|live| live.error),
            filter_subject: source.filter_subject.clone(),
            subject_transforms: source.subject_transforms.clone(),
        }
    }
}

/// Totals of a stream.
fn state_of(stream: &Stream) -> StreamState {
    let state = stream.state();
    let consumers = stream.users_consumers().count();
    StreamState {
        messages: state.msgs,
        bytes: state.bytes,
        first_seq: state.first_seq.0,
        first_ts: Time(state.first_ts),
        last_seq: state.last_seq.0,
        last_ts: Time(state.last_ts),
        num_subjects: state.num_subjects,
        num_deleted: state.num_deleted,
        consumer_count: consumers as u64,
        ..StreamState::default()
    }
}

fn deleted(stream: &Stream) -> Vec<u64> {
    stream
        .store()
        .deleted()
        .flat_map(|(from, to)| from.0..=to.0)
        .take(DELETED_MAX)
        .collect()
}

/// Adds a page of the subjects that match, in their order, and how many messages each has.
fn add_subjects(answer: &mut StreamInfoResponse, stream: &Stream, wanted: &StreamInfoRequest) {
    let filter = wanted.subjects_filter.as_bytes();
    if !tidelock_subject::is_valid_filter(filter) {
        return;
    }
    let offset = u64::try_from(wanted.offset).unwrap_or(0);
    let mut page = BTreeMap::new();
    let mut total = 0;
    let mut walk = stream.store().subjects((filter != b">").then_some(filter));
    while let Some((subject, state)) = walk.next() {
        if total >= offset && total - offset < SUBJECTS_LIMIT {
            page.insert(String::from_utf8_lossy(subject).into_owned(), state.count);
        }
        total += 1;
    }
    if total > 0 {
        (answer.total, answer.offset, answer.limit) = (total, offset, SUBJECTS_LIMIT);
        answer.info.state.subjects = (!page.is_empty()).then_some(page);
    }
}
