//! Subjects of the JetStream API: which endpoint a request is for, and what it names.

use tidelock_api::ResponseKind;

/// How every subject of the API begins; with a domain, `$JS.<domain>.API.`.
pub(super) const PREFIX: &[u8] = b"$JS.API.";
/// How subjects begin that nodes use among themselves. No client can reach them: the API is served under its own
/// prefixes only.
pub(super) const INNER_PREFIX: &str = "$TL.API.";

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    AccountInfo,
    StreamCreate,
    StreamUpdate,
    StreamNames,
    StreamList,
    StreamInfo,
    StreamDelete,
    StreamPurge,
    MsgDelete,
    MsgGet,
    /// `DIRECT.GET.<stream>`: the body says which.
    DirectGet,
    /// `DIRECT.GET.<stream>.<subject>`: the last one of the subject.
    DirectLast,
    Snapshot,
    Restore,
    StreamStepdown,
    PeerRemove,
    PeerEvacuate,
    CancelMove,
    /// `CONSUMER.CREATE.<stream>`.
    ConsumerCreate,
    /// `CONSUMER.CREATE.<stream>.<consumer>[.<filter>]`.
    ConsumerCreateNamed,
    ConsumerDurableCreate,
    ConsumerNames,
    ConsumerList,
    ConsumerInfo,
    ConsumerDelete,
    ConsumerPause,
    ConsumerUnpin,
    ConsumerReset,
    MsgNext,
    ConsumerStepdown,
    ConsumerPeerRemove,
    ConsumerPeerEvacuate,
    MetaStepdown,
    ServerRemove,
    ServerEvacuate,
    MetaRescue,
    AccountPurge,
    AccountStreamMove,
    AccountCancelMove,
    /// Between nodes: a stream's information, in the form that other answers are made of.
    InnerInfo,
    /// Between nodes: a new configuration for the stream's own log.
    InnerUpdate,
    /// Between nodes: what an account uses of a node.
    InnerUsage,
}

impl Endpoint {
    /// The `type` of its answers. Those without one answer with messages and statuses.
    pub(crate) const fn kind(self) -> ResponseKind {
        match self {
            Self::AccountInfo => ResponseKind::AccountInfo,
            Self::StreamCreate => ResponseKind::StreamCreate,
            Self::StreamUpdate | Self::AccountStreamMove => ResponseKind::StreamUpdate,
            Self::StreamNames => ResponseKind::StreamNames,
            Self::StreamList => ResponseKind::StreamList,
            Self::StreamInfo => ResponseKind::StreamInfo,
            Self::StreamDelete => ResponseKind::StreamDelete,
            Self::StreamPurge => ResponseKind::StreamPurge,
            Self::MsgDelete => ResponseKind::StreamMsgDelete,
            Self::MsgGet => ResponseKind::StreamMsgGet,
            Self::Snapshot => ResponseKind::StreamSnapshot,
            Self::Restore => ResponseKind::StreamRestore,
            Self::StreamStepdown => ResponseKind::StreamLeaderStepdown,
            Self::PeerRemove => ResponseKind::StreamRemovePeer,
            Self::PeerEvacuate => ResponseKind::StreamEvacuatePeer,
            Self::CancelMove | Self::AccountCancelMove => ResponseKind::StreamCancelMove,
            Self::ConsumerCreate | Self::ConsumerCreateNamed | Self::ConsumerDurableCreate => {
                ResponseKind::ConsumerCreate
            }
            Self::ConsumerNames => ResponseKind::ConsumerNames,
            Self::ConsumerList => ResponseKind::ConsumerList,
            Self::ConsumerInfo => ResponseKind::ConsumerInfo,
            Self::ConsumerDelete => ResponseKind::ConsumerDelete,
            Self::ConsumerPause => ResponseKind::ConsumerPause,
            Self::ConsumerUnpin => ResponseKind::ConsumerUnpin,
            Self::ConsumerReset => ResponseKind::ConsumerReset,
            Self::ConsumerStepdown => ResponseKind::ConsumerLeaderStepdown,
            Self::ConsumerPeerRemove => ResponseKind::ConsumerRemovePeer,
            Self::ConsumerPeerEvacuate => ResponseKind::ConsumerEvacuatePeer,
            Self::MetaStepdown => ResponseKind::MetaLeaderStepdown,
            Self::ServerRemove => ResponseKind::MetaServerRemove,
            Self::ServerEvacuate => ResponseKind::MetaServerEvacuate,
            Self::MetaRescue => ResponseKind::MetaRescue,
            Self::AccountPurge => ResponseKind::AccountPurge,
            Self::DirectGet
            | Self::DirectLast
            | Self::MsgNext
            | Self::InnerInfo
            | Self::InnerUpdate
            | Self::InnerUsage => ResponseKind::System,
        }
    }

