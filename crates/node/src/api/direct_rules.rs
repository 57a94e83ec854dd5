//! What a request for messages asks for, and whether it makes sense: the rules of DIRECT.GET and STREAM.MSG.GET.

use super::subjects::{Call, Endpoint};
use tidelock_api::{DirectGetRequest, MsgGetRequest, decode_lenient};
use tidelock_base::{ApiError, ApiErrorCode, StreamSeq, Wall};
use tidelock_store::Filters;
use tidelock_subject::SubjectFilter;

/// Which message.
#[derive(Clone, Debug)]
pub(super) enum Query {
    /// The one with this sequence.
    Seq(StreamSeq),
    /// The newest that matches.
    Last(Filters),
    /// The first that matches, at or after the start.
    Next(Start, Filters),
}

/// Where to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    Seq(StreamSeq),
    Time(Wall),
}

/// The newest message of each subject.
#[derive(Clone, Debug)]
pub(super) struct MultiLast {
    pub(super) filters: Filters,
    /// Only those whose newest message is at or after this.
    pub(super) from: StreamSeq,
    pub(super) upto: UpTo,
}

/// As of when `multi_last` is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpTo {
    Now,
    Seq(StreamSeq),
    /// Before this time.
    Time(Wall),
}

/// A request that makes sense.
#[derive(Clone, Debug)]
pub(super) enum Wanted {
    /// One message.
    One(Query),
    /// So many messages from there on.
    Batch(Start, Filters, Bounds),
    /// The newest of each subject.
    MultiLast(MultiLast, Bounds),
}

/// Where a batch ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    /// Messages at most.
    pub(super) messages: u64,
    /// Bytes at most; `None` means the server's own bound.
    pub(super) bytes: Option<u64>,
}

/// A refusal of DIRECT.GET.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Empty,
    Malformed,
    Bad,
}

impl Fault {
    pub(super) const fn status(self) -> &'static str {
        match self {
            Self::Empty => "408 Empty Request",
            Self::Malformed => "408 Malformed Request",
            Self::Bad => "408 Bad Request",
        }
    }
}

/// What a DIRECT.GET asks for, and whether without headers.
pub(super) fn direct(call: &Call<'_>, body: &[u8]) -> Result<(Wanted, bool), Fault> {
    if call.endpoint == Endpoint::DirectLast {
        let no_hdr = match body.is_empty() {
            true => false,
            false => {
                let request = decode_lenient::<DirectGetRequest>(body).map_err(|_| Fault::Malformed)?;
                let only = DirectGetRequest {
                    no_hdr: request.no_hdr,
                    ..DirectGetRequest::default()
                };
                if request != only {
                    return Err(Fault::Bad);
                }
                request.no_hdr
            }
        };
        return Ok((
            Wanted::One(Query::Last(filter(call.rest).ok_or(Fault::Bad)?)),
            no_hdr,
        ));
    }
    if body.is_empty() {
        return Err(Fault::Empty);
    }
    let request = decode_lenient::<DirectGetRequest>(body).map_err(|_| Fault::Malformed)?;
    if is_conflicting(&request) {
        return Err(Fault::Bad);
    }
    if !request.multi_last.is_empty() {
        let filters = request
            .multi_last
            .iter()
            .filter_map(|text| SubjectFilter::try_from(text.as_str()).ok());
        let filters: Vec<SubjectFilter> = filters.collect();
        if filters.is_empty() {
            return Err(Fault::Bad);
        }
        let upto = match (request.up_to_seq, request.up_to_time) {
            (0, None) => UpTo::Now,
            (0, Some(time)) => UpTo::Time(time.0),
            (seq, _) => UpTo::Seq(StreamSeq(seq)),
        };
        let multi = MultiLast {
            filters: Filters::new(filters),
            from: StreamSeq(request.seq),
            upto,
        };
        return Ok((
            Wanted::MultiLast(multi, bounds(&request).unwrap_or(Bounds::ALL)),
            request.no_hdr,
        ));
    }
    let bounds = bounds(&request).filter(|_| request.batch > 0);
    let wanted = match (query(&request)?, bounds) {
        (one, None) => Wanted::One(one),
        (Query::Seq(seq), Some(bounds)) => Wanted::Batch(Start::Seq(seq), Filters::all(), bounds),
        (Query::Next(start, filters), Some(bounds)) => Wanted::Batch(start, filters, bounds),
        (Query::Last(_), Some(_)) => return Err(Fault::Bad),
    };
    Ok((wanted, request.no_hdr))
}

