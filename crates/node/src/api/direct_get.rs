//! DIRECT.GET: messages as they are stored, and batches of them. Served by the stream's leader after a read.

use super::control::Control;
use super::direct_rules::{Bounds, MultiLast, Query, Start, UpTo, Wanted, direct};
use super::entry::level_error;
use super::subjects::Call;
use super::{Job, Stage};
use crate::cell::Request;
use crate::groups::Waiter;
use crate::worker::Core;
use bytes::Bytes;
use std::io::Write;
use tidelock_api::Time;
use tidelock_base::{LogIndex, StreamSeq};
use tidelock_jetstream::stream::Stream;
use tidelock_record::RecordView;
use tidelock_store::{Filters, Lookup, Need, Store, Stored, Unanswered};

/// Subjects of one `multi_last`.
const MULTI_LAST_MAX: usize = 1024;
const NOT_FOUND: &str = "404 Message Not Found";
const NO_RESULTS: &str = "404 No Results";
const TOO_MANY: &str = "413 Too Many Results";
const DAMAGED: &str = "500 message is damaged";

/// Why a message cannot be given now.
#[derive(Debug)]
pub(super) enum Stop {
    /// There is none.
    Missing,
    /// It has to be read from disk first.
    Cold(Need),
    /// It is damaged here.
    Damaged(StreamSeq),
}

impl From<Unanswered> for Stop {
    fn from(why: Unanswered) -> Self {
        match why {
            Unanswered::Need(need) => Self::Cold(need),
            Unanswered::Damaged(seq) => Self::Damaged(seq),
        }
    }
}

/// A batch that is being sent.
#[derive(Debug)]
pub(super) struct Batch {
    source: Source,
    bounds: Bounds,
    no_hdr: bool,
    sent: u64,
    bytes: u64,
    /// Messages behind the last one sent.
    pending: u64,
    last: StreamSeq,
    /// What `multi_last` is answered up to.
    upto: Option<StreamSeq>,
}

/// Where a batch takes its messages from.
#[derive(Debug)]
enum Source {
    /// Those that match, from a sequence on.
    From(StreamSeq, Filters),
    /// These.
    List(std::vec::IntoIter<StreamSeq>, Option<StreamSeq>),
}

impl Core {
    /// DIRECT.GET, after a read.
    pub(super) fn direct_get(&mut self, job: Box<Job>, call: &Call<'_>) {
        if level_error(&job.request.header).is_some() {
            return self.reply_status(&job.request, "412 Required Api Level", "");
        }
        let Some(stream) = self.stream(job.group) else {
            return;
        };
        if !stream.config().allow_direct {
            return self.reply_control(&job.request, &Control::NoResponders, LogIndex(0));
        }
        let (wanted, no_hdr) = match direct(call, &job.request.payload) {
            Ok(wanted) => wanted,
            Err(fault) => return self.reply_status(&job.request, fault.status(), ""),
        };
        let batch = match wanted {
            Wanted::One(query) => match find(stream, &query) {
                Ok(stored) => {
                    let name = &stream.config().name.clone();
                    return self.reply_message(&job.request, name, &stored, no_hdr, None);
                }
                Err(stop) => return self.direct_stopped(job, stop),
            },
            Wanted::Batch(start, filters, bounds) => first_of(stream, start).map(|from| {
                let pending = stream.store().count_matching(from, &filters);
                Batch::new(Source::From(from, filters), bounds, no_hdr, pending, None)
            }),
            Wanted::MultiLast(multi, bounds) => match multi_last(stream, &multi) {
                Ok(Ok((list, upto))) => {
                    let pending = list.len() as u64;
                    Ok(Batch::new(
                        Source::List(list.into_iter(), None),
                        bounds,
                        no_hdr,
                        pending,
                        Some(upto),
                    ))
                }
                Ok(Err(status)) => return self.reply_status(&job.request, status, ""),
                Err(stop) => Err(stop),
            },
        };
        match batch {
            Ok(batch) => self.go_on_direct(job.at(Stage::Direct(Box::new(batch))), call),
            Err(stop) => self.direct_stopped(job, stop),
        }
    }

    /// A single message, or the start of a batch, is not there yet, or not at all.
    fn direct_stopped(&mut self, job: Box<Job>, stop: Stop) {
        match stop {
            Stop::Cold(need) => self.fetch_for(job, need),
            Stop::Missing => self.reply_status(&job.request, NOT_FOUND, ""),
            Stop::Damaged(seq) => {
                if let Some(job) = self.wait_for_copy(job.at(Stage::Read), seq) {
                    self.reply_status(&job.request, DAMAGED, "");
                }
            }
        }
    }