    /// Whether the stream's leader answers; otherwise the metadata's.
    pub(super) const fn is_of_stream(self) -> bool {
        match self {
            Self::StreamInfo
            | Self::StreamPurge
            | Self::MsgDelete
            | Self::MsgGet
            | Self::DirectGet
            | Self::DirectLast
            | Self::StreamStepdown
            | Self::ConsumerCreate
            | Self::ConsumerCreateNamed
            | Self::ConsumerDurableCreate
            | Self::ConsumerNames
            | Self::ConsumerList
            | Self::ConsumerInfo
            | Self::ConsumerDelete
            | Self::ConsumerPause
            | Self::ConsumerUnpin
            | Self::ConsumerReset
            | Self::MsgNext
            | Self::ConsumerStepdown
            | Self::InnerInfo
            | Self::InnerUpdate => true,
            Self::AccountInfo
            | Self::StreamCreate
            | Self::StreamUpdate
            | Self::StreamNames
            | Self::StreamList
            | Self::StreamDelete
            | Self::Snapshot
            | Self::Restore
            | Self::PeerRemove
            | Self::PeerEvacuate
            | Self::CancelMove
            | Self::ConsumerPeerRemove
            | Self::ConsumerPeerEvacuate
            | Self::MetaStepdown
            | Self::ServerRemove
            | Self::ServerEvacuate
            | Self::MetaRescue
            | Self::AccountPurge
            | Self::AccountStreamMove
            | Self::AccountCancelMove
            | Self::InnerUsage => false,
        }
    }

    /// Whether only the system account may ask.
    pub(super) const fn is_of_system(self) -> bool {
        matches!(
            self,
            Self::MetaStepdown
                | Self::ServerRemove
                | Self::ServerEvacuate
                | Self::MetaRescue
                | Self::AccountPurge
                | Self::AccountStreamMove
                | Self::AccountCancelMove
        )
    }

    /// Whether an advisory tells of each answer.
    pub(super) const fn is_audited(self) -> bool {
        !self.is_of_system() || matches!(self, Self::MetaStepdown | Self::ServerRemove)
    }

    /// Whether clients see it as a stream or consumer that listens itself: nobody listens where there is none.
    pub(super) const fn is_subscribed(self) -> bool {
        matches!(self, Self::DirectGet | Self::DirectLast | Self::MsgNext)
    }

    /// Whether it waits in the queue for information; the others have one of their own (`info_queue_limit`,
    /// `request_queue_limit`).
    pub(super) const fn is_info(self) -> bool {
        matches!(
            self,
            Self::AccountInfo
                | Self::StreamNames
                | Self::StreamList
                | Self::StreamInfo
                | Self::ConsumerNames
                | Self::ConsumerList
                | Self::ConsumerInfo
        )
    }

    /// Whether its answers are counted and audited. Of `MSG.GET` only refusals are.
    pub(super) const fn is_counted(self, refused: bool) -> bool {
        let uncounted = matches!(
            self,
            Self::DirectGet | Self::DirectLast | Self::MsgNext | Self::ConsumerReset
        );
        !uncounted && (refused || !matches!(self, Self::MsgGet))
    }