impl Bounds {
    const ALL: Self = Self {
        messages: u64::MAX,
        bytes: None,
    };
}

fn bounds(request: &DirectGetRequest) -> Option<Bounds> {
    let messages = u64::try_from(request.batch).ok().filter(|most| *most > 0);
    let bytes = u64::try_from(request.max_bytes).ok().filter(|most| *most > 0);
    if messages.is_none() && bytes.is_none() {
        return None;
    }
    Some(Bounds {
        messages: messages.unwrap_or(u64::MAX),
        bytes,
    })
}

/// Members that exclude each other.
fn is_conflicting(request: &DirectGetRequest) -> bool {
    let last = !request.last_by_subj.is_empty();
    let next = !request.next_by_subj.is_empty();
    let multi = !request.multi_last.is_empty();
    let (seq, time) = (request.seq > 0, request.start_time.is_some());
    let pairs = [
        (seq, last || time),
        (last, time || next || multi || request.batch > 0),
        (next, multi),
        (request.up_to_seq > 0, request.up_to_time.is_some()),
    ];
    pairs.into_iter().any(|(one, other)| one && other)
}

/// The one message that is asked for.
fn query(request: &MsgGetRequest) -> Result<Query, Fault> {
    if !request.last_by_subj.is_empty() {
        return Ok(Query::Last(filter(&request.last_by_subj).ok_or(Fault::Bad)?));
    }
    let filters = match request.next_by_subj.as_str() {
        "" => None,
        text => Some(filter(text).ok_or(Fault::Bad)?),
    };
    match (request.start_time, filters) {
        (Some(time), filters) => Ok(Query::Next(
            Start::Time(time.0),
            filters.unwrap_or_else(Filters::all),
        )),
        (None, Some(filters)) => Ok(Query::Next(Start::Seq(StreamSeq(request.seq)), filters)),
        (None, None) if request.seq > 0 => Ok(Query::Seq(StreamSeq(request.seq))),
        (None, None) => Err(Fault::Empty),
    }
}

/// What a STREAM.MSG.GET asks for.
///
/// # Errors
/// 10003.
pub(super) fn stored(request: &MsgGetRequest) -> Result<Query, ApiError> {
    let bad = || ApiError::new(ApiErrorCode::BadRequest);
    if is_conflicting(request) || request.batch > 0 || request.max_bytes > 0 || !request.multi_last.is_empty()
    {
        return Err(bad());
    }
    query(request).map_err(|_| bad())
}