    /// Reads a block, and runs a job again then.
    pub(super) fn fetch_for(&mut self, job: Box<Job>, need: Need) {
        let group = job.group;
        self.fetch(group, need, Waiter::Api(job.at(Stage::Read)));
    }

    /// Runs a job again when a message that is damaged here has come from another replica. Gives the job back if that is not
    /// to be expected.
    pub(super) fn wait_for_copy(&mut self, job: Box<Job>, seq: StreamSeq) -> Option<Box<Job>> {
        let group = job.group;
        if !self.slot(group).is_some_and(|slot| slot.awaits_copy(seq)) {
            return Some(job);
        }
        self.fetch(group, Need { seq, record: true }, Waiter::Api(job));
        None
    }

    /// Sends of a batch what there is in memory, and comes back for the rest.
    pub(super) fn go_on_direct(&mut self, mut job: Box<Job>, _call: &Call<'_>) {
        let Stage::Direct(mut batch) = std::mem::replace(&mut job.stage, Stage::Command) else {
            return;
        };
        let bytes_max = batch
            .bounds
            .bytes
            .unwrap_or(self.shared.options.limits.max_pending);
        let Some(name) = self.stream(job.group).map(|stream| stream.config().name.clone()) else {
            return;
        };
        while batch.sent < batch.bounds.messages {
            let stored = match self.stream(job.group).map(|stream| batch.next(stream)) {
                Some(Ok(Some(stored))) => stored,
                Some(Ok(None) | Err(Stop::Missing)) | None => break,
                Some(Err(Stop::Cold(need))) => {
                    let group = job.group;
                    return self.fetch(group, need, Waiter::Api(job.at(Stage::Direct(batch))));
                }
                Some(Err(Stop::Damaged(seq))) => {
                    if let Some(job) = self.wait_for_copy(job.at(Stage::Direct(batch)), seq) {
                        self.reply_status(&job.request, DAMAGED, "");
                    }
                    return;
                }
            };
            let size = (stored.record.len() as u64).saturating_sub(tidelock_record::RECORD_HEAD_BYTES as u64);
            // The message that goes beyond is still sent.
            if batch.sent > 0 && batch.bytes >= bytes_max {
                break;
            }
            batch.bytes = batch.bytes.saturating_add(size);
            batch.sent += 1;
            if !batch.no_hdr {
                // nats-server counts down with the headers only.
                batch.pending = batch.pending.saturating_sub(1);
            }
            let place = (batch.pending, batch.last);
            batch.last = stored.seq;
            batch.took(stored.seq);
            self.reply_message(&job.request, &name, &stored, batch.no_hdr, Some(place));
        }
        if batch.sent == 0 {
            let status = if batch.upto.is_some() {
                NO_RESULTS
            } else {
                NOT_FOUND
            };
            return self.reply_status(&job.request, status, "");
        }
        let mut lines = format!(
            "Nats-Num-Pending: {}\r\nNats-Last-Sequence: {}\r\n",
            batch.pending, batch.last
        );
        if let Some(upto) = batch.upto {
            lines.push_str(&format!("Nats-UpTo-Sequence: {upto}\r\n"));
        }
        self.reply_status(&job.request, "204 EOB", &lines);
    }

    /// The last reply: a status without a body, with these header lines.
    pub(super) fn reply_status(&mut self, request: &Request, status: &str, lines: &str) {
        let header = format!("NATS/1.0 {status}\r\n{lines}\r\n");
        self.reply_to(request, header.into(), Bytes::new(), true, LogIndex(0));
    }

    /// A stored message as a reply; of a batch with what is left and the message before it, and more to come.
    fn reply_message(
        &mut self,
        request: &Request,
        stream: &str,
        stored: &Stored,
        no_hdr: bool,
        of_batch: Option<(u64, StreamSeq)>,
    ) {
        let Ok(record) = RecordView::parse(&stored.record) else {
            return self.reply_status(request, DAMAGED, "");
        };
        let mut header = std::mem::take(&mut self.api.header);
        header.clear();
        if !no_hdr {
            write_header(&mut header, stream, &record, stored, of_batch);
        }
        let block = Bytes::copy_from_slice(&header);
        self.api.header = header;
        self.reply_to(
            request,
            block,
            record.payload_bytes(),
            of_batch.is_none(),
            LogIndex(0),
        );
    }
}