    /// Whether any replica of the stream can serve it: it asks for nothing but stored messages. What else a stream or
    /// consumer tells of itself is partly known to its leader only.
    pub(super) const fn is_of_any_replica(self) -> bool {
        matches!(self, Self::MsgGet | Self::DirectGet | Self::DirectLast)
    }

    /// Whether an answer that got lost with a leader may be had by asking again: reads, and changes that come to the
    /// same when they are made twice.
    pub(super) const fn is_repeatable(self) -> bool {
        !matches!(
            self,
            Self::StreamUpdate
                | Self::StreamDelete
                | Self::StreamPurge
                | Self::MsgDelete
                | Self::ConsumerCreate
                | Self::ConsumerDelete
                | Self::ConsumerReset
                | Self::PeerRemove
                | Self::ServerRemove
        )
    }
}

/// A request's subject, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call<'a> {
    pub(crate) endpoint: Endpoint,
    /// Name of the stream, or of the account where the endpoint has one; empty for none.
    pub(crate) stream: &'a str,
    /// Name of the consumer; empty for none.
    pub(crate) consumer: &'a str,
    /// What follows: the filter of a consumer, the subject of `DIRECT.GET`, the stream of a move.
    pub(crate) rest: &'a str,
}

impl<'a> Call<'a> {
    /// Takes a subject apart; `None` for one that has no endpoint.
    pub(crate) fn parse(subject: &'a [u8]) -> Option<Self> {
        let text = std::str::from_utf8(subject).ok()?;
        if let Some(rest) = text.strip_prefix("$JS.API.") {
            return Self::public(rest);
        }
        let (endpoint, stream) = text.strip_prefix(INNER_PREFIX)?.split_once('.')?;
        let endpoint = match endpoint {
            "INFO" => Endpoint::InnerInfo,
            "UPDATE" => Endpoint::InnerUpdate,
            "USAGE" => Endpoint::InnerUsage,
            _ => return None,
        };
        Some(Self {
            endpoint,
            stream,
            consumer: "",
            rest: "",
        })
    }

    fn public(text: &'a str) -> Option<Self> {
        let bare = |endpoint| {
            Some(Self {
                endpoint,
                stream: "",
                consumer: "",
                rest: "",
            })
        };
        match text {
            "INFO" => return bare(Endpoint::AccountInfo),
            "STREAM.NAMES" => return bare(Endpoint::StreamNames),
            "STREAM.LIST" => return bare(Endpoint::StreamList),
            "META.LEADER.STEPDOWN" => return bare(Endpoint::MetaStepdown),
            "META.RESCUE" => return bare(Endpoint::MetaRescue),
            "SERVER.REMOVE" => return bare(Endpoint::ServerRemove),
            "SERVER.EVACUATE" => return bare(Endpoint::ServerEvacuate),
            _ => {}
        }
        let (family, text) = text.split_once('.')?;
        match family {
            "STREAM" => Self::stream(text),
            "CONSUMER" => Self::consumer(text),
            "DIRECT" => {
                let names = text.strip_prefix("GET.")?;
                let (stream, rest) = names.split_once('.').unwrap_or((names, ""));
                let endpoint = if names.contains('.') {
                    Endpoint::DirectLast
                } else {
                    Endpoint::DirectGet
                };
                Self {
                    endpoint,
                    stream,
                    consumer: "",
                    rest,
                }
                .named()
            }
            "ACCOUNT" => {
                let (verb, names) = [
                    ("PURGE.", Endpoint::AccountPurge),
                    ("STREAM.MOVE.", Endpoint::AccountStreamMove),
                    ("STREAM.CANCEL_MOVE.", Endpoint::AccountCancelMove),
                ]
                .into_iter()
                .find_map(|(verb, endpoint)| Some((endpoint, text.strip_prefix(verb)?)))?;
                let (stream, rest) = names.split_once('.').unwrap_or((names, ""));
                let wants_rest = verb != Endpoint::AccountPurge;
                let fits = rest.is_empty() != wants_rest && !rest.contains('.');
                if fits {
                    Self {
                        endpoint: verb,
                        stream,
                        consumer: "",
                        rest,
                    }
                    .named()
                } else {
                    None
                }
            }
            _ => None,
        }
    }