fn filter(text: &str) -> Option<Filters> {
    SubjectFilter::try_from(text).ok().map(Filters::one)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(subject: &str, body: &str) -> String {
        let call = Call::parse(subject.as_bytes()).expect("an endpoint");
        match direct(&call, body.as_bytes()) {
            Err(fault) => fault.status().to_owned(),
            Ok((wanted, no_hdr)) => {
                let what = match wanted {
                    Wanted::One(Query::Seq(seq)) => format!("seq {seq}"),
                    Wanted::One(Query::Last(_)) => "last".to_owned(),
                    Wanted::One(Query::Next(start, _)) => format!("next {start:?}"),
                    Wanted::Batch(start, filters, bounds) => {
                        format!(
                            "batch {start:?} all={} {} {:?}",
                            filters.is_all(),
                            bounds.messages,
                            bounds.bytes
                        )
                    }
                    Wanted::MultiLast(multi, bounds) => {
                        format!("multi from {} {:?} {:?}", multi.from, multi.upto, bounds.bytes)
                    }
                };
                if no_hdr { format!("{what} bare") } else { what }
            }
        }
    }

    /// Answers of nats-server 2.15.1 to the same bodies.
    #[test]
    fn bodies_mean_what_they_mean_on_nats_server() {
        let direct = |body: &str| ask("$JS.API.DIRECT.GET.S", body);
        for (body, means) in [
            ("", "408 Empty Request"),
            ("{}", "408 Empty Request"),
            ("x", "408 Malformed Request"),
            (r#"{"seq":"x"}"#, "408 Malformed Request"),
            (r#"{"batch":2}"#, "408 Empty Request"),
            (r#"{"max_bytes":5}"#, "408 Empty Request"),
            (r#"{"seq":3}"#, "seq 3"),
            (r#"{"seq":3,"no_hdr":true}"#, "seq 3 bare"),
            (r#"{"seq":1,"max_bytes":5}"#, "seq 1"),
            (r#"{"seq":1,"up_to_seq":4}"#, "seq 1"),
            (r#"{"last_by_subj":"t.*"}"#, "last"),
            (r#"{"last_by_subj":"t.b","seq":1}"#, "408 Bad Request"),
            (r#"{"last_by_subj":"t.a","batch":1}"#, "408 Bad Request"),
            (
                r#"{"last_by_subj":"t.a","next_by_subj":"t.a"}"#,
                "408 Bad Request",
            ),
            (r#"{"next_by_subj":"t.b"}"#, "next Seq(StreamSeq(0))"),
            (r#"{"next_by_subj":"t.b","seq":2}"#, "next Seq(StreamSeq(2))"),
            (
                r#"{"next_by_subj":"t.b","batch":9,"max_bytes":1}"#,
                "batch Seq(StreamSeq(0)) all=false 9 Some(1)",
            ),
            (
                r#"{"seq":4,"batch":30}"#,
                "batch Seq(StreamSeq(4)) all=true 30 None",
            ),
            (
                r#"{"start_time":"2020-01-01T00:00:00Z","seq":2}"#,
                "408 Bad Request",
            ),
            (
                r#"{"start_time":"2020-01-01T00:00:00Z","last_by_subj":"a"}"#,
                "408 Bad Request",
            ),
            (
                r#"{"start_time":"1970-01-01T00:00:01Z"}"#,
                "next Time(Wall(1000000000))",
            ),
            (
                r#"{"start_time":"1970-01-01T00:00:01Z","batch":2}"#,
                "batch Time(Wall(1000000000)) all=true 2 None",
            ),
            (r#"{"multi_last":["t.>"]}"#, "multi from 0 Now None"),
            (
                r#"{"multi_last":["t.>"],"seq":5,"up_to_seq":9}"#,
                "multi from 5 Seq(StreamSeq(9)) None",
            ),
            (
                r#"{"multi_last":["t.>"],"start_time":"2020-01-01T00:00:00Z"}"#,
                "multi from 0 Now None",
            ),
            (
                r#"{"multi_last":["t.>"],"next_by_subj":"t.a"}"#,
                "408 Bad Request",
            ),
            (
                r#"{"multi_last":["t.>"],"last_by_subj":"t.a"}"#,
                "408 Bad Request",
            ),
            (
                r#"{"multi_last":["a"],"up_to_seq":1,"up_to_time":"2020-01-01T00:00:00Z"}"#,
                "408 Bad Request",
            ),
        ] {
            assert_eq!(direct(body), means, "{body}");
        }
    }

    #[test]
    fn the_subject_form_allows_no_other_member() {
        let last = |body: &str| ask("$JS.API.DIRECT.GET.S.t.a", body);
        assert_eq!(last(""), "last");
        assert_eq!(last(r#"{"no_hdr":true}"#), "last bare");
        assert_eq!(last("{}"), "last");
        assert_eq!(last("{"), "408 Malformed Request");
        assert_eq!(last(r#"{"seq":1}"#), "408 Bad Request");
    }

    #[test]
    fn stored_messages_are_asked_for_one_at_a_time() {
        let ask = |body: &str| {
            let request = tidelock_api::decode_strict::<MsgGetRequest>(body.as_bytes(), true).expect("valid");
            stored(&request).map_err(|error| error.code.err_code())
        };
        assert!(matches!(ask(r#"{"seq":3}"#), Ok(Query::Seq(StreamSeq(3)))));
        assert!(matches!(ask(r#"{"last_by_subj":"a.*"}"#), Ok(Query::Last(_))));
        assert!(matches!(
            ask(r#"{"next_by_subj":"a","seq":3}"#),
            Ok(Query::Next(Start::Seq(StreamSeq(3)), _))
        ));
        for body in [
            "{}",
            r#"{"no_hdr":true}"#,
            r#"{"seq":1,"batch":1}"#,
            r#"{"seq":1,"max_bytes":1}"#,
            r#"{"multi_last":["a"]}"#,
            r#"{"seq":1,"last_by_subj":"a"}"#,
            r#"{"last_by_subj":"a","next_by_subj":"a"}"#,
        ] {
            assert_eq!(ask(body).err(), Some(10003), "{body}");
        }
    }
}