impl Batch {
    fn new(source: Source, bounds: Bounds, no_hdr: bool, pending: u64, upto: Option<StreamSeq>) -> Self {
        Self {
            source,
            bounds,
            no_hdr,
            sent: 0,
            bytes: 0,
            pending,
            last: StreamSeq(0),
            upto,
        }
    }

    /// The next message; it stays the next one until [`Batch::took`].
    fn next(&mut self, stream: &Stream) -> Result<Option<Stored>, Stop> {
        let store = stream.store();
        match &mut self.source {
            Source::From(from, filters) => match store.next_matching(*from, filters)? {
                Some(seq) => fetched(store, seq).map(Some),
                None => Ok(None),
            },
            Source::List(left, current) => loop {
                let Some(seq) = current.take().or_else(|| left.next()) else {
                    return Ok(None);
                };
                match fetched(store, seq) {
                    // Overwritten while an earlier one was read from disk.
                    Err(Stop::Missing) => {}
                    Err(stop) => {
                        *current = Some(seq);
                        return Err(stop);
                    }
                    Ok(stored) => {
                        *current = Some(seq);
                        return Ok(Some(stored));
                    }
                }
            },
        }
    }

    /// The message was sent.
    fn took(&mut self, seq: StreamSeq) {
        match &mut self.source {
            Source::From(from, _) => *from = seq.next(),
            Source::List(_, current) => *current = None,
        }
    }
}

/// Stored headers, then those that say which message it is.
fn write_header(
    out: &mut Vec<u8>,
    stream: &str,
    record: &RecordView,
    stored: &Stored,
    of_batch: Option<(u64, StreamSeq)>,
) {
    match record.header().strip_suffix(b"\r\n") {
        Some(block) => out.extend_from_slice(block),
        None => out.extend_from_slice(b"NATS/1.0\r\n"),
    }
    out.extend_from_slice(b"Nats-Stream: ");
    out.extend_from_slice(stream.as_bytes());
    out.extend_from_slice(b"\r\nNats-Subject: ");
    out.extend_from_slice(record.subject());
    let numbers = write!(
        out,
        "\r\nNats-Sequence: {}\r\nNats-Time-Stamp: {}\r\n",
        stored.seq,
        Time(stored.ts)
    );
    let place = of_batch.map_or(Ok(()), |(pending, last)| {
        write!(
            out,
            "Nats-Num-Pending: {pending}\r\nNats-Last-Sequence: {last}\r\n"
        )
    });
    debug_assert!(numbers.and(place).is_ok(), "a Vec takes all of it");
    out.extend_from_slice(b"\r\n");
}

fn fetched(store: &Store, seq: StreamSeq) -> Result<Stored, Stop> {
    match store.get(seq) {
        Lookup::Found(stored) => Ok(stored),
        Lookup::Missing => Err(Stop::Missing),
        Lookup::Cold(need) => Err(Stop::Cold(need)),
        Lookup::Damaged => Err(Stop::Damaged(seq)),
    }
}

/// The message that a query asks for.
pub(super) fn find(stream: &Stream, query: &Query) -> Result<Stored, Stop> {
    let store = stream.store();
    let seq = match query {
        Query::Seq(seq) => *seq,
        Query::Last(filters) => store.last_matching(filters).ok_or(Stop::Missing)?,
        Query::Next(start, filters) => {
            let from = first_of(stream, *start)?;
            store.next_matching(from, filters)?.ok_or(Stop::Missing)?
        }
    };
    fetched(store, seq)
}

fn first_of(stream: &Stream, start: Start) -> Result<StreamSeq, Stop> {
    match start {
        Start::Seq(seq) => Ok(seq.max(StreamSeq(1))),
        Start::Time(time) => Ok(stream.store().seq_at_or_after(time)?),
    }
}

/// The sequences that `multi_last` asks for and what they are answered up to, or the status that it is refused with.
fn multi_last(
    stream: &Stream,
    wanted: &MultiLast,
) -> Result<Result<(Vec<StreamSeq>, StreamSeq), &'static str>, Stop> {
    let store = stream.store();
    let upto = match wanted.upto {
        UpTo::Now => store.last_seq(),
        UpTo::Seq(seq) => seq.min(store.last_seq()),
        UpTo::Time(time) => StreamSeq(store.seq_at_or_after(time)?.0.saturating_sub(1)),
    };
    Ok(
        match store.multi_last(&wanted.filters, wanted.from, upto, MULTI_LAST_MAX) {
            Err(_) => Err(TOO_MANY),
            Ok(list) if list.is_empty() => Err(NO_RESULTS),
            Ok(list) => Ok((list, upto)),
        },
    )
}