    /// `STREAM.<verb>.<stream>`.
    fn stream(text: &'a str) -> Option<Self> {
        let (verb, stream) = text.rsplit_once('.')?;
        let endpoint = match verb {
            "CREATE" => Endpoint::StreamCreate,
            "UPDATE" => Endpoint::StreamUpdate,
            "INFO" => Endpoint::StreamInfo,
            "DELETE" => Endpoint::StreamDelete,
            "PURGE" => Endpoint::StreamPurge,
            "MSG.DELETE" => Endpoint::MsgDelete,
            "MSG.GET" => Endpoint::MsgGet,
            "SNAPSHOT" => Endpoint::Snapshot,
            "RESTORE" => Endpoint::Restore,
            "LEADER.STEPDOWN" => Endpoint::StreamStepdown,
            "PEER.REMOVE" => Endpoint::PeerRemove,
            "PEER.EVACUATE" => Endpoint::PeerEvacuate,
            "CANCEL_MOVE" => Endpoint::CancelMove,
            _ => return None,
        };
        Self {
            endpoint,
            stream,
            consumer: "",
            rest: "",
        }
        .named()
    }

    /// `CONSUMER.<verb>.<stream>[.<consumer>[.<filter>]]`.
    fn consumer(text: &'a str) -> Option<Self> {
        let of_stream = |endpoint, stream: &'a str| {
            let whole = !stream.contains('.');
            let call = Self {
                endpoint,
                stream,
                consumer: "",
                rest: "",
            };
            if whole { call.named() } else { None }
        };
        let of_consumer = |endpoint, names: &'a str| {
            let (stream, consumer) = names.split_once('.')?;
            let whole = !consumer.is_empty() && !consumer.contains('.');
            let call = Self {
                endpoint,
                stream,
                consumer,
                rest: "",
            };
            if whole { call.named() } else { None }
        };
        let (verb, names) = text.split_once('.')?;
        let inner = |sub: &str| names.strip_prefix(sub);
        match verb {
            "CREATE" => {
                let Some((stream, names)) = names.split_once('.') else {
                    return of_stream(Endpoint::ConsumerCreate, names);
                };
                let (consumer, rest) = names.split_once('.').unwrap_or((names, ""));
                let whole = !consumer.is_empty() && !names.ends_with('.');
                let call = Self {
                    endpoint: Endpoint::ConsumerCreateNamed,
                    stream,
                    consumer,
                    rest,
                };
                if whole { call.named() } else { None }
            }
            "DURABLE" => of_consumer(Endpoint::ConsumerDurableCreate, inner("CREATE.")?),
            "NAMES" => of_stream(Endpoint::ConsumerNames, names),
            "LIST" => of_stream(Endpoint::ConsumerList, names),
            "INFO" => of_consumer(Endpoint::ConsumerInfo, names),
            "DELETE" => of_consumer(Endpoint::ConsumerDelete, names),
            "PAUSE" => of_consumer(Endpoint::ConsumerPause, names),
            "UNPIN" => of_consumer(Endpoint::ConsumerUnpin, names),
            "RESET" => of_consumer(Endpoint::ConsumerReset, names),
            "MSG" => of_consumer(Endpoint::MsgNext, inner("NEXT.")?),
            "LEADER" => of_consumer(Endpoint::ConsumerStepdown, inner("STEPDOWN.")?),
            "PEER" => match inner("REMOVE.") {
                Some(names) => of_consumer(Endpoint::ConsumerPeerRemove, names),
                None => of_consumer(Endpoint::ConsumerPeerEvacuate, inner("EVACUATE.")?),
            },
            _ => None,
        }
    }

    /// The call, if it names something.
    fn named(self) -> Option<Self> {
        if self.stream.is_empty() { None } else { Some(self) }
    }
}

