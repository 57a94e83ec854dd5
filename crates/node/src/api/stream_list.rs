//! STREAM.NAMES and STREAM.LIST.

use super::subjects::Endpoint;
use super::tracking::Origin;
use super::{Job, Stage};
use crate::cell::Request;
use crate::worker::Core;
use bytes::Bytes;
use tidelock_api::{
    ResponseKind, StreamInfo, StreamList, StreamListRequest, StreamNames, StreamNamesRequest,
    decode_optional, decode_strict,
};
use tidelock_base::AccountId;
use tidelock_jetstream::meta::StreamEntry;
use tidelock_subject::overlaps;

/// Streams of a page of STREAM.NAMES.
const NAMES_LIMIT: u64 = 1024;
/// Streams of a page of STREAM.LIST.
const LIST_LIMIT: u64 = 256;

/// A page of names.
#[derive(Debug)]
pub(super) struct Page {
    total: u64,
    offset: u64,
    names: Vec<String>,
}

impl Core {
    /// STREAM.NAMES at the metadata's leader.
    pub(super) fn stream_names(&mut self, job: &Job) {
        let wanted = decode_optional::<StreamNamesRequest>(&job.request.payload, self.is_strict());
        let page = wanted
            .map(|wanted| self.page_of_streams(&job.request, wanted.offset, &wanted.subject, NAMES_LIMIT));
        let page = match page {
            Ok(page) => page,
            Err(error) => return self.refuse(&job.request, Endpoint::StreamNames, &error),
        };
        let streams = (!page.names.is_empty()).then_some(page.names);
        let answer = StreamNames {
            total: page.total,
            offset: page.offset,
            limit: NAMES_LIMIT,
            streams,
        };
        self.reply_changed(&job.request, ResponseKind::StreamNames, &answer);
    }

    /// STREAM.LIST at the metadata's leader: each stream's own leader says what it holds.
    pub(super) fn stream_list(&mut self, job: Box<Job>) {
        let wanted = decode_optional::<StreamListRequest>(&job.request.payload, self.is_strict());
        let page = wanted
            .map(|wanted| self.page_of_streams(&job.request, wanted.offset, &wanted.subject, LIST_LIMIT));
        let page = match page {
            Ok(page) => page,
            Err(error) => return self.refuse(&job.request, Endpoint::StreamList, &error),
        };
        let account = job.request.account;
        let names = page.names.clone();
        let job = job.at(Stage::Listing(page));
        if names.is_empty() {
            return self.streams_listed(job, &[]);
        }
        let gather = self.gather(job, names.len());
        for (part, name) in names.iter().enumerate() {
            self.ask(Origin::Gather(gather, part), account, "INFO", name, Bytes::new());
        }
    }

    /// All streams have answered that will.
    pub(super) fn streams_listed(&mut self, job: Box<Job>, parts: &[Option<Bytes>]) {
        let Job {
            request,
            stage: Stage::Listing(page),
            ..
        } = *job
        else {
            return;
        };
        let clustered = self.is_clustered();
        let mut answer = StreamList {
            total: page.total,
            offset: page.offset,
            limit: LIST_LIMIT,
            ..StreamList::default()
        };
        for (name, part) in page.names.into_iter().zip(parts) {
            match part
                .as_ref()
                .and_then(|json| decode_strict::<StreamInfo>(json, false).ok())
            {
                Some(mut info) => {
                    info.cluster = info.cluster.filter(|_| clustered);
                    answer.streams.push(info);
                }
                None => answer.missing.push(name),
            }
        }
        self.reply_changed(&request, ResponseKind::StreamList, &answer);
    }

    fn page_of_streams(&self, request: &Request, offset: i64, subject: &str, limit: u64) -> Page {
        let names = self.stream_names_of(request.account, subject);
        let total = names.len() as u64;
        let offset = u64::try_from(offset).unwrap_or(0).min(total);
        let skip = usize::try_from(offset).unwrap_or(usize::MAX);
        let names = names
            .into_iter()
            .skip(skip)
            .take(usize::try_from(limit).unwrap_or(usize::MAX))
            .collect();
        Page { total, offset, names }
    }

    /// Names of an account's streams, sorted, with a subject that meets `subject` unless that is empty.
    fn stream_names_of(&self, account: AccountId, subject: &str) -> Vec<String> {
        let account = self.account_name(account);
        let clustered = self.is_clustered();
        let Some(meta) = self.meta() else {
            return Vec::new();
        };
        meta.streams_of(&account)
            .filter(|entry| subject.is_empty() || meets(entry, subject, clustered))
            .map(|entry| entry.spec.name.clone())
            .collect()
    }
}

/// Whether a stream stores something of a subject. In a cluster a stream without subjects goes by its name.
fn meets(entry: &StreamEntry, subject: &str, clustered: bool) -> bool {
    let subject = subject.as_bytes();
    if entry.spec.subjects.is_empty() {
        return clustered && overlaps(entry.spec.name.as_bytes(), subject);
    }
    entry.spec.subjects.iter().any(|own| overlaps(own, subject))
}