/// What follows the API's prefix, with or without the domain.
pub(super) enum Addressed<'a> {
    /// A request of the API.
    Api(&'a [u8]),
    /// A publish to a key-value or object store through the domain: `$JS.<domain>.API.$KV.…`.
    Publish(&'a [u8]),
    /// Something else, or another domain.
    Elsewhere,
}

/// Whom a subject of the API addresses on a server of this domain.
pub(super) fn addressed<'a>(subject: &'a [u8], domain: Option<&str>) -> Addressed<'a> {
    if let Some(rest) = subject.strip_prefix(PREFIX) {
        return Addressed::Api(rest);
    }
    let rest = domain.and_then(|domain| {
        let rest = subject.strip_prefix(b"$JS.")?.strip_prefix(domain.as_bytes())?;
        rest.strip_prefix(b".API.")
    });
    match rest {
        Some(rest) if rest.starts_with(b"$KV.") || rest.starts_with(b"$OBJ.") => Addressed::Publish(rest),
        Some(rest) => Addressed::Api(rest),
        None => Addressed::Elsewhere,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<(Endpoint, &str, &str, &str)> {
        Call::parse(text.as_bytes()).map(|call| (call.endpoint, call.stream, call.consumer, call.rest))
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "one line for each row of the table")]
    fn every_subject_of_the_table_is_known() {
        let table = [
            ("INFO", Endpoint::AccountInfo, "", "", ""),
            ("STREAM.CREATE.S", Endpoint::StreamCreate, "S", "", ""),
            ("STREAM.UPDATE.S", Endpoint::StreamUpdate, "S", "", ""),
            ("STREAM.NAMES", Endpoint::StreamNames, "", "", ""),
            ("STREAM.LIST", Endpoint::StreamList, "", "", ""),
            ("STREAM.INFO.S", Endpoint::StreamInfo, "S", "", ""),
            ("STREAM.DELETE.S", Endpoint::StreamDelete, "S", "", ""),
            ("STREAM.PURGE.S", Endpoint::StreamPurge, "S", "", ""),
            ("STREAM.MSG.DELETE.S", Endpoint::MsgDelete, "S", "", ""),
            ("STREAM.MSG.GET.S", Endpoint::MsgGet, "S", "", ""),
            ("DIRECT.GET.S", Endpoint::DirectGet, "S", "", ""),
            (
                "DIRECT.GET.S.$KV.B.a.b",
                Endpoint::DirectLast,
                "S",
                "",
                "$KV.B.a.b",
            ),
            ("STREAM.SNAPSHOT.S", Endpoint::Snapshot, "S", "", ""),
            ("STREAM.RESTORE.S", Endpoint::Restore, "S", "", ""),
            ("STREAM.LEADER.STEPDOWN.S", Endpoint::StreamStepdown, "S", "", ""),
            ("STREAM.PEER.REMOVE.S", Endpoint::PeerRemove, "S", "", ""),
            ("STREAM.PEER.EVACUATE.S", Endpoint::PeerEvacuate, "S", "", ""),
            ("STREAM.CANCEL_MOVE.S", Endpoint::CancelMove, "S", "", ""),
            ("CONSUMER.CREATE.S", Endpoint::ConsumerCreate, "S", "", ""),
            ("CONSUMER.CREATE.S.C", Endpoint::ConsumerCreateNamed, "S", "C", ""),
            (
                "CONSUMER.CREATE.S.C.a.>",
                Endpoint::ConsumerCreateNamed,
                "S",
                "C",
                "a.>",
            ),
            (
                "CONSUMER.DURABLE.CREATE.S.C",
                Endpoint::ConsumerDurableCreate,
                "S",
                "C",
                "",
            ),
            ("CONSUMER.NAMES.S", Endpoint::ConsumerNames, "S", "", ""),
            ("CONSUMER.LIST.S", Endpoint::ConsumerList, "S", "", ""),
            ("CONSUMER.INFO.S.C", Endpoint::ConsumerInfo, "S", "C", ""),
            ("CONSUMER.DELETE.S.C", Endpoint::ConsumerDelete, "S", "C", ""),
            ("CONSUMER.PAUSE.S.C", Endpoint::ConsumerPause, "S", "C", ""),
            ("CONSUMER.UNPIN.S.C", Endpoint::ConsumerUnpin, "S", "C", ""),
            ("CONSUMER.RESET.S.C", Endpoint::ConsumerReset, "S", "C", ""),
            ("CONSUMER.MSG.NEXT.S.C", Endpoint::MsgNext, "S", "C", ""),
            (
                "CONSUMER.LEADER.STEPDOWN.S.C",
                Endpoint::ConsumerStepdown,
                "S",
                "C",
                "",
            ),
            (
                "CONSUMER.PEER.REMOVE.S.C",
                Endpoint::ConsumerPeerRemove,
                "S",
                "C",
                "",
            ),
            (
                "CONSUMER.PEER.EVACUATE.S.C",
                Endpoint::ConsumerPeerEvacuate,
                "S",
                "C",
                "",
            ),
            ("META.LEADER.STEPDOWN", Endpoint::MetaStepdown, "", "", ""),
            ("META.RESCUE", Endpoint::MetaRescue, "", "", ""),
            ("SERVER.REMOVE", Endpoint::ServerRemove, "", "", ""),
            ("SERVER.EVACUATE", Endpoint::ServerEvacuate, "", "", ""),
            ("ACCOUNT.PURGE.A", Endpoint::AccountPurge, "A", "", ""),
            (
                "ACCOUNT.STREAM.MOVE.A.S",
                Endpoint::AccountStreamMove,
                "A",
                "",
                "S",
            ),
            (
                "ACCOUNT.STREAM.CANCEL_MOVE.A.S",
                Endpoint::AccountCancelMove,
                "A",
                "",
                "S",
            ),
        ];
        for (subject, endpoint, stream, consumer, rest) in table {
            let subject = format!("$JS.API.{subject}");
            assert_eq!(
                parsed(&subject),
                Some((endpoint, stream, consumer, rest)),
                "{subject}"
            );
        }
    }

    #[test]
    fn other_subjects_have_no_endpoint() {
        for subject in [
            "FOO",
            "INFO.x",
            "STREAM.INFO",
            "STREAM.INFO.S.x",
            "STREAM.CREATE.a.b",
            "STREAM.TEMPLATE.CREATE.x",
            "CONSUMER.INFO.S",
            "CONSUMER.INFO.S.C.x",
            "CONSUMER.DURABLE.CREATE.S",
            "CONSUMER.DURABLE.CREATE.S.a.b",
            "CONSUMER.CREATE.S.",
            "CONSUMER.MSG.NEXT.S",
            "DIRECT.GET.",
            "DIRECT.PUT.S",
            "ACCOUNT.PURGE.A.b",
            "ACCOUNT.STREAM.MOVE.A",
        ] {
            assert_eq!(parsed(&format!("$JS.API.{subject}")), None, "{subject}");
        }
        assert_eq!(parsed("$JS.ACK.S.C"), None);
        assert_eq!(Call::parse(b"$JS.API.STREAM.INFO.\xff"), None);
    }

    #[test]
    fn the_domain_stands_before_the_api() {
        let api = |subject: &'static str, domain| match addressed(subject.as_bytes(), domain) {
            Addressed::Api(rest) => format!("api {}", String::from_utf8_lossy(rest)),
            Addressed::Publish(rest) => format!("publish {}", String::from_utf8_lossy(rest)),
            Addressed::Elsewhere => "elsewhere".to_owned(),
        };
        assert_eq!(api("$JS.API.INFO", None), "api INFO");
        assert_eq!(api("$JS.API.INFO", Some("hub")), "api INFO");
        assert_eq!(api("$JS.hub.API.STREAM.INFO.S", Some("hub")), "api STREAM.INFO.S");
        assert_eq!(api("$JS.hub.API.INFO", Some("edge")), "elsewhere");
        assert_eq!(api("$JS.hub.API.INFO", None), "elsewhere");
        assert_eq!(api("$JS.hub.API.$KV.B.key", Some("hub")), "publish $KV.B.key");
        assert_eq!(api("$JS.ACK.S.C", Some("hub")), "elsewhere");
    }
}
